//! The demo's own configuration and policy. Neither files nor the environment change it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;

use super::{SERVICE, Settings};
use crate::config::parse_str;
use crate::config::types::{Config, Listen, PolicyEntry, PolicyProtocol, PolicySet};
use crate::listener::bind::{self, BindError};
use crate::outlier::policy::{ExceptionType, Policy};

/// The name of its registry.
pub(super) const REGISTRY: &str = "demo";

/// Where the demo listens.
#[derive(Clone, Debug)]
pub(super) struct Listens {
    pub(super) data: Listen,
    pub(super) admin: Listen,
    pub(super) telemetry: Listen,
    pub(super) registry: Listen,
    /// Usual ports that are taken, for people.
    pub(super) moved: Vec<String>,
}

/// The addresses asked for, else the usual ones. An app expects the data port where it is, so that
/// one is never moved; the others give way to a free port.
pub(super) fn listens(settings: &Settings) -> Result<Listens, BindError> {
    let data = settings.listen.clone();
    let data = data.unwrap_or(Listen::Localhost(15001));
    bind::bind(&data, 1, "--listen")?;
    let mut moved = Vec::new();
    let mut other = |given: &Option<Listen>, port: u16, flag: &'static str, what: &str| {
        let usual = Listen::Tcp(([127, 0, 0, 1], port).into());
        match given {
            Some(listen) => bind::bind(listen, 1, flag).map(|_| listen.clone()),
            None => match bind::bind(&usual, 1, flag) {
                Ok(_) => Ok(usual),
                Err(_) => {
                    moved.push(format!(
                        "port {port} is taken: {what} listens elsewhere ({flag} chooses)"
                    ));
                    Ok(Listen::Tcp(([127, 0, 0, 1], 0).into()))
                }
            },
        }
    };
    let admin = other(&settings.admin, 15002, "--admin-listen", "admin")?;
    let telemetry = other(
        &settings.telemetry,
        15003,
        "--telemetry-listen",
        "telemetry",
    )?;
    let registry = other(
        &settings.registry,
        15005,
        "--registry-listen",
        "the registry",
    )?;
    Ok(Listens {
        data,
        admin,
        telemetry,
        registry,
        moved,
    })
}

/// Beats, expiry and ejection all follow the recovery unit.
pub(super) fn config(listens: &Listens, unit: Duration) -> anyhow::Result<Config> {
    let text = text(listens, unit);
    let nothing = BTreeMap::<String, String>::new();
    let loaded = parse_str(&text, "outrigger demo", &nothing, None);
    let Some(config) = loaded.config else {
        bail!("{}", loaded.diagnostics);
    };
    let policies = PolicySet {
        entries: vec![policy(unit)],
        ..PolicySet::default()
    };
    Ok(Config {
        policies: Arc::new(policies),
        ..config
    })
}

fn text(listens: &Listens, unit: Duration) -> String {
    let show = |listen: &Listen| match listen {
        Listen::Tcp(address) => format!("\"{address}\""),
        Listen::Localhost(port) => format!("localhost:{port}"),
        Listen::Unix(path) => format!("{:?}", format!("unix:{}", path.display())),
    };
    let (data, admin) = (show(&listens.data), show(&listens.admin));
    let (telemetry, registry) = (show(&listens.telemetry), show(&listens.registry));
    let (beat, unhealthy, removed) = (
        unit.as_millis(),
        (unit * 3).as_millis(),
        (unit * 6).as_millis(),
    );
    format!(
        "version: 1
listen: {data}
admin: {{listen: {admin}}}
telemetry:
  listen: {telemetry}
  access_log: {{mode: none}}
  events: {{sinks: []}}
log: {{level: warn}}
app: {{name: demo, shutdown: {{propagation_delay: 0, drain_timeout: 1s}}}}
registries:
  {REGISTRY}:
    kind: embedded
    listen: {registry}
    beat_interval: {beat}ms
    unhealthy_after: {unhealthy}ms
    remove_after: {removed}ms
services:
  {SERVICE}: {{}}
"
    )
}

fn policy(unit: Duration) -> PolicyEntry {
    let any = || vec![Arc::from("*")];
    let policy = Policy {
        name: Arc::from("demo"),
        origin: Arc::from("outrigger demo"),
        exception_type: ExceptionType::NetworkAndBusiness,
        lower_qps_limit_milli: 500,
        // With less than 100 calls in it five failures in a row are enough.
        statistics_window: (unit * 2).clamp(Duration::from_secs(1), Duration::from_secs(4)),
        recovery_detection_unit_time: unit,
        ramp: unit,
        ..Policy::builtin(false)
    };
    PolicyEntry {
        policy: Arc::new(policy),
        file: "outrigger demo".into(),
        window_explicit: true,
        consumers: any(),
        upstreams: any(),
        namespaces: any(),
        protocols: vec![PolicyProtocol::Any],
        settings: Arc::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::types::RegistryKind;

    #[test]
    fn beats_expiry_and_policy_scale_with_the_unit() {
        let free = Listen::Tcp(([127, 0, 0, 1], 0).into());
        let listens = Listens {
            data: Listen::Localhost(0),
            admin: free.clone(),
            telemetry: free.clone(),
            registry: free,
            moved: Vec::new(),
        };
        let config = config(&listens, Duration::from_millis(300)).unwrap();
        let RegistryKind::Embedded(registry) = &config.registries[REGISTRY].kind else {
            panic!("not embedded");
        };
        let silence = (registry.unhealthy_after, registry.remove_after);
        let expected = (Duration::from_millis(900), Duration::from_millis(1800));
        assert_eq!(silence, expected);
        assert!(config.telemetry.events.sinks.is_empty());
        let policy = &config.policies.entries[0].policy;
        assert_eq!(policy.statistics_window, Duration::from_secs(1));
        assert_eq!(policy.recovery_detection_unit_time.as_millis(), 300);
    }
}
