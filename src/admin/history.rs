//! What upstreams did lately: a sample of each every five seconds, for a quarter of an hour. About
//! 120 bytes a sample, so 500 upstreams, the most that are kept, take some 11 MB at the end, twenty
//! upstreams less than half a megabyte. Nothing is read on a request's path.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::answer::{Answer, Fault, ok};
use super::api::upstream;
use super::call::Call;
use super::routes::{Param, Route};
use super::views::{History as Shown, Point};
use super::{Deps, PATIENCE, within};
use crate::clock;
use crate::metrics::cells::{BUCKETS_US, UpstreamReading};
use crate::status::UpstreamStatus;

/// Between two samples.
const STEP: Duration = Duration::from_secs(5);
/// Samples of an upstream.
const SAMPLES: usize = 180;
/// What they span.
const RANGE: Duration = Duration::from_secs(900);

pub(super) const ROUTES: &[Route] = &[Route::get(
    "/api/v1/upstreams/{u}/history",
    "the last quarter of an hour in steps",
    |call| Box::pin(answer(call)),
)
.query(&[
    Param::new("range", "how far back, at most and by default 15m"),
    Param::new("step", "length of a step, a multiple of 5s"),
])];

/// All samples; clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct History(Arc<Mutex<BTreeMap<String, Track>>>);

/// The samples of one upstream.
#[derive(Debug, Default)]
struct Track {
    before: Totals,
    samples: VecDeque<Sample>,
}

/// Counters at a moment.
#[derive(Clone, Debug, Default)]
struct Totals {
    requests: u64,
    failed: u64,
    durations: [u64; BUCKETS_US.len() + 1],
}

/// What happened since the sample before, and how things stood.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at_ms: u64,
    requests: u64,
    failed: u64,
    durations: [u32; BUCKETS_US.len() + 1],
    in_flight: u32,
    ejected: u16,
    limit: u16,
    instances: u16,
}

impl From<&UpstreamReading> for Totals {
    fn from(reading: &UpstreamReading) -> Self {
        let mut totals = Self::default();
        for histogram in &reading.durations {
            for (sum, count) in totals.durations.iter_mut().zip(histogram.buckets) {
                *sum += count;
            }
        }
        totals.requests = totals.durations.iter().sum();
        let of_class_5 = reading.http.iter().filter_map(|classes| classes.last());
        // gRPC: all but OK (0) and what the caller is to blame for (1, 3, 5-7, 9-11, 16).
        let grpc = reading.grpc.iter().enumerate();
        let grpc = grpc.filter(|(code, _)| !matches!(code, 0 | 1 | 3 | 5..=7 | 9..=11 | 16));
        totals.failed = of_class_5.sum::<u64>() + grpc.map(|(_, count)| count).sum::<u64>();
        totals
    }
}

impl History {
    /// One more sample of each; who is gone is forgotten.
    fn add(&self, upstreams: &[UpstreamStatus], at_ms: u64, most: usize) {
        let mut tracks = self.lock();
        tracks.retain(|name, _| upstreams.iter().any(|u| u.summary.name == *name));
        for upstream in upstreams {
            let name = &upstream.summary.name;
            let now = Totals::from(&upstream.counters);
            let Some(track) = tracks.get_mut(name) else {
                // The first look is what the next one is compared with.
                if tracks.len() < most {
                    let samples = VecDeque::new();
                    let before = now;
                    tracks.insert(name.clone(), Track { before, samples });
                }
                continue;
            };
            let sample = sample(&track.before, &now, upstream, at_ms);
            track.before = now;
            track.samples.push_back(sample);
            while track.samples.len() > SAMPLES {
                track.samples.pop_front();
            }
        }
    }

    fn points(&self, name: &str, steps: usize, per_step: usize) -> Vec<Point> {
        let tracks = self.lock();
        let Some(track) = tracks.get(name) else {
            return Vec::new();
        };
        let samples: Vec<Sample> = track.samples.iter().copied().collect();
        drop(tracks);
        let wanted = steps.saturating_mul(per_step);
        let samples = samples
            .get(samples.len().saturating_sub(wanted)..)
            .unwrap_or_default();
        // Whole steps end at the newest sample.
        let odd = samples.len() % per_step.max(1);
        let (odd, whole) = samples.split_at_checked(odd).unwrap_or((samples, &[]));
        let chunks = whole.chunks(per_step.max(1));
        std::iter::once(odd)
            .chain(chunks)
            .filter_map(point)
            .collect()
    }

    /// Everything that is kept of an upstream.
    pub(super) fn whole(&self, name: &str) -> Shown {
        Shown {
            upstream: name.to_owned(),
            step_s: STEP.as_secs(),
            points: self.points(name, SAMPLES, 1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Track>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sample(before: &Totals, now: &Totals, upstream: &UpstreamStatus, at_ms: u64) -> Sample {
    let mut durations = [0; BUCKETS_US.len() + 1];
    let counts = before.durations.iter().zip(now.durations);
    for (slot, (before, now)) in durations.iter_mut().zip(counts) {
        *slot = u32::try_from(now.saturating_sub(*before)).unwrap_or(u32::MAX);
    }
    let small = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    Sample {
        at_ms,
        requests: now.requests.saturating_sub(before.requests),
        failed: now.failed.saturating_sub(before.failed),
        durations,
        in_flight: u32::try_from(upstream.counters.in_flight).unwrap_or(u32::MAX),
        ejected: small(upstream.summary.ejected),
        limit: small(upstream.summary.ejection_limit),
        instances: small(upstream.summary.routable),
    }
}

/// Several samples as one step; the state is that of the last one.
fn point(samples: &[Sample]) -> Option<Point> {
    let last = samples.last()?;
    let requests: u64 = samples.iter().map(|s| s.requests).sum();
    let failed: u64 = samples.iter().map(|s| s.failed).sum();
    let mut durations = [0_u64; BUCKETS_US.len() + 1];
    for sample in samples {
        for (sum, count) in durations.iter_mut().zip(sample.durations) {
            *sum += u64::from(count);
        }
    }
    let seconds = STEP.as_secs_f64() * samples.len() as f64;
    let wall = std::time::UNIX_EPOCH + Duration::from_millis(last.at_ms);
    let round = |value: f64, digits: f64| (value * digits).round() / digits;
    Some(Point {
        at: humantime::format_rfc3339_millis(wall).to_string(),
        requests,
        qps: round(requests as f64 / seconds, 1e3),
        error_ratio: (requests > 0).then(|| round(failed as f64 / requests as f64, 1e4)),
        p50_ms: quantile(&durations, 50),
        p99_ms: quantile(&durations, 99),
        in_flight: last.in_flight,
        ejected: last.ejected,
        ejection_limit: last.limit,
        instances: last.instances,
    })
}

/// The upper bound of the bucket that holds the quantile, in milliseconds; the last bound for all
/// above it.
fn quantile(buckets: &[u64; BUCKETS_US.len() + 1], percent: u64) -> Option<f64> {
    let all: u64 = buckets.iter().sum();
    let rank = (all * percent).div_ceil(100).max(1);
    let mut seen = 0;
    let found = buckets.iter().position(|count| {
        seen += count;
        seen >= rank
    })?;
    let bound = BUCKETS_US.get(found).or(BUCKETS_US.last())?;
    Some(*bound as f64 / 1e3)
}

/// Takes samples until the end.
pub(super) async fn collect(deps: Deps) {
    let mut ticks = tokio::time::interval(STEP);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        // Control that does not answer leaves a hole.
        let Ok(upstreams) = within(PATIENCE, deps.control.upstreams()).await else {
            continue;
        };
        let most = deps.settings.borrow().caps.max_upstreams;
        let now = clock::wall_now().duration_since(std::time::UNIX_EPOCH);
        let at_ms = now.map_or(0, |at| u64::try_from(at.as_millis()).unwrap_or(u64::MAX));
        deps.history.add(&upstreams, at_ms, most);
    }
}

async fn answer(call: Call) -> Result<Answer, Fault> {
    let range = duration(&call, "range")?.unwrap_or(RANGE);
    let step = duration(&call, "step")?.unwrap_or(STEP);
    let multiple = step.as_millis().is_multiple_of(STEP.as_millis());
    if range > RANGE || step > range || !multiple {
        let message = "`range` is at most 15m, `step` a multiple of 5s and not longer than it";
        return Err(Fault::bad_query(message, "range=15m&step=5s is everything"));
    }
    let name = upstream(&call.deps, call.name("u")).await?.summary.name;
    let ratio = |a: Duration, b: Duration| {
        usize::try_from(a.as_millis() / b.as_millis().max(1)).unwrap_or(SAMPLES)
    };
    let points = call
        .deps
        .history
        .points(&name, ratio(range, step), ratio(step, STEP));
    ok(&Shown {
        upstream: name,
        step_s: step.as_secs(),
        points,
    })
}

fn duration(call: &Call, key: &str) -> Result<Option<Duration>, Fault> {
    let parse = |text| {
        crate::config::duration(text)
            .map_err(|(what, hint)| Fault::bad_query(format!("`{key}`: {what}"), hint))
    };
    call.value(key).map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::status::{ejected, instance};

    fn at(requests: u64, failed: u64) -> UpstreamStatus {
        let mut status = crate::testing::status::upstream(
            "orders",
            vec![instance("10.0.0.1:80"), ejected("10.0.0.2:80")],
        );
        let good = requests - failed;
        status.counters.http = [[0, good, 0, 0, failed], [0; 5]];
        // The good ones within 1 ms, the bad ones within 1 s.
        status.counters.durations[0].buckets[0] = good;
        status.counters.durations[0].buckets[11] = failed;
        status
    }

    #[test]
    fn steps_are_differences_and_may_be_joined() {
        let history = History::default();
        for (n, (requests, failed)) in [(7, 0), (107, 0), (207, 50), (207, 50), (307, 50)]
            .into_iter()
            .enumerate()
        {
            history.add(&[at(requests, failed)], n as u64 * 5000, 10);
        }
        let points = history.points("orders", 180, 1);
        let qps: Vec<f64> = points.iter().map(|p| p.qps).collect();
        assert_eq!(qps, [20.0, 20.0, 0.0, 20.0]);
        let errors: Vec<Option<f64>> = points.iter().map(|p| p.error_ratio).collect();
        assert_eq!(errors, [Some(0.0), Some(0.5), None, Some(0.0)]);
        let second = &points[1];
        assert_eq!((second.p50_ms, second.p99_ms), (Some(1.0), Some(1000.0)));
        assert_eq!(points[2].p50_ms, None);
        assert_eq!(
            (second.ejected, second.ejection_limit, second.instances),
            (1, 1, 2)
        );
        let joined = history.points("orders", 2, 2);
        let requests: Vec<u64> = joined.iter().map(|p| p.requests).collect();
        assert_eq!(requests, [200, 100]);
        assert_eq!(joined[1].at, "1970-01-01T00:00:20.000Z");
        // An odd step at the beginning is as long as it is.
        assert_eq!(history.points("orders", 2, 3).len(), 2);
        assert!(history.points("users", 1, 1).is_empty());
    }

    #[test]
    fn memory_is_bounded_and_the_gone_are_forgotten() {
        let history = History::default();
        let mut other = at(0, 0);
        other.summary.name = "users".to_owned();
        for n in 0..SAMPLES as u64 + 50 {
            history.add(&[at(n, 0), other.clone()], n, 1);
        }
        assert_eq!(history.points("orders", 1000, 1).len(), SAMPLES);
        assert!(history.points("users", 1000, 1).is_empty());
        history.add(&[other.clone()], 0, 1);
        assert!(history.points("orders", 1000, 1).is_empty());
    }
}
