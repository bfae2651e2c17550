//! What stands before a request and before each of its attempts: a place of the bulkhead, a pass of the
//! circuit breaker; and what is said where there is none. Next: `policy/bulkhead.rs`,
//! `policy/breaker.rs`; the caller is `policy/stack.rs`.

use std::sync::Arc;
use std::time::Duration;

use super::breaker::Breaker;
use super::breaker::words::{Cause, Pass, Refused, RefusedBy, Verdict};
use super::bulkhead::{Bulkhead, Full};
use super::stack::Exchange;
use crate::clock::Timestamp;
use crate::config::types::CircuitBreaker;
use crate::error::{Reason, Refusal};
use crate::outlier::classify::OutcomeClass;
use crate::router::{Route, RouteIndex};
use crate::timer::within;
use crate::upstream::route_state::RouteState;

/// A call that the breaker let through, to be ended with its outcome.
#[derive(Debug)]
pub struct BreakerCall {
    state: Arc<RouteState>,
    pass: Pass,
}

impl BreakerCall {
    /// Let through by the breaker of `state`.
    pub fn new(state: &Arc<RouteState>, pass: Pass) -> Self {
        let state = Arc::clone(state);
        Self { state, pass }
    }

    /// Its response head came after this time.
    pub fn head(&self, took: Duration, now: Timestamp) {
        if self.pass.trial.is_some() {
            let breaker = &self.state.breaker;
            breaker.head(self.pass, breaker.is_slow(took), now);
        }
    }

    /// Its outcome. `took`: until its head, or its end without one.
    pub fn end(self, worker: usize, class: OutcomeClass, took: Duration, now: Timestamp) {
        let verdict = match class {
            OutcomeClass::Success => Verdict::Good,
            OutcomeClass::NetworkError | OutcomeClass::BusinessError => Verdict::Failed,
            OutcomeClass::Ignored => Verdict::Ignored,
        };
        let breaker = &self.state.breaker;
        let slow = breaker.is_slow(took);
        breaker.record(worker, self.pass, verdict, slow, now);
    }
}

/// The live part that holds the breaker of a request.
pub(super) fn breaker_state(route: &Route, rule: RouteIndex) -> &Arc<RouteState> {
    if route.service(rule).shares.breaker {
        route.upstream.own_state()
    } else {
        route.state(rule)
    }
}

impl Exchange {
    pub(super) fn breaker(&self) -> &Breaker {
        &breaker_state(&self.route, self.rule).breaker
    }

    fn bulkhead(&self) -> &Arc<Bulkhead> {
        if self.service().shares.bulkhead {
            &self.route.upstream.own_state().bulkhead
        } else {
            &self.state().bulkhead
        }
    }

    /// Takes a place of the bulkhead, if one is free.
    pub(super) fn take_place(&mut self) -> bool {
        let place = self.bulkhead().take();
        let taken = place.is_some();
        if let Some(place) = place {
            self.guard.hold(place);
        }
        taken
    }

    /// No place is free: waits for one, before all others if this request may serve as a trial. The
    /// request's time begins after it.
    pub(super) async fn wait_in_line(&mut self) -> Result<(), Refusal> {
        let urgent = self.may_be_trial();
        let place = match self.bulkhead().queue(urgent) {
            Ok(Ok(place)) => place,
            Err(full) => return Err(self.bulkhead_full(full)),
            Ok(Err(mut waiting)) => {
                let now = self.now();
                let limit = now + self.service().bulkhead.max_wait_duration;
                let until = self.time.client().map_or(limit, |client| limit.min(client));
                let called = within(&mut self.timer, until, waiting.called()).await;
                let Some(place) = called.flatten().or_else(|| waiting.give_up()) else {
                    let refusal = self.bulkhead_full(self.bulkhead().full());
                    return Err(if until < limit {
                        // The app's own deadline ended the wait.
                        Refusal::new(Reason::RequestTimeout, refusal.message)
                    } else {
                        refusal
                    });
                };
                self.moment = None;
                let now = self.now();
                self.time.restart(now);
                place
            }
        };
        self.guard.hold(place);
        Ok(())
    }

    /// Whether this request may serve as the trial of an ejected instance or of a half-open breaker.
    fn may_be_trial(&self) -> bool {
        let selectable = self.route.upstream.selectable();
        let selectable = self.list(&selectable);
        let offered = selectable.watch_requests
            && selectable.trials.iter().any(|offer| !offer.is_claimed())
            && self.may_try(selectable);
        offered || self.breaker().offers_trial(self.now())
    }

    fn bulkhead_full(&self, full: Full) -> Refusal {
        let settings = &self.service().bulkhead;
        let name = self.guarded_name(self.service().shares.bulkhead);
        let Full {
            in_use,
            limit,
            waiting,
        } = full;
        let queue = match (settings.max_queue, waiting < settings.max_queue) {
            (0, _) => "nothing may wait (bulkhead.max_queue 0)".to_owned(),
            (most, false) => format!("{waiting} of {most} wait (bulkhead.max_queue)"),
            (_, true) => format!(
                "no place came free within {:?} (bulkhead.max_wait_duration)",
                settings.max_wait_duration
            ),
        };
        let message = format!(
            "{in_use} of {limit} requests to {name} are in flight \
             (bulkhead.max_concurrent_calls), {queue}; see `outrigger explain {}`",
            self.route.upstream.name
        );
        let mut refusal = Refusal::new(Reason::Overflow, message);
        refusal.retry_after = Some(1);
        refusal
    }

    /// Whether the breaker lets an attempt through now; one load while it is closed.
    pub(super) fn ask_breaker(&self) -> Result<(), Refusal> {
        let now = || self.moment.unwrap_or_else(|| self.now());
        match self.breaker().check(now) {
            Ok(()) => Ok(()),
            Err(refused) => Err(self.circuit_open(&refused)),
        }
    }

    /// The pass of an attempt that begins now.
    pub(super) fn pass_breaker(&self) -> Result<Option<Pass>, Refusal> {
        let breaker = self.breaker();
        if breaker.is_off() {
            return Ok(None);
        }
        let now = self.moment.unwrap_or_else(|| self.now());
        match breaker.admit(now) {
            Ok(pass) => Ok(pass),
            Err(refused) => Err(self.circuit_open(&refused)),
        }
    }

    /// An attempt that was none, or whose outcome is told: a trial is free again.
    pub(super) fn give_pass_back(&self, pass: Option<Pass>) {
        if let Some(pass) = pass.filter(|pass| pass.trial.is_some()) {
            let (worker, now) = (self.worker.index, self.now());
            self.breaker()
                .record(worker, pass, Verdict::Ignored, false, now);
        }
    }

    fn circuit_open(&self, refused: &Refused) -> Refusal {
        let upstream = &self.route.upstream.name;
        let name = self.guarded_name(self.service().shares.breaker);
        let seconds = refused.retry_after.map_or(1, whole_seconds);
        let settings = &self.service().circuit_breaker;
        let message = match refused.by {
            RefusedBy::Operator => format!(
                "an operator holds the circuit breaker of {name} open for another {seconds} s; \
                 `outrigger breaker auto {name}` ends it"
            ),
            RefusedBy::Open => format!(
                "the circuit breaker of {name} is open: {}; trials begin in {seconds} s; see \
                 `outrigger explain {upstream}`",
                why(refused, settings)
            ),
            RefusedBy::Trials => format!(
                "the circuit breaker of {name} is half-open and its {} trials are under way; see \
                 `outrigger explain {upstream}`",
                settings.permitted_number_of_calls_in_half_open_state
            ),
        };
        let mut refusal = Refusal::new(Reason::CircuitOpen, message);
        refusal.retry_after = Some(seconds);
        refusal
    }

    /// `UPSTREAM` or `UPSTREAM/ROUTE`.
    fn guarded_name(&self, shared: bool) -> String {
        let upstream = &self.route.upstream.name;
        match self.state().name.as_ref().filter(|_| !shared) {
            Some(route) => format!("{upstream}/{route}"),
            None => upstream.to_string(),
        }
    }
}

/// Rounded up, at least one.
fn whole_seconds(time: Duration) -> u64 {
    let more = u64::from(time.subsec_nanos() > 0);
    time.as_secs().saturating_add(more).max(1)
}

fn why(refused: &Refused, settings: &CircuitBreaker) -> String {
    let counts = &refused.opening.counts;
    let window = settings.sliding_window_size;
    match refused.opening.cause {
        Cause::FailureRate => format!(
            "{} of {} calls failed within {window:?} (it opens at {} %)",
            counts.failed,
            counts.calls,
            percent(settings.failure_rate_bp)
        ),
        Cause::SlowCallRate => format!(
            "{} of {} calls took longer than {:?} (it opens at {} %)",
            counts.slow,
            counts.calls,
            settings.slow_call_duration,
            percent(settings.slow_call_rate_bp)
        ),
        Cause::Trial => "a trial failed".to_owned(),
        Cause::SlowTrial => format!("a trial took longer than {:?}", settings.slow_call_duration),
        Cause::LostTrial => "a trial gave no answer".to_owned(),
        Cause::Recalled => "it was before the restart".to_owned(),
        Cause::Operator => "an operator opened it".to_owned(),
    }
}

/// Hundredths of a percent as a percentage.
fn percent(bp: u32) -> f64 {
    f64::from(bp) / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_told_in_whole_seconds_and_never_as_none() {
        for (ms, want) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (59_999, 60)] {
            assert_eq!(whole_seconds(Duration::from_millis(ms)), want, "{ms}");
        }
    }
}
