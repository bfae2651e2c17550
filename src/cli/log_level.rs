//! `outrigger log-level`: what a running process logs, changed for a time or shown.

use std::io::Write;
use std::time::Duration;

use http::Method;
use serde_json::json;

use super::client::{AdminClient, ConnectArgs, Failure};
use super::output::finish;
use crate::admin::views::LogLevelView;
use crate::config::environment::Environment;

/// Arguments.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LogLevelArgs {
    /// A level, or parts as in `outrigger::control=debug,warn`; without it the present one is shown.
    #[arg(value_name = "FILTER")]
    pub filter: Option<String>,
    /// Go back to the configured level after this time; else at the restart.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, requires = "filter")]
    pub time: Option<Duration>,
    /// Why; it stands in the event.
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// Runs the command; returns the exit code.
pub fn run(
    args: &LogLevelArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    finish(set(args, env, out), out, err)
}

fn set(args: &LogLevelArgs, env: &dyn Environment, out: &mut dyn Write) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    let path = "/api/v1/log-level";
    let answer = match &args.filter {
        None => client.get(path)?,
        Some(filter) => {
            let time = args.time.map(|time| time.as_secs());
            let body = json!({"filter": filter, "for_s": time, "note": args.note});
            client.order(Method::PUT, path, Some(&body))?
        }
    };
    let view: LogLevelView = client.read(&answer)?;
    let until = view.until_unix_s.map(|at| {
        let at = std::time::UNIX_EPOCH + Duration::from_secs(at);
        humantime::format_rfc3339_seconds(at)
    });
    match until {
        _ if view.filter == view.configured => writeln!(out, "{}", view.filter)?,
        Some(at) => writeln!(out, "{} until {at}, then {}", view.filter, view.configured)?,
        None => writeln!(out, "{}; {} is configured", view.filter, view.configured)?,
    }
    Ok(0)
}
