//! The keys of `circuit_breaker` and `bulkhead`.

/// Key and line, in the order of the reference.
pub(super) const KEYS: &[(&str, &str)] = &[
    (
        "service.circuit_breaker",
        "Refuses early while too much fails; one per upstream, and per route that writes it.",
    ),
    (
        "service.circuit_breaker.mode",
        "enforce, observe (says what it would do and refuses nothing) or disabled.",
    ),
    (
        "service.circuit_breaker.failure_rate_threshold",
        "Opens from this percentage of failures on.",
    ),
    (
        "service.circuit_breaker.slow_call_rate_threshold",
        "Opens from this percentage of slow calls on.",
    ),
    (
        "service.circuit_breaker.slow_call_duration",
        "A call whose head takes longer is slow.",
    ),
    (
        "service.circuit_breaker.minimum_number_of_calls",
        "Calls in the window that are needed for a verdict.",
    ),
    (
        "service.circuit_breaker.sliding_window_size",
        "Length of the window.",
    ),
    (
        "service.circuit_breaker.wait_duration_in_open_state",
        "How long it stays open before trials.",
    ),
    (
        "service.circuit_breaker.permitted_number_of_calls_in_half_open_state",
        "Trials while half-open: all good closes, one bad opens.",
    ),
    (
        "service.bulkhead",
        "Bound of requests at a time; one per upstream, and per route that writes it.",
    ),
    (
        "service.bulkhead.max_concurrent_calls",
        "Requests at a time, from their head to the end of their answer.",
    ),
    (
        "service.bulkhead.max_queue",
        "Requests that may wait for a place.",
    ),
    (
        "service.bulkhead.max_wait_duration",
        "How long one waits at most.",
    ),
];
