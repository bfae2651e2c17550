//! The lanes of an upstream whose policy judges routes (`scope: route`): what goes into their
//! detectors, what comes out, and what they and the detector of the whole upstream tell each other.

use std::sync::Arc;
use std::time::Duration;

use super::memory::touches;
use super::{Driver, JITTER_PERCENT, facts_of, report};
use crate::clock::Timestamp;
use crate::endpoint::Address;
use crate::endpoint::failures::FailureRecord;
use crate::outlier::detector::{Effect, Outcome, OverrideKind, StateView, TrialKind};
use crate::outlier::lanes::{Lane, Lanes};
use crate::outlier::policy::Scope;
use crate::outlier::{Detector, Input, Jitter, OutcomeClass, UpstreamFacts};
use crate::status::{RouteEjection, RouteStanding};

/// What requests without a lane of their own are called.
pub(super) const REST: &str = "_rest";

impl Driver {
    /// Settings that trials depend on, and whether routes are judged.
    pub(super) fn facts(&self) -> UpstreamFacts {
        UpstreamFacts {
            by_route: self.judges_routes(),
            ..facts_of(&self.service)
        }
    }

    fn judges_routes(&self) -> bool {
        self.policy.scope == Scope::Route && !self.service.rules.is_empty()
    }

    /// After a change of settings: the lanes, and what the whole upstream has to know of them.
    pub(super) fn judge_routes_or_not(&mut self) {
        if self.judges_routes() || self.lanes.is_some() {
            let facts = self.facts();
            self.detector.handle(Input::Facts(facts), self.clock.now());
            self.arrange_lanes();
        }
    }

    /// The lanes that the settings ask for. Routes that stay keep theirs.
    fn arrange_lanes(&mut self) {
        let now = self.clock.now();
        let states = self.upstream.route_states();
        if !self.judges_routes() {
            if self.lanes.take().is_some() {
                self.upstream.own_state().set_lane(0);
                states.iter().for_each(|state| state.set_lane(0));
                self.publish_due = true;
            }
            return;
        }
        let facts = self.facts();
        let seed = self.seed;
        let begins = self.lanes.is_none();
        let lanes = self
            .lanes
            .get_or_insert_with(|| Lanes::new(Jitter::new(!seed, JITTER_PERCENT)));
        lanes.handle_all(&Input::Policy(Some(Arc::clone(&self.policy))), now);
        lanes.set_facts(facts, now);
        let names: Vec<Arc<str>> = self
            .service
            .rules
            .iter()
            .map(|rule| Arc::clone(&rule.name))
            .collect();
        let new = lanes.set_routes(&names, &self.policy, facts, now);
        for member in self.members.values_mut() {
            for slot in &new {
                if let Some(ledger) = member.instance.known_ledger(*slot) {
                    drop(ledger.failures.take());
                    member.lanes.insert(*slot, ledger.successes());
                }
            }
        }
        if begins {
            self.lane_endpoints(now);
        }
        self.publish_due = true;
    }

    /// Tells the live part of each route its lane. Also before each snapshot: a route may have become
    /// live after its settings came here.
    pub(super) fn name_lanes(&self) {
        let Some(lanes) = &self.lanes else {
            return;
        };
        let slot_of = |name: Option<&Arc<str>>| {
            let mut found = lanes.iter().filter(|lane| lane.route.as_ref() == name);
            found.next().map(|lane| lane.slot)
        };
        let rest = slot_of(None).unwrap_or(0);
        self.upstream.own_state().set_lane(rest);
        for state in self.upstream.route_states() {
            let slot = state.name.as_ref().and_then(|name| slot_of(Some(name)));
            state.set_lane(slot.unwrap_or(rest));
        }
    }

    /// The registry's set for the lanes.
    pub(super) fn lane_endpoints(&mut self, now: Timestamp) {
        let list = self.routable_endpoints();
        if let Some(lanes) = &mut self.lanes {
            lanes.set_endpoints(list, now);
        }
        self.settle_lanes();
    }

    /// An input of the upstream that concerns each route too.
    pub(super) fn tell_lanes(&mut self, input: &Input, now: Timestamp) {
        if let Some(lanes) = &mut self.lanes {
            lanes.handle_all(input, now);
            self.apply_lane_effects();
        }
    }

    /// Puts an instance back that only routes have out; tells whether there was one.
    pub(super) fn restore_for_routes(&mut self, address: &Address) -> bool {
        let is_in = |detector: &Detector| {
            let standing = detector.standing(address);
            standing.is_none_or(|(state, _, _)| state == StateView::In)
        };
        if !is_in(&self.detector) {
            return false;
        }
        let lanes = self.lanes.iter().flat_map(Lanes::iter);
        let out = lanes.filter(|lane| !is_in(&lane.detector));
        let slots: Vec<u8> = out.map(|lane| lane.slot).collect();
        let now = self.clock.now();
        for slot in &slots {
            let restore = Input::Override {
                address: address.clone(),
                kind: OverrideKind::Restore,
                ttl: None,
                force: false,
            };
            self.tell_lane(*slot, restore, now);
        }
        !slots.is_empty()
    }

    /// An input for one lane alone.
    pub(super) fn tell_lane(&mut self, slot: u8, input: Input, now: Timestamp) {
        if let Some(lanes) = &mut self.lanes {
            lanes.handle(slot, input, now);
            self.apply_lane_effects();
        }
    }

    /// What workers counted by route: failures in their order, successes before `at`.
    pub(super) fn feed_lanes(&mut self, at: Timestamp, now: Timestamp) {
        let Some(mut lanes) = self.lanes.take() else {
            return;
        };
        let slots: Vec<u8> = lanes.iter().map(|lane| lane.slot).collect();
        let mut records: Vec<(Address, u8, FailureRecord)> = Vec::new();
        for (address, member) in &self.members {
            for slot in &slots {
                let Some(ledger) = member.instance.known_ledger(*slot) else {
                    continue;
                };
                let unread = ledger.failures.take();
                records.extend(unread.into_iter().map(|r| (address.clone(), *slot, r)));
            }
        }
        records.sort_by_key(|(_, _, record)| record.seen_at);
        for (address, slot, record) in records {
            let before = Some(record.successes_before);
            self.feed_lane_successes(&mut lanes, &address, slot, before, record.seen_at);
            let outcome = Outcome {
                address,
                class: record.class,
                sent_at: record.sent_at,
                own_timeout: record.own_timeout,
                death: record.death,
                kind: Some(record.kind),
                count: record.count,
            };
            lanes.handle(slot, Input::Outcome(outcome), record.seen_at);
        }
        let addresses: Vec<Address> = self.members.keys().cloned().collect();
        for address in addresses {
            for slot in &slots {
                self.feed_lane_successes(&mut lanes, &address, *slot, None, at);
            }
        }
        lanes.handle_all(&Input::Tick, now);
        self.lanes = Some(lanes);
        self.settle_lanes();
    }

    fn feed_lane_successes(
        &mut self,
        lanes: &mut Lanes,
        address: &Address,
        slot: u8,
        up_to: Option<u64>,
        at: Timestamp,
    ) {
        let Some(member) = self.members.get_mut(address) else {
            return;
        };
        let Some(ledger) = member.instance.known_ledger(slot) else {
            return;
        };
        let fed = member.lanes.entry(slot).or_default();
        let until = up_to.unwrap_or_else(|| ledger.successes());
        let Some(new) = until.checked_sub(*fed).filter(|new| *new > 0) else {
            return;
        };
        *fed = until;
        let mut outcome = Outcome::new(address.clone(), OutcomeClass::Success, at);
        outcome.count = u32::try_from(new).unwrap_or(u32::MAX);
        lanes.handle(slot, Input::Outcome(outcome), at);
    }

    /// After decisions of the whole upstream, or of a route: each is told of the other's.
    pub(super) fn settle_lanes(&mut self) {
        let now = self.clock.now();
        let Some(lanes) = &mut self.lanes else {
            return;
        };
        let moved = lanes.settle(&mut self.detector, now);
        self.apply_effects();
        for address in moved {
            self.begin_anew(&address, None, now);
            self.publish_due = true;
        }
        self.apply_lane_effects();
    }

    /// What was counted until now belongs to the time before: of one lane, or of all.
    fn begin_anew(&mut self, address: &Address, slot: Option<u8>, now: Timestamp) {
        let lanes = self.lanes.iter().flat_map(Lanes::iter);
        let slots = lanes.map(|lane| lane.slot);
        let Some(member) = self.members.get_mut(address) else {
            return;
        };
        for known in slots.filter(|known| slot.is_none_or(|slot| slot == *known)) {
            if let Some(ledger) = member.instance.known_ledger(known) {
                ledger.begin_anew(now);
                member.lanes.insert(known, ledger.successes());
            }
        }
    }

    pub(super) fn apply_lane_effects(&mut self) {
        loop {
            let Some(lanes) = &mut self.lanes else {
                return;
            };
            let Some((slot, effect)) = lanes.poll_effect() else {
                return;
            };
            let route = lanes.of(slot).and_then(|lane| lane.route.clone());
            let route = route.unwrap_or_else(|| Arc::from(REST));
            self.apply_lane_effect(slot, &effect);
            self.count_of_route(&route, &effect);
            self.count_probe(&effect);
            if touches(&effect) {
                self.touched.notify_one();
            }
            if is_told(&effect) {
                self.telling_of = Some(route);
                report::report(self, &effect);
                self.telling_of = None;
            }
        }
    }

    fn apply_lane_effect(&mut self, slot: u8, effect: &Effect) {
        let now = self.clock.now();
        if let Effect::Eject(ejected) = effect {
            self.begin_anew(&ejected.address, Some(slot), now);
            // At once: the very next pick must not see it.
            self.publish();
        } else if let Effect::Restore(restored) = effect {
            self.begin_anew(&restored.address, Some(slot), now);
            self.publish();
        } else {
            if let Effect::StartTrial(trial) = effect
                && trial.kind == TrialKind::Synthetic
            {
                let limit = trial.deadline.since(now);
                self.start_trial(trial.address.clone(), trial.lease, limit);
            }
            self.publish_due = true;
        }
    }

    fn count_of_route(&mut self, route: &Arc<str>, effect: &Effect) {
        let (ejected, mode) = if let Effect::Eject(ejected) = effect {
            (ejected, "enforced")
        } else if let Effect::WouldEject(ejected) = effect {
            (ejected, "observed")
        } else {
            return;
        };
        let policy = Arc::clone(&ejected.numbers.policy);
        let key = RouteEjection {
            route: Arc::clone(route),
            policy,
            mode,
            trigger: ejected.trigger.as_str(),
        };
        *self.decisions.route_ejections.entry(key).or_default() += 1;
    }

    /// How an instance stands for each route that it has calls of.
    pub(super) fn route_standings(&self, address: &Address) -> Vec<RouteStanding> {
        let lanes = self.lanes.iter().flat_map(Lanes::iter);
        let one = |lane: &Lane| {
            let view = lane.detector.instance(address)?;
            let evidence = &view.evidence;
            let rate = report::percent(evidence.rate_bp);
            let window = format!("{} of {} calls failed", evidence.failures, evidence.calls);
            let (state, why, next) = match view.state {
                StateView::Ejected {
                    observed,
                    k,
                    next_trial,
                    trial,
                    at,
                    out_before,
                    ..
                } => {
                    let since = report::span(self.clock.now().since(at) + out_before);
                    let (state, verb) = match (observed, trial) {
                        (true, _) => ("healthy", "would be ejected"),
                        (false, None) => ("ejected", "ejected"),
                        (false, Some(_)) => ("probing", "ejected, a probe is under way"),
                    };
                    let next = (k, next_trial);
                    (
                        state,
                        format!("{verb} since {since}, step k={k}"),
                        Some(next),
                    )
                }
                StateView::In | StateView::EjectedByOperator { .. } if evidence.calls == 0 => {
                    return None;
                }
                StateView::In | StateView::EjectedByOperator { .. } => match view.suppressed {
                    Some(cause) => {
                        let cause = cause.as_str();
                        (
                            "healthy",
                            format!("abnormal but stays ({cause}): {window}"),
                            None,
                        )
                    }
                    None => ("healthy", window, None),
                },
            };
            let at = |at| humantime::format_rfc3339_millis(self.wall(at)).to_string();
            Some(RouteStanding {
                route: lane.route.as_deref().unwrap_or(REST).to_owned(),
                state: state.to_owned(),
                why,
                requests: evidence.calls,
                errors: evidence.failures,
                error_rate_pct: rate,
                k: next.map(|(k, _)| k),
                next_probe_at: next.map(|(_, next)| at(next)),
            })
        };
        lanes.filter_map(one).collect()
    }

    /// When a lane wants to be looked at.
    pub(super) fn lane_deadline(&self) -> Option<Timestamp> {
        self.lanes.as_ref().and_then(Lanes::next_deadline)
    }

    /// Just before the earliest of the lanes' deadlines that is over, else now.
    pub(super) fn before_lane_deadline(&self, now: Timestamp) -> Timestamp {
        let due = self.lane_deadline().filter(|due| *due <= now);
        due.map_or(now, |due| due - Duration::from_nanos(1))
    }
}

/// What a route decides that is worth an event; the rest was told of the whole upstream.
const fn is_told(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Eject(_)
            | Effect::WouldEject(_)
            | Effect::Recalled { .. }
            | Effect::Restore(_)
            | Effect::WouldRestore(_)
            | Effect::Suppress(_)
            | Effect::WouldSuppress(_)
            | Effect::TrialFailed(_)
    )
}
