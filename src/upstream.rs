//! An upstream: one named service, its live instances, and the only code that opens connections to
//! them. The struct here is what workers and control share; the driver of the outlier detector
//! (`outlier/driver.rs`) is its one writer.
//! Next: `upstream/pool.rs`, `upstream/multiplexed.rs`, `upstream/connect.rs`.

pub mod connect;
pub mod headers;
pub mod http1;
pub mod multiplexed;
pub mod pool;
pub mod request_body;
pub mod request_head;
pub mod response_body;
pub mod route_state;
pub mod stream_limit;
pub mod tunnel;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use crate::clock::Timestamp;
use crate::config::types::Service;
use crate::endpoint::Address;
use crate::endpoint::failures::FailureRecord;
use crate::endpoint::instance::Instance;
use crate::endpoint::ledger::Ledger;
use crate::endpoint::selectable::Selectable;
use crate::metrics::cells::UpstreamCells;
use crate::outlier::LeaseId;
use crate::outlier::classify::{ErrorKind, OutcomeClass};
use crate::outlier::policy::Policy;
use crate::policy::budget::Budget;
use crate::policy::hedge::HeadTimes;
use route_state::RouteState;

/// What a worker tells the driver beside the counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrialReport {
    /// A live request claimed an offered trial.
    Taken {
        /// The ejected instance.
        address: Address,
        /// The offer's lease.
        lease: LeaseId,
        /// The trial ends by then at the latest.
        latest: Timestamp,
    },
    /// A claimed trial has a good head; its body is still open.
    Head {
        /// The offer's lease.
        lease: LeaseId,
        /// When it was seen.
        at: Timestamp,
    },
    /// A claimed trial ended.
    Finished {
        /// The ejected instance.
        address: Address,
        /// The offer's lease.
        lease: LeaseId,
        /// What its answer says.
        class: OutcomeClass,
        /// How it failed.
        kind: Option<ErrorKind>,
        /// When it was seen.
        at: Timestamp,
    },
}

/// One named service.
#[derive(Debug)]
pub struct Upstream {
    /// Its name.
    pub name: Arc<str>,
    /// What request tasks count.
    pub cells: UpstreamCells,
    /// Retries allowed.
    pub budget: Mutex<Budget>,
    /// How long heads take, where `hedge.after` is `p95`.
    pub heads: HeadTimes,
    own_state: Arc<RouteState>,
    route_states: Mutex<Vec<Arc<RouteState>>>,
    workers: usize,
    selectable: ArcSwap<Selectable>,
    trials: Mutex<Vec<TrialReport>>,
    /// Breakers tell by it too that they have news.
    wake: Arc<Notify>,
    published: Notify,
    last_request: AtomicU64,
    asleep: AtomicBool,
    last_eligible: AtomicU64,
}

impl Upstream {
    /// An upstream whose registry has not answered yet.
    pub fn new(name: Arc<str>, workers: usize) -> Self {
        let policy = Arc::new(Policy::builtin(false));
        let wake = Arc::new(Notify::new());
        Self {
            name,
            cells: UpstreamCells::new(workers),
            budget: Mutex::default(),
            heads: HeadTimes::new(workers),
            own_state: Arc::new(RouteState::own(workers, Arc::clone(&wake))),
            route_states: Mutex::default(),
            workers,
            selectable: ArcSwap::from_pointee(Selectable::waiting(policy)),
            trials: Mutex::default(),
            wake,
            published: Notify::new(),
            last_request: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            last_eligible: AtomicU64::new(0),
        }
    }

    /// The live part of what no route takes.
    pub const fn own_state(&self) -> &Arc<RouteState> {
        &self.own_state
    }

    /// The live parts of the routes of this name, in that order; those of other names end.
    pub fn keep_routes<'a>(
        &self,
        names: impl Iterator<Item = &'a Arc<str>>,
    ) -> Vec<Arc<RouteState>> {
        let Ok(mut states) = self.route_states.lock() else {
            return Vec::new();
        };
        let old = std::mem::take(&mut *states);
        let kept = |name: &Arc<str>| {
            let known = old.iter().find(|state| state.name.as_ref() == Some(name));
            let new = || {
                let news = Arc::clone(&self.wake);
                Arc::new(RouteState::named(Arc::clone(name), self.workers, news))
            };
            known.map_or_else(new, Arc::clone)
        };
        *states = names.map(kept).collect();
        states.clone()
    }

    /// The settings of the day for the breakers and bulkheads of the upstream and its routes.
    pub fn configure(&self, service: &Service, now: Timestamp) {
        self.own_state.configure(service, now);
        for rule in &service.rules {
            if let Some(state) = self.route_state(&rule.name) {
                state.configure(&rule.service, now);
            }
        }
    }

    /// Holds what the fallbacks of these settings allow to keep.
    pub fn bound_answers(&self, service: &Service) {
        let most = |service: &Service| service.kept_answers().map_or(0, |kept| kept.max_bytes);
        self.own_state.answers.bound(most(service));
        for rule in &service.rules {
            if let Some(state) = self.route_state(&rule.name) {
                let own = !Arc::ptr_eq(&rule.service.fallback, &service.fallback);
                state
                    .answers
                    .bound(if own { most(&rule.service) } else { 0 });
            }
        }
    }

    /// Bytes of the last good answers, those of routes too.
    pub fn kept_bytes(&self) -> usize {
        let routes = self.route_states();
        let routes: usize = routes.iter().map(|state| state.answers.bytes()).sum();
        self.own_state.answers.bytes() + routes
    }

    /// The live part of the route `name`.
    pub fn route_state(&self, name: &str) -> Option<Arc<RouteState>> {
        let states = self.route_states();
        states.into_iter().find(|s| s.name.as_deref() == Some(name))
    }

    /// The live parts of all routes, in the order of the file.
    pub fn route_states(&self) -> Vec<Arc<RouteState>> {
        let states = self.route_states.lock();
        states.map(|states| states.clone()).unwrap_or_default()
    }

    /// The snapshot of the moment, for one request.
    pub fn selectable(&self) -> arc_swap::Guard<Arc<Selectable>> {
        self.selectable.load()
    }

    /// The snapshot of the moment, to keep.
    pub fn selectable_full(&self) -> Arc<Selectable> {
        self.selectable.load_full()
    }

    /// Swaps in a new snapshot. The driver alone does this.
    pub fn publish(&self, selectable: Selectable) {
        self.selectable.store(Arc::new(selectable));
        self.published.notify_waiters();
    }

    /// Resolves at the next swap after this call.
    pub fn published(&self) -> tokio::sync::futures::Notified<'_> {
        self.published.notified()
    }

    /// Hands a failure of `instance` to the driver.
    pub fn fail(&self, instance: &Instance, record: FailureRecord) {
        if instance.failures.push(record) {
            self.wake.notify_one();
        }
    }

    /// Hands a failure of an instance for one route to the driver.
    pub fn fail_for_route(&self, ledger: &Ledger, record: FailureRecord) {
        if ledger.failures.push(record) {
            self.wake.notify_one();
        }
    }

    /// Hands a trial report to the driver. Bounded by the trials on offer.
    pub fn report_trial(&self, report: TrialReport) {
        if let Ok(mut trials) = self.trials.lock() {
            trials.push(report);
        }
        self.wake.notify_one();
    }

    /// The driver's side of [`Upstream::report_trial`].
    pub fn take_trials(&self) -> Vec<TrialReport> {
        self.trials
            .lock()
            .map(|mut trials| std::mem::take(&mut *trials))
            .unwrap_or_default()
    }

    /// Resolves when a worker has something for the driver.
    pub async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Wakes the driver.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// A request came. Wakes a driver that sleeps for want of traffic.
    pub fn touch(&self, now: Timestamp) {
        self.last_request.store(now.as_nanos(), Relaxed);
        if self.asleep.load(Relaxed) && self.asleep.swap(false, SeqCst) {
            self.wake.notify_one();
        }
    }

    /// The driver is to be woken by the next request.
    pub fn sleep(&self) {
        self.asleep.store(true, SeqCst);
    }

    /// When the last request came; the origin of the clock if never.
    pub fn last_request(&self) -> Timestamp {
        Timestamp::from_nanos(self.last_request.load(Relaxed))
    }

    /// A request came by that could have served as a trial.
    pub fn note_eligible(&self, now: Timestamp) {
        self.last_eligible.store(now.as_nanos(), Relaxed);
    }

    /// When the last such request came; the origin of the clock if never.
    pub fn last_eligible(&self) -> Timestamp {
        Timestamp::from_nanos(self.last_eligible.load(Relaxed))
    }
}
