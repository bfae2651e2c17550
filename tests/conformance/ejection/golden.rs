//! Golden traces: recorded histories with what the detector did.

use outrigger::outlier::replay::{self, ReplayError};

fn traces() -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance/traces");
    let mut traces: Vec<(String, String)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "jsonl")
        })
        .map(|path| {
            (
                path.display().to_string(),
                std::fs::read_to_string(&path).unwrap(),
            )
        })
        .collect();
    traces.sort();
    traces
}

#[test]
fn every_golden_trace_passes() {
    let traces = traces();
    assert!(traces.len() >= 10, "{} traces", traces.len());
    for (path, text) in traces {
        if let Err(error) = replay::check(&text) {
            panic!("{path}: {error}");
        }
    }
}

#[test]
fn a_changed_number_in_any_expectation_is_found() {
    for (path, text) in traces() {
        for (index, line) in text.lines().enumerate() {
            let Some((head, k)) = line
                .split_once("\"k\":")
                .filter(|(_, k)| line.contains("expect") && !k.starts_with("null"))
            else {
                continue;
            };
            let changed = format!("{head}\"k\":9{k}");
            let changed: Vec<&str> = text
                .lines()
                .enumerate()
                .map(|(at, line)| if at == index { changed.as_str() } else { line })
                .collect();
            match replay::check(&changed.join("\n")) {
                Err(ReplayError::Differs { line, .. }) => assert_eq!(line, index + 1, "{path}"),
                other => panic!("{path}:{}: {other:?}", index + 1),
            }
        }
    }
}
