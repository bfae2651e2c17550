//! The keys of `app.register`.

/// Key and line, in the order of the reference.
pub(super) const KEYS: &[(&str, &str)] = &[
    (
        "app.register",
        "Registers the app with registries and keeps it there while it passes its check.",
    ),
    (
        "app.register[].registry",
        "Which one: embedded, nacos, eureka or consul.",
    ),
    (
        "app.register[].service",
        "The name callers know the app by; default app.name where that is written.",
    ),
    (
        "app.register[].group",
        "Nacos and embedded: instead of the registry's.",
    ),
    (
        "app.register[].cluster",
        "Nacos and embedded; default DEFAULT.",
    ),
    ("app.register[].advertise", "Where callers reach the app."),
    (
        "app.register[].advertise.address",
        "auto = POD_IP, else the address of the default route's interface; or an address, or interface:NAME.",
    ),
    ("app.register[].advertise.port", "The port of the app."),
    (
        "app.register[].weight",
        "Share of the traffic, where the registry knows weights.",
    ),
    ("app.register[].metadata", "Texts for callers."),
    (
        "app.register[].ephemeral",
        "Nacos and embedded: it lives by its beats; false: until it is deregistered.",
    ),
    (
        "app.register[].heartbeat_interval",
        "Between two beats; default what the registry asks for.",
    ),
    (
        "app.register[].check",
        "How the app is checked; without one it counts as up.",
    ),
    (
        "app.register[].check.http",
        "A path of the app (advertise.port on this machine), or an http URL.",
    ),
    (
        "app.register[].check.tcp",
        "true, or host:port: a connection is accepted.",
    ),
    (
        "app.register[].check.grpc",
        "A service of the app's gRPC health service, empty for all of it; or a URL with the service as its path.",
    ),
    (
        "app.register[].check.exec",
        "A program and its arguments; it ends with 0.",
    ),
    (
        "app.register[].check.expect",
        "Statuses of an http check that are good.",
    ),
    (
        "app.register[].check.json_pointer",
        "Of an http check: POINTER or POINTER=VALUE in the JSON of the answer; the value is UP where none is given.",
    ),
    ("app.register[].check.interval", "Between two checks."),
    ("app.register[].check.timeout", "Of one check."),
    (
        "app.register[].check.rise",
        "Good ones in a row until the app is up.",
    ),
    (
        "app.register[].check.fall",
        "Bad ones in a row until the app is down.",
    ),
    (
        "app.register[].management",
        "A second instance, of the management port.",
    ),
    ("app.register[].management.port", "Its port."),
    (
        "app.register[].management.service",
        "Its service; default SERVICE-management.",
    ),
    (
        "app.register[].fail_fast",
        "The process ends with 1 when the first registration fails.",
    ),
    ("app.register[].hooks", "What is told of a registration."),
    (
        "app.register[].hooks.pre_register",
        "Before the first one: a program as a list, or an http URL that is sent a POST; it must succeed.",
    ),
    (
        "app.register[].hooks.post_register",
        "After the first one; the same.",
    ),
];
