//! One attempt: a connection to the picked instance, the request written, the head awaited, each
//! part within its limit. Reports its outcome unless a head came; then the body will.
//! Next: `upstream/pool.rs`; the caller is `policy/stack.rs`.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;

use super::limits::RequestLimits;
use super::outcome::{AttemptGuard, Cancelled};
use super::retry::Trigger;
use super::wire_error::{h2_error, h2_goaway, is_closed_early, is_our_own, not_processed};
use crate::clock::{Clock, Timestamp};
use crate::config::types::{Limits, Service};
use crate::error::{Reason, Refusal};
use crate::metrics::cells::{IgnoredCause, Limit};
use crate::outlier::classify::{ErrorKind, OutcomeClass};
use crate::timer::{Timer, within};
use crate::upstream::pool::{CheckoutError, InstancePool};
use crate::upstream::request_body::{AttemptBody, BodyFault, RequestBody, Stall};
use crate::upstream::request_head::RequestHead;
use crate::upstream::response_body::Carrier;
use crate::worker::Worker;

/// Everything one attempt needs.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts about one attempt, each set once"
)]
pub struct Attempt<'a> {
    /// Ours.
    pub worker: &'a Rc<Worker>,
    /// Settings of the service.
    pub service: &'a Service,
    /// Settings of the listeners.
    pub limits: &'a Limits,
    /// The request's time.
    pub time: &'a mut RequestLimits,
    /// The request's timer.
    pub timer: &'a mut Timer,
    /// The request's body, if it has one.
    pub body: Option<&'a Rc<RequestBody>>,
    /// Use HTTP/2.
    pub http2: bool,
    /// The request is gRPC.
    pub grpc: bool,
    /// Its method is idempotent.
    pub idempotent_method: bool,
    /// The trial's lease ends here.
    pub lease_until: Option<Timestamp>,
    /// Never reuse an open connection (the repeat after a stale one).
    pub fresh: bool,
    /// When it began.
    pub begun: Timestamp,
}

/// A head came.
#[derive(Debug)]
pub struct Answer {
    /// It, with the body to come.
    pub response: Response<Incoming>,
    /// The connection.
    pub carrier: Carrier,
    /// To be told the outcome.
    pub guard: AttemptGuard,
}

/// No head came.
#[derive(Debug)]
pub enum Failure {
    /// All connections of the instance are taken; nothing was tried.
    Full,
    /// A reused connection turned out to be closed: repeat on a new one, outside of all counts.
    Stale,
    /// The attempt failed and is accounted for.
    Failed {
        /// What to answer unless another attempt follows.
        refusal: Refusal,
        /// For `retry_on`.
        trigger: Trigger,
    },
}

/// Runs the attempt. `may_follow` is asked when an automatic attempt limit is over: without another
/// try to follow the attempt keeps what is left of the request's time.
pub async fn run(
    attempt: &mut Attempt<'_>,
    pool: &Rc<InstancePool>,
    guard: AttemptGuard,
    head: &RequestHead<'_>,
    may_follow: &dyn Fn() -> bool,
) -> Result<Answer, Failure> {
    let mut started = attempt.begun;
    let carrier = match reuse(attempt, pool) {
        Some(carrier) => carrier,
        None => {
            // Rare: boxed, so that an attempt on an open connection stays small.
            let connected = Box::pin(connect(attempt, pool)).await;
            started = attempt.worker.clock.now();
            match connected {
                Ok(carrier) => carrier,
                Err(end) => return Err(connect_failed(attempt, guard, end)),
            }
        }
    };
    let mut sending = send(attempt, carrier, guard, head, started)?;
    let mut watch = Watch::new(attempt, &sending.guard, started);
    let ended = std::future::poll_fn(|cx| {
        if let Poll::Ready(sent) = sending.future.as_mut().poll(cx) {
            return Poll::Ready(Ok(sent));
        }
        watch
            .poll_limits(attempt, &sending.guard, cx, may_follow)
            .map(Err)
    })
    .await;
    finish(attempt, sending, ended, started)
}

/// A request handed to its connection.
struct Sending {
    carrier: Carrier,
    guard: AttemptGuard,
    future: Pin<Box<dyn Future<Output = Sent>>>,
}

type Sent = Result<Response<Incoming>, TrySendError<Request<AttemptBody>>>;

/// Hands the request to the connection.
fn send(
    attempt: &Attempt<'_>,
    mut carrier: Carrier,
    guard: AttemptGuard,
    head: &RequestHead<'_>,
    started: Timestamp,
) -> Result<Sending, Failure> {
    let body = match attempt.body {
        Some(body) => body.attempt(),
        None => AttemptBody::empty(),
    };
    let Some(request) = head.build(&guard.instance, body, started) else {
        guard.forget();
        let message = "the request cannot be written for this instance".to_owned();
        return Err(failed(Reason::BadRequest, message, Trigger::Other));
    };
    let future: Pin<Box<dyn Future<Output = Sent>>> = match &mut carrier {
        Carrier::Http1(lent) => Box::pin(lent.sender.try_send_request(request)),
        Carrier::Http2(stream) => {
            guard.dies_with(stream.connection());
            Box::pin(stream.sender.try_send_request(request))
        }
    };
    Ok(Sending {
        carrier,
        guard,
        future,
    })
}

/// The head came, or did not.
fn finish(
    attempt: &mut Attempt<'_>,
    sending: Sending,
    ended: Result<Sent, Over>,
    started: Timestamp,
) -> Result<Answer, Failure> {
    if let Some(written) = attempt.body.and_then(|b| b.written_at()) {
        attempt.time.pause(written.since(started));
    }
    let Sending {
        carrier,
        guard,
        future,
    } = sending;
    drop(future);
    match ended {
        Ok(Ok(response)) => {
            guard.on_cancel(Cancelled::Class(OutcomeClass::Success, None));
            Ok(Answer {
                response,
                carrier,
                guard,
            })
        }
        Ok(Err(mut error)) => {
            let unsent = error.take_message().is_some();
            let error = error.error();
            let reused = match &carrier {
                Carrier::Http1(lent) => lent.reused,
                Carrier::Http2(stream) => {
                    if unsent || h2_goaway(error) || error.is_closed() {
                        stream.retire();
                    }
                    stream.reused
                }
            };
            Err(send_failed(attempt, guard, error, unsent, reused))
        }
        Err(over) => {
            let now = attempt.worker.clock.now();
            Err(time_is_over(attempt, guard, &over, started, now))
        }
    }
}

/// An open connection, unless a fresh one is wanted.
fn reuse(attempt: &Attempt<'_>, pool: &Rc<InstancePool>) -> Option<Carrier> {
    let settings = &attempt.service.pool;
    if attempt.fresh {
        None
    } else if attempt.http2 {
        pool.reuse_stream(settings).map(Carrier::Http2)
    } else {
        pool.reuse(settings).map(Carrier::Http1)
    }
}

/// Why there is no connection.
enum NoCarrier {
    /// Not in time.
    TimeIsOver,
    /// The pool says why.
    Checkout(CheckoutError),
}

/// A new connection, within the limits that lie before the attempt's clock.
async fn connect(attempt: &mut Attempt<'_>, pool: &Rc<InstancePool>) -> Result<Carrier, NoCarrier> {
    let until = (attempt.begun + attempt.service.timeout.connect)
        .min(attempt.time.deadline())
        .min(attempt.lease_until.unwrap_or(Timestamp::MAX));
    let (settings, limits) = (&attempt.service.pool, attempt.limits);
    let (fresh, http2) = (attempt.fresh, attempt.http2);
    let connect = async {
        match (http2, fresh) {
            (false, _) => pool.connect(settings, limits).await.map(Carrier::Http1),
            (true, false) => pool.stream(settings, limits).await.map(Carrier::Http2),
            (true, true) => pool.connect_h2(settings, limits).await.map(Carrier::Http2),
        }
    };
    match within(attempt.timer, until, connect).await {
        Some(connected) => connected.map_err(NoCarrier::Checkout),
        None => Err(NoCarrier::TimeIsOver),
    }
}

fn connect_failed(attempt: &Attempt<'_>, guard: AttemptGuard, end: NoCarrier) -> Failure {
    let address = guard.instance.address.clone();
    match end {
        NoCarrier::TimeIsOver => connect_timed_out(attempt, guard),
        NoCarrier::Checkout(CheckoutError::Full) => {
            guard.forget();
            attempt.worker.limit_hit(Limit::PoolConnections);
            Failure::Full
        }
        NoCarrier::Checkout(CheckoutError::Failed(error)) if is_our_own(&error) => {
            guard.ignore(IgnoredCause::SelfLag);
            attempt.worker.limit_hit(Limit::OpenFiles);
            let message = format!(
                "no connection to {address} could be opened on our side: {error}; raise the limit \
                 of open files"
            );
            failed(Reason::ConnectFailed, message, Trigger::Other)
        }
        NoCarrier::Checkout(CheckoutError::Failed(error)) => {
            guard.finish(OutcomeClass::NetworkError, Some(ErrorKind::ConnectRefused));
            let message = format!("cannot connect to {address}: {error}");
            failed(Reason::ConnectFailed, message, Trigger::ConnectFailure)
        }
        NoCarrier::Checkout(CheckoutError::Handshake(error)) => {
            guard.finish(OutcomeClass::NetworkError, Some(ErrorKind::Protocol));
            let message = format!("{address} does not speak HTTP/2: {error}");
            failed(Reason::ConnectFailed, message, Trigger::ConnectFailure)
        }
    }
}

fn failed(reason: Reason, message: String, trigger: Trigger) -> Failure {
    Failure::Failed {
        refusal: Refusal::new(reason, message),
        trigger,
    }
}

/// What ended an attempt without a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
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
struct Watch {
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
    fn new(attempt: &Attempt<'_>, guard: &AttemptGuard, started: Timestamp) -> Self {
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

    fn poll_limits(
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
                        && matches!(
                            attempt.service.timeout.attempt,
                            crate::config::types::AttemptTimeout::Auto
                        );
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

fn connect_timed_out(attempt: &Attempt<'_>, guard: AttemptGuard) -> Failure {
    let address = guard.instance.address.clone();
    let (now, from) = (attempt.worker.clock.now(), attempt.begun);
    let lateness = now.since(attempt.timer.at());
    let limit = attempt.service.timeout.connect;
    if now >= from + limit || attempt.lease_until.is_some_and(|lease| now >= lease) {
        guard.timed_out(ErrorKind::ConnectTimeout, from, lateness);
        let message = format!("no connection to {address} within {limit:?}");
        return failed(Reason::ConnectTimeout, message, Trigger::ConnectFailure);
    }
    request_over(attempt, guard, from, now, lateness)
}

/// The request's time ended this attempt: charged when it had a fair share of it.
fn request_over(
    attempt: &Attempt<'_>,
    guard: AttemptGuard,
    from: Timestamp,
    now: Timestamp,
    lateness: Duration,
) -> Failure {
    let address = guard.instance.address.clone();
    if now.since(from) >= attempt.time.charged_after(true) {
        guard.timed_out(ErrorKind::RequestTimeout, from, lateness);
    } else {
        guard.finish(OutcomeClass::Ignored, None);
    }
    let message = format!("no answer within the request's time; the last try was at {address}");
    failed(Reason::RequestTimeout, message, Trigger::Other)
}

fn time_is_over(
    attempt: &Attempt<'_>,
    guard: AttemptGuard,
    over: &Over,
    started: Timestamp,
    now: Timestamp,
) -> Failure {
    let address = guard.instance.address.clone();
    match *over {
        Over::Attempt(lateness) => {
            guard.timed_out(ErrorKind::AttemptTimeout, started, lateness);
            let message = format!("{address} gave no answer within the attempt's time");
            failed(Reason::AttemptTimeout, message, Trigger::AttemptTimeout)
        }
        Over::Request(lateness) => {
            let from = attempt.body.and_then(|b| b.written_at()).unwrap_or(started);
            request_over(attempt, guard, from, now, lateness)
        }
        Over::App => {
            guard.ignore(IgnoredCause::ClientCancel);
            attempt.worker.limit_hit(Limit::BodyIdleTimeout);
            let message = "the request body stopped coming".to_owned();
            failed(Reason::ClientTimeout, message, Trigger::Other)
        }
        Over::Instance(lateness) => {
            guard.timed_out(ErrorKind::Idle, started, lateness);
            let message = format!("{address} takes no more of the request body");
            failed(Reason::UpstreamIdle, message, Trigger::Other)
        }
    }
}

/// The connection failed before a head.
fn send_failed(
    attempt: &Attempt<'_>,
    guard: AttemptGuard,
    error: &hyper::Error,
    unsent: bool,
    reused: bool,
) -> Failure {
    if let Some(fault) = attempt.body.and_then(|b| b.fault()) {
        guard.ignore(IgnoredCause::ClientCancel);
        return app_fault(attempt, fault);
    }
    let address = guard.instance.address.clone();
    let refused = h2_error(error).is_some_and(not_processed);
    // A body that outgrew what is kept cannot be sent from its start again, whatever the instance
    // says; the next attempt would carry on in its middle.
    let replayable = attempt.body.is_none_or(|b| b.can_replay());
    let closed = reused && is_closed_early(error) && attempt.repeatable();
    if replayable && !attempt.fresh && (refused || unsent || closed) {
        guard.forget();
        return Failure::Stale;
    }
    if refused || (unsent && attempt.fresh) {
        guard.finish(OutcomeClass::NetworkError, Some(ErrorKind::Reset));
        let message = format!("{address} refuses the request: {error}");
        let trigger = if refused {
            Trigger::RefusedStream
        } else {
            Trigger::ConnectFailure
        };
        return failed(Reason::UpstreamReset, message, trigger);
    }
    let protocol = error.is_parse() || error.is_parse_too_large();
    let (reason, kind) = if protocol {
        (Reason::UpstreamProtocol, ErrorKind::Protocol)
    } else {
        (Reason::UpstreamReset, ErrorKind::Reset)
    };
    if error.is_parse_too_large() {
        attempt.worker.limit_hit(Limit::MaxResponseHeaderBytes);
    }
    guard.finish(OutcomeClass::NetworkError, Some(kind));
    let message = format!("{address} broke off before a complete response head: {error}");
    failed(
        reason,
        message,
        if protocol {
            Trigger::Other
        } else {
            Trigger::Reset
        },
    )
}

impl Attempt<'_> {
    /// A request that was written may be repeated on a new connection.
    fn repeatable(&self) -> bool {
        self.service.retry.methods.all || self.idempotent_method
    }
}

/// The app's body failed.
pub fn app_fault(attempt: &Attempt<'_>, fault: BodyFault) -> Failure {
    let (reason, message) = match fault {
        BodyFault::Malformed => (Reason::BadRequest, "the request body's framing is broken"),
        BodyFault::Gone => (
            Reason::ClientClosed,
            "the app ended the connection inside the body",
        ),
        BodyFault::TooLarge => {
            attempt.worker.limit_hit(Limit::MaxBodyBytes);
            (
                Reason::BodyTooLarge,
                "the request body is larger than limits.max_body_bytes",
            )
        }
    };
    failed(reason, message.to_owned(), Trigger::Other)
}
