//! Every decision as an event with the arithmetic in it (product specification, 2.8).

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{Driver, Story};
use crate::clock::{self, Timestamp};
use crate::endpoint::Address;
use crate::outlier::detector::{
    Effect, Ejected, Evidence, Half, Numbers, Restored, RestoredBy, SlowEvidence, Suppressed,
    TrialFailed, TrialKind, Trigger,
};
use crate::outlier::policy::Mode;

type Fields = Vec<(&'static str, Value)>;

/// At most one `ejection_suppressed` per upstream and window, with a count.
#[derive(Debug, Default)]
pub(super) struct SuppressedLog {
    last: Option<Timestamp>,
    unlogged: u64,
}

/// Writes the event of an effect, if it has one.
pub(super) fn report(driver: &mut Driver, effect: &Effect) {
    match effect {
        Effect::Eject(ejected) => ejection(driver, "instance_ejected", ejected),
        Effect::WouldEject(ejected) => ejection(driver, "would_eject", ejected),
        Effect::Restore(restored) => restore(driver, "instance_restored", restored),
        Effect::WouldRestore(restored) => restore(driver, "would_restore", restored),
        Effect::Suppress(suppressed) => suppression(driver, "ejection_suppressed", suppressed),
        Effect::WouldSuppress(suppressed) => suppression(driver, "would_suppress", suppressed),
        Effect::TrialFailed(failed) => trial_failed(driver, failed),
        Effect::CorrelatedFailure { turned, numbers } => {
            let mut fields = numbers_fields(numbers);
            fields.push(("turned_abnormal", json!(turned)));
            let msg = format!(
                "{turned} of {} instances of {} turned abnormal within one window: a dependency \
                 they share, or our own network; at most {} are ejected",
                numbers.n, driver.upstream.name, numbers.cap
            );
            emit(driver, "correlated_failure", None, fields, msg);
        }
        Effect::InstanceLeft { address, ejected } => {
            let memory = if *ejected {
                "; its ejection is remembered for 5 minutes"
            } else {
                ""
            };
            let msg = format!("{address} left {}{memory}", driver.upstream.name);
            let fields = vec![("ejected", json!(ejected))];
            emit(driver, "instance_left", Some(address), fields, msg);
        }
        Effect::Recalled {
            address,
            k,
            next_trial,
            observed,
            rate,
        } => recalled(driver, address, *k, *next_trial, *observed, *rate),
        Effect::CapZero(numbers) => {
            tracing::warn!(
                upstream = %driver.upstream.name,
                policy = %numbers.policy,
                instances = numbers.n,
                "the removal rate allows no ejection at all; raise instance_removal_rate_threshold or min_ejectable"
            );
        }
        Effect::Stale { count, .. } => {
            tracing::debug!(upstream = %driver.upstream.name, count, "stale outcomes ignored");
        }
        Effect::LastResort { .. }
        | Effect::OfferTrial { .. }
        | Effect::OverrideSet { .. }
        | Effect::OverrideExpired { .. }
        | Effect::OverrideRefused { .. }
        | Effect::StartTrial(_)
        | Effect::TrialIgnored { .. }
        | Effect::TrialPassed { .. }
        | Effect::WithdrawOffer { .. } => {}
    }
}

pub(super) fn emit(
    driver: &Driver,
    event: &'static str,
    instance: Option<&Address>,
    fields: Fields,
    msg: String,
) {
    let mut all: Fields = vec![("upstream", json!(&*driver.upstream.name))];
    if let Some(address) = instance {
        all.push(("instance", json!(address.as_str())));
    }
    if let Some(route) = &driver.telling_of {
        all.push(("route", json!(&**route)));
    }
    all.extend(fields);
    driver.journal.emit(event, all, msg);
}

fn ejection(driver: &mut Driver, event: &'static str, ejected: &Ejected) {
    let Ejected {
        address,
        trigger,
        evidence,
        numbers,
        k,
        next_trial,
        times_ejected,
    } = ejected;
    // The numbers are those of the decision: before it.
    let out = numbers.out + 1;
    let mut fields = numbers_fields(numbers);
    for (name, value) in &mut fields {
        if *name == "ejected_now" {
            *value = json!(out);
        }
    }
    fields.push(("trigger", json!(trigger.as_str())));
    fields.extend(evidence_fields(evidence));
    fields.push(("k", json!(k)));
    fields.push(("next_probe_at", wall(driver, *next_trial)));
    fields.push(("times_ejected", json!(times_ejected)));
    let signed = driver
        .signing
        .as_ref()
        .filter(|_| *trigger == Trigger::Operator);
    fields.push((
        "actor",
        json!(signed.map_or_else(|| actor(*trigger), |s| s.actor.as_str())),
    ));
    fields.push(("note", json!(signed.and_then(|s| s.note.as_deref()))));
    let mut why = because(*trigger, evidence);
    if let Some(signed) = signed {
        why = format!("ordered{}", super::orders::by(signed));
    }
    let name = place(driver);
    let whole = driver.telling_of.is_none();
    if whole && let Some(member) = driver.members.get_mut(address) {
        member.story = Story {
            ejected_because: Some(why.clone()),
            ..Story::default()
        };
    }
    let driver = &*driver;
    let would = if event == "would_eject" {
        "would eject"
    } else {
        "ejected"
    };
    let next = next_trial.map_or_else(String::new, |at| {
        let wait = at.since(driver.clock.now());
        format!("; next probe in {} (k={k})", seconds(wait))
    });
    let msg = format!(
        "{would} {address} from {name}: {why}; {out} of max {} ejected{next}",
        numbers.cap
    );
    emit(driver, event, Some(address), fields, msg);
}

fn restore(driver: &mut Driver, event: &'static str, restored: &Restored) {
    let Restored {
        address,
        restored_by,
        ejected_for,
        k,
        remembered,
        ramp,
        numbers,
    } = restored;
    let mut fields = numbers_fields(numbers);
    fields.push(("restored_by", json!(restored_by.as_str())));
    fields.push(("ejected_for_s", json!(ejected_for.as_secs_f64())));
    fields.push(("k", json!(k)));
    fields.push(("k_remembered", json!(remembered)));
    fields.push(("ramp_s", json!(ramp.as_secs_f64())));
    if driver.telling_of.is_none() {
        driver.book.note_end(address, *restored_by);
    }
    let driver = &*driver;
    let signed = driver
        .signing
        .as_ref()
        .filter(|_| *restored_by == RestoredBy::Operator);
    fields.push(("actor", json!(signed.map(|s| &s.actor))));
    fields.push(("note", json!(signed.and_then(|s| s.note.as_ref()))));
    let by = signed.map_or_else(String::new, super::orders::by);
    let name = place(driver);
    let would = if event == "would_restore" {
        "would return"
    } else {
        "returned"
    };
    let msg = format!(
        "{address} {would} to {name} after {} ({}{by}); full traffic in {}",
        seconds(*ejected_for),
        restored_by.as_str(),
        seconds(*ramp)
    );
    emit(driver, event, Some(address), fields, msg);
}

fn suppression(driver: &mut Driver, event: &'static str, suppressed: &Suppressed) {
    let now = driver.clock.now();
    let window = driver.policy.statistics_window;
    if driver
        .suppressed
        .last
        .is_some_and(|last| now.since(last) < window)
    {
        driver.suppressed.unlogged += 1;
        return;
    }
    let count = std::mem::take(&mut driver.suppressed.unlogged) + 1;
    driver.suppressed.last = Some(now);
    let Suppressed {
        address,
        cause,
        trigger,
        evidence,
        numbers,
    } = suppressed;
    let mut fields = numbers_fields(numbers);
    fields.push(("suppressed_by", json!(cause.as_str())));
    fields.push(("trigger", json!(trigger.as_str())));
    fields.extend(evidence_fields(evidence));
    let holders: Vec<&str> = numbers.holders.iter().map(Address::as_str).collect();
    fields.push(("holders", json!(holders)));
    fields.push(("count", json!(count)));
    let msg = format!(
        "{address} of {} stays although {}: {} ({} of max {} of {} instances out)",
        place(driver),
        because(*trigger, evidence),
        cause.as_str(),
        numbers.out,
        numbers.cap,
        numbers.n
    );
    emit(driver, event, Some(address), fields, msg);
}

fn trial_failed(driver: &mut Driver, failed: &TrialFailed) {
    let TrialFailed {
        address,
        kind,
        k,
        next_trial,
        expired,
        hinted,
        last_resort,
        slow,
        numbers,
        ..
    } = failed;
    let mut fields = numbers_fields(numbers);
    fields.push(("probe", json!(kind.as_str())));
    fields.push(("expired", json!(expired)));
    fields.push(("hinted", json!(hinted)));
    fields.push(("last_resort", json!(last_resort)));
    fields.push(("k", json!(k)));
    fields.push(("next_probe_at", wall(driver, Some(*next_trial))));
    let how = match kind {
        TrialKind::Request => "a live request",
        TrialKind::Synthetic => "a check",
    };
    let error = match driver.members.get_mut(address) {
        Some(member) => {
            let seen = member.story.probe.take().filter(|_| !*expired);
            let late = |(time, limit)| {
                let (time, limit) = (seconds(time), seconds(limit));
                format!("too slow: {time}, its peers say at most {limit}")
            };
            let seen = slow.map(late).or(seen);
            let error = seen.unwrap_or_else(|| "no answer in time".to_owned());
            if driver.telling_of.is_none() {
                member.story.failed_probe = Some(error.clone());
            }
            error
        }
        None => "unknown".to_owned(),
    };
    fields.push(("error", json!(error)));
    let driver = &*driver;
    let msg = format!(
        "probe of {address} of {} by {how} failed ({error}); next probe in {} (k={k})",
        place(driver),
        seconds(next_trial.since(driver.clock.now()))
    );
    emit(driver, "probe_failed", Some(address), fields, msg);
}

/// An ejection of an earlier process goes on, or ends for want of room.
fn recalled(
    driver: &mut Driver,
    address: &Address,
    k: u32,
    next_trial: Option<Timestamp>,
    observed: bool,
    (failures, calls): (u64, u64),
) {
    let name = place(driver);
    let whole = driver.telling_of.is_none();
    if whole && let Some(member) = driver.members.get_mut(address) {
        let why = format!("before the restart {failures} of {calls} calls failed");
        member.story.ejected_because = next_trial.is_some().then_some(why);
    }
    let msg = match next_trial {
        Some(at) => format!(
            "{address} of {name} stays ejected after the restart; next probe in {} (k={k})",
            seconds(at.since(driver.clock.now()))
        ),
        None => format!(
            "{address} of {name} was ejected before the restart and is used again: the cap has no \
             room for it; k={k} is remembered"
        ),
    };
    let fields = vec![
        ("ejected", json!(next_trial.is_some())),
        ("observed", json!(observed)),
        ("k", json!(k)),
        ("next_probe_at", wall(driver, next_trial)),
    ];
    emit(driver, "ejection_recalled", Some(address), fields, msg);
}

pub(super) fn numbers_fields(numbers: &Numbers) -> Fields {
    vec![
        ("policy", json!(&*numbers.policy)),
        ("policy_at", json!(&*numbers.origin)),
        ("mode", json!(mode_label(numbers.mode))),
        ("instances", json!(numbers.n)),
        ("ejected_now", json!(numbers.out)),
        ("ejection_limit", json!(numbers.cap)),
    ]
}

fn evidence_fields(evidence: &Evidence) -> Fields {
    let kinds: Map<String, Value> = evidence
        .errors
        .iter()
        .map(|(kind, count)| (kind.as_str().to_owned(), json!(count)))
        .collect();
    let mut fields = vec![
        ("window_s", json!(evidence.window.as_secs_f64())),
        ("requests", json!(evidence.calls)),
        ("errors", json!(evidence.failures)),
        ("network_errors", json!(evidence.network)),
        ("business_errors", json!(evidence.business)),
        ("error_rate_pct", json!(percent(evidence.rate_bp))),
        ("threshold_pct", json!(percent(evidence.threshold_bp))),
        ("qps", json!(thousandths(evidence.qps_milli))),
        ("lower_qps_limit", json!(thousandths(evidence.limit_milli))),
        ("streak", json!(evidence.streak)),
        ("streak_limit", json!(evidence.streak_limit)),
        ("errors_by_kind", Value::Object(kinds)),
    ];
    if let Some(half) = &evidence.routes {
        fields.push(("bad_routes", json!(half.bad)));
        fields.push(("judged_routes", json!(half.judged)));
    }
    if let Some(slow) = &evidence.slow {
        fields.push(("median_ms", json!(ms(slow.median))));
        fields.push(("peers_median_ms", json!(ms(slow.peers))));
        fields.push(("slow_above_ms", json!(ms(slow.limit))));
        fields.push(("measured_answers", json!(slow.calls)));
        fields.push(("measured_peers", json!(slow.measured_peers)));
    }
    fields
}

/// What is told of: the upstream, or a route of it.
fn place(driver: &Driver) -> String {
    let name = &driver.upstream.name;
    match &driver.telling_of {
        Some(route) => format!("{name}/{route}"),
        None => name.to_string(),
    }
}

/// The arithmetic in words.
pub(super) fn because(trigger: Trigger, evidence: &Evidence) -> String {
    match trigger {
        Trigger::ErrorRate => format!(
            "{:.1}% errors > {}% in {} ({} of {}, {:.1} qps)",
            percent(evidence.rate_bp),
            percent(evidence.threshold_bp),
            seconds(evidence.window),
            evidence.failures,
            evidence.calls,
            thousandths(evidence.qps_milli)
        ),
        Trigger::ConsecutiveErrors => format!(
            "{} failures in a row (limit {}; {} of {} calls in {} failed)",
            evidence.streak,
            evidence.streak_limit,
            evidence.failures,
            evidence.calls,
            seconds(evidence.window)
        ),
        Trigger::Operator => "an operator ordered it".to_owned(),
        Trigger::Routes => {
            let half = evidence.routes.unwrap_or(Half { bad: 0, judged: 0 });
            format!(
                "{} of its {} routes with enough calls are bad",
                half.bad, half.judged
            )
        }
        Trigger::Slow => evidence
            .slow
            .as_ref()
            .map_or_else(|| "slow".to_owned(), slow_words),
    }
}

/// How late an instance answers, in words.
pub(super) fn slow_words(slow: &SlowEvidence) -> String {
    format!(
        "half of its {} answers took {} or more > {}; {} peers: {}",
        slow.calls,
        seconds(slow.median),
        seconds(slow.limit),
        slow.measured_peers,
        seconds(slow.peers)
    )
}

fn actor(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::ConsecutiveErrors | Trigger::ErrorRate | Trigger::Routes | Trigger::Slow => "auto",
        Trigger::Operator => "operator",
    }
}

/// What a mode is called.
pub(super) const fn mode_label(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Observe => "observe",
        Mode::Disabled => "disabled",
    }
}

/// A monotonic instant by the wall clock.
fn wall(driver: &Driver, at: Option<Timestamp>) -> Value {
    let Some(at) = at else { return Value::Null };
    let wall = clock::wall_now() + at.since(driver.clock.now());
    json!(humantime::format_rfc3339_millis(wall).to_string())
}

/// Hundredths of a percent as percent.
pub(super) fn percent(bp: u32) -> f64 {
    f64::from(bp) / 100.0
}

/// Thousandths as a number.
pub(super) fn thousandths(milli: u64) -> f64 {
    f64::from(u32::try_from(milli).unwrap_or(u32::MAX)) / 1000.0
}

/// Milliseconds with their fraction.
pub(super) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

/// A duration for people: `30s`, `1.5s`, `250ms`.
pub(super) fn seconds(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms > 0 && ms < 1000 {
        return format!("{ms}ms");
    }
    if ms.is_multiple_of(1000) {
        return format!("{}s", ms / 1000);
    }
    format!("{:.1}s", duration.as_secs_f64())
}

/// A long duration for people: `45s`, `9m 58s`, `23h 59m`.
pub(super) fn span(duration: Duration) -> String {
    if duration < Duration::from_secs(60) {
        return seconds(duration);
    }
    let text = humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Errors by kind, for status.
pub(super) fn by_kind(evidence: &Evidence) -> BTreeMap<String, u64> {
    evidence
        .errors
        .iter()
        .map(|(kind, n)| (kind.as_str().to_owned(), *n))
        .collect()
}
