//! Whether a failed attempt may be followed by another one. Pure; the budget and the choice of an
//! untried instance are asked for elsewhere.

use std::time::Duration;

use http::Method;

use crate::config::types::{Retry, RetryMethods};

/// What an attempt failed by, as `retry_on` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Refused, unreachable, connect time-out, TLS.
    ConnectFailure,
    /// REFUSED_STREAM, or GOAWAY below the stream.
    RefusedStream,
    /// Reset or end before a complete head.
    Reset,
    /// Our attempt limit.
    AttemptTimeout,
    /// An HTTP status.
    Http(u16),
    /// A gRPC code before any message.
    Grpc(u16),
    /// Nothing that a retry could mend.
    Other,
}

impl Trigger {
    /// Nothing was processed, so a repeat adds no load and no risk: free of budget and method.
    pub const fn nothing_sent(self) -> bool {
        matches!(self, Self::ConnectFailure | Self::RefusedStream)
    }
}

/// Whether `retry_on` and `methods` allow another attempt after `trigger`.
pub fn allows(retry: &Retry, trigger: Trigger, method: &Method, grpc: bool) -> bool {
    let on = &retry.retry_on;
    match trigger {
        Trigger::ConnectFailure => on.connect_failure,
        Trigger::RefusedStream => on.refused_stream,
        Trigger::Reset => on.reset && method_allowed(&retry.methods, method, grpc),
        Trigger::AttemptTimeout => {
            on.attempt_timeout && method_allowed(&retry.methods, method, grpc)
        }
        Trigger::Http(status) => {
            let bit = status.checked_sub(500).filter(|n| *n < 100);
            bit.is_some_and(|n| on.http_5xx & (1 << n) != 0)
                && method_allowed(&retry.methods, method, grpc)
        }
        Trigger::Grpc(code) => {
            let listed = retry.methods.grpc || retry.methods.all;
            listed
                && match code {
                    14 => on.grpc_unavailable,
                    4 => on.grpc_deadline_exceeded,
                    8 => on.grpc_resource_exhausted,
                    _ => false,
                }
        }
        Trigger::Other => false,
    }
}

/// Whether `methods` holds the request's method.
pub fn method_allowed(methods: &RetryMethods, method: &Method, grpc: bool) -> bool {
    methods.all
        || (grpc && methods.grpc)
        || (methods.idempotent && is_idempotent(method))
        || methods.named.contains(method)
}

/// GET HEAD OPTIONS PUT DELETE TRACE.
pub fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::PUT | Method::DELETE | Method::TRACE
    )
}

/// The delay before retry number `n` (from 0): min(max, base x 2^n) + jitter, where the caller
/// draws `jitter` from 0..=`retry.backoff_jitter`. None before the first.
pub fn backoff(retry: &Retry, n: u32, jitter: Duration) -> Duration {
    if n == 0 {
        return Duration::ZERO;
    }
    let factor = 1_u32.checked_shl(n).unwrap_or(u32::MAX);
    retry
        .backoff_base
        .saturating_mul(factor)
        .min(retry.backoff_max)
        .saturating_add(jitter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::types::RetryOn;

    fn retry() -> Retry {
        Retry {
            max_attempts: 2,
            retry_on: RetryOn {
                connect_failure: true,
                refused_stream: true,
                reset: true,
                attempt_timeout: true,
                http_5xx: 0b1100,
                grpc_unavailable: true,
                ..RetryOn::default()
            },
            methods: RetryMethods {
                idempotent: true,
                ..RetryMethods::default()
            },
            max_body: 65_536,
            backoff_base: Duration::from_millis(25),
            backoff_max: Duration::from_millis(250),
            backoff_jitter: Duration::ZERO,
            budget_percent: 20,
            budget_min_per_second: 10,
        }
    }

    #[test]
    fn connect_failures_do_not_ask_for_the_method() {
        assert!(allows(
            &retry(),
            Trigger::ConnectFailure,
            &Method::POST,
            false
        ));
        assert!(!allows(&retry(), Trigger::Reset, &Method::POST, false));
        assert!(allows(&retry(), Trigger::Reset, &Method::GET, false));
        assert!(allows(&retry(), Trigger::Http(503), &Method::GET, false));
        assert!(!allows(&retry(), Trigger::Http(500), &Method::GET, false));
        assert!(!allows(&retry(), Trigger::Http(404), &Method::GET, false));
    }

    #[test]
    fn grpc_codes_need_grpc_listed() {
        let mut retry = retry();
        assert!(!allows(&retry, Trigger::Grpc(14), &Method::POST, true));
        retry.methods.grpc = true;
        assert!(allows(&retry, Trigger::Grpc(14), &Method::POST, true));
        assert!(!allows(&retry, Trigger::Grpc(8), &Method::POST, true));
    }

    #[test]
    fn backoff_doubles_up_to_its_bound() {
        let ms: Vec<u128> = (0..6)
            .map(|n| backoff(&retry(), n, Duration::ZERO).as_millis())
            .collect();
        assert_eq!(ms, [0, 50, 100, 200, 250, 250]);
    }
}
