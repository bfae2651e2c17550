//! The snapshot that workers pick from, made anew after every change.

use std::time::Duration;

use std::sync::Arc;

use super::{Driver, Member};
use crate::balancer::hashing::{Level, Owner, Table};
use crate::balancer::levels::{self, Candidate, Rank, Spread};
use crate::clock::Timestamp;
use crate::config::types::{Balancing, Prefer, WhenAllUnhealthy};
use crate::endpoint::selectable::{Availability, Entry, Ramp, Selectable, TrialOffer};
use crate::endpoint::{Address, Endpoint};
use crate::outlier::Detector;
use crate::outlier::detector::StateView;
use crate::outlier::lanes::SLOTS;

/// A routable instance.
struct Offered<'a> {
    address: &'a Address,
    member: &'a Member,
    out: bool,
    ramp: Option<Ramp>,
}

/// A list, and what the driver notes of it.
struct Listed {
    list: Selectable,
    ramps_end: Option<Timestamp>,
    preferred: Option<Rank>,
}

impl Driver {
    /// Swaps in a snapshot of how things stand.
    pub(super) fn publish(&mut self) {
        self.publish_due = false;
        self.publish_at = None;
        self.version += 1;
        let whole = self.list(&self.detector, Vec::new());
        let (mut ramp_ends, preferred) = (whole.ramps_end, whole.preferred);
        let mut whole = whole.list;
        self.name_lanes();
        if let Some(lanes) = &self.lanes {
            let mut lists: Vec<Option<Box<Selectable>>> = Vec::new();
            lists.resize_with(SLOTS, || None);
            for lane in lanes.iter() {
                let offers = whole.trials.iter().map(TrialOffer::shared).collect();
                let Listed {
                    mut list,
                    ramps_end,
                    ..
                } = self.list(&lane.detector, offers);
                ramp_ends = ramp_ends.into_iter().chain(ramps_end).min();
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
        let lists = whole.lanes.iter().flatten().map(|list| &**list);
        let levels = std::iter::once(&whole).chain(lists);
        self.tables = levels
            .flat_map(|list| list.hashing.iter())
            .map(|level| Arc::clone(&level.table))
            .collect();
        self.ramp_ends = ramp_ends;
        self.preferred = preferred;
        self.upstream.publish(whole);
    }

    /// What requests see that `detector` decides for: that of the whole upstream, or of a route. The
    /// offers are those of others that its requests may claim, too.
    fn list(&self, detector: &Detector, mut trials: Vec<TrialOffer>) -> Listed {
        let now = self.clock.now();
        let offered = self.offered(detector, now);
        let ramps = offered.iter().filter(|o| !o.out).filter_map(|o| o.ramp);
        let ramps_end = ramps.map(|ramp| ramp.start + ramp.length).min();
        let (routable, out) = (offered.len(), offered.iter().filter(|o| o.out).count());
        let any_passes = offered.iter().any(|o| !o.out && passes(o.member));
        let all = !any_passes && self.service.when_all_unhealthy == WhenAllUnhealthy::UseAll;
        let balancing = &self.service.balancing;
        let mut candidates: Vec<Candidate> = offered
            .iter()
            .map(|o| Candidate {
                weight: o.member.endpoint.weight.thousandths(),
                usable: !o.out && (all || passes(o.member)),
                in_subset: in_subset(&o.member.endpoint, balancing),
                rank: rank(&o.member.endpoint, balancing),
            })
            .collect();
        let preferred = candidates.iter().filter(|c| c.in_subset);
        let preferred = preferred.map(|c| c.rank).min();
        // Behind those that are offered: they take nothing.
        let missing = self.members.values().filter(|m| is_missing(m));
        candidates.extend(missing.map(|member| Candidate {
            weight: member.endpoint.weight.thousandths(),
            usable: false,
            in_subset: in_subset(&member.endpoint, balancing),
            rank: rank(&member.endpoint, balancing),
        }));
        let spread = levels::spread(&candidates, balancing.locality.min_percent);
        let mut entries = Vec::with_capacity(routable);
        let mut places = Vec::with_capacity(routable);
        let mut spare = vec![Vec::new(); spread.levels.len()];
        for (number, o) in offered.iter().enumerate() {
            let weight = spread.weights.get(number).copied().unwrap_or(0);
            places.push((weight > 0).then_some(entries.len()));
            let entry = |weight| Entry {
                instance: Arc::clone(&o.member.instance),
                weight,
                ramp: o.ramp,
                http2: http2_hint(o.member),
            };
            let usable = candidates.get(number).filter(|c| c.usable);
            let level = spread.level_of.get(number).copied().flatten();
            if weight > 0 {
                entries.push(entry(weight));
            } else if let (Some(usable), Some(level)) = (usable, level)
                && let Some(level) = spare.get_mut(level)
            {
                level.push(entry(usable.weight));
            }
        }
        spare.retain(|level| !level.is_empty());
        let hashing = self.hashing(&offered, &spread, &places);
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
        trials.extend(self.trial_offers(detector));
        let policy = Arc::clone(&self.policy);
        let list = Selectable::new(self.version, entries, state, policy, trials, out > 0);
        Listed {
            list: list.hashed(hashing).with_spare(spare),
            ramps_end,
            preferred,
        }
    }

    /// What is offered, in the source's order.
    fn offered(&self, detector: &Detector, now: Timestamp) -> Vec<Offered<'_>> {
        let of = |address| {
            let member = self.members.get(address).filter(|m| m.routable)?;
            let (state, disabled, started) = self.detector.standing(address)?;
            let of_route = detector.standing(address);
            let out_of_route = of_route.is_some_and(|(state, _, _)| state.is_out());
            // Both ramps began at most once since: the later one holds.
            let started = started.max(of_route.and_then(|(_, _, started)| started));
            let restored = started.and_then(|start| ramp_of(start, self.policy.ramp, now));
            let ramps = [restored, self.slow_start(member, now)];
            (!disabled).then_some(Offered {
                address,
                member,
                out: state.is_out() || out_of_route,
                ramp: ramps.into_iter().flatten().min_by_key(|r| r.share_bp(now)),
            })
        };
        self.order.iter().filter_map(of).collect()
    }

    /// The ramp of a new instance.
    pub(super) fn slow_start(&self, member: &Member, now: Timestamp) -> Option<Ramp> {
        let length = self.service.balancing.slow_start;
        member.born.and_then(|born| ramp_of(born, length, now))
    }

    /// The tables of consistent hashing, one for each level that gets traffic; those of the snapshot
    /// before where the instances are the same.
    fn hashing(
        &self,
        offered: &[Offered<'_>],
        spread: &Spread,
        places: &[Option<usize>],
    ) -> Vec<Level> {
        let algorithm = self.service.balancing.load_balancer;
        if !algorithm.hashes() {
            return Vec::new();
        }
        let mut sorted: Vec<(&Offered<'_>, Option<usize>, Option<usize>)> = offered
            .iter()
            .zip(&spread.level_of)
            .zip(places)
            .map(|((o, level), place)| (o, *level, *place))
            .collect();
        sorted.sort_unstable_by_key(|(o, ..)| o.address);
        let mut until_bp = 0;
        let mut levels = Vec::new();
        for (number, level) in spread.levels.iter().enumerate() {
            if level.share_bp == 0 {
                continue;
            }
            until_bp += level.share_bp;
            let own = sorted.iter().filter(|(_, at, _)| *at == Some(number));
            let (owners, places): (Vec<Owner>, Vec<Option<usize>>) = own
                .map(|(o, _, place)| {
                    let weight = o.member.endpoint.weight.thousandths();
                    (Owner::new(o.address, weight), *place)
                })
                .unzip();
            let known = self.tables.iter().find(|t| t.is_of(algorithm, &owners));
            let table = match known {
                Some(known) => Some(Arc::clone(known)),
                None => Table::new(algorithm, owners).map(Arc::new),
            };
            levels.extend(table.map(|table| Level::new(until_bp, table, &places)));
        }
        levels
    }

    fn trial_offers(&self, detector: &Detector) -> Vec<TrialOffer> {
        let unit = self.policy.recovery_detection_unit_time;
        let offers = detector.offers().into_iter().filter_map(|offer| {
            let member = self.members.get(&offer.address)?;
            let instance = Arc::clone(&member.instance);
            let http2 = http2_hint(member);
            Some(TrialOffer::new(instance, http2, offer.lease, unit))
        });
        offers.collect()
    }

    /// Whether it belongs to those that are asked first: of the subset, of the lowest priority there
    /// is, and near.
    pub(super) fn is_preferred(&self, member: &Member) -> bool {
        let balancing = &self.service.balancing;
        member.routable
            && in_subset(&member.endpoint, balancing)
            && self.preferred == Some(rank(&member.endpoint, balancing))
    }
}

/// Whether it has all the metadata of the subset, if there is one.
pub(super) fn in_subset(endpoint: &Endpoint, balancing: &Balancing) -> bool {
    balancing.subset.as_ref().is_none_or(|subset| {
        let mut wanted = subset.metadata.iter();
        wanted.all(|(key, value)| endpoint.metadata.get(key) == Some(value))
    })
}

/// Capacity of its level that is not there: the registry calls it unhealthy.
fn is_missing(member: &Member) -> bool {
    let endpoint = &member.endpoint;
    let wanted = endpoint.enabled && !endpoint.draining && !endpoint.weight.is_zero();
    wanted && !endpoint.healthy && !member.routable && !member.outside
}

fn rank(endpoint: &Endpoint, balancing: &Balancing) -> Rank {
    let locality = &balancing.locality;
    let own = match locality.prefer {
        Prefer::None => None,
        Prefer::Zone => endpoint.zone.as_ref(),
        Prefer::Cluster => endpoint.cluster.as_ref(),
    };
    Rank {
        priority: endpoint.priority,
        remote: locality.home.is_some() && own != locality.home.as_ref(),
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
    if member.outside {
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
