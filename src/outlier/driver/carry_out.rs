//! Carries out what the detector decided: standing of instances, checks to run, events, counts.

use std::sync::Arc;
use std::time::Duration;

use super::memory::touches;
use super::{Driver, report};
use crate::endpoint::Address;
use crate::endpoint::instance::Standing;
use crate::outlier::detector::{Effect, RestoredBy, TrialKind};

/// Upper bounds of the ejection durations, in seconds.
const DURATIONS_S: [u64; 7] = [30, 60, 120, 300, 600, 1800, 3600];

impl Driver {
    /// Everything that is decided, then the snapshot if it changed.
    pub(super) fn carry_out(&mut self) {
        self.apply_effects();
        self.settle_lanes();
        self.settle_book();
        self.tell_breakers();
        self.tell_untold();
        let now = self.clock.now();
        if self.publish_due || self.publish_at.is_some_and(|at| at <= now) {
            self.publish();
        }
    }

    pub(super) fn apply_effects(&mut self) {
        while let Some(effect) = self.detector.poll_effect() {
            self.apply(&effect);
            self.count(&effect);
            if touches(&effect) {
                self.touched.notify_one();
            }
            report::report(self, &effect);
        }
    }

    fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Eject(ejected) => {
                self.set_standing(&ejected.address, Standing::Ejected);
                // At once: the very next pick must not see it.
                self.publish();
            }
            Effect::Restore(restored) => {
                self.set_standing(&restored.address, Standing::Serving);
                self.publish();
            }
            Effect::StartTrial(trial) => {
                if trial.kind == TrialKind::Synthetic {
                    let limit = trial.deadline.since(self.clock.now());
                    self.start_trial(trial.address.clone(), trial.lease, limit);
                }
                self.publish_due = true;
            }
            Effect::OfferTrial { .. } | Effect::WithdrawOffer { .. } => self.publish_due = true,
            Effect::LastResort { on } => self.last_resort = *on,
            Effect::OverrideSet { .. } => {
                self.order_answer = Some(Ok(()));
                self.publish_due = true;
            }
            Effect::OverrideRefused { refusal, .. } => self.order_answer = Some(Err(*refusal)),
            Effect::OverrideExpired { .. } => self.publish_due = true,
            Effect::CapZero(_)
            | Effect::CorrelatedFailure { .. }
            | Effect::InstanceLeft { .. }
            | Effect::Recalled { .. }
            | Effect::Stale { .. }
            | Effect::Suppress(_)
            | Effect::TrialFailed(_)
            | Effect::TrialIgnored { .. }
            | Effect::TrialPassed { .. }
            | Effect::WouldEject(_)
            | Effect::WouldRestore(_)
            | Effect::WouldSuppress(_) => {}
        }
    }

    fn set_standing(&mut self, address: &Address, standing: Standing) {
        let now = self.clock.now();
        if let Some(member) = self.members.get_mut(address) {
            member.instance.set_standing(standing, Some(now));
            // What was counted until now belongs to the time before.
            member.fed = member.instance.successes();
            member.timed = member.instance.times();
        }
    }

    fn count(&mut self, effect: &Effect) {
        let decisions = &mut self.decisions;
        match effect {
            Effect::Eject(ejected) | Effect::WouldEject(ejected) => {
                let mode = mode_of(effect);
                let policy = Arc::clone(&ejected.numbers.policy);
                let key = (policy, mode, ejected.trigger.as_str());
                *decisions.ejections.entry(key).or_default() += 1;
            }
            Effect::Suppress(suppressed) | Effect::WouldSuppress(suppressed) => {
                let mode = mode_of(effect);
                let policy = Arc::clone(&suppressed.numbers.policy);
                let key = (policy, mode, suppressed.cause.as_str());
                *decisions.suppressed.entry(key).or_default() += 1;
            }
            Effect::Restore(restored) | Effect::WouldRestore(restored) => {
                let key = (mode_of(effect), restored.restored_by.as_str());
                *decisions.recoveries.entry(key).or_default() += 1;
                record_duration(&mut decisions.durations, restored.ejected_for);
                decisions.duration_sum_s += restored.ejected_for.as_secs_f64();
            }
            Effect::TrialFailed(_)
            | Effect::TrialIgnored { .. }
            | Effect::TrialPassed { .. }
            | Effect::CapZero(_)
            | Effect::CorrelatedFailure { .. }
            | Effect::InstanceLeft { .. }
            | Effect::LastResort { .. }
            | Effect::OfferTrial { .. }
            | Effect::OverrideSet { .. }
            | Effect::OverrideExpired { .. }
            | Effect::OverrideRefused { .. }
            | Effect::Recalled { .. }
            | Effect::Stale { .. }
            | Effect::StartTrial(_)
            | Effect::WithdrawOffer { .. } => {}
        }
        self.count_probe(effect);
    }

    /// The result of a probe, if it is one; those of routes count with the others.
    pub(super) fn count_probe(&mut self, effect: &Effect) {
        let result = if let Effect::TrialFailed(failed) = effect {
            if failed.expired { "expired" } else { "failed" }
        } else if matches!(effect, Effect::TrialIgnored { .. }) {
            "ignored"
        } else if matches!(effect, Effect::TrialPassed { .. })
            || matches!(effect, Effect::Restore(restored) if restored.restored_by == RestoredBy::Probe)
        {
            "good"
        } else {
            return;
        };
        *self.decisions.probes.entry(result).or_default() += 1;
    }
}

fn mode_of(effect: &Effect) -> &'static str {
    if matches!(
        effect,
        Effect::WouldEject(_) | Effect::WouldRestore(_) | Effect::WouldSuppress(_)
    ) {
        "observed"
    } else {
        "enforced"
    }
}

fn record_duration(buckets: &mut [u64; 8], duration: Duration) {
    let seconds = duration.as_secs_f64();
    let bound = DURATIONS_S
        .iter()
        .position(|b| seconds <= f64::from(u32::try_from(*b).unwrap_or(0)));
    if let Some(bucket) = buckets.get_mut(bound.unwrap_or(DURATIONS_S.len())) {
        *bucket += 1;
    }
}
