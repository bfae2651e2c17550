//! Bodies of the admin API that are no status value as they stand; the command line reads them too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::diagnostic::Diagnostic;
use crate::config::settings::Setting;
use crate::status::{
    AppStatus, BreakerStatus, BulkheadStatus, InstanceStatus, OverrideStatus, RegistrationStatus,
    RegistryStatus, RouteStatus, UpstreamStatus, UpstreamSummary,
};

/// Every answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A word for programs.
    pub error: String,
    /// What happened.
    pub message: String,
    /// What to do about it; may be empty.
    #[serde(default)]
    pub hint: String,
}

/// `GET /api/v1/upstreams`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Upstreams {
    /// By name.
    pub upstreams: Vec<UpstreamSummary>,
}

/// `GET /api/v1/upstreams/{u}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpstreamDetail {
    /// Briefly.
    #[serde(flatten)]
    pub summary: UpstreamSummary,
    /// Requests in flight.
    pub in_flight: u64,
    /// Decisions since the start.
    pub decisions: Vec<Decision>,
    /// In the source's order.
    pub instances: Vec<InstanceStatus>,
    /// Its routes, in the order of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteView>,
}

/// One of `services.NAME.routes`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RouteView {
    /// Its name.
    pub name: String,
    /// Which requests, for people.
    pub matches: String,
    /// Finished requests since it is there.
    pub requests: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Of the finished ones: answered by Outrigger itself.
    pub rejected: u64,
    /// Second and further tries.
    pub retries: u64,
    /// Its circuit breaker; absent: it shares that of the upstream, or it is disabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerStatus>,
    /// Its bulkhead; absent: it shares that of the upstream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bulkhead: Option<BulkheadStatus>,
}

impl From<&RouteStatus> for RouteView {
    fn from(route: &RouteStatus) -> Self {
        let counters = &route.counters;
        Self {
            name: route.name.clone(),
            matches: route.matches.clone(),
            requests: counters.http.iter().flatten().chain(&counters.grpc).sum(),
            in_flight: counters.in_flight,
            rejected: counters.rejected.iter().sum(),
            retries: counters.retries,
            breaker: route.breaker.clone(),
            bulkhead: route.bulkhead.clone(),
        }
    }
}

/// How often something was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// `ejection`, `suppressed`, `probe`, `recovery`.
    pub what: String,
    /// Words that tell it apart, by label.
    pub labels: BTreeMap<String, String>,
    /// How often.
    pub count: u64,
}

/// `GET /api/v1/upstreams/{u}/instances`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Instances {
    /// The upstream's own name.
    pub upstream: String,
    /// In the source's order.
    pub instances: Vec<InstanceStatus>,
}

/// `GET /api/v1/hosts/{service}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hosts {
    /// The upstream's own name.
    pub service: String,
    /// Those to be used.
    pub hosts: Vec<Host>,
}

/// One instance for apps that want discovery only.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Host {
    /// `ip:port`.
    pub instance: String,
    /// Its IP.
    pub ip: String,
    /// Its port.
    pub port: u16,
    /// Weight from the registry.
    pub weight: f64,
    /// Whether it is in state `healthy`.
    pub healthy: bool,
    /// Its state.
    pub state: String,
    /// Cluster in the registry.
    pub cluster: Option<String>,
    /// Metadata.
    pub metadata: BTreeMap<String, String>,
}

/// `GET /api/v1/upstreams/{u}/history`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct History {
    /// The upstream's own name.
    pub upstream: String,
    /// Length of a step.
    pub step_s: u64,
    /// The oldest first; fewer than asked for while the process is young.
    pub points: Vec<Point>,
}

/// One step of a history.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Its end, RFC 3339.
    pub at: String,
    /// Requests that ended in it.
    pub requests: u64,
    /// Per second.
    pub qps: f64,
    /// Share of 5xx and of gRPC's server errors; `None` without requests.
    pub error_ratio: Option<f64>,
    /// Half of the requests took no longer; a bound of the histogram.
    pub p50_ms: Option<f64>,
    /// 99 of 100 took no longer.
    pub p99_ms: Option<f64>,
    /// Requests in flight at its end.
    pub in_flight: u32,
    /// Ejected instances at its end.
    pub ejected: u16,
    /// How many may be.
    pub ejection_limit: u16,
    /// Routable instances at its end.
    pub instances: u16,
}

/// `GET /api/v1/services`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Services {
    /// By name.
    pub services: Vec<ServiceName>,
    /// Registries that could not list theirs.
    pub problems: Vec<String>,
}

/// A service that can be asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceName {
    /// As its source calls it.
    pub name: String,
    /// A registry, or `static`.
    pub source: String,
    /// The upstream it is, if it was asked for already.
    pub upstream: Option<String>,
    /// How many instances it has, where that is known.
    pub instances: Option<usize>,
}

/// `GET /api/v1/bundle`: everything support asks for. No secrets, no request data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bundle {
    /// When it was made, RFC 3339.
    pub made_at: String,
    /// Version and commit.
    pub version: String,
    /// `GET /api/v1/status`.
    pub status: crate::status::ProcessStatus,
    /// Every upstream with its instances.
    pub upstreams: Vec<UpstreamDetail>,
    /// Histories, by upstream.
    pub histories: Vec<History>,
    /// Operators' orders.
    pub overrides: Vec<OverrideStatus>,
    /// The journal as far as it is kept.
    pub events: Vec<Map<String, Value>>,
    /// `/metrics`.
    pub metrics: String,
    /// `GET /api/v1/config`.
    pub settings: Vec<Setting>,
}

/// `GET /api/v1/overrides`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Overrides {
    /// By upstream and instance.
    pub overrides: Vec<OverrideStatus>,
}

/// `GET /api/v1/registries`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Registries {
    /// By name.
    pub registries: Vec<RegistryStatus>,
}

/// `GET /api/v1/registrations`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Registrations {
    /// How the app stands.
    pub app: AppStatus,
    /// In the order of the configuration.
    pub registrations: Vec<RegistrationStatus>,
}

/// `GET /api/v1/events`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Events {
    /// As they were written, oldest first.
    pub events: Vec<Map<String, Value>>,
    /// For `after` of the next question, also where nothing matched.
    pub next: String,
    /// The id in `after` is from the future: the process began anew and so does the list.
    #[serde(default)]
    pub restarted: bool,
}

impl From<UpstreamStatus> for UpstreamDetail {
    fn from(status: UpstreamStatus) -> Self {
        let decisions = decisions(&status);
        Self {
            routes: status.routes.iter().map(RouteView::from).collect(),
            summary: status.summary,
            in_flight: status.counters.in_flight,
            decisions,
            instances: status.instances,
        }
    }
}

fn decisions(status: &UpstreamStatus) -> Vec<Decision> {
    let one = |what: &str, labels: &[(&str, &str)], count: u64| Decision {
        what: what.to_owned(),
        labels: labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        count,
    };
    let decisions = &status.decisions;
    let mut out = Vec::new();
    for ((policy, mode, trigger), count) in &decisions.ejections {
        let labels = [("policy", &**policy), ("mode", mode), ("trigger", trigger)];
        out.push(one("ejection", &labels, *count));
    }
    for (of, count) in &decisions.route_ejections {
        let labels = [
            ("route", &*of.route),
            ("policy", &*of.policy),
            ("mode", of.mode),
            ("trigger", of.trigger),
        ];
        out.push(one("ejection for a route", &labels, *count));
    }
    for ((policy, mode, cause), count) in &decisions.suppressed {
        let labels = [("policy", &**policy), ("mode", mode), ("cause", cause)];
        out.push(one("suppressed", &labels, *count));
    }
    for (result, count) in &decisions.probes {
        out.push(one("probe", &[("result", result)], *count));
    }
    for ((mode, by), count) in &decisions.recoveries {
        let labels = [("mode", *mode), ("restored_by", by)];
        out.push(one("recovery", &labels, *count));
    }
    out
}

/// The instances to be used: the healthy ones, or else all that nobody took out by hand.
pub(super) fn hosts(status: UpstreamStatus, all: bool) -> Hosts {
    let healthy = |i: &InstanceStatus| i.state == "healthy";
    let some = status.instances.iter().any(healthy);
    let keep = |i: &InstanceStatus| {
        all || if some {
            healthy(i)
        } else {
            !matches!(&*i.state, "disabled" | "draining")
        }
    };
    let hosts = status.instances.into_iter().filter(keep).map(|instance| {
        let address = instance.instance.parse::<std::net::SocketAddr>().ok();
        Host {
            ip: address.map_or_else(String::new, |a| a.ip().to_string()),
            port: address.map_or(0, |a| a.port()),
            healthy: instance.state == "healthy",
            instance: instance.instance,
            weight: instance.weight,
            state: instance.state,
            cluster: instance.cluster,
            metadata: instance.metadata,
        }
    });
    Hosts {
        service: status.summary.name,
        hosts: hosts.collect(),
    }
}

/// `GET /api/v1/config`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ConfigView {
    /// In the order in which the files are read.
    pub settings: Vec<Setting>,
}

/// `POST /api/v1/policies:validate`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Validation {
    /// Whether the file could be loaded beside those in force.
    pub valid: bool,
    /// Names of its policies.
    pub policies: Vec<String>,
    /// Errors and warnings.
    pub diagnostics: Vec<DiagnosticView>,
}

/// A problem of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiagnosticView {
    /// `error` or `warning`.
    pub level: String,
    /// `E-CFG-012`.
    pub code: String,
    /// The file, variable or flag.
    pub file: String,
    /// From 1; nothing where it is about the whole file.
    pub line: Option<usize>,
    /// From 1.
    pub column: Option<usize>,
    /// The line behind the last one, the same for most.
    pub end_line: Option<usize>,
    /// The column behind the last character.
    pub end_column: Option<usize>,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub help: String,
}

impl From<&Diagnostic> for DiagnosticView {
    fn from(problem: &Diagnostic) -> Self {
        let place = &problem.place;
        let (line, column) = place.start;
        let placed = place.source.is_file && line > 0;
        let level = if problem.code.is_warning() {
            "warning"
        } else {
            "error"
        };
        Self {
            level: level.to_owned(),
            code: problem.code.to_string(),
            file: place.source.name.clone(),
            line: placed.then_some(line),
            column: placed.then_some(column),
            end_line: placed.then_some(place.end.0),
            end_column: placed.then_some(place.end.1),
            message: problem.message.clone(),
            help: problem.help.clone(),
        }
    }
}

/// `GET /api/v1/drain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainView {
    /// `serving`, `leaving` (callers are given time, everything is served), `draining`, `drained`.
    pub stage: String,
    /// Connections of the app that are open.
    pub open_connections: u64,
    /// Registrations on behalf of the app.
    pub registrations: u64,
    /// For people.
    #[serde(default)]
    pub message: String,
}

/// `GET /api/v1/log-level`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLevelView {
    /// What holds.
    pub filter: String,
    /// `log.level` of the configuration.
    pub configured: String,
    /// When that holds again; `None`: it holds, or at the restart.
    pub until_unix_s: Option<u64>,
}
