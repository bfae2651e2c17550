//! Trials of ejected instances: when one is due, and whether a request or a check makes it. A trial
//! is due by the schedule, by a hint or by the last resort; at most one is in flight per instance.
//! Next: `detector/answer.rs`.

use std::time::Duration;

use super::Detector;
use super::effect::{Effect, TrialKind, TrialStarted};
use super::input::LeaseId;
use super::instance::{Due, DueCause, Ejection, Origin, Stage, Trial};
use crate::clock::Timestamp;
use crate::endpoint::Address;
use crate::outlier::policy::ProbeKind;

/// How a due trial is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// Wait for a request.
    Request,
    /// A check decides.
    Check,
    /// A check first, a request after it.
    CheckFirst,
}

impl Detector {
    pub(super) fn start_due_trials(&mut self) {
        if self.ejected.is_empty() {
            return;
        }
        let due: Vec<Address> = self
            .ejected
            .iter()
            .filter(|a| self.is_due(a))
            .cloned()
            .collect();
        for address in due {
            self.start_if_due(&address);
        }
    }

    pub(super) fn trial_taken(
        &mut self,
        address: &Address,
        lease: LeaseId,
        latest: Option<Timestamp>,
    ) {
        let Some(ejection) = self.ejection(address) else {
            return;
        };
        let Stage::Offered {
            lease: offered,
            due,
            checked,
        } = ejection.stage
        else {
            return;
        };
        if offered != lease || (due.cause == DueCause::Hint && self.hinted_request_in_flight()) {
            return;
        }
        let facts = &self.facts;
        let limit = facts.timeout_connect.saturating_add(facts.attempt_limit());
        let limit = limit.min(self.policy.recovery_detection_unit_time);
        let deadline = (self.wall + limit).min(latest.unwrap_or(Timestamp::MAX));
        // A lease without any time would expire before this input ends.
        let deadline = deadline.max(self.wall + Duration::from_nanos(1));
        let kind = TrialKind::Request;
        let decides = true;
        let trial = Trial {
            lease,
            kind,
            due,
            deadline,
            decides,
            checked,
            begun: self.wall,
            good_head: None,
        };
        self.start(address, trial);
    }

    /// A hint that holds from `from` on pulls the next trial forward, if it is ejected.
    pub(super) fn hint(&mut self, address: &Address, from: Timestamp) {
        let ejection = self.ejection_mut(address);
        if let Some(ejection) = ejection.filter(|ejection| !ejection.origin.is_manual()) {
            ejection.hint = Some(ejection.hint.map_or(from, |earlier| earlier.min(from)));
            self.unsettled = true;
        }
    }

    pub(super) fn withdraw_offer(&mut self, address: &Address) {
        let Some(ejection) = self.ejection_mut(address) else {
            return;
        };
        if let Stage::Offered {
            lease,
            due,
            checked,
        } = ejection.stage
        {
            ejection.stage = Stage::Pending { due, checked };
            self.effects.push_back(Effect::WithdrawOffer {
                address: address.clone(),
                lease,
            });
        }
    }

    /// Settings changed: what is due is planned anew.
    pub(super) fn withdraw_offers(&mut self) {
        for address in self.ejected.clone() {
            self.withdraw_offer(&address);
        }
        self.unsettled = true;
    }

    pub(super) fn earliest_timer(&self) -> Option<Timestamp> {
        let trials = self
            .ejected
            .iter()
            .filter_map(|address| self.timer_of(address));
        trials.chain(self.override_timers()).min()
    }

    pub(super) fn ejection(&self, address: &Address) -> Option<&Ejection> {
        self.instances.get(address)?.ejection.as_deref()
    }

    pub(super) fn ejection_mut(&mut self, address: &Address) -> Option<&mut Ejection> {
        self.instances.get_mut(address)?.ejection.as_deref_mut()
    }

    /// When the next trial of `ejection` is due, and why.
    pub(super) fn due_of(&self, ejection: &Ejection) -> Due {
        let unit = self.policy.recovery_detection_unit_time;
        let back = ejection.back_at;
        let regular = Due {
            at: ejection.next.max(back),
            cause: DueCause::Regular,
        };
        let hint = ejection.hint.map(|from| {
            // Never within one unit of the ejection or of the end of the last trial.
            let rested = ejection
                .last_trial_end
                .unwrap_or(ejection.at)
                .max(ejection.at)
                + unit;
            Due {
                at: from.max(rested).max(back),
                cause: DueCause::Hint,
            }
        });
        let resort = self.resort_due(ejection);
        let all = [Some(regular), hint, resort].into_iter().flatten();
        all.min_by_key(|due| (due.at, due.cause)).unwrap_or(regular)
    }

    /// Paced from start to start. The last resort does not wait for a request: nobody can promise
    /// that one without another instance comes, so its trial is a check at once.
    fn resort_due(&self, ejection: &Ejection) -> Option<Due> {
        if !self.last_resort {
            return None;
        }
        let pace = (self.policy.recovery_detection_unit_time / 10).max(Duration::from_secs(1));
        let paced = ejection
            .resort_tried
            .map_or(Timestamp::ZERO, |tried| tried + pace);
        let at = ejection.resort_since.max(paced).max(ejection.back_at);
        Some(Due {
            at,
            cause: DueCause::LastResort,
        })
    }

    fn timer_of(&self, address: &Address) -> Option<Timestamp> {
        let instance = self.instances.get(address)?;
        let ejection = instance.ejection.as_deref()?;
        if let Stage::Trial(trial) = ejection.stage {
            return Some(trial.deadline);
        }
        if ejection.origin != Origin::Rules || !instance.routable {
            return None;
        }
        match ejection.stage {
            Stage::Trial(trial) => Some(trial.deadline),
            Stage::Waiting => Some(self.due_of(ejection).at),
            Stage::Pending { due, .. } | Stage::Offered { due, .. } => {
                let patience = due.at + self.policy.recovery_detection_unit_time;
                Some(
                    self.resort_due(ejection)
                        .map_or(patience, |resort| resort.at.min(patience)),
                )
            }
        }
    }

    fn is_due(&self, address: &Address) -> bool {
        let Some(ejection) = self.ejection(address) else {
            return false;
        };
        let pending = matches!(ejection.stage, Stage::Pending { .. });
        let trial = matches!(ejection.stage, Stage::Trial(_));
        !trial
            && self
                .timer_of(address)
                .is_some_and(|at| pending || at <= self.now)
    }

    fn start_if_due(&mut self, address: &Address) {
        let Some(ejection) = self.ejection(address) else {
            return;
        };
        let (due, checked) = match ejection.stage {
            Stage::Trial(_) => return,
            Stage::Waiting => (self.due_of(ejection), false),
            Stage::Pending { due, checked } | Stage::Offered { due, checked, .. } => (due, checked),
        };
        match self.plan(ejection, due, checked) {
            Plan::Request => self.offer(address, due, checked),
            Plan::Check => self.start_check(address, due, true),
            Plan::CheckFirst => self.start_check(address, due, false),
        }
    }

    fn plan(&self, ejection: &Ejection, due: Due, checked: bool) -> Plan {
        let unit = self.policy.recovery_detection_unit_time;
        let resort = self
            .resort_due(ejection)
            .is_some_and(|resort| resort.at <= self.now);
        let idle = self.last_request.is_none_or(|last| last + unit < due.at);
        if resort || ejection.check_next || idle || due.at + unit <= self.now {
            return Plan::Check;
        }
        match self.policy.probe {
            ProbeKind::Active => Plan::Check,
            ProbeKind::Auto if self.facts.health_check && !checked => Plan::CheckFirst,
            ProbeKind::Auto | ProbeKind::Request => Plan::Request,
        }
    }

    fn offer(&mut self, address: &Address, due: Due, checked: bool) {
        let blocked = due.cause == DueCause::Hint && self.hinted_request_in_flight();
        let Some(epoch) = self.instances.get(address).map(|instance| instance.epoch) else {
            return;
        };
        let lease = (!blocked).then(|| self.new_lease(epoch));
        let Some(ejection) = self.ejection_mut(address) else {
            return;
        };
        match (ejection.stage, lease) {
            (Stage::Offered { .. } | Stage::Trial(_), _) => {}
            (Stage::Waiting | Stage::Pending { .. }, None) => {
                ejection.stage = Stage::Pending { due, checked };
            }
            (Stage::Waiting | Stage::Pending { .. }, Some(lease)) => {
                ejection.stage = Stage::Offered {
                    lease,
                    due,
                    checked,
                };
                let address = address.clone();
                self.effects.push_back(Effect::OfferTrial {
                    address,
                    lease,
                    due: due.at,
                });
            }
        }
    }

    fn start_check(&mut self, address: &Address, due: Due, decides: bool) {
        self.withdraw_offer(address);
        let Some(epoch) = self.instances.get(address).map(|instance| instance.epoch) else {
            return;
        };
        let lease = self.new_lease(epoch);
        // From the real time: a driver that comes late must not start a check that is over.
        let deadline = self.wall + self.facts.check_timeout.max(Duration::from_nanos(1));
        let kind = TrialKind::Synthetic;
        let trial = Trial {
            lease,
            kind,
            due,
            deadline,
            decides,
            checked: false,
            begun: self.wall,
            good_head: None,
        };
        self.start(address, trial);
    }

    fn start(&mut self, address: &Address, trial: Trial) {
        self.begin(address, trial);
        let Some(ejection) = self.ejection(address) else {
            return;
        };
        let started = TrialStarted {
            address: address.clone(),
            lease: trial.lease,
            kind: trial.kind,
            deadline: trial.deadline,
            hinted: trial.due.cause == DueCause::Hint,
            last_resort: trial.due.cause == DueCause::LastResort,
            k: ejection.k,
        };
        self.effects.push_back(Effect::StartTrial(started));
        // One hinted request at a time: the others wait.
        if started_is_hinted_request(&trial) {
            let offered = |a: &&Address| {
                self.ejection(a).is_some_and(|e| {
                    matches!(e.stage, Stage::Offered { due, .. } if due.cause == DueCause::Hint)
                })
            };
            let offered: Vec<Address> = self.ejected.iter().filter(offered).cloned().collect();
            for address in offered {
                self.withdraw_offer(&address);
            }
        }
    }

    pub(super) fn begin(&mut self, address: &Address, trial: Trial) {
        self.unsettled = true;
        let (now, last_resort) = (self.now, self.last_resort);
        let Some(ejection) = self.ejection_mut(address) else {
            return;
        };
        ejection.stage = Stage::Trial(trial);
        ejection.last_kind = Some(trial.kind);
        if last_resort {
            ejection.resort_tried = Some(now);
        }
        // What a hint could say, this trial finds out.
        if trial.due.cause == DueCause::Hint || ejection.hint.is_some_and(|from| from <= now) {
            ejection.hint = None;
        }
        if trial.kind == TrialKind::Synthetic {
            ejection.check_next = false;
        }
    }

    pub(super) fn trial_of(&self, address: &Address) -> Option<Trial> {
        match self.ejection(address)?.stage {
            Stage::Trial(trial) => Some(trial),
            Stage::Waiting | Stage::Pending { .. } | Stage::Offered { .. } => None,
        }
    }

    pub(super) fn holder_of(&self, lease: LeaseId) -> Option<Address> {
        let holds = |a: &&Address| self.trial_of(a).is_some_and(|trial| trial.lease == lease);
        self.ejected.iter().find(holds).cloned()
    }

    fn hinted_request_in_flight(&self) -> bool {
        self.ejected
            .iter()
            .filter_map(|a| self.trial_of(a))
            .any(|t| started_is_hinted_request(&t))
    }
}

fn started_is_hinted_request(trial: &Trial) -> bool {
    trial.kind == TrialKind::Request && trial.due.cause == DueCause::Hint
}
