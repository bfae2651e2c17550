//! Whether one instance is abnormal: the rate rule and the rule of sudden death, from its window.
//! Integers only; nothing is decided here about who goes. Next: `detector/evaluate.rs`.

use std::cmp::Ordering;
use std::time::Duration;

use super::effect::{Evidence, SlowEvidence, Trigger};
use super::input::UpstreamFacts;
use super::instance::{Fraction, Instance};
use super::routes::Half;
use crate::outlier::policy::{ConsecutiveErrors, Policy, QpsScope, SlowMode};
use crate::outlier::schedule::FULL_SHARE;
use crate::outlier::window::{BUCKETS, Counts, StreakLength, Window};

/// Fewest calls that are ever judged.
const FEWEST_CALLS: u64 = 5;
/// So many time-outs of ours without a success always suffice.
const TIMEOUTS_SUFFICE: u64 = 10;
/// A window of so many calls holds ...
const FULL_WINDOW: u64 = 100;
/// ... and asks for at least this streak.
const FULL_WINDOW_STREAK: u64 = 10;

/// What a window says under a policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    pub(super) counts: Counts,
    pub(super) failures: u64,
    pub(super) streak: StreakLength,
    pub(super) streak_limit: u64,
    pub(super) sample: u64,
    pub(super) rate_holds: bool,
    pub(super) streak_holds: bool,
    /// It is slow, and that ejects.
    pub(super) slow: Option<SlowEvidence>,
    /// Half of its routes are bad.
    pub(super) routes: Option<Half>,
    judged: bool,
}

/// Everything beside the window that a verdict depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    pub(super) policy: &'a Policy,
    pub(super) facts: &'a UpstreamFacts,
    /// Judged calls of the whole upstream in the window.
    pub(super) upstream_calls: u64,
}

impl Rules<'_> {
    /// Judges `window`, already advanced to the bucket that is open or closing.
    pub(super) fn judge(&self, window: &Window, share: u32) -> Verdict {
        let counts = window.counts();
        let kind = self.policy.exception_type;
        let failures = counts.failures(kind);
        let steps = self.streak_steps(&counts, share);
        let streak = window.streak(kind, self.streak_life(steps));
        let sample = self.sample(share);
        let judged = counts.calls() >= sample && self.upstream_is_busy();
        let threshold = u128::from(self.policy.error_rate_threshold_bp);
        let above = |part: u64, whole: u64, times: u128| {
            u128::from(part) * 10_000 * times > u128::from(whole) * threshold
        };

        let before = counts.calls().saturating_sub(streak.calls);
        let failed_before = failures.saturating_sub(streak.calls);
        let streak_limit = if above(failed_before, before, 5) {
            steps * 4
        } else {
            steps
        };
        let streak_holds = steps > 0
            && (streak.failures >= streak_limit || streak.own_timeouts >= TIMEOUTS_SUFFICE);
        let rate_holds = judged && above(failures, counts.calls(), 1);
        Verdict {
            counts,
            failures,
            streak,
            streak_limit,
            sample,
            rate_holds,
            streak_holds,
            slow: None,
            routes: None,
            judged,
        }
    }

    /// The same of an instance as it stands, its window advanced likewise.
    pub(super) fn judge_instance(&self, instance: &Instance, share: u32) -> Verdict {
        self.refine(self.judge(&instance.window, share), instance)
    }

    /// A verdict of the window with what else is known of the instance.
    pub(super) fn refine(&self, mut verdict: Verdict, instance: &Instance) -> Verdict {
        verdict.slow = self.slow_of(instance);
        if self.facts.by_route {
            verdict.routes = instance.routes;
            verdict.rate_holds = false;
            verdict.streak_holds = false;
        }
        verdict
    }

    /// How slow it is, where that ejects.
    pub(super) fn slow_of(&self, instance: &Instance) -> Option<SlowEvidence> {
        let slow = self.policy.slow.as_ref()?;
        instance.slow.filter(|_| slow.mode == SlowMode::Enforce)
    }

    /// For how many buckets time-outs of ours stay in a streak.
    pub(super) fn longest_life(&self) -> u64 {
        let steps = self.streak_steps(
            &Counts {
                success: FULL_WINDOW,
                ..Counts::default()
            },
            FULL_SHARE,
        );
        self.streak_life(steps)
    }

    fn streak_life(&self, steps: u64) -> u64 {
        let bucket = (self.policy.statistics_window.as_nanos() / u128::from(BUCKETS)).max(1);
        let span = self
            .facts
            .attempt_limit()
            .as_nanos()
            .saturating_mul(u128::from(steps));
        u64::try_from(span.div_ceil(bucket))
            .unwrap_or(u64::MAX)
            .max(BUCKETS)
    }

    /// N of the rule of sudden death; zero: the rule is off.
    fn streak_steps(&self, counts: &Counts, share: u32) -> u64 {
        let steps = match self.policy.consecutive_errors {
            ConsecutiveErrors::Off => return 0,
            ConsecutiveErrors::Count(count) => return u64::from(count),
            ConsecutiveErrors::Auto => match self.policy.qps_scope {
                QpsScope::Service => FEWEST_CALLS,
                QpsScope::Instance => FEWEST_CALLS.max(calls(self.expected() * u128::from(share))),
            },
        };
        let full = counts.calls() >= FULL_WINDOW;
        if full {
            steps.max(FULL_WINDOW_STREAK)
        } else {
            steps
        }
    }

    /// Calls that the instance needs before its rate is judged.
    fn sample(&self, share: u32) -> u64 {
        match self.policy.qps_scope {
            QpsScope::Service => FEWEST_CALLS,
            QpsScope::Instance => {
                let full = self.expected();
                // On a ramp a good instance must not fall by chance.
                let floor = full.min(10 * PER_CALL) * u128::from(FULL_SHARE);
                FEWEST_CALLS.max(calls((full * u128::from(share)).max(floor)))
            }
        }
    }

    /// Whether the upstream's calls allow to judge; depends on nothing else in scope `instance`.
    pub(super) fn upstream_is_busy(&self) -> bool {
        match self.policy.qps_scope {
            QpsScope::Instance => true,
            QpsScope::Service => {
                self.upstream_calls >= calls(self.expected() * u128::from(FULL_SHARE))
            }
        }
    }

    /// `lower_qps_limit x window` in units of [`PER_CALL`].
    fn expected(&self) -> u128 {
        u128::from(self.policy.lower_qps_limit_milli) * self.policy.statistics_window.as_nanos()
    }
}

/// Thousandths and nanoseconds.
const PER_CALL: u128 = 1_000 * 1_000_000_000;

fn calls(scaled: u128) -> u64 {
    u64::try_from(scaled.div_ceil(PER_CALL * u128::from(FULL_SHARE))).unwrap_or(u64::MAX)
}

impl Verdict {
    pub(super) const fn is_abnormal(&self) -> bool {
        self.rate_holds || self.streak_holds || self.slow.is_some() || self.routes.is_some()
    }

    /// Judged, and found normal.
    pub(super) const fn is_proven_normal(&self) -> bool {
        self.judged && !self.is_abnormal()
    }

    pub(super) const fn trigger(&self) -> Trigger {
        if self.rate_holds {
            Trigger::ErrorRate
        } else if self.streak_holds {
            Trigger::ConsecutiveErrors
        } else if self.routes.is_some() {
            Trigger::Routes
        } else {
            Trigger::Slow
        }
    }

    pub(super) const fn rate(&self) -> Fraction {
        Fraction {
            part: self.failures,
            whole: self.counts.calls(),
        }
    }

    /// Whether the last five calls failed.
    pub(super) fn is_hopeless(&self) -> bool {
        self.streak.failures.max(self.streak.calls) >= FEWEST_CALLS
    }

    pub(super) fn rank(&self) -> Rank {
        match self.streak_holds {
            true => Rank {
                rate: Fraction::FULL,
                failures: self.streak.failures,
            },
            false => Rank {
                rate: self.rate(),
                failures: self.failures,
            },
        }
    }

    pub(super) fn evidence(&self, policy: &Policy, window: &Window) -> Evidence {
        let span = policy.statistics_window.max(Duration::from_nanos(1));
        let qps = u128::from(self.counts.calls()) * PER_CALL / span.as_nanos();
        Evidence {
            window: policy.statistics_window,
            calls: self.counts.calls(),
            network: self.counts.network,
            business: self.counts.business,
            failures: self.failures,
            streak: self.streak.failures,
            streak_limit: self.streak_limit,
            rate_bp: self.rate().basis_points(),
            threshold_bp: policy.error_rate_threshold_bp,
            sample: self.sample,
            qps_milli: u64::try_from(qps).unwrap_or(u64::MAX),
            limit_milli: policy.lower_qps_limit_milli,
            errors: window.errors_by_kind(),
            slow: self.slow,
            routes: self.routes,
        }
    }
}

/// How bad an abnormal instance is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rank {
    pub(super) rate: Fraction,
    pub(super) failures: u64,
}

impl Rank {
    /// Worst last.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        self.rate
            .compare(other.rate)
            .then(self.failures.cmp(&other.failures))
    }
}
