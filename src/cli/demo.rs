//! `outrigger demo`: the whole story on this machine with nothing else installed.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use crate::cli::run::parse_listen;
use crate::config::environment::Environment;
use crate::config::types::Listen;
use crate::demo::narrate::{Narrator, Style};
use crate::demo::story::Plan;
use crate::demo::{self, Settings};
use crate::signal;

/// Shortest recovery unit: shorter ones say more about this machine than about ejection.
const LEAST_UNIT: Duration = Duration::from_millis(100);
/// Longest duration and recovery unit.
const MOST: Duration = Duration::from_secs(24 * 3600);

/// Show ejection, probes, return and eviction with sample instances and traffic.
///
/// Runs the embedded registry, five instances of a service that register themselves, and traffic
/// through the data port; one instance turns bad and is repaired, another one falls silent. Exits
/// with 0 when all of it was seen.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// How long it runs.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub duration: Duration,
    /// Recovery unit of its policy; beats and expiry scale with it.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = unit)]
    pub unit: Duration,
    /// Stay when the story is over, for looking around.
    #[arg(long)]
    pub keep: bool,
    /// Data port [default: localhost:15001]; port 0 takes a free one, here and below.
    #[arg(long, value_name = "ADDR", value_parser = listen)]
    pub listen: Option<Listen>,
    /// Admin [default: 127.0.0.1:15002, or a free port].
    #[arg(long, value_name = "ADDR", value_parser = listen)]
    pub admin_listen: Option<Listen>,
    /// Telemetry [default: 127.0.0.1:15003, or a free port].
    #[arg(long, value_name = "ADDR", value_parser = listen)]
    pub telemetry_listen: Option<Listen>,
    /// Embedded registry [default: 127.0.0.1:15005, or a free port].
    #[arg(long, value_name = "ADDR", value_parser = listen)]
    pub registry_listen: Option<Listen>,
}

/// Runs the demo; returns the exit code.
pub fn run(args: &DemoArgs, env: &dyn Environment, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let plan = match Plan::new(args.unit, args.duration) {
        Ok(plan) => plan,
        Err(error) => return fail(err, &error, 2),
    };
    let settings = Settings {
        plan,
        keep: args.keep,
        listen: args.listen.clone(),
        admin: args.admin_listen.clone(),
        telemetry: args.telemetry_listen.clone(),
        registry: args.registry_listen.clone(),
    };
    let stop = match signal::listen() {
        // Without a file there is nothing to reload.
        Ok((lifecycle, _reloads)) => lifecycle.wishes(),
        Err(error) => return fail(err, &error, 1),
    };
    let terminal = std::io::stdout().is_terminal();
    let plain = env.variable("NO_COLOR").is_some_and(|v| !v.is_empty())
        || env.variable("TERM").as_deref() == Some("dumb");
    let style = Style {
        terminal: terminal && env.variable("TERM").as_deref() != Some("dumb"),
        color: terminal && !plain,
    };
    match demo::run(&settings, stop, &mut Narrator::new(out, style)) {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => fail(err, &format!("{error:#}"), 1),
    }
}

fn fail(err: &mut dyn Write, what: &dyn std::fmt::Display, code: u8) -> u8 {
    // Standard error is gone: nobody reads.
    let _closed = writeln!(err, "error: {what}");
    code
}

fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if duration > MOST => Err("at most 24h".to_owned()),
        Ok(duration) => Ok(duration),
        Err(_) => Err("write it like `500ms`, `60s` or `1m30s`".to_owned()),
    }
}

fn unit(text: &str) -> Result<Duration, String> {
    let unit = duration(text)?;
    if unit < LEAST_UNIT {
        return Err(format!("at least {}ms", LEAST_UNIT.as_millis()));
    }
    Ok(unit)
}

fn listen(text: &str) -> Result<Listen, String> {
    let wrong = || "write it like `127.0.0.1:0` or `localhost:15001`".to_owned();
    match parse_listen(text) {
        Ok(Listen::Unix(_)) | Err(_) => Err(wrong()),
        Ok(listen) => Ok(listen),
    }
}
