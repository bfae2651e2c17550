//! `outrigger reload`: makes a running process load its files again, and says what came of it.

use std::io::Write;

use http::{Method, StatusCode};
use serde_json::json;

use super::client::{AdminClient, ConnectArgs, Failure};
use super::output::{Format, ShowArgs, finish, json as as_json};
use crate::config::environment::Environment;
use crate::status::ReloadReport;

/// Exit code.
const INVALID: u8 = 3;

/// Arguments.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ReloadArgs {
    /// Why; it stands in the event.
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How to print.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// Runs the command; returns the exit code.
pub fn run(
    args: &ReloadArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    finish(reload(args, env, out), out, err)
}

fn reload(args: &ReloadArgs, env: &dyn Environment, out: &mut dyn Write) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    let body = json!({"note": args.note});
    let taken = [StatusCode::OK, StatusCode::UNPROCESSABLE_ENTITY];
    let answer = client.order_taking(&taken, Method::POST, "/api/v1/config:reload", &body)?;
    let report: ReloadReport = client.read(&answer)?;
    match args.show.output {
        Format::Json => as_json(out, &answer)?,
        Format::Table => {
            if !report.text.is_empty() {
                writeln!(out, "{}", report.text.trim_end())?;
                writeln!(out)?;
            }
            writeln!(out, "{}", report.message)?;
            for key in &report.restart_required {
                writeln!(out, "restart required: {key}")?;
            }
        }
    }
    Ok(if report.is_good() { 0 } else { INVALID })
}
