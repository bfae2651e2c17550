//! What is live, as values: made by control on request, shown by admin, metrics and the command
//! line. Serialized as it stands, so a field's name is part of the API.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::metrics::cells::UpstreamReading;

mod registration;
mod resilience;

pub use registration::{AppStatus, Heartbeats, RegistrationStatus};
pub use resilience::{BreakerStatus, BulkheadStatus};

/// The process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Package version.
    pub version: String,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Process id.
    pub pid: u32,
    /// `serving`, `draining` or `cut`.
    pub phase: String,
    /// Whether `/readyz` says 200.
    pub ready: bool,
    /// Why not, or warnings that do not stop readiness.
    pub conditions: Vec<Condition>,
    /// Addresses by listener name.
    pub listeners: BTreeMap<String, Vec<String>>,
    /// The configuration.
    pub config: ConfigStatus,
    /// Registries.
    pub registries: Vec<RegistryStatus>,
    /// The local app.
    #[serde(default)]
    pub app: AppStatus,
    /// Where it is registered.
    #[serde(default)]
    pub registrations: Vec<RegistrationStatus>,
    /// Heartbeats on its behalf, by registry.
    #[serde(default)]
    pub heartbeats: BTreeMap<String, Heartbeats>,
    /// Upstreams, briefly.
    pub upstreams: Vec<UpstreamSummary>,
    /// Names that more than one service wants: none of them has it.
    pub alias_conflicts: Vec<String>,
}

/// One readiness condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// `listeners`, `config`, `registry:NAME`, `draining`.
    pub name: String,
    /// Whether it holds up readiness.
    pub failing: bool,
    /// For people.
    pub message: String,
}

/// The configuration in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConfigStatus {
    /// The main file, if there is one.
    pub file: Option<String>,
    /// Hash of all files read.
    pub hash: String,
    /// When it was loaded, RFC 3339.
    pub loaded_at: String,
    /// Whether the last reload was applied whole.
    pub last_reload_ok: bool,
    /// Its problems, one a line.
    pub last_problems: Vec<String>,
    /// Policy files in force.
    pub policy_files: Vec<String>,
    /// Policy files left out, with their problems.
    pub rejected_files: Vec<RejectedFile>,
    /// Changed keys that need a restart.
    pub restart_required: Vec<String>,
}

/// A policy file that did not load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectedFile {
    /// Which.
    pub file: String,
    /// One a line.
    pub problems: Vec<String>,
    /// What holds in its place, for people.
    #[serde(default)]
    pub fate: String,
    /// Whether its last good version is in force.
    #[serde(default)]
    pub last_good_holds: bool,
}

/// What a reload came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// `applied`, `partial` (all but the rejected policy files), `rejected` or `unchanged`.
    pub result: String,
    /// Hash of the files in force.
    pub hash: String,
    /// Keys whose values differ from before and hold now.
    pub changed: Vec<String>,
    /// Changed keys that need a restart; their old values hold.
    pub restart_required: Vec<String>,
    /// Policy files left out.
    pub rejected_files: Vec<RejectedFile>,
    /// Errors and warnings, one a line.
    pub diagnostics: Vec<String>,
    /// The same for a terminal, with the lines of the files.
    pub text: String,
    /// All of it in a sentence.
    pub message: String,
}

impl ReloadReport {
    /// Whether every file is in force as it stands.
    pub fn is_good(&self) -> bool {
        self.rejected_files.is_empty() && matches!(&*self.result, "applied" | "unchanged")
    }
}

/// One registry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegistryStatus {
    /// Its key.
    pub name: String,
    /// `embedded`, `file`, `nacos`.
    pub kind: String,
    /// Its last requests were answered.
    pub up: bool,
    /// A set is older than three periods.
    pub stale: bool,
    /// Services that live on a cached set because it has not answered since the start.
    #[serde(default)]
    pub cached: usize,
    /// Its health flags are forged at the moment.
    pub protected: bool,
    /// Seconds since its last answer.
    pub age_s: Option<f64>,
    /// Unix time of its last answer.
    pub last_success_unix_s: Option<f64>,
    /// Live subscriptions.
    pub subscriptions: usize,
    /// Answers by result.
    pub updates: BTreeMap<String, u64>,
    /// Of the last request that failed.
    pub last_error: Option<String>,
}

/// One upstream, briefly.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpstreamSummary {
    /// Its name.
    pub name: String,
    /// Other names it answers to.
    pub aliases: Vec<String>,
    /// Listed hosts.
    pub hosts: Vec<String>,
    /// Configured, or discovered at a request.
    pub discovered: bool,
    /// Where its endpoints come from: a registry's name or `static`.
    pub source: String,
    /// Seconds since the source's last answer; `None` before the first and for static ones.
    pub age_s: Option<f64>,
    /// The set is older than three periods.
    pub stale: bool,
    /// Unix time when the set was kept that is in use from the cache, as long as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_unix_s: Option<f64>,
    /// A held update, for people.
    pub held: Option<String>,
    /// The source's last error.
    pub error: Option<String>,
    /// The policy's name.
    pub policy: String,
    /// Where it stands, `file:line`.
    pub policy_at: String,
    /// `enforce`, `observe` or `disabled`.
    pub mode: String,
    /// Endpoints listed by the source.
    pub listed: usize,
    /// Routable ones (n of the cap).
    pub routable: usize,
    /// Pickable at the moment.
    pub selectable: usize,
    /// How many may be out.
    pub ejection_limit: usize,
    /// How many are out (would be, in mode observe).
    pub ejected: usize,
    /// Instances by state: healthy ejected probing unhealthy draining disabled.
    pub states: BTreeMap<String, usize>,
    /// Every un-ejected instance is abnormal or does not pass.
    pub last_resort: bool,
    /// Why nothing can be picked, if so.
    pub unavailable: Option<String>,
    /// Its circuit breaker; absent while it is disabled and nothing is ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerStatus>,
    /// Its bulkhead.
    #[serde(default)]
    pub bulkhead: BulkheadStatus,
}

/// One instance with everything that is known of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, only ever listed"
)]
pub struct InstanceStatus {
    /// `ip:port`.
    pub instance: String,
    /// One of healthy ejected probing unhealthy draining disabled.
    pub state: String,
    /// The whole story in one sentence.
    pub why: String,
    /// What operators ordered for it.
    #[serde(default)]
    pub overrides: Vec<OverrideStatus>,
    /// Registry's weight.
    pub weight: f64,
    /// Its share of traffic, below 1 while it ramps.
    pub share: f64,
    /// The registry's flags.
    pub registry_healthy: bool,
    /// See `registry_healthy`.
    pub enabled: bool,
    /// See `registry_healthy`.
    pub draining: bool,
    /// Its active checks pass; `None` without checks.
    pub check_passes: Option<bool>,
    /// What the last check said.
    pub check_message: Option<String>,
    /// Zone, where the registry tells it.
    #[serde(default)]
    pub zone: Option<String>,
    /// Its tier; 0 is asked first.
    #[serde(default)]
    pub priority: u16,
    /// It is one of those that are asked first: of the subset, the lowest priority, near.
    #[serde(default)]
    pub preferred: bool,
    /// Cluster in the registry.
    pub cluster: Option<String>,
    /// Metadata.
    pub metadata: BTreeMap<String, String>,
    /// The window.
    pub window_s: f64,
    /// Judged calls in it.
    pub requests: u64,
    /// Those that count as failures.
    pub errors: u64,
    /// Network errors.
    pub network_errors: u64,
    /// Business errors.
    pub business_errors: u64,
    /// In percent.
    pub error_rate_pct: f64,
    /// Abnormal strictly above.
    pub threshold_pct: f64,
    /// Calls per second.
    pub qps: f64,
    /// Needed to be judged.
    pub lower_qps_limit: f64,
    /// Failures in a row.
    pub streak: u64,
    /// Failures in a row that eject; 0: off.
    pub streak_limit: u64,
    /// By kind.
    pub errors_by_kind: BTreeMap<String, u64>,
    /// How it stands for each route, where the policy judges routes; those without calls left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteStanding>,
    /// Median time of its answers in the window, where the policy has `slow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_ms: Option<f64>,
    /// Why an abnormal one was left in: removal_rate, last_instance, hold.
    pub suppressed_by: Option<String>,
    /// What was seen of it when it was ejected, while it is out.
    #[serde(default)]
    pub ejected_because: Option<String>,
    /// How its last probe failed, while it is out.
    #[serde(default)]
    pub last_probe_error: Option<String>,
    /// Step of the schedule while ejected.
    pub k: Option<u32>,
    /// RFC 3339.
    pub next_probe_at: Option<String>,
    /// Unix time of the next probe.
    pub next_probe_unix_s: Option<f64>,
    /// Seconds it has been out.
    pub ejected_for_s: Option<f64>,
    /// How often it was ejected.
    pub times_ejected: u32,
    /// A remembered k after a restore.
    pub remembered_k: Option<u32>,
    /// Requests in flight.
    pub in_flight: u32,
    /// Open connections.
    pub connections: u32,
    /// Attempts since the start: success, network_error, business_error, ignored.
    pub attempts: BTreeMap<String, u64>,
}

/// An instance for one route.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RouteStanding {
    /// Name of the route; `_rest`: requests without one of their own.
    pub route: String,
    /// healthy, ejected or probing.
    pub state: String,
    /// The story in one sentence.
    pub why: String,
    /// Judged calls in its window.
    pub requests: u64,
    /// Those that count as failures.
    pub errors: u64,
    /// In percent.
    pub error_rate_pct: f64,
    /// Step of the schedule while ejected.
    pub k: Option<u32>,
    /// RFC 3339.
    pub next_probe_at: Option<String>,
}

impl InstanceStatus {
    /// Whether ejection keeps it out, also where another state is shown for it.
    pub fn is_out(&self) -> bool {
        self.ejected_for_s.is_some() || matches!(&*self.state, "ejected" | "probing")
    }
}

/// The labels of an ejection for one route alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteEjection {
    /// Name of the route.
    pub route: Arc<str>,
    /// Name of the policy.
    pub policy: Arc<str>,
    /// enforced or observed.
    pub mode: &'static str,
    /// Which rule.
    pub trigger: &'static str,
}

/// Counters that the driver keeps: decisions about one upstream since the start.
#[derive(Clone, Debug, Default)]
pub struct Decisions {
    /// By (policy, mode enforced or observed, trigger).
    pub ejections: BTreeMap<(Arc<str>, &'static str, &'static str), u64>,
    /// For one route alone.
    pub route_ejections: BTreeMap<RouteEjection, u64>,
    /// By (policy, mode, cause).
    pub suppressed: BTreeMap<(Arc<str>, &'static str, &'static str), u64>,
    /// By result: good, failed, expired, ignored.
    pub probes: BTreeMap<&'static str, u64>,
    /// Ended active checks by result: good, failed, ignored.
    pub checks: BTreeMap<&'static str, u64>,
    /// By (mode, restored_by).
    pub recoveries: BTreeMap<(&'static str, &'static str), u64>,
    /// Seconds out of each ended ejection, as a histogram: bounds 30 60 120 300 600 1800 3600.
    pub durations: [u64; 8],
    /// Sum of those seconds.
    pub duration_sum_s: f64,
    /// Changes of state of circuit breakers, by (route, to).
    pub transitions: BTreeMap<(Option<Arc<str>>, &'static str), u64>,
}

/// Everything metrics and `upstreams/{u}` need of one upstream.
#[derive(Clone, Debug)]
pub struct UpstreamStatus {
    /// Briefly.
    pub summary: UpstreamSummary,
    /// In the source's order; ejected and disabled ones too.
    pub instances: Vec<InstanceStatus>,
    /// Decisions since the start.
    pub decisions: Decisions,
    /// Request counters.
    pub counters: UpstreamReading,
    /// Its routes, in the order of the file.
    pub routes: Vec<RouteStatus>,
    /// Bytes of last good answers, where they are kept.
    pub kept_bytes: Option<u64>,
    /// What operators ordered.
    pub overrides: Vec<OverrideStatus>,
}

/// One of `services.NAME.routes`.
#[derive(Clone, Debug)]
pub struct RouteStatus {
    /// Its name.
    pub name: String,
    /// Which requests, for people.
    pub matches: String,
    /// Request counters; its requests are in those of the upstream too.
    pub counters: UpstreamReading,
    /// Its circuit breaker, if it has its own, as that of an upstream.
    pub breaker: Option<BreakerStatus>,
    /// Its bulkhead, if it has its own.
    pub bulkhead: Option<BulkheadStatus>,
}

/// An operator's order in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OverrideStatus {
    /// For `DELETE /api/v1/overrides/{id}`.
    pub id: String,
    /// The upstream.
    pub upstream: String,
    /// Which instance; none for a circuit breaker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Which route's circuit breaker; none for an instance or the upstream's own breaker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// `eject`, `hold`, `disable`; `breaker_force_open`, `breaker_force_closed`, `breaker_disable`.
    pub kind: String,
    /// When it was given, RFC 3339.
    pub since: String,
    /// When it ends by itself, RFC 3339.
    pub until: String,
    /// Seconds until then.
    pub left_s: f64,
    /// Beyond the cap.
    pub forced: bool,
    /// Who gave it.
    pub actor: String,
    /// Why.
    pub note: Option<String>,
}

/// An order that was carried out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OverrideDone {
    /// For people.
    pub message: String,
    /// What is in force now, if the order lasts.
    #[serde(rename = "override")]
    pub entry: Option<OverrideStatus>,
    /// Routable instances.
    pub instances: usize,
    /// How many of them are ejected.
    pub ejected_now: usize,
    /// How many may be.
    pub ejection_limit: usize,
}

/// An order that was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideRefused {
    /// For programs: cap_full, last_instance, unknown, not_ejected, not_disabled, too_many;
    /// unknown_route, shared_breaker, not_ordered.
    pub cause: String,
    /// For people, with the numbers.
    pub message: String,
    /// What would do.
    pub hint: String,
}

/// What `explain-route` and `GET /api/v1/route` tell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RouteExplanation {
    /// Which rule matched, or would have.
    pub rule: String,
    /// The upstream, if one was found.
    pub upstream: Option<String>,
    /// Which of its `routes` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// What instances see as target.
    pub target: Option<String>,
    /// What instances see as Host.
    pub host: Option<String>,
    /// The answer otherwise: status and reason.
    pub refusal: Option<String>,
    /// Near names.
    pub nearest: Vec<String>,
}
