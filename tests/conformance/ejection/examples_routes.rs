//! Ejection by route (`scope: route`): a bad route removes an instance for that route, half of the
//! routes bad remove it whole.

use std::sync::Arc;
use std::time::Duration;

use outrigger::clock::Timestamp;
use outrigger::outlier::detector::{
    Effect, Half, Outcome, OverrideKind, Remembered, RestoredBy, StateView, TrialKind, Trigger,
};
use outrigger::outlier::lanes::{Lanes, MOST_ROUTES, RememberedLane};
use outrigger::outlier::policy::{Mode, Policy, Scope};
use outrigger::outlier::{
    Detector, Input, Jitter, LeaseId, OutcomeClass, RoutableEndpoint, UpstreamFacts,
};

use super::world::{GOOD, NETWORK, id, ms, policy};

/// The upstream with its routes, as the driver plays them. Routes are numbers from 0; the last one is
/// the rest.
struct Routes {
    whole: Detector,
    lanes: Lanes,
    now: u64,
    log: Vec<(u64, Option<u8>, Effect)>,
}

fn by_route(removal_percent: u32) -> Policy {
    Policy {
        scope: Scope::Route,
        ..policy(removal_percent)
    }
}

fn names(routes: &[&str]) -> Vec<Arc<str>> {
    routes.iter().map(|name| Arc::from(*name)).collect()
}

impl Routes {
    fn new(policy: Policy, instances: u32, routes: &[&str]) -> Self {
        let list = (1..=instances).map(|n| RoutableEndpoint::new(id(n)));
        Self::seeded(policy, (Vec::new(), Vec::new()), list.collect(), routes)
    }

    /// A process that starts with this, and whose registry lists these at once.
    fn seeded(
        policy: Policy,
        (known, known_of_routes): (Vec<Remembered>, Vec<RememberedLane>),
        list: Vec<RoutableEndpoint>,
        routes: &[&str],
    ) -> Self {
        let policy = Arc::new(policy);
        let facts = UpstreamFacts {
            by_route: true,
            ..UpstreamFacts::default()
        };
        let whole = Detector::new(Arc::clone(&policy), facts, Jitter::none(), Timestamp::ZERO);
        let mut world = Self {
            whole,
            lanes: Lanes::new(Jitter::none()),
            now: 0,
            log: Vec::new(),
        };
        world
            .lanes
            .set_routes(&names(routes), &policy, facts, Timestamp::ZERO);
        world.whole.handle(Input::Seed(known), Timestamp::ZERO);
        world.lanes.seed(known_of_routes, Timestamp::ZERO);
        world
            .whole
            .handle(Input::Endpoints(list.clone()), Timestamp::ZERO);
        world.lanes.set_endpoints(list, Timestamp::ZERO);
        world.settle();
        world
    }

    /// The process after this one, which lists `instances`.
    fn restarted(&mut self, policy: Policy, instances: &[u32], routes: &[&str]) -> Self {
        self.whole.handle(Input::Tick, ms(self.now));
        self.lanes.handle_all(&Input::Tick, ms(self.now));
        let known = (self.whole.remembered(), self.lanes.remembered());
        let list = instances.iter().map(|n| RoutableEndpoint::new(id(*n)));
        Self::seeded(policy, known, list.collect(), routes)
    }

    /// The registry lists these from now on.
    fn list(&mut self, instances: &[u32]) {
        let list: Vec<_> = instances
            .iter()
            .map(|n| RoutableEndpoint::new(id(*n)))
            .collect();
        let now = ms(self.now);
        self.whole.handle(Input::Endpoints(list.clone()), now);
        self.lanes.set_endpoints(list, now);
        self.settle();
    }

    fn settle(&mut self) {
        self.lanes.settle(&mut self.whole, ms(self.now));
        while let Some(effect) = self.whole.poll_effect() {
            self.log.push((self.now, None, effect));
        }
        while let Some((slot, effect)) = self.lanes.poll_effect() {
            self.log.push((self.now, Some(slot), effect));
        }
    }

    fn slot(&self, route: usize) -> u8 {
        self.lanes.iter().nth(route).unwrap().slot
    }

    /// Outcomes of a route: the upstream sees them too.
    fn calls(&mut self, route: usize, number: u32, class: OutcomeClass, count: u32) {
        for _ in 0..count {
            let input = Input::Outcome(Outcome::new(id(number), class, ms(self.now)));
            self.whole.handle(input.clone(), ms(self.now));
            let slot = self.slot(route);
            self.lanes.handle(slot, input, ms(self.now));
            self.settle();
        }
    }

    fn at(&mut self, at: u64) {
        loop {
            let due = [self.whole.next_deadline(), self.lanes.next_deadline()];
            let Some(due) = due.into_iter().flatten().min().filter(|due| *due <= ms(at)) else {
                break;
            };
            self.now = due.as_millis();
            self.whole.handle(Input::Tick, due);
            self.lanes.handle_all(&Input::Tick, due);
            self.settle();
        }
        self.now = at;
    }

    /// A request of a route that may be a trial claims what its route is offered.
    fn request(&mut self, route: usize) -> Option<LeaseId> {
        let (slot, now) = (self.slot(route), ms(self.now));
        self.lanes
            .handle(slot, Input::RequestSeen { retryable: true }, now);
        self.settle();
        let offers = self.lanes.of(slot)?.detector.offers();
        let offer = offers.into_iter().next()?;
        let taken = Input::TrialTaken {
            address: offer.address,
            lease: offer.lease,
            latest: None,
        };
        self.lanes.handle(offer.lease.lane, taken, now);
        self.settle();
        Some(offer.lease)
    }

    fn answer(&mut self, lease: LeaseId, class: OutcomeClass) {
        let input = Input::TrialFinished { lease, class };
        match lease.lane {
            0 => self.whole.handle(input, ms(self.now)),
            lane => self.lanes.handle(lane, input, ms(self.now)),
        }
        self.settle();
    }

    /// Those that a route has out by itself.
    fn out(&self, route: usize) -> Vec<u32> {
        let lane = self.lanes.of(self.slot(route)).unwrap();
        (1..=20)
            .filter(|n| {
                let standing = lane.detector.standing(&id(*n));
                standing.is_some_and(|(state, _, _)| state.is_out())
            })
            .collect()
    }

    fn out_whole(&self) -> Vec<u32> {
        (1..=20)
            .filter(|n| {
                let standing = self.whole.standing(&id(*n));
                standing.is_some_and(|(state, _, _)| state.is_out())
            })
            .collect()
    }
}

const NONE: [u32; 0] = [];

#[test]
fn a_bad_route_removes_the_instance_for_that_route() {
    let mut world = Routes::new(by_route(50), 4, &["pay", "list", "find"]);
    for route in 1..=3 {
        world.calls(route, 1, GOOD, 20);
    }
    world.calls(0, 1, NETWORK, 10);
    assert_eq!(world.out(0), [1]);
    for route in 1..=3 {
        assert_eq!(world.out(route), NONE, "{route}");
    }
    assert_eq!(world.out_whole(), NONE, "one of four is not half");
    let ejected = world.log.iter().find_map(|(_, slot, effect)| match effect {
        Effect::Eject(ejected) => Some((*slot, ejected.trigger)),
        _ => None,
    });
    let slot = world.slot(0);
    assert_eq!(ejected, Some((Some(slot), Trigger::ErrorRate)));
}

#[test]
fn a_failing_route_of_most_of_the_traffic_does_not_take_the_instance_from_the_others() {
    let mut world = Routes::new(by_route(50), 4, &["pay", "list"]);
    world.calls(1, 1, GOOD, 10);
    world.calls(0, 1, NETWORK, 200);
    assert_eq!(world.out_whole(), NONE);
    assert_eq!((world.out(0), world.out(1)), (vec![1], vec![]));
}

#[test]
fn half_of_the_routes_bad_removes_it_whole() {
    let mut world = Routes::new(by_route(50), 4, &["a", "b", "c"]);
    for route in 0..=3 {
        world.calls(route, 1, GOOD, 20);
    }
    world.at(11_000);
    for route in 1..=3 {
        world.calls(route, 1, GOOD, 20);
    }
    world.calls(0, 1, NETWORK, 10);
    assert_eq!(world.out_whole(), NONE);
    world.at(22_000);
    world.calls(2, 1, GOOD, 20);
    world.calls(3, 1, GOOD, 20);
    world.calls(1, 1, NETWORK, 10);
    assert_eq!(world.out_whole(), [1], "two of four");
    let ejected = world.log.iter().find_map(|(_, slot, effect)| match effect {
        Effect::Eject(ejected) if slot.is_none() => Some(ejected),
        _ => None,
    });
    let ejected = ejected.unwrap();
    assert_eq!(ejected.trigger, Trigger::Routes);
    assert_eq!(ejected.evidence.routes, Some(Half { bad: 2, judged: 4 }));
    // What the routes had against it is over: the whole has it.
    for route in 0..=3 {
        assert_eq!(world.out(route), NONE);
    }
}

#[test]
fn routes_without_enough_calls_are_not_asked() {
    let mut world = Routes::new(by_route(50), 4, &["a", "b", "c", "d", "e"]);
    world.calls(2, 1, GOOD, 3);
    world.calls(3, 1, GOOD, 3);
    world.calls(0, 1, NETWORK, 10);
    assert_eq!(
        world.out_whole(),
        NONE,
        "one alone is a matter of that route"
    );
    world.calls(1, 1, NETWORK, 10);
    assert_eq!(world.out_whole(), [1], "two of the two with enough calls");
}

#[test]
fn after_a_return_of_the_whole_a_route_that_is_still_bad_goes_alone_with_its_k() {
    let mut world = Routes::new(by_route(50), 4, &["a", "b"]);
    world.calls(0, 1, NETWORK, 10);
    world.calls(1, 1, NETWORK, 10);
    assert_eq!(world.out_whole(), [1]);
    world.at(30_000);
    let check = match world.whole.instance(&id(1)).unwrap().state {
        StateView::Ejected { trial, .. } => trial.unwrap(),
        state => panic!("{state:?}"),
    };
    assert_eq!(check.1, TrialKind::Synthetic);
    world.answer(check.0, GOOD);
    assert_eq!(world.out_whole(), NONE);
    for route in 0..=2 {
        assert_eq!(world.out(route), NONE, "a new beginning");
    }
    world.at(45_000);
    world.calls(1, 1, GOOD, 20);
    world.calls(0, 1, NETWORK, 12);
    assert_eq!((world.out(0), world.out_whole()), (vec![1], vec![]));
    let lane = world.lanes.of(world.slot(0)).unwrap();
    let StateView::Ejected { k, .. } = lane.detector.instance(&id(1)).unwrap().state else {
        panic!("it is out");
    };
    assert_eq!(k, 2, "it counts as a failed trial");
}

#[test]
fn a_trial_of_a_route_is_a_request_of_that_route() {
    let mut world = Routes::new(by_route(50), 4, &["a", "b", "c"]);
    world.calls(1, 1, GOOD, 20);
    world.calls(2, 1, GOOD, 20);
    world.calls(0, 1, NETWORK, 10);
    assert_eq!(world.out(0), [1]);
    world.at(29_000);
    for route in 0..=3 {
        assert_eq!(world.request(route), None, "not due");
    }
    world.at(30_000);
    for route in 1..=3 {
        assert_eq!(
            world.request(route),
            None,
            "route {route} is offered nothing"
        );
    }
    let lease = world.request(0).expect("its own is");
    assert_eq!(lease.lane, world.slot(0));
    world.answer(lease, GOOD);
    assert_eq!(world.out(0), NONE);
    let by = world.log.iter().find_map(|(_, _, effect)| match effect {
        Effect::Restore(restored) => Some(restored.restored_by),
        _ => None,
    });
    assert_eq!(by, Some(RestoredBy::Probe));
}

#[test]
fn each_route_has_the_cap_and_somebody_always_stays() {
    let mut world = Routes::new(by_route(50), 4, &["a", "b", "c", "d"]);
    for number in 1..=4 {
        for route in 1..=4 {
            world.calls(route, number, GOOD, 20);
        }
        world.calls(0, number, NETWORK, 10);
    }
    assert_eq!(world.out(0).len(), 2);
    assert_eq!(world.out_whole(), NONE);
}

#[test]
fn what_the_whole_has_out_counts_for_each_route() {
    let mut world = Routes::new(by_route(50), 4, &["a", "b", "c", "d"]);
    for number in [1, 2] {
        world.whole.handle(
            Input::Override {
                address: id(number),
                kind: OverrideKind::Eject,
                ttl: Some(Duration::from_secs(600)),
                force: false,
            },
            ms(world.now),
        );
        world.settle();
    }
    assert_eq!(world.out_whole(), [1, 2]);
    world.calls(0, 3, NETWORK, 20);
    assert_eq!(world.out(0), NONE, "two of four are out already");
    let forgiven = Input::Override {
        address: id(1),
        kind: OverrideKind::Restore,
        ttl: None,
        force: false,
    };
    world.whole.handle(forgiven, ms(world.now));
    world.settle();
    world.calls(0, 3, NETWORK, 1);
    assert_eq!(world.out(0), [3]);
}

#[test]
fn one_held_by_an_operator_is_held_for_each_route() {
    let mut world = Routes::new(by_route(50), 4, &["a", "b"]);
    let hold = |kind| Input::Override {
        address: id(1),
        kind,
        ttl: None,
        force: false,
    };
    world.whole.handle(hold(OverrideKind::Hold), ms(0));
    world.settle();
    world.calls(0, 1, NETWORK, 20);
    assert_eq!(world.out(0), NONE);
    world.whole.handle(hold(OverrideKind::Release), ms(0));
    world.settle();
    world.calls(0, 1, NETWORK, 1);
    assert_eq!(world.out(0), [1]);
}

#[test]
fn observed_only_nothing_is_out_anywhere() {
    let observe = Policy {
        mode: Mode::Observe,
        ..by_route(50)
    };
    let mut world = Routes::new(observe, 4, &["a", "b"]);
    world.calls(0, 1, NETWORK, 10);
    world.calls(1, 1, NETWORK, 10);
    assert_eq!(
        (world.out(0), world.out(1), world.out_whole()),
        (vec![], vec![], vec![])
    );
    let would = |slot: Option<u8>| {
        let found = world
            .log
            .iter()
            .filter(|(_, of, effect)| *of == slot && matches!(effect, Effect::WouldEject(_)));
        found.count()
    };
    assert_eq!(would(Some(world.slot(0))), 1);
    assert_eq!(would(Some(world.slot(1))), 1);
    assert_eq!(would(None), 1);
}

#[test]
fn a_route_that_stays_keeps_its_state_at_a_reload() {
    let mut world = Routes::new(by_route(50), 4, &["a", "b", "c"]);
    world.calls(0, 1, NETWORK, 10);
    let slot = world.slot(0);
    let policy = Arc::new(by_route(50));
    let facts = UpstreamFacts {
        by_route: true,
        ..UpstreamFacts::default()
    };
    let new = world
        .lanes
        .set_routes(&names(&["new", "b", "a"]), &policy, facts, ms(0));
    assert_eq!(world.slot(2), slot);
    assert_eq!(world.out(2), [1]);
    assert_eq!(new.len(), 1);
    assert!(new[0] > 4, "the number of the route that went rests");
    assert_eq!(world.out(0), NONE);
}

#[test]
fn more_routes_than_twenty_share_the_last_lane() {
    let all: Vec<String> = (0..30).map(|n| format!("r{n}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let world = Routes::new(by_route(50), 2, &all);
    assert_eq!(world.lanes.iter().count(), MOST_ROUTES + 1);
    assert!(world.lanes.iter().last().unwrap().route.is_none());
}

#[test]
fn what_a_route_ejected_is_still_out_for_it_after_a_restart() {
    let mut world = Routes::new(by_route(50), 4, &["pay", "list", "find"]);
    for route in 1..=3 {
        world.calls(route, 1, GOOD, 20);
    }
    world.calls(0, 1, NETWORK, 10);
    world.calls(3, 2, NETWORK, 10);
    world.at(12_000);
    // Slots are dealt anew: it is known by its name.
    let mut next = world.restarted(by_route(50), &[1, 2, 3, 4], &["list", "new", "pay"]);
    assert_eq!((next.out(2), next.out(3)), (vec![1], vec![2]));
    for route in [0, 1] {
        assert_eq!(next.out(route), NONE, "{route}");
    }
    assert_eq!(next.out_whole(), NONE);
    let slot = next.slot(2);
    let told = next.log.iter().any(|(_, of, effect)| {
        let Effect::Recalled { address, .. } = effect else {
            return false;
        };
        *of == Some(slot) && *address == id(1)
    });
    assert!(told, "{:?}", next.log);
    // Its probe comes when it would have come.
    next.at(17_000);
    assert_eq!(next.request(2), None);
    next.at(18_000);
    let lease = next.request(2).expect("30 s after the ejection");
    next.answer(lease, GOOD);
    assert_eq!(next.out(2), NONE);
}

#[test]
fn the_cap_holds_for_what_routes_recall_and_somebody_stays() {
    let mut world = Routes::new(by_route(100), 4, &["a", "b", "c", "d"]);
    for number in 1..=3 {
        for route in 1..=4 {
            world.calls(route, number, GOOD, 20);
        }
        world.calls(0, number, NETWORK, 9 + number);
    }
    assert_eq!(world.out(0), [1, 2, 3]);
    let routes = ["a", "b", "c", "d"];
    let lower = world.restarted(by_route(50), &[1, 2, 3, 4], &routes);
    assert_eq!(lower.out(0).len(), 2, "the cap is lower now");
    let fewer = world.restarted(by_route(100), &[1, 2, 3], &routes);
    assert_eq!(fewer.out(0).len(), 2, "the fourth has not come");
    let alone = world.restarted(by_route(100), &[1], &routes);
    assert_eq!(alone.out(0), NONE);
}

#[test]
fn a_new_incarnation_is_clean_for_its_routes_after_a_restart() {
    let mut world = Routes::new(by_route(50), 4, &["a", "b"]);
    let known = |pod: &str| {
        let of = |n| RoutableEndpoint {
            incarnation: Some(Arc::from(pod)),
            ..RoutableEndpoint::new(id(n))
        };
        (1..=4).map(of).collect::<Vec<_>>()
    };
    world.lanes.set_endpoints(known("first"), ms(0));
    world.calls(0, 1, NETWORK, 10);
    assert_eq!(world.out(0), [1]);
    let left = || (Vec::new(), world.lanes.remembered());
    let same = Routes::seeded(by_route(50), left(), known("first"), &["a", "b"]);
    assert_eq!(same.out(0), [1]);
    let other = Routes::seeded(by_route(50), left(), known("second"), &["a", "b"]);
    assert_eq!(other.out(0), NONE);
}

#[test]
fn what_an_operator_ordered_while_it_was_away_holds_for_its_routes_when_it_is_back() {
    let mut world = Routes::new(by_route(50), 4, &["a", "b"]);
    let hold = |ttl| Input::Override {
        address: id(1),
        kind: OverrideKind::Hold,
        ttl: Some(Duration::from_secs(ttl)),
        force: false,
    };
    world.whole.handle(hold(60), ms(0));
    world.settle();
    world.list(&[2, 3, 4]);
    world.at(61_000);
    world.list(&[1, 2, 3, 4]);
    world.calls(0, 1, NETWORK, 20);
    assert_eq!(world.out(0), [1], "its hold ended meanwhile");
}

#[test]
fn one_that_was_put_back_while_it_was_away_is_judged_for_its_routes() {
    let mut world = Routes::new(by_route(50), 4, &["a", "b"]);
    world.calls(0, 1, NETWORK, 10);
    world.calls(1, 1, NETWORK, 10);
    assert_eq!(world.out_whole(), [1]);
    world.list(&[2, 3, 4]);
    // Disabled and enforced again, the whole has forgotten it.
    for mode in [Mode::Disabled, Mode::Enforce] {
        let policy = Some(Arc::new(Policy {
            mode,
            ..by_route(50)
        }));
        world.whole.handle(Input::Policy(policy.clone()), ms(0));
        world.lanes.handle_all(&Input::Policy(policy), ms(0));
        world.settle();
    }
    world.list(&[1, 2, 3, 4]);
    assert_eq!(world.out_whole(), NONE);
    world.calls(0, 1, NETWORK, 20);
    assert_eq!(world.out(0), [1]);
}

#[test]
fn what_its_routes_said_of_it_before_it_left_does_not_take_it_out_when_it_is_back() {
    // Nobody may be out: both routes are bad, and it stays.
    let mut world = Routes::new(by_route(0), 4, &["a", "b"]);
    world.calls(0, 1, NETWORK, 10);
    world.calls(1, 1, NETWORK, 10);
    assert_eq!(world.out_whole(), NONE);
    world.list(&[2, 3, 4]);
    world.at(60_000);
    let policy = Some(Arc::new(by_route(50)));
    world
        .whole
        .handle(Input::Policy(policy.clone()), ms(60_000));
    world.lanes.handle_all(&Input::Policy(policy), ms(60_000));
    world.settle();
    world.list(&[1, 2, 3, 4]);
    world.at(62_000);
    assert_eq!(world.out_whole(), NONE, "a minute later nothing is known");
}

#[test]
fn a_new_route_knows_whose_checks_fail() {
    let mut world = Routes::new(by_route(100), 3, &["a", "b"]);
    for number in [2, 3] {
        let failing = Input::Check {
            address: id(number),
            passing: false,
        };
        world.whole.handle(failing.clone(), ms(0));
        world.lanes.handle_all(&failing, ms(0));
        world.settle();
    }
    let policy = Arc::new(by_route(100));
    let facts = UpstreamFacts {
        by_route: true,
        ..UpstreamFacts::default()
    };
    let routes = names(&["new", "a", "b"]);
    world.lanes.set_routes(&routes, &policy, facts, ms(0));
    world.settle();
    world.calls(0, 1, NETWORK, 20);
    assert_eq!(world.out(0), NONE, "no other one passes");
    world.calls(1, 1, NETWORK, 20);
    assert_eq!(world.out(1), NONE, "nor for a route from before");
}
