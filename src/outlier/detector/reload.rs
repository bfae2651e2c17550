//! A changed policy: thresholds hold from the next evaluation, state stays unless its entry is gone
//! or the mode changed, and a pending trial is only ever pulled forward.

use std::sync::Arc;

use super::Detector;
use super::effect::RestoredBy;
use super::instance::Origin;
use crate::endpoint::Address;
use crate::outlier::policy::{Mode, Policy};
use crate::outlier::schedule::interval;
use crate::outlier::window::Ring;

impl Detector {
    /// `None`: the entry that held the upstream is gone, the built-in policy takes over.
    pub(super) fn reload(&mut self, policy: Option<Arc<Policy>>) {
        match policy {
            None => {
                self.release(RestoredBy::PolicyDisabled);
                self.forget_everything();
                self.install(Arc::new(Policy::builtin(self.facts.dubbo)));
            }
            Some(policy) => match (self.policy.mode, policy.mode) {
                (Mode::Disabled, Mode::Disabled) => self.install(policy),
                (_, Mode::Disabled) => {
                    self.release(RestoredBy::PolicyDisabled);
                    self.forget_everything();
                    self.install(policy);
                }
                (Mode::Disabled, _) => {
                    self.forget_everything();
                    self.install(policy);
                }
                (Mode::Observe, Mode::Enforce) => {
                    self.forget_shadow();
                    self.install(policy);
                }
                (Mode::Enforce, Mode::Observe) => {
                    self.release(RestoredBy::PolicyChange);
                    self.install(policy);
                }
                (Mode::Enforce, Mode::Enforce) | (Mode::Observe, Mode::Observe) => {
                    self.install(policy);
                }
            },
        }
        self.judge_all();
        self.was_busy = None;
        self.withdraw_offers();
    }

    fn install(&mut self, policy: Arc<Policy>) {
        let old = std::mem::replace(&mut self.policy, policy);
        if old.statistics_window != self.policy.statistics_window {
            self.clear_windows();
        }
        let (unit, max) = (
            self.policy.recovery_detection_unit_time,
            self.policy.max_recovery_checks.max(1),
        );
        let lowered = unit < old.recovery_detection_unit_time || max < old.max_recovery_checks;
        let now = self.now;
        let gone = self.gone.values_mut().map(|gone| &mut gone.instance);
        for instance in self.instances.values_mut().chain(gone) {
            if let Some(memory) = &mut instance.memory {
                memory.k = memory.k.min(max);
            }
            let Some(ejection) = &mut instance.ejection else {
                continue;
            };
            ejection.k = ejection.k.min(max);
            ejection.units = ejection.units.min(max);
            if lowered {
                let pulled = ejection.scheduled_at + interval(unit, ejection.units);
                ejection.next = ejection.next.min(pulled.max(now));
            }
        }
    }

    /// Puts back all that the rules ejected. Manual ejections outlive policies.
    fn release(&mut self, by: RestoredBy) {
        for address in self.ejected_by_rules() {
            let shadow = self
                .ejection(&address)
                .is_some_and(|e| e.origin == Origin::Shadow);
            if !shadow {
                self.restore(&address, by);
            }
        }
        self.forget_shadow();
    }

    /// Would-be ejections end without a word.
    fn forget_shadow(&mut self) {
        let shadow = self.policy.mode == Mode::Observe;
        for address in self.ejected_by_rules() {
            let (epoch, now) = (self.new_epoch(), self.now);
            if let Some(instance) = self.instances.get_mut(&address) {
                instance.ejection = None;
                instance.epoch = epoch;
                instance.epoch_start = now;
            }
            self.ejected.remove(&address);
        }
        let gone = self.gone.values_mut().map(|gone| &mut gone.instance);
        for instance in self.instances.values_mut().chain(gone) {
            let manual = instance
                .ejection
                .as_ref()
                .is_some_and(|e| e.origin.is_manual());
            if !manual {
                instance.ejection = None;
            }
            instance.suppressed = None;
            instance.calm_since = None;
            if shadow {
                instance.memory = None;
            }
        }
        self.recount();
    }

    /// The next policy starts clean.
    fn forget_everything(&mut self) {
        self.clear_windows();
        self.last_exchange = None;
        let gone = self.gone.values_mut().map(|gone| &mut gone.instance);
        for instance in self.instances.values_mut().chain(gone) {
            instance.memory = None;
        }
    }

    fn clear_windows(&mut self) {
        self.bucket = self.bucket_at(self.now);
        self.calls = Ring::default();
        self.abnormal.clear();
        self.watch.clear();
        self.dirty.clear();
        self.turned.clear();
        let gone = self.gone.values_mut().map(|gone| &mut gone.instance);
        for instance in self.instances.values_mut().chain(gone) {
            instance.clear_judgement();
            instance.window = Default::default();
        }
        self.unsettled = true;
    }

    pub(super) fn ejected_by_rules(&self) -> Vec<Address> {
        let by_rules = |address: &&Address| {
            self.ejection(address)
                .is_some_and(|e| !e.origin.is_manual())
        };
        self.ejected.iter().filter(by_rules).cloned().collect()
    }
}
