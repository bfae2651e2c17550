//! What the registry holds, for people: all services with their instances, up to a bound. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::lease::Table;
use super::model::ServiceKey;
use super::service::Instance;
use crate::clock::Timestamp;
use crate::endpoint::Weight;

/// Instances that are listed; the others are counted.
pub const MAX_LISTED: usize = 5_000;

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Overview {
    /// In order of namespace, group and name. One without instances is known a minute longer.
    pub services: Vec<ServiceLines>,
    /// Instances of all services.
    pub instances: usize,
    /// Instances that are not listed, for there are too many.
    pub unlisted: usize,
    /// gRPC clients that are connected.
    pub clients: usize,
}

/// One service.
#[derive(Clone, Debug)]
pub struct ServiceLines {
    /// Namespace, group and name.
    pub key: ServiceKey,
    /// In order of registration.
    pub instances: Vec<Line>,
}

/// One instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// `ip:port`, as registered.
    pub address: String,
    /// Cluster.
    pub cluster: Arc<str>,
    /// Share of traffic.
    pub weight: Weight,
    /// `healthy`, `unhealthy` or `disabled`.
    pub state: &'static str,
    /// What it lives by: `beats`, `connection`, or `persistent`.
    pub lives_by: &'static str,
    /// Free metadata.
    pub metadata: Arc<BTreeMap<String, String>>,
}

impl Overview {
    pub(super) fn new(table: &mut Table, clients: usize, now: Timestamp) -> Self {
        let mut overview = Self {
            clients,
            ..Self::default()
        };
        for (key, instances) in table.services(now) {
            let mut service = ServiceLines {
                key: key.clone(),
                instances: Vec::new(),
            };
            for instance in instances {
                overview.instances = overview.instances.saturating_add(1);
                if overview.instances <= MAX_LISTED {
                    service.instances.push(Line::new(instance));
                } else {
                    overview.unlisted = overview.unlisted.saturating_add(1);
                }
            }
            overview.services.push(service);
        }
        overview
    }
}

impl Line {
    fn new(instance: &Instance) -> Self {
        let key = instance.key();
        let colon = key.ip.contains(':');
        Self {
            address: if colon {
                format!("[{}]:{}", key.ip, key.port)
            } else {
                format!("{}:{}", key.ip, key.port)
            },
            cluster: key.cluster.clone(),
            weight: instance.weight(),
            state: match (instance.enabled(), instance.healthy()) {
                (false, _) => "disabled",
                (true, true) => "healthy",
                (true, false) => "unhealthy",
            },
            lives_by: match (instance.ephemeral(), instance.holder()) {
                (false, _) => "persistent",
                (true, Some(_)) => "connection",
                (true, None) => "beats",
            },
            metadata: instance.metadata().clone(),
        }
    }
}
