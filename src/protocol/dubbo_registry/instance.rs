//! Application instances: Curator's service discovery JSON in ZooKeeper.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::Wanted;

/// One instance of an application.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    /// The registry's own.
    pub id: String,
    /// An address or a name.
    pub address: String,
    /// False: taken out.
    pub enabled: bool,
    /// Protocols and their ports; an instance that is not Dubbo's has one without a protocol.
    pub ports: Vec<(String, u16)>,
    /// As registered.
    pub metadata: BTreeMap<String, String>,
}

/// Why an instance cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InstanceError {
    /// No JSON of this form.
    #[error("not an instance")]
    Malformed,
    /// Dubbo registers an instance before it says what it offers.
    #[error("no `dubbo.endpoints`")]
    NoEndpoints,
}

#[derive(Deserialize)]
struct Node {
    #[serde(default)]
    id: String,
    #[serde(default)]
    address: String,
    #[serde(default)]
    port: Option<u16>,
    #[serde(default)]
    payload: Value,
    #[serde(default)]
    enabled: Option<bool>,
}

#[derive(Deserialize)]
struct Port {
    port: u16,
    #[serde(default)]
    protocol: String,
}

impl Instance {
    /// From what a node holds.
    ///
    /// # Errors
    /// [`InstanceError`] tells why it cannot be used.
    pub fn from_node(data: &[u8]) -> Result<Self, InstanceError> {
        let node: Node = serde_json::from_slice(data).map_err(|_| InstanceError::Malformed)?;
        if node.address.is_empty() {
            return Err(InstanceError::Malformed);
        }
        let metadata = match node.payload.get("metadata") {
            Some(Value::Object(entries)) => entries
                .iter()
                .filter_map(|(key, value)| Some((key.clone(), text(value)?)))
                .collect(),
            Some(_) | None => BTreeMap::new(),
        };
        let class = node.payload.get("@class").and_then(Value::as_str);
        let dubbo = class.is_some_and(|c| c.contains("dubbo"))
            || metadata.keys().any(|key| key.starts_with("dubbo."));
        let ports = if dubbo {
            Self::ports_of(&metadata)?
        } else {
            let port = node.port.filter(|port| *port > 0);
            vec![(String::new(), port.ok_or(InstanceError::Malformed)?)]
        };
        Ok(Self {
            id: node.id,
            address: node.address,
            enabled: node.enabled.unwrap_or(true),
            ports,
            metadata,
        })
    }

    /// `dubbo.endpoints`: `[{"port":20880,"protocol":"dubbo"}]`, a text of JSON.
    pub(super) fn ports_of(
        metadata: &BTreeMap<String, String>,
    ) -> Result<Vec<(String, u16)>, InstanceError> {
        let listed = metadata.get("dubbo.endpoints");
        let listed = listed.ok_or(InstanceError::NoEndpoints)?;
        let ports: Vec<Port> =
            serde_json::from_str(listed).map_err(|_| InstanceError::Malformed)?;
        let ports: Vec<(String, u16)> = ports
            .into_iter()
            .filter(|p| p.port > 0)
            .map(|p| (p.protocol, p.port))
            .collect();
        if ports.is_empty() {
            return Err(InstanceError::NoEndpoints);
        }
        Ok(ports)
    }

    /// The protocol and port that fit best, with their rank.
    pub(super) fn choose(&self, wanted: &Wanted) -> Option<(usize, String, u16)> {
        let ranked = self.ports.iter().filter_map(|(protocol, port)| {
            let rank = wanted.rank(if protocol.is_empty() {
                "http"
            } else {
                protocol
            })?;
            Some((rank, protocol.clone(), *port))
        });
        ranked.min()
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
