//! `circuit_breaker` and `bulkhead` of a service or a route.

use std::time::Duration;

/// `circuit_breaker`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitBreaker {
    /// What it does.
    pub mode: BreakerMode,
    /// Opens from this share of failures on, in hundredths of a percent.
    pub failure_rate_bp: u32,
    /// Opens from this share of slow calls on, in hundredths of a percent.
    pub slow_call_rate_bp: u32,
    /// A call whose head takes longer is slow.
    pub slow_call_duration: Duration,
    /// Calls in the window that are needed for a verdict.
    pub minimum_number_of_calls: u32,
    /// Length of the window.
    pub sliding_window_size: Duration,
    /// How long it stays open before trials.
    pub wait_duration_in_open_state: Duration,
    /// Trials while half-open: all good closes, one bad opens.
    pub permitted_number_of_calls_in_half_open_state: u32,
}

/// `circuit_breaker.mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerMode {
    /// Counts and refuses.
    Enforce,
    /// Counts and says what it would do; refuses nothing.
    Observe,
    /// Nothing.
    Disabled,
}

impl BreakerMode {
    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::Disabled => "disabled",
        }
    }
}

/// `bulkhead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bulkhead {
    /// Requests at a time.
    pub max_concurrent_calls: u32,
    /// Requests that may wait for a place.
    pub max_queue: u32,
    /// How long one waits at most.
    pub max_wait_duration: Duration,
}

/// What a route shares with its service: what it does not write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// The circuit breaker.
    pub breaker: bool,
    /// The bulkhead.
    pub bulkhead: bool,
}
