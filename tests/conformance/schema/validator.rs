//! The part of JSON Schema that our schemas use, and YAML as an editor reads it. A keyword that is
//! not known here fails the test.

#![expect(clippy::panic, reason = "an unknown keyword fails the test")]

use regex::Regex;
use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};
use serde_json::{Map, Value};

/// What of `value` the schema does not allow, each with its place.
pub(super) fn problems(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(schema, schema, value, "$", &mut found);
    found
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let rules = match schema {
        Value::Bool(true) => return,
        Value::Object(rules) => rules,
        Value::Null
        | Value::Bool(false)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_) => {
            return found.push(format!("{at}: nothing is allowed here"));
        }
    };
    let good = |schema: &Value| {
        let mut found = Vec::new();
        check(root, schema, value, at, &mut found);
        found.is_empty()
    };
    for (word, rule) in rules {
        let holds = match word.as_str() {
            "$schema" | "$id" | "$defs" | "title" | "description" | "default" | "then" => true,
            "$ref" => {
                let target = rule.as_str().and_then(|r| r.strip_prefix('#'));
                let target = target.and_then(|t| root.pointer(t)).expect("a target");
                check(root, target, value, at, found);
                true
            }
            "type" => types(rule).iter().any(|name| is(value, name)),
            "enum" => rule.as_array().expect("a list").contains(value),
            "const" => rule == value,
            "pattern" => {
                let pattern = Regex::new(rule.as_str().expect("text")).expect("a pattern");
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            "minimum" => value.as_f64().is_none_or(|n| Some(n) >= rule.as_f64()),
            "maximum" => value.as_f64().is_none_or(|n| Some(n) <= rule.as_f64()),
            "anyOf" => rule.as_array().expect("a list").iter().any(good),
            "allOf" => {
                for one in rule.as_array().expect("a list") {
                    check(root, one, value, at, found);
                }
                true
            }
            "if" => {
                if good(rule) {
                    check(root, &rules["then"], value, at, found);
                }
                true
            }
            "items" => {
                for (n, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, rule, item, &format!("{at}[{n}]"), found);
                }
                true
            }
            "properties" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    if let Some(rule) = rule.get(key) {
                        check(root, rule, value, &format!("{at}.{key}"), found);
                    }
                }
                true
            }
            "additionalProperties" => {
                let named = rules.get("properties");
                for (key, value) in value.as_object().into_iter().flatten() {
                    if named.is_none_or(|named| named.get(key).is_none()) {
                        check(root, rule, value, &format!("{at}.{key}"), found);
                    }
                }
                true
            }
            "required" => {
                let keys = rule.as_array().expect("a list").iter();
                let missing = |key: &Value| value.get(key.as_str().expect("text")).is_none();
                !value.is_object() || !keys.into_iter().any(missing)
            }
            other => panic!("the validator does not know `{other}`"),
        };
        if !holds {
            found.push(format!("{at}: {value} against {word} {rule}"));
        }
    }
}

fn types(rule: &Value) -> Vec<&str> {
    match rule {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => vec![],
    }
}

fn is(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("no type: {other}"),
    }
}

/// A YAML text with the types of YAML 1.2's core schema.
pub(super) fn yaml(text: &str) -> Value {
    let mut events = Parser::new(StrInput::new(text));
    let mut anchors = std::collections::HashMap::new();
    while let Some(event) = events.next_event() {
        let (event, _) = event.expect("YAML");
        if !matches!(
            event,
            Event::StreamStart | Event::DocumentStart(_) | Event::Nothing
        ) {
            return node(event, &mut events, &mut anchors);
        }
    }
    Value::Null
}

type Anchors = std::collections::HashMap<usize, Value>;

fn node<'s>(
    event: Event<'s>,
    events: &mut Parser<'s, StrInput<'s>>,
    anchors: &mut Anchors,
) -> Value {
    let next = |events: &mut Parser<'s, StrInput<'s>>| {
        let (event, _) = events.next_event().expect("more").expect("YAML");
        event
    };
    let (anchor, value) = match event {
        Event::Scalar(text, ScalarStyle::Plain, anchor, _) => (anchor, plain(&text)),
        Event::Scalar(text, _, anchor, _) => (anchor, Value::String(text.into_owned())),
        Event::Alias(anchor) => return anchors.get(&anchor).cloned().unwrap_or_default(),
        Event::SequenceStart(anchor, _) => {
            let mut items = Vec::new();
            loop {
                let event = next(events);
                if matches!(event, Event::SequenceEnd) {
                    break (anchor, Value::Array(items));
                }
                items.push(node(event, events, anchors));
            }
        }
        Event::MappingStart(anchor, _) => {
            let mut entries = Map::new();
            loop {
                let event = next(events);
                if matches!(event, Event::MappingEnd) {
                    break (anchor, Value::Object(entries));
                }
                let Event::Scalar(key, ..) = event else {
                    panic!("a key that is no text");
                };
                let event = next(events);
                let value = node(event, events, anchors);
                entries.insert(key.into_owned(), value);
            }
        }
        Event::Nothing
        | Event::StreamStart
        | Event::StreamEnd
        | Event::DocumentStart(_)
        | Event::DocumentEnd
        | Event::SequenceEnd
        | Event::MappingEnd => (0, Value::Null),
    };
    if anchor > 0 {
        anchors.insert(anchor, value.clone());
    }
    value
}

fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ if !text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => text.into(),
        _ => match (text.parse::<i64>(), text.parse::<f64>()) {
            (Ok(number), _) => number.into(),
            (_, Ok(number)) => number.into(),
            _ => text.into(),
        },
    }
}
