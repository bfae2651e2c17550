//! What a response head says: of its instance, for a retry, and whether it may be passed on at all.
//! Pure.

use http::StatusCode;
use http::header::TRANSFER_ENCODING;

use super::attempt::Answer;
use super::retry::Trigger;
use crate::outlier::classify::{ErrorKind, OutcomeClass, classify_grpc, classify_http};
use crate::outlier::policy::Policy;
use crate::upstream::response_body;

/// What the head of an answer says of its instance.
pub(super) fn classify(
    answer: &Answer,
    grpc: bool,
    policy: &Policy,
) -> (OutcomeClass, Option<ErrorKind>) {
    let status = answer.response.status().as_u16();
    if status == 101 {
        return (OutcomeClass::Success, None);
    }
    let code = grpc
        .then(|| response_body::grpc_code(answer.response.headers()))
        .flatten();
    let (class, kind) = match code {
        Some(code) => (
            classify_grpc(Some(u32::from(code)), policy),
            ErrorKind::GrpcStatus,
        ),
        None => (classify_http(status, policy), ErrorKind::Http5xx),
    };
    (class, (class != OutcomeClass::Success).then_some(kind))
}

pub(super) fn trigger_of(answer: &Answer, grpc: bool) -> Trigger {
    let status = answer.response.status().as_u16();
    let code = grpc
        .then(|| response_body::grpc_code(answer.response.headers()))
        .flatten();
    match code {
        Some(0) => Trigger::Other,
        Some(code) => Trigger::Grpc(code),
        None if status >= 500 => Trigger::Http(status),
        None => Trigger::Other,
    }
}

/// What the codecs let pass in a response and a proxy must not pass on. `coded`: it may have a
/// transfer coding.
pub(super) fn rule_broken(
    response: &http::Response<()>,
    upgrade: bool,
    coded: bool,
) -> Option<&'static str> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS && !upgrade {
        return Some("switches protocols although nobody asked for it");
    }
    if !coded {
        return None;
    }
    // We ask for no coding but chunked (no `te` goes upstream), and no other is decoded.
    let mut codings = response.headers().get_all(TRANSFER_ENCODING).iter();
    let coding = codings.next()?;
    (!coding.as_bytes().eq_ignore_ascii_case(b"chunked") || codings.next().is_some())
        .then_some("uses a transfer coding other than chunked")
}
