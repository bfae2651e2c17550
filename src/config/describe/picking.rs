//! The keys of a service that say which instance is picked, and of its active checks.

/// Key and line, in the order of the reference.
pub(super) const KEYS: &[(&str, &str)] = &[
    (
        "service.hash",
        "What of a request ring_hash and maglev go by; exactly one.",
    ),
    ("service.hash.header", "The value of this header."),
    ("service.hash.cookie", "The value of this cookie."),
    ("service.hash.path", "The path, without prefix and query."),
    ("service.hash.source", "The app's IP address."),
    ("service.subset", "Only instances with this metadata."),
    ("service.subset.metadata", "All of it must be there."),
    (
        "service.subset.fallback",
        "Who stands in when none of them can be used: any other, or none.",
    ),
    ("service.locality", "Near instances first."),
    (
        "service.locality.prefer",
        "Instances of the app's own zone or cluster first.",
    ),
    (
        "service.locality.min_percent",
        "Usable capacity of a zone or priority, in percent of its own, below which the next one helps.",
    ),
    (
        "service.slow_start",
        "How long a new instance grows from an eighth of its traffic to all of it; 0 = at once.",
    ),
    (
        "service.health_check",
        "Active check of the instances; none switches that of the defaults off.",
    ),
    ("service.health_check.http", "A GET of this path."),
    ("service.health_check.tcp", "A TCP connection."),
    (
        "service.health_check.grpc",
        "This service of the instance's grpc.health.v1; an empty text is the server as a whole.",
    ),
    (
        "service.health_check.exec",
        "A program that ends with 0; CHECK_ADDRESS, CHECK_HOST, CHECK_PORT and CHECK_SERVICE tell it of what.",
    ),
    ("service.health_check.expect", "Statuses that pass."),
    (
        "service.health_check.body",
        "A text that the body must have.",
    ),
    (
        "service.health_check.json_pointer",
        "A value of the body that must be UP, or what is written behind `=`.",
    ),
    (
        "service.health_check.interval",
        "Between checks of one instance.",
    ),
    ("service.health_check.timeout", "Of one check."),
    (
        "service.health_check.rise",
        "Good ones in a row until it passes.",
    ),
    (
        "service.health_check.fall",
        "Bad ones in a row until it fails.",
    ),
    (
        "service.health_check.port",
        "Another port than the instance's.",
    ),
    (
        "service.health_check.host",
        "Host header; default the service name.",
    ),
];
