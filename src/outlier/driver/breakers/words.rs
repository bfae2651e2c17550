//! Circuit breakers in words: for events, status and `explain`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::clock::Timestamp;
use crate::config::types::BreakerMode;
use crate::outlier::book::Signed;
use crate::outlier::driver::orders::by;
use crate::outlier::driver::report;
use crate::policy::breaker::View;
use crate::policy::breaker::words::{Cause, Opening, StateView};

/// How a breaker stands, in one sentence.
pub(super) fn breaker_why(view: &View, order: Option<&Signed>, now: Timestamp) -> String {
    if let Some((_, until)) = view.ordered {
        let left = report::span(until.since(now));
        let by = order.map_or_else(String::new, by);
        return format!("ordered{by}, {left} left");
    }
    let refused = match (view.refused, view.mode) {
        (0, _) => String::new(),
        (n, BreakerMode::Observe) => format!("; {n} calls would be refused"),
        (n, _) => format!("; {n} calls refused"),
    };
    match view.state {
        StateView::Closed => {
            let counts = &view.counts;
            let (calls, failed, slow) = (counts.calls, counts.failed, counts.slow);
            let window = report::seconds(view.settings.sliding_window_size);
            let slow = match slow {
                0 => String::new(),
                slow => format!(", {slow} slow"),
            };
            let least = view.settings.minimum_number_of_calls;
            format!(
                "{failed} of {calls} calls failed{slow} in {window} (opens at {}% of at least \
                 {least})",
                report::percent(view.settings.failure_rate_bp)
            )
        }
        StateView::Open { until, opening, .. } => {
            let left = report::span(until.since(now));
            format!(
                "{}; trials in {left}{refused}",
                opening_words(&opening, view)
            )
        }
        StateView::HalfOpen {
            good,
            trying,
            permitted,
            ..
        } => format!("{good} of {permitted} trials were good, {trying} under way{refused}"),
    }
}

/// What opened it.
pub(super) fn opening_words(opening: &Opening, view: &View) -> String {
    let counts = &opening.counts;
    let rate = |part: u64| part as f64 * 100.0 / counts.calls.max(1) as f64;
    let window = report::seconds(view.settings.sliding_window_size);
    let slow = report::seconds(view.settings.slow_call_duration);
    match opening.cause {
        Cause::FailureRate => format!(
            "{:.1}% of {} calls failed in {window} ({} of them; it opens at {}%)",
            rate(counts.failed),
            counts.calls,
            counts.failed,
            report::percent(view.settings.failure_rate_bp)
        ),
        Cause::SlowCallRate => format!(
            "{:.1}% of {} calls took longer than {slow} in {window} (it opens at {}%)",
            rate(counts.slow),
            counts.calls,
            report::percent(view.settings.slow_call_rate_bp)
        ),
        Cause::Trial => "a trial failed".to_owned(),
        Cause::SlowTrial => format!("a trial took longer than {slow}"),
        Cause::LostTrial => "a trial gave no answer in time".to_owned(),
        Cause::Recalled => "it was open before the restart".to_owned(),
        Cause::Operator => "an operator had opened it".to_owned(),
    }
}

/// The same as fields of an event.
pub(super) fn opening_fields(
    opening: &Opening,
    view: &View,
    wait: Duration,
) -> Vec<(&'static str, Value)> {
    let counts = &opening.counts;
    let mut fields = vec![
        ("mode", json!(view.mode.as_str())),
        ("cause", json!(opening.cause.as_str())),
    ];
    if counts.calls > 0 {
        let window = view.settings.sliding_window_size;
        fields.extend([
            ("window_s", json!(window.as_secs_f64())),
            ("calls", json!(counts.calls)),
            ("failed", json!(counts.failed)),
            ("slow", json!(counts.slow)),
            (
                "failure_rate_threshold_pct",
                json!(report::percent(view.settings.failure_rate_bp)),
            ),
            (
                "slow_call_rate_threshold_pct",
                json!(report::percent(view.settings.slow_call_rate_bp)),
            ),
        ]);
    }
    fields.push(("wait_s", json!(wait.as_secs_f64())));
    fields
}
