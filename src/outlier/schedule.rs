//! When an ejected instance is tried: k x unit after the ejection or the last failed trial, k up
//! to a maximum. And the ramp after a restore. Pure arithmetic; jitter is only ever added.

use std::time::Duration;

/// Full share of traffic, in basis points.
pub const FULL_SHARE: u32 = 10_000;
/// Share at the moment of a restore: 1/8.
const FIRST_SHARE: u32 = 1_250;

/// Seeded lengthening of intervals, so that sidecars do not probe in step.
#[derive(Clone, Debug)]
pub struct Jitter {
    rng: Option<fastrand::Rng>,
    percent: u32,
}

impl Jitter {
    /// Up to `percent` per cent are added, from this seed.
    pub fn new(seed: u64, percent: u32) -> Self {
        let rng = (percent > 0).then(|| fastrand::Rng::with_seed(seed));
        Self {
            rng,
            percent: percent.min(100),
        }
    }

    /// Nothing is added.
    pub const fn none() -> Self {
        Self {
            rng: None,
            percent: 0,
        }
    }

    /// Another one of the same strength, with draws of its own.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        let percent = self.percent;
        let rng = self.rng.as_mut().map(fastrand::Rng::fork);
        Self { rng, percent }
    }

    /// `interval`, or somewhat more.
    pub fn lengthen(&mut self, interval: Duration) -> Duration {
        let Some(rng) = &mut self.rng else {
            return interval;
        };
        let share = rng.u32(0..=self.percent.saturating_mul(100));
        interval.saturating_add(scaled(interval, u128::from(share), 10_000))
    }
}

/// k x unit.
pub fn interval(unit: Duration, k: u32) -> Duration {
    unit.saturating_mul(k)
}

/// k after one more failed trial.
pub fn grown(k: u32, max: u32) -> u32 {
    k.saturating_add(1).min(max.max(1))
}

/// Share of traffic in basis points `elapsed` after a restore; [`FULL_SHARE`] once the ramp is over.
pub fn ramp_share(elapsed: Duration, ramp: Duration) -> u32 {
    if elapsed >= ramp {
        return FULL_SHARE;
    }
    let grown = u128::from(FULL_SHARE - FIRST_SHARE) * elapsed.as_nanos() / ramp.as_nanos().max(1);
    FIRST_SHARE + u32::try_from(grown).unwrap_or(0)
}

/// `duration` x `by` / `of`, rounded down.
pub fn scaled(duration: Duration, by: u128, of: u128) -> Duration {
    let nanos = duration.as_nanos().saturating_mul(by) / of.max(1);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn follows_the_published_schedule() {
        let unit = Duration::from_secs(30);
        let (mut at, mut k, mut seen) = (0, 1, Vec::new());
        for _ in 0..22 {
            at += interval(unit, k).as_secs();
            seen.push(at);
            k = grown(k, 20);
        }
        assert_eq!(
            seen[..10],
            [30, 90, 180, 300, 450, 630, 840, 1080, 1350, 1650]
        );
        assert_eq!(seen[19..22], [6300, 6900, 7500]);
    }

    #[test]
    fn ramp_grows_from_an_eighth_to_full() {
        let ramp = Duration::from_secs(10);
        assert_eq!(ramp_share(Duration::ZERO, ramp), 1_250);
        assert_eq!(ramp_share(Duration::from_secs(5), ramp), 5_625);
        assert_eq!(ramp_share(Duration::from_nanos(9_999_999_999), ramp), 9_999);
        assert_eq!(ramp_share(ramp, ramp), FULL_SHARE);
        assert_eq!(ramp_share(Duration::ZERO, Duration::ZERO), FULL_SHARE);
    }

    proptest! {
        #[test]
        fn jitter_only_adds_and_at_most_its_share(seed: u64, secs in 0u64..10_000) {
            let interval = Duration::from_secs(secs);
            let mut jitter = Jitter::new(seed, 10);
            let longer = jitter.lengthen(interval);
            prop_assert!(longer >= interval && longer <= interval + interval / 10);
        }

        #[test]
        fn intervals_never_shrink_while_trials_fail(max in 1u32..40, trials in 1usize..100) {
            let (mut k, mut last) = (1, Duration::ZERO);
            for _ in 0..trials {
                let next = interval(Duration::from_secs(30), k);
                prop_assert!(next >= last && next <= Duration::from_secs(30) * max);
                last = next;
                k = grown(k, max);
            }
        }

        #[test]
        fn shares_grow(a in 0u64..60_000, b in 0u64..60_000) {
            let share = |ms| ramp_share(Duration::from_millis(ms), Duration::from_secs(60));
            prop_assert!(share(a.min(b)) <= share(a.max(b)));
        }
    }
}
