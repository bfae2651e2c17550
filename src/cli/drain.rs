//! `outrigger drain` and `outrigger quit`: take no new work, finish the old; and end.

use std::io::Write;
use std::time::Duration;

use http::Method;
use serde_json::json;

use super::client::{AdminClient, ConnectArgs, Failure};
use super::output::finish;
use crate::admin::views::DrainView;
use crate::config::environment::Environment;

/// Between two looks.
const STEP: Duration = Duration::from_millis(200);

/// Arguments of `drain`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DrainArgs {
    /// Wait until everything is finished, or the time for it (`app.shutdown`) is over.
    #[arg(long, conflicts_with = "deregister_only")]
    pub wait: bool,
    /// Only take the app out of its registries; traffic goes on. For a preStop hook.
    #[arg(long)]
    pub deregister_only: bool,
    /// Why; it stands in the event.
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// Arguments of `quit`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct QuitArgs {
    /// Why; it stands in the event.
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// Runs `drain`; returns the exit code.
pub fn drain(
    args: &DrainArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    finish(start(args, env, out), out, err)
}

/// Runs `quit`; returns the exit code.
pub fn quit(
    args: &QuitArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    finish(end(args, env, out), out, err)
}

fn end(args: &QuitArgs, env: &dyn Environment, out: &mut dyn Write) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    let body = json!({"note": args.note});
    let answer = client.order(Method::POST, "/api/v1/quit", Some(&body))?;
    let view: DrainView = client.read(&answer)?;
    writeln!(out, "{}", view.message)?;
    Ok(0)
}

fn start(args: &DrainArgs, env: &dyn Environment, out: &mut dyn Write) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    let body = json!({"deregister_only": args.deregister_only, "note": args.note});
    let answer = client.order(Method::POST, "/api/v1/drain", Some(&body))?;
    let mut view: DrainView = client.read(&answer)?;
    if args.deregister_only {
        writeln!(out, "{}", view.message)?;
        return Ok(0);
    }
    while args.wait && view.stage != "drained" {
        client.pause(STEP);
        view = match client.get("/api/v1/drain") {
            Ok(answer) => client.read(&answer)?,
            // It was told to end meanwhile, and has.
            Err(Failure::Unreachable { .. }) => {
                writeln!(out, "drained; the process has ended")?;
                return Ok(0);
            }
            Err(failure) => return Err(failure),
        };
    }
    let open = match view.open_connections {
        1 => "1 connection is open".to_owned(),
        n => format!("{n} connections are open"),
    };
    writeln!(out, "{}; {open}", view.stage)?;
    Ok(0)
}
