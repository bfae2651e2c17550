//! The instance that is registered, as a value. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::Weight;

/// The instance that is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Name of the service.
    pub service: Arc<str>,
    /// `None`: the registry's.
    pub group: Option<Arc<str>>,
    /// `None`: the registry's usual one.
    pub cluster: Option<Arc<str>>,
    /// Where callers reach the app: an IP address, or a name where one is configured.
    pub address: Arc<str>,
    /// Its port.
    pub port: u16,
    /// Share of the traffic.
    pub weight: Weight,
    /// For callers.
    pub metadata: BTreeMap<String, String>,
    /// It lives by its beats; else until it is deregistered (Nacos and the embedded registry only).
    pub ephemeral: bool,
    /// Outranks what the registry asks for.
    pub heartbeat_interval: Option<Duration>,
}

impl Record {
    /// The metadata for Nacos: an interval of our own goes with the times that the registry is to
    /// wait, in Nacos's own proportion.
    pub(super) fn nacos_metadata(&self) -> BTreeMap<String, String> {
        let mut metadata = self.metadata.clone();
        let Some(interval) = self.heartbeat_interval else {
            return metadata;
        };
        let times = [
            ("preserved.heart.beat.interval", 1),
            ("preserved.heart.beat.timeout", 3),
            ("preserved.ip.delete.timeout", 6),
        ];
        for (key, factor) in times {
            let millis = interval.saturating_mul(factor).as_millis().to_string();
            metadata.entry(key.to_owned()).or_insert(millis);
        }
        metadata
    }
}
