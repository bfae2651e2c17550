//! One request of the app from its head to its end: what is counted and logged, once, whatever way
//! it ends.

use std::rc::Rc;
use std::sync::Arc;

use super::connection::ConnectionState;
use super::reply;
use crate::access_log::{AccessLog, EndNote, FallbackNote, RequestNote};
use crate::clock::Timestamp;
use crate::endpoint::instance::Instance;
use crate::error::Reason;
use crate::metrics::cells::{AppProtocol, Limit, UpstreamCells};
use crate::outlier::policy::Policy;
use crate::policy::bulkhead::Place;
use crate::router::Route;
use crate::upstream::route_state::RouteState;
use crate::worker::{DrainPhase, Snapshot, Worker};

/// What is known of one upstream's answer.
#[derive(Debug)]
pub struct Answered {
    status: u16,
    grpc: Option<u16>,
    head_at: Option<Timestamp>,
    instance: Option<Arc<Instance>>,
    policy: Option<Arc<Policy>>,
}

/// Watches one request; ends it when dropped.
#[derive(Debug)]
pub struct RequestGuard {
    worker: Rc<Worker>,
    connection: Arc<ConnectionState>,
    snapshot: Arc<Snapshot>,
    route: Option<Arc<Route>>,
    /// Set where one of the service's routes matched.
    state: Option<Arc<RouteState>>,
    /// Its place of a bulkhead; given back with the guard, or before.
    place: Option<Place>,
    policy: Option<Arc<Policy>>,
    note: Option<RequestNote>,
    protocol: AppProtocol,
    version: &'static str,
    started: Timestamp,
    head_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    status: u16,
    grpc: Option<u16>,
    reason: Option<Reason>,
    attempts: u32,
    /// Those before a fallback led elsewhere.
    earlier: u32,
    fallback: Option<FallbackNote>,
    instance: Option<Arc<Instance>>,
}

impl RequestGuard {
    /// A request that came at `started`.
    pub fn new(
        worker: &Rc<Worker>,
        snapshot: &Arc<Snapshot>,
        note: Option<RequestNote>,
        protocol: AppProtocol,
        version: &'static str,
        started: Timestamp,
        connection: Arc<ConnectionState>,
    ) -> Self {
        connection.request_began();
        Self {
            worker: Rc::clone(worker),
            connection,
            snapshot: Arc::clone(snapshot),
            route: None,
            state: None,
            place: None,
            policy: None,
            note,
            protocol,
            version,
            started,
            head_at: None,
            ended_at: None,
            status: 0,
            grpc: None,
            reason: None,
            attempts: 0,
            earlier: 0,
            fallback: None,
            instance: None,
        }
    }

    /// Its route was found.
    pub fn routed(&mut self, route: &Arc<Route>) {
        route.upstream.cells.begin(self.worker.index);
        route.upstream.touch(self.started);
        self.route = Some(Arc::clone(route));
    }

    /// One of the service's routes matched, or none.
    pub fn on_route(&mut self, state: &Arc<RouteState>) {
        if let Some(cells) = &state.cells {
            cells.begin(self.worker.index);
            self.state = Some(Arc::clone(state));
        }
    }

    /// It has a place of a bulkhead.
    pub fn hold(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// It needs its place no more: a tunnel begins.
    pub fn leave_place(&mut self) {
        self.place = None;
    }

    /// The policy that classifies its answer.
    pub fn judged_by(&mut self, policy: &Arc<Policy>) {
        self.policy = Some(Arc::clone(policy));
    }

    /// That policy.
    pub fn policy(&self) -> &Policy {
        match &self.policy {
            Some(policy) => policy,
            None => reply::builtin_policy(),
        }
    }

    /// Another try, at this instance.
    pub fn attempt(&mut self, instance: &Arc<Instance>) {
        self.attempts += 1;
        self.instance = Some(Arc::clone(instance));
    }

    /// Of two attempts at a time this instance gave the answer.
    pub fn answered_by(&mut self, instance: &Arc<Instance>, policy: &Arc<Policy>) {
        self.instance = Some(Arc::clone(instance));
        self.policy = Some(Arc::clone(policy));
    }

    /// The last one was none: nothing was tried.
    pub fn unattempt(&mut self) {
        self.attempts = self.attempts.saturating_sub(1);
    }

    /// Tries so far.
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Attempts at another upstream follow: they are counted anew, for it, and its bulkhead has a place
    /// for them. What is known of the answer so far is for [`RequestGuard::back`].
    pub fn next_course(&mut self) -> Answered {
        self.place = None;
        self.earlier = self.earlier.saturating_add(self.attempts);
        self.attempts = 0;
        Answered {
            status: std::mem::take(&mut self.status),
            grpc: self.grpc.take(),
            head_at: self.head_at.take(),
            instance: self.instance.clone(),
            policy: self.policy.clone(),
        }
    }

    /// The other upstream failed too: its place is given back, and the answer is the one from before.
    pub fn back(&mut self, before: Answered) {
        self.place = None;
        let Answered {
            status,
            grpc,
            head_at,
            instance,
            policy,
        } = before;
        (self.status, self.grpc, self.head_at) = (status, grpc, head_at);
        (self.instance, self.policy) = (instance, policy);
    }

    /// A fallback answers; `None` for a head that [`RequestGuard::head`] was told.
    pub fn fell_back(&mut self, note: FallbackNote, head: Option<(u16, Option<u16>)>) {
        self.reason = Some(Reason::Fallback);
        self.fallback = Some(note);
        if let Some((status, grpc)) = head {
            self.status = status;
            self.grpc = grpc;
        }
        self.count_rejected(Reason::Fallback);
    }

    /// The head that is passed on.
    pub fn head(&mut self, status: u16, at: Timestamp) {
        self.status = status;
        self.head_at = Some(at);
    }

    /// The gRPC code the app sees.
    pub fn grpc_code(&mut self, code: u16) {
        self.grpc = Some(code);
    }

    /// The HTTP status of the answer so far; 0 before its head.
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// Whether a gRPC code was seen.
    pub const fn has_grpc_code(&self) -> bool {
        self.grpc.is_some()
    }

    /// Our own answer.
    pub fn refused(&mut self, reason: Reason) {
        self.reason = Some(reason);
        self.status = reason.status().as_u16();
        if self.protocol == AppProtocol::Grpc {
            self.status = 200;
            self.grpc = Some(u16::from(reason.grpc_code()));
        }
        self.count_rejected(reason);
    }

    fn count_rejected(&self, reason: Reason) {
        match &self.route {
            Some(route) => {
                route.upstream.cells.rejected(self.worker.index, reason);
                if let Some(cells) = self.route_cells() {
                    cells.rejected(self.worker.index, reason);
                }
            }
            None => {
                if let Some(cells) = self.worker.cells() {
                    cells.rejected(reason);
                }
            }
        }
    }

    /// The counters of its route.
    pub fn route_cells(&self) -> Option<&UpstreamCells> {
        self.state.as_ref().and_then(|state| state.cells.as_ref())
    }

    /// All of the answer was handed out, at this time.
    pub fn complete(&mut self, at: Timestamp) {
        self.ended_at = Some(at);
        self.place = None;
    }

    /// The answer broke off after its head.
    pub fn broken(&mut self, reason: Reason) {
        self.reason = Some(reason);
    }

    /// A limit bit.
    pub fn limit_hit(&self, limit: Limit) {
        self.worker.limit_hit(limit);
    }

    /// Now.
    pub fn now(&self) -> Timestamp {
        self.worker.clock.now()
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if self.status == 0 {
            // It never got an answer: the app left.
            let cut = self.worker.phase() == DrainPhase::Cut;
            let reason = if cut {
                Reason::Draining
            } else {
                Reason::ClientClosed
            };
            self.status = reason.status().as_u16();
            self.reason = Some(reason);
        }
        let now = self.ended_at.unwrap_or_else(|| self.now());
        self.connection.request_ended(now);
        let duration = now.since(self.started);
        if let Some(route) = &self.route {
            let grpc = match self.protocol {
                AppProtocol::Grpc if self.reason == Some(Reason::ClientClosed) => Some(1),
                AppProtocol::Grpc => self.grpc,
                AppProtocol::Http1 | AppProtocol::Http2 => None,
            };
            for cells in [Some(&route.upstream.cells), self.route_cells()] {
                let Some(cells) = cells else { continue };
                cells.finish(
                    self.worker.index,
                    self.protocol,
                    self.status,
                    grpc,
                    duration,
                );
            }
        }
        let Some(note) = &self.note else { return };
        let end = EndNote {
            upstream: self.route.as_ref().map(|r| &*r.upstream.name),
            route: self.state.as_ref().and_then(|state| state.name.as_deref()),
            instance: self.instance.as_ref().map(|i| i.address.as_str()),
            attempts: self.earlier.saturating_add(self.attempts),
            fallback: self.fallback,
            protocol: self.protocol,
            version: self.version,
            status: self.status,
            grpc_code: self.grpc,
            reason: self.reason,
            duration,
            upstream_duration: self.head_at.map(|at| at.since(self.started)),
        };
        let settings = &self.snapshot.config.telemetry.access_log;
        if AccessLog::wants(settings, &end, || self.worker.rng.borrow_mut().f64()) {
            self.worker.shared.access_log.write(settings, note, &end);
        }
    }
}
