//! The response body on its way to the app: streamed, with the idle limit, and the place where an
//! attempt and its request end. A complete body gives its connection back and counts; a broken one
//! is aborted, never completed by us.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::http1::{Receiving, WireError};
use super::pool::{Lent, Stream};
use super::request_body::{BodyFault, RequestBody, Stall};
use crate::clock::Timestamp;
use crate::error::Reason;
use crate::listener::request::RequestGuard;
use crate::metrics::cells::Limit;
use crate::outlier::classify::{ErrorKind, OutcomeClass, classify_grpc};
use crate::policy::fallback::keep::Copying;
use crate::policy::outcome::{AttemptGuard, Cancelled};
use crate::timer::Timer;

/// Where a response's body comes from.
#[derive(Debug)]
pub enum Source {
    /// An HTTP/1.1 connection, lent until the body is complete.
    Http1(Lent, Receiving),
    /// A stream of an HTTP/2 connection.
    Http2(Incoming, Stream),
}

impl Source {
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(_, receiving) => receiving.is_done(),
            Self::Http2(incoming, _) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(_, receiving) => receiving.size_hint(),
            Self::Http2(incoming, _) => incoming.size_hint(),
        }
    }

    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match self {
            Self::Http1(lent, receiving) => receiving
                .poll_frame(lent.connection(), cx)
                .map_err(|_: WireError| BrokenOff),
            Self::Http2(incoming, _) => Pin::new(incoming).poll_frame(cx).map_err(|_| BrokenOff),
        }
    }
}

/// The instance gave no whole body.
struct BrokenOff;

/// The body was cut; hyper closes or resets towards the app.
#[derive(Debug, thiserror::Error)]
#[error("the response of the instance broke off")]
pub struct Aborted;

/// A body towards the app.
#[derive(Debug)]
pub enum ProxyBody {
    /// Nothing.
    Empty,
    /// Our own words.
    Own(Option<Bytes>),
    /// From an instance.
    Upstream(Box<UpstreamBody>),
}

/// A body from an instance.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts about one body, each set once"
)]
pub struct UpstreamBody {
    source: Option<Source>,
    request_body: Option<Rc<RequestBody>>,
    attempt: Option<AttemptGuard>,
    request: RequestGuard,
    class: OutcomeClass,
    kind: Option<ErrorKind>,
    grpc: bool,
    sized: bool,
    multiplexed: bool,
    idle: Option<Duration>,
    timer: Timer,
    waiting_since: Option<Timestamp>,
    sent_any: bool,
    breaking: bool,
    /// The present moment, while nothing was waited for.
    moment: Option<Timestamp>,
    /// Where a fallback keeps the last good answer: this one, as far as it came.
    copy: Option<Box<Copying>>,
}

/// What a response body is made of.
#[derive(Debug)]
pub struct UpstreamBodyParts {
    /// Given back at the end.
    pub source: Source,
    /// Asked what went wrong on the app's side, when it was not completely sent.
    pub request_body: Option<Rc<RequestBody>>,
    /// Told the outcome.
    pub attempt: AttemptGuard,
    /// Told the end.
    pub request: RequestGuard,
    /// What the head says.
    pub class: OutcomeClass,
    /// With it.
    pub kind: Option<ErrorKind>,
    /// The request is gRPC: trailers decide.
    pub grpc: bool,
    /// Longest silence.
    pub idle: Option<Duration>,
    /// Reused from the head's limits.
    pub timer: Timer,
    /// When the head was there.
    pub at: Timestamp,
    /// To be kept when it is whole.
    pub copy: Option<Box<Copying>>,
}

impl UpstreamBody {
    /// Wraps what an instance sends.
    pub fn wrap(parts: UpstreamBodyParts) -> ProxyBody {
        let sized = parts.source.size_hint().exact().is_some();
        let ended = parts.source.is_end_stream();
        parts
            .attempt
            .on_cancel(Cancelled::Class(parts.class, parts.kind));
        let multiplexed = matches!(parts.source, Source::Http2(..));
        let mut body = Self {
            source: Some(parts.source),
            request_body: parts.request_body,
            attempt: Some(parts.attempt),
            request: parts.request,
            class: parts.class,
            kind: parts.kind,
            grpc: parts.grpc,
            sized,
            multiplexed,
            idle: parts.idle,
            timer: parts.timer,
            waiting_since: None,
            sent_any: false,
            breaking: false,
            moment: Some(parts.at),
            copy: parts.copy,
        };
        if ended {
            body.complete(None);
            return ProxyBody::Empty;
        }
        ProxyBody::Upstream(Box::new(body))
    }

    /// The last byte or the trailers were seen.
    fn complete(&mut self, trailers: Option<&HeaderMap>) {
        if let Some(code) = trailers.and_then(grpc_code).filter(|_| self.grpc) {
            self.class = classify_grpc(Some(u32::from(code)), self.request.policy());
            self.kind = (self.class != OutcomeClass::Success).then_some(ErrorKind::GrpcStatus);
            self.request.grpc_code(code);
        }
        let at = self.moment.unwrap_or_else(|| self.request.now());
        if let Some(attempt) = self.attempt.take() {
            attempt.finish_at(self.class, self.kind, at);
        }
        if let Some(copy) = self.copy.take().filter(|_| trailers.is_none()) {
            copy.keep();
        }
        match self.source.take() {
            Some(Source::Http1(lent, receiving)) => lent.release(receiving, at),
            Some(Source::Http2(..)) | None => {}
        }
        self.request.complete(at);
    }

    /// The instance broke off.
    fn broken(&mut self, kind: ErrorKind, reason: Reason) {
        let fault = self.request_body.as_ref().and_then(|b| b.fault());
        if let Some(attempt) = self.attempt.take() {
            match fault {
                Some(_) => attempt.finish(OutcomeClass::Ignored, None),
                None => attempt.finish(OutcomeClass::NetworkError, Some(kind)),
            }
        }
        self.source = None;
        self.request.broken(match fault {
            Some(BodyFault::Malformed) => Reason::BadRequest,
            Some(BodyFault::Gone) => Reason::ClientClosed,
            Some(BodyFault::TooLarge) => Reason::BodyTooLarge,
            None => reason,
        });
    }

    /// No byte for too long. Charged only where the length says that bytes are missing, and not where
    /// the app is awaited.
    fn stalled(&mut self, since: Timestamp, lateness: Duration) {
        if let Some(attempt) = self.attempt.take() {
            let app = self.request_body.as_ref().is_some_and(|body| {
                body.written_at().is_none() && matches!(body.stall(), Stall::App(_))
            });
            if self.sized && !app {
                attempt.timed_out(ErrorKind::Idle, since, lateness);
            } else {
                attempt.finish(OutcomeClass::Ignored, None);
            }
        }
        self.source = None;
        self.request.broken(Reason::UpstreamIdle);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        if self.breaking {
            return Poll::Ready(Some(Err(Aborted)));
        }
        let Some(source) = self.source.as_mut().filter(|_| self.attempt.is_some()) else {
            return Poll::Ready(None);
        };
        if let Some(body) = &self.request_body {
            body.set_owner(cx.waker());
            if let Some(fault) = body.fault() {
                if fault == BodyFault::TooLarge {
                    self.request.limit_hit(Limit::MaxBodyBytes);
                }
                return self.break_off(cx);
            }
        }
        let polled = source.poll_frame(cx);
        let ended = source.is_end_stream();
        match polled {
            Poll::Pending => {
                self.moment = None;
                let Some(idle) = self.idle else {
                    return Poll::Pending;
                };
                let now = self.request.now();
                let waiting = *self.waiting_since.get_or_insert(now);
                let since = loop {
                    // What goes out counts as well as what comes in.
                    let moved = self.request_body.as_ref().map(|body| body.moved_at());
                    let since = moved.map_or(waiting, |moved| moved.max(waiting));
                    self.timer.set(since + idle);
                    if self.timer.poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    let latest = self.request_body.as_ref().map(|body| body.moved_at());
                    if latest.is_none_or(|latest| latest <= since) {
                        break since;
                    }
                };
                let late = self.request.now().since(self.timer.at());
                self.stalled(since, late);
                Poll::Ready(Some(Err(Aborted)))
            }
            Poll::Ready(Some(Ok(mut frame))) => {
                self.waiting_since = None;
                self.sent_any = true;
                if let Some(copy) = &mut self.copy
                    && let Some(data) = frame.data_ref()
                    && !copy.push(data)
                {
                    self.copy = None;
                }
                if let Some(trailers) = frame.trailers_mut() {
                    super::headers::clean_response(trailers, false, false);
                    let trailers = trailers.clone();
                    self.complete(Some(&trailers));
                } else if ended && !self.grpc {
                    self.complete(None);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                if self.grpc && !self.request.has_grpc_code() {
                    // hyper ends a body cleanly when the stream is reset without an error.
                    return Poll::Ready(Some(Ok(self.missing_status())));
                }
                if self.multiplexed && !ended {
                    // The same for any other response: it is not whole.
                    self.broken(ErrorKind::Truncated, Reason::UpstreamReset);
                    return Poll::Ready(Some(Err(Aborted)));
                }
                self.complete(None);
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(_))) => {
                if self.grpc && !self.sent_any {
                    return Poll::Ready(Some(Ok(self.lost_status())));
                }
                self.break_off(cx)
            }
        }
    }

    /// The break is told at the next turn: what came before it may have come in this one, and hyper
    /// writes that out first.
    fn break_off(&mut self, cx: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        self.broken(ErrorKind::Truncated, Reason::UpstreamReset);
        self.breaking = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// A gRPC answer that ended without a status: the instance is charged. What is in front of it may have
    /// answered with plain HTTP.
    fn missing_status(&mut self) -> Frame<Bytes> {
        self.class = OutcomeClass::NetworkError;
        self.kind = Some(ErrorKind::GrpcStatus);
        let status = self.request.status();
        let code = code_of_http(status);
        self.request.grpc_code(code);
        self.complete(None);
        let message = match status {
            200 => "the instance ended the call without a grpc-status".to_owned(),
            _ => format!("the instance answered HTTP {status} without a grpc-status"),
        };
        Frame::trailers(status_trailers(code, &message))
    }

    /// The instance was lost before anything but the head was sent: 14 in trailers.
    fn lost_status(&mut self) -> Frame<Bytes> {
        self.request.grpc_code(14);
        self.broken(ErrorKind::Truncated, Reason::UpstreamReset);
        Frame::trailers(status_trailers(14, "the instance was lost during the call"))
    }
}

fn status_trailers(code: u16, message: &str) -> HeaderMap {
    use http::{HeaderName, HeaderValue};
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert(GRPC_STATUS, HeaderValue::from(code));
    if let Ok(message) = HeaderValue::from_str(message) {
        trailers.insert(HeaderName::from_static("grpc-message"), message);
    }
    trailers
}

/// The gRPC code of an answer that has none of its own. Source: "HTTP to gRPC Status Code Mapping" of
/// gRPC; a call that was answered with 200 was broken off, which is INTERNAL.
const fn code_of_http(status: u16) -> u16 {
    match status {
        200 | 400 | 431 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 | 504 => 14,
        _ => 2,
    }
}

const GRPC_STATUS: http::HeaderName = http::HeaderName::from_static("grpc-status");

/// `grpc-status` of headers or trailers; one that cannot be read counts as 2 (UNKNOWN).
pub fn grpc_code(headers: &HeaderMap) -> Option<u16> {
    let value = headers.get(GRPC_STATUS)?;
    let text = value.to_str().unwrap_or_default();
    let canonical = text == "0" || !text.starts_with('0');
    Some(text.parse().ok().filter(|_| canonical).unwrap_or(2))
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        if self.attempt.is_some() {
            // The app left after the head.
            self.request.broken(Reason::ClientClosed);
        }
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = Aborted;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|b| Ok(Frame::data(b)))),
            Self::Upstream(body) => body.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Own(bytes) => bytes.is_none(),
            // Not before it was told the outcome: hyper polls no further once it is told so.
            Self::Upstream(body) => body.attempt.is_none() && !body.breaking,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Own(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(length).unwrap_or(0))
            }
            Self::Upstream(body) => match &body.source {
                Some(source) => source.size_hint(),
                None => SizeHint::with_exact(0),
            },
        }
    }
}
