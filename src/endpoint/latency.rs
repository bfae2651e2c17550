//! How long an instance takes, as one atomic: a peak-sensitive, exponentially weighted moving average
//! with its age. A slower answer counts at once, a faster one by and by. Source: Finagle's and
//! linkerd's peak EWMA. Written at an attempt's head, read by `balancer/peak_ewma.rs`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::clock::Timestamp;

/// What estimates are counted in; the longest is four and a half minutes.
pub const UNIT: Duration = Duration::from_nanos(64);

/// What is older than this counts half.
const HALF_LIFE_MS: u64 = 7_000;
/// An answer that is faster by less than this part is as good as the estimate.
const FINEST: u32 = 64;
/// The least part of a difference that a faster answer takes off.
const STEP: u32 = 128;

/// The estimate in [`UNIT`]s (low half) and when it was made, in milliseconds (high half); zero before
/// the first answer. Workers share it without a lock: of two updates at one instant one may be
/// lost, which the next answer makes good.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Latency(AtomicU64);

impl Latency {
    /// An answer took this long.
    pub fn observe(&self, took: Duration, now: Timestamp) {
        let took = u32::try_from(took.as_nanos() / UNIT.as_nanos()).unwrap_or(u32::MAX);
        let took = took.max(1);
        let stamp = stamp_of(now);
        let Some((estimate, at)) = unpack(self.0.load(Relaxed)) else {
            return self.0.store(pack(took, stamp), Relaxed);
        };
        let above = estimate.saturating_sub(took);
        if above <= estimate / FINEST {
            return self.0.store(pack(took, stamp), Relaxed);
        }
        let left = decayed(above, age(at, stamp));
        // Too little time for a step: the age goes on growing, so that many answers within a
        // millisecond let the estimate fall as few do, and write it seldom.
        if left <= above - (above / STEP).max(1) {
            self.0.store(pack(took + left, stamp), Relaxed);
        }
    }

    /// The estimate in [`UNIT`]s as of its last answer.
    pub fn latest(&self) -> Option<u32> {
        unpack(self.0.load(Relaxed)).map(|(estimate, _)| estimate)
    }

    /// The estimate as it has faded until `now`: who was slow long ago is tried again.
    pub fn faded(&self, now: Timestamp) -> Option<u32> {
        let (estimate, at) = unpack(self.0.load(Relaxed))?;
        Some(decayed(estimate, age(at, stamp_of(now))))
    }
}

fn pack(estimate: u32, stamp: u32) -> u64 {
    (u64::from(stamp) << 32) | u64::from(estimate.max(1))
}

fn unpack(packed: u64) -> Option<(u32, u32)> {
    let estimate = u32::try_from(packed & u64::from(u32::MAX)).ok()?;
    let stamp = u32::try_from(packed >> 32).ok()?;
    (estimate > 0).then_some((estimate, stamp))
}

/// Wraps after 49 days.
fn stamp_of(now: Timestamp) -> u32 {
    u32::try_from(now.as_millis() & u64::from(u32::MAX)).unwrap_or(0)
}

/// Milliseconds between two stamps; zero when the first is later.
fn age(from: u32, to: u32) -> u64 {
    let age = to.wrapping_sub(from);
    if age > u32::MAX / 2 {
        0
    } else {
        u64::from(age)
    }
}

/// value x 2^-(age / half-life), straight between the powers of two.
fn decayed(value: u32, age: u64) -> u32 {
    let halvings = age / HALF_LIFE_MS;
    let Some(halved) = u32::try_from(halvings)
        .ok()
        .and_then(|n| u64::from(value).checked_shr(n))
    else {
        return 0;
    };
    let rest = age % HALF_LIFE_MS;
    let less = halved * rest / (2 * HALF_LIFE_MS);
    u32::try_from(halved - less).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn told(units: Option<u32>) -> Option<u128> {
        // Units are rounded down twice.
        Some(((UNIT * units?) + UNIT * 3).as_micros() / 10 * 10)
    }

    #[test]
    fn a_peak_counts_at_once_and_is_forgotten_by_and_by() {
        let latency = Latency::default();
        assert_eq!(latency.latest(), None);
        latency.observe(ms(10), at(1_000));
        latency.observe(ms(500), at(1_001));
        assert_eq!(told(latency.latest()), Some(500_000));
        latency.observe(ms(10), at(1_001));
        assert_eq!(told(latency.latest()), Some(500_000), "no time has passed");
        // A half-life later half of the difference is left.
        latency.observe(ms(10), at(8_001));
        assert_eq!(told(latency.latest()), Some(255_000));
        assert_eq!(told(latency.faded(at(8_001))), Some(255_000));
        assert_eq!(told(latency.faded(at(15_001))), Some(127_500));
        assert_eq!(told(latency.faded(at(10_000_000))), Some(0));
    }

    #[test]
    fn who_answers_as_ever_does_not_fade() {
        for took in [Duration::from_micros(100), ms(10)] {
            let latency = Latency::default();
            for step in 0..60_000 {
                // Up to a tenth faster or slower.
                let one = took * u32::try_from(900 + step * 7 % 200).unwrap() / 1_000;
                latency.observe(one, at(step));
            }
            let faded = told(latency.faded(at(60_000))).unwrap();
            let took = took.as_micros();
            assert!(
                (took * 9 / 10..took * 12 / 10).contains(&faded),
                "{faded} of {took}"
            );
        }
    }

    #[test]
    fn many_answers_a_millisecond_let_it_fall_as_few_do() {
        let (many, few) = (Latency::default(), Latency::default());
        for latency in [&many, &few] {
            latency.observe(ms(2), at(0));
        }
        for step in 0..70_000_u64 {
            let now = Timestamp::from_nanos(step * 100_000);
            many.observe(ms(1), now);
        }
        few.observe(ms(1), at(7_000));
        let (many, few) = (told(many.latest()).unwrap(), told(few.latest()).unwrap());
        assert_eq!(few, 1_500);
        // A chain of small steps against one straight line.
        assert!((1_550..=1_650).contains(&many), "{many}");
    }

    #[test]
    fn clocks_of_two_workers_may_differ_and_wrap() {
        let latency = Latency::default();
        latency.observe(ms(100), at(5_000));
        latency.observe(ms(1), at(4_000));
        assert_eq!(told(latency.latest()), Some(100_000));
        let wrap = u64::from(u32::MAX);
        latency.observe(ms(100), at(wrap));
        assert_eq!(told(latency.faded(at(wrap + 7_000))), Some(50_000));
    }
}
