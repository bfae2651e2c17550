//! What outlives the process: ejections, k, the next probe, how often. An earlier process wrote it
//! down as durations, since a clock of ours ends with us; here it becomes state again, as if the
//! instances had been away: each waits for its address to appear, and lapses like one that left.
//! The cap and the rule that somebody stays in hold for it as for any ejection.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Detector;
use super::effect::Effect;
use super::identity::{Gone, MEMORY};
use super::instance::{Ejection, Fraction, Instance, Memory, Origin, Stage};
use crate::clock::Timestamp;
use crate::endpoint::Address;
use crate::outlier::policy::Mode;
use crate::outlier::schedule::interval;

/// One instance as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Which.
    pub address: Address,
    /// What the registry knew of its start.
    pub incarnation: Option<Arc<str>>,
    /// How often it was ejected.
    pub times_ejected: u32,
    /// Its ejection by the rules; one by an operator is an order, and not remembered here.
    pub ejection: Option<RememberedEjection>,
    /// k of an ended ejection.
    pub memory: Option<RememberedK>,
}

/// An ejection as it is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RememberedEjection {
    /// It was observed only.
    pub observed: bool,
    /// Step of the schedule.
    pub k: u32,
    /// Until the next regular trial; clamped to k x unit when it is taken over.
    pub next_in: Duration,
    /// How long it has been out.
    pub out_for: Duration,
    /// Failures and calls of its window when it was ejected.
    pub rate: (u64, u64),
    /// Its last calls failed, or a trial has failed since.
    pub hopeless: bool,
    /// It was slow: a trial is good within this time.
    pub slow_limit: Option<Duration>,
    /// Good trials in a row.
    pub good: u32,
    /// The next trial is a check.
    pub check_next: bool,
}

/// k of an ended ejection as it is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RememberedK {
    /// The step.
    pub k: u32,
    /// The next ejection counts as a failed trial.
    pub raise: bool,
    /// Real successes that are still needed to forget it.
    pub successes_left: u32,
}

impl Detector {
    /// What another process should know, by id.
    pub fn remembered(&self) -> Vec<Remembered> {
        let now = self.wall;
        let gone = self.gone.iter();
        let gone = gone.filter(|(_, gone)| now.since(gone.left_at) <= MEMORY);
        let gone = gone.map(|(address, gone)| (address, &gone.instance));
        let mut all: Vec<Remembered> = self
            .instances
            .iter()
            .chain(gone)
            .map(|(address, instance)| remembered(address, instance, now))
            .filter(|one| one.times_ejected > 0 || one.memory.is_some())
            .collect();
        all.sort_by(|a, b| a.address.cmp(&b.address));
        all
    }

    /// Takes over what an earlier process knew of instances that are not here yet.
    pub(super) fn take_seed(&mut self, seed: Vec<Remembered>) {
        for one in seed {
            if self.instances.contains_key(&one.address) || self.gone.contains_key(&one.address) {
                continue;
            }
            let address = one.address.clone();
            let instance = self.take_back(one);
            self.gone.insert(
                address,
                Gone {
                    left_at: self.now,
                    instance,
                    seeded: true,
                },
            );
        }
    }

    fn take_back(&mut self, one: Remembered) -> Instance {
        let policy = Arc::clone(&self.policy);
        let max = policy.max_recovery_checks.max(1);
        let mut instance = Instance::new(self.new_epoch(), self.now);
        instance.incarnation = one.incarnation;
        instance.times_ejected = one.times_ejected;
        if policy.mode == Mode::Disabled {
            return instance;
        }
        instance.memory = one.memory.map(|memory| Memory {
            k: memory.k.clamp(1, max),
            raise: memory.raise,
            successes_left: memory.successes_left,
        });
        let Some(before) = one.ejection else {
            return instance;
        };
        let k = before.k.clamp(1, max);
        let origin = match (policy.mode, before.observed) {
            (Mode::Enforce, false) => Origin::Rules,
            (Mode::Observe, true) => Origin::Shadow,
            // The mode changed meanwhile: would-be ejections are forgotten, enforced ones return.
            (Mode::Enforce | Mode::Disabled, _) => return instance,
            (Mode::Observe, false) => {
                instance.memory = Memory::usual(k, policy.flap_memory);
                return instance;
            }
        };
        let most = interval(policy.recovery_detection_unit_time, k);
        let (part, whole) = before.rate;
        instance.ejection = Some(Box::new(Ejection {
            at: self.now,
            out_before: before.out_for,
            origin,
            k,
            next: self.now + before.next_in.min(most),
            scheduled_at: self.now,
            units: k,
            rate: Fraction { part, whole },
            hopeless: before.hopeless,
            slow_limit: before.slow_limit,
            good: before.good,
            hint: None,
            last_trial_end: None,
            last_kind: None,
            resort_since: self.now,
            resort_tried: None,
            back_at: Timestamp::ZERO,
            check_next: before.check_next,
            stage: Stage::Waiting,
        }));
        instance
    }

    /// Those of `recalled` that have no room go back in, the mildest first; k is remembered. Called
    /// when the new set is counted.
    pub(super) fn fit_recalled(&mut self, mut recalled: BTreeSet<Address>) {
        while self.tally.out > self.cap() || (self.tally.n > 0 && self.tally.passing == 0) {
            let mildest = recalled
                .iter()
                .filter_map(|address| {
                    let instance = self.instances.get(address).filter(|i| i.routable)?;
                    let ejection = instance.ejection.as_ref()?;
                    Some((address, ejection))
                })
                .min_by(|(a, x), (b, y)| {
                    let ranks = x.rank().compare(y.rank());
                    let nearest = || x.returns_at().cmp(&y.returns_at());
                    ranks.then_with(nearest).then_with(|| a.cmp(b))
                })
                .map(|(address, _)| address.clone());
            let Some(address) = mildest else { break };
            recalled.remove(&address);
            self.let_in(address);
        }
        for address in recalled {
            let Some(ejection) = self.ejection(&address) else {
                continue;
            };
            let (k, next_trial) = (ejection.k, Some(ejection.next));
            let observed = ejection.origin == Origin::Shadow;
            let rate = (ejection.rate.part, ejection.rate.whole);
            self.effects.push_back(Effect::Recalled {
                address,
                k,
                next_trial,
                observed,
                rate,
            });
        }
    }

    fn let_in(&mut self, address: Address) {
        let (epoch, now, flap) = (self.new_epoch(), self.now, self.policy.flap_memory);
        let Some(instance) = self.instances.get_mut(&address) else {
            return;
        };
        let Some(ejection) = instance.ejection.take() else {
            return;
        };
        instance.memory = Some(Memory {
            k: ejection.k,
            raise: true,
            successes_left: flap.max(1),
        });
        instance.epoch = epoch;
        instance.epoch_start = now;
        self.ejected.remove(&address);
        self.recount();
        self.effects.push_back(Effect::Recalled {
            address,
            k: ejection.k,
            next_trial: None,
            observed: ejection.origin == Origin::Shadow,
            rate: (ejection.rate.part, ejection.rate.whole),
        });
    }
}

fn remembered(address: &Address, instance: &Instance, now: Timestamp) -> Remembered {
    let ejection = instance.ejection.as_ref();
    let ejection = ejection.filter(|ejection| !ejection.origin.is_manual());
    Remembered {
        address: address.clone(),
        incarnation: instance.incarnation.clone(),
        times_ejected: instance.times_ejected,
        ejection: ejection.map(|ejection| RememberedEjection {
            observed: ejection.origin == Origin::Shadow,
            k: ejection.k,
            next_in: ejection.next.since(now),
            out_for: now.since(ejection.at) + ejection.out_before,
            rate: (ejection.rate.part, ejection.rate.whole),
            hopeless: ejection.hopeless,
            slow_limit: ejection.slow_limit,
            good: ejection.good,
            check_next: ejection.check_next,
        }),
        memory: instance.memory.map(|memory| RememberedK {
            k: memory.k,
            raise: memory.raise,
            successes_left: memory.successes_left,
        }),
    }
}
