//! `${NAME}`, `${NAME:-default}` and `${NAME:?message}` in the values of a document, after YAML has
//! been parsed: what a variable holds can never change the structure. `$${` is a literal `${`.

use super::diagnostic::{Code, Diagnostic, Diagnostics, Place};
use super::document::{Node, Scalar, Value};
use super::environment::Environment;

/// Substitutes in every value of `node`; keys stay as they are.
pub fn substitute(node: &mut Node, environment: &dyn Environment, problems: &mut Diagnostics) {
    match &mut node.value {
        Value::Null => {}
        Value::Scalar(scalar) => {
            if scalar.text.contains("${") {
                expand(scalar, &node.place, environment, problems);
            }
        }
        Value::Sequence(items) => {
            for item in items {
                substitute(item, environment, problems);
            }
        }
        Value::Mapping(entries) => {
            for entry in entries {
                substitute(&mut entry.value, environment, problems);
            }
        }
    }
}

fn expand(
    scalar: &mut Scalar,
    place: &Place,
    environment: &dyn Environment,
    problems: &mut Diagnostics,
) {
    let mut result = String::new();
    let mut rest = scalar.text.as_str();
    let mut substituted = false;
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            result.push_str(before);
            result.push_str("${");
            rest = after;
            continue;
        }
        result.push_str(before);
        let value = match after.split_once('}') {
            Some((inside, tail)) => {
                rest = tail;
                one(inside, environment)
            }
            None => {
                rest = "";
                Err((
                    Code::VARIABLE_SYNTAX,
                    "`${` without `}`".to_owned(),
                    MALFORMED.to_owned(),
                ))
            }
        };
        match value {
            Ok(value) => result.push_str(&value),
            Err((code, message, help)) => {
                problems.push(Diagnostic {
                    code,
                    place: place.clone(),
                    message,
                    help,
                });
                // Already reported: the key falls back to its default instead of a second message.
                *scalar = Scalar {
                    text: String::new(),
                    substituted: true,
                };
                return;
            }
        }
        substituted = true;
    }
    result.push_str(rest);
    *scalar = Scalar {
        text: result,
        substituted,
    };
}

fn one(inside: &str, environment: &dyn Environment) -> Result<String, (Code, String, String)> {
    let end = inside
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .unwrap_or(inside.len());
    let (name, operator) = inside.split_at_checked(end).unwrap_or((inside, ""));
    let malformed = |message: String| Err((Code::VARIABLE_SYNTAX, message, MALFORMED.to_owned()));
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return malformed(format!(
            "`${{{inside}}}` does not begin with the name of a variable"
        ));
    }
    if inside.contains("${") {
        return malformed(format!("`${{{inside}` has a variable inside a variable"));
    }
    let value = environment.variable(name);
    let unset = |message: &str| {
        let help = format!("set it, or write `${{{name}:-default}}`");
        Err((
            Code::VARIABLE,
            format!("environment variable `{name}` {message}"),
            help,
        ))
    };
    if operator.is_empty() {
        return value.map_or_else(|| unset("is not set"), Ok);
    }
    let value = value.filter(|value| !value.is_empty());
    if let Some(default) = operator.strip_prefix(":-") {
        return Ok(value.unwrap_or_else(|| default.to_owned()));
    }
    let Some(message) = operator.strip_prefix(":?") else {
        return malformed(format!("`${{{inside}}}` is malformed"));
    };
    match value {
        Some(value) => Ok(value),
        None if message.is_empty() => unset("is not set or empty"),
        None => {
            let what = format!("environment variable `{name}` is not set or empty");
            Err((Code::VARIABLE, what, message.to_owned()))
        }
    }
}

const MALFORMED: &str = "legal are ${NAME}, ${NAME:-default} and ${NAME:?message}; \
                         write $${ for a literal ${";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::document;

    fn run(text: &str) -> (String, Vec<String>) {
        let env: BTreeMap<String, String> = [("A", "x"), ("E", ""), ("Y", "b: [c]")]
            .map(|(k, v)| (k.into(), v.into()))
            .into();
        let (mut node, mut problems) = document::parse(format!("k: '{text}'").as_bytes(), "t");
        substitute(&mut node, &env, &mut problems);
        let Some(Value::Scalar(scalar)) = node.get("k").map(|k| k.value.clone()) else {
            panic!()
        };
        (
            scalar.text,
            problems
                .iter()
                .map(|p| format!("{}: {}", p.message, p.help))
                .collect(),
        )
    }

    #[test]
    fn the_three_forms() {
        for (text, want) in [
            ("${A}", "x"),
            ("a${A}b${A}", "axbx"),
            ("${E}", ""),
            ("${E:-d}", "d"),
            ("${N:-http://h:1/$x}", "http://h:1/$x"),
            ("${A:?m}", "x"),
            ("$A $$ $${A}", "$A $$ ${A}"),
            ("${Y}", "b: [c]"),
        ] {
            assert_eq!(run(text), (want.to_owned(), vec![]), "{text}");
        }
    }

    #[test]
    fn what_is_missing_or_malformed_is_reported_once() {
        for (text, part) in [
            ("${N}", "`N` is not set"),
            ("${N:?set N first}", "empty: set N first"),
            ("${", "without `}`"),
            ("${}", "does not begin"),
            ("${1}", "does not begin"),
            ("${A:+b}", "malformed"),
            ("${A:-${B}}", "inside a variable"),
        ] {
            let (value, problems) = run(text);
            assert_eq!((value.as_str(), problems.len()), ("", 1), "{text}");
            assert!(problems[0].contains(part), "{text}: {problems:?}");
        }
    }
}
