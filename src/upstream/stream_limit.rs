//! How many streams an instance allows on an HTTP/2 connection. hyper tells it only on its
//! connection future, which is not polled when SETTINGS arrive (another task reads); so the socket
//! wakes it until they are there. Later changes are seen with the next request. The socket also counts
//! what comes, since a connection on which nothing comes may be dead.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, ReadBuf};

use crate::write_through::write_through;

/// What h2 takes for the limit until SETTINGS are there; nobody says this.
pub const UNTOLD: usize = 1_000_003;

/// The limit of one connection.
#[derive(Debug, Default)]
pub struct StreamLimit {
    most: Cell<Option<u32>>,
    heard: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

impl StreamLimit {
    /// `None` until the instance told.
    pub fn get(&self) -> Option<u32> {
        self.most.get()
    }

    /// How often something came from the instance.
    pub fn heard(&self) -> u64 {
        self.heard.get()
    }

    /// Takes what h2 says now. True when it changed.
    pub fn update(&self, now: usize, bound: u32, cx: &Context<'_>) -> bool {
        if now == UNTOLD {
            self.waker.replace(Some(cx.waker().clone()));
            return false;
        }
        let now = Some(u32::try_from(now).unwrap_or(u32::MAX).min(bound));
        self.most.replace(now) != now
    }

    fn bytes_came(&self) {
        self.heard.set(self.heard.get().wrapping_add(1));
        if self.most.get().is_none()
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }
}

/// The connection's socket.
#[derive(Debug)]
pub struct Told<S> {
    /// The socket itself.
    pub stream: S,
    /// Woken by bytes.
    pub limit: Rc<StreamLimit>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Told<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if polled.is_ready() {
            self.limit.bytes_came();
        }
        polled
    }
}

write_through!(Told);
