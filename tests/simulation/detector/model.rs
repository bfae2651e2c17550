//! What must be true of the effects, whatever led to them.

use std::collections::{BTreeMap, BTreeSet};

use outrigger::clock::Timestamp;
use outrigger::endpoint::Address;
use outrigger::outlier::detector::{Effect, Ejected, OverrideKind, RestoredBy, StateView, Trigger};
use outrigger::outlier::policy::{Mode, Policy, SlowMode};
use outrigger::outlier::{Detector, LeaseId, RoutableEndpoint};

/// How often things happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    counts: BTreeMap<&'static str, u64>,
}

impl Seen {
    fn note(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        [
            "eject",
            "would_eject",
            "suppress",
            "trial",
            "hinted",
            "last_resort",
            "expired",
            "exchanged",
            "last_instance",
            "operator",
            "override_expired",
            "policy_change",
            "policy_disabled",
            "probe",
            "replaced",
            "stale",
            "correlated",
            "cap_zero",
            "refused",
            "recalled",
            "no_room",
            "slow",
            "too_slow",
            "would_be_slow",
        ]
        .iter()
        .all(|what| self.counts.contains_key(what))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) endpoints: BTreeMap<Address, RoutableEndpoint>,
    pub(crate) checks: BTreeMap<Address, bool>,
    disabled: BTreeSet<Address>,
    /// Out in fact; value: counts against the cap.
    out: BTreeMap<Address, bool>,
    /// Left while it was out; it may come back so.
    away: BTreeSet<Address>,
    trials: BTreeMap<Address, LeaseId>,
    leases: BTreeSet<LeaseId>,
    pub(crate) seen: Seen,
}

impl Model {
    /// Checks one effect, then believes it.
    pub(crate) fn effect(&mut self, effect: &Effect, policy: &Policy, now: Timestamp) {
        match effect {
            Effect::Eject(ejected) => self.eject(ejected, policy),
            Effect::WouldEject(ejected) if policy.mode == Mode::Enforce => {
                assert_eq!(ejected.trigger, Trigger::Slow);
                assert_eq!(policy.slow.map(|s| s.mode), Some(SlowMode::Observe));
                self.seen.note("would_be_slow");
            }
            Effect::WouldEject(_) => {
                assert_eq!(policy.mode, Mode::Observe);
                self.seen.note("would_eject");
            }
            Effect::Restore(restored) => {
                let was_out = self.out.remove(&restored.address).is_some();
                let came_back = self.away.remove(&restored.address);
                assert!(was_out || came_back, "{} was not out", restored.address);
                let trial = self.trials.remove(&restored.address);
                if restored.restored_by == RestoredBy::Probe {
                    assert!(trial.is_some(), "no trial of {}", restored.address);
                }
                self.seen.note(restored.restored_by.as_str());
            }
            Effect::StartTrial(started) => {
                let address = &started.address;
                assert!(self.out.contains_key(address) || self.away.contains(address));
                assert!(self.is_routable(&started.address), "{started:?}");
                assert!(self.leases.insert(started.lease), "used twice: {started:?}");
                assert!(started.deadline > now, "{started:?}");
                let before = self.trials.insert(started.address.clone(), started.lease);
                assert_eq!(before, None, "two in flight: {started:?}");
                self.seen.note("trial");
                if started.hinted {
                    self.seen.note("hinted");
                }
            }
            Effect::TrialFailed(failed) => {
                let lease = self.trials.remove(&failed.address);
                assert_eq!(lease, Some(failed.lease), "{failed:?}");
                assert!(failed.k <= policy.max_recovery_checks, "{failed:?}");
                if failed.expired {
                    self.seen.note("expired");
                }
                if let Some((time, limit)) = failed.slow {
                    assert!(time > limit && policy.slow.is_some(), "{failed:?}");
                    self.seen.note("too_slow");
                }
            }
            Effect::TrialIgnored { address, lease } | Effect::TrialPassed { address, lease } => {
                assert_eq!(self.trials.remove(address), Some(*lease));
            }
            Effect::InstanceLeft { address, ejected } => {
                self.trials.remove(address);
                if *ejected {
                    self.away.insert(address.clone());
                }
            }
            Effect::OverrideSet { address, kind } => {
                self.override_set(address, *kind);
            }
            Effect::OverrideExpired { address, kind } => {
                if *kind == OverrideKind::Disable {
                    self.disabled.remove(address);
                }
            }
            Effect::Recalled {
                address,
                k,
                next_trial,
                observed,
                ..
            } => self.recalled(address, *k, *next_trial, *observed, policy, now),
            Effect::Suppress(_) => self.seen.note("suppress"),
            Effect::LastResort { on: true } => self.seen.note("last_resort"),
            Effect::Stale { .. } => self.seen.note("stale"),
            Effect::CorrelatedFailure { .. } => self.seen.note("correlated"),
            Effect::CapZero(_) => self.seen.note("cap_zero"),
            Effect::OverrideRefused { .. } => self.seen.note("refused"),
            Effect::LastResort { on: false }
            | Effect::OfferTrial { .. }
            | Effect::WithdrawOffer { .. }
            | Effect::WouldRestore(_)
            | Effect::WouldSuppress(_) => {}
        }
    }

    /// What holds between two inputs.
    pub(crate) fn settled(&mut self, detector: &Detector, now: Timestamp) {
        // Addresses that left and came back resume: only the detector knows.
        self.out
            .retain(|address, _| self.endpoints.contains_key(address));
        for view in detector.instances() {
            assert_eq!(
                view.disabled,
                self.disabled.contains(&view.address),
                "{view:?}"
            );
            assert_eq!(view.routable, self.is_routable(&view.address), "{view:?}");
            match view.state {
                StateView::EjectedByOperator { forced, .. } => {
                    self.out.insert(view.address.clone(), !forced);
                }
                StateView::Ejected {
                    observed: false, k, ..
                } => {
                    assert!(k >= 1 && k <= detector.policy().max_recovery_checks);
                    self.out.insert(view.address.clone(), true);
                }
                StateView::In | StateView::Ejected { .. } => {
                    assert!(!self.out.contains_key(&view.address), "{view:?} is out");
                }
            }
            let waiting = matches!(
                view.state,
                StateView::Ejected {
                    observed: false,
                    ..
                }
            );
            if waiting && view.routable {
                assert!(detector.next_deadline().is_some(), "{view:?} waits forever");
            }
        }
        let routable: Vec<&Address> = self.routable().collect();
        let all_out = routable
            .iter()
            .all(|address| self.out.contains_key(*address));
        assert!(
            routable.is_empty() || !all_out,
            "all of {routable:?} are out"
        );
        assert!(detector.next_deadline().is_none_or(|due| due > now));
        for (address, lease) in &self.trials {
            let view = detector.instance(address).unwrap();
            let StateView::Ejected { trial, .. } = view.state else {
                panic!("{view:?}")
            };
            assert_eq!(trial.map(|trial| trial.0), Some(*lease));
        }
    }

    fn eject(&mut self, ejected: &Ejected, policy: &Policy) {
        let address = &ejected.address;
        let n = self.routable().count();
        let out = self
            .routable()
            .filter(|a| self.out.get(*a) == Some(&true))
            .count();
        let numbers = &ejected.numbers;
        assert_eq!((numbers.n, numbers.out), (n, out), "{ejected:?}");
        assert!(!self.out.contains_key(address), "{ejected:?}");
        let manual = ejected.trigger == Trigger::Operator;
        if !manual {
            assert_eq!(policy.mode, Mode::Enforce);
            assert!(self.is_routable(address), "{ejected:?}");
            let rate = usize::try_from(policy.instance_removal_rate_threshold_bp).unwrap();
            let min = usize::try_from(policy.min_ejectable).unwrap();
            let limit = (n * rate / 10_000).max(min).min(n.saturating_sub(1));
            assert!(out < limit, "{ejected:?}");
            assert_eq!(numbers.cap, limit);
            assert!(ejected.k >= 1 && ejected.k <= policy.max_recovery_checks);
            if ejected.trigger == Trigger::Slow {
                assert_eq!(policy.slow.map(|s| s.mode), Some(SlowMode::Enforce));
                let slow = ejected.evidence.slow.expect("the arithmetic");
                assert!(
                    slow.median > slow.limit && slow.measured_peers >= 3,
                    "{slow:?}"
                );
                self.seen.note("slow");
            }
        }
        let checks_count = self.routable().any(|a| self.passes_checks(a));
        let other = self.routable().any(|a| {
            a != address && !self.out.contains_key(a) && (self.passes_checks(a) || !checks_count)
        });
        assert!(
            other || !self.is_routable(address),
            "the last that passes: {ejected:?}"
        );
        self.out.insert(address.clone(), true);
        self.seen.note("eject");
    }

    /// An earlier process ended, another begins.
    pub(crate) fn restarted(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        *self = Self {
            seen,
            ..Self::default()
        };
    }

    fn recalled(
        &mut self,
        address: &Address,
        k: u32,
        next_trial: Option<Timestamp>,
        observed: bool,
        policy: &Policy,
        now: Timestamp,
    ) {
        assert!(k >= 1 && k <= policy.max_recovery_checks);
        let Some(next) = next_trial else {
            self.seen.note("no_room");
            return;
        };
        let unit = policy.recovery_detection_unit_time;
        assert!(next <= now + unit * k, "{address} waits too long");
        assert_eq!(observed, policy.mode == Mode::Observe);
        self.seen.note("recalled");
        if observed {
            return;
        }
        self.out.insert(address.clone(), true);
        let n = self.routable().count();
        let out = self.routable().filter(|a| self.out.get(*a) == Some(&true));
        let rate = usize::try_from(policy.instance_removal_rate_threshold_bp).unwrap();
        let min = usize::try_from(policy.min_ejectable).unwrap();
        let limit = (n * rate / 10_000).max(min).min(n.saturating_sub(1));
        let out = out.count();
        assert!(
            out <= limit || !self.is_routable(address),
            "{out} of {n} out, {limit} allowed"
        );
    }

    fn override_set(&mut self, address: &Address, kind: OverrideKind) {
        match kind {
            OverrideKind::Disable => {
                self.disabled.insert(address.clone());
            }
            OverrideKind::Enable | OverrideKind::Clear => {
                self.disabled.remove(address);
            }
            OverrideKind::Eject => {
                self.trials.remove(address);
            }
            OverrideKind::Hold | OverrideKind::Release | OverrideKind::Restore => {}
        }
    }

    fn passes_checks(&self, address: &Address) -> bool {
        self.checks.get(address).copied().unwrap_or(true)
    }

    fn is_routable(&self, address: &Address) -> bool {
        let offered = self
            .endpoints
            .get(address)
            .is_some_and(|endpoint| endpoint.routable);
        offered && !self.disabled.contains(address)
    }

    fn routable(&self) -> impl Iterator<Item = &Address> {
        self.endpoints
            .keys()
            .filter(|address| self.is_routable(address))
    }
}
