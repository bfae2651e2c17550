//! `fallback` and `hedge` of a service.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::RetryMethods;

/// One item of `fallback`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// After what it is tried.
    pub conditions: Conditions,
    /// What is answered instead.
    pub kind: FallbackKind,
}

/// What is answered instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FallbackKind {
    /// The last good answer.
    Cache(LastGood),
    /// That of an instance of another upstream, by its name.
    Upstream(Arc<str>),
    /// Always the same.
    Static(Arc<StaticAnswer>),
}

/// `cache`: which answers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastGood {
    /// None older is given.
    pub max_age: Duration,
    /// All of them together.
    pub max_bytes: usize,
}

/// A static answer, in the form of each protocol it has one for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticAnswer {
    /// For requests that are not gRPC.
    pub http: Option<StaticHttp>,
    /// For gRPC calls.
    pub grpc: Option<StaticGrpc>,
}

/// A static answer of HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticHttp {
    /// Its status.
    pub status: StatusCode,
    /// Its body.
    pub body: Bytes,
    /// `content-type`, where there is a body.
    pub content_type: Option<HeaderValue>,
}

/// A static answer to a gRPC call: trailers only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticGrpc {
    /// `grpc-status`, never OK: there is no message.
    pub code: u16,
    /// `grpc-message`; `None` = a sentence of ours.
    pub message: Option<Arc<str>>,
}

/// Why a fallback is asked for. A closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The circuit breaker is open.
    CircuitOpen,
    /// Bulkhead or pool full.
    Overflow,
    /// No routable instance.
    NoInstances,
    /// Active checks refuse all.
    NoHealthyInstances,
    /// Refused, unreachable, connect time-out, TLS.
    ConnectFailure,
    /// The attempt's time was over.
    AttemptTimeout,
    /// The request's time was over.
    RequestTimeout,
    /// Reset or end before a complete head, or the stream refused.
    Reset,
    /// A response that breaks the rules of HTTP.
    UpstreamProtocol,
    /// The instance takes no more of the request body.
    UpstreamIdle,
    /// Status 500.
    Http500,
    /// Status 502.
    Http502,
    /// Status 503.
    Http503,
    /// Status 504.
    Http504,
    /// Any status from 500 to 599.
    Http5xx,
    /// gRPC 14, before any message.
    GrpcUnavailable,
    /// gRPC 4, before any message.
    GrpcDeadlineExceeded,
    /// gRPC 8, before any message.
    GrpcResourceExhausted,
    /// gRPC 13, before any message.
    GrpcInternal,
    /// gRPC 2, before any message.
    GrpcUnknown,
}

impl Condition {
    /// Every condition, in the order of the reference.
    pub const ALL: [Self; 20] = [
        Self::CircuitOpen,
        Self::Overflow,
        Self::NoInstances,
        Self::NoHealthyInstances,
        Self::ConnectFailure,
        Self::AttemptTimeout,
        Self::RequestTimeout,
        Self::Reset,
        Self::UpstreamProtocol,
        Self::UpstreamIdle,
        Self::Http500,
        Self::Http502,
        Self::Http503,
        Self::Http504,
        Self::Http5xx,
        Self::GrpcUnavailable,
        Self::GrpcDeadlineExceeded,
        Self::GrpcResourceExhausted,
        Self::GrpcInternal,
        Self::GrpcUnknown,
    ];

    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CircuitOpen => "circuit_open",
            Self::Overflow => "overflow",
            Self::NoInstances => "no_instances",
            Self::NoHealthyInstances => "no_healthy_instances",
            Self::ConnectFailure => "connect_failure",
            Self::AttemptTimeout => "attempt_timeout",
            Self::RequestTimeout => "request_timeout",
            Self::Reset => "reset",
            Self::UpstreamProtocol => "upstream_protocol",
            Self::UpstreamIdle => "upstream_idle",
            Self::Http500 => "http_500",
            Self::Http502 => "http_502",
            Self::Http503 => "http_503",
            Self::Http504 => "http_504",
            Self::Http5xx => "http_5xx",
            Self::GrpcUnavailable => "grpc_unavailable",
            Self::GrpcDeadlineExceeded => "grpc_deadline_exceeded",
            Self::GrpcResourceExhausted => "grpc_resource_exhausted",
            Self::GrpcInternal => "grpc_internal",
            Self::GrpcUnknown => "grpc_unknown",
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// A set of conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions(u32);

impl Conditions {
    /// With `condition`.
    #[must_use]
    pub const fn with(self, condition: Condition) -> Self {
        Self(self.0 | condition.bit())
    }

    /// Whether it holds after `condition`; `http_5xx` stands for each of its statuses.
    pub const fn has(self, condition: Condition) -> bool {
        let is_status = matches!(
            condition,
            Condition::Http500 | Condition::Http502 | Condition::Http503 | Condition::Http504
        );
        let any_5xx = is_status && self.0 & Condition::Http5xx.bit() != 0;
        any_5xx || self.0 & condition.bit() != 0
    }

    /// Whether it holds after all that `other` holds after.
    pub fn covers(self, other: Self) -> bool {
        let mut asked = Condition::ALL.into_iter().filter(|c| other.has(*c));
        asked.all(|condition| self.has(condition))
    }

    /// Whether it never holds.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// What holds where nothing is written: all that Outrigger itself says of an upstream, and what
    /// gateways on the way say.
    pub fn builtin() -> Self {
        [
            Condition::CircuitOpen,
            Condition::Overflow,
            Condition::NoInstances,
            Condition::NoHealthyInstances,
            Condition::ConnectFailure,
            Condition::AttemptTimeout,
            Condition::RequestTimeout,
            Condition::Reset,
            Condition::UpstreamProtocol,
            Condition::UpstreamIdle,
            Condition::Http502,
            Condition::Http503,
            Condition::Http504,
            Condition::GrpcUnavailable,
        ]
        .into_iter()
        .fold(Self::default(), Self::with)
    }
}

/// `hedge`: a second attempt at another instance when the first is slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hedge {
    /// When it starts.
    pub after: HedgeAfter,
    /// For which methods.
    pub methods: RetryMethods,
}

/// `hedge.after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HedgeAfter {
    /// This long after the first.
    Time(Duration),
    /// As long as all but 5 % of the heads take.
    P95,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_in() {
        for condition in Condition::ALL {
            let only = Conditions::default().with(condition);
            for other in Condition::ALL {
                let status = matches!(
                    other,
                    Condition::Http500
                        | Condition::Http502
                        | Condition::Http503
                        | Condition::Http504
                );
                let want = other == condition || (condition == Condition::Http5xx && status);
                assert_eq!(only.has(other), want, "{condition:?} {other:?}");
            }
        }
    }
}
