//! `outrigger upstreams`.

use std::io::Write;

use super::client::{AdminClient, ConnectArgs, Failure};
use super::output::{Format, ShowArgs, Table, age, dash, finish, json, upstream_state};
use super::watch::{WatchArgs, watched};
use crate::admin::views::Upstreams;
use crate::config::environment::Environment;
use crate::status::{BulkheadStatus, UpstreamSummary};

/// Arguments.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct UpstreamsArgs {
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How to print.
    #[command(flatten)]
    pub show: ShowArgs,
    /// Whether to go on.
    #[command(flatten)]
    pub watch: WatchArgs,
}

/// Runs the command; returns the exit code.
pub fn run(
    args: &UpstreamsArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = show(args, env, out);
    finish(result, out, err)
}

fn show(args: &UpstreamsArgs, env: &dyn Environment, out: &mut dyn Write) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    watched(&args.watch, &client, out, |out| {
        let answer = client.get("/api/v1/upstreams")?;
        match args.show.output {
            Format::Json => json(out, &answer)?,
            Format::Table | Format::Wide => {
                let list: Upstreams = client.read(&answer)?;
                if list.upstreams.is_empty() {
                    writeln!(
                        out,
                        "no upstreams yet; discovered ones come with their first request"
                    )?;
                } else {
                    let wide = args.show.output == Format::Wide;
                    table(list.upstreams, wide).print(out, args.show.colour(env))?;
                }
            }
        }
        Ok(())
    })
}

/// The worst first.
pub(super) fn table(mut upstreams: Vec<UpstreamSummary>, wide: bool) -> Table {
    upstreams.sort_by(|a, b| {
        let rank = upstream_state(a).0.cmp(&upstream_state(b).0);
        rank.then_with(|| a.name.cmp(&b.name))
    });
    let mut head = vec![
        "UPSTREAM", "STATE", "USABLE", "EJECTED", "POLICY", "MODE", "SOURCE", "AGE",
    ];
    if wide {
        head.extend([
            "POLICY AT",
            "ROUTABLE",
            "ALSO CALLED",
            "STATES",
            "BREAKER",
            "BULKHEAD",
        ]);
    }
    head.push("NOTE");
    let mut table = Table::new(&head, 1);
    for upstream in upstreams {
        let (_, tone, state) = upstream_state(&upstream);
        let note = note(&upstream);
        let called = [upstream.aliases.as_slice(), &upstream.hosts].concat();
        let states = upstream.states.iter().filter(|(_, n)| **n > 0);
        let states: Vec<String> = states.map(|(state, n)| format!("{n} {state}")).collect();
        let breaker = upstream.breaker.map(|breaker| breaker.state);
        let breaker = breaker.unwrap_or_default();
        let BulkheadStatus { in_use, limit, .. } = upstream.bulkhead;
        let bulkhead = format!("{in_use}/{limit}");
        let mut row = vec![
            upstream.name,
            state.to_owned(),
            format!("{}/{}", upstream.selectable, upstream.listed),
            format!("{}/{}", upstream.ejected, upstream.ejection_limit),
            upstream.policy,
            upstream.mode,
            upstream.source,
            upstream.age_s.map_or_else(|| "-".to_owned(), age),
        ];
        if wide {
            row.push(upstream.policy_at);
            row.push(upstream.routable.to_string());
            row.push(dash(called.join(",")));
            row.push(dash(states.join(", ")));
            row.push(dash(breaker));
            row.push(bulkhead);
        }
        row.push(note);
        table.row(tone, row);
    }
    table
}

fn note(upstream: &UpstreamSummary) -> String {
    let mut notes: Vec<&str> = Vec::new();
    notes.extend(upstream.unavailable.as_deref());
    if upstream.last_resort {
        notes.push("no instance is good, all are used");
    }
    let breaker = upstream.breaker.as_ref().filter(|b| b.label() != "closed");
    let breaker = breaker.map(|b| format!("circuit breaker {}: {}", b.state, b.why));
    notes.extend(breaker.as_deref());
    notes.extend(upstream.held.as_deref());
    notes.extend(upstream.error.as_deref());
    if upstream.cached_unix_s.is_some() {
        notes.push("from the cache: the registry has not answered since the start");
    } else if upstream.stale && upstream.error.is_none() {
        notes.push("the source's last answer is old");
    }
    notes.join("; ")
}
