//! What Nacos's v1 API is sent for an instance, and what it answers to a beat. Pure.

use std::sync::Arc;
use std::time::Duration;

use form_urlencoded::Serializer;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::types::Nacos;
use crate::protocol::nacos::message::{Instance, Naming};
use crate::registration::machine::{Outcome, Terms};
use crate::registration::record::Record;
use crate::registry::model::DEFAULT_CLUSTER;

/// What holds until the server says something else.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);
/// Codes inside an answer to a beat.
const OK: u64 = 10_200;
const UNKNOWN: u64 = 20_404;

/// Who the instance is.
#[derive(Clone, Debug)]
pub(super) struct Names {
    namespace: Arc<str>,
    group: Arc<str>,
    service: Arc<str>,
    cluster: Arc<str>,
    ip: Arc<str>,
    port: u16,
}

impl Names {
    pub(super) fn of(config: &Nacos, record: &Record) -> Self {
        Self {
            namespace: Arc::clone(&config.namespace),
            group: record
                .group
                .clone()
                .unwrap_or_else(|| Arc::clone(&config.group)),
            service: Arc::clone(&record.service),
            cluster: record
                .cluster
                .clone()
                .unwrap_or_else(|| Arc::from(DEFAULT_CLUSTER)),
            ip: Arc::clone(&record.address),
            port: record.port,
        }
    }

    fn query(&self) -> Serializer<'static, String> {
        let mut query = Serializer::new(String::new());
        query
            .append_pair("namespaceId", &self.namespace)
            .append_pair("groupName", &self.group)
            .append_pair("serviceName", &self.service)
            .append_pair("clusterName", &self.cluster)
            .append_pair("ip", &self.ip)
            .append_pair("port", &self.port.to_string());
        query
    }
}

/// The query that names the instance: of a light beat, a deregister, a look.
pub(super) fn identity(names: &Names) -> String {
    names.query().finish()
}

/// The query of a register.
pub(super) fn register(names: &Names, record: &Record, enabled: bool) -> String {
    let metadata = json!(record.nacos_metadata()).to_string();
    names
        .query()
        .append_pair("weight", &number(record).to_string())
        .append_pair("enabled", if enabled { "true" } else { "false" })
        .append_pair("healthy", "true")
        .append_pair("ephemeral", if record.ephemeral { "true" } else { "false" })
        .append_pair("metadata", &metadata)
        .finish()
}

/// The form of a full beat. The name in it is grouped: the server looks for this one.
pub(super) fn beat(names: &Names, record: &Record) -> String {
    let interval = record.heartbeat_interval.unwrap_or(INTERVAL);
    let beat = json!({
        "ip": &*names.ip,
        "port": names.port,
        "serviceName": format!("{}@@{}", names.group, names.service),
        "cluster": &*names.cluster,
        "weight": number(record),
        "metadata": record.nacos_metadata(),
        "ephemeral": record.ephemeral,
        "scheduled": false,
        "period": u64::try_from(interval.as_millis()).unwrap_or(u64::MAX),
        "stopped": false,
    });
    let mut form = Serializer::new(String::new());
    form.append_pair("beat", &beat.to_string());
    form.finish()
}

/// A request by gRPC about its service.
pub(super) fn named(names: &Names) -> Naming {
    Naming {
        namespace: Some(names.namespace.to_string()),
        group_name: Some(names.group.to_string()),
        service_name: Some(names.service.to_string()),
        ..Naming::default()
    }
}

/// The instance of a request by gRPC.
pub(super) fn instance(names: &Names, record: &Record, enabled: bool) -> Instance {
    let metadata = record.nacos_metadata().into_iter();
    Instance {
        ip: Some(names.ip.to_string()),
        port: Some(names.port.into()),
        weight: Some(number(record)),
        healthy: Some(true),
        enabled: Some(enabled),
        ephemeral: Some(record.ephemeral),
        cluster_name: Some(names.cluster.to_string()),
        metadata: Some(metadata.map(|(key, value)| (key, value.into())).collect()),
    }
}

/// Whether a host of a list is the instance.
pub(super) fn is_ours(names: &Names, host: &Value) -> bool {
    let ip = host.get("ip").and_then(Value::as_str);
    let port = host.get("port").and_then(Value::as_u64);
    ip == Some(&*names.ip) && port == Some(names.port.into())
}

fn number(record: &Record) -> f64 {
    f64::from(record.weight.thousandths()) / 1000.0
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Beaten {
    /// Missing in answers of the first releases, which knew no light beat.
    #[serde(default)]
    code: Option<u64>,
    #[serde(default)]
    client_beat_interval: Option<u64>,
    #[serde(default)]
    light_beat_enabled: Option<bool>,
}

/// What the answer to a beat says.
pub(super) fn beaten(body: &[u8]) -> Outcome {
    let beaten: Beaten = match serde_json::from_slice(body) {
        Ok(beaten) => beaten,
        Err(error) => return Outcome::Failed(format!("unreadable answer to a beat: {error}")),
    };
    match beaten.code {
        Some(OK) | None => Outcome::Accepted(Terms {
            interval: beaten
                .client_beat_interval
                .filter(|millis| *millis > 0)
                .map(Duration::from_millis),
            light: Some(beaten.light_beat_enabled.unwrap_or(false)),
        }),
        Some(UNKNOWN) => Outcome::Missing,
        Some(code) => Outcome::Failed(format!("the beat was answered with code {code}")),
    }
}

/// Whether an error text says that the instance is not there.
pub(super) fn is_missing(text: &str) -> bool {
    ["no matched ip found", "no ips found", "not found"]
        .iter()
        .any(|part| text.contains(part))
}
