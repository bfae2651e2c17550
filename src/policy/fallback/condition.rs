//! Which outcome asks for a fallback, and by which name. Pure. What the app itself did (a bad
//! request, going away, a body that is too large) never does, nor does our own shutting down.

use http::StatusCode;

use crate::config::types::Condition;
use crate::error::Reason;

/// After an answer of our own.
pub const fn of_refusal(reason: Reason) -> Option<Condition> {
    match reason {
        Reason::CircuitOpen => Some(Condition::CircuitOpen),
        Reason::AttemptTimeout => Some(Condition::AttemptTimeout),
        Reason::ConnectFailed | Reason::ConnectTimeout => Some(Condition::ConnectFailure),
        Reason::NoHealthyInstances => Some(Condition::NoHealthyInstances),
        Reason::NoInstances => Some(Condition::NoInstances),
        Reason::Overflow => Some(Condition::Overflow),
        Reason::RequestTimeout => Some(Condition::RequestTimeout),
        Reason::UpstreamIdle => Some(Condition::UpstreamIdle),
        Reason::UpstreamProtocol => Some(Condition::UpstreamProtocol),
        Reason::UpstreamReset => Some(Condition::Reset),
        Reason::BadRequest
        | Reason::BlockedCrossSite
        | Reason::BodyTooLarge
        | Reason::ClientClosed
        | Reason::ClientTimeout
        | Reason::Connect
        | Reason::Draining
        | Reason::Expect
        | Reason::Fallback
        | Reason::HeaderTooLarge
        | Reason::Loop
        | Reason::NoRoute
        | Reason::TargetTooLong
        | Reason::TransferCoding => None,
    }
}

/// After an instance's head: its status, and the gRPC code where the head has one.
pub fn of_head(status: StatusCode, grpc: Option<u16>) -> Option<Condition> {
    match (grpc, status.as_u16()) {
        (Some(14), _) => Some(Condition::GrpcUnavailable),
        (Some(4), _) => Some(Condition::GrpcDeadlineExceeded),
        (Some(8), _) => Some(Condition::GrpcResourceExhausted),
        (Some(13), _) => Some(Condition::GrpcInternal),
        (Some(2), _) => Some(Condition::GrpcUnknown),
        (Some(_), _) => None,
        (None, 500) => Some(Condition::Http500),
        (None, 502) => Some(Condition::Http502),
        (None, 503) => Some(Condition::Http503),
        (None, 504) => Some(Condition::Http504),
        (None, 501 | 505..=599) => Some(Condition::Http5xx),
        (None, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_app_did_asks_for_nothing() {
        let asked = Reason::ALL.into_iter().filter(|r| of_refusal(*r).is_some());
        for reason in asked {
            assert!(reason.status().is_server_error(), "{reason}");
        }
        for reason in [Reason::ClientClosed, Reason::BadRequest, Reason::Draining] {
            assert_eq!(of_refusal(reason), None);
        }
    }

    #[test]
    fn heads_are_named_by_status_or_code() {
        let head = |status, grpc| of_head(StatusCode::from_u16(status).unwrap(), grpc);
        assert_eq!(head(503, None), Some(Condition::Http503));
        assert_eq!(head(507, None), Some(Condition::Http5xx));
        assert_eq!(head(404, None), None);
        assert_eq!(head(200, Some(14)), Some(Condition::GrpcUnavailable));
        assert_eq!(head(200, Some(0)), None);
        assert_eq!(head(200, Some(5)), None);
    }
}
