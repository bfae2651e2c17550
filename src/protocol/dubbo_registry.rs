//! What Dubbo writes into a registry, read into endpoints: provider URLs (one per interface and
//! instance), application instances, configurators. The same in ZooKeeper and Nacos; which of them
//! is read where is decided by the sources. Pure: the time comes in as milliseconds of the epoch.

mod instance;
mod nacos;
mod url;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use instance::{Instance, InstanceError};
pub use nacos::{nacos_endpoint, nacos_names};
pub use url::{Override, Provider};

use crate::endpoint::{Address, Endpoint, Weight};

/// A provider's weight where it names none; it is our weight 1.
const USUAL_WEIGHT: u64 = 100;
/// How long a JVM warms up where it does not say.
const USUAL_WARMUP_MS: u64 = 600_000;

/// Protocols in the order in which one of an instance is chosen.
const PREFERRED: [&str; 6] = ["tri", "grpc", "rest", "http", "https", "dubbo"];

/// What a service means in Dubbo: `[GROUP/]INTERFACE[:VERSION][?protocol=P]`. An absent group or
/// version matches providers without one, `*` any; a group may be several, with commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The Java interface, or an application.
    pub interface: String,
    /// Empty: none.
    pub group: String,
    /// Empty: none.
    pub version: String,
    /// Only endpoints of this protocol.
    pub protocol: Option<String>,
}

impl Wanted {
    /// Reads a `registry_name`; `group` is that of the service, where it has one.
    pub fn parse(name: &str, group: Option<&str>) -> Self {
        let (key, query) = name.split_once('?').unwrap_or((name, ""));
        let (in_name, key) = match key.rsplit_once('/') {
            Some((group, key)) => (Some(group), key),
            None => (None, key),
        };
        let (interface, version) = key.split_once(':').unwrap_or((key, ""));
        let protocol = form_urlencoded::parse(query.as_bytes())
            .find(|(key, _)| key == "protocol")
            .map(|(_, value)| value.into_owned());
        Self {
            interface: interface.to_owned(),
            group: in_name.or(group).unwrap_or_default().to_owned(),
            version: version.to_owned(),
            protocol,
        }
    }

    /// Whether a provider is of this interface, version and group.
    pub fn matches(&self, provider: &Provider) -> bool {
        let interface = provider.param("interface");
        let interface = if interface.is_empty() {
            provider.path.rsplit('/').next().unwrap_or_default()
        } else {
            interface
        };
        let one_of =
            |wanted: &str, is: &str| wanted == "*" || wanted.split(',').any(|w| w.trim() == is);
        let version = match provider.param("version") {
            "0.0.0" => "",
            version => version,
        };
        interface == self.interface
            && one_of(&self.group, provider.param("group"))
            && one_of(&self.version, version)
    }

    /// How well a protocol fits, the least best; `None`: not at all.
    fn rank(&self, protocol: &str) -> Option<usize> {
        match &self.protocol {
            Some(only) => (only == protocol).then_some(0),
            None => Some(
                PREFERRED
                    .iter()
                    .position(|p| *p == protocol)
                    .unwrap_or(PREFERRED.len()),
            ),
        }
    }
}

/// Endpoints as they are now.
#[derive(Clone, Debug, Default)]
pub struct Mapped {
    /// In the order of the registry.
    pub endpoints: Vec<Endpoint>,
    /// Whether weights grow with time: map again soon.
    pub warming: bool,
    /// Entries that could not be used.
    pub skipped: usize,
    /// Providers of the interface, but of other versions, groups or protocols: `group/version`.
    pub others: Vec<String>,
}

/// The endpoints that `wanted` means, out of provider URLs and application instances. Of two with one
/// address the application's counts; of several protocols on one host the best one.
pub fn map(
    wanted: &Wanted,
    providers: &[Provider],
    overrides: &[Override],
    instances: &[Instance],
    now_ms: u64,
) -> Mapped {
    let mut mapped = Mapped::default();
    let mut ranked: Vec<(usize, String, Endpoint)> = Vec::new();
    for instance in instances {
        let Some((rank, protocol, port)) = instance.choose(wanted) else {
            mapped.others.push("another protocol".to_owned());
            continue;
        };
        let Ok(address) = Address::from_parts(&instance.address, port) else {
            mapped.skipped += 1;
            continue;
        };
        let params = &instance.metadata;
        let (endpoint, warming) = endpoint(address, &protocol, params, &BTreeMap::new(), now_ms);
        mapped.warming |= warming;
        let endpoint = Endpoint {
            registration: Some(instance.id.as_str().into()),
            enabled: endpoint.enabled && instance.enabled,
            ..endpoint
        };
        ranked.push((rank, instance.address.clone(), endpoint));
    }
    for provider in providers {
        if !wanted.matches(provider) {
            mapped.others.push(provider.key());
            continue;
        }
        let chosen = provider
            .protocols()
            .filter_map(|p| Some((wanted.rank(p)?, p)))
            .min();
        let Some((rank, protocol)) = chosen else {
            mapped.others.push(provider.key());
            continue;
        };
        let Ok(address) = Address::from_parts(&provider.host, provider.port) else {
            mapped.skipped += 1;
            continue;
        };
        if ranked.iter().any(|(_, _, known)| known.address == address) {
            continue;
        }
        let changed = url::overridden(provider, overrides);
        let (endpoint, warming) = endpoint(address, protocol, &provider.params, &changed, now_ms);
        mapped.warming |= warming;
        ranked.push((rank, provider.host.clone(), endpoint));
    }
    let mut best: BTreeMap<String, usize> = BTreeMap::new();
    for (rank, host, _) in &ranked {
        let slot = best.entry(host.clone()).or_insert(*rank);
        *slot = (*slot).min(*rank);
    }
    mapped.endpoints = ranked
        .into_iter()
        .filter(|(rank, host, _)| best.get(host) == Some(rank))
        .map(|(_, _, endpoint)| endpoint)
        .collect();
    mapped.others.sort();
    mapped.others.dedup();
    mapped
}

/// One endpoint, and whether its weight still grows.
fn endpoint(
    address: Address,
    protocol: &str,
    params: &BTreeMap<String, String>,
    changed: &BTreeMap<String, String>,
    now_ms: u64,
) -> (Endpoint, bool) {
    let param = |key: &str| changed.get(key).or_else(|| params.get(key));
    let is = |key: &str, word: &str| param(key).is_some_and(|value| value == word);
    let number = |key: &str| param(key).and_then(|value| value.trim().parse::<i64>().ok());
    let weight = match number("weight") {
        Some(weight) => u64::try_from(weight).unwrap_or(0),
        None => USUAL_WEIGHT,
    };
    let started = number("timestamp").and_then(|at| u64::try_from(at).ok());
    let warmup = number("warmup").map_or(USUAL_WARMUP_MS, |w| u64::try_from(w).unwrap_or(0));
    let effective = effective_weight(weight, started, warmup, now_ms);
    let mut metadata: BTreeMap<String, String> = params
        .iter()
        .filter(|(_, value)| value.len() <= 1024)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    // The word that the data plane knows; Dubbo's own stays beside it.
    metadata.insert("dubbo.protocol".to_owned(), protocol.to_owned());
    metadata.insert("protocol".to_owned(), data_plane_word(protocol).to_owned());
    #[expect(clippy::cast_precision_loss, reason = "weights are small numbers")]
    let share = effective as f64 / USUAL_WEIGHT as f64;
    let endpoint = Endpoint {
        weight: Weight::from_number(share).0,
        enabled: !is("enabled", "false") && !is("disabled", "true"),
        incarnation: param("timestamp").map(|at| Arc::from(at.as_str())),
        zone: param("zone").map(|zone| Arc::from(zone.as_str())),
        metadata: Arc::new(metadata),
        ..Endpoint::new(address)
    };
    (endpoint, effective != weight)
}

/// A protocol of Dubbo in the word that is a hint for the data plane.
fn data_plane_word(protocol: &str) -> &str {
    match protocol {
        "tri" => "grpc",
        "rest" | "http" => "http1",
        other => other,
    }
}

/// A cold JVM gets a growing share: weight x uptime / warm-up, at least 1.
fn effective_weight(weight: u64, started_ms: Option<u64>, warmup_ms: u64, now_ms: u64) -> u64 {
    let Some(started) = started_ms.filter(|at| *at > 0 && weight > 0) else {
        return weight;
    };
    let Some(uptime) = now_ms.checked_sub(started) else {
        return 1;
    };
    if uptime >= warmup_ms {
        return weight;
    }
    (u128::from(weight) * u128::from(uptime) / u128::from(warmup_ms))
        .try_into()
        .unwrap_or(weight)
        .clamp(1, weight)
}

#[cfg(test)]
mod tests;
