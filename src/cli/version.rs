//! `outrigger version`.

use std::io::Write;

use super::client::Failure;
use super::output::{finish, json};
use crate::config::environment::Environment;
use crate::version::{COMMIT, VERSION};

/// Arguments.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct VersionArgs {
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command; returns the exit code.
pub fn run(
    args: &VersionArgs,
    _env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = show(args, out);
    finish(result, out, err)
}

fn show(args: &VersionArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    if args.json {
        let value = serde_json::json!({"version": VERSION, "commit": COMMIT});
        json(out, &value)?;
    } else {
        writeln!(out, "outrigger {VERSION} (commit {COMMIT})")?;
    }
    Ok(0)
}
