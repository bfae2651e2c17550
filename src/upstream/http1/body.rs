//! The body of a response, as it comes.

use std::any::Any;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::call::Rest;
use super::{Connection, WireError};
use crate::protocol::http1::chunked::{ChunkReader, Step};
use crate::protocol::http1::head::{BodyEnd, HeadLimits, ResponseHead};

/// Reads the body of one response.
#[derive(Debug)]
pub struct Receiving {
    progress: Progress,
    reusable: bool,
    /// What of the request is still being written.
    rest: Option<Rest>,
}

#[derive(Debug)]
enum Progress {
    Sized(u64),
    Chunked(ChunkReader),
    Close,
    Done,
}

impl Receiving {
    /// `whole`: the request was written completely.
    pub(super) fn new(
        head: &ResponseHead,
        limits: HeadLimits,
        whole: bool,
        rest: Option<Rest>,
    ) -> Self {
        let progress = match head.end {
            BodyEnd::Sized(length) => Progress::Sized(length),
            BodyEnd::Chunked => {
                Progress::Chunked(ChunkReader::new(limits.max_bytes, limits.max_headers))
            }
            BodyEnd::Close => Progress::Close,
            BodyEnd::Switched => Progress::Done,
        };
        Self {
            progress,
            reusable: whole && head.keep_alive,
            rest,
        }
    }

    /// Whether the end was seen.
    pub const fn is_done(&self) -> bool {
        match &self.progress {
            Progress::Sized(left) => *left == 0,
            Progress::Chunked(reader) => reader.is_done(),
            Progress::Close => false,
            Progress::Done => true,
        }
    }

    /// Whether another request may follow on the connection.
    pub fn leaves_reusable(&self, connection: &Connection) -> bool {
        self.reusable && self.is_done() && connection.buf.is_empty()
    }

    /// The end of a response behind which the request may still be going out: `kept` stays until it is
    /// out. Nothing happens where it is.
    pub fn outlived_by_request(&mut self, kept: Box<dyn Any>) {
        if let Some(rest) = self.rest.take().filter(|_| self.is_done()) {
            rest.outlive(kept);
        }
    }

    /// What is known of the length to come.
    pub fn size_hint(&self) -> SizeHint {
        match &self.progress {
            Progress::Sized(left) => SizeHint::with_exact(*left),
            Progress::Done => SizeHint::with_exact(0),
            Progress::Chunked(_) | Progress::Close => SizeHint::default(),
        }
    }

    /// The next frame.
    pub fn poll_frame(
        &mut self,
        connection: &mut Connection,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, WireError>>> {
        loop {
            match &mut self.progress {
                Progress::Done | Progress::Sized(0) => return Poll::Ready(None),
                Progress::Sized(left) if !connection.buf.is_empty() => {
                    let most = usize::try_from(*left).unwrap_or(usize::MAX);
                    let data = connection.buf.split_to(most.min(connection.buf.len()));
                    let taken = u64::try_from(data.len()).unwrap_or(u64::MAX);
                    *left = left.saturating_sub(taken);
                    return Poll::Ready(Some(Ok(Frame::data(data.freeze()))));
                }
                Progress::Close if !connection.buf.is_empty() => {
                    let data = connection.buf.split().freeze();
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Progress::Chunked(reader) => match reader.step(&mut connection.buf)? {
                    Step::Data(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                    Step::Trailers(trailers) => {
                        return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                    }
                    Step::End => return Poll::Ready(None),
                    Step::More => {}
                },
                Progress::Sized(_) | Progress::Close => {}
            }
            let read = ready!(connection.poll_fill(cx))?;
            if read == 0 {
                if matches!(self.progress, Progress::Close) {
                    self.progress = Progress::Done;
                    return Poll::Ready(None);
                }
                return Poll::Ready(Some(Err(WireError::Incomplete)));
            }
        }
    }
}
