//! The snapshot that workers pick from, made anew after every change.

use std::time::Duration;

use super::{Driver, Member};
use crate::clock::Timestamp;
use crate::config::types::WhenAllUnhealthy;
use crate::endpoint::selectable::{Availability, Entry, Ramp, Selectable, TrialOffer};
use crate::outlier::detector::StateView;

impl Driver {
    /// Swaps in a snapshot of how things stand.
    pub(super) fn publish(&mut self) {
        self.publish_due = false;
        self.version += 1;
        let now = self.clock.now();
        let ramp = self.policy.ramp;
        self.ramp_ends = None;
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
            if state.is_out() {
                out += 1;
                continue;
            }
            let ramp = started.and_then(|start| ramp_of(start, ramp, now));
            if let Some(ramp) = ramp {
                let end = ramp.start + ramp.length;
                self.ramp_ends = Some(self.ramp_ends.map_or(end, |other| other.min(end)));
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
        let trials: Vec<TrialOffer> = self
            .detector
            .offers()
            .into_iter()
            .filter_map(|offer| {
                let member = self.members.get(&offer.address)?;
                let instance = member.instance.clone();
                Some(TrialOffer::new(
                    instance,
                    http2_hint(member),
                    offer.lease,
                    unit,
                ))
            })
            .collect();
        let policy = self.policy.clone();
        let snapshot = Selectable::new(self.version, entries, state, policy, trials, out > 0);
        self.upstream.publish(snapshot);
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
