//! Bodies of Nacos, read tolerantly: unknown fields are ignored, missing ones take their default, an
//! element that cannot be used is skipped and counted (G15). No content type is looked at. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::endpoint::{Address, Endpoint, Weight};

/// An `instance/list` answer.
#[derive(Debug, Default)]
pub(super) struct List {
    pub(super) endpoints: Vec<Endpoint>,
    /// The server forges health flags at the moment.
    pub(super) protected: bool,
    /// How long it may be kept.
    pub(super) cache: Option<Duration>,
    /// Elements that could not be used.
    pub(super) skipped: usize,
}

/// A page of `service/list`.
#[derive(Debug, Deserialize)]
pub(super) struct Names {
    #[serde(default)]
    pub(super) count: usize,
    #[serde(default)]
    pub(super) doms: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawList {
    /// Absent for an unknown service of 1.x; but then there is a `name`.
    hosts: Option<Vec<Value>>,
    name: Option<String>,
    dom: Option<String>,
    #[serde(default)]
    cache_millis: Value,
    #[serde(default)]
    reach_protection_threshold: Value,
}

/// Reads an answer of `instance/list`.
pub(super) fn list(body: &[u8]) -> Result<List, String> {
    let raw = serde_json::from_slice(body).map_err(|e| format!("unreadable list: {e}"))?;
    read(raw)
}

/// Reads the `serviceInfo` of a gRPC message; null is no empty list.
pub(super) fn info(value: Value) -> Result<List, String> {
    let raw = serde_json::from_value(value).map_err(|e| format!("unreadable list: {e}"))?;
    read(raw)
}

fn read(raw: RawList) -> Result<List, String> {
    if raw.hosts.is_none() && raw.name.is_none() && raw.dom.is_none() {
        return Err("unreadable list: no hosts and no name".to_owned());
    }
    let hosts = raw.hosts.unwrap_or_default();
    let total = hosts.len();
    let endpoints: Vec<Endpoint> = hosts.iter().filter_map(endpoint).collect();
    let skipped = total.saturating_sub(endpoints.len());
    if endpoints.is_empty() && skipped > 0 {
        return Err(format!(
            "unreadable list: none of its {skipped} hosts can be used"
        ));
    }
    Ok(List {
        endpoints,
        protected: raw.reach_protection_threshold.as_bool().unwrap_or(false),
        cache: raw.cache_millis.as_u64().map(Duration::from_millis),
        skipped,
    })
}

/// Reads a page of names.
pub(super) fn names(body: &[u8]) -> Result<Names, String> {
    serde_json::from_slice(body).map_err(|e| format!("unreadable list of services: {e}"))
}

fn endpoint(host: &Value) -> Option<Endpoint> {
    let text = |name: &str| host.get(name).and_then(Value::as_str);
    let flag = |name: &str| host.get(name).and_then(Value::as_bool);
    let port = host.get("port")?;
    let port = port
        .as_u64()
        .or_else(|| port.as_str()?.trim().parse().ok())?;
    let address = Address::from_parts(text("ip")?.trim(), u16::try_from(port).ok()?).ok()?;
    let mut endpoint = Endpoint::new(address);
    endpoint.weight = match host.get("weight") {
        None | Some(Value::Null) => Weight::ONE,
        Some(Value::String(text)) => Weight::from_number(text.trim().parse().ok()?).0,
        Some(number) => Weight::from_number(number.as_f64()?).0,
    };
    // `valid` is the name of 1.x.
    endpoint.healthy = flag("healthy").or_else(|| flag("valid")).unwrap_or(true);
    endpoint.enabled = flag("enabled").unwrap_or(true);
    endpoint.registration = text("instanceId").map(Arc::from);
    endpoint.cluster = text("clusterName").map(Arc::from);
    let metadata: BTreeMap<String, String> = match host.get("metadata") {
        Some(Value::Object(pairs)) => pairs
            .iter()
            .filter(|(_, v)| !v.is_null())
            .map(|(k, v)| (k.clone(), plain(v)))
            .collect(),
        _ => BTreeMap::new(),
    };
    endpoint.zone = metadata.get("zone").map(|zone| zone.as_str().into());
    endpoint.metadata = Arc::new(metadata);
    Some(endpoint)
}

fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_servers_of_all_generations_send() {
        let body = r#"{"name":"g@@s","groupName":"g","cacheMillis":10000,"hosts":[
            {"ip":"10.0.0.1","port":80,"weight":2.5,"healthy":false,"enabled":true,"ephemeral":true,
             "clusterName":"c","instanceId":"i","metadata":{"zone":"a","n":1,"x":null},"marked":true},
            {"ip":"10.0.0.2","port":"81","valid":true,"metadata":null,"instanceId":null},
            {"ip":"::1","port":82,"weight":-1}
        ],"checksum":"","allIPs":false,"reachProtectionThreshold":true,"valid":true}"#;
        let all = list(body.as_bytes()).unwrap();
        assert!(all.protected);
        assert_eq!((all.cache, all.skipped), (Some(Duration::from_secs(10)), 0));
        let first = &all.endpoints[0];
        assert_eq!(first.weight.thousandths(), 2500);
        assert!(!first.healthy);
        assert_eq!(first.zone.as_deref(), Some("a"));
        assert_eq!(first.metadata.get("n").map(String::as_str), Some("1"));
        assert!(all.endpoints[1].healthy);
        assert!(all.endpoints[2].weight.is_zero());
        assert_eq!(all.endpoints[2].address.as_str(), "[::1]:82");
    }

    #[test]
    fn an_unknown_service_is_empty_and_rubbish_is_an_error() {
        for empty in [
            r#"{"name":"s","hosts":[]}"#,
            r#"{"name":"s","clusters":"","hosts":null}"#,
        ] {
            assert!(
                list(empty.as_bytes()).unwrap().endpoints.is_empty(),
                "{empty}"
            );
        }
        for bad in [
            "",
            "ok",
            "{}",
            "[]",
            "<html>",
            r#"{"name":"s","hosts":7}"#,
            r#"{"status":500}"#,
        ] {
            assert!(list(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn one_bad_element_does_not_spoil_the_rest_but_only_bad_ones_are_no_empty_set() {
        let body = r#"{"name":"s","hosts":[{"ip":"10.0.0.1","port":80},{"ip":"10.0.0.2"},7,
            {"ip":"a b","port":1},{"ip":"10.0.0.3","port":0},{"ip":"10.0.0.4","port":80,"weight":"x"}]}"#;
        let read = list(body.as_bytes()).unwrap();
        assert_eq!((read.endpoints.len(), read.skipped), (1, 5));
        assert!(list(br#"{"name":"s","hosts":[{"ip":"10.0.0.2"}]}"#).is_err());
    }
}
