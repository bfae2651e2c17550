//! `outrigger healthcheck`: the telemetry listener's `/readyz`, or the admin listener where that is
//! named or the only one that answers.

use std::io::Write;

use http::StatusCode;

use super::client::{AdminClient, ConnectArgs, Failure, Place, address, configuration, reachable};
use super::output::finish;
use crate::config::environment::Environment;
use crate::status::ProcessStatus;

const DEFAULT: &str = "127.0.0.1:15003";
/// Exit code.
const NOT_READY: u8 = 5;

/// Arguments.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct HealthcheckArgs {
    /// The telemetry listener, HOST:PORT or unix:PATH; else `telemetry.listen` of the configuration
    /// file, else 127.0.0.1:15003.
    #[arg(long, value_name = "ADDR")]
    pub telemetry: Option<String>,
    /// Ask for the app, as its check sees it, not for Outrigger.
    #[arg(long)]
    pub app: bool,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// Runs the command; returns the exit code.
pub fn run(
    args: &HealthcheckArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = show(args, env, out);
    finish(result, out, err)
}

fn show(args: &HealthcheckArgs, env: &dyn Environment, out: &mut dyn Write) -> Result<u8, Failure> {
    if args.connect.admin.is_some() && args.telemetry.is_none() {
        return by_admin(args, env, out);
    }
    match by_telemetry(args, env, out) {
        Err(failure @ Failure::Unreachable { .. }) if args.telemetry.is_none() => {
            match by_admin(args, env, out) {
                Err(Failure::Unreachable { .. }) => Err(failure),
                result => result,
            }
        }
        result => result,
    }
}

fn by_telemetry(
    args: &HealthcheckArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    let (target, how) = match &args.telemetry {
        Some(text) => (address(text)?, "--telemetry".to_owned()),
        None => {
            let (config, how) = configuration(args.connect.config.as_deref(), env);
            match config.and_then(|config| config.telemetry.listen) {
                Some(listen) => (reachable(&listen)?, how),
                None => (address(DEFAULT)?, "the default".to_owned()),
            }
        }
    };
    let page = if args.app { "/readyz/app" } else { "/readyz" };
    let answer = AdminClient::at(Place::telemetry(target, how), None)?.send(page)?;
    out.write_all(answer.body())?;
    Ok(if answer.status() == StatusCode::OK {
        0
    } else {
        NOT_READY
    })
}

fn by_admin(
    args: &HealthcheckArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    let status: ProcessStatus = client.read(&client.get("/api/v1/status")?)?;
    if args.app {
        writeln!(out, "{}", status.app.state)?;
        return Ok(if status.app.is_up() { 0 } else { NOT_READY });
    }
    if status.ready {
        writeln!(out, "ready")?;
        return Ok(0);
    }
    writeln!(out, "not ready")?;
    for condition in status.conditions.iter().filter(|c| c.failing) {
        writeln!(out, "[-] {}: {}", condition.name, condition.message)?;
    }
    Ok(NOT_READY)
}
