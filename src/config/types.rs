//! The runtime form of the configuration: values that cannot be wrong, made by `config/parse`.
//! Nothing here knows YAML. Defaults stand in `config/defaults` beside the keys.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::Endpoint;

use super::passthrough::Passthrough;
use super::settings::Inputs;

mod balancing;
mod fallback;
mod register;
mod registry;
mod resilience;
mod route;

pub use balancing::{Balancing, HashOn, LoadBalancer, Locality, Prefer, Subset, SubsetFallback};
pub use fallback::{
    Condition, Conditions, Fallback, FallbackKind, Hedge, HedgeAfter, LastGood, StaticAnswer,
    StaticGrpc, StaticHttp,
};
pub use register::{
    Advertise, AdvertiseAddress, AppCheck, AppCheckKind, Hook, JsonRule, Management, Register,
};
pub use registry::{
    Consistency, Consul, Dns, Embedded, EmptyPolicy, Eureka, EurekaMode, IpFamily, Kubernetes,
    Nacos, NacosProtocol, OnEmpty, Registry, RegistryKind, RegistryTls, Secret, Zookeeper,
    ZookeeperLayout, grpc_port,
};

pub use resilience::{BreakerMode, Bulkhead, CircuitBreaker, Shares};
pub use route::{HeaderMatch, PathMatch, RouteMatch, RouteRule};

pub use super::policy_set::{FileVersion, PolicyEntry, PolicyProtocol, PolicySet, RejectedFile};

/// The whole main file with its ejection policies.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the app connects.
    pub listen: Vec<Listen>,
    /// Data plane threads; `None` = min(2, cores).
    pub workers: Option<u16>,
    /// Above this loop lag a worker's time-outs are charged to nobody.
    pub self_lag: Duration,
    /// Admin listener.
    pub admin: Admin,
    /// Telemetry listener, metrics, logs of requests and events.
    pub telemetry: Telemetry,
    /// The process's own log.
    pub log: Log,
    /// Refuse browser requests from foreign sites.
    pub browser_guard: bool,
    /// How long readiness waits for the first answer of a registry.
    pub registry_wait: Duration,
    /// How long a first request waits for a name's first answer.
    pub discovery_wait: Duration,
    /// Whether names of the default registry are routable without being listed.
    pub auto_discover: bool,
    /// Hosts outside any registry that may be reached.
    pub passthrough: Passthrough,
    /// Limits towards the app and the instances.
    pub limits: Limits,
    /// The local application.
    pub app: App,
    /// By name.
    pub registries: BTreeMap<Arc<str>, Registry>,
    /// Where unlisted names are looked for: `defaults.registry`, else the only one defined.
    pub default_registries: Vec<Arc<str>>,
    /// Settings of every auto-discovered service; its `name` is empty.
    pub defaults: Arc<Service>,
    /// By name, merged with the defaults.
    pub services: BTreeMap<Arc<str>, Arc<Service>>,
    /// Ejection policies that are active.
    pub policies: Arc<PolicySet>,
    /// What all of this was read from, for `config show`.
    pub inputs: Arc<Inputs>,
    /// Where ejections and overrides survive a restart.
    pub state_file: Option<PathBuf>,
    /// Folder of the last good sets, for a start while a registry is down.
    pub cache_dir: Option<PathBuf>,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// One socket address; port 0 picks a free one.
    Tcp(SocketAddr),
    /// `localhost:PORT`: 127.0.0.1 and `[::1]`; one that cannot be had is a warning.
    Localhost(u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// As it would be written.
impl std::fmt::Display for Listen {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(out),
            Self::Localhost(port) => write!(out, "localhost:{port}"),
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

/// `admin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Loopback or a Unix socket, unless a token is set.
    pub listen: Listen,
    /// File with the bearer token.
    pub token_file: Option<PathBuf>,
}

/// `telemetry`.
#[derive(Clone, Debug, PartialEq)]
pub struct Telemetry {
    /// `None` = auto: all addresses in a container, else loopback.
    pub listen: Option<Listen>,
    /// Families with the label `instance`.
    pub per_instance: PerInstance,
    /// Above this many instances `auto` keeps only ejected ones.
    pub max_instances: u32,
    /// Upstreams beyond this count share the label `_other`.
    pub max_upstreams: u32,
    /// Access log.
    pub access_log: AccessLog,
    /// Event journal.
    pub events: Events,
}

/// Which instances have series of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerInstance {
    /// All up to the cap, above it ejected ones.
    Auto,
    /// All.
    All,
    /// Ejected ones.
    EjectedOnly,
    /// None.
    None,
}

/// `telemetry.access_log`.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLog {
    /// Which requests are logged.
    pub mode: AccessLogMode,
    /// Share of the others that is logged under `errors`, 0-1.
    pub sample_success: f64,
    /// Where to.
    pub sink: Sink,
    /// Whether paths are logged.
    pub log_paths: bool,
}

/// `telemetry.access_log.mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogMode {
    /// Nothing.
    None,
    /// Own replies, 5xx, failed gRPC, retried requests, truncated bodies, and a sample.
    Errors,
    /// Everything.
    All,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Sink {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Appended to a file.
    File(PathBuf),
}

/// `telemetry.events`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    /// Each event goes to all of them.
    pub sinks: Vec<Sink>,
    /// Events kept in memory for the admin API.
    pub ring_size: usize,
}

/// `log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Least level that is written.
    pub level: tracing::Level,
    /// `None` = auto: text on a terminal, else JSON.
    pub format: Option<LogFormat>,
}

/// `log.format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

/// `limits`; zero means no limit where the key allows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's header section.
    pub max_header_bytes: usize,
    /// Fields of a request.
    pub max_headers: usize,
    /// Bytes of a request target.
    pub max_target_bytes: usize,
    /// Bytes of a request body; 0 = no limit.
    pub max_body_bytes: u64,
    /// A request's head must be complete by then.
    pub header_timeout: Duration,
    /// Longest silence of the app inside a request body.
    pub body_idle_timeout: Duration,
    /// Longest silence between requests of a connection.
    pub keep_alive_timeout: Duration,
    /// Connections of the app, all listeners together.
    pub max_connections: usize,
    /// Concurrent HTTP/2 streams of one connection.
    pub max_streams_per_connection: u32,
    /// Whether a FIN of the app before the answer means that it left.
    pub half_close: HalfClose,
    /// Bytes of an instance's response header section.
    pub max_response_header_bytes: usize,
    /// Fields of an instance's response.
    pub max_response_headers: usize,
}

/// `limits.half_close`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfClose {
    /// It left.
    Disconnect,
    /// It only finished sending.
    Allow,
}

/// `app`: the local application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct App {
    /// Consumer name in policies; default the host name.
    pub name: Arc<str>,
    /// For policies.
    pub namespace: Option<Arc<str>>,
    /// For policies and locality.
    pub zone: Option<Arc<str>>,
    /// Where it is registered.
    pub register: Vec<Register>,
    /// `None` = auto: the largest `deregister_wait` of the registries registered with.
    pub propagation_delay: Option<Duration>,
    /// How long a drain waits for what is in flight.
    pub drain_timeout: Duration,
}

/// One service, merged with the defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Its key; empty in `Config::defaults`.
    pub name: Arc<str>,
    /// Hosts that mean this service: `host` or `host:port`, lower case.
    pub hosts: Vec<Arc<str>>,
    /// Static endpoints; then no registry is asked.
    pub endpoints: Option<Arc<[Endpoint]>>,
    /// Which registries, merged by address, the first wins; empty = the default ones.
    pub registries: Vec<Arc<str>>,
    /// Its name there; `None` = its own.
    pub registry_name: Option<Arc<str>>,
    /// Overrides the registry's.
    pub namespace: Option<Arc<str>>,
    /// Overrides the registry's.
    pub group: Option<Arc<str>>,
    /// Overrides the registry's.
    pub clusters: Option<Vec<String>>,
    /// Own loopback listener.
    pub port: Option<u16>,
    /// Towards the instances.
    pub protocol: Protocol,
    /// What instances see as Host.
    pub host_header: HostHeader,
    /// How an instance is picked.
    pub balancing: Balancing,
    /// Time limits.
    pub timeout: Timeouts,
    /// Second tries.
    pub retry: Retry,
    /// Refuses early while too much fails.
    pub circuit_breaker: CircuitBreaker,
    /// Bound of requests at a time.
    pub bulkhead: Bulkhead,
    /// Which of both is that of the whole service; only where this is a route of one.
    pub shares: Shares,
    /// Connections to instances.
    pub pool: Pool,
    /// Active check.
    pub health_check: Option<HealthCheck>,
    /// What happens when active checks refuse all.
    pub when_all_unhealthy: WhenAllUnhealthy,
    /// What is answered when it cannot, tried in order.
    pub fallback: Arc<[Fallback]>,
    /// A second attempt when the first is slow.
    pub hedge: Option<Box<Hedge>>,
    /// `x-forwarded-*`.
    pub forwarded_headers: ForwardedHeaders,
    /// `via`.
    pub via: Via,
    /// Requests with settings of their own; at most [`Service::MAX_ROUTES`].
    pub rules: Vec<RouteRule>,
}

impl Service {
    /// Routes of one service: each has series and windows of its own.
    pub const MAX_ROUTES: usize = 20;
}

/// `protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC requests as h2c, all else as HTTP/1.1, unless the registry hints otherwise.
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// HTTP/2, and gRPC for policies and checks.
    Grpc,
}

/// `host_header`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostHeader {
    /// Kept, unless it is a loopback name; then the service name.
    Auto,
    /// Kept.
    Keep,
    /// The service name.
    Service,
    /// The instance's address.
    Instance,
    /// This text.
    Text(Arc<str>),
}

/// `timeout`. `None` = no limit, unless said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To establish a connection.
    pub connect: Duration,
    /// One try, from the request completely written until its head.
    pub attempt: AttemptTimeout,
    /// All tries until the head that is passed on.
    pub request: Option<Duration>,
    /// Whether `request` was written in the file (an unwritten one does not hold for gRPC).
    pub request_explicit: bool,
    /// Longest silence after the head.
    pub idle: Option<Duration>,
    /// Whether `idle` was written (else tunnels, gRPC and event streams have one hour).
    pub idle_explicit: bool,
}

/// `timeout.attempt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptTimeout {
    /// min(5 s, request / max_attempts) while another try may follow, else what is left.
    Auto,
    /// Always this.
    After(Duration),
    /// None.
    Unlimited,
}

/// `retry`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The first try included; at least 1.
    pub max_attempts: u32,
    /// On what.
    pub retry_on: RetryOn,
    /// Which methods.
    pub methods: RetryMethods,
    /// Bytes kept for a replay.
    pub max_body: usize,
    /// Delay before the n-th retry: min(max, base x 2^n) + random(0, jitter).
    pub backoff_base: Duration,
    /// See `backoff_base`.
    pub backoff_max: Duration,
    /// See `backoff_base`.
    pub backoff_jitter: Duration,
    /// Retries at most, as a percentage of requests ...
    pub budget_percent: u32,
    /// ... and always this many a second.
    pub budget_min_per_second: u32,
}

/// `retry.retry_on` as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "a set with named members")]
pub struct RetryOn {
    /// Refused, unreachable, connect time-out, TLS.
    pub connect_failure: bool,
    /// REFUSED_STREAM, or GOAWAY below the stream.
    pub refused_stream: bool,
    /// Reset or end before a complete head.
    pub reset: bool,
    /// Our attempt limit.
    pub attempt_timeout: bool,
    /// Bit `n` for HTTP status 500 + n, up to 599.
    pub http_5xx: u128,
    /// gRPC 14.
    pub grpc_unavailable: bool,
    /// gRPC 4.
    pub grpc_deadline_exceeded: bool,
    /// gRPC 8.
    pub grpc_resource_exhausted: bool,
}

/// `retry.methods`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryMethods {
    /// GET HEAD OPTIONS PUT DELETE TRACE.
    pub idempotent: bool,
    /// gRPC calls.
    pub grpc: bool,
    /// Every method.
    pub all: bool,
    /// Named ones, upper case.
    pub named: Vec<http::Method>,
}

/// `pool`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Whole sidecar.
    pub max_connections_per_instance: u32,
    /// Whole sidecar.
    pub max_idle_per_instance: u32,
    /// An idle connection is closed after it.
    pub idle_timeout: Duration,
    /// No connection is used longer; zero = no limit.
    pub max_age: Duration,
    /// How long a request waits for a place.
    pub max_wait: Duration,
}

/// `health_check`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// How.
    pub kind: HealthCheckKind,
    /// Between checks of one instance.
    pub interval: Duration,
    /// Of one check.
    pub timeout: Duration,
    /// Good ones in a row until it passes.
    pub rise: u32,
    /// Bad ones in a row until it fails.
    pub fall: u32,
    /// Another port than the instance's.
    pub port: Option<u16>,
    /// Host header; default the service name.
    pub host: Option<Arc<str>>,
}

/// How an instance is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthCheckKind {
    /// A TCP connection is accepted.
    Tcp,
    /// A GET is answered with one of these statuses.
    Http {
        /// Path with query.
        path: Arc<str>,
        /// Default 200-399.
        expect: crate::outlier::policy::CodeSet,
        /// A text that its body has.
        body: Option<Arc<str>>,
        /// A value of its body.
        json: Option<JsonRule>,
    },
    /// The standard health service of gRPC says SERVING.
    Grpc {
        /// Asked for; empty: the server as a whole.
        service: Arc<str>,
    },
    /// A program ends with 0. Its name and its arguments.
    Exec(Vec<String>),
}

/// `when_all_unhealthy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenAllUnhealthy {
    /// Every instance counts as passing.
    UseAll,
    /// 503 `no_healthy_instances`.
    Refuse,
}

/// `forwarded_headers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedHeaders {
    /// Those of the app pass unchanged.
    None,
    /// Ours are appended.
    Append,
}

/// `via`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// On responses.
    Response,
    /// On requests too.
    Both,
    /// Nowhere.
    None,
}
