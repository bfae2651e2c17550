//! Dubbo in Nacos: what services are called there, and what metadata says of an instance. Weights do
//! not warm up here: an answer may not come again for a long time.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Instance, USUAL_WEIGHT, Wanted, data_plane_word};
use crate::endpoint::{Address, Endpoint, Weight};

/// The names under which providers of one interface may be registered: `providers:I:V:G` with its
/// three colons, and the older form without empty parts. Any other name is itself.
pub fn nacos_names(name: &str) -> Vec<String> {
    let (group, bare) = match name.split_once("@@") {
        Some((group, bare)) => (Some(group), bare),
        None => (None, name),
    };
    let Some(key) = bare.strip_prefix("providers:") else {
        return vec![name.to_owned()];
    };
    let parts: Vec<&str> = key.split(':').collect();
    let part = |n: usize| parts.get(n).copied().unwrap_or_default();
    let full = format!("providers:{}:{}:{}", part(0), part(1), part(2));
    let legacy: Vec<&str> = std::iter::once("providers")
        .chain(parts.iter().copied().filter(|part| !part.is_empty()))
        .collect();
    let mut names = vec![full, legacy.join(":")];
    names.dedup();
    names
        .into_iter()
        .map(|bare| match group {
            Some(group) => format!("{group}@@{bare}"),
            None => bare,
        })
        .collect()
}

/// An instance of Nacos as Dubbo means it; one that is not Dubbo's stays as it is.
pub fn nacos_endpoint(endpoint: Endpoint) -> Endpoint {
    let metadata = &endpoint.metadata;
    let chosen = metadata
        .contains_key("dubbo.endpoints")
        .then(|| application(&endpoint))
        .flatten();
    let provider = metadata.get("category").is_some_and(|c| c == "providers")
        || metadata.get("side").is_some_and(|s| s == "provider");
    let (address, protocol) = match (chosen, provider, metadata.get("protocol")) {
        (Some((address, protocol)), _, _) => (address, protocol),
        (None, true, Some(protocol)) => (endpoint.address.clone(), protocol.clone()),
        (None, true, None) | (None, false, _) => return endpoint,
    };
    let is = |key: &str, word: &str| metadata.get(key).is_some_and(|value| value == word);
    let enabled = endpoint.enabled && !is("enabled", "false") && !is("disabled", "true");
    let weight = metadata
        .get("weight")
        .and_then(|weight| weight.trim().parse::<f64>().ok())
        // Weight 0 in Nacos is an operator's word.
        .filter(|_| !endpoint.weight.is_zero());
    #[expect(clippy::cast_precision_loss, reason = "100")]
    let weight = weight.map_or(endpoint.weight, |weight| {
        Weight::from_number(weight / USUAL_WEIGHT as f64).0
    });
    let mut changed: BTreeMap<String, String> = (**metadata).clone();
    changed.insert("protocol".to_owned(), data_plane_word(&protocol).to_owned());
    changed.insert("dubbo.protocol".to_owned(), protocol);
    Endpoint {
        address,
        weight,
        enabled,
        metadata: Arc::new(changed),
        ..endpoint
    }
}

/// The port of the protocol that fits best.
fn application(endpoint: &Endpoint) -> Option<(Address, String)> {
    let (host, _) = endpoint.address.as_str().rsplit_once(':')?;
    let ports = Instance::ports_of(&endpoint.metadata).ok()?;
    let instance = Instance {
        ports,
        ..Instance::default()
    };
    let (_, protocol, port) = instance.choose(&Wanted::default())?;
    let address = Address::from_parts(host, port).ok()?;
    Some((address, protocol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_and_without_empty_parts() {
        for (name, want) in [
            ("providers:X::", &["providers:X::", "providers:X"][..]),
            ("providers:X", &["providers:X::", "providers:X"]),
            ("providers:X:1.0:", &["providers:X:1.0:", "providers:X:1.0"]),
            ("providers:X::g", &["providers:X::g", "providers:X:g"]),
            ("providers:X:1.0:g", &["providers:X:1.0:g"]),
            ("G@@providers:X::", &["G@@providers:X::", "G@@providers:X"]),
            ("orders", &["orders"]),
            ("G@@orders", &["G@@orders"]),
        ] {
            assert_eq!(nacos_names(name), want, "{name}");
        }
    }

    fn with(metadata: &[(&str, &str)]) -> Endpoint {
        let metadata = metadata
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        nacos_endpoint(Endpoint {
            metadata: Arc::new(metadata.collect()),
            ..Endpoint::new(Address::parse("10.0.0.1:20880").unwrap())
        })
    }

    #[test]
    fn metadata_of_both_generations() {
        let url = [
            ("category", "providers"),
            ("protocol", "tri"),
            ("weight", "50"),
        ];
        let endpoint = with(&url);
        assert_eq!(endpoint.weight.thousandths(), 500);
        assert_eq!(endpoint.metadata["protocol"], "grpc");
        let ports = r#"[{"port":20880,"protocol":"dubbo"},{"port":50051,"protocol":"tri"}]"#;
        let endpoint = with(&[("dubbo.endpoints", ports)]);
        assert_eq!(endpoint.address.as_str(), "10.0.0.1:50051");
        assert_eq!(endpoint.weight, Weight::ONE);
        assert!(
            !with(&[
                ("side", "provider"),
                ("protocol", "tri"),
                ("disabled", "true")
            ])
            .enabled
        );
        // Not Dubbo's.
        let plain = with(&[("weight", "50"), ("protocol", "http2")]);
        assert_eq!(
            (plain.weight, &*plain.metadata["protocol"]),
            (Weight::ONE, "http2")
        );
    }
}
