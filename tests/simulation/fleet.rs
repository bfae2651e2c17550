//! A fleet of sidecars that all eject one instance within a second: what the instance sees of it,
//! second by second, until everybody is back at full traffic. The detector, the snapshot with its
//! ramps and the balancer are those of production; only the network is made up. A sidecar knows
//! nothing of the others, so they are played one after the other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use outrigger::balancer::{self, PickContext, RoundRobinState};
use outrigger::clock::Timestamp;
use outrigger::config::types::LoadBalancer;
use outrigger::endpoint::instance::{Instance, Standing};
use outrigger::endpoint::selectable::{Availability, Entry, Ramp, Selectable};
use outrigger::endpoint::{Address, Weight};
use outrigger::outlier::detector::{Effect, Outcome, TrialKind};
use outrigger::outlier::policy::Policy;
use outrigger::outlier::{
    Detector, Input, Jitter, LeaseId, OutcomeClass, RoutableEndpoint, UpstreamFacts,
};

/// The instance fails from here on; within this second everybody ejects it.
pub(crate) const BAD: u64 = 20;
/// Failures that suffice for the rule of sudden death, whatever the traffic.
const ENOUGH: u32 = 10;

/// One fleet.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    pub(crate) sidecars: u32,
    /// Instances of the upstream.
    pub(crate) instances: u16,
    /// Requests in a second of one sidecar to each instance, thousandths.
    pub(crate) rate_milli: u32,
    /// Mean time of an answer.
    pub(crate) latency: Duration,
    /// The second in which the instance is good again.
    pub(crate) repaired: u64,
    /// Jitter of the schedule: up to so many per cent are added.
    pub(crate) jitter: u32,
    pub(crate) balancer: LoadBalancer,
    pub(crate) seed: u64,
}

/// What the instance saw of all of them.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Trials by second.
    pub(crate) trials: Vec<u32>,
    /// Requests and checks by second, trials too.
    pub(crate) load: Vec<u32>,
    /// First and last ejection.
    pub(crate) ejected: (Timestamp, Timestamp),
    /// First and last return.
    pub(crate) back: (Timestamp, Timestamp),
    /// How many returned.
    pub(crate) returned: u32,
    /// Requests in a second that are its share when nothing is wrong.
    pub(crate) fair: u32,
}

impl Seen {
    /// The busiest second of trials.
    pub(crate) fn most_trials(&self) -> u32 {
        self.trials.iter().copied().max().unwrap_or(0)
    }

    /// The busiest second from the first return to the end of the last ramp, against the fair share.
    pub(crate) fn peak(&self) -> f64 {
        let to = self.back.1 + Policy::builtin(false).ramp + Duration::from_secs(1);
        let seconds = [self.back.0, to].map(|at| usize::try_from(second_of(at)).unwrap_or(0));
        let [from, to] = seconds;
        let during = self.load.get(from..to).unwrap_or_default();
        f64::from(during.iter().copied().max().unwrap_or(0)) / f64::from(self.fair)
    }
}

/// Plays all of them until the last one has been back for a while.
pub(crate) fn play(fleet: &Fleet) -> Seen {
    let rate = u64::from(fleet.sidecars) * u64::from(fleet.rate_milli) / 1_000;
    let mut seen = Seen {
        trials: Vec::new(),
        load: Vec::new(),
        ejected: (Timestamp::MAX, Timestamp::ZERO),
        back: (Timestamp::MAX, Timestamp::ZERO),
        returned: 0,
        fair: u32::try_from(rate).unwrap_or(u32::MAX),
    };
    let end = fleet.end();
    seen.trials.resize(end, 0);
    seen.load.resize(end, 0);
    let mut random = fastrand::Rng::with_seed(fleet.seed);
    for _ in 0..fleet.sidecars {
        Sidecar::new(fleet, random.fork()).play(&mut seen);
    }
    seen
}

impl Fleet {
    /// The trial that finds it good is the first of the published schedule after the repair: after
    /// that come the jitter, the ramp and a few quiet seconds.
    fn end(&self) -> usize {
        let unit = 30;
        let (mut at, mut k) = (BAD + unit, 1);
        while at < self.repaired {
            k += 1;
            at += k * unit;
        }
        let late = (at - BAD) / 10;
        usize::try_from(at + late + 20).unwrap_or(0)
    }
}

/// What happens in one sidecar. Ordered by time alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// An answer of an instance.
    Answer { instance: usize, sent_at: Timestamp },
    /// Everything in flight to the instance breaks.
    Breaks,
    /// The answer of a trial.
    Trial(LeaseId),
    /// A request of the app.
    Request,
}

/// One sidecar. Its clock is the fleet's: processes that start at other moments differ in nothing
/// but the place of their buckets, which the moment of the failure draws too.
struct Sidecar<'a> {
    fleet: &'a Fleet,
    random: fastrand::Rng,
    policy: Arc<Policy>,
    detector: Detector,
    instances: Vec<Arc<Instance>>,
    /// Successes already fed, as the driver does it.
    fed: Vec<u64>,
    selectable: Selectable,
    version: u64,
    ramp_ends: Option<Timestamp>,
    place: RoundRobinState,
    coming: BinaryHeap<Reverse<(Timestamp, u64, Happening)>>,
    number: u64,
    now: Timestamp,
}

impl<'a> Sidecar<'a> {
    fn new(fleet: &'a Fleet, mut random: fastrand::Rng) -> Self {
        let policy = Arc::new(Policy::builtin(false));
        let jitter = Jitter::new(random.u64(..), fleet.jitter);
        let addresses: Vec<Address> = (1..=fleet.instances)
            .filter_map(|port| Address::from_parts("10.0.0.1", port).ok())
            .collect();
        let instances: Vec<Arc<Instance>> = addresses
            .iter()
            .filter_map(|address| Instance::new(address.clone(), 1))
            .map(Arc::new)
            .collect();
        let mut detector = Detector::new(
            Arc::clone(&policy),
            UpstreamFacts::default(),
            jitter,
            Timestamp::ZERO,
        );
        let endpoints = addresses.into_iter().map(RoutableEndpoint::new).collect();
        detector.handle(Input::Endpoints(endpoints), Timestamp::ZERO);
        Self {
            fleet,
            random,
            selectable: Selectable::waiting(Arc::clone(&policy)),
            policy,
            detector,
            fed: vec![0; instances.len()],
            instances,
            version: 0,
            ramp_ends: None,
            place: RoundRobinState::default(),
            coming: BinaryHeap::new(),
            number: 0,
            now: Timestamp::ZERO,
        }
    }

    fn play(mut self, seen: &mut Seen) {
        let end = Timestamp::from_millis(u64::try_from(seen.load.len()).unwrap_or(0) * 1_000);
        self.publish();
        let breaks = Duration::from_secs_f64(self.random.f64()) + Duration::from_secs(BAD);
        self.soon(Timestamp::ZERO + breaks, Happening::Breaks);
        let first = self.drawn(self.gap());
        self.soon(first, Happening::Request);
        loop {
            let happens = self.coming.peek().map(|Reverse((at, ..))| *at);
            let wakes = self.next_wake();
            let at = happens.map_or(wakes, |at| at.min(wakes));
            if at >= end {
                return;
            }
            self.now = at;
            if wakes <= at {
                self.feed(seen);
            } else if let Some(Reverse((_, _, happening))) = self.coming.pop() {
                self.happen(happening, seen);
            }
        }
    }

    /// As the driver: the detector's deadline, each bucket's end, the end of a ramp.
    fn next_wake(&self) -> Timestamp {
        let bucket = self.policy.statistics_window.as_millis() / 10;
        let bucket = u64::try_from(bucket).unwrap_or(1).max(1);
        let boundary = Timestamp::from_millis((self.now.as_millis() / bucket + 1) * bucket);
        let others = [self.detector.next_deadline(), self.ramp_ends];
        others.into_iter().flatten().fold(boundary, Ord::min)
    }

    /// Successes first, then time passes.
    fn feed(&mut self, seen: &mut Seen) {
        for (instance, fed) in self.instances.iter().zip(&mut self.fed) {
            let all = instance.successes();
            let mut outcome =
                Outcome::new(instance.address.clone(), OutcomeClass::Success, self.now);
            outcome.count = u32::try_from(all - *fed).unwrap_or(u32::MAX);
            *fed = all;
            if outcome.count > 0 {
                let just_before = self.now - Duration::from_nanos(1);
                self.detector.handle(Input::Outcome(outcome), just_before);
            }
        }
        self.handle(Input::Tick, seen);
        if self.ramp_ends.is_some_and(|end| end <= self.now) {
            self.publish();
        }
    }

    fn happen(&mut self, happening: Happening, seen: &mut Seen) {
        match happening {
            Happening::Answer { instance, sent_at } => {
                if let Some(instance) = self.instances.get(instance) {
                    instance.leave(0);
                    instance.count(0, OutcomeClass::Success, sent_at);
                }
            }
            Happening::Breaks => {
                let Some(address) = self.instances.first().map(|i| i.address.clone()) else {
                    return;
                };
                let mut outcome = Outcome::new(address, OutcomeClass::NetworkError, self.now);
                outcome.count = ENOUGH;
                self.handle(Input::Outcome(outcome), seen);
            }
            Happening::Trial(lease) => {
                let class = if self.is_bad() {
                    OutcomeClass::NetworkError
                } else {
                    OutcomeClass::Success
                };
                self.handle(Input::TrialFinished { lease, class }, seen);
            }
            Happening::Request => {
                let next = self.drawn(self.gap());
                self.soon(next, Happening::Request);
                self.request(seen);
            }
        }
    }

    /// A trial on offer if there is one, else the balancer's pick.
    fn request(&mut self, seen: &mut Seen) {
        if self.selectable.watch_requests {
            self.handle(Input::RequestSeen { retryable: true }, seen);
            if let Some(offer) = self.detector.offers().into_iter().next() {
                let taken = Input::TrialTaken {
                    address: offer.address,
                    lease: offer.lease,
                    latest: None,
                };
                return self.handle(taken, seen);
            }
        }
        let context = PickContext {
            now: self.now,
            tried: &[],
            key: None,
        };
        let picked = balancer::pick(
            self.fleet.balancer,
            &self.selectable,
            &context,
            &mut self.random,
            &mut self.place,
        );
        let Some(id) = picked.map(|entry| entry.instance.id) else {
            return;
        };
        let Some(index) = self.instances.iter().position(|i| i.id == id) else {
            return;
        };
        if index == 0 {
            count(&mut seen.load, self.now);
        }
        if let Some(instance) = self.instances.get(index) {
            instance.enter(0);
        }
        let answered = self.drawn(self.fleet.latency);
        let sent_at = self.now;
        self.soon(
            answered,
            Happening::Answer {
                instance: index,
                sent_at,
            },
        );
    }

    fn handle(&mut self, input: Input, seen: &mut Seen) {
        self.detector.handle(input, self.now);
        let mut changed = false;
        while let Some(effect) = self.detector.poll_effect() {
            if let Effect::Eject(_) = effect {
                note(&mut seen.ejected, self.now);
                self.stand(Standing::Ejected);
            } else if let Effect::Restore(_) = effect {
                note(&mut seen.back, self.now);
                seen.returned += 1;
                self.stand(Standing::Serving);
            } else if let Effect::StartTrial(trial) = effect {
                count(&mut seen.trials, self.now);
                count(&mut seen.load, self.now);
                debug_assert_eq!(trial.kind, TrialKind::Request, "there is traffic");
                let answered = self.drawn(self.fleet.latency);
                self.soon(answered, Happening::Trial(trial.lease));
            }
            changed = true;
        }
        if changed {
            self.publish();
        }
    }

    fn stand(&mut self, standing: Standing) {
        if let (Some(instance), Some(fed)) = (self.instances.first(), self.fed.first_mut()) {
            instance.set_standing(standing, Some(self.now));
            *fed = instance.successes();
        }
    }

    /// The snapshot, as the driver makes it.
    fn publish(&mut self) {
        self.version += 1;
        self.ramp_ends = None;
        let length = self.policy.ramp;
        let mut entries = Vec::new();
        let mut out = false;
        for instance in &self.instances {
            let Some((state, _, started)) = self.detector.standing(&instance.address) else {
                continue;
            };
            if state.is_out() {
                out = true;
                continue;
            }
            let ramp = started.map(|start| Ramp { start, length });
            let ramp = ramp.filter(|ramp| self.now.since(ramp.start) < length);
            if let Some(ramp) = ramp {
                self.ramp_ends = Some(ramp.start + length);
            }
            entries.push(Entry {
                instance: Arc::clone(instance),
                weight: Weight::ONE.thousandths(),
                ramp,
                http2: None,
            });
        }
        let policy = Arc::clone(&self.policy);
        let state = Availability::Ready;
        self.selectable = Selectable::new(self.version, entries, state, policy, Vec::new(), out);
    }

    fn is_bad(&self) -> bool {
        (BAD..self.fleet.repaired).contains(&second_of(self.now))
    }

    /// Between two requests of the app.
    fn gap(&self) -> Duration {
        let rate = f64::from(self.fleet.rate_milli) / 1_000.0 * f64::from(self.fleet.instances);
        Duration::from_secs_f64(1.0 / rate)
    }

    /// A moment from now on, with this mean.
    fn drawn(&mut self, mean: Duration) -> Timestamp {
        let draw = -(1.0 - self.random.f64()).ln();
        self.now + mean.mul_f64(draw) + Duration::from_nanos(1)
    }

    fn soon(&mut self, at: Timestamp, happening: Happening) {
        self.number += 1;
        self.coming.push(Reverse((at, self.number, happening)));
    }
}

fn count(seconds: &mut [u32], at: Timestamp) {
    let second = usize::try_from(second_of(at)).unwrap_or(usize::MAX);
    if let Some(count) = seconds.get_mut(second) {
        *count += 1;
    }
}

const fn second_of(at: Timestamp) -> u64 {
    at.as_millis() / 1_000
}

fn note(span: &mut (Timestamp, Timestamp), at: Timestamp) {
    *span = (span.0.min(at), span.1.max(at));
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLEET: Fleet = Fleet {
        sidecars: 200,
        instances: 5,
        rate_milli: 4_000,
        latency: Duration::from_millis(20),
        repaired: 40,
        jitter: 10,
        balancer: LoadBalancer::P2cLeastRequest,
        seed: 1,
    };

    #[test]
    fn no_ramp_of_a_fleet_gives_more_than_the_fair_share() {
        for balancer in [
            LoadBalancer::P2cLeastRequest,
            LoadBalancer::RoundRobin,
            LoadBalancer::Random,
        ] {
            let seen = play(&Fleet { balancer, ..FLEET });
            assert_eq!(seen.returned, FLEET.sidecars, "{balancer:?}");
            assert!(seen.ejected.1.since(seen.ejected.0) <= Duration::from_secs(1));
            assert!(seen.peak() <= 1.2, "{balancer:?}: {}", seen.peak());
            assert!(seen.peak() > 0.8, "{balancer:?}: it comes back");
        }
    }

    #[test]
    fn jitter_spreads_the_trials_of_a_fleet() {
        let long = Fleet {
            rate_milli: 1_000,
            repaired: 100,
            ..FLEET
        };
        let [with, without] = [10, 0].map(|jitter| {
            play(&Fleet {
                jitter,
                ..long.clone()
            })
        });
        let all = |seen: &Seen| seen.trials.iter().sum::<u32>();
        assert_eq!(all(&with), 2 * long.sidecars);
        assert_eq!(all(&without), 2 * long.sidecars);
        // Without it half of the fleet or more asks within one second, at each of its trials.
        assert!(without.most_trials() > long.sidecars / 2);
        assert!(with.most_trials() < long.sidecars / 2);
        // The second trial is due over 9 s.
        assert!(with.back.1.since(with.back.0) > Duration::from_secs(6));
    }

    #[test]
    fn the_same_seed_gives_the_same_fleet() {
        let small = Fleet {
            sidecars: 20,
            ..FLEET
        };
        let [one, two] = [0, 1].map(|_| play(&small));
        assert_eq!((one.load, one.trials), (two.load, two.trials));
    }
}
