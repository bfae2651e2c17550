//! What the code says and the documentation explains: every key of the shipped files, every event.

#![expect(clippy::expect_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(path).expect("the file is there")
}

/// `key:` at the beginning of a line or inside of `{...}`, also behind a `#`.
fn keys(yaml: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in yaml.lines() {
        for part in line.split(['{', ',', '#']) {
            let word: String = part
                .trim_start_matches([' ', '-'])
                .chars()
                .take_while(|c| c.is_ascii_lowercase() || *c == '_')
                .collect();
            if word.len() > 1 && part.contains(&format!("{word}: ")) {
                found.insert(word);
            }
        }
    }
    found
}

#[test]
fn every_key_is_in_the_reference() {
    let reference = read("docs/configuration.md");
    let words: BTreeSet<&str> = reference
        .split(|c: char| !(c.is_ascii_lowercase() || c == '_'))
        .collect();
    // Names that users give, in the examples of the main file.
    let names = ["orders", "billing", "legacy", "local", "nacos", "embedded"];
    for file in ["config/outrigger.yaml", "config/policies/default.yaml"] {
        let keys = keys(&read(file));
        assert!(keys.len() > 15, "{file}: {keys:?}");
        for key in keys.iter().filter(|k| !names.contains(&k.as_str())) {
            let known = words.contains(key.as_str());
            assert!(known, "`{key}` of {file} is not in docs/configuration.md");
        }
    }
}

fn sources(folder: PathBuf, found: &mut String) {
    for entry in std::fs::read_dir(folder).expect("src/ can be read") {
        let path = entry.expect("an entry").path();
        let name = path.to_string_lossy();
        if path.is_dir() {
            sources(path, found);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            let text = std::fs::read_to_string(&path).expect("a source file is UTF-8");
            found.push_str(text.split("#[cfg(test)]\nmod tests {").next().expect("one"));
        }
    }
}

#[test]
fn every_event_is_explained() {
    let mut code = String::new();
    sources(Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut code);
    let explained = read("docs/events.md");
    let mut events = BTreeSet::new();
    for call in ["emit(", "(driver, "] {
        for (at, _) in code.match_indices(call) {
            let rest = code.get(at + call.len()..).unwrap_or_default().trim_start();
            let literal = rest.strip_prefix('"').and_then(|r| r.split('"').next());
            events.extend(literal);
        }
    }
    assert!(events.len() > 15, "{events:?}");
    for event in events {
        let named = outrigger::journal::EVENTS.contains(&event);
        assert!(named, "the event `{event}` is not in journal::EVENTS");
        let known = explained.contains(&format!("| `{event}` |"));
        assert!(known, "the event `{event}` is not in docs/events.md");
    }
}
