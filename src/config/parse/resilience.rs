//! `circuit_breaker` and `bulkhead` of a service or a route. What is not written comes from `base`.
//! The names are those of Resilience4j.

use std::time::Duration;

use super::reader::Map;
use super::value::Span;
use crate::config::types::{BreakerMode, Bulkhead, CircuitBreaker};

/// Its slices are a tenth.
const WINDOW: Span = Span::between(Duration::from_secs(1), Duration::from_secs(3600));

/// `circuit_breaker`.
pub(crate) fn circuit_breaker(map: Map<'_>, base: &CircuitBreaker) -> CircuitBreaker {
    let modes = [
        ("enforce", BreakerMode::Enforce),
        ("observe", BreakerMode::Observe),
        ("disabled", BreakerMode::Disabled),
    ];
    let breaker = CircuitBreaker {
        mode: map.choice("mode", base.mode, &modes, &[]),
        failure_rate_bp: map.percent("failure_rate_threshold", base.failure_rate_bp, 1),
        slow_call_rate_bp: map.percent("slow_call_rate_threshold", base.slow_call_rate_bp, 1),
        slow_call_duration: map.duration(
            "slow_call_duration",
            base.slow_call_duration,
            Span::POSITIVE,
        ),
        minimum_number_of_calls: map.integer(
            "minimum_number_of_calls",
            base.minimum_number_of_calls,
            &(1..=1_000_000),
        ),
        sliding_window_size: map.duration("sliding_window_size", base.sliding_window_size, WINDOW),
        wait_duration_in_open_state: map.duration(
            "wait_duration_in_open_state",
            base.wait_duration_in_open_state,
            Span::POSITIVE,
        ),
        permitted_number_of_calls_in_half_open_state: map.integer(
            "permitted_number_of_calls_in_half_open_state",
            base.permitted_number_of_calls_in_half_open_state,
            &(1..=10_000),
        ),
    };
    map.finish();
    breaker
}

/// `bulkhead`.
pub(crate) fn bulkhead(map: Map<'_>, base: &Bulkhead) -> Bulkhead {
    let bulkhead = Bulkhead {
        max_concurrent_calls: map.integer(
            "max_concurrent_calls",
            base.max_concurrent_calls,
            &(1..=1_000_000),
        ),
        max_queue: map.integer("max_queue", base.max_queue, &(0..=1_000_000)),
        max_wait_duration: map.duration(
            "max_wait_duration",
            base.max_wait_duration,
            Span::ZERO_OR_MORE,
        ),
    };
    map.finish();
    bulkhead
}

impl CircuitBreaker {
    /// What holds where nothing is written.
    pub(crate) const fn builtin() -> Self {
        Self {
            mode: BreakerMode::Disabled,
            failure_rate_bp: 5_000,
            slow_call_rate_bp: 10_000,
            slow_call_duration: Duration::from_secs(60),
            minimum_number_of_calls: 100,
            sliding_window_size: Duration::from_secs(10),
            wait_duration_in_open_state: Duration::from_secs(60),
            permitted_number_of_calls_in_half_open_state: 10,
        }
    }
}

impl Bulkhead {
    /// What holds where nothing is written.
    pub(crate) const fn builtin() -> Self {
        Self {
            max_concurrent_calls: 1024,
            max_queue: 0,
            max_wait_duration: Duration::ZERO,
        }
    }
}
