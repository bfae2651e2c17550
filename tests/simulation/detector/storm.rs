//! Seeded actions. One step is one input at one time.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use outrigger::clock::Timestamp;
use outrigger::endpoint::Address;
use outrigger::outlier::detector::{Effect, Outcome, OverrideKind};
use outrigger::outlier::policy::{
    ConsecutiveErrors, ExceptionType, Mode, Policy, ProbeKind, QpsScope, Slow, SlowMode,
};
use outrigger::outlier::times::Times;
use outrigger::outlier::{
    Detector, Input, Jitter, LeaseId, OutcomeClass, RoutableEndpoint, UpstreamFacts,
};

use super::model::Model;

const ADDRESSES: u16 = 9;

pub(crate) struct Storm {
    rng: Rng,
    now: u64,
    /// Time of the latest input, as the detector sees it.
    fed: u64,
    detector: Detector,
    pub(crate) model: Model,
    pub(crate) history: String,
    pub(crate) keeps_history: bool,
    /// Every lease there ever was: late answers are drawn from it.
    leases: Vec<LeaseId>,
    in_flight: Vec<LeaseId>,
    /// Some seeds hold one policy for long, others change it often.
    restless: bool,
}

impl Storm {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let policy = any_policy(&mut rng, Mode::Enforce);
        let jitter = Jitter::new(seed, rng.choice([0, 10]).unwrap());
        let facts = any_facts(&mut rng);
        let restless = rng.u8(0..3) == 0;
        let detector = Detector::new(Arc::new(policy), facts, jitter, Timestamp::ZERO);
        let model = Model::default();
        let mut storm = Self {
            rng,
            now: 0,
            fed: 0,
            detector,
            model,
            history: String::new(),
            keeps_history: false,
            leases: Vec::new(),
            in_flight: Vec::new(),
            restless,
        };
        storm.flap(true);
        storm
    }

    pub(crate) fn step(&mut self) {
        self.pass_time();
        match self.rng.u32(0..1_000) {
            0..300 => self.traffic(),
            300..450 => self.disaster(),
            450..600 => self.request(),
            600..700 => self.answer(),
            700..740 => self.late_answer(),
            740..800 => self.flap(false),
            800..860 => self.check(),
            860..896 => {
                let address = self.any_address();
                self.feed(Input::Hint { address });
            }
            896..900 => self.restart(),
            900..905 => self.reload(),
            905..925 if self.restless => self.reload(),
            925..950 => self.command(),
            _ => self.feed(Input::Tick),
        }
        self.model
            .settled(&self.detector, Timestamp::from_millis(self.fed));
    }

    fn pass_time(&mut self) {
        let step = match self.rng.u32(0..1_000) {
            0..200 => 0,
            200..700 => self.rng.u64(0..300),
            700..900 => self.rng.u64(0..3_000),
            900..995 => {
                // Exactly at a deadline: the order at one instant.
                let due = self
                    .detector
                    .next_deadline()
                    .map_or(self.now, |due| due.as_millis());
                due.saturating_sub(self.now).min(40_000)
            }
            995..998 => self.rng.u64(0..400_000),
            _ => {
                // The clock seems to go backwards: the detector must stand still.
                let back = self.now.saturating_sub(5_000);
                self.feed_at(Input::Tick, back);
                0
            }
        };
        self.now += step;
    }

    fn any_address(&mut self) -> Address {
        address(self.rng.u16(1..=ADDRESSES))
    }

    fn outcome(&mut self, address: &Address, class: OutcomeClass) {
        let age = if self.rng.u8(0..10) == 0 {
            self.rng.u64(0..20_000)
        } else {
            0
        };
        let sent_at = Timestamp::from_millis(self.now.saturating_sub(age));
        let outcome = Outcome {
            own_timeout: self.rng.u8(0..5) == 0,
            death: (self.rng.u8(0..5) == 0).then(|| self.rng.u64(0..3)),
            ..Outcome::new(address.clone(), class, sent_at)
        };
        self.feed(Input::Outcome(outcome));
    }

    fn traffic(&mut self) {
        if self.detector.policy().slow.is_some() {
            self.times();
        }
        for number in 1..=ADDRESSES {
            let count = self.rng.u32(0..40);
            let sent_at = Timestamp::from_millis(self.now);
            let outcome = Outcome {
                count,
                ..Outcome::new(address(number), OutcomeClass::Success, sent_at)
            };
            self.feed(Input::Outcome(outcome));
            if self.rng.u8(0..3) == 0 {
                let class = self
                    .rng
                    .choice([
                        OutcomeClass::NetworkError,
                        OutcomeClass::BusinessError,
                        OutcomeClass::Ignored,
                    ])
                    .unwrap();
                self.outcome(&address(number), class);
            }
        }
    }

    /// Most answer alike, one or two perhaps much later.
    fn times(&mut self) {
        let slow = [(); 2].map(|()| self.rng.u16(1..=ADDRESSES * 2));
        for number in 1..=ADDRESSES {
            let late = slow.contains(&number);
            let millis = if late { 2_000 } else { self.rng.u64(5..15) };
            let mut times = Times::default();
            times.add(Duration::from_millis(millis), self.rng.u32(0..30));
            let address = address(number);
            self.feed(Input::Times { address, times });
        }
    }

    /// Some instances fail, one hard or several a little.
    fn disaster(&mut self) {
        let victims = self.rng.choice([1, 1, 2, ADDRESSES]).unwrap();
        for _ in 0..victims {
            let address = self.any_address();
            let mixed = self.rng.bool();
            for _ in 0..self.rng.u32(1..30) {
                let class = if mixed && self.rng.u8(0..5) < 2 {
                    OutcomeClass::Success
                } else {
                    OutcomeClass::NetworkError
                };
                self.outcome(&address, class);
            }
        }
    }

    fn request(&mut self) {
        let retryable = self.rng.u8(0..4) > 0;
        self.feed(Input::RequestSeen { retryable });
        let Some(offer) = self.detector.offers().into_iter().next() else {
            return;
        };
        let latest = self
            .rng
            .bool()
            .then(|| Timestamp::from_millis(self.now + self.rng.u64(0..2_000)));
        // Several workers may claim one offer.
        for _ in 0..self.rng.u8(1..3) {
            let (address, lease) = (offer.address.clone(), offer.lease);
            self.feed(Input::TrialTaken {
                address,
                lease,
                latest,
            });
        }
    }

    /// Not every trial is answered: some are lost.
    fn answer(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let lease = self
            .in_flight
            .swap_remove(self.rng.usize(0..self.in_flight.len()));
        if self.rng.u8(0..8) == 0 {
            self.feed(Input::TrialHead { lease });
            return;
        }
        let class = self
            .rng
            .choice([
                OutcomeClass::Success,
                OutcomeClass::Success,
                OutcomeClass::NetworkError,
                OutcomeClass::NetworkError,
                OutcomeClass::BusinessError,
                OutcomeClass::Ignored,
            ])
            .unwrap();
        self.feed(Input::TrialFinished { lease, class });
    }

    fn late_answer(&mut self) {
        if let Some(lease) = self.rng.choice(self.leases.clone()) {
            let class = self
                .rng
                .choice([OutcomeClass::Success, OutcomeClass::NetworkError])
                .unwrap();
            self.feed(Input::TrialFinished { lease, class });
        }
    }

    fn flap(&mut self, everybody: bool) {
        let size = self
            .rng
            .choice([0, 1, 2, 3, 3, 6, ADDRESSES, ADDRESSES])
            .unwrap();
        let mut list = Vec::new();
        for number in 1..=ADDRESSES {
            if !everybody && self.rng.u16(0..ADDRESSES) >= size {
                continue;
            }
            let mut endpoint = RoutableEndpoint::new(address(number));
            endpoint.routable = everybody || self.rng.u8(0..6) > 0;
            endpoint.incarnation = match self.rng.u8(0..20) {
                0 => Some("b".into()),
                1..6 => Some("a".into()),
                _ => None,
            };
            list.push(endpoint);
        }
        // What was due before belongs to the old set.
        self.feed(Input::Tick);
        self.model.endpoints = list
            .iter()
            .map(|endpoint| (endpoint.address.clone(), endpoint.clone()))
            .collect();
        self.feed(Input::Endpoints(list));
    }

    fn check(&mut self) {
        let address = self.any_address();
        let passing = self.rng.u8(0..3) > 0;
        if self.detector.instance(&address).is_some() {
            self.feed(Input::Check { address, passing });
        }
    }

    fn reload(&mut self) {
        let input = match self.rng.u8(0..10) {
            0 => Input::Policy(None),
            1 => Input::Facts(any_facts(&mut self.rng)),
            2 => Input::Policy(Some(Arc::new(any_policy(&mut self.rng, Mode::Observe)))),
            3 => Input::Policy(Some(Arc::new(any_policy(&mut self.rng, Mode::Disabled)))),
            _ => Input::Policy(Some(Arc::new(any_policy(&mut self.rng, Mode::Enforce)))),
        };
        self.feed(input);
    }

    /// The process ends; what is remembered goes into the next one, with the same policy or another.
    fn restart(&mut self) {
        self.feed(Input::Tick);
        let kept = self.detector.remembered();
        let policy = match self.rng.u8(0..4) {
            0 => {
                let mode = self
                    .rng
                    .choice([Mode::Enforce, Mode::Observe, Mode::Disabled]);
                Arc::new(any_policy(&mut self.rng, mode.unwrap()))
            }
            _ => Arc::clone(self.detector.policy()),
        };
        let facts = any_facts(&mut self.rng);
        let jitter = Jitter::new(self.rng.u64(..), 10);
        self.detector = Detector::new(policy, facts, jitter, Timestamp::from_millis(self.fed));
        self.leases.clear();
        self.in_flight.clear();
        self.model.restarted();
        self.feed(Input::Seed(kept));
        self.flap(false);
    }

    fn command(&mut self) {
        let kinds = [
            OverrideKind::Eject,
            OverrideKind::Eject,
            OverrideKind::Restore,
            OverrideKind::Hold,
            OverrideKind::Release,
            OverrideKind::Disable,
            OverrideKind::Enable,
            OverrideKind::Clear,
        ];
        let kind = self.rng.choice(kinds).unwrap();
        let address = self.any_address();
        let ttl = self
            .rng
            .bool()
            .then(|| Duration::from_millis(self.rng.u64(0..60_000)));
        let force = self.rng.bool();
        self.feed(Input::Override {
            address,
            kind,
            ttl,
            force,
        });
    }

    fn feed(&mut self, input: Input) {
        self.feed_at(input, self.now);
    }

    fn feed_at(&mut self, input: Input, at: u64) {
        self.fed = self.fed.max(at);
        let now = Timestamp::from_millis(self.fed);
        let before = Arc::clone(self.detector.policy());
        let reload = matches!(input, Input::Policy(_));
        self.detector.handle(input, Timestamp::from_millis(at));
        let after = Arc::clone(self.detector.policy());
        while let Some(effect) = self.detector.poll_effect() {
            if let Effect::StartTrial(started) = &effect {
                self.leases.push(started.lease);
                self.in_flight.push(started.lease);
            }
            if self.keeps_history {
                writeln!(self.history, "{at} {effect:?}").unwrap();
            }
            // Work of the time before a reload belongs to the old policy.
            let policy = if reload && numbers_of_old(&effect, &before) {
                &before
            } else {
                &after
            };
            self.model.effect(&effect, policy, now);
        }
    }
}

fn numbers_of_old(effect: &Effect, before: &Policy) -> bool {
    let name = match effect {
        Effect::Eject(ejected) | Effect::WouldEject(ejected) => &ejected.numbers.policy,
        Effect::TrialFailed(failed) => &failed.numbers.policy,
        _ => return false,
    };
    *name == before.name
}

fn address(number: u16) -> Address {
    Address::parse(&format!("10.0.0.{number}:80")).unwrap()
}

fn any_facts(rng: &mut Rng) -> UpstreamFacts {
    UpstreamFacts {
        health_check: rng.bool(),
        tcp_check: rng.bool(),
        dubbo: rng.bool(),
        by_route: false,
        timeout_connect: Duration::from_millis(rng.u64(1..2_000)),
        timeout_attempt: rng.bool().then(|| Duration::from_millis(rng.u64(1..8_000))),
        check_timeout: Duration::from_millis(rng.u64(1..3_000)),
    }
}

fn any_policy(rng: &mut Rng, mode: Mode) -> Policy {
    Policy {
        name: format!("p{}", rng.u32(..)).into(),
        mode,
        exception_type: rng
            .choice([ExceptionType::Network, ExceptionType::NetworkAndBusiness])
            .unwrap(),
        error_rate_threshold_bp: rng.choice([1, 2_000, 5_000, 5_000, 9_000, 10_000]).unwrap(),
        lower_qps_limit_milli: rng.choice([0, 100, 1_000, 1_000, 2_500]).unwrap(),
        qps_scope: rng
            .choice([QpsScope::Instance, QpsScope::Instance, QpsScope::Service])
            .unwrap(),
        statistics_window: rng
            .choice([1_000, 10_000, 10_000, 15_000, 33_333])
            .map(Duration::from_millis)
            .unwrap(),
        instance_removal_rate_threshold_bp: rng
            .choice([0, 1_000, 5_000, 5_000, 6_700, 10_000, 10_000])
            .unwrap(),
        min_ejectable: rng.choice([0, 0, 1, 3, 20]).unwrap(),
        consecutive_errors: rng
            .choice([
                ConsecutiveErrors::Auto,
                ConsecutiveErrors::Auto,
                ConsecutiveErrors::Off,
                ConsecutiveErrors::Count(3),
            ])
            .unwrap(),
        recovery_detection_unit_time: rng
            .choice([500, 5_000, 30_000, 30_000])
            .map(Duration::from_millis)
            .unwrap(),
        max_recovery_checks: rng.choice([1, 3, 20]).unwrap(),
        probe: rng
            .choice([ProbeKind::Auto, ProbeKind::Request, ProbeKind::Active])
            .unwrap(),
        trials_to_restore: rng.choice([1, 1, 2]).unwrap(),
        flap_memory: rng.choice([0, 1, 5]).unwrap(),
        ramp: rng
            .choice([0, 10_000, 60_000])
            .map(Duration::from_millis)
            .unwrap(),
        slow: rng.bool().then(|| Slow {
            factor_centi: rng.u32(110..500),
            floor: Duration::from_millis(rng.u64(1..500)),
            min_calls: rng.u32(1..30),
            mode: rng.choice([SlowMode::Enforce, SlowMode::Observe]).unwrap(),
        }),
        ..Policy::builtin(false)
    }
}
