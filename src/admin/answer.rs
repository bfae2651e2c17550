//! Answers of both listeners.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde::Serialize;

use super::server::Progress;
use super::views::Problem;

/// An answer, whole or streamed.
pub(super) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Why a request is not done; a word, a sentence and what to do.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) status: StatusCode,
    pub(super) problem: Problem,
    /// The methods the page takes, where that is the matter.
    allow: Option<String>,
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
        Self {
            status,
            problem,
            allow: None,
        }
    }

    /// A query that cannot be answered.
    pub(super) fn bad_query(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_query", message, hint)
    }

    /// With the methods that would do.
    pub(super) fn allowing(mut self, methods: String) -> Self {
        self.allow = Some(methods);
        self
    }

    pub(super) fn answer(&self) -> Answer {
        let mut answer = json(self.status, &self.problem);
        if self.status == StatusCode::UNAUTHORIZED {
            set(&mut answer, http::header::WWW_AUTHENTICATE, "Bearer");
        }
        let allow = self.allow.as_deref().map(HeaderValue::from_str);
        if let Some(Ok(allow)) = allow {
            answer.headers_mut().insert(ALLOW, allow);
        }
        answer
    }
}

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    // Only maps with keys that are no strings cannot be written, and there are none here.
    let body = serde_json::to_vec(value).unwrap_or_default();
    answer(status, "application/json", body)
}

/// A value with status 200.
pub(super) fn ok(value: &impl Serialize) -> Result<Answer, Fault> {
    Ok(json(StatusCode::OK, value))
}

/// An answer that goes on.
pub(super) fn streamed(
    content_type: &'static str,
    body: UnsyncBoxBody<Bytes, Infallible>,
    progress: Progress,
) -> Answer {
    let mut stream = answer(StatusCode::OK, content_type, Bytes::new());
    *stream.body_mut() = body;
    stream.extensions_mut().insert(progress);
    stream
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
    let mut answer = Response::new(Full::new(body.into()).boxed_unsync());
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
