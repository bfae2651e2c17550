//! Outrigger's own answers: JSON for HTTP, trailers-only for gRPC, always marked with the reason.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode, Version};
use serde_json::json;

use crate::error::Refusal;
use crate::outlier::policy::Policy;
use crate::upstream::headers::{REASON, REQUEST_ID};
use crate::upstream::response_body::ProxyBody;

/// Longest message put into a header or trailer.
const MAX_MESSAGE: usize = 1024;

/// What an own answer depends on.
#[derive(Debug)]
pub struct ReplyContext<'a> {
    /// gRPC requests get trailers-only answers.
    pub grpc: bool,
    /// The upstream, when one was found.
    pub upstream: Option<&'a str>,
    /// `x-request-id`.
    pub request_id: Option<&'a HeaderValue>,
    /// Of the app's request.
    pub version: Version,
}

/// The answer for a refusal.
pub fn refusal(refusal: &Refusal, context: &ReplyContext<'_>) -> Response<ProxyBody> {
    let mut response = if context.grpc {
        grpc(refusal)
    } else {
        http(refusal, context)
    };
    let headers = response.headers_mut();
    headers.insert(REASON, HeaderValue::from_static(refusal.reason.as_str()));
    if let Some(seconds) = refusal.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(id) = context.request_id {
        headers.insert(REQUEST_ID, id.clone());
    }
    if refusal.reason.closes() && context.version < Version::HTTP_2 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn http(refusal: &Refusal, context: &ReplyContext<'_>) -> Response<ProxyBody> {
    let reason = refusal.reason.as_str();
    let body = json!({
        "reason": reason,
        "upstream": context.upstream,
        "message": &*refusal.message,
        "doc": format!("docs/operations.md#{reason}"),
        "request_id": context.request_id.and_then(|id| id.to_str().ok()),
    });
    let mut text = body.to_string();
    text.push('\n');
    let mut response = Response::new(ProxyBody::Own(Some(Bytes::from(text))));
    *response.status_mut() = refusal.reason.status();
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/json; charset=utf-8"),
    );
    response
}

fn grpc(refusal: &Refusal) -> Response<ProxyBody> {
    let mut response = Response::new(ProxyBody::Empty);
    *response.status_mut() = StatusCode::OK;
    let message = format!("{}: {}", refusal.reason, refusal.message);
    let code = u16::from(refusal.reason.grpc_code());
    *response.headers_mut() = grpc_status(code, &message);
    response
}

/// The head of an answer that is trailers only.
pub(crate) fn grpc_status(code: u16, message: &str) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(
        HeaderName::from_static("grpc-status"),
        HeaderValue::from(code),
    );
    if let Ok(message) = HeaderValue::from_str(&percent_encode(message)) {
        headers.insert(HeaderName::from_static("grpc-message"), message);
    }
    headers
}

/// `grpc-message`: bytes outside of 0x20-0x7e and `%` as `%XX`, bounded.
fn percent_encode(message: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(message.len());
    for byte in message.bytes() {
        if out.len() >= MAX_MESSAGE {
            break;
        }
        if (0x20..=0x7e).contains(&byte) && byte != b'%' {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _infallible = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The policy for requests that never met an upstream.
pub fn builtin_policy() -> &'static Policy {
    static BUILTIN: LazyLock<Arc<Policy>> = LazyLock::new(|| Arc::new(Policy::builtin(false)));
    &BUILTIN
}
