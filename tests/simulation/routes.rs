//! A seeded storm against an upstream that judges routes: outcomes by route, trials, endpoints that
//! come and go, checks, operators, reloads of policies and routes. What must hold for each route,
//! whatever happens: somebody stays in, the cap, one state of an instance at a time.
//!
//! `OUTRIGGER_SIM_SEED` (first seed, 1), `OUTRIGGER_SIM_SEEDS` (200), as for the detector's storm; a
//! quarter of them, since each step asks every route.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests may fail like tests"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use outrigger::clock::Timestamp;
use outrigger::endpoint::Address;
use outrigger::outlier::detector::{Effect, Ejected, Outcome, OverrideKind, Trigger};
use outrigger::outlier::lanes::Lanes;
use outrigger::outlier::policy::{Mode, Policy, Scope};
use outrigger::outlier::{
    Detector, Input, Jitter, LeaseId, OutcomeClass, RoutableEndpoint, UpstreamFacts,
};

const ADDRESSES: u16 = 7;
const STEPS: u64 = 1_200;

/// How often things happened.
type Seen = BTreeMap<&'static str, u64>;

struct Storm {
    rng: Rng,
    now: u64,
    policy: Arc<Policy>,
    facts: UpstreamFacts,
    whole: Detector,
    lanes: Lanes,
    endpoints: Vec<RoutableEndpoint>,
    in_flight: Vec<LeaseId>,
    seen: Seen,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let policy = Arc::new(any_policy(&mut rng, Mode::Enforce));
        let facts = UpstreamFacts {
            by_route: true,
            ..UpstreamFacts::default()
        };
        let jitter = Jitter::new(seed, 10);
        let zero = Timestamp::ZERO;
        let whole = Detector::new(Arc::clone(&policy), facts, jitter.clone(), zero);
        let mut storm = Self {
            rng,
            now: 0,
            policy,
            facts,
            whole,
            lanes: Lanes::new(jitter),
            endpoints: Vec::new(),
            in_flight: Vec::new(),
            seen: Seen::new(),
        };
        storm.set_routes();
        storm.flap(true);
        storm
    }

    fn step(&mut self) {
        self.now += match self.rng.u32(0..10) {
            0..3 => 0,
            3..8 => self.rng.u64(0..400),
            8 => self.rng.u64(0..5_000),
            _ => {
                let due = [self.whole.next_deadline(), self.lanes.next_deadline()];
                let due = due.into_iter().flatten().min();
                due.map_or(0, |due| due.as_millis().saturating_sub(self.now))
                    .min(40_000)
            }
        };
        match self.rng.u32(0..100) {
            0..30 => self.traffic(),
            30..50 => self.disaster(),
            50..62 => self.request(),
            62..76 => self.answer(),
            76..84 => self.flap(false),
            84..88 => self.check(),
            88..92 => self.command(),
            92..93 => self.reload(),
            93..94 => self.set_routes(),
            94..95 => self.restart(),
            _ => self.both(&Input::Tick),
        }
        self.holds();
    }

    fn any_address(&mut self) -> Address {
        address(self.rng.u16(1..=ADDRESSES))
    }

    fn any_slot(&mut self) -> u8 {
        let slots: Vec<u8> = self.lanes.iter().map(|lane| lane.slot).collect();
        self.rng.choice(slots).unwrap()
    }

    fn outcome(&mut self, slot: u8, address: Address, class: OutcomeClass, count: u32) {
        let now = Timestamp::from_millis(self.now);
        let outcome = Outcome {
            count,
            ..Outcome::new(address, class, now)
        };
        self.whole.handle(Input::Outcome(outcome.clone()), now);
        self.lanes.handle(slot, Input::Outcome(outcome), now);
        self.settle();
    }

    fn traffic(&mut self) {
        let slots: Vec<u8> = self.lanes.iter().map(|lane| lane.slot).collect();
        for slot in slots {
            let (address, count) = (self.any_address(), self.rng.u32(0..30));
            self.outcome(slot, address, OutcomeClass::Success, count);
        }
    }

    fn disaster(&mut self) {
        let (slot, address) = (self.any_slot(), self.any_address());
        let everywhere = self.rng.u8(0..4) == 0;
        for _ in 0..self.rng.u32(1..25) {
            let slot = if everywhere { self.any_slot() } else { slot };
            self.outcome(slot, address.clone(), OutcomeClass::NetworkError, 1);
        }
    }

    fn request(&mut self) {
        let now = Timestamp::from_millis(self.now);
        let slot = self.any_slot();
        let seen = Input::RequestSeen { retryable: true };
        self.both(&seen);
        let of_route = self.lanes.of(slot).map(|lane| lane.detector.offers());
        let mut offers = self.whole.offers();
        offers.extend(of_route.unwrap_or_default());
        let Some(offer) = self.rng.choice(offers) else {
            return;
        };
        let taken = Input::TrialTaken {
            address: offer.address,
            lease: offer.lease,
            latest: None,
        };
        match offer.lease.lane {
            0 => self.whole.handle(taken, now),
            lane => self.lanes.handle(lane, taken, now),
        }
        self.settle();
    }

    fn answer(&mut self) {
        let Some(lease) = self.rng.choice(self.in_flight.clone()) else {
            return;
        };
        let class = self
            .rng
            .choice([
                OutcomeClass::Success,
                OutcomeClass::Success,
                OutcomeClass::NetworkError,
                OutcomeClass::Ignored,
            ])
            .unwrap();
        let now = Timestamp::from_millis(self.now);
        let finished = Input::TrialFinished { lease, class };
        match lease.lane {
            0 => self.whole.handle(finished, now),
            lane => self.lanes.handle(lane, finished, now),
        }
        self.settle();
    }

    fn flap(&mut self, everybody: bool) {
        let most = self.rng.u16(1..=ADDRESSES);
        let mut list = Vec::new();
        for number in 1..=ADDRESSES {
            if everybody || self.rng.u16(0..ADDRESSES) < most {
                let mut endpoint = RoutableEndpoint::new(address(number));
                endpoint.routable = everybody || self.rng.u8(0..6) > 0;
                list.push(endpoint);
            }
        }
        let now = Timestamp::from_millis(self.now);
        self.both(&Input::Tick);
        self.endpoints.clone_from(&list);
        self.whole.handle(Input::Endpoints(list.clone()), now);
        self.lanes.set_endpoints(list, now);
        self.settle();
    }

    fn check(&mut self) {
        let (address, passing) = (self.any_address(), self.rng.bool());
        self.both(&Input::Check { address, passing });
    }

    fn command(&mut self) {
        let kinds = [
            OverrideKind::Eject,
            OverrideKind::Restore,
            OverrideKind::Hold,
            OverrideKind::Release,
            OverrideKind::Disable,
            OverrideKind::Enable,
            OverrideKind::Clear,
        ];
        let command = Input::Override {
            address: self.any_address(),
            kind: self.rng.choice(kinds).unwrap(),
            ttl: Some(Duration::from_millis(self.rng.u64(1..60_000))),
            force: self.rng.bool(),
        };
        let now = Timestamp::from_millis(self.now);
        self.whole.handle(command, now);
        self.settle();
    }

    fn reload(&mut self) {
        let mode = self
            .rng
            .choice([Mode::Enforce, Mode::Enforce, Mode::Observe, Mode::Disabled]);
        // What was due before belongs to the old policy.
        self.both(&Input::Tick);
        self.policy = Arc::new(any_policy(&mut self.rng, mode.unwrap()));
        self.both(&Input::Policy(Some(Arc::clone(&self.policy))));
    }

    /// Another process takes over what this one knew, under the same policy or another one.
    fn restart(&mut self) {
        self.both(&Input::Tick);
        let (known, known_of_routes) = (self.whole.remembered(), self.lanes.remembered());
        if self.rng.bool() {
            self.policy = Arc::new(any_policy(&mut self.rng, Mode::Enforce));
        }
        let now = Timestamp::from_millis(self.now);
        let (policy, jitter) = (Arc::clone(&self.policy), Jitter::new(self.rng.u64(..), 10));
        self.whole = Detector::new(policy, self.facts, jitter.clone(), now);
        self.lanes = Lanes::new(jitter);
        self.in_flight.clear();
        self.endpoints.clear();
        self.set_routes();
        self.whole.handle(Input::Seed(known), now);
        self.lanes.seed(known_of_routes, now);
        self.flap(false);
    }

    fn set_routes(&mut self) {
        let all = ["a", "b", "c", "d", "e"];
        let routes: Vec<Arc<str>> = all
            .into_iter()
            .filter(|_| self.rng.u8(0..4) > 0)
            .map(Arc::from)
            .collect();
        let now = Timestamp::from_millis(self.now);
        self.lanes
            .set_routes(&routes, &self.policy, self.facts, now);
        self.settle();
    }

    fn both(&mut self, input: &Input) {
        let now = Timestamp::from_millis(self.now);
        self.whole.handle(input.clone(), now);
        self.lanes.handle_all(input, now);
        self.settle();
    }

    fn settle(&mut self) {
        self.lanes
            .settle(&mut self.whole, Timestamp::from_millis(self.now));
        while let Some(effect) = self.whole.poll_effect() {
            self.effect(0, &effect);
        }
        while let Some((slot, effect)) = self.lanes.poll_effect() {
            self.effect(slot, &effect);
        }
    }

    fn effect(&mut self, slot: u8, effect: &Effect) {
        let what = match effect {
            Effect::Eject(ejected) => {
                self.within_cap(ejected);
                match (slot, ejected.trigger) {
                    (0, Trigger::Operator) => "by an operator",
                    (0, trigger) => {
                        assert_eq!(trigger, Trigger::Routes);
                        let half = ejected.evidence.routes.expect("the arithmetic");
                        assert!(half.bad >= 2 && half.bad * 2 >= half.judged, "{half:?}");
                        "whole"
                    }
                    (_, trigger) => {
                        assert!(trigger != Trigger::Operator && trigger != Trigger::Routes);
                        "for a route"
                    }
                }
            }
            Effect::WouldEject(_) => "would",
            Effect::StartTrial(started) => {
                assert_eq!(started.lease.lane, slot);
                self.in_flight.push(started.lease);
                "trial"
            }
            Effect::Restore(_) if slot == 0 => "whole back",
            Effect::Restore(_) => "back for a route",
            Effect::Suppress(_) => "suppressed",
            Effect::Recalled {
                next_trial: Some(_),
                ..
            } if slot > 0 => "recalled for a route",
            Effect::Recalled { .. } if slot > 0 => "no room for it any more",
            _ => return,
        };
        *self.seen.entry(what).or_default() += 1;
    }

    fn within_cap(&self, ejected: &Ejected) {
        let numbers = &ejected.numbers;
        if ejected.trigger != Trigger::Operator {
            assert!(numbers.out < numbers.cap, "{ejected:?}");
        }
        let rate = usize::try_from(self.policy.instance_removal_rate_threshold_bp).unwrap();
        let most = (numbers.n * rate / 10_000).min(numbers.n.saturating_sub(1));
        assert_eq!(numbers.cap, most, "{ejected:?}");
    }

    /// What holds between two inputs.
    fn holds(&self) {
        let routable: Vec<&Address> = self
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.routable)
            .map(|endpoint| &endpoint.address)
            .filter(|address| !self.whole.pins(address).1)
            .collect();
        let out = |detector: &Detector, address: &Address| {
            let standing = detector.standing(address).expect("it is there");
            standing.0.is_out()
        };
        for lane in self.lanes.iter() {
            let name = &lane.route;
            let stays = routable
                .iter()
                .any(|a| !out(&self.whole, a) && !out(&lane.detector, a));
            assert!(stays || routable.is_empty(), "nobody is left for {name:?}");
            for endpoint in &self.endpoints {
                let address = &endpoint.address;
                let both = out(&self.whole, address) && out(&lane.detector, address);
                assert!(!both, "{address} is out twice, whole and for {name:?}");
            }
            let numbers = lane.detector.summary().numbers;
            assert_eq!(numbers.n, routable.len(), "{name:?}");
        }
    }
}

fn address(number: u16) -> Address {
    Address::parse(&format!("10.0.0.{number}:80")).unwrap()
}

fn any_policy(rng: &mut Rng, mode: Mode) -> Policy {
    let millis =
        |rng: &mut Rng, choices: [u64; 2]| Duration::from_millis(rng.choice(choices).unwrap());
    Policy {
        name: format!("p{}", rng.u32(..)).into(),
        mode,
        scope: Scope::Route,
        instance_removal_rate_threshold_bp: rng.choice([3_000, 5_000, 10_000]).unwrap(),
        statistics_window: millis(rng, [1_000, 10_000]),
        recovery_detection_unit_time: millis(rng, [500, 30_000]),
        ramp: millis(rng, [0, 10_000]),
        ..Policy::builtin(false)
    }
}

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(default, |text| text.parse().expect(name))
}

#[test]
fn no_order_of_events_leaves_a_route_without_an_instance() {
    let first = from_env("OUTRIGGER_SIM_SEED", 1);
    let seeds = from_env("OUTRIGGER_SIM_SEEDS", 200).div_ceil(4);
    let mut seen = Seen::new();
    for seed in first..first + seeds {
        let mut storm = Storm::new(seed);
        for step in 0..STEPS {
            let place = Place { seed, step };
            storm.step();
            std::mem::forget(place);
        }
        for (what, count) in storm.seen {
            *seen.entry(what).or_default() += count;
        }
    }
    if seeds >= 50 {
        for what in [
            "for a route",
            "whole",
            "by an operator",
            "would",
            "trial",
            "whole back",
            "back for a route",
            "suppressed",
            "recalled for a route",
            "no room for it any more",
        ] {
            assert!(seen.contains_key(what), "never seen: {what} in {seen:?}");
        }
    }
}

/// Says where it happened when a check panics.
struct Place {
    seed: u64,
    step: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        eprintln!("simulation failed: seed {} step {}", self.seed, self.step);
    }
}
