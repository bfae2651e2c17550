//! The keys of `services.NAME.routes` that are not those of the service.

/// Key and line, in the order of the reference.
pub(super) const KEYS: &[(&str, &str)] = &[
    (
        "service.routes",
        "Requests with settings of their own; the first that matches holds, at most 20.",
    ),
    (
        "service.routes[].name",
        "Label `route` of its series; UPSTREAM/NAME on the command line.",
    ),
    (
        "service.routes[].match",
        "Which requests: all that is written must hold; {} takes every one.",
    ),
    (
        "service.routes[].match.path",
        "The path as the instance sees it, without the query.",
    ),
    (
        "service.routes[].match.path_prefix",
        "The first segments of the path.",
    ),
    ("service.routes[].match.methods", "Any of these methods."),
    (
        "service.routes[].match.headers",
        "Each of these fields with this value; `*` = any value.",
    ),
];
