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
use super::watch::{Over, Watch};
use super::wire_error::SendFault;
use crate::clock::Timestamp;
use crate::config::types::{Limits, Service};
use crate::error::{Reason, Refusal};
use crate::metrics::cells::{IgnoredCause, Limit};
use crate::outlier::classify::{ErrorKind, OutcomeClass};
use crate::timer::{Timer, within};
use crate::upstream::connect::is_our_own;
use crate::upstream::http1::{Call, ResponseStart, WireError};
use crate::upstream::pool::{CheckoutError, InstancePool, Lent, Stream};
use crate::upstream::request_body::{AttemptBody, BodyFault, RequestBody};
use crate::upstream::request_head::RequestHead;
use crate::upstream::response_body::Source;
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
    /// It.
    pub response: Response<()>,
    /// The body to come.
    pub source: Source,
    /// It may have a transfer coding.
    pub coded: bool,
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
/// try to follow the attempt keeps what is left of the request's time. `HEDGED` changes nothing but
/// that the usual way is a function with one caller, inlined there: its large results are not copied.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn would hold its arguments twice, and the guard is large"
)]
pub fn run<const HEDGED: bool>(
    attempt: &mut Attempt<'_>,
    pool: &Rc<InstancePool>,
    guard: AttemptGuard,
    head: &RequestHead<'_>,
    may_follow: &dyn Fn() -> bool,
) -> impl Future<Output = Result<Answer, Failure>> {
    async move {
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
            if let Poll::Ready(sent) = sending.under_way.poll(cx) {
                return Poll::Ready(Ok(sent));
            }
            watch
                .poll_limits(attempt, &sending.guard, cx, may_follow)
                .map(Err)
        })
        .await;
        finish(attempt, sending, ended, started)
    }
}

/// A connection before a head came.
#[derive(Debug)]
enum Carrier {
    /// HTTP/1.1, lent.
    Http1(Lent),
    /// A stream of an HTTP/2 connection.
    Http2(Stream),
}

/// A request handed to its connection.
struct Sending {
    under_way: UnderWay,
    guard: AttemptGuard,
}

#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the usual one, and lives in a future that is boxed"
)]
enum UnderWay {
    Http1(Lent, Call),
    Http2(Stream, Pin<Box<dyn Future<Output = Sent>>>),
}

type Sent = Result<Response<Incoming>, TrySendError<Request<AttemptBody>>>;

/// A response head, or what prevented it.
enum Heard {
    Http1(Result<ResponseStart, WireError>),
    Http2(Sent),
}

impl UnderWay {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Heard> {
        match self {
            Self::Http1(lent, call) => call.poll(lent.connection(), cx).map(Heard::Http1),
            Self::Http2(_, future) => future.as_mut().poll(cx).map(Heard::Http2),
        }
    }
}

/// Hands the request to the connection.
#[inline(always)]
fn send(
    attempt: &Attempt<'_>,
    carrier: Carrier,
    guard: AttemptGuard,
    head: &RequestHead<'_>,
    started: Timestamp,
) -> Result<Sending, Failure> {
    let body = attempt.body.map(|body| body.attempt());
    let under_way = match carrier {
        Carrier::Http1(mut lent) => {
            let spare = attempt.worker.spare_headers();
            let call = head.call(lent.connection(), &guard.instance, body, started, spare);
            UnderWay::Http1(lent, call)
        }
        Carrier::Http2(mut stream) => {
            let body = body.unwrap_or_else(AttemptBody::empty);
            let Some(request) = head.build(&guard.instance, body, started) else {
                guard.forget();
                let message = "the request cannot be written for this instance".to_owned();
                return Err(failed(Reason::BadRequest, message, Trigger::Other));
            };
            guard.dies_with(stream.connection());
            let future = Box::pin(stream.sender.try_send_request(request));
            UnderWay::Http2(stream, future)
        }
    };
    Ok(Sending { under_way, guard })
}

/// The head came, or did not.
#[inline(always)]
fn finish(
    attempt: &mut Attempt<'_>,
    sending: Sending,
    ended: Result<Heard, Over>,
    started: Timestamp,
) -> Result<Answer, Failure> {
    if let Some(written) = attempt.body.and_then(|b| b.written_at()) {
        attempt.time.pause(written.since(started));
    }
    let Sending {
        mut under_way,
        guard,
    } = sending;
    let heard = match ended {
        Ok(heard) => heard,
        Err(over) => {
            if let UnderWay::Http2(stream, _) = &mut under_way
                && !matches!(over, Over::App)
            {
                stream.timed_out();
            }
            drop(under_way);
            let now = attempt.worker.clock.now();
            return Err(time_is_over(attempt, guard, &over, started, now));
        }
    };
    let (response, source, coded) = match (heard, under_way) {
        (Heard::Http1(Ok(start)), UnderWay::Http1(lent, _)) => {
            let ResponseStart { head, receiving } = start;
            let mut response = Response::new(());
            *response.status_mut() = head.status;
            *response.headers_mut() = head.headers;
            if let Some(reason) = head.reason
                && let Ok(reason) = hyper::ext::ReasonPhrase::try_from(reason)
            {
                response.extensions_mut().insert(reason);
            }
            (response, Source::Http1(lent, receiving), head.coded)
        }
        (Heard::Http2(Ok(response)), UnderWay::Http2(stream, _)) => {
            let (parts, incoming) = response.into_parts();
            let source = Source::Http2(incoming, stream);
            (Response::from_parts(parts, ()), source, true)
        }
        (Heard::Http1(Err(error)), UnderWay::Http1(lent, call)) => {
            let fault = SendFault::http1(&error, call.is_unsent());
            return Err(send_failed(attempt, guard, fault, lent.reused));
        }
        (Heard::Http2(Err(mut error)), UnderWay::Http2(stream, _)) => {
            let unsent = error.take_message().is_some();
            let fault = SendFault::http2(error.error(), unsent);
            if fault.connection_over {
                stream.retire();
            }
            return Err(send_failed(attempt, guard, fault, stream.reused));
        }
        // A call and what it heard are of one protocol.
        (Heard::Http1(_), UnderWay::Http2(..)) | (Heard::Http2(_), UnderWay::Http1(..)) => {
            guard.forget();
            return Err(Failure::Stale);
        }
    };
    guard.on_cancel(Cancelled::Class(OutcomeClass::Success, None));
    Ok(Answer {
        response,
        source,
        coded,
        guard,
    })
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
    fault: SendFault,
    reused: bool,
) -> Failure {
    if let Some(fault) = attempt.body.and_then(|b| b.fault()) {
        guard.ignore(IgnoredCause::ClientCancel);
        return app_fault(attempt, fault);
    }
    if fault.own {
        guard.finish(OutcomeClass::Ignored, None);
        return failed(Reason::BadRequest, fault.text, Trigger::Other);
    }
    let address = guard.instance.address.clone();
    let SendFault {
        refused,
        unsent,
        closed_early,
        protocol,
        too_large,
        text,
        ..
    } = fault;
    // A body that outgrew what is kept cannot be sent from its start again, whatever the instance
    // says; the next attempt would carry on in its middle.
    let replayable = attempt.body.is_none_or(|b| b.can_replay());
    let closed = reused && closed_early && attempt.repeatable();
    if replayable && !attempt.fresh && (refused || unsent || closed) {
        guard.forget();
        return Failure::Stale;
    }
    if refused || (unsent && attempt.fresh) {
        guard.finish(OutcomeClass::NetworkError, Some(ErrorKind::Reset));
        let message = format!("{address} refuses the request: {text}");
        let trigger = if refused {
            Trigger::RefusedStream
        } else {
            Trigger::ConnectFailure
        };
        return failed(Reason::UpstreamReset, message, trigger);
    }
    if too_large {
        attempt.worker.limit_hit(Limit::MaxResponseHeaderBytes);
    }
    let (reason, kind, trigger) = if protocol {
        (
            Reason::UpstreamProtocol,
            ErrorKind::Protocol,
            Trigger::Other,
        )
    } else {
        (Reason::UpstreamReset, ErrorKind::Reset, Trigger::Reset)
    };
    guard.finish(OutcomeClass::NetworkError, Some(kind));
    let message = format!("{address} broke off before a complete response head: {text}");
    failed(reason, message, trigger)
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
