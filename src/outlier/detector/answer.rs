//! Answers of trials: good, failed, ignored or none before the deadline, and what each does to k and
//! to the schedule. A late, lost, second or foreign answer does nothing.

use super::Detector;
use super::effect::{Effect, RestoredBy, TrialFailed, TrialKind};
use super::input::{LeaseId, Outcome};
use super::instance::{DueCause, Ejection, Origin, Stage, Trial};
use crate::clock::Timestamp;
use crate::endpoint::Address;
use crate::outlier::classify::OutcomeClass;
use crate::outlier::schedule::{grown, interval};
use std::time::Duration;

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Answered(OutcomeClass),
    Expired,
}

impl Detector {
    pub(super) fn expire_leases(&mut self) {
        let now = self.now;
        let expired = |address: &&Address| {
            self.trial_of(address)
                .is_some_and(|trial| trial.deadline <= now)
        };
        let expired: Vec<Address> = self.ejected.iter().filter(expired).cloned().collect();
        for address in expired {
            let end = match self.trial_of(&address) {
                Some(trial) if trial.good_head.is_some() => End::Answered(OutcomeClass::Success),
                Some(_) => End::Expired,
                None => continue,
            };
            self.finish(&address, end);
        }
    }

    pub(super) fn trial_head(&mut self, lease: LeaseId) {
        let now = self.now;
        let Some(address) = self.holder_of(lease) else {
            return;
        };
        let stage = self
            .ejection_mut(&address)
            .map(|ejection| &mut ejection.stage);
        if let Some(Stage::Trial(trial)) = stage {
            trial.good_head.get_or_insert(now);
        }
    }

    pub(super) fn trial_finished(&mut self, lease: LeaseId, class: OutcomeClass) {
        if let Some(address) = self.holder_of(lease) {
            self.finish(&address, End::Answered(class));
        }
    }

    /// In mode observe ordinary answers decide: the first judged one sent after the trial was due.
    pub(super) fn shadow_answer(&mut self, outcome: &Outcome) {
        let Some(instance) = self.instances.get(&outcome.address) else {
            return;
        };
        let (true, Some(ejection)) = (instance.routable, &instance.ejection) else {
            return;
        };
        let due = self.due_of(ejection);
        if due.at > self.now || outcome.sent_at < due.at {
            return;
        }
        let lease = LeaseId {
            lane: self.lane,
            epoch: instance.epoch,
            generation: 0,
        };
        let trial = Trial {
            lease,
            kind: TrialKind::Request,
            due,
            deadline: self.now,
            decides: true,
            checked: false,
            begun: self.now,
            good_head: None,
        };
        self.begin(&outcome.address, trial);
        self.finish(&outcome.address, End::Answered(outcome.class));
    }

    fn finish(&mut self, address: &Address, end: End) {
        let Some(trial) = self.trial_of(address) else {
            return;
        };
        self.unsettled = true;
        let (class, expired) = match end {
            End::Answered(class) => (class, false),
            End::Expired => (OutcomeClass::NetworkError, true),
        };
        if class == OutcomeClass::Ignored {
            self.finish_ignored(address, trial);
        } else if class.is_failure(self.policy.exception_type) {
            self.finish_failed(address, trial, expired, None);
        } else if let Some(slow) = self.too_slow(address, &trial) {
            self.finish_failed(address, trial, false, Some(slow));
        } else {
            self.finish_good(address, trial);
        }
    }

    /// The time of a good answer of an instance that was ejected as slow, and the longest that would
    /// have done, when it came too late. The peers as they are now say what is slow; without enough
    /// of them those at the ejection.
    fn too_slow(&self, address: &Address, trial: &Trial) -> Option<(Duration, Duration)> {
        let instance = self.instances.get(address)?;
        let ejection = instance.ejection.as_ref()?;
        let limit = ejection.slow_limit?;
        self.policy.slow?;
        let limit = self.slow_limit().unwrap_or(limit);
        let time = match ejection.origin {
            // Its answers go on: the window has their times.
            Origin::Shadow => instance.times.as_ref()?.total().median()?,
            Origin::Rules | Origin::Operator { .. } => {
                trial.good_head.unwrap_or(self.now).since(trial.begun)
            }
        };
        (time > limit).then_some((time, limit))
    }

    /// No evidence: k stays; the next eligible request, or the check again after one unit.
    fn finish_ignored(&mut self, address: &Address, trial: Trial) {
        let now = self.now;
        let later = now + self.policy.recovery_detection_unit_time;
        let Some(ejection) = self.ejection_mut(address) else {
            return;
        };
        ejection.last_trial_end = Some(now);
        ejection.stage = match trial.kind {
            TrialKind::Request => Stage::Pending {
                due: trial.due,
                checked: trial.checked,
            },
            TrialKind::Synthetic => Stage::Waiting,
        };
        if trial.kind == TrialKind::Synthetic {
            ejection.check_next = trial.decides;
            match trial.due.cause {
                DueCause::Regular => ejection.schedule(now, later, 1),
                DueCause::Hint => {
                    ejection.hint = Some(later);
                    ejection.next = ejection.next.max(later);
                }
                DueCause::LastResort => {}
            }
        }
        let address = address.clone();
        self.effects.push_back(Effect::TrialIgnored {
            address,
            lease: trial.lease,
        });
    }

    fn finish_failed(
        &mut self,
        address: &Address,
        trial: Trial,
        expired: bool,
        slow: Option<(Duration, Duration)>,
    ) {
        let now = self.now;
        let (unit, max) = (
            self.policy.recovery_detection_unit_time,
            self.policy.max_recovery_checks,
        );
        let Some(ejection) = self
            .instances
            .get_mut(address)
            .and_then(|i| i.ejection.as_deref_mut())
        else {
            return;
        };
        let regular = trial.due.cause == DueCause::Regular;
        if regular {
            ejection.k = grown(ejection.k, max);
        }
        // A regular trial that fell due during a hinted one is replaced by it.
        let replaced = trial.due.cause == DueCause::Hint && ejection.next <= now;
        if regular || replaced {
            let next = now + self.jitter.lengthen(interval(unit, ejection.k));
            ejection.schedule(now, next, ejection.k);
        }
        ejection.last_trial_end = Some(now);
        // Late answers are answers: it is no worse than it was.
        ejection.hopeless |= slow.is_none();
        ejection.good = 0;
        ejection.stage = Stage::Waiting;
        ejection.check_next = expired && trial.kind == TrialKind::Request;
        let (k, next_trial, origin) = (ejection.k, ejection.next, ejection.origin);
        if origin == Origin::Shadow {
            return;
        }
        self.effects.push_back(Effect::TrialFailed(TrialFailed {
            address: address.clone(),
            lease: trial.lease,
            kind: trial.kind,
            k,
            next_trial,
            expired,
            hinted: trial.due.cause == DueCause::Hint,
            last_resort: trial.due.cause == DueCause::LastResort,
            slow,
            numbers: self.numbers(),
        }));
    }

    fn finish_good(&mut self, address: &Address, trial: Trial) {
        let now = self.now;
        let unit = self.policy.recovery_detection_unit_time;
        let needed = self.policy.trials_to_restore;
        let Some(ejection) = self.ejection_mut(address) else {
            return;
        };
        if trial.decides {
            ejection.good = ejection.good.saturating_add(1);
            if ejection.good >= needed {
                ejection.stage = Stage::Waiting;
                self.restore(address, RestoredBy::Probe);
                return;
            }
            ejection.last_trial_end = Some(now);
            ejection.check_next = false;
            ejection.stage = Stage::Waiting;
            ejection.schedule(now, now + unit, 1);
        } else {
            ejection.stage = Stage::Pending {
                due: trial.due,
                checked: true,
            };
        }
        if ejection.origin != Origin::Shadow {
            let address = address.clone();
            self.effects.push_back(Effect::TrialPassed {
                address,
                lease: trial.lease,
            });
        }
    }
}

impl Ejection {
    fn schedule(&mut self, now: Timestamp, next: Timestamp, units: u32) {
        self.scheduled_at = now;
        self.next = next;
        self.units = units;
    }
}
