//! One request on one connection, until the head of its response: both directions at once, since an
//! instance may answer before it has read all. What is left of the body then goes out in a task.

use std::task::{Context, Poll};

use http::header::HeaderMap;
use http::{Method, StatusCode};
use tokio::task::AbortHandle;

use super::upload::Upload;
use super::{Connection, Receiving, Socket, WireError};
use crate::protocol::http1::head::{self, BodyEnd, ResponseHead};
use crate::protocol::http1::request::{BodyLength, RequestLine, write_head};
use crate::upstream::request_body::AttemptBody;

/// A request being answered.
#[derive(Debug)]
pub struct Call {
    upload: Upload,
    method: Method,
    spare: HeaderMap,
    write_error: Option<WireError>,
    heard: bool,
}

/// The head of a response and how its body is read.
#[derive(Debug)]
pub struct ResponseStart {
    /// The head.
    pub head: ResponseHead,
    /// The body.
    pub receiving: Receiving,
}

/// Ends the task that writes the rest of a request body.
#[derive(Debug)]
pub(super) struct Rest(AbortHandle);

impl Drop for Rest {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Call {
    /// Prepares a request. `spare`: an empty map whose room is used for the response's fields.
    pub fn new(
        connection: &mut Connection,
        line: &RequestLine<'_>,
        body: Option<(AttemptBody, BodyLength)>,
        spare: HeaderMap,
    ) -> Self {
        let mut out = std::mem::take(&mut connection.out);
        out.clear();
        let length = body
            .as_ref()
            .map_or(BodyLength::Absent, |(_, length)| *length);
        let writer = write_head(&mut out, line, length);
        Self {
            upload: Upload::new(out, body.map(|(body, _)| (body, writer))),
            method: line.method.clone(),
            spare,
            write_error: None,
            heard: false,
        }
    }

    /// Whether no byte of the request went out.
    pub const fn is_unsent(&self) -> bool {
        !self.upload.begun
    }

    /// Writes and reads. Ready with the head of the response.
    pub fn poll(
        &mut self,
        connection: &mut Connection,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseStart, WireError>> {
        if self.write_error.is_none()
            && !self.upload.is_done()
            && let Socket::Whole(stream) = &mut connection.socket
            && let Poll::Ready(Err(error)) = self.upload.poll(stream, cx)
        {
            if matches!(error, WireError::Upload) || !self.upload.begun {
                return Poll::Ready(Err(error));
            }
            // The instance may have said why before it closed.
            self.write_error = Some(error);
        }
        loop {
            if !connection.buf.is_empty() {
                let limits = connection.limits;
                let taken = head::take(&mut connection.buf, limits, &self.method, &mut self.spare)?;
                if let Some(head) = taken {
                    let interim = head.status.is_informational()
                        && head.status != StatusCode::SWITCHING_PROTOCOLS;
                    if interim {
                        self.spare = head.headers;
                        continue;
                    }
                    return Poll::Ready(Ok(self.start(connection, head)));
                }
            }
            match connection.poll_fill(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(self.ended())),
                Poll::Ready(Ok(_)) => self.heard = true,
                Poll::Ready(Err(error)) => {
                    let first = self.write_error.take();
                    return Poll::Ready(Err(first.unwrap_or(WireError::Io(error))));
                }
            }
        }
    }

    fn ended(&mut self) -> WireError {
        match self.write_error.take() {
            Some(error) => error,
            None if self.heard => WireError::Incomplete,
            None => WireError::Closed,
        }
    }

    /// The head is there: what is left of the body goes out beside the response.
    fn start(&mut self, connection: &mut Connection, head: ResponseHead) -> ResponseStart {
        let upload = std::mem::replace(&mut self.upload, Upload::new(Vec::new(), None));
        let mut rest = None;
        let mut whole = self.write_error.is_none();
        if upload.is_done() {
            connection.out = upload.out;
        } else if whole && head.end != BodyEnd::Switched {
            whole = false;
            rest = write_on(connection, upload);
        } else {
            whole = false;
        }
        let receiving = Receiving::new(&head, connection.limits, whole, rest);
        ResponseStart { head, receiving }
    }
}

fn write_on(connection: &mut Connection, mut upload: Upload) -> Option<Rest> {
    match std::mem::replace(&mut connection.socket, Socket::Gone) {
        Socket::Whole(stream) => {
            let (reading, mut writing) = stream.into_split();
            connection.socket = Socket::Reading(reading);
            let task = tokio::task::spawn_local(async move {
                let ended = std::future::poll_fn(|cx| upload.poll(&mut writing, cx)).await;
                // The end of the body is not the end of the connection; a body cut short is.
                if ended.is_ok() {
                    writing.forget();
                }
            });
            Some(Rest(task.abort_handle()))
        }
        other @ (Socket::Reading(_) | Socket::Gone) => {
            connection.socket = other;
            None
        }
    }
}
