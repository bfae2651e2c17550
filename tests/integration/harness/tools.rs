//! Programs of others that a test runs against the built proxy. Where one is not installed the test
//! says so and passes; with `OUTRIGGER_TEST_TOOLS=required` (as in `.ci/run`) it fails.

use std::path::PathBuf;
use std::process::Command;

/// Where `name` is; `None`: the test is to be skipped.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    if found.is_none() {
        let required = std::env::var("OUTRIGGER_TEST_TOOLS").is_ok_and(|v| v == "required");
        assert!(!required, "`{name}` is not installed; `.ci/run tests` does");
        eprintln!("SKIPPED: `{name}` is not installed");
    }
    found
}

/// Runs it to its end: whether it was content, and all that it said.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}
