//! The keys of `fallback` and `hedge`.

/// Key and line, in the order of the reference.
pub(super) const KEYS: &[(&str, &str)] = &[
    (
        "service.hedge",
        "A second attempt at another instance when the first is slow; none.",
    ),
    (
        "service.hedge.after",
        "When it starts: a time, or p95 = when 95 of 100 heads have come.",
    ),
    ("service.hedge.methods", "For which requests."),
    (
        "service.fallback",
        "What is answered when the upstream cannot, tried in order.",
    ),
    ("service.fallback[].conditions", "After what it is tried."),
    (
        "service.fallback[].cache",
        "The last good answer to the same request (stale-if-error).",
    ),
    (
        "service.fallback[].cache.max_age",
        "None is given that was kept longer.",
    ),
    (
        "service.fallback[].cache.max_bytes",
        "All of them together; who was not asked for the longest time goes first.",
    ),
    (
        "service.fallback[].upstream",
        "The same request to this service, with its own settings; not its fallbacks.",
    ),
    (
        "service.fallback[].status",
        "HTTP status of a static answer.",
    ),
    ("service.fallback[].body", "Body of a static answer."),
    (
        "service.fallback[].file",
        "File with the body, read at the start and at each reload.",
    ),
    (
        "service.fallback[].content_type",
        "Its type; default application/json where the body is JSON, else text/plain.",
    ),
    (
        "service.fallback[].grpc_status",
        "Code of a static answer to a gRPC call; default by status.",
    ),
    ("service.fallback[].grpc_message", "With it."),
];
