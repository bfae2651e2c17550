//! Whether and when another try follows: the retry budget, what the last answer asks for, the delay, and
//! that answer itself, which is passed on when no other try can begin after all.
//! What may be repeated at all is said in `policy/retry.rs`. Next: `policy/stack.rs`.

use std::time::Duration;

use http::header::{HeaderName, HeaderValue};

use super::attempt::Answer;
use super::breaker::Breaker;
use super::pick::Picked;
use super::retry::{self, Pushback, Trigger};
use super::stack::{Exchange, Outcome};
use crate::config::types::Retry;
use crate::outlier::classify::{ErrorKind, OutcomeClass};
use crate::timer::within;
use crate::upstream::Upstream;
use crate::worker::Worker;

const PREVIOUS_ATTEMPTS: HeaderName = HeaderName::from_static("grpc-previous-rpc-attempts");

/// An answer that another try is to better. Its outcome is told; it waits with its connection until that
/// try begins.
#[derive(Debug)]
pub(super) struct Spare {
    answer: Answer,
    class: OutcomeClass,
    kind: Option<ErrorKind>,
    picked: Picked,
}

impl Exchange {
    /// Keeps an answer while the next try is waited for, but for one behind which the request's body
    /// would go on: more of it than is kept for the next try.
    pub(super) fn keep_spare(
        &mut self,
        mut answer: Answer,
        class: OutcomeClass,
        kind: Option<ErrorKind>,
        picked: Picked,
    ) {
        self.count_head(self.now().since(answer.guard.sent_at));
        answer.guard.tell(class, kind);
        if self.body.as_ref().is_some_and(|body| !body.is_finished()) {
            return;
        }
        self.course.spare = Some(Box::new(Spare {
            answer,
            class,
            kind,
            picked,
        }));
    }

    /// No other try can begin: the answer that was kept, if there is one. The try is not paid for.
    pub(super) fn take_spare(&mut self) -> Option<Outcome> {
        let spare = self.course.spare.take()?;
        self.give_budget_back();
        let Spare {
            answer,
            class,
            kind,
            picked,
        } = *spare;
        Some(self.deliver(answer, class, kind, &picked))
    }

    /// Counts the time until the head of an answer.
    pub(super) fn count_head(&self, took: Duration) {
        self.route.upstream.cells.attempt(self.worker.index, took);
    }

    /// Whether the answer lets another try follow, and when.
    pub(super) fn welcome(&mut self, answer: &Answer) -> bool {
        let left = self.time.deadline().since(self.now());
        let pushback = retry::pushback(answer.response.headers(), self.grpc, left);
        self.course.pushback = Some(pushback);
        pushback != Pushback::Never
    }

    pub(super) fn take_budget(&mut self, trigger: Trigger) -> bool {
        if trigger.nothing_sent() || std::mem::take(&mut self.course.budget_held) {
            return true;
        }
        let retry = &self.service().retry;
        let upstream = &self.route.upstream;
        let (requests, now) = (upstream.cells.requests(), self.now());
        let taken = upstream.budget.lock().is_ok_and(|mut budget| {
            budget.take(
                retry.budget_percent,
                retry.budget_min_per_second,
                requests,
                now,
            )
        });
        if !taken {
            upstream.cells.budget_exhausted(self.worker.index);
        } else if self.guard.attempts() == 0 {
            // Set aside for the case that the trial fails.
            self.course.budget_held = true;
        }
        taken
    }

    pub(super) fn give_budget_back(&self) {
        if let Ok(mut budget) = self.route.upstream.budget.lock() {
            budget.give_back();
        }
    }

    /// Waits for the next try. The end of the request, where its time is over before: then an answer
    /// that was kept is better than none.
    pub(super) async fn back_off(&mut self) -> Option<Outcome> {
        let pushback = self.course.pushback.take().unwrap_or(Pushback::Silent);
        let retry = &self.service().retry;
        let n = self.guard.attempts().saturating_sub(1);
        let most = u64::try_from(retry.backoff_jitter.as_nanos()).unwrap_or(u64::MAX);
        let jitter = Duration::from_nanos(self.worker.rng.borrow_mut().u64(0..=most));
        let delay = retry::delay(retry::backoff(retry, n, jitter), jitter, pushback);
        if self.grpc {
            self.count_previous_attempts();
        }
        if delay.is_zero() {
            return None;
        }
        let due = self.now() + delay;
        let until = due.min(self.time.deadline());
        within(&mut self.timer, until, std::future::pending::<()>()).await;
        if until < due {
            return self.take_spare();
        }
        None
    }

    /// Tells a gRPC server how often the call was tried before; what the app said itself is added to.
    /// Source: gRFC A6.
    fn count_previous_attempts(&mut self) {
        let headers = self.headers.get_mut();
        let said = |value: &HeaderValue| value.to_str().ok()?.parse::<u32>().ok();
        let own = self.course.own_attempts;
        let before = headers.get(PREVIOUS_ATTEMPTS).and_then(said).unwrap_or(0);
        self.course.own_attempts = self.guard.attempts();
        let more = self.course.own_attempts.saturating_sub(own);
        headers.insert(
            PREVIOUS_ATTEMPTS,
            HeaderValue::from(before.saturating_add(more)),
        );
    }
}

/// Whether another attempt could follow, as far as instances, attempts, breaker and budget go.
pub(super) struct Follow<'a> {
    pub(super) breaker: &'a Breaker,
    pub(super) upstream: &'a Upstream,
    pub(super) retry: &'a Retry,
    pub(super) worker: &'a Worker,
    pub(super) lane: u8,
    pub(super) tried: &'a [u64],
    pub(super) attempts: u32,
}

impl Follow<'_> {
    /// The present attempt's instance counts as tried here.
    pub(super) fn possible(&self) -> bool {
        let (retry, upstream) = (self.retry, self.upstream);
        let selectable = upstream.selectable();
        let untried = selectable.of_lane(self.lane).pickable() > self.tried.len() + 1;
        let now = self.worker.clock.now();
        let requests = upstream.cells.requests();
        self.attempts < retry.max_attempts
            && untried
            && !self.breaker.refuses(now)
            && upstream.budget.lock().is_ok_and(|mut budget| {
                let taken = budget.take(
                    retry.budget_percent,
                    retry.budget_min_per_second,
                    requests,
                    now,
                );
                if taken {
                    budget.give_back();
                }
                taken
            })
    }
}
