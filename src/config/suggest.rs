//! "Did you mean": the nearest of the known words, and what foreign names are called here.

/// The known word nearest to `word`, when it is near enough to be a slip.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let snake = snake_case(word);
    let bound = snake.chars().count().div_ceil(3).min(4);
    let known: Vec<&str> = known.into_iter().collect();
    // A long beginning says more than a few letters in common: `max_idle` of `max_idle_per_instance`.
    let mut longer = known.iter().filter(|k| k.starts_with(&snake));
    if snake.len() >= 6
        && let (Some(only), None) = (longer.next(), longer.next())
    {
        return Some(only);
    }
    known
        .into_iter()
        .map(|candidate| (distance(&snake, candidate), candidate))
        .filter(|(distance, _)| *distance <= bound)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `maxAttempts` and `max-attempts` as `max_attempts`.
fn snake_case(word: &str) -> String {
    let mut out = String::new();
    let mut before = '_';
    for c in word.chars().take(64) {
        if c.is_ascii_uppercase() && (before.is_ascii_lowercase() || before.is_ascii_digit()) {
            out.push('_');
        }
        before = c;
        out.push(if c == '-' {
            '_'
        } else {
            c.to_ascii_lowercase()
        });
    }
    out
}

/// Edits between two words: insert, delete, replace, swap neighbours.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().take(64).collect();
    let mut older: Vec<usize> = Vec::new();
    let mut old: Vec<usize> = (0..=b.len()).collect();
    let at = |row: &[usize], n: usize| row.get(n).copied().unwrap_or(usize::MAX - 1);
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (at(&old, j) + usize::from(x != y))
                .min(at(&old, j + 1) + 1)
                .min(at(&row, j) + 1);
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x);
            if swapped {
                best = best.min(at(&older, j - 1) + 1);
            }
            row.push(best);
        }
        older = std::mem::replace(&mut old, row);
    }
    at(&old, b.len())
}

/// What the key of another product is called here, with a remark on how it differs.
pub fn foreign(key: &str) -> Option<&'static str> {
    let snake = snake_case(key);
    FOREIGN
        .iter()
        .find(|(name, _)| *name == snake)
        .map(|(_, hint)| *hint)
}

const FOREIGN: &[(&str, &str)] = &[
    (
        "max_ejection_percent",
        "here this is `instance_removal_rate_threshold`",
    ),
    (
        "base_ejection_time",
        "here this is `recovery_detection_unit_time`",
    ),
    (
        "max_ejection_time",
        "here `max_recovery_checks` bounds the growth",
    ),
    ("interval", "here this is `statistics_window`"),
    (
        "failure_rate_threshold",
        "here this is `error_rate_threshold`",
    ),
    (
        "failure_percentage_threshold",
        "here this is `error_rate_threshold`",
    ),
    (
        "minimum_number_of_calls",
        "here this is `lower_qps_limit` x window: with 10s, 1 means 10 calls",
    ),
    (
        "success_rate_request_volume",
        "here this is `lower_qps_limit` x window",
    ),
    (
        "failure_percentage_request_volume",
        "here this is `lower_qps_limit` x window",
    ),
    ("consecutive_5xx", "here this is `consecutive_errors`"),
    ("consecutive5xx_errors", "here this is `consecutive_errors`"),
    (
        "consecutive_gateway_failure",
        "here this is `consecutive_errors`",
    ),
    (
        "consecutive_gateway_errors",
        "here this is `consecutive_errors`",
    ),
    ("sliding_window_size", "here this is `statistics_window`"),
    (
        "max_fails",
        "here this is `consecutive_errors`, or `error_rate_threshold` for a share",
    ),
    (
        "fail_timeout",
        "here this is `recovery_detection_unit_time`; it grows with each failed probe",
    ),
    (
        "enforcing_consecutive_5xx",
        "here `mode: observe` counts without ejecting",
    ),
    (
        "min_health_percent",
        "here this is `instance_removal_rate_threshold`, 100 minus it",
    ),
    (
        "min_health_percentage",
        "here this is `instance_removal_rate_threshold`, 100 minus it",
    ),
    (
        "success_rate_minimum_hosts",
        "there is no such limit here; one instance always stays",
    ),
    (
        "wait_duration_in_open_state",
        "here this is `recovery_detection_unit_time`",
    ),
    (
        "max_retries",
        "here this is `retry.max_attempts`, which counts the first try too",
    ),
    (
        "attempts",
        "here this is `retry.max_attempts`, which counts the first try too",
    ),
    ("lb_policy", "here this is `load_balancer`"),
    (
        "num_retries",
        "here this is `retry.max_attempts`, the first try included",
    ),
    ("per_try_timeout", "here this is `timeout.attempt`"),
    ("connect_timeout", "here this is `timeout.connect`"),
    ("idle_timeout", "here this is `timeout.idle`"),
    ("request_timeout", "here this is `timeout.request`"),
    (
        "outlier_detection",
        "ejection is set in policy files, see the key `policies`",
    ),
    ("clusters", "here these are `services`"),
    ("upstreams", "here these are `services`"),
    ("listeners", "here this is `listen`"),
    ("discovery", "here this is `registries`"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_slips_and_nothing_else() {
        let known = [
            "error_rate_threshold",
            "mode",
            "max_age",
            "max_attempts",
            "max_idle_per_instance",
        ];
        for (word, want) in [
            ("error_rate_treshold", Some("error_rate_threshold")),
            ("errorRateThreshold", Some("error_rate_threshold")),
            ("mdoe", Some("mode")),
            ("max_idle", Some("max_idle_per_instance")),
            ("max-attempts", Some("max_attempts")),
            ("MAX_ATTEMPTS", Some("max_attempts")),
            ("x", None),
            ("banana", None),
        ] {
            assert_eq!(nearest(word, known), want, "{word}");
        }
        assert_eq!(distance("", "abc"), 3);
    }
}
