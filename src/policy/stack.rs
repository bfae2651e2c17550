//! The order of everything between a route and an answer, outermost first: the fallbacks, a place of
//! the bulkhead, the request's time, attempts within the retry rules and the budget, and per attempt
//! the circuit breaker, the pick, the trial on offer, the attempt's time, and the outcome. Change it
//! by an ADR.
//! Next: `balancer.rs` (pick), `policy/attempt.rs` (one try), `policy/fallback.rs`,
//! `upstream/response_body.rs`.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderMap;
use http::uri::PathAndQuery;
use http::{Method, StatusCode};

use super::admission::{BreakerCall, breaker_state};
use super::attempt::{self, Answer, Attempt, Failure};
use super::breaker::words::Pass;
use super::fallback::Served;
use super::follow_up::{Follow, Spare};
use super::limits::{self, RequestLimits};
use super::outcome::{AttemptGuard, Cancelled};
use super::pick::Picked;
use super::retry::{self, Pushback, Trigger};
use super::verdict::{classify, rule_broken, trigger_of};
use crate::balancer::hash::Key;
use crate::clock::Timestamp;
use crate::config::types::{Condition, HostHeader, Limits, LoadBalancer, Protocol, Service};
use crate::endpoint::selectable::Selectable;
use crate::error::{Reason, Refusal};
use crate::listener::request::RequestGuard;
use crate::outlier::classify::{ErrorKind, OutcomeClass};
use crate::router::{Route, RouteIndex};
use crate::timer::Timer;
use crate::upstream::request_body::RequestBody;
use crate::upstream::request_head::RequestHead;
use crate::upstream::response_body::{self, Source};
use crate::upstream::route_state::RouteState;
use crate::worker::{Snapshot, Worker};

/// A request, ready to be sent to some instance of its upstream.
#[derive(Debug)]
pub struct Exchange {
    /// Ours.
    pub worker: Rc<Worker>,
    /// The configuration it came under.
    pub snapshot: Arc<Snapshot>,
    /// Where to.
    pub route: Arc<Route>,
    /// Which of its routes.
    pub rule: RouteIndex,
    /// Its method.
    pub method: Method,
    /// Its target, prefix stripped.
    pub target: PathAndQuery,
    /// Cleaned, with what we add and the Host towards the instances.
    pub headers: RefCell<HeaderMap>,
    /// Its body, if it has one.
    pub body: Option<Rc<RequestBody>>,
    /// It is gRPC.
    pub grpc: bool,
    /// Its time.
    pub time: RequestLimits,
    /// The present moment, while nothing was waited for.
    pub moment: Option<Timestamp>,
    /// Its timer.
    pub timer: Timer,
    /// It asks for an upgrade.
    pub upgrade: bool,
    /// The app's address.
    pub source: Option<IpAddr>,
    /// What consistent hashing goes by.
    pub hash_key: Option<Key>,
    /// Counted and logged.
    pub guard: RequestGuard,
    /// What was tried so far.
    pub course: Course,
}

/// What was tried so far. Empty, without an allocation, for a request whose first attempt is good.
#[derive(Debug, Default)]
pub struct Course {
    pub(super) tried: Vec<u64>,
    pub(super) full: Vec<u64>,
    /// It waited for a connection's place.
    pub(super) waited: bool,
    pub(super) first_failure: Option<Refusal>,
    pub(super) budget_held: bool,
    /// Attempts that the header of previous attempts tells of.
    pub(super) own_attempts: u32,
    /// When the last answer wants the next try.
    pub(super) pushback: Option<Pushback>,
    /// The last answer, until the next try begins.
    pub(super) spare: Option<Box<Spare>>,
}

/// What follows an attempt.
enum Step {
    /// The end.
    Done(Outcome),
    /// The instance had no place; that was no attempt.
    PickAnother,
    /// Another attempt, after its delay.
    BackOff,
}

/// What goes back to the app.
#[derive(Debug)]
pub enum Outcome {
    /// An instance's answer.
    Answer(Box<Delivery>),
    /// Ours.
    Refused(Refusal),
    /// Ours, by `fallback`.
    Served(Box<Served>),
}

/// An instance's answer and what ends with it.
#[derive(Debug)]
pub struct Delivery {
    /// The head.
    pub response: http::Response<()>,
    /// The body to come.
    pub source: Source,
    /// To be told the outcome.
    pub attempt: AttemptGuard,
    /// What the head says.
    pub class: OutcomeClass,
    /// With it.
    pub kind: Option<ErrorKind>,
    /// Longest silence.
    pub idle: Option<Duration>,
    /// When the head was there.
    pub at: Timestamp,
    /// It comes from another upstream, for this reason.
    pub fallback: Option<Condition>,
}

impl Delivery {
    /// Should the app leave before the body is passed on, the head decides.
    pub(super) fn judge_on_cancel(&self) {
        let meaning = Cancelled::Class(self.class, self.kind);
        self.attempt.on_cancel(meaning);
    }
}

impl Exchange {
    /// Runs attempts until there is an answer, and the fallbacks when it is not good. What is rare is
    /// boxed, and nothing large lives across a wait, so that the usual request stays small.
    pub async fn run(&mut self) -> Outcome {
        let outcome = self.run_attempts().await;
        if self.service().fallback.is_empty() {
            return outcome;
        }
        match self.wants_fallback(&outcome) {
            Some(condition) => Box::pin(self.fall_back(outcome, condition)).await,
            None => outcome,
        }
    }

    /// Runs attempts until there is an answer.
    pub(super) async fn run_attempts(&mut self) -> Outcome {
        if !self.take_place()
            && let Err(refusal) = Box::pin(self.wait_in_line()).await
        {
            return Outcome::Refused(refusal);
        }
        loop {
            if let Err(refusal) = self.ask_breaker() {
                return self.give_up(refusal);
            }
            let picked = match self.pick_now() {
                Some(picked) => Ok(picked),
                None => {
                    self.moment = None;
                    Box::pin(self.pick()).await
                }
            };
            let mut picked = match picked {
                Ok(picked) => picked,
                Err(Reason::Overflow) => {
                    if Box::pin(self.wait_for_place()).await {
                        self.course.full.clear();
                        continue;
                    }
                    return self.give_up(overflow(&self.route));
                }
                Err(reason) => return self.give_up(self.nothing_to_pick(reason)),
            };
            // A trial of an ejected instance says nothing of those in rotation.
            let pass = match picked.trial {
                Some(_) => Ok(None),
                None => self.pass_breaker(),
            };
            let pass = match pass {
                Ok(pass) => pass,
                Err(refusal) => return self.give_up(refusal),
            };
            // In a block, so that the answer is not carried across the back-off.
            let step = {
                let ended = match self.hedge_after(&picked) {
                    None => self.attempt(&picked, pass).await,
                    Some(after) => Box::pin(self.hedged(&mut picked, pass, after)).await,
                };
                if ended.is_err() {
                    self.give_pass_back(pass);
                }
                self.next_step(ended, picked)
            };
            match step {
                Step::Done(outcome) => return outcome,
                Step::PickAnother => {}
                Step::BackOff => {
                    if let Some(outcome) = Box::pin(self.back_off()).await {
                        return outcome;
                    }
                }
            }
        }
    }

    /// What follows from the end of an attempt.
    fn next_step(&mut self, ended: Result<Answer, Failure>, picked: Picked) -> Step {
        let is_trial = picked.trial.is_some();
        match ended {
            Ok(mut answer) => {
                let (class, kind) = classify(&answer, self.grpc, &picked.policy);
                match class {
                    OutcomeClass::NetworkError | OutcomeClass::BusinessError => {
                        answer.guard.failed_head(class);
                    }
                    OutcomeClass::Success | OutcomeClass::Ignored => {}
                }
                let trigger = trigger_of(&answer, self.grpc);
                let wanted = if is_trial {
                    class.is_failure(picked.policy.exception_type)
                } else {
                    self.retryable(trigger)
                };
                if wanted && self.welcome(&answer) && self.another_follows(&picked, trigger) {
                    self.keep_spare(answer, class, kind, picked);
                    return Step::BackOff;
                }
                if std::mem::take(&mut self.course.budget_held) {
                    self.give_budget_back();
                }
                Step::Done(self.deliver(answer, class, kind, &picked))
            }
            Err(Failure::Full) => {
                self.guard.unattempt();
                self.course.full.push(picked.instance.id);
                Step::PickAnother
            }
            // Repeated inside `attempt`; it never comes out.
            Err(Failure::Stale) => Step::Done(Outcome::Refused(overflow(&self.route))),
            Err(Failure::Failed { refusal, trigger }) => {
                let app_left = matches!(
                    refusal.reason,
                    Reason::ClientClosed | Reason::ClientTimeout | Reason::BadRequest
                );
                let wanted = !app_left && (is_trial || self.retryable(trigger));
                if wanted && self.another_follows(&picked, trigger) {
                    self.course.first_failure.get_or_insert(refusal);
                    return Step::BackOff;
                }
                Step::Done(self.give_up(refusal))
            }
        }
    }

    /// Notes the instance as tried; whether another attempt is possible and the budget has it.
    fn another_follows(&mut self, picked: &Picked, trigger: Trigger) -> bool {
        self.course.tried.push(picked.instance.id);
        self.may_follow() && self.take_budget(trigger)
    }

    /// An upstream's answer is passed on; without one the first failure's reason is given.
    fn give_up(&mut self, refusal: Refusal) -> Outcome {
        if let Some(answer) = self.take_spare() {
            return answer;
        }
        Outcome::Refused(self.course.first_failure.take().unwrap_or(refusal))
    }

    pub(crate) fn service(&self) -> &Service {
        self.route.service(self.rule)
    }

    /// The live part of the request's route.
    pub fn state(&self) -> &Arc<RouteState> {
        self.route.state(self.rule)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.worker.clock.now()
    }

    /// One attempt.
    async fn attempt(&mut self, picked: &Picked, pass: Option<Pass>) -> Result<Answer, Failure> {
        self.begin_attempt(picked);
        let http2 = self.speaks_http2(picked.http2);
        let attempts = self.guard.attempts();
        let moment = self.moment.take();
        let attempt = Try {
            worker: &self.worker,
            limits: &self.snapshot.config.limits,
            route: &self.route,
            rule: self.rule,
            pass,
            service: self.route.service(self.rule),
            method: &self.method,
            target: &self.target,
            headers: &self.headers,
            body: self.body.as_ref(),
            grpc: self.grpc,
            http2,
            tried: &self.course.tried,
            attempts,
            lost: None,
        };
        let (time, timer) = (&mut self.time, &mut self.timer);
        attempt.run::<false>(picked, time, timer, moment).await
    }

    /// Counts it.
    pub(super) fn begin_attempt(&mut self, picked: &Picked) {
        self.course.spare = None;
        self.guard.judged_by(&picked.policy);
        self.guard.attempt(&picked.instance);
        if self.guard.attempts() > 1 {
            self.route.upstream.cells.retry(self.worker.index);
            if let Some(cells) = &self.state().cells {
                cells.retry(self.worker.index);
            }
        }
    }

    pub(super) fn speaks_http2(&self, hint: Option<bool>) -> bool {
        match self.service().protocol {
            Protocol::Http1 => false,
            Protocol::Http2 | Protocol::Grpc => true,
            // A tunnel can only be had over HTTP/1.1.
            Protocol::Auto => !self.upgrade && hint.unwrap_or(self.grpc),
        }
    }

    fn retryable(&self, trigger: Trigger) -> bool {
        retry::allows(&self.service().retry, trigger, &self.method, self.grpc)
    }

    /// Whether another attempt is possible: attempts left, a body that can be sent again, an untried
    /// instance, time.
    fn may_follow(&self) -> bool {
        self.body.as_ref().is_none_or(|b| b.can_replay())
            && self.now() < self.time.deadline()
            && self.guard.attempts() < self.service().retry.max_attempts
            && self.untried(self.list(&self.route.upstream.selectable()))
            && !self.breaker().refuses(self.now())
    }

    pub(super) fn untried(&self, selectable: &Selectable) -> bool {
        selectable.untried(&self.course.tried)
    }

    pub(super) fn deliver(
        &mut self,
        answer: Answer,
        class: OutcomeClass,
        kind: Option<ErrorKind>,
        picked: &Picked,
    ) -> Outcome {
        let Answer {
            response,
            source,
            coded,
            mut guard,
        } = answer;
        let now = self.now();
        let took = now.since(guard.sent_at);
        // Of an answer that was kept aside this was told when it came.
        if !guard.is_told() {
            guard.head(now);
            self.count_head(took);
            if self.service().balancing.load_balancer == LoadBalancer::PeakEwma {
                guard.instance.latency.observe(took, now);
            }
        }
        if let Some(fault) = rule_broken(&response, self.upgrade, coded) {
            let message = format!("{} {fault}", picked.instance.address);
            guard.finish(OutcomeClass::NetworkError, Some(ErrorKind::Protocol));
            return Outcome::Refused(Refusal::new(Reason::UpstreamProtocol, message));
        }
        if class == OutcomeClass::Success {
            if guard.is_trial() {
                guard.good_head(now);
            } else if picked.policy.slow.is_some() {
                let instance = &picked.instance;
                instance.count_time(self.worker.index, guard.sent_at, took);
            }
        }
        self.guard.head(response.status().as_u16(), now);
        if self.grpc
            && let Some(code) = response_body::grpc_code(response.headers())
        {
            self.guard.grpc_code(code);
        }
        let idle = idle_limit(self.service(), self.grpc, &response);
        Outcome::Answer(Box::new(Delivery {
            response,
            source,
            attempt: guard,
            class,
            kind,
            idle,
            at: now,
            fallback: None,
        }))
    }
}

/// The idle limit after the head: tunnels, gRPC and event streams are quiet by nature.
fn idle_limit(service: &Service, grpc: bool, head: &http::Response<()>) -> Option<Duration> {
    let timeout = &service.timeout;
    let quiet = grpc
        || head.status() == StatusCode::SWITCHING_PROTOCOLS
        || head
            .headers()
            .get(http::header::CONTENT_TYPE)
            .is_some_and(|v| v.as_bytes().starts_with(b"text/event-stream"));
    if quiet && !timeout.idle_explicit {
        Some(limits::LONG_IDLE)
    } else {
        timeout.idle
    }
}

fn overflow(route: &Route) -> Refusal {
    let pool = &route.settings.service.pool;
    let message = format!(
        "every instance of {} has {} connections open, and none came free within {:?} \
         (pool.max_connections_per_instance, pool.max_wait)",
        route.upstream.name, pool.max_connections_per_instance, pool.max_wait
    );
    let mut refusal = Refusal::new(Reason::Overflow, message);
    refusal.retry_after = Some(1);
    refusal
}

/// One attempt, and what it has in common with the others of its request.
#[derive(Clone, Copy)]
pub(super) struct Try<'a> {
    pub(super) worker: &'a Rc<Worker>,
    pub(super) limits: &'a Limits,
    pub(super) route: &'a Arc<Route>,
    pub(super) rule: RouteIndex,
    pub(super) pass: Option<Pass>,
    pub(super) service: &'a Service,
    pub(super) method: &'a Method,
    pub(super) target: &'a PathAndQuery,
    pub(super) headers: &'a RefCell<HeaderMap>,
    pub(super) body: Option<&'a Rc<RequestBody>>,
    pub(super) grpc: bool,
    pub(super) http2: bool,
    pub(super) tried: &'a [u64],
    pub(super) attempts: u32,
    pub(super) lost: Option<&'a Rc<Cell<bool>>>,
}

impl Try<'_> {
    /// Reports the attempt on `picked` that begins `now`.
    fn guard(&self, picked: &Picked, now: Timestamp) -> AttemptGuard {
        let lease = picked.trial.map(|(lease, _)| lease);
        let instance = Arc::clone(&picked.instance);
        let (worker, route) = (self.worker, self.route);
        let call = |pass| BreakerCall::new(breaker_state(route, self.rule), pass);
        let (call, lane) = (self.pass.map(call), picked.lane);
        let mut guard = AttemptGuard::new(worker, route, instance, now, lease, lane, call);
        if let Some(lost) = self.lost {
            guard.may_lose(lost);
        }
        guard
    }

    /// Runs it; a stale connection is repeated once on a new one, outside of all counts.
    pub(super) async fn run<const HEDGED: bool>(
        &self,
        picked: &Picked,
        time: &mut RequestLimits,
        timer: &mut Timer,
        mut moment: Option<Timestamp>,
    ) -> Result<Answer, Failure> {
        let Self {
            worker,
            route,
            service,
            method,
            headers,
            body,
            grpc,
            ..
        } = *self;
        let pool = worker.pools.of(&picked.instance);
        let retry = &service.retry;
        let follow = Follow {
            breaker: &breaker_state(route, self.rule).breaker,
            upstream: &route.upstream,
            retry,
            worker,
            lane: picked.lane,
            tried: self.tried,
            attempts: self.attempts,
        };
        let can_replay = body.is_none_or(|b| b.can_replay());
        let may_follow = || {
            retry.retry_on.attempt_timeout
                && can_replay
                && retry::method_allowed(&retry.methods, method, grpc)
                && follow.possible()
        };
        let head = RequestHead {
            method,
            target: self.target,
            headers,
            own_host: service.host_header == HostHeader::Instance,
            client: time.client().map(|_| time.deadline()),
        };
        let mut fresh = false;
        loop {
            let now = moment.take().unwrap_or_else(|| worker.clock.now());
            let mut attempt = Attempt {
                worker,
                service,
                limits: self.limits,
                time,
                timer,
                body,
                http2: self.http2,
                grpc,
                idempotent_method: retry::is_idempotent(method),
                lease_until: picked.trial.map(|(_, until)| until),
                fresh,
                begun: now,
            };
            match attempt::run::<HEDGED>(
                &mut attempt,
                &pool,
                self.guard(picked, now),
                &head,
                &may_follow,
            )
            .await
            {
                Err(Failure::Stale) if !fresh => fresh = true,
                other => return other,
            }
        }
    }
}
