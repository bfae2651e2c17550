//! The limits that hold while a response head is awaited: those of the attempt, of the request, and of
//! a request body that does not move. One timer for all of them.

use std::task::{Context, Poll};
use std::time::Duration;

use super::attempt::Attempt;
use super::outcome::{AttemptGuard, Cancelled};
use crate::clock::{Clock, Timestamp};
use crate::config::types::AttemptTimeout;
use crate::upstream::request_body::Stall;

/// What ended an attempt without a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    /// The attempt's own limit or the trial's lease.
    Attempt(Duration),
    /// The request's limit or the app's deadline.
    Request(Duration),
    /// The app sends no more of its body.
    App,
    /// The instance takes no more of the body.
    Instance(Duration),
}

/// The limits while a head is awaited.
pub(super) struct Watch {
    clock: Clock,
    started: Timestamp,
    limit: Option<Duration>,
    patience: Duration,
    extended: bool,
    written: Option<Timestamp>,
    /// When the body's progress was looked at last.
    looked: Timestamp,
}

impl Watch {
    pub(super) fn new(attempt: &Attempt<'_>, guard: &AttemptGuard, started: Timestamp) -> Self {
        let measure = attempt.time.attempt_measure();
        let mut watch = Self {
            clock: attempt.worker.clock,
            started,
            limit: attempt.time.attempt(true),
            patience: (measure / 5).max(Duration::from_secs(1)),
            extended: false,
            written: None,
            looked: started,
        };
        if attempt.body.is_none() {
            watch.written(attempt, guard, started);
        }
        watch
    }

    fn written(&mut self, attempt: &Attempt<'_>, guard: &AttemptGuard, at: Timestamp) {
        self.written = Some(at);
        guard.on_cancel(Cancelled::Waiting {
            since: at,
            patience: self.patience,
            client: attempt
                .time
                .client()
                .map(|end| (attempt.time.started(), end)),
        });
    }

    pub(super) fn poll_limits(
        &mut self,
        attempt: &mut Attempt<'_>,
        guard: &AttemptGuard,
        cx: &mut Context<'_>,
        may_follow: &dyn Fn() -> bool,
    ) -> Poll<Over> {
        if self.written.is_none()
            && let Some(body) = attempt.body
        {
            match body.written_at() {
                Some(at) => self.written(attempt, guard, at),
                None => body.set_owner(cx.waker()),
            }
        }
        loop {
            let (at, over) = self.next(attempt);
            // The body is polled by the connection's task. That it waits for the app from now on
            // wakes nobody here, so the timer never runs longer than the app may be silent.
            let look = match self.written {
                None => at.min(self.looked + attempt.limits.body_idle_timeout),
                Some(_) => at,
            };
            attempt.timer.set(look);
            if attempt.timer.poll(cx).is_pending() {
                return Poll::Pending;
            }
            if look < at {
                self.looked = look;
                continue;
            }
            let lateness = self.clock.now().since(at);
            match over {
                Over::Attempt(_) => {
                    let automatic = attempt.lease_until.is_none()
                        && matches!(attempt.service.timeout.attempt, AttemptTimeout::Auto);
                    if automatic && !self.extended && !may_follow() {
                        self.extended = true;
                        continue;
                    }
                    return Poll::Ready(Over::Attempt(lateness));
                }
                Over::Request(_) => return Poll::Ready(Over::Request(lateness)),
                // The body may have moved on since the timer was set.
                Over::App | Over::Instance(_) if self.next(attempt).0 > self.clock.now() => {}
                Over::App => return Poll::Ready(Over::App),
                Over::Instance(_) => return Poll::Ready(Over::Instance(lateness)),
            }
        }
    }

    /// The next limit and what it means.
    fn next(&self, attempt: &Attempt<'_>) -> (Timestamp, Over) {
        let zero = Duration::ZERO;
        let lease = attempt.lease_until.unwrap_or(Timestamp::MAX);
        let Some(written) = self.written else {
            // While the body is being sent neither attempt nor request time runs.
            let stall = attempt.body.map(|b| b.stall());
            let (at, over) = match stall {
                Some(Stall::App(since)) if !attempt.grpc => {
                    (since + attempt.limits.body_idle_timeout, Over::App)
                }
                Some(Stall::Instance(since)) => {
                    let idle = attempt.service.timeout.idle;
                    let at = idle.map_or(Timestamp::MAX, |idle| since + idle);
                    (at, Over::Instance(zero))
                }
                Some(Stall::App(_)) | None => (Timestamp::MAX, Over::App),
            };
            let client = attempt.time.client().unwrap_or(Timestamp::MAX);
            let candidates = [
                (at, over),
                (client, Over::Request(zero)),
                (lease, Over::Attempt(zero)),
            ];
            return earliest(candidates);
        };
        let mut time = *attempt.time;
        time.pause(written.since(self.started));
        let own = match self.limit {
            Some(limit) if !self.extended => written + limit,
            Some(_) | None => Timestamp::MAX,
        };
        earliest([
            (time.deadline(), Over::Request(zero)),
            (own.min(lease), Over::Attempt(zero)),
            (Timestamp::MAX, Over::App),
        ])
    }
}

fn earliest(candidates: [(Timestamp, Over); 3]) -> (Timestamp, Over) {
    let [first, rest @ ..] = candidates;
    rest.into_iter().fold(
        first,
        |best, next| if next.0 < best.0 { next } else { best },
    )
}
