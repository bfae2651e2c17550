//! Status values to start from.

use std::collections::BTreeMap;

use crate::status::{
    BulkheadStatus, Condition, ConfigStatus, Decisions, InstanceStatus, ProcessStatus,
    RegistryStatus, RouteExplanation, UpstreamStatus, UpstreamSummary,
};

/// A process that serves and is ready, with one registry.
pub fn process() -> ProcessStatus {
    let condition = |name: &str, message: &str| Condition {
        name: name.to_owned(),
        failing: false,
        message: message.to_owned(),
    };
    let listeners = [
        ("listen", "127.0.0.1:15001"),
        ("telemetry", "127.0.0.1:15003"),
    ];
    ProcessStatus {
        version: crate::version::VERSION.to_owned(),
        uptime_s: 3725,
        pid: 42,
        phase: "serving".to_owned(),
        ready: true,
        conditions: vec![
            condition("listeners", "all bound"),
            condition("registry:local", "answered"),
        ],
        listeners: listeners
            .map(|(name, at)| (name.to_owned(), vec![at.to_owned()]))
            .into(),
        config: ConfigStatus {
            file: Some("/etc/outrigger/outrigger.yaml".to_owned()),
            hash: "0123456789abcdef".to_owned(),
            loaded_at: "2026-01-02T03:04:05Z".to_owned(),
            last_reload_ok: true,
            last_problems: Vec::new(),
            policy_files: vec!["policies/default.yaml".to_owned()],
            rejected_files: Vec::new(),
            restart_required: Vec::new(),
        },
        app: crate::status::AppStatus::default(),
        registrations: Vec::new(),
        heartbeats: BTreeMap::new(),
        registries: vec![registry("local")],
        upstreams: Vec::new(),
        alias_conflicts: Vec::new(),
    }
}

/// A registry that answers.
pub fn registry(name: &str) -> RegistryStatus {
    RegistryStatus {
        name: name.to_owned(),
        kind: "embedded".to_owned(),
        up: true,
        cached: 0,
        stale: false,
        protected: false,
        age_s: Some(1.5),
        last_success_unix_s: Some(1_767_323_045.5),
        subscriptions: 1,
        updates: [("applied".to_owned(), 3), ("unchanged".to_owned(), 7)].into(),
        last_error: None,
    }
}

/// An upstream of the registry `local` with these instances; the counts follow from them.
pub fn upstream(name: &str, instances: Vec<InstanceStatus>) -> UpstreamStatus {
    let mut states = BTreeMap::new();
    for instance in &instances {
        *states.entry(instance.state.clone()).or_insert(0) += 1;
    }
    let of = |state: &str| states.get(state).copied().unwrap_or(0);
    let listed = instances.len();
    let routable = listed - of("disabled") - of("draining");
    let summary = UpstreamSummary {
        name: name.to_owned(),
        aliases: Vec::new(),
        hosts: Vec::new(),
        discovered: false,
        source: "local".to_owned(),
        age_s: Some(1.5),
        stale: false,
        cached_unix_s: None,
        held: None,
        error: None,
        policy: "default".to_owned(),
        policy_at: "policies/default.yaml:4".to_owned(),
        mode: "enforce".to_owned(),
        listed,
        routable,
        selectable: of("healthy"),
        ejection_limit: routable / 2,
        ejected: instances.iter().filter(|i| i.is_out()).count(),
        states,
        last_resort: false,
        unavailable: None,
        breaker: None,
        bulkhead: BulkheadStatus::default(),
    };
    UpstreamStatus {
        summary,
        instances,
        decisions: Decisions::default(),
        routes: Vec::new(),
        counters: crate::metrics::cells::UpstreamReading::default(),
        kept_bytes: None,
        overrides: Vec::new(),
    }
}

/// A healthy instance with 80 good calls in its window.
pub fn instance(address: &str) -> InstanceStatus {
    InstanceStatus {
        instance: address.to_owned(),
        state: "healthy".to_owned(),
        why: format!("{address} is healthy: 0.0% errors in 10s (0 of 80, 8.0 qps)"),
        overrides: Vec::new(),
        weight: 1.0,
        share: 1.0,
        registry_healthy: true,
        enabled: true,
        draining: false,
        check_passes: None,
        check_message: None,
        zone: None,
        priority: 0,
        preferred: true,
        cluster: Some("DEFAULT".to_owned()),
        metadata: BTreeMap::new(),
        window_s: 10.0,
        requests: 80,
        errors: 0,
        network_errors: 0,
        business_errors: 0,
        error_rate_pct: 0.0,
        threshold_pct: 50.0,
        qps: 8.0,
        lower_qps_limit: 1.0,
        streak: 0,
        streak_limit: 0,
        errors_by_kind: BTreeMap::new(),
        routes: Vec::new(),
        median_ms: None,
        suppressed_by: None,
        ejected_because: None,
        last_probe_error: None,
        k: None,
        next_probe_at: None,
        next_probe_unix_s: None,
        ejected_for_s: None,
        times_ejected: 0,
        remembered_k: None,
        in_flight: 0,
        connections: 1,
        attempts: [("success".to_owned(), 80)].into(),
    }
}

/// An instance that is ejected at step 1.
pub fn ejected(address: &str) -> InstanceStatus {
    InstanceStatus {
        state: "ejected".to_owned(),
        why: format!("ejected {address}: 65.0% errors > 50% in 10s (52 of 80, 8.0 qps)"),
        errors: 52,
        network_errors: 52,
        error_rate_pct: 65.0,
        errors_by_kind: [("connect_refused".to_owned(), 52)].into(),
        k: Some(1),
        next_probe_at: Some("2026-01-02T03:04:35.678Z".to_owned()),
        next_probe_unix_s: Some(1_767_323_075.678),
        ejected_for_s: Some(4.0),
        times_ejected: 1,
        attempts: [("network_error".to_owned(), 52), ("success".to_owned(), 28)].into(),
        ..instance(address)
    }
}

/// A route that was found by the name of its service.
pub fn route() -> RouteExplanation {
    RouteExplanation {
        rule: "first path segment".to_owned(),
        upstream: Some("orders".to_owned()),
        route: None,
        target: Some("/v1".to_owned()),
        host: Some("orders".to_owned()),
        refusal: None,
        nearest: Vec::new(),
    }
}
