//! Circuit breakers and bulkheads as values.

use serde::{Deserialize, Serialize};

/// A circuit breaker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BreakerStatus {
    /// `enforce`, `observe`, `disabled`.
    pub mode: String,
    /// What it does: `closed`, `open`, `half_open`; `forced_open`, `forced_closed`, `off` by an order.
    pub state: String,
    /// Under `observe`: the state it would be in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would_be: Option<String>,
    /// The whole story in one sentence.
    pub why: String,
    /// Judged calls in the window.
    pub calls: u64,
    /// Failures in the window.
    pub failed: u64,
    /// Slow calls in the window.
    pub slow: u64,
    /// Opens from this share of failures on.
    pub failure_rate_threshold_pct: f64,
    /// Opens from this share of slow calls on.
    pub slow_call_rate_threshold_pct: f64,
    /// Calls that were refused since it opened; under `observe`, would have been.
    pub refused: u64,
    /// Good trials so far, while half-open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good_trials: Option<u32>,
    /// Seconds until trials begin, while open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trials_in_s: Option<f64>,
}

impl BreakerStatus {
    /// The values of `outrigger_circuit_breaker_state{state}`.
    pub const STATES: [&'static str; 4] = ["closed", "open", "half_open", "forced"];

    /// Its state as metrics have it.
    pub fn label(&self) -> &'static str {
        match &*self.state {
            "open" => "open",
            "half_open" => "half_open",
            "forced_open" | "forced_closed" | "off" => "forced",
            _ => "closed",
        }
    }

    /// Whether it refuses calls.
    pub fn refuses(&self) -> bool {
        matches!(&*self.state, "open" | "half_open" | "forced_open")
    }
}

/// A bulkhead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkheadStatus {
    /// Requests that have a place.
    pub in_use: u32,
    /// Places.
    pub limit: u32,
    /// Requests that wait for one.
    pub waiting: u32,
    /// Requests that may wait.
    pub max_queue: u32,
}
