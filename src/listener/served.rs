//! Answers of fallbacks on their way to the app: counted, logged and marked.
//! The caller is `listener/http.rs`; the answers come from `policy/fallback.rs`.

use http::Response;
use http::header::{HeaderMap, HeaderValue};

use super::http::{Asked, finish_head};
use super::request::RequestGuard;
use crate::access_log::FallbackNote;
use crate::config::types::Condition;
use crate::error::Reason;
use crate::metrics::cells::FallbackSource;
use crate::policy::fallback::Served;
use crate::upstream::headers::{REASON, Seen};
use crate::upstream::response_body::ProxyBody;

/// The answer of a fallback that no instance gave.
pub(super) fn serve_fallback(
    mut guard: RequestGuard,
    served: Served,
    asked: &Asked,
) -> Response<ProxyBody> {
    let Served {
        source, condition, ..
    } = served;
    let head = (served.response.status().as_u16(), served.grpc);
    guard.fell_back(FallbackNote { source, condition }, Some(head));
    guard.leave_place();
    let mut response = served.into_response(asked.head);
    mark(response.headers_mut());
    let seen = Seen::scan(response.headers());
    finish_head(response, seen, asked)
}

/// An answer of another upstream.
pub(super) fn mark_elsewhere(
    guard: &mut RequestGuard,
    condition: Condition,
    headers: &mut HeaderMap,
) {
    let source = FallbackSource::Upstream;
    guard.fell_back(FallbackNote { source, condition }, None);
    mark(headers);
}

fn mark(headers: &mut HeaderMap) {
    headers.insert(REASON, HeaderValue::from_static(Reason::Fallback.as_str()));
}
