//! A byte tunnel after a 101: both ways, half-closes passed on, cut after a long silence.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};

use super::http1::Raw;
use crate::clock::{Clock, Timestamp};
use crate::listener::request::RequestGuard;
use crate::worker::{DrainPhase, Worker};

/// Runs the tunnel until both sides ended, it was silent for `idle`, or the drain's grace is over.
/// The request ends with it.
pub async fn run(
    worker: Rc<Worker>,
    app: OnUpgrade,
    instance: Raw,
    idle: Option<Duration>,
    mut request: RequestGuard,
) {
    struct Counted(Rc<Worker>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.connection_closed();
        }
    }
    // Its connection has left hyper's hands; it counts on as one of the app's.
    worker.connection_opened();
    let counted = Counted(worker);
    let clock = counted.0.clock;
    let mut drain = counted.0.shared.drain.clone();
    let Ok(app) = app.await else {
        return;
    };
    let last = Rc::new(Cell::new(clock.now()));
    let mut app = Watched {
        io: TokioIo::new(app),
        clock,
        last: Rc::clone(&last),
    };
    let mut instance = Watched {
        io: instance,
        clock,
        last: Rc::clone(&last),
    };
    let silence = async {
        let Some(idle) = idle else {
            return std::future::pending().await;
        };
        loop {
            let due = last.get() + idle;
            if clock.now() >= due {
                return;
            }
            tokio::time::sleep_until(clock.instant(due)).await;
        }
    };
    let cut = drain.wait_for(|phase| *phase == DrainPhase::Cut);
    tokio::select! {
        // How a tunnel ends says nothing about the instance.
        _ended = copy_bidirectional(&mut app, &mut instance) => request.complete(clock.now()),
        () = silence => request.broken(crate::error::Reason::UpstreamIdle),
        _cut = cut => request.broken(crate::error::Reason::Draining),
    }
}

/// Notes when bytes pass.
struct Watched<S> {
    io: S,
    clock: Clock,
    last: Rc<Cell<Timestamp>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if polled.is_ready() {
            self.last.set(self.clock.now());
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        if polled.is_ready() {
            self.last.set(self.clock.now());
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
