//! The state between effects, for snapshots, metrics and explaining. Read only.

use std::sync::Arc;
use std::time::Duration;

use super::Detector;
use super::effect::{Cause, Evidence, Numbers, TrialKind};
use super::input::LeaseId;
use super::instance::{Instance, Origin, Stage};
use super::judge::Rules;
use crate::clock::Timestamp;
use crate::endpoint::Address;
use crate::outlier::schedule::{FULL_SHARE, ramp_share};

/// One instance as it stands.
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, only ever listed"
)]
#[derive(Clone, Debug)]
pub struct InstanceView {
    /// Which.
    pub address: Address,
    /// Offered by the registry and not disabled by an operator.
    pub routable: bool,
    /// Disabled by an operator.
    pub disabled: bool,
    /// Pinned by an operator.
    pub held: bool,
    /// Its active checks pass, or none ran yet.
    pub check_passes: bool,
    /// What the registry knows of its start.
    pub incarnation: Option<Arc<str>>,
    /// The ejection epoch; attempts of an earlier one are stragglers.
    pub epoch: u64,
    /// In or out.
    pub state: StateView,
    /// The window and the rules on it.
    pub evidence: Evidence,
    /// Median time of its answers in the window, where the policy asks.
    pub median: Option<Duration>,
    /// Since when it is abnormal.
    pub abnormal_since: Option<Timestamp>,
    /// Why it was left in.
    pub suppressed: Option<Cause>,
    /// A remembered k.
    pub memory: Option<MemoryView>,
    /// Share of traffic in basis points, by its ramp.
    pub share_bp: u32,
    /// Start of the ramp it is on.
    pub ramp_start: Option<Timestamp>,
    /// How often it was ejected.
    pub times_ejected: u32,
}

/// In or out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateView {
    /// In rotation as far as ejection is concerned.
    In,
    /// Out, and probed.
    Ejected {
        /// Since when, in this process.
        at: Timestamp,
        /// How long before that, in an earlier one.
        out_before: Duration,
        /// Observed only: it still gets traffic.
        observed: bool,
        /// Step of the schedule.
        k: u32,
        /// The next regular trial.
        next_trial: Timestamp,
        /// Good trials in a row.
        good: u32,
        /// The lease in flight.
        trial: Option<(LeaseId, TrialKind, Timestamp)>,
        /// An offer to requests, with the time it fell due.
        offer: Option<(LeaseId, Timestamp)>,
    },
    /// Out by an operator; no trials.
    EjectedByOperator {
        /// Since when.
        at: Timestamp,
        /// Until when.
        until: Option<Timestamp>,
        /// Beside the cap.
        forced: bool,
    },
}

impl StateView {
    /// Whether traffic must avoid it.
    pub const fn is_out(&self) -> bool {
        match self {
            Self::In => false,
            Self::Ejected { observed, .. } => !*observed,
            Self::EjectedByOperator { .. } => true,
        }
    }
}

/// k of an ended ejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryView {
    /// Its step.
    pub k: u32,
    /// Real successes that are still needed to forget it.
    pub successes_left: u32,
}

/// A request trial that may be claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferView {
    /// Of which instance.
    pub address: Address,
    /// The lease to claim.
    pub lease: LeaseId,
    /// Since when it is due.
    pub due: Timestamp,
}

/// The upstream as it stands.
#[derive(Clone, Debug)]
pub struct UpstreamView {
    /// n, cap, out, holders and the policy. In mode observe these are the would-be ones.
    pub numbers: Arc<Numbers>,
    /// Routable instances that are not ejected.
    pub in_service: usize,
    /// Those of them that pass.
    pub passing: usize,
    /// Un-ejected instances that are abnormal.
    pub abnormal: usize,
    /// Ejected instances, routable or not.
    pub ejected: usize,
    /// Whether the last resort holds.
    pub last_resort: bool,
}

impl Detector {
    /// Everything that is known of one instance.
    pub fn instance(&self, address: &Address) -> Option<InstanceView> {
        self.instances
            .get(address)
            .map(|instance| self.view(address, instance))
    }

    /// State, whether an operator disabled it, and the start of its ramp: what a snapshot needs.
    pub fn standing(&self, address: &Address) -> Option<(StateView, bool, Option<Timestamp>)> {
        let instance = self.instances.get(address)?;
        let disabled = self.disabled.contains_key(address);
        Some((state_of(instance), disabled, instance.ramp_start))
    }

    /// Whether its active checks pass; so too before the first, and of an unknown one.
    pub fn check_passes(&self, address: &Address) -> bool {
        let instance = self.instances.get(address);
        instance.is_none_or(|instance| instance.check_passes)
    }

    /// Whether an operator's `hold` and `disable` are in force, also for an address that is away.
    pub fn pins(&self, address: &Address) -> (bool, bool) {
        let held = self.holds.contains_key(address);
        (held, self.disabled.contains_key(address))
    }

    /// All live instances, by id.
    pub fn instances(&self) -> impl Iterator<Item = InstanceView> {
        self.instances
            .iter()
            .map(|(address, instance)| self.view(address, instance))
    }

    /// The upstream as a whole.
    pub fn summary(&self) -> UpstreamView {
        UpstreamView {
            numbers: self.numbers(),
            in_service: self.tally.in_service,
            passing: self.tally.passing,
            abnormal: self.abnormal.len(),
            ejected: self.ejected.len(),
            last_resort: self.last_resort,
        }
    }

    /// The request trials that may be claimed, the earliest due first.
    pub fn offers(&self) -> Vec<OfferView> {
        let offer = |address: &Address| match self.ejection(address)?.stage {
            Stage::Offered { lease, due, .. } => Some(OfferView {
                address: address.clone(),
                lease,
                due: due.at,
            }),
            Stage::Waiting | Stage::Pending { .. } | Stage::Trial(_) => None,
        };
        let mut offers: Vec<OfferView> = self.ejected.iter().filter_map(offer).collect();
        offers.sort_by(|a, b| a.due.cmp(&b.due).then_with(|| a.address.cmp(&b.address)));
        offers
    }

    fn view(&self, address: &Address, instance: &Instance) -> InstanceView {
        let mut window = instance.window.clone();
        window.advance(self.bucket);
        let share = self.share_of(instance);
        let mut calls = self.calls.clone();
        calls.advance(self.bucket);
        let upstream_calls = calls.total().calls();
        let rules = Rules {
            policy: &self.policy,
            facts: &self.facts,
            upstream_calls,
        };
        let verdict = rules.refine(rules.judge(&window, share), instance);
        let slow = instance.slow;
        let median = instance.times.clone().and_then(|mut times| {
            times.advance(self.bucket);
            times.total().median()
        });
        InstanceView {
            address: address.clone(),
            routable: instance.routable,
            disabled: self.disabled.contains_key(address),
            held: self.holds.contains_key(address),
            check_passes: instance.check_passes,
            incarnation: instance.incarnation.clone(),
            epoch: instance.epoch,
            state: state_of(instance),
            evidence: Evidence {
                slow,
                ..verdict.evidence(&self.policy, &window)
            },
            median,
            abnormal_since: instance.abnormal_since,
            suppressed: instance.suppressed,
            memory: instance.memory.map(|memory| MemoryView {
                k: memory.k,
                successes_left: memory.successes_left,
            }),
            share_bp: instance.ramp_start.map_or(FULL_SHARE, |start| {
                ramp_share(self.now.since(start), self.policy.ramp)
            }),
            ramp_start: instance.ramp_start,
            times_ejected: instance.times_ejected,
        }
    }
}

fn state_of(instance: &Instance) -> StateView {
    let Some(ejection) = &instance.ejection else {
        return StateView::In;
    };
    let at = ejection.at;
    match ejection.origin {
        Origin::Operator { forced, until } => StateView::EjectedByOperator { at, until, forced },
        Origin::Rules | Origin::Shadow => {
            let (trial, offer) = match ejection.stage {
                Stage::Waiting | Stage::Pending { .. } => (None, None),
                Stage::Offered { lease, due, .. } => (None, Some((lease, due.at))),
                Stage::Trial(trial) => (Some((trial.lease, trial.kind, trial.deadline)), None),
            };
            StateView::Ejected {
                at,
                out_before: ejection.out_before,
                observed: ejection.origin == Origin::Shadow,
                k: ejection.k,
                next_trial: ejection.next,
                good: ejection.good,
                trial,
                offer,
            }
        }
    }
}
