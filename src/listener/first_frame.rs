//! Whether a request that may have no body has one: told by its first frame.

use std::rc::Rc;
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::{Method, Version};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::config::types::{Protocol, Service};
use crate::policy::stack::Exchange;
use crate::upstream::request_body::{RequestBody, RequestBodyParts};

/// How long the first frame of a body is awaited that is probably empty. Who ends a request by an
/// empty frame sends it right after the head; who waits for our answer first waits no longer than
/// this. Too short it costs an instance a coding it could do without, no more.
const FIRST_FRAME: Duration = Duration::from_millis(25);

/// Over HTTP/2 a request without a body may end by an empty DATA frame; with a method that usually
/// has none the first frame is awaited, since an HTTP/1.1 instance would get a coding for nothing
/// otherwise. One of HTTP/2 gets the frames as they come.
pub(super) fn may_be_empty(parts: &http::request::Parts, service: &Service) -> bool {
    parts.version == Version::HTTP_2
        && matches!(service.protocol, Protocol::Auto | Protocol::Http1)
        && matches!(
            parts.method,
            Method::GET | Method::HEAD | Method::OPTIONS | Method::DELETE | Method::TRACE
        )
        && !parts.headers.contains_key(CONTENT_LENGTH)
}

/// The body after its first frame; `None` when it turned out to be empty.
pub(super) async fn after_first_frame(
    exchange: &Exchange,
    mut body: Incoming,
) -> Option<Rc<RequestBody>> {
    let mut first = None;
    // One that waits for our answer first is served after this time.
    match tokio::time::timeout(FIRST_FRAME, body.frame()).await {
        Ok(Some(Ok(frame))) => {
            let empty = frame.data_ref().is_some_and(bytes::Bytes::is_empty);
            if empty && body.is_end_stream() {
                return None;
            }
            first = Some(frame);
        }
        // How it ended is said again to the one who reads it.
        Ok(Some(Err(_)) | None) => {
            if body.is_end_stream() {
                return None;
            }
        }
        Err(_) => {}
    }
    Some(RequestBody::new(RequestBodyParts {
        incoming: body,
        first,
        multiplexed: true,
        clock: exchange.worker.clock,
        keep_limit: exchange.service().retry.max_body,
        max_bytes: exchange.snapshot.config.limits.max_body_bytes,
    }))
}
