//! Facts read from a request's head, once.

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Request, Version};
use hyper::body::Incoming;

use crate::access_log::RequestNote;
use crate::clock::Timestamp;
use crate::config::types::AccessLogMode;
use crate::metrics::cells::AppProtocol;
use crate::policy::limits::parse_grpc_timeout;
use crate::upstream::headers::{self, GRPC_TIMEOUT, REQUEST_ID, Seen, TRACEPARENT};
use crate::worker::{Snapshot, Worker};

pub(super) fn client_deadline(headers: &HeaderMap, started: Timestamp) -> Option<Timestamp> {
    let value = headers.get(GRPC_TIMEOUT)?;
    parse_grpc_timeout(value.as_bytes()).map(|left| started + left)
}

pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| {
        value
            .as_bytes()
            .strip_prefix(b"application/grpc")
            .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
    })
}

pub(super) fn wants_upgrade(request: &Request<Incoming>, seen: Seen) -> bool {
    seen.upgrade()
        && request.version() == Version::HTTP_11
        && headers::list_has(request.headers(), &http::header::CONNECTION, "upgrade")
        // A change of HTTP version is our own business, not the instance's.
        && !headers::list_has(request.headers(), &http::header::UPGRADE, "h2c")
}

pub(super) fn request_id(worker: &Worker, headers: &HeaderMap, seen: Seen) -> Option<HeaderValue> {
    if seen.request_id() {
        return headers.get(REQUEST_ID).cloned();
    }
    const fn hex(nibble: u8) -> u8 {
        if nibble < 10 {
            b'0' + nibble
        } else {
            b'a' + nibble - 10
        }
    }
    let mut text = [b'0'; 32];
    let random = worker.rng.borrow_mut().u128(..).to_le_bytes();
    for (pair, byte) in text.chunks_exact_mut(2).zip(random) {
        let [high, low] = pair else { continue };
        *high = hex(byte >> 4);
        *low = hex(byte & 0xf);
    }
    let mut value = HeaderValue::from_bytes(&text).ok()?;
    // Different each time: the header tables of HTTP/2 must not keep it.
    value.set_sensitive(true);
    Some(value)
}

pub(super) fn note(
    snapshot: &Snapshot,
    parts: &http::request::Parts,
    seen: Seen,
    host: Option<&HeaderValue>,
    request_id: Option<&HeaderValue>,
) -> Option<RequestNote> {
    let settings = &snapshot.config.telemetry.access_log;
    if settings.mode == AccessLogMode::None {
        return None;
    }
    Some(RequestNote {
        method: parts.method.clone(),
        path: settings.log_paths.then(|| parts.uri.path().to_owned()),
        host: host
            .cloned()
            .or_else(|| HeaderValue::from_str(parts.uri.authority()?.as_str()).ok()),
        request_id: request_id.cloned(),
        traceparent: if seen.traceparent() {
            parts.headers.get(TRACEPARENT).cloned()
        } else {
            None
        },
    })
}

pub(super) fn app_protocol(version: Version, grpc: bool) -> AppProtocol {
    if grpc {
        AppProtocol::Grpc
    } else if version == Version::HTTP_2 {
        AppProtocol::Http2
    } else {
        AppProtocol::Http1
    }
}

pub(super) fn version_text(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}
