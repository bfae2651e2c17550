//! A detector with a hand on its clock. Instances are numbers; everything that happened is kept.

use std::sync::Arc;
use std::time::Duration;

use outrigger::clock::Timestamp;
use outrigger::endpoint::Address;
use outrigger::outlier::detector::{
    Cause, Effect, Ejected, InstanceView, Outcome, RestoredBy, StateView, TrialKind, TrialStarted,
};
use outrigger::outlier::policy::{ConsecutiveErrors, Policy};
use outrigger::outlier::{
    Detector, Input, Jitter, LeaseId, OutcomeClass, RoutableEndpoint, UpstreamFacts,
};

pub(super) const GOOD: OutcomeClass = OutcomeClass::Success;
pub(super) const NETWORK: OutcomeClass = OutcomeClass::NetworkError;
pub(super) const BUSINESS: OutcomeClass = OutcomeClass::BusinessError;
pub(super) const IGNORED: OutcomeClass = OutcomeClass::Ignored;

/// The built-in policy without memory of k and with this removal rate in percent.
pub(super) fn policy(removal_percent: u32) -> Policy {
    Policy {
        instance_removal_rate_threshold_bp: removal_percent * 100,
        flap_memory: 0,
        ..Policy::builtin(false)
    }
}

/// The same without the rule of sudden death.
pub(super) fn pure(removal_percent: u32) -> Policy {
    Policy {
        consecutive_errors: ConsecutiveErrors::Off,
        ..policy(removal_percent)
    }
}

pub(super) fn id(number: u32) -> Address {
    Address::parse(&format!("10.0.0.{number}:80")).unwrap()
}

pub(super) fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(super) struct World {
    pub(super) detector: Detector,
    pub(super) now: u64,
    pub(super) log: Vec<(u64, Effect)>,
    pub(super) endpoints: Vec<RoutableEndpoint>,
}

impl World {
    /// Instances 1 to `count`, at time 0.
    pub(super) fn new(policy: Policy, count: u32) -> Self {
        let check_timeout = Duration::from_secs(1);
        Self::with_facts(
            policy,
            count,
            UpstreamFacts {
                check_timeout,
                ..Default::default()
            },
        )
    }

    pub(super) fn with_facts(policy: Policy, count: u32, facts: UpstreamFacts) -> Self {
        let detector = Detector::new(Arc::new(policy), facts, Jitter::none(), Timestamp::ZERO);
        let mut world = Self {
            detector,
            now: 0,
            log: Vec::new(),
            endpoints: Vec::new(),
        };
        world.endpoints = (1..=count)
            .map(|number| RoutableEndpoint::new(id(number)))
            .collect();
        world.publish();
        world
    }

    pub(super) fn publish(&mut self) {
        self.input(Input::Endpoints(self.endpoints.clone()));
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.endpoints
            .retain(|endpoint| endpoint.address != id(number));
        self.publish();
    }

    pub(super) fn add(&mut self, number: u32, incarnation: Option<&str>) {
        let mut endpoint = RoutableEndpoint::new(id(number));
        endpoint.incarnation = incarnation.map(Into::into);
        self.endpoints.push(endpoint);
        self.publish();
    }

    pub(super) fn set_routable(&mut self, number: u32, routable: bool) {
        let endpoint = self
            .endpoints
            .iter_mut()
            .find(|e| e.address == id(number))
            .unwrap();
        endpoint.routable = routable;
        self.publish();
    }

    pub(super) fn input(&mut self, input: Input) {
        self.detector.handle(input, ms(self.now));
        while let Some(effect) = self.detector.poll_effect() {
            self.log.push((self.now, effect));
        }
    }

    /// Lets time pass up to `at`, one deadline after the other. Trials stay unanswered.
    pub(super) fn at(&mut self, at: u64) -> &mut Self {
        while let Some(due) = self.detector.next_deadline().filter(|due| *due <= ms(at)) {
            self.now = due.as_millis();
            self.input(Input::Tick);
        }
        self.now = at;
        self
    }

    pub(super) fn outcome(&mut self, number: u32, class: OutcomeClass) {
        self.outcome_sent(number, class, self.now);
    }

    pub(super) fn outcome_sent(&mut self, number: u32, class: OutcomeClass, sent: u64) {
        self.input(Input::Outcome(Outcome::new(id(number), class, ms(sent))));
    }

    pub(super) fn good(&mut self, number: u32, count: u32) {
        let outcome = Outcome {
            count,
            ..Outcome::new(id(number), GOOD, ms(self.now))
        };
        self.input(Input::Outcome(outcome));
    }

    /// Network errors, one by one.
    pub(super) fn fail(&mut self, number: u32, count: u32) {
        for _ in 0..count {
            self.outcome(number, NETWORK);
        }
    }

    pub(super) fn timeout(&mut self, number: u32) {
        let outcome = Outcome::new(id(number), NETWORK, ms(self.now));
        self.input(Input::Outcome(Outcome {
            own_timeout: true,
            ..outcome
        }));
    }

    pub(super) fn check(&mut self, number: u32, passing: bool) {
        self.input(Input::Check {
            address: id(number),
            passing,
        });
    }

    pub(super) fn reload(&mut self, policy: Policy) {
        self.input(Input::Policy(Some(Arc::new(policy))));
    }

    /// A request comes by; it takes the offer that is due, if one is.
    pub(super) fn request(&mut self) -> Option<TrialStarted> {
        self.input(Input::RequestSeen { retryable: true });
        let offer = self.detector.offers().into_iter().next()?;
        let seen = self.log.len();
        let (address, lease) = (offer.address, offer.lease);
        self.input(Input::TrialTaken {
            address,
            lease,
            latest: None,
        });
        self.starts_since(seen).into_iter().next()
    }

    pub(super) fn answer(&mut self, lease: LeaseId, class: OutcomeClass) {
        self.input(Input::TrialFinished { lease, class });
    }

    /// Answers the trial of `number` that is in flight.
    pub(super) fn answer_trial(&mut self, number: u32, class: OutcomeClass) {
        let lease = self.trial(number).expect("a trial is in flight").0;
        self.answer(lease, class);
    }

    /// Lets `trials` regular checks of `number` fail at once; gives the time of the last.
    pub(super) fn fail_trials(&mut self, number: u32, trials: u32) -> u64 {
        for _ in 0..trials {
            let next = self.next_trial(number);
            self.at(next);
            self.answer_trial(number, NETWORK);
        }
        self.now
    }

    pub(super) fn view(&self, number: u32) -> InstanceView {
        self.detector.instance(&id(number)).unwrap()
    }

    pub(super) fn is_out(&self, number: u32) -> bool {
        self.view(number).state != StateView::In
    }

    /// Numbers of those that are out.
    pub(super) fn out(&self) -> Vec<u32> {
        (1..=200)
            .filter(|n| self.detector.instance(&id(*n)).is_some() && self.is_out(*n))
            .collect()
    }

    pub(super) fn k(&self, number: u32) -> u32 {
        match self.view(number).state {
            StateView::Ejected { k, .. } => k,
            state => panic!("{number} is {state:?}"),
        }
    }

    pub(super) fn next_trial(&self, number: u32) -> u64 {
        match self.view(number).state {
            StateView::Ejected { next_trial, .. } => next_trial.as_millis(),
            state => panic!("{number} is {state:?}"),
        }
    }

    pub(super) fn trial(&self, number: u32) -> Option<(LeaseId, TrialKind, Timestamp)> {
        match self.view(number).state {
            StateView::Ejected { trial, .. } => trial,
            StateView::In | StateView::EjectedByOperator { .. } => None,
        }
    }

    pub(super) fn ejections(&self) -> Vec<&Ejected> {
        let ejection = |(_, effect): &'_ (u64, Effect)| matches!(effect, Effect::Eject(_));
        let ejected = self.log.iter().filter(|entry| ejection(entry));
        ejected
            .filter_map(|(_, effect)| match effect {
                Effect::Eject(ejected) => Some(&**ejected),
                _ => None,
            })
            .collect()
    }

    pub(super) fn causes(&self) -> Vec<Cause> {
        let cause = |(_, effect): &(u64, Effect)| match effect {
            Effect::Suppress(suppressed) => Some(suppressed.cause),
            _ => None,
        };
        self.log.iter().filter_map(cause).collect()
    }

    /// When, which and by what instances were restored.
    pub(super) fn restores(&self) -> Vec<(u64, Address, RestoredBy)> {
        let restore = |(at, effect): &(u64, Effect)| match effect {
            Effect::Restore(restored) => {
                Some((*at, restored.address.clone(), restored.restored_by))
            }
            _ => None,
        };
        self.log.iter().filter_map(restore).collect()
    }

    pub(super) fn starts_since(&self, seen: usize) -> Vec<TrialStarted> {
        let start = |(_, effect): &(u64, Effect)| match effect {
            Effect::StartTrial(started) => Some(started.clone()),
            _ => None,
        };
        self.log.iter().skip(seen).filter_map(start).collect()
    }

    pub(super) fn count(&self, wanted: impl Fn(&Effect) -> bool) -> usize {
        self.log.iter().filter(|(_, effect)| wanted(effect)).count()
    }
}
