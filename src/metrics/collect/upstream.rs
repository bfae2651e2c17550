//! The series of upstreams and their instances.

use std::collections::BTreeMap;

use super::Caps;
use super::admission::Admission;
use crate::config::types::PerInstance;
use crate::error::Reason;
use crate::metrics::cells::{
    AppProtocol, BUCKETS_US, FallbackSource, HistogramReading, IgnoredCause,
};
use crate::metrics::names::{self, ALL, Family, Kind};
use crate::metrics::sheet::{Key, Sample, Sheet};
use crate::outlier::classify::ErrorKind;
use crate::status::{InstanceStatus, RouteStatus, UpstreamStatus};

/// How many series of a family were left out.
pub(super) type Drops = BTreeMap<&'static str, u64>;

/// Puts all upstreams down; says what was left out.
pub(super) fn put_all(
    sheet: &mut Sheet,
    upstreams: &[UpstreamStatus],
    caps: Caps,
    admission: &mut Admission,
) -> Drops {
    let mut drops = Drops::new();
    let configured = upstreams.iter().filter(|u| !u.summary.discovered);
    let discovered = upstreams.iter().filter(|u| u.summary.discovered);
    let order = configured.chain(discovered).map(|u| &*u.summary.name);
    let lost = admission.admit(order, caps.max_upstreams);
    let all = upstreams.iter().map(|u| u.instances.len()).sum::<usize>() <= caps.max_instances;
    let mut gauges: BTreeMap<Key, Sample> = BTreeMap::new();
    for upstream in upstreams {
        let name = &*upstream.summary.name;
        let samples = of_upstream(upstream);
        if admission.is_named(name) {
            for ((family, labels), sample) in samples {
                put(sheet, family, name, labels, sample);
            }
            instances(sheet, upstream, caps.per_instance, all, &mut drops);
            continue;
        }
        let mut counters = BTreeMap::new();
        for (key, sample) in samples {
            *drops.entry(key.0).or_default() += 1;
            if family(key.0).is_some_and(|f| f.kind == Kind::Gauge) {
                match gauges.get_mut(&key) {
                    Some(sum) => sum.add(&sample),
                    None => {
                        gauges.insert(key, sample);
                    }
                }
            } else {
                counters.insert(key, sample);
            }
        }
        admission.add(name, counters, lost.contains(name));
        for instance in &upstream.instances {
            if wanted(caps.per_instance, all, instance) != Wanted::No {
                count_drops(instance, &mut drops);
            }
        }
    }
    let totals = admission.total().clone();
    for ((family, labels), sample) in gauges.into_iter().chain(totals) {
        put(sheet, family, names::OTHER_UPSTREAMS, labels, sample);
    }
    drops
}

fn family(name: &str) -> Option<&'static Family> {
    ALL.iter().find(|family| family.name == name)
}

fn put(
    sheet: &mut Sheet,
    name: &'static str,
    upstream: &str,
    mut labels: Vec<String>,
    sample: Sample,
) {
    if let Some(family) = family(name) {
        labels.insert(0, upstream.to_owned());
        sheet.put(family, labels, sample);
    }
}

/// The samples of an upstream, labels without the upstream itself. Counters by word are there once
/// they are above zero, those without words always.
fn of_upstream(upstream: &UpstreamStatus) -> BTreeMap<Key, Sample> {
    let mut out = BTreeMap::new();
    let mut set = |family: &Family, labels: &[&str], sample: Sample| {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        out.insert((family.name, labels), sample);
    };
    let reading = &upstream.counters;
    for (index, protocol) in AppProtocol::ALL.into_iter().enumerate() {
        let durations = reading.durations.get(index);
        let Some(durations) = durations.filter(|h| h.buckets.iter().any(|n| *n > 0)) else {
            continue;
        };
        let protocol = protocol.as_str();
        set(&names::REQUEST_DURATION, &[protocol], seconds(durations));
        let classes = reading.http.get(index).into_iter().flatten();
        for (class, count) in names::CLASSES.into_iter().zip(classes) {
            set(&names::REQUESTS, &[protocol, class], Sample::count(*count));
        }
    }
    let grpc = AppProtocol::Grpc.as_str();
    for (code, count) in counted(names::GRPC_NAMES, &reading.grpc) {
        set(&names::REQUESTS, &[grpc, code], count);
    }
    let in_flight = Sample::count(reading.in_flight);
    set(&names::REQUESTS_IN_FLIGHT, &[], in_flight);
    for (reason, count) in counted(Reason::ALL.map(Reason::as_str), &reading.rejected) {
        set(&names::REJECTED, &[reason], count);
    }
    for (kind, count) in counted(ErrorKind::ALL.map(ErrorKind::as_str), &reading.errors) {
        set(&names::ATTEMPT_ERRORS, &[kind], count);
    }
    let attempts = seconds(&reading.attempt_durations);
    set(&names::ATTEMPT_DURATION, &[], attempts);
    for (cause, count) in counted(
        IgnoredCause::ALL.map(IgnoredCause::as_str),
        &reading.ignored,
    ) {
        set(&names::IGNORED_OUTCOMES, &[cause], count);
    }
    set(&names::RETRIES, &[], Sample::count(reading.retries));
    let refused = Sample::count(reading.budget_exhausted);
    set(&names::RETRY_BUDGET_EXHAUSTED, &[], refused);
    if reading.hedges > 0 {
        set(&names::HEDGES, &[], Sample::count(reading.hedges));
    }
    let fallbacks = FallbackSource::ALL.map(FallbackSource::as_str);
    for (kind, count) in counted(fallbacks, &reading.fallbacks) {
        set(&names::FALLBACKS, &[kind], count);
    }
    if let Some(bytes) = upstream.kept_bytes {
        set(&names::FALLBACK_CACHE_BYTES, &[], Sample::count(bytes));
    }
    let summary = &upstream.summary;
    for state in names::STATES {
        let count = summary.states.get(state).copied().unwrap_or(0);
        set(&names::INSTANCES, &[state], Sample::Value(count as f64));
    }
    checks(upstream, &mut set);
    let limit = Sample::Value(summary.ejection_limit as f64);
    set(&names::EJECTION_LIMIT, &[], limit);
    decisions(upstream, &mut set);
    super::resilience::put(upstream, &mut set);
    for route in &upstream.routes {
        of_route(route, &mut set);
    }
    out
}

/// A route's requests, all protocols together.
fn of_route(route: &RouteStatus, set: &mut dyn FnMut(&Family, &[&str], Sample)) {
    let (name, reading) = (&*route.name, &route.counters);
    for (index, class) in names::CLASSES.into_iter().enumerate() {
        let of = |row: &[u64; 5]| row.get(index).copied().unwrap_or(0);
        let count = reading.http.iter().map(of).sum::<u64>();
        if count > 0 {
            set(&names::ROUTE_REQUESTS, &[name, class], Sample::count(count));
        }
    }
    for (code, count) in counted(names::GRPC_NAMES, &reading.grpc) {
        set(&names::ROUTE_REQUESTS, &[name, code], count);
    }
    let mut durations = HistogramReading::default();
    for reading in &reading.durations {
        durations.add(reading);
    }
    set(&names::ROUTE_REQUEST_DURATION, &[name], seconds(&durations));
    for (reason, count) in counted(Reason::ALL.map(Reason::as_str), &reading.rejected) {
        set(&names::ROUTE_REJECTED, &[name, reason], count);
    }
    set(
        &names::ROUTE_RETRIES,
        &[name],
        Sample::count(reading.retries),
    );
}

/// What active checks say, where there are any.
fn checks(upstream: &UpstreamStatus, set: &mut dyn FnMut(&Family, &[&str], Sample)) {
    for (result, count) in &upstream.decisions.checks {
        set(&names::HEALTH_CHECKS, &[result], Sample::count(*count));
    }
    let verdicts = upstream.instances.iter().filter_map(|i| i.check_passes);
    let (passing, failing): (Vec<bool>, Vec<bool>) = verdicts.partition(|passes| *passes);
    if passing.is_empty() && failing.is_empty() {
        return;
    }
    for (state, all) in [("passing", passing), ("failing", failing)] {
        let count = Sample::Value(all.len() as f64);
        set(&names::CHECKED_INSTANCES, &[state], count);
    }
}

fn decisions(upstream: &UpstreamStatus, set: &mut dyn FnMut(&Family, &[&str], Sample)) {
    let decisions = &upstream.decisions;
    for ((policy, mode, trigger), count) in &decisions.ejections {
        let labels = [&**policy, mode, trigger];
        set(&names::EJECTIONS, &labels, Sample::count(*count));
    }
    for (of, count) in &decisions.route_ejections {
        let labels = [&*of.route, &*of.policy, of.mode, of.trigger];
        set(&names::ROUTE_EJECTIONS, &labels, Sample::count(*count));
    }
    let standings = upstream.instances.iter().flat_map(|i| &i.routes);
    let mut out: BTreeMap<&str, u32> = BTreeMap::new();
    for standing in standings {
        *out.entry(&standing.route).or_default() += u32::from(standing.state != "healthy");
    }
    for (route, count) in out {
        set(
            &names::ROUTE_EJECTED,
            &[route],
            Sample::Value(f64::from(count)),
        );
    }
    for ((policy, mode, cause), count) in &decisions.suppressed {
        let labels = [&**policy, mode, cause];
        set(&names::EJECTIONS_SUPPRESSED, &labels, Sample::count(*count));
    }
    for (result, count) in &decisions.probes {
        set(&names::RECOVERY_PROBES, &[result], Sample::count(*count));
    }
    for ((mode, by), count) in &decisions.recoveries {
        set(&names::RECOVERIES, &[mode, by], Sample::count(*count));
    }
    let durations = Sample::Histogram {
        buckets: decisions.durations.to_vec(),
        bounds: names::EJECTION_BOUNDS_S.to_vec(),
        sum: decisions.duration_sum_s,
    };
    set(&names::EJECTION_DURATION, &[], durations);
}

fn counted<const N: usize>(
    words: [&'static str; N],
    counts: &[u64],
) -> impl Iterator<Item = (&'static str, Sample)> {
    let pairs = words.into_iter().zip(counts);
    pairs
        .filter(|(_, count)| **count > 0)
        .map(|(word, count)| (word, Sample::count(*count)))
}

fn seconds(reading: &HistogramReading) -> Sample {
    Sample::Histogram {
        buckets: reading.buckets.to_vec(),
        bounds: BUCKETS_US.map(|us| us as f64 / 1e6).to_vec(),
        sum: reading.sum_us as f64 / 1e6,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Yes,
    No,
    /// But for the cap.
    OverCap,
}

fn wanted(per_instance: PerInstance, all: bool, instance: &InstanceStatus) -> Wanted {
    match per_instance {
        PerInstance::All => Wanted::Yes,
        PerInstance::Auto if all || instance.is_out() => Wanted::Yes,
        PerInstance::Auto => Wanted::OverCap,
        PerInstance::EjectedOnly if instance.is_out() => Wanted::Yes,
        PerInstance::EjectedOnly | PerInstance::None => Wanted::No,
    }
}

fn instances(
    sheet: &mut Sheet,
    upstream: &UpstreamStatus,
    per_instance: PerInstance,
    all: bool,
    drops: &mut Drops,
) {
    for instance in &upstream.instances {
        match wanted(per_instance, all, instance) {
            Wanted::Yes => each_of(instance, &mut |family, label, sample| {
                let mut labels = vec![upstream.summary.name.clone(), instance.instance.clone()];
                labels.extend(label.map(str::to_owned));
                sheet.put(family, labels, sample);
            }),
            Wanted::OverCap => count_drops(instance, drops),
            Wanted::No => {}
        }
    }
}

fn count_drops(instance: &InstanceStatus, drops: &mut Drops) {
    each_of(instance, &mut |family, _, _| {
        *drops.entry(family.name).or_default() += 1;
    });
}

/// The samples of an instance, with the value of a third label where there is one.
fn each_of(instance: &InstanceStatus, put: &mut dyn FnMut(&Family, Option<&str>, Sample)) {
    for (outcome, count) in &instance.attempts {
        put(&names::ATTEMPTS, Some(outcome), Sample::count(*count));
    }
    let out = instance.is_out();
    put(&names::INSTANCE_EJECTED, None, Sample::flag(out));
    let ratio = Sample::Value(instance.error_rate_pct / 100.0);
    put(&names::INSTANCE_ERROR_RATIO, None, ratio);
    put(&names::INSTANCE_QPS, None, Sample::Value(instance.qps));
    let weight = Sample::Value(instance.weight * instance.share);
    put(&names::INSTANCE_WEIGHT, None, weight);
    if out {
        if let Some(at) = instance.next_probe_unix_s {
            put(&names::INSTANCE_NEXT_PROBE, None, Sample::Value(at));
        }
        if let Some(k) = instance.k {
            let k = Sample::count(u64::from(k));
            put(&names::INSTANCE_RECOVERY_STEP, None, k);
        }
    }
}
