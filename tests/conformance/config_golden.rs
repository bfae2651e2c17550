//! Golden configurations: `config/*.yaml` hold the input, a line `=====`, and the expected text:
//! every problem as an operator sees it, or what differs from the defaults. Files whose name begins
//! with `policy_` are policy files, with `endpoints_` endpoints files.
//! `UPDATE_GOLDEN=1 cargo test --test conformance golden` writes the expectations; read them then.

#![expect(clippy::expect_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use outrigger::config::types::Config;
use outrigger::config::{LoadRequest, endpoints, load, parse_str};
use proptest::prelude::*;

const SEPARATOR: &str = "\n=====\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn env() -> BTreeMap<String, String> {
    [("SET", "value"), ("PORT", "8080"), ("EMPTY", "")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into()
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "yaml" || e == "yml") {
            found.push(path);
        }
    }
    found.sort();
}

/// `path = value` for each leaf of a pretty debug text.
fn flatten(config: &Config) -> Vec<String> {
    let mut stack: Vec<String> = Vec::new();
    let path = |stack: &[String]| {
        let parts = stack
            .iter()
            .map(|part| part.trim_end_matches([' ', '{', '(', '[']));
        parts
            .skip(1)
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(".")
    };
    let mut lines = Vec::new();
    for line in format!("{config:#?}").lines() {
        let depth = (line.len() - line.trim_start().len()) / 4;
        stack.truncate(depth);
        let text = line.trim().trim_end_matches(',');
        match text
            .split_once(": ")
            .filter(|(name, _)| !name.contains(['{', '(', '/']))
        {
            _ if matches!(text, "}" | "]" | ")") => {}
            _ if text.ends_with(['{', '[', '(']) => {
                stack.push(text.split(": ").next().unwrap_or_default().to_owned());
            }
            Some((name, value)) => {
                let dot = if stack.len() > 1 { "." } else { "" };
                lines.push(format!("{}{dot}{name} = {value}", path(&stack)));
            }
            None => lines.push(format!("{} = {text}", path(&stack))),
        }
    }
    lines
}

/// What differs from the defaults; of a service, from the file's own defaults.
fn dump(config: &Config) -> String {
    let defaults = parse_str("", "", &env(), None)
        .config
        .expect("no file, no problem");
    let defaults = flatten(&defaults);
    let own = flatten(config);
    let inherited = |line: &str| {
        let key = line
            .strip_prefix("services.\"")
            .and_then(|rest| rest.split_once("\"."));
        key.is_some_and(|(_, key)| own.contains(&format!("defaults.{key}")))
    };
    // Problems are shown above; versions hold the time.
    let dull = |line: &str| {
        line.starts_with("policies.versions")
            || line.starts_with("policies.rejected") && line.contains(".problems")
            || line.starts_with("policies.entries") && line.contains(".settings")
    };
    own.iter()
        .filter(|line| !defaults.contains(line) && !inherited(line) && !dull(line))
        .map(|line| format!("{line}\n"))
        .collect()
}

fn actual(name: &str, input: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let shown = |text: String| text.replace(&format!("{}/", folder.path().display()), "");
    if name.starts_with("endpoints_") {
        return match endpoints::parse(input, "endpoints.yaml", &env()) {
            Ok(file) => format!("{}{:#?}\n", file.warnings, file.services),
            Err(problems) => problems.to_string(),
        };
    }
    let mut main = input.to_owned();
    if name.starts_with("policy_") {
        // Several policy files in one: each begins with `# file: NAME`.
        for (n, part) in input
            .split("# file: ")
            .enumerate()
            .filter(|(_, p)| !p.trim().is_empty())
        {
            let (file, text) = match n {
                0 => ("p.yaml", part),
                _ => part.split_once('\n').expect("a line behind the name"),
            };
            std::fs::write(folder.path().join(file), text).expect("written");
        }
        main = "policies: ./*.yaml\n".to_owned();
    }
    let loaded = parse_str(&main, "outrigger.yaml", &env(), Some(folder.path()));
    let problems = shown(loaded.diagnostics.to_string());
    match loaded.config {
        None => problems,
        Some(config) => format!("{problems}{}", shown(dump(&config))),
    }
}

#[test]
fn golden_files_hold() {
    let mut paths = Vec::new();
    files(&root().join("tests/conformance/config"), &mut paths);
    let (mut differences, mut wrong) = (String::new(), 0);
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("UTF-8");
        let (input, expected) = text.split_once(SEPARATOR).unwrap_or((&text, ""));
        let input = format!("{}\n", input.trim_end_matches('\n'));
        let name = path
            .file_name()
            .and_then(|n| n.to_str())
            .unwrap_or_default();
        let actual = actual(name, &input);
        wrong += usize::from(actual.contains("error[E-"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            let text = format!("{}{SEPARATOR}{actual}", input.trim_end_matches('\n'));
            std::fs::write(&path, text).expect("written");
        } else if actual != expected {
            differences += &format!("--- {name}: expected\n{expected}--- actual\n{actual}\n");
        }
    }
    assert!(differences.is_empty(), "{differences}");
    assert!(
        wrong >= 70,
        "golden files are missing: only {wrong} wrong ones"
    );
}

/// Every YAML file that users are given loads, and none is skipped but those for Prometheus, which
/// `alert_rules` looks at.
#[test]
fn shipped_files_load() {
    let mut paths = Vec::new();
    files(&root().join("config"), &mut paths);
    files(&root().join("examples"), &mut paths);
    paths.retain(|path| !path.starts_with(root().join("config/prometheus")));
    assert!(paths.len() >= 2);
    for path in paths {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let args = outrigger::cli::check::CheckArgs {
            paths: vec![path.clone()],
            strict: true,
            ..outrigger::cli::check::CheckArgs::default()
        };
        let code = outrigger::cli::check::run(&args, &env(), &mut out, &mut err);
        assert_eq!(
            code,
            0,
            "{}: {}",
            path.display(),
            String::from_utf8_lossy(&err)
        );
    }
}

/// The commented main file says the defaults, all of them.
#[test]
fn the_shipped_main_file_is_the_defaults() {
    let env = env();
    let loaded = load(LoadRequest::new(
        Some(root().join("config/outrigger.yaml")),
        &env,
    ));
    let mut config = loaded.config.expect("it loads");
    assert_eq!(config.policies.entries.len(), 1);
    let builtin = Config::builtin();
    config.policies = builtin.policies.clone();
    let defaults = std::sync::Arc::make_mut(&mut config.defaults);
    assert!(!std::mem::take(&mut defaults.registries).is_empty());
    assert_eq!(flatten(&config), flatten(&builtin));
}

fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let mut paths = Vec::new();
    files(&root().join("tests/conformance/config"), &mut paths);
    files(&root().join("config"), &mut paths);
    let texts: Vec<Vec<u8>> = paths
        .iter()
        .filter_map(|path| std::fs::read(path).ok())
        .collect();
    let pieces = prop::sample::select(vec![
        &b"{"[..],
        b"[",
        b"]",
        b"}",
        b": ",
        b"- ",
        b"\"",
        b"'",
        b"|",
        b">",
        b"&a ",
        b"*a",
        b"!",
        b"\n",
        b"\t",
        b"${",
        b"}",
        b"\0",
        b"\xff",
        b"#",
        b"?",
        b"  ",
        b"---\n",
        b"%",
        b"99999999999999999999",
        "\u{feff}".as_bytes(),
        "\u{85}".as_bytes(),
        "é".as_bytes(),
    ]);
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0_usize..12, pieces), 0..6);
    (prop::sample::select(texts), edits).prop_map(|(mut text, edits)| {
        for (at, remove, piece) in edits {
            let start = at.index(text.len() + 1);
            let end = (start + remove).min(text.len());
            text.splice(start..end, piece.iter().copied());
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_input_panics(bytes in prop_oneof![mutated(), prop::collection::vec(any::<u8>(), 0..200)]) {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("p.yaml"), &bytes).expect("written");
        let text = String::from_utf8_lossy(&bytes);
        let loaded = parse_str(&text, "outrigger.yaml", &env(), Some(Path::new("none")));
        prop_assert_eq!(loaded.config.is_none(), loaded.diagnostics.has_errors());
        let rendered = loaded.diagnostics.to_string();
        prop_assert_eq!(rendered.is_empty(), loaded.diagnostics.is_empty());
        let policies = parse_str("policies: ./p.yaml", "m", &env(), Some(folder.path()));
        prop_assert!(policies.config.is_some());
        let endpoints = endpoints::parse(&bytes, "e.yaml", &env());
        prop_assert!(endpoints.is_ok() || endpoints.is_err_and(|problems| problems.has_errors()));
    }
}
