//! The keys of `defaults`, of services and of endpoints.

/// Key and line, in the order of the reference.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("service.registry", "Which registry knows it."),
    (
        "service.hosts",
        "Hosts that mean this service: host or host:port.",
    ),
    (
        "service.endpoints",
        "Static instances; then no registry is asked.",
    ),
    ("endpoint.address", "host:port of the instance."),
    (
        "endpoint.weight",
        "Share of the traffic against the others; 0 = none.",
    ),
    ("endpoint.zone", "For locality."),
    (
        "endpoint.priority",
        "Its tier; a higher one is used when the lower ones have too little capacity left.",
    ),
    ("endpoint.enabled", "Whether it takes traffic."),
    ("endpoint.metadata", "Free texts."),
    (
        "service.registry_name",
        "Its name in the registry, where it is another.",
    ),
    ("service.namespace", "Overrides that of the registry."),
    ("service.group", "Overrides that of the registry."),
    ("service.clusters", "Overrides those of the registry."),
    (
        "service.port",
        "Own loopback listener: every request there is for this service.",
    ),
    (
        "service.protocol",
        "Towards the instances; auto = gRPC as h2c, all else HTTP/1.1, unless the registry hints otherwise.",
    ),
    (
        "service.host_header",
        "What instances see as Host: auto, keep, service, instance, or a text.",
    ),
    ("service.load_balancer", "How an instance is picked."),
    (
        "service.timeout",
        "Time limits; 0 = none, except for connect.",
    ),
    ("service.timeout.connect", "To establish a connection."),
    (
        "service.timeout.attempt",
        "One try until its head; auto = min(5s, request / max_attempts) while another may follow.",
    ),
    (
        "service.timeout.request",
        "All tries until the head that is passed on; unwritten it does not hold for gRPC.",
    ),
    (
        "service.timeout.idle",
        "Silence after the head; unwritten it is 1h for gRPC, tunnels and event streams.",
    ),
    ("service.retry", "Second tries."),
    ("service.retry.max_attempts", "The first try included."),
    ("service.retry.retry_on", "After what another try is made."),
    (
        "service.retry.methods",
        "idempotent, grpc, all, or methods in capitals.",
    ),
    (
        "service.retry.max_body",
        "Bytes of a request body kept for a replay.",
    ),
    (
        "service.retry.backoff",
        "Delay before the n-th retry: min(max, base x 2^n) + random(0, jitter).",
    ),
    ("service.retry.backoff.base", "First delay."),
    ("service.retry.backoff.max", "Longest delay."),
    ("service.retry.backoff.jitter", "Random part."),
    (
        "service.retry.budget",
        "How many retries there may be at all.",
    ),
    (
        "service.retry.budget.percent",
        "Retries at most, as a percentage of requests ...",
    ),
    (
        "service.retry.budget.min_per_second",
        "... and always this many a second.",
    ),
    (
        "service.pool",
        "Connections to instances, counted for the whole process.",
    ),
    ("service.pool.max_connections_per_instance", "Open at most."),
    ("service.pool.max_idle_per_instance", "Kept idle at most."),
    (
        "service.pool.idle_timeout",
        "An idle connection is closed after it.",
    ),
    (
        "service.pool.max_age",
        "No connection is used longer; 0 = no limit.",
    ),
    (
        "service.pool.max_wait",
        "How long a request waits for a place.",
    ),
    (
        "service.when_all_unhealthy",
        "use_all = every instance counts as passing; refuse = 503.",
    ),
    (
        "service.forwarded_headers",
        "x-forwarded-for, -host, -proto: none or append.",
    ),
    ("service.via", "Where `via` is added."),
];
