//! One connection of the app: detected, served, watched. Its times are checked by the worker's
//! sweep over all connections, so a request costs no timer here.
//!
//! | state | left when | limit |
//! |---|---|---|
//! | head | a request head is complete | `header_timeout` since its first byte (or the accept) |
//! | busy | its answer is complete | those of the request |
//! | idle | a byte arrives | `keep_alive_timeout` |
//!
//! A drain closes nothing that the app may be using: an HTTP/1.1 connection ends after its next
//! answer, which says `connection: close`, or when it was silent for a moment.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::StatusCode;
use http::header::{CONNECTION, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::detect::{Detected, detect};
use super::http::{Connection, Unanswered, serve};
use crate::clock::{Clock, Timestamp};
use crate::config::types::{HalfClose, Limits};
use crate::metrics::cells::Limit;
use crate::upstream::multiplexed::LocalExecutor;
use crate::worker::{DrainPhase, Worker};
use crate::write_through::write_through;

/// Flow control windows towards the app: the most that is buffered for it. h2 takes half of the
/// connection's window as its budget for small frames that nobody has read; a full stream of
/// 40-byte messages must fit into it.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 10 << 20;
/// Ping of an HTTP/2 connection of the app with open streams.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// So long an HTTP/1.1 connection has to be silent before a drain closes it. A request that was sent
/// when we closed would be lost: the app could not know.
const SILENCE: Duration = Duration::from_millis(500);
/// A request target of so many bytes is too long for hyper, which says the same as of too many fields.
const LONGEST_TARGET: usize = 65_534;

const RUN: u8 = 0;
const GRACEFUL: u8 = 1;
const ABORT: u8 = 2;

/// What the sweep and the drain know of a connection. Atomics, since hyper may move the stream to
/// a tunnel; in truth one thread uses it.
#[derive(Debug)]
pub struct ConnectionState {
    clock: Clock,
    /// When the head in reading began; 0 when none is.
    head_since: AtomicU64,
    /// When bytes came last while no request was served.
    read_at: AtomicU64,
    /// When the last answer was complete; 0 before the first.
    idle_since: AtomicU64,
    active: AtomicU32,
    multiplexed: AtomicU8,
    /// Bytes that were read; those before the newest read; those before the read that the newest
    /// request's head ended in.
    heard: AtomicU64,
    heard_before: AtomicU64,
    heard_at_head: AtomicU64,
}

/// What the sweep and the drain want of a connection; its task asks at every turn.
#[derive(Debug, Default)]
pub struct Wishes {
    wish: Cell<u8>,
    waker: RefCell<Option<Waker>>,
}

impl Wishes {
    fn ask(&self, wish: u8) {
        if self.wish.get() < wish {
            self.wish.set(wish);
            if let Some(waker) = self.waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }

    fn get(&self, waker: &Waker) -> u8 {
        let mut kept = self.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|w| w.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
        self.wish.get()
    }
}

/// A connection in the books.
#[derive(Debug)]
struct Open {
    state: Arc<ConnectionState>,
    wishes: Rc<Wishes>,
}

impl ConnectionState {
    fn new(clock: Clock) -> Self {
        Self {
            clock,
            head_since: AtomicU64::new(clock.now().as_nanos()),
            read_at: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
            active: AtomicU32::new(0),
            multiplexed: AtomicU8::new(0),
            heard: AtomicU64::new(0),
            heard_before: AtomicU64::new(0),
            heard_at_head: AtomicU64::new(0),
        }
    }

    fn bytes_came(&self, count: usize) {
        let heard = self.heard.load(Relaxed);
        self.heard_before.store(heard, Relaxed);
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.heard.store(heard.saturating_add(count), Relaxed);
        if self.active.load(Relaxed) > 0 {
            return;
        }
        let now = self.clock.now().as_nanos();
        self.read_at.store(now, Relaxed);
        if self.head_since.load(Relaxed) == 0 {
            self.head_since.store(now, Relaxed);
        }
    }

    /// When the head that was just parsed was complete: with the bytes that were read last, unless
    /// they came before the last answer ended or beside another request.
    pub fn head_complete(&self, clock: Clock) -> Timestamp {
        let read = self.read_at.load(Relaxed);
        if self.active.load(Relaxed) == 0 && read > self.idle_since.load(Relaxed) {
            Timestamp::from_nanos(read)
        } else {
            clock.now()
        }
    }

    /// The most bytes that the head which is complete now can have: what was read since the head
    /// before it, and with it.
    pub fn head_at_most(&self) -> u64 {
        let before = self.heard_at_head.load(Relaxed);
        self.heard.load(Relaxed).saturating_sub(before)
    }

    /// A request head is complete.
    pub fn request_began(&self) {
        self.heard_at_head
            .store(self.heard_before.load(Relaxed), Relaxed);
        self.head_since.store(0, Relaxed);
        self.active
            .store(self.active.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Its answer is complete, or given up.
    pub fn request_ended(&self, now: Timestamp) {
        self.active
            .store(self.active.load(Relaxed).saturating_sub(1), Relaxed);
        self.idle_since.store(now.as_nanos(), Relaxed);
    }

    /// Part of a head is here, the rest is not.
    fn hears_head(&self) -> bool {
        self.active.load(Relaxed) == 0
            && self.head_since.load(Relaxed) > 0
            && self.heard.load(Relaxed) > 0
    }

    /// Whether a drain that began at `began` may end it now.
    fn may_end(&self, began: Timestamp, now: Timestamp) -> bool {
        if self.multiplexed.load(Relaxed) == 1 {
            // GOAWAY tells the app first.
            return true;
        }
        if self.active.load(Relaxed) > 0 || self.hears_head() {
            return false;
        }
        let last = self.idle_since.load(Relaxed);
        let last = last.max(self.head_since.load(Relaxed));
        now.since(Timestamp::from_nanos(last).max(began)) >= SILENCE
    }

    /// Which limit has been passed at `now`, if any.
    fn passed(&self, limits: &Limits, now: Timestamp) -> Option<Limit> {
        if self.active.load(Relaxed) > 0 {
            return None;
        }
        let over = |since: u64, limit: Duration| {
            since > 0 && !limit.is_zero() && now.since(Timestamp::from_nanos(since)) >= limit
        };
        let head = self.head_since.load(Relaxed);
        if self.multiplexed.load(Relaxed) == 1 {
            let since = self.idle_since.load(Relaxed).max(head);
            return over(since, limits.keep_alive_timeout).then_some(Limit::KeepAliveTimeout);
        }
        if head > 0 {
            return over(head, limits.header_timeout).then_some(Limit::HeaderTimeout);
        }
        let idle = self.idle_since.load(Relaxed);
        over(idle, limits.keep_alive_timeout).then_some(Limit::KeepAliveTimeout)
    }
}

/// The open connections of one worker.
#[derive(Debug, Default)]
pub struct Connections {
    open: RefCell<Vec<Open>>,
    /// When they were first asked to finish.
    draining_since: Cell<Option<Timestamp>>,
}

impl Connections {
    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.borrow().len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.open.borrow().is_empty()
    }

    /// Closes those whose limits have passed.
    pub fn sweep(&self, worker: &Worker, limits: &Limits, now: Timestamp) {
        for open in self.open.borrow().iter() {
            match open.state.passed(limits, now) {
                Some(limit @ Limit::KeepAliveTimeout) => {
                    worker.limit_hit(limit);
                    open.wishes.ask(GRACEFUL);
                }
                Some(limit) => {
                    worker.limit_hit(limit);
                    open.wishes.ask(ABORT);
                }
                None => {}
            }
        }
    }

    /// Finish what is in flight, close the rest. To be said again until all are gone.
    pub fn close_all_gracefully(&self) {
        for open in self.open.borrow().iter() {
            let now = open.state.clock.now();
            let began = self.draining_since.get().unwrap_or(now);
            self.draining_since.set(Some(began));
            if open.state.may_end(began, now) {
                open.wishes.ask(GRACEFUL);
            }
        }
    }

    /// Lets all look at how far shutting down has come.
    pub fn wake_all(&self) {
        for open in self.open.borrow().iter() {
            if let Some(waker) = open.wishes.waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }

    /// Close all now.
    pub fn abort_all(&self) {
        for open in self.open.borrow().iter() {
            open.wishes.ask(ABORT);
        }
    }

    fn add(&self, state: &Arc<ConnectionState>, wishes: &Rc<Wishes>) {
        let (state, wishes) = (Arc::clone(state), Rc::clone(wishes));
        self.open.borrow_mut().push(Open { state, wishes });
    }

    fn remove(&self, state: &Arc<ConnectionState>) {
        let mut open = self.open.borrow_mut();
        if let Some(at) = open.iter().position(|open| Arc::ptr_eq(&open.state, state)) {
            open.swap_remove(at);
        }
    }
}

/// Keeps the books of one connection, whatever way it ends.
struct Registered {
    worker: Rc<Worker>,
    state: Arc<ConnectionState>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.worker.connections.remove(&self.state);
        self.worker.connection_closed();
    }
}

/// Serves a connection until it ends. `counted` was taken by the accept loop.
pub async fn run<S>(
    worker: Rc<Worker>,
    stream: S,
    peer: Option<SocketAddr>,
    service: Option<Arc<str>>,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let state = Arc::new(ConnectionState::new(worker.clock));
    let wishes = Rc::new(Wishes::default());
    worker.connections.add(&state, &wishes);
    let registered = Registered {
        worker: Rc::clone(&worker),
        state: Arc::clone(&state),
    };
    let detected = {
        let mut detecting = pin!(detect(stream));
        std::future::poll_fn(|cx| match wishes.get(cx.waker()) {
            RUN => detecting.as_mut().poll(cx).map(Some),
            // It never said anything: nothing to finish.
            _ => Poll::Ready(None),
        })
        .await
    };
    let Some(Ok((detected, stream))) = detected else {
        return;
    };
    let connection = Rc::new(Connection {
        peer,
        service,
        state: Arc::clone(&state),
    });
    let io = TokioIo::new(Noticed {
        stream,
        state: Arc::clone(&state),
    });
    match detected {
        Detected::Nothing => {}
        Detected::Http1 => serve_http1(&worker, &connection, &wishes, io).await,
        Detected::Http2 => {
            state.multiplexed.store(1, Relaxed);
            serve_http2(&worker, &connection, &wishes, io).await;
        }
    }
    drop(registered);
}

async fn serve_http1<I>(worker: &Rc<Worker>, connection: &Rc<Connection>, wishes: &Wishes, io: I)
where
    I: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let limits = worker.snapshot();
    let limits = &limits.config.limits;
    let service = service_fn(|request| {
        let serving = serve(worker, connection, request);
        async {
            let mut answer = serving.await?;
            // The app hears it with the answer, so no request of it crosses the close.
            if worker.phase() >= DrainPhase::Draining
                && answer.status() != StatusCode::SWITCHING_PROTOCOLS
            {
                let close = HeaderValue::from_static("close");
                answer.headers_mut().insert(CONNECTION, close);
            }
            Ok::<_, Unanswered>(answer)
        }
    });
    let serving = http1::Builder::new()
        .half_close(limits.half_close == HalfClose::Allow)
        .max_headers(limits.max_headers)
        // Bounds the memory, between two reads; `head::check` looks at the size itself.
        .max_buf_size(head_buffer(limits))
        .serve_connection(io, service)
        .with_upgrades();
    let mut serving = pin!(serving);
    std::future::poll_fn(|cx| {
        let wish = wishes.get(cx.waker());
        if wish == ABORT {
            return Poll::Ready(());
        }
        let polled = serving.as_mut().poll(cx);
        if polled.is_pending() && wish == GRACEFUL && !connection.state.hears_head() {
            // Only now: hyper closes an idle connection without a look at what has come.
            serving.as_mut().graceful_shutdown();
            return serving
                .as_mut()
                .poll(cx)
                .map(|ended| note_end(worker, &connection.state, ended));
        }
        polled.map(|ended| note_end(worker, &connection.state, ended))
    })
    .await;
}

async fn serve_http2<I>(worker: &Rc<Worker>, connection: &Rc<Connection>, wishes: &Wishes, io: I)
where
    I: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let limits = worker.snapshot();
    let limits = &limits.config.limits;
    let (kept_worker, kept_connection) = (Rc::clone(worker), Rc::clone(connection));
    let service = service_fn(move |request| serve(&kept_worker, &kept_connection, request));
    let serving = http2::Builder::new(LocalExecutor)
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(limits.max_streams_per_connection)
        .max_header_list_size(u32::try_from(limits.max_header_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .serve_connection(io, service);
    let mut serving = pin!(serving);
    std::future::poll_fn(|cx| {
        match wishes.get(cx.waker()) {
            RUN => {}
            GRACEFUL => serving.as_mut().graceful_shutdown(),
            _ => return Poll::Ready(()),
        }
        serving
            .as_mut()
            .poll(cx)
            .map(|ended| note_end(worker, &connection.state, ended))
    })
    .await;
}

/// hyper answered or dropped a broken head itself: it leaves a count and a line.
fn note_end(worker: &Worker, state: &ConnectionState, ended: Result<(), hyper::Error>) {
    use crate::error::Reason;
    let Err(error) = ended else { return };
    let reason = if error.is_parse_too_large() {
        worker.limit_hit(limit_of_head(worker, state));
        Reason::HeaderTooLarge
    } else if error.is_parse() {
        Reason::BadRequest
    } else {
        return;
    };
    if let Some(cells) = worker.cells() {
        cells.rejected(reason);
    }
    tracing::warn!(reason = reason.as_str(), error = %error, "request head refused");
}

/// hyper has one error for too many fields and for too many bytes. With fewer bytes than fill its
/// buffer, and than it takes for a target, only the fields can be too many.
fn limit_of_head(worker: &Worker, state: &ConnectionState) -> Limit {
    let buffer = head_buffer(&worker.snapshot().config.limits).min(LONGEST_TARGET);
    if state.head_at_most() < u64::try_from(buffer).unwrap_or(u64::MAX) {
        Limit::MaxHeaders
    } else {
        Limit::MaxHeaderBytes
    }
}

/// hyper's least is 8 KiB.
fn head_buffer(limits: &Limits) -> usize {
    limits.max_header_bytes.max(8192)
}

/// Tells the state when bytes come.
struct Noticed<S> {
    stream: S,
    state: Arc<ConnectionState>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Noticed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let came = buf.filled().len().saturating_sub(before);
        if came > 0 {
            self.state.bytes_came(came);
        }
        polled
    }
}

write_through!(Noticed);
