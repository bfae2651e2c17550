//! What a detector has for ejection by route (`outlier/lanes.rs`). As that of a route: instances that
//! the upstream as a whole has out, and what it thinks of one. As that of the upstream: the rule that
//! an instance goes where half of its routes are bad, in place of the rules of rate and streak.

use super::Detector;
use super::evaluate::Occasion;
use super::instance::Memory;
use crate::endpoint::Address;

/// How many routes with enough calls an instance has, and how many of them are bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half {
    /// Abnormal or ejected there.
    pub bad: u32,
    /// With enough calls to be judged, the bad ones included.
    pub judged: u32,
}

impl Detector {
    /// The same for a lane: its leases tell of it.
    #[must_use]
    pub const fn for_lane(mut self, lane: u8) -> Self {
        self.lane = lane;
        self
    }

    /// Those that are abnormal or ejected.
    pub fn suspects(&self) -> impl Iterator<Item = &Address> {
        self.abnormal.iter().chain(&self.ejected)
    }

    /// Whether an instance is bad; `None` when too few calls say so.
    pub fn opinion(&self, address: &Address) -> Option<bool> {
        let instance = self.instances.get(address)?;
        if instance.ejection.is_some() || instance.abnormal_since.is_some() {
            return Some(true);
        }
        let mut window = instance.window.clone();
        window.advance(self.bucket);
        let verdict = self.rules().judge(&window, self.share_of(instance));
        verdict.is_proven_normal().then_some(false)
    }

    /// The upstream as a whole has it out, or again in: it counts as out here, is not tried, and
    /// what this route had against it is over; k is remembered.
    pub(super) fn taken(&mut self, address: &Address, out: bool) {
        self.withdraw_offer(address);
        let (now, epoch) = (self.now, self.new_epoch());
        let (flap, ramp) = (self.policy.flap_memory, self.policy.ramp);
        let Some(instance) = self.instances.get_mut(address) else {
            return;
        };
        if instance.taken == out {
            return;
        }
        instance.taken = out;
        if let Some(ejection) = instance.ejection.take() {
            instance.memory = Some(Memory {
                k: ejection.k,
                raise: true,
                successes_left: flap.max(1),
            });
        }
        instance.clear_judgement();
        instance.epoch = epoch;
        instance.epoch_start = now;
        let back = !out && !ramp.is_zero();
        instance.ramp_start =
            (back && self.policy.mode == crate::outlier::policy::Mode::Enforce).then_some(now);
        instance.shadow_ramp = (back && instance.ramp_start.is_none()).then_some(now);
        self.ejected.remove(address);
        self.forget_verdicts_of(address);
        self.recount();
    }

    /// Half of its routes turned bad, or are no longer.
    pub(super) fn routes(&mut self, address: &Address, half: Option<Half>) {
        let Some(instance) = self.instances.get_mut(address) else {
            return;
        };
        instance.routes = half.filter(|_| instance.ejection.is_none());
        self.watch.insert(address.clone());
        self.dirty.insert(address.clone());
        self.evaluate(Occasion::Failure);
    }
}
