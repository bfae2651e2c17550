//! An HTTP/1.1 connection to an instance, held by the request that uses it: no task of its own, no
//! channel, so that a request costs one write and one read. The codec is `protocol/http1.rs`.
//! Next: `http1/call.rs` (request out, head in), `http1/body.rs` (body in).

mod body;
mod call;
mod upload;

use std::cell::RefCell;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

pub use body::Receiving;
pub use call::{Call, ResponseStart};

use crate::protocol::http1::WireFault;
use crate::protocol::http1::head::HeadLimits;

/// Bytes asked for with one read: at first, and at most after reads that were full.
const READ: usize = 8 * 1024;
const MOST_READ: usize = 128 * 1024;
/// Room for writing that is kept for another message, and how many are kept.
const MOST_OUT: usize = 16 * 1024;
const MOST_SPARE: usize = 256;

thread_local! {
    /// Room for reading and writing that no connection needs at the moment.
    static SPARE: RefCell<Vec<(BytesMut, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
}

/// Why a request got no response, or no whole one.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The connection ended inside of a message.
    #[error("the connection ended inside of the response")]
    Incomplete,
    /// The connection ended before a byte of the response.
    #[error("the connection was closed")]
    Closed,
    /// The message cannot be read.
    #[error(transparent)]
    Fault(#[from] WireFault),
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Our side gave no whole request body.
    #[error("the request body has another length than announced")]
    Upload,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    /// Read and not used.
    buf: BytesMut,
    read_size: usize,
    /// To be written; its room is used again.
    out: Vec<u8>,
    limits: HeadLimits,
}

/// The socket, or its reading half while a task writes the rest of a request body.
#[derive(Debug)]
enum Socket {
    Whole(TcpStream),
    Reading(OwnedReadHalf),
    /// In between.
    Gone,
}

impl Connection {
    /// A connection over `stream`, whose responses have heads within `limits`.
    pub fn new(stream: TcpStream, limits: HeadLimits) -> Self {
        Self {
            socket: Socket::Whole(stream),
            buf: BytesMut::new(),
            read_size: READ,
            out: Vec::new(),
            limits,
        }
    }

    /// Whether an idle connection is still open and silent. Costs no system call unless something
    /// happened on it: what comes without a request, the end too, makes it useless.
    pub fn is_usable(&self) -> bool {
        match &self.socket {
            Socket::Whole(stream) => {
                self.buf.is_empty()
                    && stream
                        .try_read(&mut [0])
                        .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            }
            Socket::Reading(_) | Socket::Gone => false,
        }
    }

    /// Room for a message. An idle connection has none: thousands of them would push each other's room
    /// out of the processor's caches, the room used last is still there.
    fn take_room(&mut self) {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        let (buf, out) = spare.unwrap_or_default();
        if self.buf.is_empty() {
            self.buf = buf;
        }
        self.out = out;
    }

    /// Leaves its room to others, before it idles. Room that a large message took goes.
    pub fn give_room(&mut self) {
        let (buf, mut out) = (std::mem::take(&mut self.buf), std::mem::take(&mut self.out));
        let large = self.read_size > READ || out.capacity() > MOST_OUT;
        self.read_size = READ;
        out.clear();
        if !large {
            SPARE.with_borrow_mut(|spare| {
                if spare.len() < MOST_SPARE {
                    spare.push((buf, out));
                }
            });
        }
    }

    /// The socket and what was read of the other protocol, after a 101.
    pub fn into_raw(self) -> Option<Raw> {
        match self.socket {
            Socket::Whole(stream) => Some(Raw {
                stream,
                first: self.buf,
            }),
            Socket::Reading(_) | Socket::Gone => None,
        }
    }

    /// Reads more. `Ok(0)` is the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.buf.reserve(self.read_size);
        let read = match &mut self.socket {
            Socket::Whole(stream) => pin!(stream.read_buf(&mut self.buf)).poll(cx),
            Socket::Reading(half) => pin!(half.read_buf(&mut self.buf)).poll(cx),
            Socket::Gone => Poll::Ready(Ok(0)),
        };
        if let Poll::Ready(Ok(read)) = read {
            if read >= self.read_size {
                self.read_size = (self.read_size * 2).min(MOST_READ);
            } else if read < self.read_size / 4 {
                self.read_size = (self.read_size / 2).max(READ);
            }
        }
        read
    }
}

/// A connection that no longer speaks HTTP.
#[derive(Debug)]
pub struct Raw {
    stream: TcpStream,
    first: BytesMut,
}

impl AsyncRead for Raw {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let now = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first.split_to(now));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Raw {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
