//! Counts over the instances of the upstream, and the cap that follows from them. Kept exact by
//! every ejection and restore; counted anew when endpoints, checks or overrides change.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Detector;
use super::effect::{Effect, Numbers};
use super::instance::{Instance, Origin};
use crate::endpoint::Address;
use crate::outlier::cap::cap;

/// As many slot holders are named.
const HOLDERS: usize = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Routable, ejected or not.
    pub(super) n: usize,
    /// Ejected, routable, and not by force.
    pub(super) out: usize,
    /// Routable and not ejected.
    pub(super) in_service: usize,
    /// Those of them that pass.
    pub(super) passing: usize,
    /// The active checks of some routable instance pass; if of none, all pass.
    pub(super) checks_count: bool,
}

impl Tally {
    /// As the rules see it: in mode observe, with the would-be ejections.
    pub(super) fn of(instances: &BTreeMap<Address, Instance>) -> Self {
        Self::with(instances, |_| true)
    }

    /// As traffic sees it.
    pub(super) fn in_fact(instances: &BTreeMap<Address, Instance>) -> Self {
        Self::with(instances, |origin| origin != Origin::Shadow)
    }

    fn with(instances: &BTreeMap<Address, Instance>, is_out: impl Fn(Origin) -> bool) -> Self {
        let routable = || instances.values().filter(|instance| instance.routable);
        let checks_count = routable().any(|instance| instance.check_passes);
        let mut tally = Self {
            checks_count,
            ..Self::default()
        };
        for instance in routable() {
            tally.n += 1;
            if instance.taken {
                tally.out += 1;
                continue;
            }
            match instance
                .ejection
                .as_ref()
                .filter(|ejection| is_out(ejection.origin))
            {
                Some(ejection) => tally.out += usize::from(ejection.origin.counts()),
                None => {
                    tally.in_service += 1;
                    tally.passing += usize::from(tally.passes(instance));
                }
            }
        }
        tally
    }

    /// Whether `instance` passes.
    pub(super) fn passes(&self, instance: &Instance) -> bool {
        instance.check_passes || !self.checks_count
    }

    /// How many other un-ejected instances that pass there are.
    pub(super) fn others_passing(&self, instance: &Instance) -> usize {
        self.passing
            .saturating_sub(usize::from(instance.in_service() && self.passes(instance)))
    }

    /// The same in fact: a shadow ejection leaves its instance in service.
    pub(super) fn in_service_besides(&self, instance: &Instance) -> usize {
        self.passing
            .saturating_sub(usize::from(self.passes(instance)))
    }

    /// `instance` just was, or is about to be, ejected.
    pub(super) fn remove(&mut self, instance: &Instance, counts: bool) {
        if instance.routable {
            self.in_service = self.in_service.saturating_sub(1);
            self.passing = self
                .passing
                .saturating_sub(usize::from(self.passes(instance)));
            self.out += usize::from(counts);
        }
    }

    /// `instance` just was, or is about to be, restored.
    pub(super) fn add(&mut self, instance: &Instance, counted: bool) {
        if instance.routable {
            self.in_service += 1;
            self.passing += usize::from(self.passes(instance));
            self.out = self.out.saturating_sub(usize::from(counted));
        }
    }
}

impl Detector {
    pub(super) fn recount(&mut self) {
        self.tally = Tally::of(&self.instances);
        self.unsettled = true;
    }

    pub(super) fn cap(&self) -> usize {
        let policy = &self.policy;
        cap(
            self.tally.n,
            policy.instance_removal_rate_threshold_bp,
            policy.min_ejectable,
        )
    }

    /// The arithmetic of the upstream as it stands.
    pub(super) fn numbers(&self) -> Arc<Numbers> {
        self.numbers_of(&self.tally, |_| true)
    }

    /// The same without what is only observed.
    pub(super) fn numbers_in_fact(&self) -> Arc<Numbers> {
        let tally = Tally::in_fact(&self.instances);
        self.numbers_of(&tally, |origin| origin != Origin::Shadow)
    }

    fn numbers_of(&self, tally: &Tally, is_out: impl Fn(Origin) -> bool) -> Arc<Numbers> {
        let counts = |address: &&Address| {
            self.instances
                .get(*address)
                .filter(|instance| instance.routable)
                .is_some_and(|i| {
                    i.ejection
                        .as_ref()
                        .is_some_and(|e| e.origin.counts() && is_out(e.origin))
                })
        };
        Arc::new(Numbers {
            policy: Arc::clone(&self.policy.name),
            origin: Arc::clone(&self.policy.origin),
            mode: self.policy.mode,
            n: tally.n,
            cap: self.cap(),
            out: tally.out,
            holders: self
                .ejected
                .iter()
                .filter(counts)
                .take(HOLDERS)
                .cloned()
                .collect(),
        })
    }

    /// An enforced policy whose cap is zero is a surprise: said once per change that makes it so.
    pub(super) fn warn_of_zero_cap(&mut self) {
        let zero = self.is_enforced() && self.tally.n >= 2 && self.cap() == 0;
        if zero && !self.cap_is_zero {
            self.effects.push_back(Effect::CapZero(self.numbers()));
        }
        self.cap_is_zero = zero;
    }
}
