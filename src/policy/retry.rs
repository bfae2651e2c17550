//! Whether a failed attempt may be followed by another one. Pure; the budget and the choice of an
//! untried instance are asked for elsewhere.

use std::time::Duration;

use http::{HeaderMap, Method};

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

/// What the answer of an instance says of when to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushback {
    /// Nothing: the back-off holds.
    Silent,
    /// Not before this has passed.
    AtLeast(Duration),
    /// After exactly this.
    Exactly(Duration),
    /// Not at all.
    Never,
}

/// A longer `retry-after` is not waited for: another instance may be fine.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(5);

/// `grpc-retry-pushback-ms` of a gRPC answer (what is no number, or negative, forbids a retry; source:
/// gRFC A6), else `retry-after` in seconds. One that does not fit in `left`: a gRPC server's ends the
/// tries; an HTTP server's is left out, for it speaks of that server alone.
pub fn pushback(headers: &HeaderMap, grpc: bool, left: Duration) -> Pushback {
    if grpc {
        let Some(value) = headers.get("grpc-retry-pushback-ms") else {
            return Pushback::Silent;
        };
        let millis = value
            .to_str()
            .ok()
            .and_then(|text| text.parse::<u64>().ok());
        return match millis.map(Duration::from_millis) {
            Some(wait) if wait < left => Pushback::Exactly(wait),
            Some(_) | None => Pushback::Never,
        };
    }
    let value = headers.get(http::header::RETRY_AFTER);
    let seconds = value.and_then(|v| v.to_str().ok()?.trim().parse::<u64>().ok());
    match seconds.map(Duration::from_secs) {
        Some(wait) if wait <= LONGEST_RETRY_AFTER && wait < left => Pushback::AtLeast(wait),
        Some(_) | None => Pushback::Silent,
    }
}

/// The delay before the next try, from that of [`backoff`].
pub fn delay(backoff: Duration, jitter: Duration, pushback: Pushback) -> Duration {
    match pushback {
        Pushback::Silent | Pushback::Never => backoff,
        // With jitter, so that those who were sent away together do not come back together.
        Pushback::AtLeast(wait) => backoff.max(wait.saturating_add(jitter)),
        Pushback::Exactly(wait) => wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::types::RetryOn;
    use proptest::prelude::*;

    #[test]
    fn servers_say_when_to_try_again() {
        let left = Duration::from_secs(3);
        let of = |name: &'static str, value: &'static str, grpc: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(name, http::HeaderValue::from_static(value));
            pushback(&headers, grpc, left)
        };
        let s = Duration::from_secs;
        assert_eq!(of("retry-after", "2", false), Pushback::AtLeast(s(2)));
        assert_eq!(of("retry-after", "0", false), Pushback::AtLeast(s(0)));
        // Does not fit; a date; speaks HTTP to a gRPC call.
        assert_eq!(of("retry-after", "3", false), Pushback::Silent);
        let date = "Fri, 31 Dec 1999 23:59:59 GMT";
        assert_eq!(of("retry-after", date, false), Pushback::Silent);
        assert_eq!(of("retry-after", "2", true), Pushback::Silent);
        let grpc = |value| of("grpc-retry-pushback-ms", value, true);
        assert_eq!(grpc("250"), Pushback::Exactly(Duration::from_millis(250)));
        for never in ["-1", "soon", "3000", ""] {
            assert_eq!(grpc(never), Pushback::Never, "{never}");
        }
        let (wait, jitter) = (s(2), Duration::from_millis(20));
        assert_eq!(delay(s(1), jitter, Pushback::AtLeast(wait)), wait + jitter);
        assert_eq!(delay(s(3), jitter, Pushback::AtLeast(wait)), s(3));
        assert_eq!(delay(s(3), jitter, Pushback::Exactly(wait)), wait);
    }

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

    /// Any delay a file may write: from nothing to the longest that fits.
    fn any_delay() -> impl Strategy<Value = Duration> {
        prop_oneof![
            Just(Duration::ZERO),
            (0_u64..10_000).prop_map(Duration::from_millis),
            any::<u64>().prop_map(Duration::from_nanos),
            Just(Duration::MAX),
        ]
    }

    fn any_backoff() -> impl Strategy<Value = Retry> {
        (any_delay(), any_delay(), any_delay()).prop_map(|(base, max, jitter)| Retry {
            backoff_base: base,
            backoff_max: max,
            backoff_jitter: jitter,
            ..retry()
        })
    }

    proptest! {
        #[test]
        fn backoff_is_at_once_first_then_grows_and_stays_within_its_bounds(
            retry in any_backoff(),
            n in prop_oneof![0_u32..12, any::<u32>()],
            drawn in 0.0_f64..=1.0,
        ) {
            let jitter = Duration::from_secs(1).min(retry.backoff_jitter).mul_f64(drawn);
            prop_assert_eq!(backoff(&retry, 0, jitter), Duration::ZERO);
            let plain = backoff(&retry, n, Duration::ZERO);
            prop_assert!(plain <= retry.backoff_max);
            prop_assert!(plain <= backoff(&retry, n.saturating_add(1), Duration::ZERO));
            if (1..20).contains(&n) {
                let doubled = retry.backoff_base.checked_mul(1 << n).unwrap_or(Duration::MAX);
                prop_assert_eq!(plain, doubled.min(retry.backoff_max));
            }
            let drawn = backoff(&retry, n, jitter);
            if n > 0 {
                prop_assert_eq!(drawn, plain.saturating_add(jitter));
            }
        }

        #[test]
        fn a_server_that_asks_for_time_gets_it_and_not_less(
            retry in any_backoff(),
            n in 0_u32..40,
            jitter in any_delay(),
            wait in any_delay(),
        ) {
            let own = backoff(&retry, n, jitter);
            let asked = delay(own, jitter, Pushback::AtLeast(wait));
            prop_assert!(asked >= wait && asked >= own);
            prop_assert!(asked == own || asked == wait.saturating_add(jitter));
            prop_assert_eq!(delay(own, jitter, Pushback::Exactly(wait)), wait);
            prop_assert_eq!(delay(own, jitter, Pushback::Silent), own);
        }

        #[test]
        fn what_a_server_asks_for_is_waited_for_only_where_it_fits(
            asked in prop_oneof!["[0-9]{1,25}", "-[0-9]{1,5}", "\\PC{0,12}"],
            left in any_delay(),
            grpc in any::<bool>(),
        ) {
            let name = if grpc { "grpc-retry-pushback-ms" } else { "retry-after" };
            let Ok(value) = http::HeaderValue::from_str(&asked) else { return Ok(()) };
            let mut headers = HeaderMap::new();
            headers.insert(name, value);
            match pushback(&headers, grpc, left) {
                Pushback::Silent => prop_assert!(!grpc),
                Pushback::AtLeast(wait) => {
                    prop_assert!(!grpc && wait < left && wait <= LONGEST_RETRY_AFTER);
                }
                Pushback::Exactly(wait) => prop_assert!(grpc && wait < left),
                Pushback::Never => prop_assert!(grpc),
            }
        }
    }
}
