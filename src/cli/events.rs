//! `outrigger events [-f]`: the journal, one event per line.

use std::io::Write;
use std::time::Duration;

use serde_json::{Map, Value};

use super::client::{AdminClient, ConnectArgs, Failure};
use super::output::{Format, ShowArgs, finish};
use crate::admin::views::Events;
use crate::config::environment::Environment;

/// Between two looks with `-f`.
const STEP: Duration = Duration::from_millis(500);
/// Between two tries of a process that is away.
const AGAIN: Duration = Duration::from_secs(2);
/// Old events shown before what follows.
const BEFORE_FOLLOWING: usize = 10;

/// Arguments.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct EventsArgs {
    /// Only events of this upstream.
    #[arg(short, long, value_name = "NAME")]
    pub upstream: Option<String>,
    /// Only events of this type, such as instance_ejected.
    #[arg(short, long = "type", value_name = "EVENT")]
    pub kind: Option<String>,
    /// Only younger ones: 1h, or a time like 2026-01-02T03:04:05Z.
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only the newest ones; without it all that are kept, with -f ten.
    #[arg(short = 'n', long = "lines", value_name = "N")]
    pub newest: Option<usize>,
    /// Go on with what comes.
    #[arg(short, long)]
    pub follow: bool,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How to print.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// Runs the command; returns the exit code.
pub fn run(
    args: &EventsArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = show(args, env, out, err);
    finish(result, out, err)
}

fn show(
    args: &EventsArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    let newest = args
        .newest
        .or_else(|| (args.follow && args.since.is_none()).then_some(BEFORE_FOLLOWING));
    let mut after = newest.is_none().then(|| "0".to_owned());
    if newest == Some(0) {
        after = Some(page(&client, args, None, Some(1))?.next);
    }
    let (mut seen, mut away) = (false, false);
    loop {
        let limit = newest.filter(|_| after.is_none());
        let events = match page(&client, args, after.as_deref(), limit) {
            Err(failure) if seen && args.follow && failure.may_pass() => {
                if !away {
                    writeln!(err, "outrigger: {failure}; trying again until it is back")?;
                }
                away = true;
                client.pause(AGAIN);
                continue;
            }
            answered => answered?,
        };
        (seen, away) = (true, false);
        if events.restarted && after.as_deref().is_some_and(|id| id != "0") {
            writeln!(err, "outrigger: the process has started anew")?;
        }
        for event in &events.events {
            line(out, event, args.show.output)?;
        }
        out.flush()?;
        let more = !events.events.is_empty() && after.is_some();
        after = Some(events.next);
        match (more, args.follow) {
            (true, _) => {}
            (false, true) => client.pause(STEP),
            (false, false) => return Ok(0),
        }
    }
}

fn page(
    client: &AdminClient,
    args: &EventsArgs,
    after: Option<&str>,
    limit: Option<usize>,
) -> Result<Events, Failure> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    let limit = limit.map(|n| n.to_string());
    for (key, value) in [
        ("after", after),
        ("limit", limit.as_deref()),
        ("upstream", args.upstream.as_deref()),
        ("type", args.kind.as_deref()),
        ("since", args.since.as_deref()),
    ] {
        if let Some(value) = value {
            query.append_pair(key, value);
        }
    }
    client.read(&client.get(&format!("/api/v1/events?{}", query.finish()))?)
}

fn line(out: &mut dyn Write, event: &Map<String, Value>, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => {
            serde_json::to_writer(&mut *out, event).map_err(std::io::Error::from)?;
            Ok(out.write_all(b"\n")?)
        }
        Format::Table | Format::Wide => {
            let of = |key: &str| event.get(key).and_then(Value::as_str).unwrap_or("-");
            let (at, name, text) = (of("ts"), of("event"), of("msg"));
            Ok(writeln!(out, "{at}  {name:<20} {text}")?)
        }
    }
}
