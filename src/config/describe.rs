//! What each key is for, in one line: for the JSON Schemas and `outrigger docs config`. Keys of
//! `defaults` and of services stand under `service`, those of any registry under `registry`. A test
//! holds up that no key is without a line and no line without a key.

mod fallback;
mod picking;
mod policy;
mod register;
mod resilience;
mod route;
mod service;

/// What the key `path` is for; list items and names do not stand in it.
pub(crate) fn describe(path: &str) -> Option<&'static str> {
    let mut found = keys().filter(|(key, _)| *key == path);
    found.next().map(|(_, text)| text)
}

/// Key and line of every key.
pub(crate) fn keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLES.iter().flat_map(|keys| keys.iter()).copied()
}

/// In the order of the reference. A table of tables: each further `chain` of iterators doubles the work
/// of the compiler.
const TABLES: [&[(&str, &str)]; 9] = [
    KEYS,
    service::KEYS,
    fallback::KEYS,
    route::KEYS,
    picking::KEYS,
    resilience::KEYS,
    MORE,
    policy::KEYS,
    register::KEYS,
];

/// Key and line, in the order of the files.
const KEYS: &[(&str, &str)] = &[
    ("version", "File format."),
    (
        "listen",
        "Where the app connects: IP:PORT, localhost:PORT (both address families), unix:PATH, or a list.",
    ),
    (
        "workers",
        "Threads of the data plane; auto = min(2, cores).",
    ),
    (
        "self_lag",
        "Above this loop lag of a worker its time-outs are charged to nobody.",
    ),
    ("admin", "The admin listener."),
    (
        "admin.listen",
        "IP:PORT or unix:PATH; beyond loopback only with token_file.",
    ),
    (
        "admin.token_file",
        "File with the bearer token of the admin API; read at each request.",
    ),
    ("telemetry", "Metrics, health, logs of requests and events."),
    (
        "telemetry.listen",
        "auto = 0.0.0.0:15003 in a container, else 127.0.0.1:15003.",
    ),
    ("telemetry.metrics", "Bounds of /metrics."),
    (
        "telemetry.metrics.per_instance",
        "Which instances have series of their own; auto keeps only ejected ones above max_instances.",
    ),
    (
        "telemetry.metrics.max_instances",
        "Above this many instances auto keeps only ejected ones.",
    ),
    (
        "telemetry.metrics.max_upstreams",
        "Upstreams beyond this count share the label _other.",
    ),
    ("telemetry.access_log", "Log of requests."),
    (
        "telemetry.access_log.mode",
        "errors = own replies, 5xx, failed gRPC, retried and truncated ones, and a sample of the rest.",
    ),
    (
        "telemetry.access_log.sample_success",
        "Share of the others under errors: a ratio from 0 to 1.",
    ),
    ("telemetry.access_log.format", "Form of a line."),
    ("telemetry.access_log.sink", "stdout, stderr or a file."),
    (
        "telemetry.access_log.log_paths",
        "Whether paths are logged; they may hold personal data.",
    ),
    ("telemetry.events", "The event journal."),
    (
        "telemetry.events.sinks",
        "Each event goes to all of them: stdout, stderr, files.",
    ),
    (
        "telemetry.events.ring_size",
        "Events kept in memory for the admin API.",
    ),
    ("telemetry.tracing", "Headers of distributed tracing."),
    (
        "telemetry.tracing.propagate",
        "Formats that pass unchanged.",
    ),
    ("telemetry.tracing.export", "Where spans are sent."),
    ("log", "The process's own log."),
    ("log.level", "Least level that is written."),
    ("log.format", "auto = text on a terminal, else json."),
    (
        "browser_guard",
        "Refuses requests with `Sec-Fetch-Site: cross-site`.",
    ),
    ("startup", "What readiness waits for."),
    (
        "startup.registry_wait",
        "How long readiness waits for the first answer of a registry.",
    ),
    (
        "discovery_wait",
        "How long a first request waits for a name's first answer.",
    ),
    (
        "auto_discover",
        "Whether names of the default registry are routable without being listed.",
    ),
    ("passthrough", "Hosts outside any registry."),
    ("passthrough.hosts", "Globs, resolved by DNS."),
    (
        "policies",
        "Ejection policy files: globs, relative to this file. Each file stands alone.",
    ),
    (
        "cache_dir",
        "Folder that keeps the last good set of each service, for a start while a registry is down.",
    ),
    (
        "state_file",
        "File in which ejections and open circuit breakers survive a restart; an empty text is none.",
    ),
    (
        "limits",
        "What the app may send and what an instance may answer.",
    ),
    (
        "limits.max_header_bytes",
        "Bytes of a request's header section.",
    ),
    ("limits.max_headers", "Fields of a request."),
    ("limits.max_target_bytes", "Bytes of a request target."),
    (
        "limits.max_body_bytes",
        "Bytes of a request body; 0 = no limit.",
    ),
    (
        "limits.header_timeout",
        "A request's head must be complete by then.",
    ),
    (
        "limits.body_idle_timeout",
        "Longest silence of the app inside a request body.",
    ),
    (
        "limits.keep_alive_timeout",
        "Longest silence between requests of a connection.",
    ),
    (
        "limits.max_connections",
        "Connections of the app, all listeners together.",
    ),
    (
        "limits.max_streams_per_connection",
        "Concurrent HTTP/2 streams of one connection.",
    ),
    (
        "limits.half_close",
        "What a FIN of the app before the answer means.",
    ),
    (
        "limits.max_response_header_bytes",
        "Bytes of an instance's response header section.",
    ),
    (
        "limits.max_response_headers",
        "Fields of an instance's response.",
    ),
    ("app", "The local application."),
    (
        "app.name",
        "Consumer name in policies; default the host name.",
    ),
    ("app.namespace", "For policies."),
    ("app.zone", "For policies and locality."),
    ("app.shutdown", "How the process leaves."),
    (
        "app.shutdown.propagation_delay",
        "How long others may still know us after deregistration; auto = what the registries need.",
    ),
    (
        "app.shutdown.drain_timeout",
        "How long a drain waits for what is in flight.",
    ),
    ("registries", "Where instances come from, by name."),
    ("registry.kind", "What it is."),
    (
        "registry.on_empty",
        "What a sudden empty answer means: hold the last good set until it is confirmed, obey, or never.",
    ),
    (
        "registry.empty_grace",
        "hold: an empty answer must last this long ...",
    ),
    (
        "registry.empty_answers",
        "... and be confirmed by this many answers.",
    ),
    (
        "registry.shrink_percent",
        "hold: a drop of more than this percentage is held too.",
    ),
    (
        "registry.max_in_flight",
        "Requests in flight to this registry at most.",
    ),
    ("registry.timeout", "Of one request to it."),
    (
        "registry.listen",
        "Where the embedded registry listens, gRPC at the port + 1000; none = reachable in-process only.",
    ),
    (
        "registry.data",
        "Folder of its snapshot, so that a restart loses nothing.",
    ),
    (
        "registry.unhealthy_after",
        "Silence until an instance is unhealthy.",
    ),
    ("registry.remove_after", "Silence until it is removed."),
    (
        "registry.beat_interval",
        "What clients are told to beat at.",
    ),
    ("registry.limits", "Bounds of the embedded registry."),
    ("registry.limits.max_services", "Services at most."),
    ("registry.limits.max_instances", "Instances at most."),
    (
        "registry.limits.max_metadata_bytes",
        "Bytes of one instance's metadata.",
    ),
    (
        "registry.limits.max_connections",
        "Connections to each of its two ports.",
    ),
    ("registry.path", "The endpoints file; it is watched."),
    (
        "registry.users_file",
        "Users of the embedded registry, NAME: PASSWORD lines; none: no login.",
    ),
    (
        "registry.tls",
        "TLS towards the registry; without ca_file the public authorities are trusted.",
    ),
    (
        "registry.tls.ca_file",
        "PEM authorities; read again for each connection.",
    ),
    (
        "registry.tls.cert_file",
        "PEM chain of our own certificate.",
    ),
    ("registry.tls.key_file", "PEM key of it."),
    (
        "registry.tls.server_name",
        "Name that the certificate must have, if not that of the address.",
    ),
    ("registry.tls.insecure", "Take any certificate."),
    (
        "registry.protocol",
        "How Nacos is spoken to; auto = gRPC, else HTTP.",
    ),
    (
        "registry.servers",
        "nacos, zookeeper: host:port each; eureka: full prefixes; dns: ip:port, default those of the system.",
    ),
    (
        "registry.endpoint",
        "URL of a list of servers, one per line.",
    ),
    (
        "registry.udp_push",
        "Ask for pushes by UDP (HTTP only); they are hints to read now.",
    ),
    (
        "registry.mode",
        "How applications are read: per_app, or all once and then delta; auto = delta when auto-discovering or above 20 services.",
    ),
    (
        "registry.prefer_ip",
        "Connect to the address an instance names, not to its host name.",
    ),
    ("registry.secure", "Use the secure port."),
    ("registry.address", "URL of the local agent."),
    (
        "registry.token_file",
        "File with the token; read again when it is refused.",
    ),
    ("registry.datacenter", "Default: that of the agent."),
    ("registry.tags", "An instance must have all of them."),
    (
        "registry.filter",
        "An expression of Consul's filter language.",
    ),
    ("registry.consistency", "Of reads."),
    (
        "registry.tagged_address",
        "Name of a tagged address to connect to.",
    ),
    ("registry.wait", "How long a blocking query waits."),
    (
        "registry.api",
        "URL of the API server; in-cluster by default.",
    ),
    (
        "registry.ca_file",
        "PEM authorities of the API server; default those of the pod.",
    ),
    (
        "registry.namespaces",
        "Watched ones, the first is where bare names live; default the pod's own.",
    ),
    (
        "registry.port_name",
        "Name of the port, where a service has several.",
    ),
    (
        "registry.ip_family",
        "Which addresses are instances; auto = as our own address, else prefer_v4.",
    ),
    ("registry.panic_on_unready", "Use all when none is ready."),
    (
        "registry.search",
        "Use the search list; else names are absolute.",
    ),
    ("registry.tcp", "Ask by TCP only."),
    (
        "registry.min_ttl",
        "Least time between two questions of a name.",
    ),
    (
        "registry.max_ttl",
        "Longest time between two questions of a name.",
    ),
    ("registry.root", "Root of the interface-level layout."),
    ("registry.layout", "Which of Dubbo's layouts are read."),
    ("registry.session_timeout", "Of our session."),
    ("registry.namespace", "Namespace id."),
    ("registry.group", "Group."),
    ("registry.clusters", "Clusters; empty: all."),
    ("registry.username", "For a login."),
    ("registry.password_file", "File with the password."),
    (
        "registry.password",
        "The password itself; password_file or a variable is better.",
    ),
    (
        "defaults",
        "For every service below and every discovered one.",
    ),
    (
        "services",
        "Services by name, merged over the defaults: maps deeply, a list replaces.",
    ),
];

/// Those after the ones of services.
const MORE: &[(&str, &str)] = &[
    (
        "policies[]",
        "Outlier ejection policies; the most specific apply_to wins.",
    ),
    (
        "endpoints",
        "Lists of instances by the name of their service.",
    ),
];
