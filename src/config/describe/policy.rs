//! Keys of policy files.

/// Key and line, in the order of the file.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("policy.name", "Unique over all files (EDAS: Policy Name)."),
    (
        "policy.apply_to",
        "For whom; compared in the order upstreams, consumers, namespaces, protocols.",
    ),
    (
        "policy.apply_to.consumers",
        "Globs over app.name (EDAS: Applications).",
    ),
    ("policy.apply_to.upstreams", "Globs over services."),
    ("policy.apply_to.namespaces", "Globs over app.namespace."),
    (
        "policy.apply_to.protocols",
        "EDAS: Framework for Called Services.",
    ),
    (
        "policy.mode",
        "observe counts and logs, and touches no traffic.",
    ),
    (
        "policy.scope",
        "route judges an instance for each route of its service; half of them bad takes it out whole.",
    ),
    (
        "policy.exception_type",
        "What counts as an error (EDAS: Exception Type).",
    ),
    (
        "policy.error_rate_threshold",
        "Percent; abnormal strictly above it (EDAS: Error Rate Threshold).",
    ),
    (
        "policy.lower_qps_limit",
        "Calls per second of one instance from which it is judged (EDAS: Lower QPS Limit).",
    ),
    (
        "policy.qps_scope",
        "Whose calls the limit is compared with.",
    ),
    (
        "policy.statistics_window",
        "Time over which is counted; unwritten 15s for Dubbo (EDAS: statistics window).",
    ),
    (
        "policy.instance_removal_rate_threshold",
        "Percent of the instances that may be out, rounded down, never all (EDAS: Instance Removal Rate Threshold).",
    ),
    (
        "policy.min_ejectable",
        "Raises that for small pools, never to all.",
    ),
    (
        "policy.consecutive_errors",
        "Errors in a row that eject at once; auto = from the limit and the window, 0 = off.",
    ),
    (
        "policy.recovery_detection_unit_time",
        "The k-th probe comes after k x this time (EDAS: Recovery Detection Unit Time).",
    ),
    (
        "policy.max_recovery_checks",
        "k stops growing here (EDAS: Max Number of Instance Checked Before Restoration).",
    ),
    ("policy.probe", "How an ejected instance is tried."),
    (
        "policy.trials_to_restore",
        "Good trials in a row until it is back.",
    ),
    (
        "policy.flap_memory",
        "Successes after a restore until failed trials are forgotten; 0 = at once.",
    ),
    (
        "policy.ramp",
        "After a restore the share of traffic grows to full over this time; 0 = at once.",
    ),
    (
        "policy.business_errors",
        "Which codes are business errors; each list replaces the default set of its kind.",
    ),
    ("policy.business_errors.http", "HTTP statuses and ranges."),
    (
        "policy.business_errors.http_ignore",
        "HTTP statuses that are successes.",
    ),
    (
        "policy.business_errors.grpc",
        "gRPC codes by name, number or range.",
    ),
    (
        "policy.business_errors.grpc_ignore",
        "gRPC codes that are successes.",
    ),
    (
        "policy.business_errors.dubbo",
        "Dubbo2 statuses by name, number or range.",
    ),
    (
        "policy.slow",
        "The slow trigger: an instance whose median answer comes much later than its peers'; none = off.",
    ),
    (
        "policy.slow.factor",
        "Slow above so many times the median of at least three peers.",
    ),
    (
        "policy.slow.floor",
        "Never slow up to this time, whatever the peers do.",
    ),
    (
        "policy.slow.min_calls",
        "Good answers in the window that a median needs.",
    ),
    (
        "policy.slow.mode",
        "observe counts and logs, enforce ejects within the cap.",
    ),
    (
        "policy.incarnation_key",
        "Metadata key that tells one start of an instance from the next.",
    ),
];
