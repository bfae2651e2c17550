//! One request on one connection, until the head of its response: both directions at once, since an
//! instance may answer before it has read all. What is left of the body then goes out in a task.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::HeaderMap;
use http::{Method, StatusCode};
use tokio::task::AbortHandle;

use super::upload::Upload;
use super::{Connection, Receiving, Socket, WireError};
use crate::protocol::http1::WireFault;
use crate::protocol::http1::head::{self, BodyEnd, ResponseHead};
use crate::protocol::http1::request::{BodyLength, RequestLine, write_head};
use crate::upstream::request_body::AttemptBody;

/// Interim responses (1xx) to one request.
const MOST_INTERIM: u8 = 32;
/// Longest silence of the rest of a request body, behind a response that came before its end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request being answered.
#[derive(Debug)]
pub struct Call {
    upload: Upload,
    method: Method,
    spare: HeaderMap,
    write_error: Option<WireError>,
    heard: bool,
    interim: u8,
    /// Bytes of a head that was incomplete.
    parsed: usize,
}

/// The head of a response and how its body is read.
#[derive(Debug)]
pub struct ResponseStart {
    /// The head.
    pub head: ResponseHead,
    /// The body.
    pub receiving: Receiving,
}

/// The task that writes the rest of a request body; it ends with this.
#[derive(Debug)]
pub(super) struct Rest {
    task: Option<AbortHandle>,
    kept: Kept,
}

/// What the task keeps until its end.
type Kept = Rc<RefCell<Option<Box<dyn Any>>>>;

impl Rest {
    /// Lets the task go on to its end and keeps `kept` until then: the response is whole, and the
    /// instance may still want all of the request.
    pub(super) fn outlive(mut self, kept: Box<dyn Any>) {
        if self.task.take().is_some_and(|task| !task.is_finished()) {
            self.kept.replace(Some(kept));
        }
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
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
        connection.take_room();
        let mut out = std::mem::take(&mut connection.out);
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
            interim: 0,
            parsed: 0,
        }
    }

    /// Whether no byte of the request went out.
    pub const fn is_unsent(&self) -> bool {
        self.upload.sent == 0
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
            if matches!(error, WireError::Upload) || self.upload.sent == 0 {
                return Poll::Ready(Err(error));
            }
            // The instance may have said why before it closed.
            self.write_error = Some(error);
        }
        loop {
            if let Some(head) = self.take_head(connection)? {
                if head.end == BodyEnd::Switched
                    && !(self.upload.is_done() && self.write_error.is_none())
                {
                    let fault = "switches protocols before the request was complete";
                    return Poll::Ready(Err(WireFault::Malformed(fault).into()));
                }
                return Poll::Ready(Ok(self.start(connection, head)));
            }
            match connection.poll_fill(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(self.ended(WireError::Closed))),
                Poll::Ready(Ok(_)) => self.heard = true,
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(self.ended(WireError::Io(error))));
                }
            }
        }
    }

    /// The head of the final response, if it is there. Interim ones are taken and forgotten.
    fn take_head(
        &mut self,
        connection: &mut Connection,
    ) -> Result<Option<ResponseHead>, WireFault> {
        let limits = connection.limits;
        loop {
            let buf = &mut connection.buf;
            if buf.is_empty() {
                return Ok(None);
            }
            if self.parsed > 0 && !head::may_be_complete(buf, self.parsed) {
                self.parsed = buf.len();
                return match buf.len() > limits.max_bytes {
                    true => Err(WireFault::TooLarge),
                    false => Ok(None),
                };
            }
            let Some(head) = head::take(buf, limits, &self.method, &mut self.spare)? else {
                self.parsed = buf.len();
                return Ok(None);
            };
            self.parsed = 0;
            if !head.status.is_informational() || head.status == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(Some(head));
            }
            self.spare = head.headers;
            self.interim += 1;
            if self.interim > MOST_INTERIM {
                return Err(WireFault::Malformed(
                    "sends interim responses without an end",
                ));
            }
        }
    }

    /// Why there is no head: what ended the connection first, unless part of a response was there.
    fn ended(&mut self, error: WireError) -> WireError {
        match self.write_error.take() {
            _ if self.heard => WireError::Incomplete,
            Some(first) => first,
            None => error,
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
            let kept = Kept::default();
            let held = Rc::clone(&kept);
            let task = tokio::task::spawn_local(async move {
                let whole = loop {
                    let before = upload.sent;
                    let ending = std::future::poll_fn(|cx| upload.poll(&mut writing, cx));
                    match tokio::time::timeout(PATIENCE, ending).await {
                        Ok(ended) => break ended.is_ok(),
                        Err(_) if upload.sent == before => break false,
                        Err(_) => {}
                    }
                };
                // The end of the body is not the end of the connection; a body cut short is.
                if whole {
                    writing.forget();
                }
                drop(held);
            });
            Some(Rest {
                task: Some(task.abort_handle()),
                kept,
            })
        }
        other @ (Socket::Reading(_) | Socket::Gone) => {
            connection.socket = other;
            None
        }
    }
}
