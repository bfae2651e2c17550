//! One data plane thread: a current-thread runtime, its connections, its pools, its counters. What
//! workers share is read-only snapshots and atomics. A connection lives and dies on its worker.
//! Next: `listener.rs` accepts, `listener/http.rs` serves.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;
use http::{HeaderMap, HeaderValue};
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot, watch};

use crate::access_log::AccessLog;
use crate::balancer::{self, PickContext, RoundRobinState};
use crate::clock::{Clock, Timestamp};
use crate::config::types::{Config, LoadBalancer};
use crate::endpoint::selectable::{Entry, Selectable};
use crate::listener::connection::Connections;
use crate::metrics::cells::{Limit, WorkerCells};
use crate::policy::fallback::recent::Recent;
use crate::router::{Route, RouteTable};
use crate::upstream::Upstream;
use crate::upstream::pool::{Pools, WorkerCellsRow};

/// How often pools are tidied and connections of the app swept.
const TIDY_EVERY: Duration = Duration::from_millis(250);
/// Longest step of the loop-lag watch.
const LAG_STEP: Duration = Duration::from_millis(50);

/// Maps that are kept for their room, and the most room of one that is.
const SPARE_HEADERS: usize = 128;
const SPARE_ROOM: usize = 96;
/// One line about a full house per this time.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// Time for the last answers, before connections are cut.
const LAST_ANSWERS: Duration = Duration::from_millis(100);
/// How often a drain looks whether all connections are gone.
const DRAIN_STEP: Duration = Duration::from_millis(20);

/// What a request sees of the configuration, in one piece.
#[derive(Debug)]
pub struct Snapshot {
    /// Routes.
    pub table: RouteTable,
    /// The configuration they were built from.
    pub config: Arc<Config>,
}

/// How far shutting down has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainPhase {
    /// Serving.
    Serving,
    /// No new connections; `connection: close` and GOAWAY on the open ones.
    Draining,
    /// The grace is over: connections are cut, new requests are refused.
    Cut,
}

/// A name that is not in the table: control looks it up in the default registry.
#[derive(Debug)]
pub struct Lookup {
    /// As in `router::Missed::name`, or `host:port` of a host of `passthrough.hosts`.
    pub name: String,
    /// Whether it is a host of `passthrough.hosts`.
    pub passthrough: bool,
    /// The answer.
    pub reply: oneshot::Sender<LookupAnswer>,
}

/// What control found.
#[derive(Clone, Debug)]
pub enum LookupAnswer {
    /// The route, which is in the table from now on.
    Route(Arc<Route>),
    /// The registry does not know the name.
    Unknown,
    /// The registry that would know has not answered.
    NotAnswered {
        /// Its name.
        registry: Arc<str>,
    },
}

/// What all workers and control share.
#[derive(Debug)]
pub struct Shared {
    /// Swapped by control on a reload or a discovered name.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// Counters, one per worker.
    pub cells: Arc<[WorkerCells]>,
    /// This process's token in `x-outrigger-hop`.
    pub hop: HeaderValue,
    /// Names that are not in the table.
    pub lookups: mpsc::Sender<Lookup>,
    /// How far shutting down has come.
    pub drain: watch::Receiver<DrainPhase>,
    /// Requests of the data plane that are logged.
    pub access_log: AccessLog,
    /// The process's clock.
    pub clock: Clock,
    /// Open files for connections, those of the app and those to instances together.
    pub room: usize,
}

/// One data plane thread's own things.
pub struct Worker {
    /// Which one.
    pub index: usize,
    /// The process's clock.
    pub clock: Clock,
    /// What all share.
    pub shared: Arc<Shared>,
    /// Connections to instances.
    pub pools: Pools,
    /// Open connections of the app.
    pub connections: Connections,
    /// Not for secrets.
    pub rng: RefCell<fastrand::Rng>,
    /// Answers that were kept just now.
    pub recent: RefCell<Recent>,
    spare_headers: RefCell<Vec<HeaderMap>>,
    snapshot: RefCell<Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>>,
    round_robins: RefCell<FxHashMap<usize, RoundRobinState>>,
    stalled_at: Cell<Timestamp>,
    phase: Cell<DrainPhase>,
    full_logged: Cell<Option<Timestamp>>,
}

impl Worker {
    /// The things of worker `index`.
    pub fn new(index: usize, shared: Arc<Shared>, seed: u64) -> Rc<Self> {
        let row = Arc::new(WorkerCellsRow {
            all: Arc::clone(&shared.cells),
            index,
        });
        Rc::new(Self {
            index,
            clock: shared.clock,
            pools: Pools::new(shared.clock, row, shared.cells.len()),
            connections: Connections::default(),
            rng: RefCell::new(fastrand::Rng::with_seed(seed)),
            recent: RefCell::default(),
            spare_headers: RefCell::default(),
            snapshot: RefCell::new(Cache::new(Arc::clone(&shared.snapshot))),
            round_robins: RefCell::default(),
            stalled_at: Cell::new(Timestamp::ZERO),
            phase: Cell::new(DrainPhase::Serving),
            full_logged: Cell::new(None),
            shared,
        })
    }

    /// The snapshot of the moment.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(self.snapshot.borrow_mut().load())
    }

    /// An empty map with room, from a request that is over.
    pub fn spare_headers(&self) -> HeaderMap {
        self.spare_headers.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps the room of a map for another request.
    pub fn keep_headers(&self, mut headers: HeaderMap) {
        let mut spare = self.spare_headers.borrow_mut();
        if spare.len() < SPARE_HEADERS && headers.capacity() <= SPARE_ROOM {
            headers.clear();
            spare.push(headers);
        }
    }

    /// Our counters.
    pub fn cells(&self) -> Option<&WorkerCells> {
        self.shared.cells.get(self.index)
    }

    /// Counts a limit that bit.
    pub fn limit_hit(&self, limit: Limit) {
        if let Some(cells) = self.cells() {
            cells.limit_hit(limit);
        }
    }

    /// How far shutting down has come.
    pub fn phase(&self) -> DrainPhase {
        self.phase.get()
    }

    /// A connection of the app was accepted.
    pub fn connection_opened(&self) {
        if let Some(cells) = self.cells() {
            cells.app_connections.fetch_add(1, Relaxed);
        }
    }

    /// It ended.
    pub fn connection_closed(&self) {
        if let Some(cells) = self.cells() {
            cells.app_connections.fetch_sub(1, Relaxed);
        }
    }

    /// The limit of open files leaves no more room: one line in a while.
    pub fn log_full(&self, room: usize) {
        let now = self.clock.now();
        if self
            .full_logged
            .get()
            .is_none_or(|at| now.since(at) >= LOG_EVERY)
        {
            self.full_logged.set(Some(now));
            tracing::warn!(
                room,
                "accept pauses: the limit of open files leaves room for no more connections; \
                 raise it (ulimit -n)"
            );
        }
    }

    /// Open connections of the app, all workers.
    pub fn connections_open(&self) -> usize {
        let open: u64 = self
            .shared
            .cells
            .iter()
            .map(|c| c.app_connections.load(Relaxed))
            .sum();
        usize::try_from(open).unwrap_or(usize::MAX)
    }

    /// Open connections to instances, all workers.
    pub fn upstream_open(&self) -> usize {
        let cells = self.shared.cells.iter();
        let open: u64 = cells.map(|c| c.upstream_connections.load(Relaxed)).sum();
        usize::try_from(open).unwrap_or(usize::MAX)
    }

    /// Picks an instance of an upstream.
    pub fn pick<'a>(
        &self,
        upstream: &Upstream,
        algorithm: LoadBalancer,
        selectable: &'a Selectable,
        context: &PickContext<'_>,
    ) -> Option<&'a Entry> {
        let mut rng = self.rng.borrow_mut();
        match algorithm {
            LoadBalancer::P2cLeastRequest
            | LoadBalancer::PeakEwma
            | LoadBalancer::Random
            | LoadBalancer::RingHash
            | LoadBalancer::Maglev => {
                let mut unused = RoundRobinState::default();
                balancer::pick(algorithm, selectable, context, &mut rng, &mut unused)
            }
            LoadBalancer::RoundRobin => {
                let mut places = self.round_robins.borrow_mut();
                // Each lane has a place of its own; an upstream is larger than there are lanes.
                let key = std::ptr::from_ref(upstream).addr() + usize::from(selectable.lane);
                let place = places.entry(key).or_default();
                balancer::pick(algorithm, selectable, context, &mut rng, place)
            }
        }
    }

    /// Whether this worker was starved at any time since `since`, so that a time-out says nothing
    /// about an instance. `lateness`: how late the timer fired that tells of the time-out.
    pub fn starved_since(&self, since: Timestamp, lateness: Duration) -> bool {
        let bound = self.snapshot().config.self_lag;
        lateness > bound || self.stalled_at.get() > since
    }

    /// Serves until the drain is done: at its begin connections are asked to finish, at the cut they
    /// are ended.
    pub async fn until_drained(&self) {
        let mut drain = self.shared.drain.clone();
        let begun = drain.wait_for(|phase| *phase >= DrainPhase::Draining).await;
        if begun.is_err() {
            return;
        }
        drop(begun);
        self.phase.set(DrainPhase::Draining);
        while self.own_connections() > 0 {
            if *drain.borrow() == DrainPhase::Cut {
                self.phase.set(DrainPhase::Cut);
                // Requests without an answer get one; then everything is cut.
                self.connections.wake_all();
                tokio::time::sleep(LAST_ANSWERS).await;
                self.connections.abort_all();
                // One turn of the loop for their ends.
                tokio::time::sleep(DRAIN_STEP).await;
                return;
            }
            self.connections.close_all_gracefully();
            let _step = tokio::time::timeout(DRAIN_STEP, drain.changed()).await;
        }
    }

    fn own_connections(&self) -> u64 {
        self.cells()
            .map_or(0, |cells| cells.app_connections.load(Relaxed))
    }

    /// Watches the loop's lag and tidies the pools, for as long as the worker lives.
    pub async fn housekeeping(self: Rc<Self>) {
        let mut next_tidy = self.clock.now() + TIDY_EVERY;
        loop {
            let bound = self.snapshot().config.self_lag;
            let step = (bound / 2).clamp(Duration::from_millis(5), LAG_STEP);
            let due = self.clock.now() + step;
            tokio::time::sleep_until(self.clock.instant(due)).await;
            let now = self.clock.now();
            let lag = now.since(due);
            if lag > bound {
                self.stalled_at.set(now);
            }
            if let Some(cells) = self.cells() {
                cells
                    .lag_us
                    .store(u64::try_from(lag.as_micros()).unwrap_or(u64::MAX), Relaxed);
            }
            if now >= next_tidy {
                next_tidy = now + TIDY_EVERY;
                self.pools.tidy();
                self.connections
                    .sweep(&self, &self.snapshot().config.limits, now);
            }
        }
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}
