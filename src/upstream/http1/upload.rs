//! The request on its way out: the head and the body behind it, with back-pressure both ways.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http_body::Body as _;
use tokio::io::AsyncWrite;

use super::WireError;
use crate::protocol::http1::request::BodyWriter;
use crate::upstream::request_body::AttemptBody;

/// Bytes that are gathered before they are written.
const GATHER: usize = 16 * 1024;

/// What is still to be written of one request.
#[derive(Debug)]
pub(super) struct Upload {
    /// Framed bytes, those before `written` are out already.
    pub(super) out: Vec<u8>,
    written: usize,
    /// Data behind `out` that was not worth a copy.
    data: Bytes,
    body: Option<(AttemptBody, BodyWriter)>,
    /// Bytes that went out.
    pub(super) sent: u64,
}

impl Upload {
    pub(super) fn new(out: Vec<u8>, body: Option<(AttemptBody, BodyWriter)>) -> Self {
        Self {
            out,
            written: 0,
            data: Bytes::new(),
            body,
            sent: 0,
        }
    }

    /// Whether all of it is out.
    pub(super) fn is_done(&self) -> bool {
        let whole = self.body.as_ref().is_none_or(|(_, w)| w.is_full());
        whole && self.is_flushed()
    }

    /// Writes on. Ready once all of it is out.
    pub(super) fn poll<S>(
        &mut self,
        socket: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), WireError>>
    where
        S: AsyncWrite + Unpin,
    {
        loop {
            let starved = self.gather(cx)?;
            if self.is_flushed() {
                return match starved {
                    true => Poll::Pending,
                    false => Poll::Ready(Ok(())),
                };
            }
            let count = ready!(self.poll_write(socket, cx))?;
            self.advance(count);
        }
    }

    fn is_flushed(&self) -> bool {
        self.written >= self.out.len() && self.data.is_empty()
    }

    /// Takes frames of the body as long as there is room. True when the body has none at the moment.
    fn gather(&mut self, cx: &mut Context<'_>) -> Result<bool, WireError> {
        while let Some((body, writer)) = &mut self.body {
            if !self.data.is_empty() || self.out.len() - self.written.min(self.out.len()) >= GATHER
            {
                return Ok(false);
            }
            match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Pending => return Ok(true),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        let long = writer.data(data, &mut self.out);
                        self.data = long.map_err(|_| WireError::Upload)?.unwrap_or_default();
                    }
                    Err(frame) => {
                        let ended = writer.end(frame.trailers_ref(), &mut self.out);
                        ended.map_err(|_| WireError::Upload)?;
                        self.body = None;
                    }
                },
                Poll::Ready(None) => {
                    writer
                        .end(None, &mut self.out)
                        .map_err(|_| WireError::Upload)?;
                    self.body = None;
                }
                Poll::Ready(Some(Err(_))) => return Err(WireError::Upload),
            }
        }
        Ok(false)
    }

    fn poll_write<S>(&mut self, socket: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<usize>>
    where
        S: AsyncWrite + Unpin,
    {
        let framed = self.out.get(self.written..).unwrap_or_default();
        let socket = Pin::new(socket);
        let count = ready!(match (framed.is_empty(), self.data.is_empty()) {
            (false, true) => socket.poll_write(cx, framed),
            (true, _) => socket.poll_write(cx, &self.data),
            (false, false) => {
                socket.poll_write_vectored(cx, &[IoSlice::new(framed), IoSlice::new(&self.data)])
            }
        })?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        Poll::Ready(Ok(count))
    }

    fn advance(&mut self, count: usize) {
        self.sent = self
            .sent
            .saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        if let Some((body, _)) = &self.body {
            body.moved();
        }
        let framed = count.min(self.out.len() - self.written);
        self.written += framed;
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        }
        let of_data = count - framed;
        if of_data > 0 {
            self.data.advance(of_data.min(self.data.len()));
            if self.data.is_empty()
                && let Some((_, writer)) = &self.body
            {
                writer.after(&mut self.out);
            }
        }
    }
}
