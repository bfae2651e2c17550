//! Ejection by route (`scope: route`): beside the detector of the whole upstream one further detector
//! per route, each with windows, a cap and trials of its own. What a route ejects is left out for
//! that route alone; where half of its routes are bad an instance goes whole, by the detector of the
//! upstream. Pure. A *lane* is one route, or the rest of the requests; it keeps its number (`slot`)
//! while its route exists. Next: `outlier/detector/routes.rs`, what a detector has for this.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::detector::{
    Detector, Effect, Half, Input, OverrideKind, Remembered, RoutableEndpoint, UpstreamFacts,
};
use super::policy::Policy;
use super::schedule::Jitter;
use crate::clock::Timestamp;
use crate::endpoint::Address;

/// Routes with a lane of their own; the others share the last one.
pub const MOST_ROUTES: usize = 20;
/// Slots are below this; more than two sets of routes, so that a slot rests before it is used again.
pub const SLOTS: usize = 64;
/// So many bad routes are needed at least: one alone is a matter of that route.
const FEWEST_BAD: u32 = 2;
/// An ejection of the whole ends what its routes say, a return begins anew: so often at most.
const ROUNDS: usize = 4;

/// One route, or all requests without one of their own.
#[derive(Debug)]
pub struct Lane {
    /// Its route; `None`: the rest.
    pub route: Option<Arc<str>>,
    /// Its number, from 1; never that of another one at the same time.
    pub slot: u8,
    /// What decides.
    pub detector: Detector,
}

/// What the whole upstream says of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, none excludes another"
)]
struct Followed {
    out: bool,
    held: bool,
    disabled: bool,
    /// Its active checks fail.
    failing: bool,
}

/// What outlives the process of one lane; it knows its lane by the route, slots are dealt anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RememberedLane {
    /// Its route; `None`: the rest.
    pub route: Option<Arc<str>>,
    /// As [`Detector::remembered`] gives them.
    pub instances: Vec<Remembered>,
}

/// The lanes of one upstream.
#[derive(Debug)]
pub struct Lanes {
    lanes: Vec<Lane>,
    jitter: Jitter,
    endpoints: Vec<RoutableEndpoint>,
    followed: BTreeMap<Address, Followed>,
    halves: BTreeMap<Address, Half>,
}

impl Lanes {
    /// No lanes yet; each gets jitter of its own out of `jitter`.
    pub const fn new(jitter: Jitter) -> Self {
        Self {
            lanes: Vec::new(),
            jitter,
            endpoints: Vec::new(),
            followed: BTreeMap::new(),
            halves: BTreeMap::new(),
        }
    }

    /// Lanes for these routes, in this order, and for the rest. A route that stays keeps its state.
    /// Gives the slots of the new ones.
    pub fn set_routes(
        &mut self,
        routes: &[Arc<str>],
        policy: &Arc<Policy>,
        facts: UpstreamFacts,
        now: Timestamp,
    ) -> Vec<u8> {
        let mut old = std::mem::take(&mut self.lanes);
        let mut taken: BTreeSet<u8> = old.iter().map(|lane| lane.slot).collect();
        let mut new = Vec::new();
        let named = routes.iter().take(MOST_ROUTES).cloned().map(Some);
        for route in named.chain([None]) {
            if let Some(index) = old.iter().position(|lane| lane.route == route) {
                self.lanes.push(old.swap_remove(index));
                continue;
            }
            let mut slots = 1..u8::try_from(SLOTS).unwrap_or(u8::MAX);
            let Some(slot) = slots.find(|slot| !taken.contains(slot)) else {
                continue;
            };
            taken.insert(slot);
            new.push(slot);
            let jitter = self.jitter.fork();
            let detector = Detector::new(Arc::clone(policy), lane_facts(facts), jitter, now);
            self.lanes.push(Lane {
                route,
                slot,
                detector: detector.for_lane(slot),
            });
        }
        for slot in &new {
            self.introduce(*slot, now);
        }
        new
    }

    /// What the others know already.
    fn introduce(&mut self, slot: u8, now: Timestamp) {
        let endpoints = Input::Endpoints(self.offered());
        self.handle(slot, endpoints, now);
        for (address, followed) in self.followed.clone() {
            for input in differences(&address, Followed::default(), followed) {
                self.handle(slot, input, now);
            }
        }
    }

    /// An input for one lane; an unknown slot is none.
    pub fn handle(&mut self, slot: u8, input: Input, now: Timestamp) {
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.slot == slot) {
            lane.detector.handle(input, now);
        }
    }

    /// An input for all of them.
    pub fn handle_all(&mut self, input: &Input, now: Timestamp) {
        for lane in &mut self.lanes {
            lane.detector.handle(input.clone(), now);
        }
    }

    /// Changed settings of the upstream.
    pub fn set_facts(&mut self, facts: UpstreamFacts, now: Timestamp) {
        self.handle_all(&Input::Facts(lane_facts(facts)), now);
    }

    /// The whole new set of the registry.
    pub fn set_endpoints(&mut self, endpoints: Vec<RoutableEndpoint>, now: Timestamp) {
        let listed: BTreeSet<&Address> = endpoints.iter().map(|e| &e.address).collect();
        // One that leaves is followed no longer: what the upstream has against it, or an operator ordered,
        // may end while it is away.
        let followed = std::mem::take(&mut self.followed).into_iter();
        let (stay, leave) = followed.partition(|(address, _)| listed.contains(address));
        self.followed = stay;
        let leave: BTreeMap<Address, Followed> = leave;
        for (address, followed) in leave {
            // A check is no hint for one that leaves.
            let failing = followed.failing;
            let after = Followed {
                failing,
                ..Followed::default()
            };
            for input in differences(&address, followed, after) {
                self.handle_all(&input, now);
            }
        }
        self.endpoints = endpoints;
        let offered = Input::Endpoints(self.offered());
        self.handle_all(&offered, now);
    }

    /// What another process should know of the lanes that know something.
    pub fn remembered(&self) -> Vec<RememberedLane> {
        let one = |lane: &Lane| RememberedLane {
            route: lane.route.clone(),
            instances: lane.detector.remembered(),
        };
        let lanes = self.lanes.iter().map(one);
        lanes.filter(|lane| !lane.instances.is_empty()).collect()
    }

    /// Takes over what an earlier process knew, before the first set. What it knew of routes that are
    /// no more is dropped.
    pub fn seed(&mut self, all: Vec<RememberedLane>, now: Timestamp) {
        for RememberedLane { route, instances } in all {
            if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.route == route) {
                lane.detector.handle(Input::Seed(instances), now);
            }
        }
    }

    /// Lets the upstream as a whole and its routes tell each other what they decided, until nobody has
    /// anything to tell: after each input of either. Gives those that went out whole or came back; the
    /// effects wait in the detectors.
    pub fn settle(&mut self, whole: &mut Detector, now: Timestamp) -> Vec<Address> {
        let mut moved = self.follow(whole, now);
        for _ in 0..ROUNDS {
            let inputs = self.turned_halves();
            if inputs.is_empty() {
                break;
            }
            for input in inputs {
                whole.handle(input, now);
            }
            moved.extend(self.follow(whole, now));
        }
        moved
    }

    /// Takes over what the upstream as a whole decided, and operators ordered there.
    fn follow(&mut self, whole: &Detector, now: Timestamp) -> Vec<Address> {
        let mut disabled = false;
        let (mut inputs, mut moved) = (Vec::new(), Vec::new());
        for endpoint in &self.endpoints {
            let address = &endpoint.address;
            let Some((state, is_disabled, _)) = whole.standing(address) else {
                continue;
            };
            let after = Followed {
                out: state != super::detector::StateView::In,
                held: whole.pins(address).0,
                disabled: is_disabled,
                failing: !whole.check_passes(address),
            };
            let before = self.followed.insert(address.clone(), after);
            let before = before.unwrap_or_default();
            disabled |= before.disabled != after.disabled;
            if before.out != after.out {
                moved.push(address.clone());
            }
            inputs.extend(differences(address, before, after));
        }
        if disabled {
            let offered = Input::Endpoints(self.offered());
            self.handle_all(&offered, now);
        }
        for input in inputs {
            self.handle_all(&input, now);
        }
        moved
    }

    /// What the upstream as a whole has to be told: of which instances half of the routes turned
    /// bad, or are no longer.
    fn turned_halves(&mut self) -> Vec<Input> {
        let suspects = self.lanes.iter().flat_map(|lane| lane.detector.suspects());
        let suspects: BTreeSet<Address> = suspects.cloned().collect();
        let halves: BTreeMap<Address, Half> = suspects
            .into_iter()
            .filter_map(|address| {
                let half = self.half(&address);
                (half.bad >= FEWEST_BAD && half.bad * 2 >= half.judged).then_some((address, half))
            })
            .collect();
        let ended = self
            .halves
            .keys()
            .filter(|address| !halves.contains_key(*address));
        let ended = ended.map(|address| (address.clone(), None));
        let begun = halves
            .iter()
            .filter(|(address, half)| self.halves.get(*address) != Some(*half));
        let begun = begun.map(|(address, half)| (address.clone(), Some(*half)));
        let inputs = ended
            .chain(begun)
            .map(|(address, half)| Input::Routes { address, half })
            .collect();
        self.halves = halves;
        inputs
    }

    /// How many routes with enough calls there are for an instance, and how many of them are bad.
    pub fn half(&self, address: &Address) -> Half {
        let mut half = Half { bad: 0, judged: 0 };
        for lane in &self.lanes {
            let Some(bad) = lane.detector.opinion(address) else {
                continue;
            };
            half.judged += 1;
            half.bad += u32::from(bad);
        }
        half
    }

    /// The next decision with the slot it belongs to; `None` when all are drained.
    pub fn poll_effect(&mut self) -> Option<(u8, Effect)> {
        self.lanes
            .iter_mut()
            .find_map(|lane| Some((lane.slot, lane.detector.poll_effect()?)))
    }

    /// When a tick is due at the latest.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let deadlines = self.lanes.iter().map(|lane| lane.detector.next_deadline());
        deadlines.flatten().min()
    }

    /// All of them, in the order of the routes; the rest is the last.
    pub fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter()
    }

    /// The lane of a slot.
    pub fn of(&self, slot: u8) -> Option<&Lane> {
        self.lanes.iter().find(|lane| lane.slot == slot)
    }

    fn offered(&self) -> Vec<RoutableEndpoint> {
        let one = |endpoint: &RoutableEndpoint| {
            let followed = self.followed.get(&endpoint.address);
            let mut endpoint = endpoint.clone();
            endpoint.routable &= !followed.is_some_and(|followed| followed.disabled);
            endpoint
        };
        self.endpoints.iter().map(one).collect()
    }
}

/// A check of the whole instance says little of one route: as for a TCP connect, a return that it
/// alone decides leaves k remembered, and it does not come before a request.
const fn lane_facts(facts: UpstreamFacts) -> UpstreamFacts {
    UpstreamFacts {
        health_check: false,
        tcp_check: true,
        by_route: false,
        ..facts
    }
}

fn differences(address: &Address, before: Followed, after: Followed) -> Vec<Input> {
    let mut inputs = Vec::new();
    if before.held != after.held {
        let kind = if after.held {
            OverrideKind::Hold
        } else {
            OverrideKind::Release
        };
        inputs.push(Input::Override {
            address: address.clone(),
            kind,
            ttl: None,
            force: false,
        });
    }
    if before.failing != after.failing {
        inputs.push(Input::Check {
            address: address.clone(),
            passing: !after.failing,
        });
    }
    if before.out != after.out {
        inputs.push(Input::Taken {
            address: address.clone(),
            out: after.out,
        });
    }
    inputs
}
