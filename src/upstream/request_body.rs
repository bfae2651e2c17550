//! The request body on its way to instances: streamed, with back-pressure, and kept up to
//! `retry.max_body` so that a second attempt can send it again. The body lives with the request;
//! each attempt reads through an [`AttemptBody`], and only the newest one may; one that has all of it
//! already ends well.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::clock::{Clock, Timestamp};

/// Why the app's body cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// The app broke the framing.
    Malformed,
    /// The app's connection ended inside the body.
    Gone,
    /// It is larger than `max_body_bytes`.
    TooLarge,
}

/// hyper's decoder calls broken framing invalid input or data; every other error is the end of the
/// connection or of the stream.
fn fault_of(error: &hyper::Error) -> BodyFault {
    use std::io::ErrorKind::{InvalidData, InvalidInput};
    let io = std::error::Error::source(error).and_then(|s| s.downcast_ref::<std::io::Error>());
    match io {
        Some(io) if matches!(io.kind(), InvalidData | InvalidInput) => BodyFault::Malformed,
        Some(_) | None => BodyFault::Gone,
    }
}

/// What hyper is told when an attempt's body ends early; never shown to anybody.
#[derive(Debug, thiserror::Error)]
#[error("the request body ended early")]
pub struct BodyAborted;

/// The request's body and what is known of it.
#[derive(Debug)]
pub struct RequestBody {
    clock: Clock,
    incoming: RefCell<Option<Incoming>>,
    first: RefCell<Option<Frame<Bytes>>>,
    multiplexed: bool,
    kept: RefCell<Vec<Kept>>,
    keep_limit: usize,
    kept_bytes: Cell<usize>,
    max_bytes: u64,
    read_bytes: Cell<u64>,
    overflowed: Cell<bool>,
    finished: Cell<bool>,
    fault: Cell<Option<BodyFault>>,
    attempt: Cell<u32>,
    started: Cell<bool>,
    written_at: Cell<Option<Timestamp>>,
    waiting_since: Cell<Option<Timestamp>>,
    offered_at: Cell<Timestamp>,
    owner: RefCell<Option<Waker>>,
}

/// What a request body is made of.
#[derive(Debug)]
pub struct RequestBodyParts {
    /// hyper's body.
    pub incoming: Incoming,
    /// A frame that was read already.
    pub first: Option<Frame<Bytes>>,
    /// It comes over HTTP/2.
    pub multiplexed: bool,
    /// The process's clock.
    pub clock: Clock,
    /// Bytes kept for a replay; 0 = none.
    pub keep_limit: usize,
    /// Bytes that may come; 0 = no limit.
    pub max_bytes: u64,
}

#[derive(Clone, Debug)]
enum Kept {
    Data(Bytes),
    Trailers(http::HeaderMap),
}

/// Who a body that is still being sent waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// For the app, since then.
    App(Timestamp),
    /// For the instance, since then.
    Instance(Timestamp),
}

impl RequestBody {
    /// Wraps the app's body.
    pub fn new(parts: RequestBodyParts) -> Rc<Self> {
        let empty = parts.first.is_none() && parts.incoming.is_end_stream();
        let now = parts.clock.now();
        Rc::new(Self {
            clock: parts.clock,
            incoming: RefCell::new((!empty).then_some(parts.incoming)),
            first: RefCell::new(parts.first),
            multiplexed: parts.multiplexed,
            kept: RefCell::default(),
            keep_limit: parts.keep_limit,
            kept_bytes: Cell::new(0),
            max_bytes: parts.max_bytes,
            read_bytes: Cell::new(0),
            overflowed: Cell::new(false),
            finished: Cell::new(empty),
            fault: Cell::new(None),
            attempt: Cell::new(0),
            started: Cell::new(false),
            written_at: Cell::new(None),
            waiting_since: Cell::new(None),
            offered_at: Cell::new(now),
            owner: RefCell::default(),
        })
    }

    /// A body for the next attempt; bodies of earlier attempts end.
    pub fn attempt(self: &Rc<Self>) -> AttemptBody {
        let attempt = self.attempt.get().wrapping_add(1);
        self.attempt.set(attempt);
        self.written_at.set(None);
        self.waiting_since.set(None);
        let now = self.clock.now();
        self.offered_at.set(now);
        AttemptBody {
            body: Some(Rc::clone(self)),
            attempt,
            cursor: 0,
            ended: false,
        }
    }

    /// Whether an attempt can send it from the start, and ends the bodies of all earlier ones: else the
    /// answer to one of them could let it read on, beyond what is kept, while that attempt is prepared.
    pub fn hold_for_replay(&self) -> bool {
        let can_replay = self.can_replay();
        if can_replay {
            self.attempt.set(self.attempt.get().wrapping_add(1));
        }
        can_replay
    }

    /// Whether all of it was read from the app.
    pub fn is_finished(&self) -> bool {
        self.finished.get()
    }

    /// Whether an attempt can send it from the start.
    pub fn can_replay(&self) -> bool {
        self.fault.get().is_none() && (!self.started.get() || !self.overflowed.get())
    }

    /// When the newest attempt had handed all of it to the connection.
    pub fn written_at(&self) -> Option<Timestamp> {
        self.written_at.get()
    }

    /// What went wrong on the app's side.
    pub fn fault(&self) -> Option<BodyFault> {
        self.fault.get()
    }

    /// Who the body waits for, while it is not completely written.
    pub fn stall(&self) -> Stall {
        match self.waiting_since.get() {
            Some(since) => Stall::App(since),
            None => Stall::Instance(self.offered_at.get()),
        }
    }

    /// When it moved last towards the newest attempt's instance.
    pub fn moved_at(&self) -> Timestamp {
        self.offered_at.get()
    }

    /// The task to wake when the body is written or breaks.
    pub fn set_owner(&self, waker: &Waker) {
        let mut owner = self.owner.borrow_mut();
        if !owner.as_ref().is_some_and(|w| w.will_wake(waker)) {
            *owner = Some(waker.clone());
        }
    }

    /// Reads all of it into the replay copy. For bodies known to fit. False when the app broke off.
    pub async fn prefetch(&self) -> bool {
        std::future::poll_fn(|cx| {
            loop {
                if self.finished.get() {
                    return Poll::Ready(true);
                }
                match self.poll_incoming(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(None) => return Poll::Ready(true),
                    Poll::Ready(Some(Ok(_))) => {}
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(false),
                }
            }
        })
        .await
    }

    /// Whether its announced length fits the replay copy.
    pub fn fits(&self) -> bool {
        let limit = u64::try_from(self.keep_limit).unwrap_or(u64::MAX);
        self.is_finished() || self.size_hint().upper().is_some_and(|upper| upper <= limit)
    }

    /// What the app said of its length.
    pub fn size_hint(&self) -> SizeHint {
        match &*self.incoming.borrow() {
            Some(incoming) => incoming.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }

    fn wake_owner(&self) {
        if let Some(waker) = &*self.owner.borrow() {
            waker.wake_by_ref();
        }
    }

    fn fail(&self, fault: BodyFault) {
        self.fault.set(Some(fault));
        self.incoming.replace(None);
        self.wake_owner();
    }

    fn keep(&self, frame: &Frame<Bytes>) {
        if self.overflowed.get() {
            return;
        }
        let kept = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => Kept::Data(data.clone()),
            (None, Some(trailers)) => Kept::Trailers(trailers.clone()),
            (None, None) => return,
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let total = self.kept_bytes.get().saturating_add(bytes);
        if total > self.keep_limit {
            self.overflowed.set(true);
            self.kept.borrow_mut().clear();
            return;
        }
        self.kept_bytes.set(total);
        self.kept.borrow_mut().push(kept);
    }

    fn poll_incoming(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        let mut slot = self.incoming.borrow_mut();
        let Some(incoming) = slot.as_mut() else {
            return match self.fault.get() {
                Some(_) => Poll::Ready(Some(Err(BodyAborted))),
                None => Poll::Ready(None),
            };
        };
        let polled = match self.first.take() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut *incoming).poll_frame(cx),
        };
        let at_end = incoming.is_end_stream();
        drop(slot);
        match polled {
            Poll::Pending => {
                if self.waiting_since.get().is_none() {
                    self.waiting_since.set(Some(self.clock.now()));
                }
                Poll::Pending
            }
            Poll::Ready(None) => {
                self.waiting_since.set(None);
                if self.multiplexed && !at_end {
                    // hyper ends a body whose stream was reset with NO_ERROR as if it were whole.
                    self.fail(BodyFault::Gone);
                    return Poll::Ready(Some(Err(BodyAborted)));
                }
                self.finish();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                self.waiting_since.set(None);
                self.fail(fault_of(&error));
                Poll::Ready(Some(Err(BodyAborted)))
            }
            Poll::Ready(Some(Ok(frame))) => {
                self.waiting_since.set(None);
                self.offered_at.set(self.clock.now());
                let bytes = frame
                    .data_ref()
                    .map_or(0, |d| u64::try_from(d.len()).unwrap_or(0));
                let read = self.read_bytes.get().saturating_add(bytes);
                self.read_bytes.set(read);
                if self.max_bytes > 0 && read > self.max_bytes {
                    self.fail(BodyFault::TooLarge);
                    return Poll::Ready(Some(Err(BodyAborted)));
                }
                let frame = match frame.into_trailers() {
                    Ok(mut trailers) => {
                        super::headers::clean_request_trailers(&mut trailers);
                        Frame::trailers(trailers)
                    }
                    Err(frame) => frame,
                };
                self.keep(&frame);
                if at_end || frame.is_trailers() {
                    self.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }

    fn finish(&self) {
        self.finished.set(true);
        self.incoming.replace(None);
    }
}

/// The body of one attempt.
#[derive(Debug)]
pub struct AttemptBody {
    body: Option<Rc<RequestBody>>,
    attempt: u32,
    cursor: usize,
    /// All of it was handed out.
    ended: bool,
}

impl AttemptBody {
    /// No body at all.
    pub const fn empty() -> Self {
        Self {
            body: None,
            attempt: 0,
            cursor: 0,
            ended: false,
        }
    }

    /// Bytes of the request went out.
    pub fn moved(&self) {
        if let Some(body) = &self.body
            && body.attempt.get() == self.attempt
        {
            body.offered_at.set(body.clock.now());
        }
    }

    fn kept_left(&self, body: &RequestBody) -> bool {
        !body.overflowed.get() && self.cursor < body.kept.borrow().len()
    }
}

impl Body for AttemptBody {
    type Data = Bytes;
    type Error = BodyAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        let this = &mut *self;
        let Some(body) = &this.body else {
            return Poll::Ready(None);
        };
        if body.attempt.get() != this.attempt {
            let broken_off = (!this.ended).then_some(Err(BodyAborted));
            return Poll::Ready(broken_off);
        }
        body.started.set(true);
        let replayed = {
            let kept = body.kept.borrow();
            if body.overflowed.get() {
                None
            } else {
                kept.get(this.cursor).cloned()
            }
        };
        let polled = match replayed {
            Some(Kept::Data(data)) => Poll::Ready(Some(Ok(Frame::data(data)))),
            Some(Kept::Trailers(trailers)) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            None => body.poll_incoming(cx),
        };
        if matches!(polled, Poll::Ready(Some(Ok(_)))) {
            this.cursor += 1;
        }
        let over = matches!(polled, Poll::Ready(None))
            || (body.finished.get() && polled.is_ready() && !this.kept_left(body));
        this.ended |= over && !matches!(polled, Poll::Ready(Some(Err(_))));
        if over && body.written_at.get().is_none() {
            body.written_at.set(Some(body.clock.now()));
            body.wake_owner();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            None => true,
            Some(body) if body.attempt.get() != self.attempt => self.ended,
            Some(body) => {
                body.finished.get() && body.fault.get().is_none() && !self.kept_left(body)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        let Some(body) = &self.body else {
            return SizeHint::with_exact(0);
        };
        let mut hint = body.size_hint();
        let kept: u64 = if body.overflowed.get() {
            0
        } else {
            let left = |k: &Kept| match k {
                Kept::Data(d) => u64::try_from(d.len()).unwrap_or(0),
                Kept::Trailers(_) => 0,
            };
            body.kept.borrow().iter().skip(self.cursor).map(left).sum()
        };
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(kept));
        }
        hint.set_lower(hint.lower().saturating_add(kept));
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body that was read to its end and is kept.
    fn whole(pieces: &[&'static str]) -> Rc<RequestBody> {
        let kept = pieces
            .iter()
            .map(|p| Kept::Data(Bytes::from_static(p.as_bytes())));
        Rc::new(RequestBody {
            clock: Clock::new(),
            incoming: RefCell::default(),
            first: RefCell::default(),
            multiplexed: false,
            kept: RefCell::new(kept.collect()),
            keep_limit: 1024,
            kept_bytes: Cell::new(0),
            max_bytes: 0,
            read_bytes: Cell::new(0),
            overflowed: Cell::new(false),
            finished: Cell::new(true),
            fault: Cell::new(None),
            attempt: Cell::new(0),
            started: Cell::new(false),
            written_at: Cell::new(None),
            waiting_since: Cell::new(None),
            offered_at: Cell::new(Timestamp::ZERO),
            owner: RefCell::default(),
        })
    }

    /// The next piece; `None` at the end, an error where it was broken off.
    fn next(body: &mut AttemptBody) -> Option<Result<Bytes, ()>> {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(body).poll_frame(&mut cx) {
            Poll::Ready(Some(Ok(frame))) => Some(frame.into_data().map_err(|_| ())),
            Poll::Ready(Some(Err(_))) => Some(Err(())),
            Poll::Ready(None) => None,
            Poll::Pending => panic!("it is whole"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_all_of_it_ends_well_beside_the_next_attempt_and_others_are_broken_off() {
        let body = whole(&["ab", "c"]);
        let mut first = body.attempt();
        assert_eq!(next(&mut first), Some(Ok("ab".into())));
        assert_eq!(next(&mut first), Some(Ok("c".into())));
        assert!(body.written_at().is_some());
        // A hedge. The first one asks again only once what it has is written out.
        let mut second = body.attempt();
        assert_eq!(next(&mut first), None);
        assert!(first.is_end_stream() && body.written_at().is_none());
        assert_eq!(next(&mut second), Some(Ok("ab".into())));
        let mut third = body.attempt();
        assert_eq!(next(&mut second), Some(Err(())));
        assert!(!second.is_end_stream());
        assert_eq!(next(&mut third), Some(Ok("ab".into())));
    }
}
