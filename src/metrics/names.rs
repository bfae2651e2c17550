//! The metric families: names, labels and meaning. A renamed family is a breaking change;
//! `docs/metrics.md` is compared with this list by a test. Values come from `metrics/collect.rs`.

/// How the values of a family behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until the process or the labelled thing is a new one.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by bucket.
    Histogram,
}

impl Kind {
    /// As in the text format.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Label names, in the order of the values.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub help: &'static str,
}

impl Family {
    /// Whether its series belong to one upstream.
    pub fn of_upstream(&self) -> bool {
        self.labels.first() == Some(&"upstream")
    }

    /// Its name without what says that it is a counter, as OpenMetrics names it.
    pub fn stem(&self) -> &'static str {
        match self.kind {
            Kind::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            Kind::Gauge | Kind::Histogram => self.name,
        }
    }

    /// The unit in its name.
    pub fn unit(&self) -> Option<&'static str> {
        let (_, last) = self.stem().rsplit_once('_')?;
        ["bytes", "ratio", "seconds"]
            .into_iter()
            .find(|unit| *unit == last)
    }

    /// Whether its series belong to one instance.
    pub fn of_instance(&self) -> bool {
        self.labels.contains(&"instance")
    }
}

macro_rules! families {
    ($($id:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(#[doc = $help]
        pub const $id: Family = Family {
            name: $name,
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*
        /// Every family, in the order they are shown.
        pub const ALL: &[Family] = &[$($id),*];
    };
}

families! {
    REQUESTS = Counter "outrigger_requests_total" ["upstream", "protocol", "code"]
        "Finished requests as the app saw them, own answers included; code is a status class or the name of a gRPC status.";
    REQUEST_DURATION = Histogram "outrigger_request_duration_seconds" ["upstream", "protocol"]
        "Time from a request's head to the end of its answer.";
    REQUESTS_IN_FLIGHT = Gauge "outrigger_requests_in_flight" ["upstream"]
        "Requests that are not finished.";
    REJECTED = Counter "outrigger_rejected_total" ["upstream", "reason"]
        "Requests that Outrigger answered itself; upstream is _none where none was found.";
    ATTEMPTS = Counter "outrigger_attempts_total" ["upstream", "instance", "outcome"]
        "Tries at an instance by what they say of it.";
    ATTEMPT_ERRORS = Counter "outrigger_attempt_errors_total" ["upstream", "kind"]
        "Failed tries by kind of failure.";
    ATTEMPT_DURATION = Histogram "outrigger_attempt_duration_seconds" ["upstream"]
        "Time of a try until its response head.";
    IGNORED_OUTCOMES = Counter "outrigger_ignored_outcomes_total" ["upstream", "cause"]
        "Outcomes that went into no window.";
    LIMIT_HITS = Counter "outrigger_limit_hits_total" ["limit"]
        "How often a limit bit.";
    WORKER_LAG = Gauge "outrigger_worker_lag_seconds" ["worker"]
        "Loop lag of a data plane thread, last measured.";
    RETRIES = Counter "outrigger_retries_total" ["upstream"]
        "Second and further tries.";
    RETRY_BUDGET_EXHAUSTED = Counter "outrigger_retry_budget_exhausted_total" ["upstream"]
        "Retries that the budget refused.";
    ROUTE_REQUESTS = Counter "outrigger_route_requests_total" ["upstream", "route", "code"]
        "Answers the app saw, by route of `services.NAME.routes`; they are in those of the upstream too.";
    ROUTE_REQUEST_DURATION = Histogram "outrigger_route_request_duration_seconds" ["upstream", "route"]
        "Time of a route's requests from the head of the request to the end of the answer.";
    ROUTE_REJECTED = Counter "outrigger_route_rejected_total" ["upstream", "route", "reason"]
        "A route's requests that Outrigger answered itself.";
    ROUTE_RETRIES = Counter "outrigger_route_retries_total" ["upstream", "route"]
        "Second and further tries of a route.";
    HEDGES = Counter "outrigger_hedges_total" ["upstream"]
        "Second attempts that hedging began beside a slow first one; they count as retries too.";
    FALLBACKS = Counter "outrigger_fallbacks_total" ["upstream", "kind"]
        "Requests to the upstream that a fallback answered.";
    FALLBACK_CACHE_BYTES = Gauge "outrigger_fallback_cache_bytes" ["upstream"]
        "Size of the last good answers that are kept; only where a cache is configured.";
    INSTANCES = Gauge "outrigger_instances" ["upstream", "state"]
        "Instances by state; each is in exactly one.";
    INSTANCE_EJECTED = Gauge "outrigger_instance_ejected" ["upstream", "instance"]
        "1 while the instance is ejected.";
    INSTANCE_ERROR_RATIO = Gauge "outrigger_instance_window_error_ratio" ["upstream", "instance"]
        "Share of failures in the instance's window, as its policy sees it.";
    INSTANCE_QPS = Gauge "outrigger_instance_window_requests_per_second" ["upstream", "instance"]
        "Judged calls per second in the instance's window.";
    INSTANCE_WEIGHT = Gauge "outrigger_instance_weight" ["upstream", "instance"]
        "Weight from the registry, times its share while it ramps up.";
    EJECTION_LIMIT = Gauge "outrigger_ejection_limit" ["upstream"]
        "How many instances may be ejected at a time.";
    EJECTIONS = Counter "outrigger_ejections_total" ["upstream", "policy", "mode", "trigger"]
        "Ejections; mode observed counts those that were only noted.";
    ROUTE_EJECTIONS = Counter "outrigger_route_ejections_total" ["upstream", "route", "policy", "mode", "trigger"]
        "Ejections of an instance for one route alone, where a policy has scope route.";
    ROUTE_EJECTED = Gauge "outrigger_route_ejected" ["upstream", "route"]
        "How many instances are ejected for the route alone, where a policy has scope route.";
    EJECTIONS_SUPPRESSED = Counter "outrigger_ejections_suppressed_total" ["upstream", "policy", "mode", "cause"]
        "Abnormal instances that were left in, by what kept them in.";
    RECOVERY_PROBES = Counter "outrigger_recovery_probes_total" ["upstream", "result"]
        "Probes of ejected instances by result, also of those that are ejected for a route alone.";
    HEALTH_CHECKS = Counter "outrigger_health_checks_total" ["upstream", "result"]
        "Ended active checks by result; ignored ones failed on our side.";
    CHECKED_INSTANCES = Gauge "outrigger_checked_instances" ["upstream", "state"]
        "Instances with active checks by what these say; only where checks are configured.";
    RECOVERIES = Counter "outrigger_recoveries_total" ["upstream", "mode", "restored_by"]
        "Ends of ejections by what ended them.";
    INSTANCE_NEXT_PROBE = Gauge "outrigger_instance_next_probe_timestamp_seconds" ["upstream", "instance"]
        "Unix time of the next probe; only while ejected.";
    INSTANCE_RECOVERY_STEP = Gauge "outrigger_instance_recovery_step" ["upstream", "instance"]
        "Step k of the probe schedule; only while ejected.";
    EJECTION_DURATION = Histogram "outrigger_ejection_duration_seconds" ["upstream"]
        "Length of ended ejections.";
    BREAKER_STATE = Gauge "outrigger_circuit_breaker_state" ["upstream", "route", "state"]
        "1 for the state of a circuit breaker, 0 for the others; route only for that of a route, nothing while it is disabled.";
    BREAKER_TRANSITIONS = Counter "outrigger_circuit_breaker_transitions_total" ["upstream", "route", "to"]
        "Changes of state of a circuit breaker; would_open and would_close count those that were only noted.";
    BULKHEAD_IN_USE = Gauge "outrigger_bulkhead_in_use" ["upstream", "route"]
        "Requests that have a place of the bulkhead.";
    BULKHEAD_LIMIT = Gauge "outrigger_bulkhead_limit" ["upstream", "route"]
        "Places of the bulkhead.";
    OVERRIDES = Gauge "outrigger_overrides" ["kind"]
        "Operators' orders in force.";
    REGISTRY_UP = Gauge "outrigger_registry_up" ["registry"]
        "1 while the registry answers.";
    REGISTRY_STALE = Gauge "outrigger_registry_stale" ["registry"]
        "1 while a set of instances is older than three periods.";
    REGISTRY_PROTECTED = Gauge "outrigger_registry_protected" ["registry"]
        "1 while the registry's health flags are forged by its protection threshold.";
    REGISTRY_LAST_SUCCESS = Gauge "outrigger_registry_last_success_timestamp_seconds" ["registry"]
        "Unix time of the registry's last answer.";
    REGISTRY_UPDATES = Counter "outrigger_registry_updates_total" ["registry", "result"]
        "Answers of the registry by what was made of them.";
    REGISTRATION_UP = Gauge "outrigger_registration_up" ["registry"]
        "1 while every registration of the app with the registry is listed as up and takes heartbeats.";
    APP_HEALTHY = Gauge "outrigger_app_healthy" []
        "1 while the app passes its checks.";
    HEARTBEATS = Counter "outrigger_heartbeats_total" ["registry", "result"]
        "Heartbeats on behalf of the app.";
    CONFIG_RELOAD_OK = Gauge "outrigger_config_last_reload_successful" []
        "1 when the last reload was applied.";
    CONFIG_RELOAD_TIME = Gauge "outrigger_config_last_reload_success_timestamp_seconds" []
        "Unix time of the last load that was applied.";
    CONFIG_RELOADS = Counter "outrigger_config_reloads_total" ["result"]
        "Reloads since the start.";
    POLICY_FILES = Gauge "outrigger_policy_files" ["state"]
        "Ejection policy files in force and left out.";
    OPEN_CONNECTIONS = Gauge "outrigger_open_connections" ["side"]
        "Open connections of the app and to instances.";
    LOG_LINES_DROPPED = Counter "outrigger_log_lines_dropped_total" []
        "Events and access-log lines that were lost: their sink was full or could not be written.";
    SERIES_DROPPED = Counter "outrigger_metric_series_dropped_total" ["family"]
        "Series left out because of max_upstreams or max_instances, added up over scrapes.";
    BUILD_INFO = Gauge "outrigger_build_info" ["version", "commit"]
        "Always 1.";
    PROCESS_CPU = Counter "process_cpu_seconds_total" []
        "Total user and system CPU time spent in seconds.";
    PROCESS_MAX_FDS = Gauge "process_max_fds" []
        "Maximum number of open file descriptors.";
    PROCESS_OPEN_FDS = Gauge "process_open_fds" []
        "Number of open file descriptors.";
    PROCESS_RSS = Gauge "process_resident_memory_bytes" []
        "Resident memory size in bytes.";
    PROCESS_START = Gauge "process_start_time_seconds" []
        "Start time of the process since unix epoch in seconds.";
    PROCESS_THREADS = Gauge "process_threads" []
        "Number of OS threads in the process.";
    PROCESS_VIRTUAL = Gauge "process_virtual_memory_bytes" []
        "Virtual memory size in bytes.";
}

/// The upstream label of requests that found none.
pub const NO_UPSTREAM: &str = "_none";
/// The upstream label of all upstreams beyond `max_upstreams`.
pub const OTHER_UPSTREAMS: &str = "_other";

/// The states of instances, worst last.
pub const STATES: [&str; 6] = [
    "healthy",
    "ejected",
    "probing",
    "unhealthy",
    "draining",
    "disabled",
];

/// Orders of operators that last.
pub const OVERRIDE_KINDS: [&str; 6] = [
    "eject",
    "hold",
    "disable",
    "breaker_force_open",
    "breaker_force_closed",
    "breaker_disable",
];

/// Names of the gRPC codes 0-16 as the label `code` has them; the last one for all above.
pub const GRPC_NAMES: [&str; super::cells::GRPC_CODES] = [
    "ok",
    "cancelled",
    "unknown",
    "invalid_argument",
    "deadline_exceeded",
    "not_found",
    "already_exists",
    "permission_denied",
    "resource_exhausted",
    "failed_precondition",
    "aborted",
    "out_of_range",
    "unimplemented",
    "internal",
    "unavailable",
    "data_loss",
    "unauthenticated",
    "other",
];

/// Labels of HTTP status classes.
pub const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Bounds of [`EJECTION_DURATION`], in seconds.
pub const EJECTION_BOUNDS_S: [f64; 7] = [30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_end_as_their_kind_demands() {
        let mut seen = std::collections::BTreeSet::new();
        for family in ALL {
            assert!(seen.insert(family.name), "{}", family.name);
            let total = family.name.ends_with("_total");
            assert_eq!(total, family.kind == Kind::Counter, "{}", family.name);
            assert!(!family.of_instance() || family.of_upstream());
        }
    }
}
