//! Endpoints come, go, return and are replaced. State belongs to an identity: address plus, where
//! the registry knows one, incarnation. A registry that restarts must not pardon everybody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::effect::{Effect, RestoredBy};
use super::input::{Outcome, RoutableEndpoint};
use super::instance::{Instance, Stage};
use super::{Detector, sample_of};
use crate::clock::Timestamp;
use crate::endpoint::Address;

/// A vanished address is remembered for so long, this moment included.
pub(super) const MEMORY: Duration = Duration::from_secs(5 * 60);

/// An address that left the registry's set.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) left_at: Timestamp,
    pub(super) instance: Instance,
    /// Written down by an earlier process.
    pub(super) seeded: bool,
}

impl Detector {
    pub(super) fn replace_endpoints(&mut self, list: Vec<RoutableEndpoint>) {
        let now = self.now;
        self.gone
            .retain(|_, gone| now.since(gone.left_at) <= MEMORY);
        // Two entries with one address are one instance: it is routable when one of them is.
        let mut offered: BTreeMap<Address, RoutableEndpoint> = BTreeMap::new();
        for endpoint in list {
            match offered.get_mut(&endpoint.address) {
                Some(known) => {
                    known.routable |= endpoint.routable;
                    known.incarnation = known.incarnation.take().or(endpoint.incarnation);
                }
                None => {
                    offered.insert(endpoint.address.clone(), endpoint);
                }
            }
        }
        let leaving: Vec<Address> = self
            .instances
            .keys()
            .filter(|address| !offered.contains_key(*address))
            .cloned()
            .collect();
        for address in leaving {
            self.leave(address);
        }
        let mut replaced = BTreeSet::new();
        let seeded = |(_, gone): &(&Address, &Gone)| gone.seeded;
        let mut recalled: BTreeSet<Address> = self
            .gone
            .iter()
            .filter(seeded)
            .map(|(address, _)| address.clone())
            .collect();
        for (address, endpoint) in offered {
            if self.appear(&address, &endpoint) {
                replaced.insert(address);
            }
        }
        self.recount();
        recalled.retain(|address| self.instances.contains_key(address));
        self.fit_recalled(recalled);
        // A manual ejection may have reached its time while its address was away.
        self.expire_overrides();
        for address in replaced {
            self.start_clean(&address);
        }
    }

    /// Attempts that were in flight when their instance left still count for it.
    pub(super) fn outcome_of_gone(&mut self, outcome: &Outcome) {
        let bucket = self.bucket;
        if let Some(gone) = self.gone.get_mut(&outcome.address) {
            let instance = &mut gone.instance;
            if instance.ejection.is_none() && outcome.sent_at >= instance.epoch_start {
                instance.window.add(&sample_of(outcome), bucket);
            }
        }
    }

    pub(super) fn check_changed(&mut self, address: &Address, passing: bool) {
        let Some(instance) = self.instances.get_mut(address) else {
            return;
        };
        let turned_good = passing && !instance.check_passes;
        if instance.check_passes != passing {
            instance.check_passes = passing;
            self.recount();
        }
        if turned_good {
            self.hint(address, self.now);
        }
    }

    /// Applies `offered` and `disabled`; what was overdue while it was away is due now.
    pub(super) fn set_routable(&mut self, address: &Address, routable: bool) {
        let now = self.now;
        let Some(instance) = self.instances.get_mut(address) else {
            return;
        };
        if instance.routable == routable {
            return;
        }
        instance.routable = routable;
        if !routable {
            // Not left in while it is not there.
            instance.suppressed = None;
            instance.calm_since = None;
            self.withdraw_offer(address);
            return;
        }
        if let Some(ejection) = &mut instance.ejection {
            ejection.back_at = now;
            if let Stage::Pending { due, .. } = &mut ejection.stage {
                due.at = due.at.max(now);
            }
        }
    }

    fn leave(&mut self, address: Address) {
        self.withdraw_offer(&address);
        let Some(mut instance) = self.instances.remove(&address) else {
            return;
        };
        self.forget_verdicts_of(&address);
        let ejected = self.ejected.remove(&address);
        instance.abnormal_since = None;
        instance.slow = None;
        instance.routes = None;
        // When it comes back it is checked as a new one is.
        instance.check_passes = true;
        instance.suppressed = None;
        instance.calm_since = None;
        // The lease ends without a verdict: same k, same next probe.
        if let Some(ejection) = &mut instance.ejection {
            ejection.stage = Stage::Waiting;
        }
        self.gone.insert(
            address.clone(),
            Gone {
                left_at: self.now,
                instance,
                seeded: false,
            },
        );
        self.effects
            .push_back(Effect::InstanceLeft { address, ejected });
    }

    /// Takes an endpoint of the new set. Tells whether it is a new incarnation.
    fn appear(&mut self, address: &Address, endpoint: &RoutableEndpoint) -> bool {
        let known = self.instances.contains_key(address);
        if !known {
            match self.gone.remove(address) {
                Some(gone) => self.resume(address, gone.instance),
                None => {
                    let epoch = self.new_epoch();
                    self.instances
                        .insert(address.clone(), Instance::new(epoch, self.now));
                }
            }
        }
        let disabled = self.disabled.contains_key(address);
        let Some(instance) = self.instances.get_mut(address) else {
            return false;
        };
        let differs = matches!(
            (&instance.incarnation, &endpoint.incarnation),
            (Some(old), Some(new)) if old != new
        );
        if let Some(incarnation) = &endpoint.incarnation {
            instance.incarnation = Some(Arc::clone(incarnation));
        }
        instance.offered = endpoint.routable;
        self.set_routable(address, endpoint.routable && !disabled);
        differs
    }

    fn resume(&mut self, address: &Address, mut instance: Instance) {
        if let Some(ejection) = &mut instance.ejection {
            ejection.back_at = self.now;
            ejection.resort_since = self.now;
            self.ejected.insert(address.clone());
        } else {
            self.watch.insert(address.clone());
            self.dirty.insert(address.clone());
        }
        self.instances.insert(address.clone(), instance);
    }

    /// A new incarnation: hold, manual ejection, lease and memory belonged to the old one.
    fn start_clean(&mut self, address: &Address) {
        self.restore(address, RestoredBy::Replaced);
        self.forget_verdicts_of(address);
        self.holds.remove(address);
        let (epoch, now) = (self.new_epoch(), self.now);
        let (ramp, enforced) = (self.policy.ramp, self.is_enforced());
        let Some(instance) = self.instances.get_mut(address) else {
            return;
        };
        instance.clear_judgement();
        instance.memory = None;
        instance.epoch = epoch;
        instance.epoch_start = now;
        let start = (!ramp.is_zero()).then_some(now);
        (instance.ramp_start, instance.shadow_ramp) = if enforced {
            (start, None)
        } else {
            (None, start)
        };
        instance.times_ejected = 0;
    }
}
