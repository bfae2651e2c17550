//! The JSON Schemas under `config/schema/` are those the binary prints, and say what the parser
//! says: files that load are valid, every key of a schema is known to the parser, every key that the
//! parser's source asks for is in a schema.
//! `UPDATE_SCHEMA=1 cargo test --test conformance schema` writes the files.

#![expect(clippy::expect_used, reason = "helpers of tests")]

mod validator;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use outrigger::config::diagnostic::Code;
use outrigger::config::schema::{Kind, schema};
use outrigger::config::{endpoints, parse_str};
use serde_json::Value;

use validator::{problems, yaml};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("UTF-8")
}

fn yaml_files(folder: &Path) -> Vec<PathBuf> {
    files(folder, "yaml")
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn the_files_are_what_the_binary_prints() {
    for kind in Kind::ALL {
        let path = root().join("config/schema").join(kind.file());
        let text = serde_json::to_string_pretty(&schema(kind)).expect("JSON") + "\n";
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(&path, &text).expect("written");
        }
        assert_eq!(read(&path), text, "{}: run UPDATE_SCHEMA=1", kind.file());
    }
}

/// What a file is, by its modeline or else its place.
fn kind_of(path: &Path, text: &str) -> Kind {
    let name = path.to_string_lossy();
    let first = text.lines().next().unwrap_or_default();
    let named = Kind::ALL
        .into_iter()
        .find(|kind| first.contains(kind.file()));
    named.unwrap_or_else(|| {
        if name.contains("polic") {
            Kind::Policy
        } else if name.contains("endpoints") {
            Kind::Endpoints
        } else {
            Kind::Outrigger
        }
    })
}

#[test]
fn shipped_files_are_valid_and_name_their_schema() {
    let mut files = yaml_files(&root().join("config"));
    // Rules of Prometheus are no configuration of ours.
    files.retain(|path| !path.starts_with(root().join("config/prometheus")));
    files.extend(yaml_files(&root().join("examples")));
    assert!(files.len() >= 4, "{files:?}");
    for path in files {
        let text = read(&path);
        let kind = kind_of(&path, &text);
        let found = problems(&schema(kind), &yaml(&text));
        assert!(found.is_empty(), "{}: {found:?}", path.display());
        let line = text.lines().next().unwrap_or_default();
        let target = line.strip_prefix("# yaml-language-server: $schema=");
        let target = target.expect("a modeline").trim();
        let folder = path.parent().expect("a folder");
        assert!(
            folder.join(target).is_file(),
            "{}: {target}",
            path.display()
        );
    }
}

#[test]
fn golden_files_that_load_are_valid_and_unknown_keys_are_not() {
    let mut valid = 0;
    for path in yaml_files(&root().join("tests/conformance/config")) {
        let text = read(&path);
        let (input, expected) = text.split_once("\n=====\n").expect("a separator");
        let name = path.file_name().expect("a name").to_string_lossy();
        let kind = match &*name {
            name if name.starts_with("policy_") => Kind::Policy,
            name if name.starts_with("endpoints_") => Kind::Endpoints,
            _ => Kind::Outrigger,
        };
        // Several files in one golden file, or no YAML at all: nothing to hold against a schema.
        if input.contains("# file: ") {
            continue;
        }
        if expected.contains("error[E-CFG-012]") {
            let found = problems(&schema(kind), &yaml(input));
            assert!(
                !found.is_empty(),
                "{name}: the schema knows a key the parser does not"
            );
        }
        if !expected.contains("error[") {
            let found = problems(&schema(kind), &yaml(input));
            assert!(found.is_empty(), "{name}: {found:?}");
            valid += 1;
        }
    }
    assert!(valid >= 10, "only {valid} golden files load");
}

/// Every path of properties: names and items are `*`.
fn paths(schema: &Value, at: &[String], found: &mut Vec<(Vec<String>, Value)>) {
    let below = |part: &str| {
        let mut at = at.to_vec();
        at.push(part.to_owned());
        at
    };
    for (name, value) in schema["properties"].as_object().into_iter().flatten() {
        let at = below(name);
        found.push((at.clone(), value.clone()));
        paths(value, &at, found);
    }
    if schema["additionalProperties"].is_object() {
        paths(&schema["additionalProperties"], &below("*"), found);
    }
    if schema["items"].is_object() {
        paths(&schema["items"], &below("[]"), found);
    }
    for part in ["anyOf", "allOf"] {
        for one in schema[part].as_array().into_iter().flatten() {
            let kind = one
                .pointer("/if/properties/kind/const")
                .and_then(Value::as_str);
            match kind {
                Some(kind) => {
                    let mut at = at.to_vec();
                    at.pop();
                    at.push(format!("*{kind}"));
                    paths(&one["then"], &at, found);
                }
                None => paths(one, at, found),
            }
        }
    }
}

/// A document with nothing but the key at `path`, in flow style, which all of it takes.
fn document(path: &[String], value: &Value) -> String {
    let Some((first, rest)) = path.split_first() else {
        return value["default"].to_string();
    };
    let inner = document(rest, value);
    match first.strip_prefix('*') {
        None if first == "[]" => format!("[{inner}]"),
        None => format!("{{\"{first}\": {inner}}}"),
        Some("") => format!("{{\"n\": {inner}}}"),
        Some(kind) => {
            let rest = inner.strip_prefix('{').expect("a map");
            format!("{{\"n\": {{\"kind\": {kind}, {rest}}}")
        }
    }
}

#[test]
fn the_parser_knows_every_key_of_a_schema_and_takes_its_default() {
    let env = BTreeMap::<String, String>::new();
    let mut tried = 0;
    for kind in Kind::ALL {
        let mut found = Vec::new();
        paths(&schema(kind), &[], &mut found);
        for (path, value) in found {
            let text = document(&path, &value);
            let diagnostics = match kind {
                Kind::Outrigger => parse_str(&text, "o", &env, None).diagnostics,
                Kind::Endpoints => match endpoints::parse(&text, "e", &env) {
                    Ok(file) => file.warnings,
                    Err(problems) => problems,
                },
                Kind::Policy => {
                    let folder = tempfile::tempdir().expect("a folder");
                    std::fs::write(folder.path().join("p.yaml"), &text).expect("written");
                    let main = "policies: ./p.yaml";
                    parse_str(main, "m", &env, Some(folder.path())).diagnostics
                }
            };
            tried += 1;
            let written = !value["default"].is_null();
            for problem in diagnostics.iter() {
                let unknown = matches!(problem.code, Code::UNKNOWN_FIELD | Code::NOT_YET);
                assert!(!unknown, "{text}: {problem}");
                let wrong = matches!(
                    problem.code,
                    Code::DURATION
                        | Code::SIZE
                        | Code::NUMBER
                        | Code::PERCENT
                        | Code::BOOLEAN
                        | Code::UNKNOWN_VALUE
                        | Code::ADDRESS
                        | Code::WRONG_TYPE
                        | Code::NAME
                );
                assert!(!written || !wrong, "{text}: {problem}");
            }
        }
    }
    assert!(tried > 200, "{tried}");
}

/// A reader that asks for a key only sometimes, so that the generator never meets it, is found in
/// the source.
#[test]
fn every_key_in_the_source_of_the_parser_is_in_a_schema() {
    let mut known = BTreeSet::new();
    for kind in Kind::ALL {
        let mut found = Vec::new();
        paths(&schema(kind), &[], &mut found);
        known.extend(
            found
                .into_iter()
                .filter_map(|(path, _)| path.last().cloned()),
        );
    }
    let asks = regex::Regex::new(
        r#"(?:\.(?:field|child|named|duration|integer|size|percent|whole_percent|boolean|choice|text|texts|path|listen_or|declare)\(|(?:text|texts|secret)\(\s*map,)\s*"([a-z_0-9]+)""#,
    )
    .expect("a pattern");
    let mut seen = 0;
    for path in files(&root().join("src/config/parse"), "rs") {
        let text = read(&path);
        for key in asks.captures_iter(&text).filter_map(|c| c.get(1)) {
            seen += 1;
            let key = key.as_str();
            assert!(
                known.contains(key),
                "{}: `{key}` is in no schema",
                path.display()
            );
        }
    }
    assert!(seen > 120, "{seen}");
}
