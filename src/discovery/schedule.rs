//! When a subscription that polls asks next, so that a fleet never asks at one moment (G7). Pure: chance
//! comes in as [`Jitter`].
//!
//! | after | the next question comes |
//! |---|---|
//! | the first answer | somewhere within the period |
//! | an answer | a period later, a tenth more or less |
//! | an answer that is held back | after the time the guard says |
//! | a failure | full jitter below min(period x 2^failures, a minute) |
//! | a refusal: the configuration is wrong | a minute later, a tenth more or less |
//! | the registry answered somebody else after it was lost | within the period, sooner where that was due |
//!
//! `examples/fleet.rs` runs it for 10,000 sidecars whose registry was away.

use std::time::Duration;

use crate::http_client::jitter::Jitter;

/// The longest pause between two questions.
pub const LONGEST: Duration = Duration::from_secs(60);

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An answer; how long the registry wants it to be kept.
    Answered {
        /// Until the next question.
        period: Duration,
    },
    /// An answer that is held back.
    Held {
        /// Until the next question.
        recheck: Duration,
    },
    /// Nothing, or nothing readable.
    Failed,
    /// The registry will not answer such a question.
    Refused,
}

/// The pace of one subscription.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    period: Duration,
    failures: u32,
    spread: bool,
}

impl Schedule {
    /// One that has asked nothing yet; `period` holds until the registry says another.
    pub const fn new(period: Duration) -> Self {
        Self {
            period,
            failures: 0,
            spread: false,
        }
    }

    /// The usual time between two answers.
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// How long to wait now.
    pub fn next(&mut self, outcome: Outcome, jitter: &Jitter) -> Duration {
        match outcome {
            Outcome::Answered { period } => {
                self.period = period;
                self.failures = 0;
                if std::mem::replace(&mut self.spread, true) {
                    jitter.around(period)
                } else {
                    jitter.between(period / 10, period)
                }
            }
            Outcome::Held { recheck } => {
                self.failures = 0;
                recheck
            }
            Outcome::Failed => {
                self.failures = self.failures.saturating_add(1);
                jitter.back_off(self.period, self.failures, LONGEST)
            }
            Outcome::Refused => jitter.around(LONGEST),
        }
    }
}

/// How long a subscription waits once its lost registry has answered another one: within `period`,
/// different for every name and process, so that a fleet comes back at its usual rate.
pub fn after_return(seed: u64, name: &str, period: Duration) -> Duration {
    // FNV-1a over the name, then the finisher of SplitMix64: even, and the same at each run.
    let hash = name
        .bytes()
        .fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let share = u32::try_from((hash ^ (hash >> 31)) >> 48).unwrap_or_default();
    period / (1 << 16) * share
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Duration = Duration::from_secs(10);

    fn jitter() -> Jitter {
        Jitter::new(fastrand::Rng::with_seed(7))
    }

    #[test]
    fn answers_come_a_period_apart_after_the_first_one_was_spread() {
        let jitter = jitter();
        let answered = Outcome::Answered { period: TEN };
        let firsts: Vec<Duration> = (0..200)
            .map(|_| Schedule::new(TEN).next(answered, &jitter))
            .collect();
        assert!(firsts.iter().all(|d| (TEN / 10..=TEN).contains(d)));
        assert!(firsts.iter().any(|d| *d < TEN / 3) && firsts.iter().any(|d| *d > TEN * 2 / 3));
        let mut schedule = Schedule::new(TEN);
        schedule.next(answered, &jitter);
        for _ in 0..100 {
            let next = schedule.next(answered, &jitter);
            assert!((TEN * 9 / 10..=TEN * 11 / 10).contains(&next), "{next:?}");
        }
    }

    #[test]
    fn failures_back_off_to_a_minute_and_an_answer_ends_that() {
        let jitter = jitter();
        let mut schedule = Schedule::new(TEN);
        for failures in 1..20_u32 {
            let next = schedule.next(Outcome::Failed, &jitter);
            let most = (TEN * 2u32.pow(failures.min(10))).min(LONGEST);
            assert!(next <= most, "{failures}: {next:?}");
        }
        schedule.next(Outcome::Answered { period: TEN }, &jitter);
        assert!(schedule.next(Outcome::Failed, &jitter) <= TEN * 2);
        let refused = schedule.next(Outcome::Refused, &jitter);
        assert!((LONGEST * 9 / 10..=LONGEST * 11 / 10).contains(&refused));
        assert_eq!(schedule.next(Outcome::Held { recheck: TEN }, &jitter), TEN);
    }

    #[test]
    fn the_return_of_a_registry_is_spread_over_the_period() {
        let mut parts = [0u32; 10];
        for seed in 0..1000u64 {
            for name in ["orders", "billing", "stock"] {
                let delay = after_return(seed, name, TEN);
                assert!(delay < TEN);
                parts[usize::try_from(delay.as_secs()).unwrap()] += 1;
            }
        }
        assert!(parts.iter().all(|n| (200..400).contains(n)), "{parts:?}");
        let once = after_return(1, "orders", TEN);
        assert_eq!(once, after_return(1, "orders", TEN));
        assert_ne!(once, after_return(2, "orders", TEN));
    }
}
