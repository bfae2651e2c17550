//! Out of rotation and back: the two transitions every rule ends in, and the rule that somebody
//! always stays in.

use std::time::Duration;

use super::Detector;
use super::effect::{Effect, Ejected, Evidence, Restored, RestoredBy, TrialKind, Trigger};
use super::instance::{Ejection, Fraction, Instance, Memory, Origin, Stage};
use super::judge::Verdict;
use crate::clock::Timestamp;
use crate::endpoint::Address;
use crate::outlier::schedule::{grown, interval};

impl Ejection {
    /// How bad it is, as a holder of a slot.
    pub(super) fn rank(&self) -> Fraction {
        if self.hopeless {
            Fraction::FULL
        } else {
            self.rate
        }
    }

    /// Nearest to its return: with a trial in flight, then by its next trial.
    pub(super) const fn returns_at(&self) -> Timestamp {
        match self.stage {
            Stage::Trial(_) => Timestamp::ZERO,
            Stage::Waiting | Stage::Pending { .. } | Stage::Offered { .. } => self.next,
        }
    }
}

impl Detector {
    pub(super) fn eject_by_rules(&mut self, address: &Address, verdict: &Verdict) {
        let Some(instance) = self.instances.get(address) else {
            return;
        };
        debug_assert!(
            self.tally.others_passing(instance) > 0,
            "the last passing one stays"
        );
        debug_assert!(self.tally.out < self.cap(), "the cap holds");
        let evidence = verdict.evidence(&self.policy, &instance.window);
        self.eject(
            address,
            self.origin_by_mode(),
            verdict.trigger(),
            evidence,
            verdict.is_hopeless(),
        );
    }

    pub(super) fn eject(
        &mut self,
        address: &Address,
        origin: Origin,
        trigger: Trigger,
        evidence: Evidence,
        hopeless: bool,
    ) {
        let manual = origin.is_manual();
        let numbers = if manual {
            self.numbers_in_fact()
        } else {
            self.numbers()
        };
        let now = self.now;
        let epoch = self.new_epoch();
        let unit = self.policy.recovery_detection_unit_time;
        let Some(instance) = self.instances.get_mut(address) else {
            return;
        };
        self.tally.remove(instance, origin.counts());
        let max = self.policy.max_recovery_checks.max(1);
        let remembered = if manual { None } else { instance.memory.take() };
        let k = match remembered {
            Some(memory) if memory.raise => grown(memory.k, max),
            Some(memory) => memory.k.clamp(1, max),
            None => 1,
        };
        let next = now + self.jitter.lengthen(interval(unit, k));
        instance.clear_judgement();
        instance.ramp_start = None;
        instance.shadow_ramp = None;
        instance.epoch = epoch;
        instance.epoch_start = now;
        instance.times_ejected = instance.times_ejected.saturating_add(1);
        instance.ejection = Some(Box::new(Ejection {
            at: now,
            out_before: Duration::ZERO,
            origin,
            k,
            next,
            scheduled_at: now,
            units: k,
            rate: Fraction {
                part: evidence.failures,
                whole: evidence.calls,
            },
            hopeless,
            slow_limit: evidence
                .slow
                .filter(|_| trigger == Trigger::Slow)
                .map(|s| s.limit),
            good: 0,
            hint: None,
            last_trial_end: None,
            last_kind: None,
            resort_since: now,
            resort_tried: None,
            back_at: Timestamp::ZERO,
            check_next: false,
            stage: Stage::Waiting,
        }));
        let ejected = Box::new(Ejected {
            address: address.clone(),
            trigger,
            evidence,
            numbers,
            k: if manual { 0 } else { k },
            next_trial: (!manual).then_some(next),
            times_ejected: instance.times_ejected,
        });
        self.forget_verdicts_of(address);
        self.ejected.insert(address.clone());
        self.unsettled = true;
        self.effects.push_back(match origin {
            Origin::Shadow => Effect::WouldEject(ejected),
            Origin::Rules | Origin::Operator { .. } => Effect::Eject(ejected),
        });
    }

    /// Puts `address` back, if it is out: window cleared, on a ramp, k remembered as the rules say.
    pub(super) fn restore(&mut self, address: &Address, by: RestoredBy) {
        self.withdraw_offer(address);
        let now = self.now;
        let epoch = self.new_epoch();
        let (ramp, flap) = (self.policy.ramp, self.policy.flap_memory);
        let Some(instance) = self.instances.get_mut(address) else {
            return;
        };
        let Some(ejection) = instance.ejection.take() else {
            return;
        };
        self.tally.add(instance, ejection.origin.counts());
        // What an operator did says nothing of the instance: k of before is still remembered.
        if !ejection.origin.is_manual() {
            instance.memory = memory_of(&ejection, by, flap, self.facts.tcp_check);
        }
        instance.clear_judgement();
        let start = (ramp > Duration::ZERO).then_some(now);
        match ejection.origin {
            Origin::Shadow => instance.shadow_ramp = start,
            Origin::Rules | Origin::Operator { .. } => instance.ramp_start = start,
        }
        instance.epoch = epoch;
        instance.epoch_start = now;
        let remembered = instance.memory.is_some();
        self.forget_verdicts_of(address);
        self.ejected.remove(address);
        self.unsettled = true;
        let restored = Box::new(Restored {
            address: address.clone(),
            restored_by: by,
            ejected_for: now.since(ejection.at) + ejection.out_before,
            k: ejection.k,
            remembered,
            ramp,
            numbers: self.numbers(),
        });
        self.effects.push_back(match ejection.origin {
            Origin::Shadow => Effect::WouldRestore(restored),
            Origin::Rules | Origin::Operator { .. } => Effect::Restore(restored),
        });
    }

    /// No moment exists in which every routable endpoint is ejected.
    pub(super) fn keep_one_in(&mut self) {
        if self.tally.n == 0 || self.tally.in_service > 0 {
            return;
        }
        let out = self.ejected.iter().filter_map(|address| {
            let instance = self
                .instances
                .get(address)
                .filter(|instance| instance.routable)?;
            let ejection = instance.ejection.as_ref()?;
            let passes = self.tally.passes(instance);
            let order = (ejection.origin.is_manual(), !passes, ejection.returns_at());
            Some((order, address))
        });
        let Some((_, address)) = out.min().map(|(order, address)| (order, address.clone())) else {
            return;
        };
        self.restore(&address, RestoredBy::LastInstance);
    }

    /// While every un-ejected routable instance is abnormal or does not pass, the ejected ones are
    /// due at once: a repaired one must not sit out ten minutes while the others are down.
    pub(super) fn update_last_resort(&mut self) {
        let in_use = |address: &&Address| {
            let passes = |i: &Instance| i.in_service() && self.tally.passes(i);
            self.instances.get(*address).is_some_and(passes)
        };
        let sound = self
            .tally
            .passing
            .saturating_sub(self.abnormal.iter().filter(in_use).count());
        let on = self.tally.in_service > 0 && sound == 0 && self.tally.n > self.tally.in_service;
        if on == self.last_resort {
            return;
        }
        self.last_resort = on;
        for address in &self.ejected {
            let instance = self.instances.get_mut(address);
            if let Some(ejection) = instance.and_then(|instance| instance.ejection.as_mut()) {
                ejection.resort_since = self.now;
            }
        }
        if self.is_enforced() {
            self.effects.push_back(Effect::LastResort { on });
        }
    }
}

fn memory_of(ejection: &Ejection, by: RestoredBy, flap: u32, tcp_check: bool) -> Option<Memory> {
    let remember = |successes_left, raise| {
        Some(Memory {
            k: ejection.k,
            raise,
            successes_left,
        })
    };
    let usual = || Memory::usual(ejection.k, flap);
    match by {
        RestoredBy::Exchanged => remember(flap.max(1), true),
        RestoredBy::LastInstance => remember(flap.max(1), false),
        // A connect alone says little of an application.
        RestoredBy::Probe if tcp_check && ejection.last_kind == Some(TrialKind::Synthetic) => {
            remember(flap.max(1), true)
        }
        RestoredBy::Probe | RestoredBy::Operator => usual(),
        // What was enforced is remembered by the shadow that follows.
        RestoredBy::PolicyChange | RestoredBy::OverrideExpired => usual(),
        RestoredBy::PolicyDisabled | RestoredBy::Replaced => None,
    }
}
