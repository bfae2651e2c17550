//! What Consul's agent is sent for a service, and which services of its answer are leftovers of
//! ours. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::json;

use crate::registration::record::Record;

/// A shorter TTL is missed by an agent that is busy for some seconds.
const LEAST_TTL: Duration = Duration::from_secs(15);
/// The agent takes nothing shorter.
const LEAST_REMOVAL: Duration = Duration::from_secs(60);
/// The key of the metadata that says whose the service is.
const OWNER: &str = "owner";

const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':');

/// Text as one segment of a path.
pub(super) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// One of a kind at the agent, and the same after a restart.
pub(super) fn id(record: &Record) -> String {
    format!("{}-{}-{}", record.service, record.address, record.port)
}

/// The check of a service as a segment of a path.
pub(super) fn check_segment(id: &str) -> String {
    segment(&format!("service:{id}"))
}

/// The body of a register.
pub(super) fn service(record: &Record, owner: &str, interval: Duration) -> Vec<u8> {
    let id = id(record);
    let ttl = interval.saturating_mul(3).max(LEAST_TTL);
    let removal = ttl.saturating_mul(4).max(LEAST_REMOVAL);
    let mut meta: BTreeMap<&str, &str> = record
        .metadata
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    meta.entry(OWNER).or_insert(owner);
    // Whole numbers from 1 on; the configuration was checked for it.
    let weight = record.weight.thousandths().div_ceil(1000).max(1);
    let body = json!({
        "ID": id,
        "Name": &*record.service,
        "Address": &*record.address,
        "Port": record.port,
        "Meta": meta,
        "Weights": {"Passing": weight, "Warning": 1},
        "Check": {
            "CheckID": format!("service:{id}"),
            "Name": "heartbeat of the sidecar",
            "TTL": format!("{}s", ttl.as_secs()),
            "Status": "passing",
            "DeregisterCriticalServiceAfter": format!("{}s", removal.as_secs()),
        },
    });
    body.to_string().into_bytes()
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Health {
    #[serde(default)]
    aggregated_status: String,
    service: Service,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Service {
    #[serde(rename = "ID")]
    id: String,
    #[serde(default)]
    address: String,
    #[serde(default)]
    meta: Option<BTreeMap<String, String>>,
}

/// The ids of services that are ours, at our address, and beaten by nobody.
pub(super) fn leftovers(body: &[u8], record: &Record, owner: &str) -> Vec<String> {
    let own = id(record);
    let all: Vec<serde_json::Value> = serde_json::from_slice(body).unwrap_or_default();
    all.into_iter()
        .filter_map(|one| serde_json::from_value::<Health>(one).ok())
        .filter(|one| one.aggregated_status == "critical" && one.service.id != own)
        .filter(|one| *one.service.address == *record.address)
        .filter(|one| {
            let meta = one.service.meta.as_ref();
            meta.and_then(|meta| meta.get(OWNER)).map(String::as_str) == Some(owner)
        })
        .map(|one| one.service.id)
        .collect()
}
