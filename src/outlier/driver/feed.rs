//! What goes into the detector: outcomes the workers counted, endpoints, trial reports, checks.
//! Successes are read as deltas of counters; a failure carries how many successes came before it,
//! so the order of the two is exact.

use std::sync::Arc;
use std::time::Duration;

use super::publish::in_subset;
use super::{Checked, Driver, Member, Story};
use crate::clock::Timestamp;
use crate::config::types::SubsetFallback;
use crate::endpoint::failures::FailureRecord;
use crate::endpoint::instance::{Instance, Standing};
use crate::endpoint::{Address, Endpoint};
use crate::outlier::detector::Outcome;
use crate::outlier::{Input, OutcomeClass, RoutableEndpoint};
use crate::upstream::TrialReport;

impl Driver {
    /// Feeds everything the workers left, then lets time pass.
    pub(super) fn feed(&mut self) {
        let now = self.clock.now();
        self.feed_requests(now);
        self.feed_failures();
        // What was counted before a bucket's end belongs into that bucket, however late we come.
        let due = self.detector.next_deadline().filter(|due| *due <= now);
        let at = due.map_or(now, |due| due - Duration::from_nanos(1));
        if self.policy.slow.is_some() {
            self.feed_times(at);
        }
        self.feed_successes(at);
        self.feed_trials(now);
        self.detector.handle(Input::Tick, now);
        if self.lanes.is_some() {
            self.apply_effects();
            self.feed_lanes(self.before_lane_deadline(now), now);
        }
        if self.ramp_ends.is_some_and(|end| end <= now) {
            self.publish_due = true;
        }
    }

    fn feed_requests(&mut self, now: Timestamp) {
        let eligible = self.upstream.last_eligible();
        if eligible != self.last_eligible {
            self.last_eligible = eligible;
            let at = eligible.min(now);
            let seen = Input::RequestSeen { retryable: true };
            self.tell_lanes(&seen, at);
            self.detector.handle(seen, at);
        }
    }

    fn feed_failures(&mut self) {
        let mut records: Vec<(Address, FailureRecord)> = Vec::new();
        for (address, member) in &self.members {
            let unread = member.instance.failures.take();
            records.extend(unread.into_iter().map(|record| (address.clone(), record)));
        }
        records.sort_by_key(|(_, record)| record.seen_at);
        for (address, record) in records {
            self.feed_successes_of(&address, Some(record.successes_before), record.seen_at);
            let outcome = Outcome {
                address,
                class: record.class,
                sent_at: record.sent_at,
                own_timeout: record.own_timeout,
                death: record.death,
                kind: Some(record.kind),
                count: record.count,
            };
            self.detector
                .handle(Input::Outcome(outcome), record.seen_at);
            // An ejection takes effect before the next outcome is looked at: it makes it stale.
            self.apply_effects();
        }
    }

    /// Times of answers since the last look, before the answers: who counts them counts them in
    /// this order, too.
    fn feed_times(&mut self, at: Timestamp) {
        for (address, member) in &mut self.members {
            let Some(all) = member.instance.times() else {
                continue;
            };
            let new = match &member.timed {
                Some(earlier) if *earlier == all => continue,
                Some(earlier) => all.since(earlier),
                None => all.clone(),
            };
            member.timed = Some(all);
            let address = address.clone();
            let input = Input::Times {
                address,
                times: new,
            };
            self.detector.handle(input, at);
        }
    }

    fn feed_successes(&mut self, at: Timestamp) {
        let addresses: Vec<Address> = self
            .members
            .iter()
            .filter(|(_, member)| member.instance.successes() != member.fed)
            .map(|(address, _)| address.clone())
            .collect();
        for address in addresses {
            self.feed_successes_of(&address, None, at);
        }
    }

    /// Feeds the successes up to a count (all that were counted, if `None`).
    fn feed_successes_of(&mut self, address: &Address, up_to: Option<u64>, at: Timestamp) {
        let Some(member) = self.members.get_mut(address) else {
            return;
        };
        let until = up_to.unwrap_or_else(|| member.instance.successes());
        let Some(new) = until.checked_sub(member.fed).filter(|new| *new > 0) else {
            return;
        };
        member.fed = until;
        let mut outcome = Outcome::new(address.clone(), OutcomeClass::Success, at);
        outcome.count = u32::try_from(new).unwrap_or(u32::MAX);
        self.detector.handle(Input::Outcome(outcome), at);
    }

    fn feed_trials(&mut self, now: Timestamp) {
        for report in self.upstream.take_trials() {
            let (lease, input, at) = match report {
                TrialReport::Taken {
                    address,
                    lease,
                    latest,
                } => (
                    lease,
                    Input::TrialTaken {
                        address,
                        lease,
                        latest: Some(latest),
                    },
                    now,
                ),
                TrialReport::Head { lease, at } => (lease, Input::TrialHead { lease }, at),
                // At the instant it was seen: an answer before the deadline is in time.
                TrialReport::Finished {
                    address,
                    lease,
                    class,
                    kind,
                    at,
                } => {
                    self.note_probe(&address, kind.map(|kind| kind.as_str().to_owned()));
                    (lease, Input::TrialFinished { lease, class }, at)
                }
            };
            match lease.lane {
                0 => self.detector.handle(input, at),
                lane => self.tell_lane(lane, input, at),
            }
            self.apply_effects();
        }
    }

    /// The source has a new set, or its health was re-read.
    pub(super) fn endpoints_changed(&mut self) {
        let view = self.source.view.borrow_and_update().clone();
        let Some(set) = view.set else { return };
        if self.seen_version == Some(view.version) {
            return;
        }
        let first = self.seen_version.is_none();
        self.seen_version = Some(view.version);
        let now = self.clock.now();
        let panic = panics(&set.endpoints, set.health_unknown, self.source.heartbeat);
        let balancing = &self.service.balancing;
        let alone = balancing.subset.as_ref();
        let alone = alone.is_some_and(|subset| subset.fallback == SubsetFallback::None);
        let born = std::mem::replace(&mut self.settled, true).then_some(now);
        let mut old = std::mem::take(&mut self.members);
        let mut hints = Vec::new();
        self.order.clear();
        for endpoint in set.endpoints.iter() {
            let address = endpoint.address.clone();
            let outside = alone && !in_subset(endpoint, balancing);
            let routable = is_routable(endpoint, panic) && !outside;
            let member = match old.remove(&address) {
                Some(mut member) => {
                    if !first && re_registered(&member.endpoint, endpoint) {
                        hints.push(address.clone());
                    }
                    member.endpoint = endpoint.clone();
                    member.routable = routable;
                    member.outside = outside;
                    Some(member)
                }
                None => Instance::new(address.clone(), self.workers).map(|instance| Member {
                    endpoint: endpoint.clone(),
                    instance: Arc::new(instance),
                    routable,
                    outside,
                    born,
                    fed: 0,
                    timed: None,
                    lanes: Default::default(),
                    health: None,
                    story: Story::default(),
                }),
            };
            if let Some(member) = member
                && self.members.insert(address.clone(), member).is_none()
            {
                self.order.push(address);
            }
        }
        for gone in old.values() {
            gone.instance.set_standing(Standing::Gone, None);
            self.stop_check(gone);
        }
        drop(old);
        let list = self.routable_endpoints();
        self.recall();
        self.detector.handle(Input::Endpoints(list), now);
        if self.lanes.is_some() {
            self.apply_effects();
            self.lane_endpoints(now);
        }
        self.stand_as_decided();
        for address in hints {
            let hint = Input::Hint { address };
            self.tell_lanes(&hint, now);
            self.detector.handle(hint, now);
        }
        self.start_missing_checks();
        self.publish_due = true;
    }

    pub(super) fn routable_endpoints(&self) -> Vec<RoutableEndpoint> {
        let key = &*self.policy.incarnation_key;
        let of = |(address, member): (&Address, &Member)| RoutableEndpoint {
            address: address.clone(),
            routable: member.routable,
            incarnation: member
                .endpoint
                .incarnation
                .clone()
                .or_else(|| member.endpoint.metadata.get(key).map(|v| v.as_str().into())),
        };
        self.members.iter().map(of).collect()
    }

    /// How a probe ended, for the event of its failure.
    fn note_probe(&mut self, address: &Address, how: Option<String>) {
        if let Some(member) = self.members.get_mut(address) {
            member.story.probe = how;
        }
    }

    pub(super) fn checked(&mut self, checked: Checked) {
        let now = self.clock.now();
        match checked {
            Checked::Trial {
                address,
                lease,
                verdict,
            } => {
                let class = verdict.class;
                self.note_probe(&address, Some(verdict.message));
                let finished = Input::TrialFinished { lease, class };
                match lease.lane {
                    0 => self.detector.handle(finished, now),
                    lane => self.tell_lane(lane, finished, now),
                }
            }
            Checked::Watched {
                address,
                instance,
                heard,
            } => self.watched(address, instance, heard),
        }
    }
}

/// G6: a heart-beat registry that calls every enabled instance unhealthy is not believed; flags
/// that the registry itself disowns are not read.
fn panics(endpoints: &[Endpoint], health_unknown: bool, heartbeat: bool) -> bool {
    let mut enabled = endpoints
        .iter()
        .filter(|e| e.enabled && !e.draining)
        .peekable();
    health_unknown || (heartbeat && enabled.peek().is_some() && enabled.all(|e| !e.healthy))
}

fn is_routable(endpoint: &Endpoint, panic: bool) -> bool {
    endpoint.enabled
        && !endpoint.draining
        && !endpoint.weight.is_zero()
        && (endpoint.healthy || panic)
}

/// An explicit re-registration of an address that was there throughout.
fn re_registered(old: &Endpoint, new: &Endpoint) -> bool {
    new.registration.is_some() && old.registration.is_some() && old.registration != new.registration
}
