//! The YAML that readers copy out of the documentation loads. Looked at are the fenced blocks of
//! README.md and `docs/` whose first line that is no comment begins with `version:`; a first comment
//! says what a block is when it is no main file: `# endpoints.yaml` or `# policies/NAME.yaml`.

#![expect(clippy::expect_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use outrigger::config::load::policies;
use outrigger::config::{endpoints, parse_str};

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("docs/ can be read") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A fenced block and the line it begins in.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        let fence = line.trim_start();
        match &mut open {
            None if fence.starts_with("```yaml") => open = Some((number + 2, String::new())),
            None => {}
            Some(_) if fence.starts_with("```") => found.extend(open.take()),
            Some((_, block)) => {
                block.push_str(line);
                block.push('\n');
            }
        }
    }
    assert!(open.is_none(), "a fence is not closed");
    found
}

fn problems_of(block: &str, name: &str) -> Vec<String> {
    let env = BTreeMap::<String, String>::new();
    let kind = block.lines().next().unwrap_or_default();
    let diagnostics = if kind.starts_with("# endpoints.yaml") {
        match endpoints::parse(block, name, &env) {
            Ok(_) => return Vec::new(),
            Err(problems) => problems,
        }
    } else if kind.starts_with("# policies/") {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("policy.yaml");
        std::fs::write(&file, block).expect("it can be written");
        policies(vec![file], &env).1
    } else {
        parse_str(block, name, &env, None).diagnostics
    };
    if diagnostics.has_errors() {
        diagnostics.iter().map(|p| p.line()).collect()
    } else {
        Vec::new()
    }
}

#[test]
fn yaml_in_the_documentation_loads() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for path in documents() {
        let text = std::fs::read_to_string(&path).expect("documentation is UTF-8");
        for (line, block) in blocks(&text) {
            let first = block.lines().find(|l| !l.is_empty() && !l.starts_with('#'));
            if !first.is_some_and(|l| l.starts_with("version:")) {
                continue;
            }
            seen += 1;
            let name = path.file_name().expect("a name").to_string_lossy();
            for problem in problems_of(&block, &format!("{name}, block at line {line}")) {
                wrong.push(problem);
            }
        }
    }
    assert!(seen >= 5, "only {seen} blocks were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
