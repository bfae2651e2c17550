//! The outlier detector of one upstream, a pure state machine: an [`Input`] and a time go in,
//! [`Effect`]s come out, one deadline is to be armed. No I/O, no clock, no random source of its
//! own, no floats. It is the one writer of ejection state.
//!
//! Order at one instant: expiries, due trials, bucket close, then the input.
//! Read on: `detector/instance.rs` (the states), `detector/judge.rs` (who is abnormal),
//! `detector/slow.rs` (who is slow), `detector/evaluate.rs` (who goes), `detector/moves.rs` (out and in), `detector/probe.rs` (trials),
//! `detector/answer.rs` (what they say), `detector/identity.rs` (endpoints), `detector/reload.rs`
//! (policies), `detector/routes.rs` (one detector per route), `detector/overrides.rs` (operators), `detector/seed.rs` (what outlives the process).

mod answer;
mod effect;
mod evaluate;
mod identity;
mod input;
mod instance;
mod invariants;
mod judge;
mod moves;
mod overrides;
mod probe;
mod reload;
mod routes;
mod seed;
mod slow;
mod tally;
mod view;

pub use effect::{
    Cause, Effect, Ejected, Evidence, Numbers, Refusal, Restored, RestoredBy, SlowEvidence,
    Suppressed, TrialFailed, TrialKind, TrialStarted, Trigger,
};
pub use input::{Input, LeaseId, Outcome, OverrideKind, RoutableEndpoint, UpstreamFacts};
pub use routes::Half;
pub use seed::{Remembered, RememberedEjection, RememberedK};
pub use view::{InstanceView, MemoryView, OfferView, StateView, UpstreamView};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::endpoint::Address;

use super::classify::OutcomeClass;
use super::policy::{Mode, Policy};
use super::schedule::{FULL_SHARE, Jitter, ramp_share};
use super::window::{BUCKETS, BucketIndex, Ring, Sample};
use evaluate::Occasion;
use identity::Gone;
use instance::{Instance, Origin, Pin};
use tally::Tally;

/// Decides for one upstream. Feed it with [`Detector::handle`], then drain
/// [`Detector::poll_effect`], then arm [`Detector::next_deadline`].
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, none excludes another"
)]
pub struct Detector {
    policy: Arc<Policy>,
    facts: UpstreamFacts,
    jitter: Jitter,
    /// The instant that is worked off; behind `wall` when the driver comes late.
    now: Timestamp,
    /// The instant of the latest input.
    wall: Timestamp,
    bucket: BucketIndex,
    instances: BTreeMap<Address, Instance>,
    gone: BTreeMap<Address, Gone>,
    disabled: BTreeMap<Address, Pin>,
    holds: BTreeMap<Address, Pin>,
    ejected: BTreeSet<Address>,
    abnormal: BTreeSet<Address>,
    /// Those that a bucket close could change.
    watch: BTreeSet<Address>,
    /// Those with new outcomes since the latest evaluation, or judged by other rules since.
    dirty: BTreeSet<Address>,
    /// All abnormal ones were placed and nothing changed since; value: an exchange was allowed.
    placed: Option<bool>,
    /// Whether the upstream's calls allowed to judge, at the latest evaluation.
    was_busy: Option<bool>,
    calls: Ring,
    /// Some instance has times of answers, or is slow.
    timed: bool,
    tally: Tally,
    /// Of a route: the number of its lane; 0: of the whole upstream.
    lane: u8,
    epochs: u64,
    generations: u64,
    last_request: Option<Timestamp>,
    last_exchange: Option<Timestamp>,
    last_correlated: Option<Timestamp>,
    turned: VecDeque<(Timestamp, Address)>,
    last_resort: bool,
    cap_is_zero: bool,
    /// Something changed that trials or timers depend on.
    unsettled: bool,
    timer: Option<Timestamp>,
    effects: VecDeque<Effect>,
}

impl Detector {
    /// A detector without endpoints.
    pub fn new(policy: Arc<Policy>, facts: UpstreamFacts, jitter: Jitter, now: Timestamp) -> Self {
        let mut detector = Self {
            policy,
            facts,
            jitter,
            now,
            wall: now,
            bucket: BucketIndex(0),
            instances: BTreeMap::new(),
            gone: BTreeMap::new(),
            disabled: BTreeMap::new(),
            holds: BTreeMap::new(),
            ejected: BTreeSet::new(),
            abnormal: BTreeSet::new(),
            watch: BTreeSet::new(),
            dirty: BTreeSet::new(),
            placed: None,
            was_busy: None,
            calls: Ring::default(),
            timed: false,
            tally: Tally::default(),
            lane: 0,
            epochs: 0,
            generations: 0,
            last_request: None,
            last_exchange: None,
            last_correlated: None,
            turned: VecDeque::new(),
            last_resort: false,
            cap_is_zero: false,
            unsettled: false,
            timer: None,
            effects: VecDeque::new(),
        };
        detector.bucket = detector.bucket_at(now);
        detector
    }

    /// Works off what was due up to `now`, then the input. Time that goes backwards stands still.
    pub fn handle(&mut self, input: Input, now: Timestamp) {
        self.wall = now.max(self.wall);
        while let Some(due) = self.next_deadline().filter(|due| *due <= self.wall) {
            self.step(due.max(self.now));
        }
        self.now = self.wall;
        self.bucket = self.bucket_at(self.now);
        self.apply(input);
        self.settle();
        self.check_invariants();
    }

    /// The next decision; `None` when all are drained.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`Input::Tick`] is due at the latest; `None` while nothing can happen by itself.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let close = (!self.watch.is_empty()).then(|| self.start_of(BucketIndex(self.bucket.0 + 1)));
        [self.timer, close].into_iter().flatten().min()
    }

    /// The policy that holds.
    pub const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    fn step(&mut self, due: Timestamp) {
        self.now = due;
        self.unsettled = true;
        self.expire_overrides();
        self.expire_leases();
        self.start_due_trials();
        let bucket = self.bucket_at(due);
        if bucket > self.bucket {
            if !self.watch.is_empty() {
                self.evaluate(Occasion::BucketClose);
            }
            self.bucket = bucket;
        }
        self.settle();
    }

    fn apply(&mut self, input: Input) {
        match input {
            Input::Check { address, passing } => self.check_changed(&address, passing),
            Input::Endpoints(list) => self.replace_endpoints(list),
            Input::Facts(facts) => {
                self.facts = facts;
                if !facts.by_route {
                    self.instances.values_mut().for_each(|i| i.routes = None);
                }
                self.judge_all();
                self.withdraw_offers();
            }
            Input::Hint { address } => self.hint(&address, self.now),
            Input::Outcome(outcome) => self.outcome(&outcome),
            Input::Override {
                address,
                kind,
                ttl,
                force,
            } => {
                self.command(&address, kind, ttl, force);
            }
            Input::Policy(policy) => self.reload(policy),
            Input::RequestSeen { retryable } => {
                if retryable {
                    self.last_request = Some(self.now);
                }
            }
            Input::Routes { address, half } => self.routes(&address, half),
            Input::Seed(seed) => self.take_seed(seed),
            Input::Taken { address, out } => self.taken(&address, out),
            Input::Tick => {}
            Input::Times { address, times } => self.times(&address, &times),
            Input::TrialFinished { lease, class } => self.trial_finished(lease, class),
            Input::TrialHead { lease } => self.trial_head(lease),
            Input::TrialTaken {
                address,
                lease,
                latest,
            } => {
                self.trial_taken(&address, lease, latest);
            }
        }
    }

    /// What follows from a change at once: somebody stays in, the last resort, due trials, timers.
    fn settle(&mut self) {
        if !self.unsettled {
            return;
        }
        self.unsettled = false;
        self.placed = None;
        self.keep_one_in();
        self.update_last_resort();
        self.warn_of_zero_cap();
        self.start_due_trials();
        self.timer = self.earliest_timer();
    }

    fn outcome(&mut self, outcome: &Outcome) {
        let Some(instance) = self.instances.get_mut(&outcome.address) else {
            self.outcome_of_gone(outcome);
            return;
        };
        if outcome.class == OutcomeClass::Ignored || outcome.count == 0 {
            return;
        }
        if outcome.sent_at < instance.epoch_start {
            let address = outcome.address.clone();
            self.effects.push_back(Effect::Stale {
                address,
                count: outcome.count,
            });
            return;
        }
        // As for an ejected one: what it answers now was sent before.
        if instance.taken {
            return;
        }
        let count = u64::from(outcome.count);
        self.calls.add(outcome.class, count, self.bucket);
        match instance.ejection.as_ref().map(|ejection| ejection.origin) {
            None => {}
            Some(Origin::Shadow) => {
                self.shadow_answer(outcome);
                return;
            }
            // Sent by a snapshot from before the ejection, without a lease: it may neither restore
            // nor re-eject, and the window is cleared on restore anyway.
            Some(Origin::Rules | Origin::Operator { .. }) => return,
        }
        instance.window.add(&sample_of(outcome), self.bucket);
        match &mut instance.memory {
            Some(memory) if outcome.class == OutcomeClass::Success => {
                memory.successes_left = memory.successes_left.saturating_sub(outcome.count);
            }
            Some(_) | None => {}
        }
        if instance.needs_watch() {
            self.watch.insert(outcome.address.clone());
            self.dirty.insert(outcome.address.clone());
        }
        if outcome.class.is_failure(self.policy.exception_type) {
            self.evaluate(Occasion::Failure);
        }
    }

    fn bucket_at(&self, at: Timestamp) -> BucketIndex {
        BucketIndex(at.as_nanos() / self.bucket_nanos())
    }

    fn start_of(&self, bucket: BucketIndex) -> Timestamp {
        Timestamp::from_nanos(bucket.0.saturating_mul(self.bucket_nanos()))
    }

    fn bucket_nanos(&self) -> u64 {
        let nanos = self.policy.statistics_window.as_nanos() / u128::from(BUCKETS);
        u64::try_from(nanos).unwrap_or(u64::MAX).max(1)
    }

    /// Share of traffic in basis points that `instance` gets by its ramp.
    fn share_of(&self, instance: &Instance) -> u32 {
        let start = instance.ramp_start.or(instance.shadow_ramp);
        start.map_or(FULL_SHARE, |start| {
            ramp_share(self.now.since(start), self.policy.ramp)
        })
    }

    fn is_enforced(&self) -> bool {
        self.policy.mode == Mode::Enforce
    }

    fn new_epoch(&mut self) -> u64 {
        self.epochs += 1;
        self.epochs
    }

    fn new_lease(&mut self, epoch: u64) -> LeaseId {
        self.generations += 1;
        LeaseId {
            lane: self.lane,
            epoch,
            generation: self.generations,
        }
    }
}

fn sample_of(outcome: &Outcome) -> Sample {
    Sample {
        class: outcome.class,
        count: u64::from(outcome.count),
        own_timeout: outcome.own_timeout,
        death: outcome.death,
        kind: outcome.kind,
    }
}
