//! What an answer says of the instance that gave it: the attribution matrix of ejection, pure.
//! Connection-level failures carry an [`ErrorKind`] and are always network errors; codes are looked
//! up here. Dubbo2 statuses come with that protocol. Next: `outlier/window.rs`.

use std::fmt;
use std::time::Duration;

use super::policy::{ExceptionType, Policy};

/// What one attempt says of the instance it went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcomeClass {
    /// A proper answer, also one that blames the caller.
    Success,
    /// The instance or the way to it failed.
    NetworkError,
    /// The application behind it failed.
    BusinessError,
    /// No evidence: in no window, not even as a call.
    Ignored,
}

impl OutcomeClass {
    /// The label of metrics and traces.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::NetworkError => "network_error",
            Self::BusinessError => "business_error",
            Self::Ignored => "ignored",
        }
    }

    /// Whether it counts as a failure where `exception_type` holds.
    pub const fn is_failure(self, exception_type: ExceptionType) -> bool {
        match self {
            Self::Success | Self::Ignored => false,
            Self::NetworkError => true,
            Self::BusinessError => matches!(exception_type, ExceptionType::NetworkAndBusiness),
        }
    }
}

/// How an attempt failed: the closed set of the `kind` label and of `errors_by_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// The connection was refused, or the network said unreachable.
    ConnectRefused,
    /// No connection within the limit.
    ConnectTimeout,
    /// The TLS handshake failed.
    Tls,
    /// The connection ended before the response head.
    Reset,
    /// The answer breaks the protocol.
    Protocol,
    /// Our limit for one attempt expired.
    AttemptTimeout,
    /// Our limit for the whole request expired, or the client gave up on a hung server.
    RequestTimeout,
    /// The body stalled beyond our idle limit.
    Idle,
    /// The body ended early.
    Truncated,
    /// An HTTP status that is an error under the policy.
    Http5xx,
    /// A gRPC or Dubbo status that is an error under the policy, or a missing one.
    GrpcStatus,
}

impl ErrorKind {
    /// Every kind, in the order of the label list.
    pub const ALL: [Self; 11] = [
        Self::ConnectRefused,
        Self::ConnectTimeout,
        Self::Tls,
        Self::Reset,
        Self::Protocol,
        Self::AttemptTimeout,
        Self::RequestTimeout,
        Self::Idle,
        Self::Truncated,
        Self::Http5xx,
        Self::GrpcStatus,
    ];

    /// The label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ConnectRefused => "connect_refused",
            Self::ConnectTimeout => "connect_timeout",
            Self::Tls => "tls",
            Self::Reset => "reset",
            Self::Protocol => "protocol",
            Self::AttemptTimeout => "attempt_timeout",
            Self::RequestTimeout => "request_timeout",
            Self::Idle => "idle",
            Self::Truncated => "truncated",
            Self::Http5xx => "http_5xx",
            Self::GrpcStatus => "grpc_status",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The class of an HTTP answer. What the policy ignores is a success, what it lists is business,
/// also where it is network by default.
pub fn classify_http(status: u16, policy: &Policy) -> OutcomeClass {
    let codes = &policy.business_errors;
    if codes.http_ignore.contains(status) {
        return OutcomeClass::Success;
    }
    let business = match &codes.http {
        Some(list) => list.contains(status),
        None => matches!(status, 500 | 505..=599),
    };
    match status {
        _ if business => OutcomeClass::BusinessError,
        502..=504 => OutcomeClass::NetworkError,
        _ => OutcomeClass::Success,
    }
}

/// The class of an explicit `grpc-status`. `None`: none came, or one that is no number, with an
/// answer that was gRPC. CANCELLED from a server whose client still waits is business: it gave up.
pub fn classify_grpc(code: Option<u32>, policy: &Policy) -> OutcomeClass {
    const DEADLINE_EXCEEDED: u16 = 4;
    const UNAVAILABLE: u16 = 14;
    let Some(code) = code else {
        return OutcomeClass::NetworkError;
    };
    let code = u16::try_from(code).unwrap_or(u16::MAX);
    let codes = &policy.business_errors;
    if code == 0 || codes.grpc_ignore.contains(code) {
        return OutcomeClass::Success;
    }
    let business = match &codes.grpc {
        Some(list) => list.contains(code),
        None => matches!(code, 1 | 2 | 8 | 13 | 15 | 17..),
    };
    match code {
        _ if business => OutcomeClass::BusinessError,
        DEADLINE_EXCEEDED | UNAVAILABLE => OutcomeClass::NetworkError,
        _ => OutcomeClass::Success,
    }
}

/// The class of an attempt whose client went away before a head came. `waited`: since the request
/// was sent whole; `None`: it was not, however late that was. Single cancels stay harmless, a
/// client that gave up on a hung server is evidence.
pub fn classify_client_gone(waited: Option<Duration>, attempt_limit: Duration) -> OutcomeClass {
    let patience = Duration::from_secs(1).max(attempt_limit / 5);
    match waited {
        Some(waited) if waited > patience => OutcomeClass::NetworkError,
        Some(_) | None => OutcomeClass::Ignored,
    }
}

/// The class of an attempt that ended because our limit for the whole request expired: it is
/// charged only when it had a fair share of the time.
pub fn classify_request_timeout(
    ran: Duration,
    attempt_limit: Duration,
    request_limit: Duration,
) -> OutcomeClass {
    if ran >= attempt_limit.min(request_limit) / 2 {
        OutcomeClass::NetworkError
    } else {
        OutcomeClass::Ignored
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::CodeSet;
    use super::OutcomeClass::{BusinessError, Ignored, NetworkError, Success};
    use super::*;

    #[test]
    fn http_defaults() {
        let policy = Policy::builtin(false);
        for (status, want) in [
            (101, Success),
            (200, Success),
            (404, Success),
            (429, Success),
            (500, BusinessError),
            (501, Success),
            (502, NetworkError),
            (503, NetworkError),
            (504, NetworkError),
            (505, BusinessError),
            (599, BusinessError),
            (600, Success),
        ] {
            assert_eq!(classify_http(status, &policy), want, "{status}");
        }
    }

    #[test]
    fn grpc_defaults() {
        let policy = Policy::builtin(false);
        for (codes, want) in [
            (vec![0, 3, 5, 6, 7, 9, 10, 11, 12, 16], Success),
            (vec![1, 2, 8, 13, 15, 17, 70_000], BusinessError),
            (vec![4, 14], NetworkError),
        ] {
            for code in codes {
                assert_eq!(classify_grpc(Some(code), &policy), want, "{code}");
            }
        }
        assert_eq!(classify_grpc(None, &policy), NetworkError);
    }

    #[test]
    fn lists_replace_defaults_and_ignoring_wins() {
        let mut policy = Policy::builtin(false);
        policy.business_errors.http = Some(CodeSet::from_ranges([(429, 429), (503, 503)]));
        policy.business_errors.http_ignore = CodeSet::from_ranges([(502, 502)]);
        policy.business_errors.grpc = Some(CodeSet::from_ranges([(14, 14)]));
        policy.business_errors.grpc_ignore = CodeSet::from_ranges([(4, 4)]);
        assert_eq!(classify_http(429, &policy), BusinessError);
        assert_eq!(classify_http(503, &policy), BusinessError);
        assert_eq!(classify_http(500, &policy), Success);
        assert_eq!(classify_http(502, &policy), Success);
        assert_eq!(classify_http(504, &policy), NetworkError);
        assert_eq!(classify_grpc(Some(14), &policy), BusinessError);
        assert_eq!(classify_grpc(Some(13), &policy), Success);
        assert_eq!(classify_grpc(Some(4), &policy), Success);
    }

    #[test]
    fn time_decides_who_is_charged() {
        let secs = Duration::from_secs;
        assert_eq!(classify_client_gone(None, secs(5)), Ignored);
        assert_eq!(classify_client_gone(Some(secs(1)), secs(5)), Ignored);
        assert_eq!(classify_client_gone(Some(secs(2)), secs(10)), Ignored);
        assert_eq!(classify_client_gone(Some(secs(2)), secs(5)), NetworkError);
        assert_eq!(
            classify_request_timeout(secs(2), secs(5), secs(4)),
            NetworkError
        );
        assert_eq!(classify_request_timeout(secs(1), secs(5), secs(4)), Ignored);
    }

    #[test]
    fn business_errors_fail_only_where_the_policy_says_so() {
        let (network, both) = (ExceptionType::Network, ExceptionType::NetworkAndBusiness);
        assert!(NetworkError.is_failure(network) && NetworkError.is_failure(both));
        assert!(!BusinessError.is_failure(network) && BusinessError.is_failure(both));
        assert!(!Success.is_failure(both) && !Ignored.is_failure(both));
    }
}
