//! The one table of what Outrigger answers itself: reason word, HTTP status, gRPC code.
//! The words are the same in the header `x-outrigger-reason`, logs, metrics and docs. Whether an
//! instance is charged is not decided here but by `outlier/classify.rs`.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;

/// Why Outrigger answered itself. A closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The attempt's time was over before a response head.
    AttemptTimeout,
    /// Malformed request, bad framing or bad Host.
    BadRequest,
    /// A browser sent it from a foreign site.
    BlockedCrossSite,
    /// The request body is larger than the limit.
    BodyTooLarge,
    /// The circuit breaker is open.
    CircuitOpen,
    /// The app went away (in logs only).
    ClientClosed,
    /// The app was too slow with its head or body.
    ClientTimeout,
    /// The method CONNECT.
    Connect,
    /// The connection was refused, or the instance cannot be reached.
    ConnectFailed,
    /// No connection in time.
    ConnectTimeout,
    /// New request after the drain's end.
    Draining,
    /// An expectation other than `100-continue`.
    Expect,
    /// Something configured instead of an upstream's answer; it has its own status.
    Fallback,
    /// The header section is too large.
    HeaderTooLarge,
    /// The request came back to us.
    Loop,
    /// Active checks refuse all instances.
    NoHealthyInstances,
    /// No routable instance.
    NoInstances,
    /// No service of that name.
    NoRoute,
    /// Bulkhead or pool full.
    Overflow,
    /// The request's time was over.
    RequestTimeout,
    /// The request target is too long.
    TargetTooLong,
    /// A transfer coding that is not ours.
    TransferCoding,
    /// No byte for too long.
    UpstreamIdle,
    /// The response breaks the rules of HTTP.
    UpstreamProtocol,
    /// Reset or end before a complete response head.
    UpstreamReset,
}

impl Reason {
    /// Every reason, for metrics and docs.
    pub const ALL: [Self; 25] = [
        Self::AttemptTimeout,
        Self::BadRequest,
        Self::BlockedCrossSite,
        Self::BodyTooLarge,
        Self::CircuitOpen,
        Self::ClientClosed,
        Self::ClientTimeout,
        Self::Connect,
        Self::ConnectFailed,
        Self::ConnectTimeout,
        Self::Draining,
        Self::Expect,
        Self::Fallback,
        Self::HeaderTooLarge,
        Self::Loop,
        Self::NoHealthyInstances,
        Self::NoInstances,
        Self::NoRoute,
        Self::Overflow,
        Self::RequestTimeout,
        Self::TargetTooLong,
        Self::TransferCoding,
        Self::UpstreamIdle,
        Self::UpstreamProtocol,
        Self::UpstreamReset,
    ];

    /// The word.
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// The HTTP status.
    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().1).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The gRPC code.
    pub const fn grpc_code(self) -> u8 {
        self.row().2
    }

    /// Position in [`Reason::ALL`], for counters.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether the connection to the app is closed after this answer.
    pub const fn closes(self) -> bool {
        matches!(
            self,
            Self::BadRequest
                | Self::ClientTimeout
                | Self::Connect
                | Self::TransferCoding
                | Self::HeaderTooLarge
                | Self::TargetTooLong
                | Self::BodyTooLarge
                | Self::Draining
        )
    }

    /// The status table of the proxy cases: word, HTTP status, gRPC code.
    const fn row(self) -> (&'static str, u16, u8) {
        match self {
            Self::AttemptTimeout => ("attempt_timeout", 504, 4),
            Self::BadRequest => ("bad_request", 400, 13),
            Self::BlockedCrossSite => ("blocked_cross_site", 403, 7),
            Self::BodyTooLarge => ("body_too_large", 413, 8),
            Self::CircuitOpen => ("circuit_open", 503, 14),
            Self::ClientClosed => ("client_closed", 499, 1),
            Self::ClientTimeout => ("client_timeout", 408, 4),
            Self::Connect => ("connect", 405, 12),
            Self::ConnectFailed => ("connect_failed", 502, 14),
            Self::ConnectTimeout => ("connect_timeout", 504, 4),
            Self::Draining => ("draining", 503, 14),
            Self::Expect => ("expect", 417, 12),
            Self::Fallback => ("fallback", 503, 14),
            Self::HeaderTooLarge => ("header_too_large", 431, 8),
            Self::Loop => ("loop", 508, 14),
            Self::NoHealthyInstances => ("no_healthy_instances", 503, 14),
            Self::NoInstances => ("no_instances", 503, 14),
            Self::NoRoute => ("no_route", 404, 12),
            Self::Overflow => ("overflow", 503, 8),
            Self::RequestTimeout => ("request_timeout", 504, 4),
            Self::TargetTooLong => ("target_too_long", 414, 8),
            Self::TransferCoding => ("transfer_coding", 501, 12),
            Self::UpstreamIdle => ("upstream_idle", 504, 4),
            Self::UpstreamProtocol => ("upstream_protocol", 502, 14),
            Self::UpstreamReset => ("upstream_reset", 502, 14),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An answer of our own: the reason and a sentence for people.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// What happened, with counts and the next step, in plain words.
    pub message: Arc<str>,
    /// For `retry-after`, in seconds.
    pub retry_after: Option<u64>,
}

impl Refusal {
    /// A refusal with its sentence.
    pub fn new(reason: Reason, message: impl Into<Arc<str>>) -> Self {
        Self {
            reason,
            message: message.into(),
            retry_after: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_the_position_in_all() {
        for (i, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), i, "{reason}");
        }
    }
}
