//! The body of an answer: whole and bounded, or line by line as a watch sends it. Whoever reads it
//! drives its connection too; dropping it closes the connection.

use std::fmt;
use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{Connection, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::Sleep;

use super::{HttpError, Transport};

/// The connection under an answer.
pub(super) type Open = Pin<Box<Connection<TokioIo<Box<dyn Transport>>, Full<Bytes>>>>;

/// A body that is still being received.
pub struct BodyStream {
    body: Incoming,
    /// `None` when all of it was received.
    connection: Option<Open>,
    /// As long as it lives the connection does not end by itself.
    _sender: SendRequest<Full<Bytes>>,
    /// Received and not taken yet.
    received: BytesMut,
    /// That much of `received` has no end of line.
    searched: usize,
    ended: bool,
    silence: Option<Pin<Box<Sleep>>>,
}

impl fmt::Debug for BodyStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyStream")
            .field("received", &self.received.len())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl BodyStream {
    pub(super) fn new(
        body: Incoming,
        connection: Option<Open>,
        sender: SendRequest<Full<Bytes>>,
    ) -> Self {
        Self {
            body,
            connection,
            _sender: sender,
            received: BytesMut::new(),
            searched: 0,
            ended: false,
            silence: None,
        }
    }

    /// All of it.
    ///
    /// # Errors
    /// It is larger than `most`, or broken off. There is no time-out here.
    pub async fn whole(mut self, most: usize) -> Result<Bytes, HttpError> {
        let mut all = self.received.split();
        while let Some(data) = self.data().await? {
            if all.len() + data.len() > most {
                return Err(HttpError::BodyTooLarge(most));
            }
            all.extend_from_slice(&data);
        }
        Ok(all.freeze())
    }

    /// The next line without its end; `None` at the proper end of the body. Nothing is lost when
    /// this is cancelled, and the time of silence goes on.
    ///
    /// # Errors
    /// Not a byte within `silence`, a line longer than `most`, or broken off.
    pub async fn line(
        &mut self,
        silence: Duration,
        most: usize,
    ) -> Result<Option<Bytes>, HttpError> {
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Some(line));
            }
            if self.received.len() > most {
                return Err(HttpError::BodyTooLarge(most));
            }
            if self.ended {
                let rest = self.received.split().freeze();
                return Ok((!rest.is_empty()).then_some(rest));
            }
            match std::future::poll_fn(|context| self.poll_line(context, silence)).await? {
                Some(data) => self.received.extend_from_slice(&data),
                None => self.ended = true,
            }
            self.silence = None;
        }
    }

    async fn data(&mut self) -> Result<Option<Bytes>, HttpError> {
        std::future::poll_fn(|context| self.poll_data(context)).await
    }

    /// As `poll_data`, with a timer that outlives a cancellation.
    fn poll_line(
        &mut self,
        context: &mut Context<'_>,
        silence: Duration,
    ) -> Poll<Result<Option<Bytes>, HttpError>> {
        if let Poll::Ready(data) = self.poll_data(context) {
            return Poll::Ready(data);
        }
        let timer = self
            .silence
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(silence)));
        match timer.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(HttpError::Silent(silence))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, HttpError>> {
        if let Some(connection) = &mut self.connection
            && connection.as_mut().poll(context).is_ready()
        {
            // Its own error reaches the body too, behind what was received before.
            self.connection = None;
        }
        loop {
            return match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => Poll::Ready(Ok(Some(data))),
                    Err(_trailers) => continue,
                },
                Poll::Ready(Some(Err(error))) => Poll::Ready(Err(HttpError::Body(error.into()))),
                Poll::Ready(None) => Poll::Ready(Ok(None)),
                Poll::Pending => Poll::Pending,
            };
        }
    }

    fn take_line(&mut self) -> Option<Bytes> {
        let fresh = self.received.get(self.searched..).unwrap_or_default();
        let Some(at) = fresh.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.received.len();
            return None;
        };
        let line = self.received.split_to(self.searched + at);
        self.searched = 0;
        self.received.advance(1);
        Some(line.freeze())
    }
}

/// What was compressed by gzip, if it is not more than `most`.
pub fn inflate(compressed: &[u8], most: usize) -> Result<Bytes, HttpError> {
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(compressed)
        .take(limit)
        .read_to_end(&mut plain)
        .map_err(|error| HttpError::Body(format!("unreadable gzip: {error}").into()))?;
    if plain.len() > most {
        return Err(HttpError::BodyTooLarge(most));
    }
    Ok(plain.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        writer.write_all(plain).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn what_is_inflated_is_bounded() {
        let bomb = gzip(&vec![b'x'; 1_000_000]);
        assert!(bomb.len() < 2000);
        assert_eq!(inflate(&bomb, 1_000_000).unwrap().len(), 1_000_000);
        let error = inflate(&bomb, 999_999).unwrap_err();
        assert!(matches!(error, HttpError::BodyTooLarge(999_999)));
        for broken in [&bomb[..bomb.len() / 2], b"plain text"] {
            assert!(matches!(
                inflate(broken, 9_000_000),
                Err(HttpError::Body(_))
            ));
        }
    }
}
