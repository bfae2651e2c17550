//! What must hold after every input. Checked in debug builds: by every test and every simulation.

use super::Detector;
#[cfg(debug_assertions)]
use super::instance::{Instance, Origin, Stage};
#[cfg(debug_assertions)]
use super::tally::Tally;

impl Detector {
    #[cfg(not(debug_assertions))]
    #[expect(clippy::unused_self, reason = "the debug form needs it")]
    pub(super) const fn check_invariants(&self) {}

    #[cfg(not(debug_assertions))]
    #[expect(clippy::unused_self, reason = "the debug form needs it")]
    pub(super) const fn check_placement(&self) {}

    /// An evaluation covers all instances, however few it looked at.
    #[cfg(debug_assertions)]
    pub(super) fn check_placement(&self) {
        for address in &self.watch {
            let Some(instance) = self.instances.get(address) else {
                continue;
            };
            let mut window = instance.window.clone();
            window.advance(self.bucket);
            let rules = self.rules();
            let verdict = rules.judge(&window, self.share_of(instance));
            let verdict = rules.refine(verdict, instance);
            let abnormal = self.abnormal.contains(address);
            debug_assert_eq!(verdict.is_abnormal(), abnormal, "{address}: {verdict:?}");
            if abnormal && instance.in_service() {
                let others = self.tally.others_passing(instance);
                let held = self.holds.contains_key(address);
                let room = !held && others > 0 && self.tally.out < self.cap();
                debug_assert!(
                    !room && instance.suppressed.is_some(),
                    "{address} is left in"
                );
            }
        }
    }

    #[cfg(debug_assertions)]
    pub(super) fn check_invariants(&self) {
        let tally = Tally::of(&self.instances);
        debug_assert_eq!(self.tally, tally, "the tally is exact");
        // Of a route: those that the upstream as a whole has out do not come back for it.
        let taken = |i: &Instance| i.routable && i.taken;
        debug_assert!(
            tally.in_service > 0 || tally.n == self.instances.values().filter(|i| taken(i)).count(),
            "somebody stays in"
        );
        let due = self.next_deadline();
        debug_assert!(
            due.is_none_or(|due| due > self.now),
            "overdue at {:?}: {due:?}",
            self.now
        );
        for (address, instance) in &self.instances {
            let ejected = instance.ejection.is_some();
            debug_assert_eq!(self.ejected.contains(address), ejected, "{address} ejected");
            let abnormal = instance.abnormal_since.is_some();
            debug_assert_eq!(
                self.abnormal.contains(address),
                abnormal,
                "{address} abnormal"
            );
            debug_assert!(
                !(abnormal && ejected),
                "{address} is judged while it is out"
            );
            let Some(ejection) = &instance.ejection else {
                continue;
            };
            let max = self.policy.max_recovery_checks.max(1);
            debug_assert!(
                (1..=max).contains(&ejection.k),
                "k of {address} is {}",
                ejection.k
            );
            match ejection.stage {
                Stage::Waiting | Stage::Pending { .. } => {}
                Stage::Offered { lease, .. } => {
                    debug_assert_eq!(lease.epoch, instance.epoch, "offer of {address}");
                    debug_assert!(instance.routable, "{address} is offered but not routable");
                    debug_assert_eq!(ejection.origin, Origin::Rules, "offer of {address}");
                }
                Stage::Trial(trial) => {
                    debug_assert!(trial.begun <= trial.deadline, "trial of {address}");
                    debug_assert_eq!(trial.lease.epoch, instance.epoch, "trial of {address}");
                    debug_assert_eq!(ejection.origin, Origin::Rules, "trial of {address}");
                }
            }
        }
        debug_assert!(
            self.ejected
                .iter()
                .chain(&self.abnormal)
                .all(|a| self.instances.contains_key(a)),
            "sets hold live addresses only"
        );
    }
}
