//! The snapshot that workers pick from, made anew after every change.

use std::time::Duration;

use super::{Driver, Member};
use crate::clock::Timestamp;
use crate::config::types::WhenAllUnhealthy;
use crate::endpoint::selectable::{Availability, Entry, Ramp, Selectable, TrialOffer};
use crate::outlier::Detector;
use crate::outlier::detector::StateView;
use crate::outlier::lanes::SLOTS;

impl Driver {
    /// Swaps in a snapshot of how things stand.
    pub(super) fn publish(&mut self) {
        self.publish_due = false;
        self.version += 1;
        let mut ends = None;
        let mut whole = self.list(&self.detector, Vec::new(), &mut ends);
        self.name_lanes();
        if let Some(lanes) = &self.lanes {
            let mut lists: Vec<Option<Box<Selectable>>> = Vec::new();
            lists.resize_with(SLOTS, || None);
            for lane in lanes.iter() {
                let offers = whole.trials.iter().map(TrialOffer::shared).collect();
                let mut list = self.list(&lane.detector, offers, &mut ends);
                list.lane = lane.slot;
                list.route.clone_from(&lane.route);
                if lane.route.is_none() {
                    whole.rest = lane.slot;
                }
                if let Some(place) = lists.get_mut(usize::from(lane.slot)) {
                    *place = Some(Box::new(list));
                }
            }
            whole.lanes = lists.into();
        }
        self.ramp_ends = ends;
        self.upstream.publish(whole);
    }

    /// What requests see that `detector` decides for: that of the whole upstream, or of a route. The
    /// offers are those of others that its requests may claim, too.
    fn list(
        &self,
        detector: &Detector,
        mut trials: Vec<TrialOffer>,
        ends: &mut Option<Timestamp>,
    ) -> Selectable {
        let now = self.clock.now();
        let ramp = self.policy.ramp;
        let mut in_service: Vec<(&Member, Option<Ramp>)> = Vec::new();
        let mut out = 0_usize;
        let mut routable = 0_usize;
        for address in &self.order {
            let Some(member) = self.members.get(address).filter(|m| m.routable) else {
                continue;
            };
            let Some((state, disabled, started)) = self.detector.standing(address) else {
                continue;
            };
            if disabled {
                continue;
            }
            routable += 1;
            let of_route = detector.standing(address);
            let out_of_route = of_route.is_some_and(|(state, _, _)| state.is_out());
            if state.is_out() || out_of_route {
                out += 1;
                continue;
            }
            // Both ramps began at most once since: the later one holds.
            let started = started.max(of_route.and_then(|(_, _, started)| started));
            let ramp = started.and_then(|start| ramp_of(start, ramp, now));
            if let Some(ramp) = ramp {
                let end = ramp.start + ramp.length;
                *ends = Some(ends.map_or(end, |other| other.min(end)));
            }
            in_service.push((member, ramp));
        }
        let any_passes = in_service.iter().any(|(member, _)| passes(member));
        let all = !any_passes && self.service.when_all_unhealthy == WhenAllUnhealthy::UseAll;
        let entries: Vec<Entry> = in_service
            .iter()
            .filter(|(member, _)| all || passes(member))
            .map(|(member, ramp)| Entry {
                instance: member.instance.clone(),
                weight: member.endpoint.weight.thousandths(),
                ramp: *ramp,
                http2: http2_hint(member),
            })
            .collect();
        let state = if self.seen_version.is_none() {
            Availability::Waiting
        } else if !entries.is_empty() {
            Availability::Ready
        } else if routable > 0 {
            Availability::AllUnhealthy { routable }
        } else {
            Availability::Empty {
                listed: self.members.len(),
            }
        };
        let unit = self.policy.recovery_detection_unit_time;
        let offers = detector.offers().into_iter().filter_map(|offer| {
            let member = self.members.get(&offer.address)?;
            let instance = member.instance.clone();
            let http2 = http2_hint(member);
            Some(TrialOffer::new(instance, http2, offer.lease, unit))
        });
        trials.extend(offers);
        let policy = self.policy.clone();
        Selectable::new(self.version, entries, state, policy, trials, out > 0)
    }
}

pub(super) fn passes(member: &Member) -> bool {
    member
        .health
        .as_ref()
        .is_none_or(|health| health.counter.passing())
}

fn ramp_of(start: Timestamp, length: Duration, now: Timestamp) -> Option<Ramp> {
    (!length.is_zero() && now.since(start) < length).then_some(Ramp { start, length })
}

/// What the registry says of the protocol (metadata `protocol`).
fn http2_hint(member: &Member) -> Option<bool> {
    match member.endpoint.metadata.get("protocol").map(String::as_str) {
        Some("grpc" | "http2" | "h2" | "h2c") => Some(true),
        Some("http1" | "http/1.1") => Some(false),
        Some(_) | None => None,
    }
}

/// What a state is called (precedence disabled, draining, unhealthy, probing, ejected, healthy).
pub(super) fn state_label(member: &Member, state: StateView, disabled: bool) -> &'static str {
    let endpoint = &member.endpoint;
    if disabled || !endpoint.enabled || endpoint.weight.is_zero() {
        return "disabled";
    }
    if endpoint.draining {
        return "draining";
    }
    if !member.routable || !member.endpoint.healthy || !passes(member) {
        return "unhealthy";
    }
    match state {
        StateView::Ejected {
            observed: false,
            trial: Some(_),
            ..
        } => "probing",
        StateView::Ejected {
            observed: false, ..
        }
        | StateView::EjectedByOperator { .. } => "ejected",
        StateView::Ejected { observed: true, .. } | StateView::In => "healthy",
    }
}
