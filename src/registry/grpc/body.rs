//! Bodies of gRPC answers: messages, then the status in the trailers.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame};
use tokio::sync::mpsc;

/// One message, or messages as they come; both end with `grpc-status: 0`.
#[derive(Debug)]
pub(super) enum Messages {
    One(Bytes),
    Stream(mpsc::Receiver<Bytes>),
    Trailers,
    End,
}

impl Body for Messages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let (frame, next) = match &mut *self {
            Self::One(message) => (Frame::data(std::mem::take(message)), Some(Self::Trailers)),
            Self::Stream(messages) => match ready!(messages.poll_recv(context)) {
                Some(message) => (Frame::data(message), None),
                None => (good(), Some(Self::End)),
            },
            Self::Trailers => (good(), Some(Self::End)),
            Self::End => return Poll::Ready(None),
        };
        if let Some(next) = next {
            *self = next;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::End)
    }
}

fn good() -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    Frame::trailers(trailers)
}
