//! What `check` found, for programs: JSON, workflow commands of GitHub Actions, SARIF 2.1.0. Paths
//! are as the user gave them, so that they fit the checkout a report is about.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::admin::views::DiagnosticView;
use crate::config::diagnostic::{Code, Diagnostic, Diagnostics};
use crate::version::VERSION;

/// One JSON object.
pub(super) fn json_report(problems: &Diagnostics, text: &str, upstreams: &[Value]) -> Value {
    let diagnostics: Vec<DiagnosticView> = problems.iter().map(DiagnosticView::from).collect();
    json!({
        "valid": !problems.has_errors(),
        "errors": problems.errors().count(),
        "warnings": problems.warnings().count(),
        "diagnostics": diagnostics,
        "upstreams": upstreams,
        "notes": text.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>(),
    })
}

/// `::error file=...,line=...::message`, one a line.
pub(super) fn github(problems: &Diagnostics) -> String {
    let mut out = String::new();
    for problem in problems.iter() {
        let view = DiagnosticView::from(problem);
        let mut properties = vec![format!("file={}", property(&view.file))];
        let mut number = |name: &str, value: Option<usize>| {
            properties.extend(value.map(|value| format!("{name}={value}")));
        };
        number("line", view.line);
        number("endLine", view.end_line);
        number("col", view.column);
        // GitHub takes columns only where a problem stays in its line.
        number(
            "endColumn",
            view.end_column.filter(|_| view.line == view.end_line),
        );
        properties.push(format!("title={}", property(&view.code)));
        let message = sentence(problem);
        let written = writeln!(
            out,
            "::{} {}::{}",
            view.level,
            properties.join(","),
            data(&message)
        );
        debug_assert!(written.is_ok(), "writing to a string cannot fail");
    }
    out
}

/// Message and help in one.
fn sentence(problem: &Diagnostic) -> String {
    if problem.help.is_empty() {
        problem.message.clone()
    } else {
        format!("{}: {}", problem.message, problem.help)
    }
}

/// The data of a workflow command.
fn data(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

/// A property of a workflow command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// A log of one run.
pub(super) fn sarif(problems: &Diagnostics) -> Value {
    let mut codes: Vec<Code> = problems.iter().map(|problem| problem.code).collect();
    codes.sort_unstable();
    codes.dedup();
    let level = |code: Code| {
        if code.is_warning() {
            "warning"
        } else {
            "error"
        }
    };
    let rules = codes.iter().map(|code| {
        json!({
            "id": code.to_string(),
            "shortDescription": {"text": code.explain()},
            "defaultConfiguration": {"level": level(*code)},
        })
    });
    let results = problems.iter().map(|problem| {
        let index = codes.binary_search(&problem.code).unwrap_or_default();
        json!({
            "ruleId": problem.code.to_string(),
            "ruleIndex": index,
            "level": level(problem.code),
            "message": {"text": sentence(problem)},
            "locations": [{"physicalLocation": location(problem)}],
        })
    });
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "outrigger",
                "semanticVersion": VERSION,
                "rules": rules.collect::<Vec<_>>(),
            }},
            "columnKind": "unicodeCodePoints",
            "results": results.collect::<Vec<_>>(),
        }],
    })
}

fn location(problem: &Diagnostic) -> Value {
    let view = DiagnosticView::from(problem);
    let artifact = json!({"uri": uri(&view.file)});
    match (view.line, view.column) {
        (Some(line), Some(column)) => json!({
            "artifactLocation": artifact,
            "region": {
                "startLine": line,
                "startColumn": column,
                "endLine": view.end_line,
                "endColumn": view.end_column,
            },
        }),
        (Some(_) | None, Some(_) | None) => json!({"artifactLocation": artifact}),
    }
}

/// A path as a relative reference, or a file URL.
fn uri(path: &str) -> String {
    const KEPT: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
        .remove(b'/')
        .remove(b'.')
        .remove(b'-')
        .remove(b'_')
        .remove(b'~');
    let encoded = percent_encoding::utf8_percent_encode(path, KEPT);
    if path.starts_with('/') {
        format!("file://{encoded}")
    } else {
        encoded.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_str;

    fn problems(text: &str) -> Diagnostics {
        let env = std::collections::BTreeMap::new();
        parse_str(text, "a,b:c d.yaml", &env, None).diagnostics
    }

    #[test]
    fn workflow_commands_are_escaped() {
        let out = github(&problems("workers: \"50%\\n::error::x\"\n"));
        assert_eq!(
            out,
            "::error file=a%2Cb%3Ac d.yaml,line=1,endLine=1,col=10,endColumn=27,title=E-CFG-019::\
             `workers`: `50%25%0A::error::x` is no number: `auto`, or a whole number from 1 to 64\n"
        );
    }

    #[test]
    fn sarif_has_the_shape_that_readers_ask_for() {
        let log = sarif(&problems("wrkers: 1\nself_lag: 3\n"));
        assert_eq!(log["version"], "2.1.0");
        let run = &log["runs"][0];
        assert_eq!(run["tool"]["driver"]["name"], "outrigger");
        let results = run["results"].as_array().unwrap();
        assert_eq!(results.len(), 2);
        for result in results {
            let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
            let rule = &run["tool"]["driver"]["rules"][index];
            assert_eq!(rule["id"], result["ruleId"]);
            assert!(result["message"]["text"].is_string());
            let place = &result["locations"][0]["physicalLocation"];
            assert_eq!(place["artifactLocation"]["uri"], "a%2Cb%3Ac%20d.yaml");
            assert!(place["region"]["startLine"].as_u64().unwrap() >= 1);
        }
    }
}
