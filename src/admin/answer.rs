//! Answers of both listeners.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;

use super::views::Problem;

pub(super) type Answer = Response<Full<Bytes>>;

/// Why a request is not done; a word, a sentence and what to do.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) status: StatusCode,
    pub(super) problem: Problem,
}

impl Fault {
    pub(super) fn new(
        status: StatusCode,
        error: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        let problem = Problem {
            error: error.to_owned(),
            message: message.into(),
            hint: hint.into(),
        };
        Self { status, problem }
    }

    pub(super) fn answer(&self) -> Answer {
        let mut answer = json(self.status, &self.problem);
        let extra = match self.status {
            StatusCode::METHOD_NOT_ALLOWED => Some((ALLOW, "GET, HEAD")),
            StatusCode::UNAUTHORIZED => Some((http::header::WWW_AUTHENTICATE, "Bearer")),
            _ => None,
        };
        if let Some((name, value)) = extra {
            set(&mut answer, name, value);
        }
        answer
    }
}

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    // Only maps with keys that are no strings cannot be written, and there are none here.
    let body = serde_json::to_vec(value).unwrap_or_default();
    answer(status, "application/json", body)
}

pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, "text/plain; charset=utf-8", body)
}

/// A page without scripts, styles and anything from elsewhere.
pub(super) fn html(body: impl Into<Bytes>) -> Answer {
    let mut page = answer(StatusCode::OK, "text/html; charset=utf-8", body);
    let policy = "default-src 'none'; frame-ancestors 'none'";
    set(&mut page, http::header::CONTENT_SECURITY_POLICY, policy);
    page
}

pub(super) fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    set(&mut answer, CONTENT_TYPE, content_type);
    set(&mut answer, CACHE_CONTROL, "no-store");
    set(&mut answer, X_CONTENT_TYPE_OPTIONS, "nosniff");
    answer
}

fn set(answer: &mut Answer, name: HeaderName, value: &'static str) {
    let value = HeaderValue::from_static(value);
    answer.headers_mut().insert(name, value);
}
