//! `outrigger explain`: an upstream, one of its instances, or an error code.

use std::io::{self, Write};

use serde_json::{Value, json as value};

use super::client::{AdminClient, ConnectArgs, Failure, segment};
use super::output::{Format, ShowArgs, age, finish, json, sort_instances, upstream_state};
use super::watch::{WatchArgs, watched};
use crate::admin::views::UpstreamDetail;
use crate::config::diagnostic::Code;
use crate::config::environment::Environment;
use crate::status::{BreakerStatus, BulkheadStatus, InstanceStatus};

/// Arguments.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ExplainArgs {
    /// UPSTREAM, UPSTREAM/INSTANCE (its address, its port or the end of its IP) or a code such as E-CFG-012.
    pub what: String,
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
    args: &ExplainArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = if is_code(&args.what) {
        code(args, out)
    } else {
        live(args, env, out)
    };
    finish(result, out, err)
}

/// `E-` and words in capitals or digits between dashes; an upstream in such letters is not found by
/// this name, but by the table of `upstreams`.
fn is_code(what: &str) -> bool {
    let upper = what.to_ascii_uppercase();
    let mut parts = upper.split('-');
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    parts.next() == Some("E") && parts.next().is_some() && parts.next().is_some_and(digits)
}

fn code(args: &ExplainArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let Some(code) = Code::find(&args.what) else {
        let (first, last) = (Code::ALL.first(), Code::ALL.last());
        let range = first
            .zip(last)
            .map(|(a, b)| format!("; there are {a} to {b}"));
        let message = format!("no such code: {}{}", args.what, range.unwrap_or_default());
        return Err(Failure::Usage(message));
    };
    let kind = if code.is_warning() {
        "warning"
    } else {
        "error"
    };
    match args.show.output {
        Format::Json => {
            let text = code.explain();
            json(
                out,
                &value!({"code": code.to_string(), "kind": kind, "text": text}),
            )?;
        }
        Format::Table | Format::Wide => writeln!(out, "{code} ({kind}): {}", code.explain())?,
    }
    Ok(0)
}

fn live(args: &ExplainArgs, env: &dyn Environment, out: &mut dyn Write) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    watched(&args.watch, &client, out, |out| {
        let (answer, is_instance) = found(&client, &args.what)?;
        match args.show.output {
            Format::Json => json(out, &answer)?,
            Format::Table | Format::Wide if is_instance => instance(&client.read(&answer)?, out)?,
            Format::Table | Format::Wide => upstream(client.read(&answer)?, out)?,
        }
        Ok(())
    })
}

/// What is called so, and whether it is an instance. The name of an upstream may have a slash too: it
/// comes first.
fn found(client: &AdminClient, what: &str) -> Result<(Value, bool), Failure> {
    let whole = client.get(&format!("/api/v1/upstreams/{}", segment(what)));
    let part = what.rsplit_once('/').filter(|(_, at)| is_address_part(at));
    match (whole, part) {
        (Err(Failure::Refused(problem)), Some((name, at)))
            if problem.error == "unknown_upstream" =>
        {
            let (name, at) = (segment(name), segment(at));
            let path = format!("/api/v1/upstreams/{name}/instances/{at}");
            Ok((client.get(&path)?, true))
        }
        (whole, _) => Ok((whole?, false)),
    }
}

/// An address, a port or the end of an IP.
fn is_address_part(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '[' | ']');
    !text.is_empty() && text.chars().all(fits)
}

fn upstream(detail: UpstreamDetail, out: &mut dyn Write) -> io::Result<()> {
    let summary = &detail.summary;
    let (_, _, state) = upstream_state(summary);
    writeln!(
        out,
        "{} is {state}: {} of {} instances can be picked, {} ejected of at most {}",
        summary.name, summary.selectable, summary.listed, summary.ejected, summary.ejection_limit
    )?;
    let (policy, at, mode) = (&summary.policy, &summary.policy_at, &summary.mode);
    writeln!(out, "policy {policy} ({at}), mode {mode}")?;
    guards(summary.breaker.as_ref(), Some(&summary.bulkhead), "", out)?;
    let last = summary.age_s.map(|s| format!(", answered {} ago", age(s)));
    writeln!(
        out,
        "instances from {}{}",
        summary.source,
        last.unwrap_or_default()
    )?;
    if !summary.hosts.is_empty() {
        writeln!(out, "hosts {}", summary.hosts.join(", "))?;
    }
    let remarks = [
        ("nothing can be picked", &summary.unavailable),
        ("an update is held", &summary.held),
        ("the source's last error", &summary.error),
    ];
    for (what, text) in remarks {
        if let Some(text) = text {
            writeln!(out, "{what}: {text}")?;
        }
    }
    if summary.last_resort {
        writeln!(out, "no instance is good, so all are used as a last resort")?;
    }
    for route in &detail.routes {
        writeln!(
            out,
            "route {}: {}; {} requests, {} in flight, {} retries, {} refused",
            route.name,
            route.matches,
            route.requests,
            route.in_flight,
            route.retries,
            route.rejected
        )?;
        guards(route.breaker.as_ref(), route.bulkhead.as_ref(), "  ", out)?;
    }
    let mut instances = detail.instances;
    sort_instances(&mut instances);
    for instance in &instances {
        writeln!(
            out,
            "\n{}: {}\n  {}",
            instance.instance, instance.state, instance.why
        )?;
        for route in instance.routes.iter().filter(|r| r.state != "healthy") {
            writeln!(out, "  for route {}: {}", route.route, route.why)?;
        }
    }
    if !detail.decisions.is_empty() {
        writeln!(out, "\nsince the start:")?;
    }
    for decision in &detail.decisions {
        let labels: Vec<_> = decision
            .labels
            .iter()
            .map(|(k, v)| format!("{k} {v}"))
            .collect();
        writeln!(
            out,
            "  {} {} ({})",
            decision.count,
            decision.what,
            labels.join(", ")
        )?;
    }
    Ok(())
}

/// Circuit breaker and bulkhead, one a line.
fn guards(
    breaker: Option<&BreakerStatus>,
    bulkhead: Option<&BulkheadStatus>,
    indent: &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    if let Some(breaker) = breaker {
        let BreakerStatus {
            mode, state, why, ..
        } = breaker;
        let would = breaker.would_be.as_deref().filter(|would| would != state);
        let would = would.map(|would| format!(", would be {would}"));
        let would = would.unwrap_or_default();
        writeln!(
            out,
            "{indent}circuit breaker {state}{would} (mode {mode}): {why}"
        )?;
    }
    if let Some(bulkhead) = bulkhead {
        let BulkheadStatus {
            in_use,
            limit,
            waiting,
            max_queue,
        } = bulkhead;
        let queue = match max_queue {
            0 => "none may wait".to_owned(),
            most => format!("{waiting} of {most} wait"),
        };
        writeln!(
            out,
            "{indent}bulkhead {in_use} of {limit} places taken, {queue}"
        )?;
    }
    Ok(())
}

fn instance(it: &InstanceStatus, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}: {}\n{}\n", it.instance, it.state, it.why)?;
    let mut line = |name: &str, text: String| writeln!(out, "{name:<12} {text}");
    let (errors, requests) = (it.errors, it.requests);
    let (rate, limit) = (it.error_rate_pct, it.threshold_pct);
    line(
        "window",
        format!(
            "{}s: {errors} of {requests} failed, {rate:.1}% (abnormal above {limit}%)",
            it.window_s
        ),
    )?;
    line(
        "calls",
        format!("{:.1}/s (judged from {}/s)", it.qps, it.lower_qps_limit),
    )?;
    if it.streak_limit > 0 {
        line(
            "in a row",
            format!("{} failed (ejected at {})", it.streak, it.streak_limit),
        )?;
    }
    if !it.errors_by_kind.is_empty() {
        line("errors", counts(&it.errors_by_kind))?;
    }
    for route in &it.routes {
        line(
            "route",
            format!("{}: {}: {}", route.route, route.state, route.why),
        )?;
    }
    if let Some(cause) = &it.suppressed_by {
        line("left in by", cause.clone())?;
    }
    if let Some(seconds) = it.ejected_for_s {
        let k = it.k.map(|k| format!(", k={k}")).unwrap_or_default();
        let next = it
            .next_probe_at
            .as_ref()
            .map(|at| format!(", next probe {at}"));
        line(
            "out for",
            format!("{}{k}{}", age(seconds), next.unwrap_or_default()),
        )?;
    }
    if it.times_ejected > 0 {
        let remembered = it.remembered_k.map(|k| format!(", k={k} is remembered"));
        line(
            "ejected",
            format!(
                "{} times{}",
                it.times_ejected,
                remembered.unwrap_or_default()
            ),
        )?;
    }
    let word = |on: bool, yes: &str, no: &str| if on { yes.to_owned() } else { no.to_owned() };
    let flags = [
        word(it.registry_healthy, "healthy", "NOT healthy"),
        word(it.enabled, "enabled", "NOT enabled"),
        word(it.draining, "draining", ""),
    ];
    let flags: Vec<_> = flags.into_iter().filter(|f| !f.is_empty()).collect();
    line("registry", flags.join(", "))?;
    if let Some(passes) = it.check_passes {
        let said = it.check_message.as_ref().map(|m| format!(": {m}"));
        let text = word(passes, "passes", "fails");
        line("check", format!("{text}{}", said.unwrap_or_default()))?;
    }
    line(
        "weight",
        format!("{} at {:.0}% of its share", it.weight, it.share * 100.0),
    )?;
    line(
        "in flight",
        format!("{} requests, {} connections", it.in_flight, it.connections),
    )?;
    if !it.attempts.is_empty() {
        line("attempts", counts(&it.attempts))?;
    }
    if let Some(cluster) = &it.cluster {
        line("cluster", cluster.clone())?;
    }
    for (key, text) in &it.metadata {
        line("metadata", format!("{key}={text}"))?;
    }
    Ok(())
}

fn counts(by_word: &std::collections::BTreeMap<String, u64>) -> String {
    let parts = by_word
        .iter()
        .map(|(word, count)| format!("{count} {word}"));
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_told_from_names() {
        for code in ["E-CFG-012", "e-cfg-012", "E-X-1"] {
            assert!(is_code(code), "{code}");
        }
        for name in ["orders", "e-commerce", "E-CFG", "e-mail-gateway", "E"] {
            assert!(!is_code(name), "{name}");
        }
    }
}
