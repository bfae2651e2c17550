//! The calls under `/nacos/v1/ns`: instances, beats, services.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::EmbeddedRegistry;
use super::answer::{self, Answer, Fault, Host, List};
use super::model::{
    DEFAULT_GROUP, DEFAULT_NAMESPACE, InstanceKey, Patch, Refusal, Registration, Target,
};
use super::params::{self, Params};
use super::push::Caller;
use super::service::Instance;

/// What a client that only polls is told to wait: less than Nacos's 10 s, polls are cheap here.
const CACHE_MILLIS: u64 = 3000;
/// What a client is told that hears of changes by push.
pub(super) const PUSHED_CACHE_MILLIS: u64 = 10_000;

type Result = std::result::Result<Answer, Fault>;

pub(super) fn register(registry: &EmbeddedRegistry, params: &Params) -> Result {
    let service = params.service()?;
    let registration = Registration {
        key: params.instance()?,
        weight: params.weight()?.unwrap_or(crate::endpoint::Weight::ONE),
        enabled: params.enabled()?.unwrap_or(true),
        healthy: params.flag("healthy")?.unwrap_or(true),
        ephemeral: params.flag("ephemeral")?.unwrap_or(true),
        metadata: params.metadata()?.unwrap_or_default(),
    };
    registry.register(&service, registration)?;
    Ok(answer::ok())
}

/// As Nacos 2.x: sets weight, enabled and metadata as given or to their defaults, above what the
/// instance registers.
pub(super) fn update(registry: &EmbeddedRegistry, params: &Params) -> Result {
    let patch = Patch {
        weight: Some(params.weight()?.unwrap_or(crate::endpoint::Weight::ONE)),
        enabled: Some(params.enabled()?.unwrap_or(true)),
        healthy: params.flag("healthy")?,
        metadata: Some(params.metadata()?.unwrap_or_default()),
    };
    registry.patch(&params.service()?, params.target()?, &patch)?;
    Ok(answer::ok())
}

/// Only what is named changes.
pub(super) fn patch(registry: &EmbeddedRegistry, params: &Params) -> Result {
    let patch = Patch {
        weight: params.weight()?,
        enabled: params.enabled()?,
        healthy: params.flag("healthy")?,
        metadata: params.metadata()?,
    };
    registry.patch(&params.service()?, params.target()?, &patch)?;
    Ok(answer::ok())
}

pub(super) fn deregister(registry: &EmbeddedRegistry, params: &Params) -> Result {
    let ephemeral = params.flag("ephemeral")?.unwrap_or(true);
    registry.deregister(&params.service()?, params.target()?, ephemeral);
    Ok(answer::ok())
}

pub(super) fn detail(registry: &EmbeddedRegistry, params: &Params) -> Result {
    let (service, target) = (params.service()?, params.target()?);
    let found = registry.with(|table, now| {
        table
            .get(&service, target, now)
            .map(|instance| answer::detail(&service, instance))
    });
    found.ok_or_else(|| Refusal::NoInstance.into())
}

/// The body of a full beat.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Beat {
    ip: String,
    port: u16,
    #[serde(default)]
    cluster: Option<String>,
    #[serde(default)]
    weight: Option<f64>,
    #[serde(default)]
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(default)]
    ephemeral: Option<bool>,
    #[serde(default)]
    service_name: Option<String>,
}

/// A full beat registers what is unknown; a light one is told to register (20404).
pub(super) fn beat(registry: &EmbeddedRegistry, params: &Params) -> Result {
    let Some(text) = params.get("beat") else {
        let service = params.service()?;
        let (Some(ip), Some(port)) = (params.get("ip"), params.get("port")) else {
            return Ok(beaten(registry, None));
        };
        let target = Target {
            ip,
            port: params::port(port)?,
            cluster: params.cluster(),
        };
        let interval = registry.beat(&service, target);
        return Ok(beaten(registry, interval));
    };
    let beat: Beat = serde_json::from_str(text).map_err(|_| Fault::Beat)?;
    let name = params.get("serviceName").or(beat.service_name.as_deref());
    let name = name.ok_or(params::ParamError::Missing("serviceName"))?;
    let service = super::ServiceKey::new(params.get("namespaceId"), params.get("groupName"), name)?;
    let cluster = beat
        .cluster
        .as_deref()
        .filter(|name| !name.is_empty())
        .or_else(|| params.cluster());
    let target = Target {
        ip: &beat.ip,
        port: beat.port,
        cluster,
    };
    if let Some(interval) = registry.beat(&service, target) {
        return Ok(beaten(registry, Some(interval)));
    }
    let mut registration = Registration::new(InstanceKey::new(&beat.ip, beat.port, cluster)?);
    if let Some(weight) = beat.weight {
        registration.weight = params::weight(Some(weight))?;
    }
    registration.metadata = beat.metadata.map(params::metadata_of).unwrap_or_default();
    registration.ephemeral = beat.ephemeral.unwrap_or(true);
    registry.register(&service, registration)?;
    let interval = registry.beat(&service, target);
    Ok(beaten(registry, interval))
}

fn beaten(registry: &EmbeddedRegistry, interval: Option<Duration>) -> Answer {
    let code = if interval.is_some() { 10200 } else { 20404 };
    let interval = interval.unwrap_or(registry.0.beat_interval);
    let millis = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
    let body = json!({"clientBeatInterval": millis, "code": code, "lightBeatEnabled": true});
    answer::json(StatusCode::OK, &body)
}

pub(super) fn list(registry: &EmbeddedRegistry, params: &Params, caller: &Caller) -> Result {
    let service = params.service()?;
    let clusters = params.clusters()?;
    let healthy_only = params.flag("healthyOnly")?.unwrap_or(false);
    let mut list = listed(registry, &service, clusters, healthy_only);
    if let Some(address) = caller.push_address(params) {
        registry
            .0
            .pushes
            .subscribe(&service, clusters, address, registry.0.clock.now());
        list.cache_millis = PUSHED_CACHE_MILLIS;
    }
    Ok(answer::json(StatusCode::OK, &list))
}

/// What `instance/list` says of a service at present; `clusters` is a list with commas, empty: all.
pub(super) fn listed(
    registry: &EmbeddedRegistry,
    service: &super::ServiceKey,
    clusters: &str,
    healthy_only: bool,
) -> List {
    let wanted: Vec<&str> = clusters
        .split(',')
        .filter(|name| !name.is_empty())
        .collect();
    let listed = |one: &&Instance| {
        one.enabled()
            && (one.healthy() || !healthy_only)
            && (wanted.is_empty() || wanted.contains(&&*one.key().cluster))
    };
    let hosts = registry.with(|table, now| {
        let all = table.list(service, now).into_iter().flatten();
        all.filter(listed)
            .map(|one| Host::new(service, one))
            .collect()
    });
    List {
        name: service.grouped(),
        group_name: service.group.to_string(),
        clusters: clusters.to_owned(),
        cache_millis: CACHE_MILLIS,
        hosts,
        last_ref_time: answer::epoch_millis(),
        checksum: "",
        all_ips: false,
        reach_protection_threshold: false,
        valid: true,
    }
}

pub(super) fn services(registry: &EmbeddedRegistry, params: &Params) -> Result {
    let (page, size) = (params.number("pageNo")?, params.number("pageSize")?);
    let namespace = params.get("namespaceId").unwrap_or(DEFAULT_NAMESPACE);
    let names = registry.names(namespace, params.get("groupName").unwrap_or(DEFAULT_GROUP));
    let first = page.saturating_sub(1).saturating_mul(size);
    let doms: Vec<&Arc<str>> = names.iter().skip(first).take(size).collect();
    let doms: Vec<&str> = doms.into_iter().map(|name| &**name).collect();
    Ok(answer::json(
        StatusCode::OK,
        &json!({"count": names.len(), "doms": doms}),
    ))
}

pub(super) fn service(registry: &EmbeddedRegistry, params: &Params) -> Result {
    let service = params.service()?;
    let clusters = registry.with(|table, now| {
        let instances = table.list(&service, now)?;
        Some(
            instances
                .map(|one| one.key().cluster.clone())
                .collect::<std::collections::BTreeSet<_>>(),
        )
    });
    let Some(clusters) = clusters else {
        let (namespace, name) = (service.namespace.clone(), service.grouped());
        return Err(Refusal::NoService { namespace, name }.into());
    };
    let cluster = |name: &Arc<str>| json!({"name": &**name, "healthChecker": {"type": "NONE"}, "metadata": {}});
    Ok(answer::json(
        StatusCode::OK,
        &json!({
            "namespaceId": &*service.namespace,
            "groupName": &*service.group,
            "name": &*service.name,
            "protectThreshold": 0.0,
            "metadata": {},
            "selector": {"type": "none", "contextType": "NONE"},
            "clusters": clusters.iter().map(cluster).collect::<Vec<_>>(),
        }),
    ))
}
