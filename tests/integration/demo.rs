//! `outrigger demo` as a user starts it, on free ports only.

use std::process::{Command, Output};

fn demo(arguments: &[&str]) -> Output {
    let flags = [
        "listen",
        "admin-listen",
        "telemetry-listen",
        "registry-listen",
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.arg("demo").args(arguments).env_remove("NO_COLOR");
    for flag in flags {
        command.args([&format!("--{flag}"), "127.0.0.1:0"]);
    }
    command.output().unwrap()
}

/// The number before `word` in the line that starts with `row`.
fn number_before(text: &str, row: &str, word: &str) -> usize {
    let line = text.lines().find(|line| line.trim().starts_with(row));
    let line = line.unwrap_or_else(|| panic!("no {row:?} in:\n{text}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|w| *w == word);
    let at = at.unwrap_or_else(|| panic!("no {word:?} in {line:?} of:\n{text}"));
    words[at - 1].parse().unwrap()
}

#[test]
fn the_demo_shows_ejection_probes_return_and_eviction() {
    // Short, yet D stays in the registry long enough for its ejection to come
    // first on a machine that does other work too.
    let output = demo(&["--unit", "500ms", "--duration", "14s"]);
    let told = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}\n{errors}");
    assert!(!told.contains('\x1b') && !told.contains('\r'), "{told:?}");
    let (_, summary) = told.split_once("\nSummary\n").unwrap();
    assert!(
        number_before(summary, "B ejected", "failures") <= 10,
        "{told}"
    );
    assert!(
        number_before(summary, "D ejected", "failures") <= 10,
        "{told}"
    );
    for part in [
        "failed (k=2",
        "1 good",
        "removed after",
        "never all",
        "complete",
    ] {
        assert!(summary.contains(part), "{part:?} is missing:\n{told}");
    }
    let instants = told.lines().filter(|line| line.contains("  ejected "));
    assert_eq!(instants.count(), 2, "{told}");
}

#[test]
fn too_short_a_duration_is_refused_with_what_is_needed() {
    let output = demo(&["--duration", "5s"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("give --duration 30s"), "{errors}");
    assert!(output.stdout.is_empty());
}
