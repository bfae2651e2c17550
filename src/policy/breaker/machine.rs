//! The circuit breaker as a pure machine: calls and a time go in, verdicts and effects come out.
//!
//! | state | a call | leaves it |
//! |---|---|---|
//! | closed | is let through and counted | to open, at the bad call with which a rate of the window reaches its threshold, from `minimum_number_of_calls` on |
//! | open | is refused | to half-open, `wait_duration_in_open_state` after it opened |
//! | half-open | is a trial while there is room, else refused | to closed when all permitted trials were good, to open with the first bad one |
//!
//! A trial holds a lease. Its answer ends it; an ignored outcome gives it back; at its end a good head
//! with an open body is a good trial, anything else a bad one. Every change of state begins a new
//! generation, and what belongs to an older one moves nothing. Under `observe` all of this happens
//! beside the traffic: nothing is refused. An operator's order stands above the state.
//!
//! Only bad calls come here while it is closed; good ones are counted by the workers and handed in as
//! a number. At one instant the order is: the end of an order, the wait's end, leases, then the input.
//! Next: `breaker.rs`, which shares one between threads.

use std::collections::VecDeque;
use std::time::Duration;

use super::window::{BadCalls, Width};
use super::words::{
    Cause, ClosedBy, Counts, Effect, EffectKind, Opening, Order, Pass, Refused, RefusedBy,
    Remembered, Stage, Verdict,
};
use crate::clock::Timestamp;
use crate::config::types::{BreakerMode, CircuitBreaker};

mod view;

/// Effects that are kept for the reader at most; older ones go first.
const MOST_EFFECTS: usize = 256;
/// A trial's lease is longer than a slow call by this much, so that an answer just in time is not
/// lost to the order of events.
const LEASE_MARGIN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
enum State {
    Closed,
    Open {
        since: Timestamp,
        until: Timestamp,
        opening: Opening,
    },
    HalfOpen {
        since: Timestamp,
        good: u32,
        trials: Vec<Trial>,
        opening: Opening,
    },
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    id: u64,
    until: Timestamp,
    head: bool,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Machine {
    settings: CircuitBreaker,
    width: Width,
    state: State,
    generation: u32,
    bad: BadCalls,
    order: Option<(Order, Timestamp)>,
    trials_given: u64,
    refused: u64,
    /// The latest instant that was seen; time never goes back.
    now: Timestamp,
    effects: VecDeque<Effect>,
}

impl Machine {
    /// A closed one.
    pub fn new(settings: CircuitBreaker) -> Self {
        Self {
            width: Width::of(settings.sliding_window_size),
            settings,
            state: State::Closed,
            generation: 0,
            bad: BadCalls::default(),
            order: None,
            trials_given: 0,
            refused: 0,
            now: Timestamp::ZERO,
            effects: VecDeque::new(),
        }
    }

    /// New settings. Another mode begins anew; another window too while it is closed; a shorter wait
    /// pulls the trials forward, a longer one does not move them.
    pub fn configure(&mut self, settings: CircuitBreaker, now: Timestamp) {
        let now = self.settle(now);
        let old = std::mem::replace(&mut self.settings, settings);
        if old.mode != self.settings.mode {
            self.close_silently(now, ClosedBy::Configuration, old.mode);
        }
        let width = Width::of(self.settings.sliding_window_size);
        if width != self.width {
            self.width = width;
            self.bad = BadCalls::default();
            if matches!(self.state, State::Closed) {
                self.next_generation();
            }
        }
        let wait = self.settings.wait_duration_in_open_state;
        if let State::Open { since, until, .. } = &mut self.state {
            *until = (*until).min(*since + wait);
        }
        self.close_when_all_were_good(now);
        self.settle(now);
    }

    /// Asks for a call.
    ///
    /// # Errors
    /// It is not let through.
    pub fn admit(&mut self, now: Timestamp) -> Result<Pass, Refused> {
        let now = self.settle(now);
        let generation = self.generation;
        if let Some(refused) = self.refusal(now) {
            self.refused += 1;
            if self.is_binding() {
                return Err(refused);
            }
        } else if self.order.is_none()
            && let State::HalfOpen { trials, .. } = &mut self.state
        {
            let slow = self.settings.slow_call_duration;
            let id = self.trials_given;
            self.trials_given += 1;
            trials.push(Trial {
                id,
                until: now + slow.saturating_add(LEASE_MARGIN),
                head: false,
            });
            return Ok(Pass {
                generation,
                trial: Some(id),
            });
        }
        Ok(Pass {
            generation,
            trial: None,
        })
    }

    /// Whether a call that is asked for now is refused; one that is takes no trial.
    ///
    /// # Errors
    /// It would not be let through, and counts as refused.
    pub fn check(&mut self, now: Timestamp) -> Result<(), Refused> {
        let now = self.settle(now);
        match self.refusal(now).filter(|_| self.is_binding()) {
            Some(refused) => {
                self.refused += 1;
                Err(refused)
            }
            None => Ok(()),
        }
    }

    /// A call's response head came. Only for trials.
    pub fn head(&mut self, pass: Pass, slow: bool, now: Timestamp) {
        let now = self.settle(now);
        let Some(trial) = self.trial(pass) else {
            return;
        };
        if slow {
            self.open(now, Cause::SlowTrial, Counts::default());
        } else {
            trial.head = true;
        }
    }

    /// A call's outcome. `good`: the good calls that the workers count in the present window.
    pub fn record(&mut self, pass: Pass, verdict: Verdict, slow: bool, good: u64, now: Timestamp) {
        let now = self.settle(now);
        if pass.generation != self.generation || self.stage() == Stage::Off {
            return;
        }
        match (&mut self.state, pass.trial) {
            (State::Closed, None) if verdict != Verdict::Ignored => {
                let failed = verdict == Verdict::Failed;
                self.count(failed, slow, good, now);
            }
            (State::HalfOpen { good, trials, .. }, Some(id)) => {
                let Some(at) = trials.iter().position(|trial| trial.id == id) else {
                    return;
                };
                trials.swap_remove(at);
                match verdict {
                    Verdict::Ignored => {}
                    Verdict::Good if !slow => {
                        *good += 1;
                        self.close_when_all_were_good(now);
                    }
                    Verdict::Good => self.open(now, Cause::SlowTrial, Counts::default()),
                    Verdict::Failed => self.open(now, Cause::Trial, Counts::default()),
                }
            }
            // Let through beside an observed state, or of a state that is over.
            (State::Closed | State::Open { .. } | State::HalfOpen { .. }, _) => {}
        }
    }

    /// An operator's order, until its time is over. It replaces another one.
    pub fn order(&mut self, order: Order, until: Timestamp, now: Timestamp) {
        let now = self.settle(now);
        self.order = Some((order, until));
        self.close_silently(now, ClosedBy::Operator, self.settings.mode);
    }

    /// Ends an order: what was forced open goes on half-open, what was forced closed goes on closed.
    pub fn release(&mut self, now: Timestamp) {
        let now = self.settle(now);
        if let Some((order, _)) = self.order.take() {
            self.resume(order, now);
        }
    }

    /// What an earlier process knew. Only before the first call.
    pub fn recall(&mut self, remembered: Remembered, now: Timestamp) {
        let now = self.settle(now);
        let closed = matches!(self.state, State::Closed);
        if self.settings.mode != BreakerMode::Enforce || self.order.is_some() || !closed {
            return;
        }
        let wait = self.settings.wait_duration_in_open_state;
        let left = remembered.left.min(wait);
        self.open_for(left, now, Cause::Recalled, Counts::default());
        self.settle(now);
    }

    /// Lets the time come to `now`, and says what the time is: never earlier than before.
    pub fn settle(&mut self, now: Timestamp) -> Timestamp {
        let now = now.max(self.now);
        self.now = now;
        if let Some((order, until)) = self.order
            && until <= now
        {
            self.order = None;
            self.tell(now, false, EffectKind::OrderEnded(order));
            self.resume(order, now);
        }
        if let State::Open {
            since,
            until,
            opening,
        } = &self.state
            && *until <= now
        {
            let (after, opening) = (now.since(*since), *opening);
            self.half_open(now, after, opening);
        }
        self.end_leases(now);
        now
    }

    /// The next thing to tell.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Whether there is something to tell.
    pub fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// Whether a call asked for now would be refused.
    pub fn refuses(&mut self, now: Timestamp) -> bool {
        let now = self.settle(now);
        self.is_binding() && self.refusal(now).is_some()
    }

    /// Whether a call asked for now would be a trial.
    pub fn offers_trial(&mut self, now: Timestamp) -> bool {
        self.settle(now);
        self.order.is_none()
            && self.settings.mode == BreakerMode::Enforce
            && matches!(self.state, State::HalfOpen { .. })
            && !self.refuses(now)
    }

    /// The window with `good` calls of the workers.
    pub fn counts(&mut self, good: u64, now: Timestamp) -> Counts {
        let now = self.settle(now);
        self.bad.advance(self.width.slice(now));
        let bad = self.bad.total();
        Counts {
            calls: bad.calls.saturating_add(good),
            failed: bad.failed,
            slow: bad.slow,
        }
    }

    /// What stands against a call at `now`, binding or not.
    fn refusal(&self, now: Timestamp) -> Option<Refused> {
        let (by, retry_after, opening) = match (self.order, &self.state) {
            (Some((Order::ForceOpen, until)), _) => {
                (RefusedBy::Operator, Some(until.since(now)), NOTHING_SEEN)
            }
            (Some((Order::ForceClosed | Order::Disable, _)), _) | (None, State::Closed) => {
                return None;
            }
            (None, State::Open { until, opening, .. }) => {
                (RefusedBy::Open, Some(until.since(now)), *opening)
            }
            (
                None,
                State::HalfOpen {
                    good,
                    trials,
                    opening,
                    ..
                },
            ) => {
                let under_way = u32::try_from(trials.len()).unwrap_or(u32::MAX);
                if good.saturating_add(under_way) < self.permitted() {
                    return None;
                }
                (RefusedBy::Trials, None, *opening)
            }
        };
        Some(Refused {
            by,
            retry_after,
            opening,
        })
    }

    /// Whether it does what it says.
    fn is_binding(&self) -> bool {
        self.order.is_some() || self.settings.mode == BreakerMode::Enforce
    }

    fn permitted(&self) -> u32 {
        self.settings
            .permitted_number_of_calls_in_half_open_state
            .max(1)
    }

    fn trial(&mut self, pass: Pass) -> Option<&mut Trial> {
        let current = pass.generation == self.generation;
        let id = pass.trial.filter(|_| current)?;
        match &mut self.state {
            State::HalfOpen { trials, .. } => trials.iter_mut().find(|trial| trial.id == id),
            State::Closed | State::Open { .. } => None,
        }
    }

    /// A call while it is closed.
    fn count(&mut self, failed: bool, slow: bool, good: u64, now: Timestamp) {
        if !failed && !slow {
            return;
        }
        self.bad.add(failed, slow, self.width.slice(now));
        if self.order.is_some() {
            return;
        }
        let counts = self.counts(good, now);
        let settings = &self.settings;
        if counts.calls < u64::from(settings.minimum_number_of_calls) {
            return;
        }
        let reaches = |part: u64, bp: u32| {
            u128::from(part) * 10_000 >= u128::from(counts.calls) * u128::from(bp)
        };
        if reaches(counts.failed, settings.failure_rate_bp) {
            self.open(now, Cause::FailureRate, counts);
        } else if reaches(counts.slow, settings.slow_call_rate_bp) {
            self.open(now, Cause::SlowCallRate, counts);
        }
    }

    fn open(&mut self, now: Timestamp, cause: Cause, counts: Counts) {
        self.open_for(
            self.settings.wait_duration_in_open_state,
            now,
            cause,
            counts,
        );
    }

    fn open_for(&mut self, wait: Duration, now: Timestamp, cause: Cause, counts: Counts) {
        let opening = Opening { cause, counts };
        self.state = State::Open {
            since: now,
            until: now + wait,
            opening,
        };
        self.refused = 0;
        self.bad = BadCalls::default();
        self.next_generation();
        let observed = self.settings.mode == BreakerMode::Observe;
        self.tell(now, observed, EffectKind::Opened { opening, wait });
    }

    fn half_open(&mut self, now: Timestamp, after: Duration, opening: Opening) {
        self.state = State::HalfOpen {
            since: now,
            good: 0,
            trials: Vec::new(),
            opening,
        };
        self.next_generation();
        let observed = self.settings.mode == BreakerMode::Observe;
        self.tell(now, observed, EffectKind::HalfOpen { after });
    }

    fn end_leases(&mut self, now: Timestamp) {
        let State::HalfOpen { good, trials, .. } = &mut self.state else {
            return;
        };
        let over = trials.extract_if(.., |trial| trial.until <= now);
        let (mut answered, mut lost) = (0_u32, false);
        for trial in over {
            if trial.head {
                answered += 1;
            } else {
                lost = true;
            }
        }
        *good = good.saturating_add(answered);
        if lost {
            self.open(now, Cause::LostTrial, Counts::default());
        } else {
            self.close_when_all_were_good(now);
        }
    }

    fn close_when_all_were_good(&mut self, now: Timestamp) {
        if let State::HalfOpen { good, .. } = self.state
            && good >= self.permitted()
        {
            self.close(now, good, ClosedBy::Trials, self.settings.mode);
        }
    }

    fn close(&mut self, now: Timestamp, good: u32, by: ClosedBy, mode: BreakerMode) {
        self.state = State::Closed;
        self.bad = BadCalls::default();
        self.next_generation();
        let observed = mode == BreakerMode::Observe;
        self.tell(now, observed, EffectKind::Closed { good, by });
    }

    /// Begins anew, closed; told only when it was not closed.
    fn close_silently(&mut self, now: Timestamp, by: ClosedBy, mode: BreakerMode) {
        if matches!(self.state, State::Closed) {
            self.bad = BadCalls::default();
            self.next_generation();
        } else {
            self.close(now, 0, by, mode);
        }
    }

    /// What follows an order.
    fn resume(&mut self, order: Order, now: Timestamp) {
        match order {
            Order::ForceOpen if self.settings.mode == BreakerMode::Enforce => {
                self.half_open(now, Duration::ZERO, NOTHING_SEEN);
            }
            Order::ForceOpen | Order::ForceClosed | Order::Disable => {
                self.bad = BadCalls::default();
                self.next_generation();
            }
        }
    }

    const fn next_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1) & GENERATIONS;
    }

    fn tell(&mut self, at: Timestamp, observed: bool, kind: EffectKind) {
        if self.effects.len() >= MOST_EFFECTS {
            self.effects.pop_front();
        }
        self.effects.push_back(Effect { at, observed, kind });
    }
}

/// Generations fit into what the workers share (`breaker.rs`).
pub const GENERATIONS: u32 = 0xff_ffff;

const NOTHING_SEEN: Opening = Opening {
    cause: Cause::Operator,
    counts: Counts {
        calls: 0,
        failed: 0,
        slow: 0,
    },
};

#[cfg(test)]
mod tests;
