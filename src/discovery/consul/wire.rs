//! Bodies of Consul, read tolerantly: unknown fields are ignored, missing ones take their default, an
//! instance that cannot be used is skipped and counted (G15). Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::endpoint::{Address, Endpoint, Weight};

/// An answer of `/v1/health/service/NAME`.
#[derive(Debug, Default)]
pub(super) struct Health {
    pub(super) endpoints: Vec<Endpoint>,
    /// Instances that could not be used: without a port, say.
    pub(super) skipped: usize,
    /// All that were listed, proxies of a mesh too.
    pub(super) listed: usize,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(default)]
    node: Node,
    service: Service,
    #[serde(default)]
    checks: Option<Vec<Check>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Node {
    address: Option<String>,
    datacenter: Option<String>,
    tagged_addresses: Option<BTreeMap<String, Value>>,
    meta: Option<BTreeMap<String, Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Service {
    #[serde(rename = "ID")]
    id: Option<String>,
    address: Option<String>,
    port: Value,
    tagged_addresses: Option<BTreeMap<String, Value>>,
    tags: Option<Vec<String>>,
    meta: Option<BTreeMap<String, Value>>,
    weights: Value,
    kind: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Check {
    #[serde(rename = "CheckID")]
    id: String,
    status: String,
}

/// Reads a list of instances. `tagged` is the name of the address to use where there is such a one.
pub(super) fn health(body: &[u8], tagged: Option<&str>) -> Result<Health, String> {
    let raw: Option<Vec<Value>> =
        serde_json::from_slice(body).map_err(|e| format!("unreadable list of instances: {e}"))?;
    let raw = raw.unwrap_or_default();
    let listed = raw.len();
    let mut health = Health {
        listed,
        ..Health::default()
    };
    for entry in raw {
        match serde_json::from_value::<Entry>(entry) {
            // Proxies and gateways of a mesh are not the service.
            Ok(entry) if entry.service.kind.as_ref().is_some_and(|k| !k.is_empty()) => {}
            Ok(entry) => match endpoint(entry, tagged) {
                Some(endpoint) => health.endpoints.push(endpoint),
                None => health.skipped += 1,
            },
            Err(_) => health.skipped += 1,
        }
    }
    if health.endpoints.is_empty() && health.skipped > 0 {
        let skipped = health.skipped;
        return Err(format!(
            "none of the {skipped} listed instances can be used: each needs an address and a port"
        ));
    }
    Ok(health)
}

/// Reads `/v1/catalog/services`: the names that have all `tags`.
pub(super) fn names(body: &[u8], tags: &[String]) -> Result<Vec<Arc<str>>, String> {
    let raw: BTreeMap<String, Option<Vec<String>>> =
        serde_json::from_slice(body).map_err(|e| format!("unreadable list of services: {e}"))?;
    let wanted = raw.into_iter().filter(|(_, has)| {
        tags.iter()
            .all(|tag| has.as_ref().is_some_and(|has| has.contains(tag)))
    });
    Ok(wanted.map(|(name, _)| name.into()).collect())
}

/// A server error that says that our own `filter` cannot be read.
pub(super) fn is_bad_filter(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    text.contains("boolean expression") || text.contains("filter expression")
}

fn endpoint(entry: Entry, tagged: Option<&str>) -> Option<Endpoint> {
    let Entry {
        node,
        service,
        checks,
    } = entry;
    let address = address(&node, &service, tagged)?;
    let checks = checks.unwrap_or_default();
    let critical = |check: &Check| !matches!(check.status.as_str(), "passing" | "warning");
    let in_maintenance = checks.iter().any(|check| {
        critical(check)
            && (check.id == "_node_maintenance" || check.id.starts_with("_service_maintenance"))
    });
    let warning = checks.iter().any(|check| check.status == "warning");
    let weight = |name: &str| {
        let number = service.weights.get(name).and_then(Value::as_f64);
        number.map_or(Weight::ONE, |number| Weight::from_number(number).0)
    };
    let mut endpoint = Endpoint::new(address);
    endpoint.healthy = !checks.iter().any(critical);
    endpoint.enabled = !in_maintenance;
    endpoint.weight = match warning {
        true => weight("Warning"),
        false => weight("Passing"),
    };
    endpoint.registration = service.id.filter(|id| !id.is_empty()).map(Arc::from);
    let mut metadata = texts(service.meta);
    let node_meta = texts(node.meta);
    let zone = metadata.get("zone").or_else(|| node_meta.get("zone"));
    endpoint.zone = zone
        .or(node.datacenter.as_ref())
        .filter(|zone| !zone.is_empty())
        .map(|zone| zone.as_str().into());
    if let Some(tags) = service.tags.filter(|tags| !tags.is_empty()) {
        metadata
            .entry("tags".to_owned())
            .or_insert_with(|| tags.join(","));
    }
    endpoint.metadata = Arc::new(metadata);
    Some(endpoint)
}

/// The tagged address, else the service's, else the node's; the port belongs to the service.
fn address(node: &Node, service: &Service, tagged: Option<&str>) -> Option<Address> {
    let mut port = service.port.as_u64().unwrap_or_default();
    let mut host = filled(service.address.as_deref());
    if let Some(name) = tagged {
        let of_service = service.tagged_addresses.as_ref().and_then(|t| t.get(name));
        let of_node = node.tagged_addresses.as_ref().and_then(|t| t.get(name));
        if let Some(tagged) = of_service {
            host = filled(tagged.get("Address").and_then(Value::as_str)).or(host);
            let other = tagged.get("Port").and_then(Value::as_u64);
            port = other.filter(|port| *port > 0).unwrap_or(port);
        } else if host.is_none() {
            host = filled(of_node.and_then(Value::as_str));
        }
    }
    let host = host.or_else(|| filled(node.address.as_deref()))?;
    Address::from_parts(host, u16::try_from(port).ok().filter(|port| *port > 0)?).ok()
}

fn filled(text: Option<&str>) -> Option<&str> {
    text.map(str::trim).filter(|text| !text.is_empty())
}

fn texts(pairs: Option<BTreeMap<String, Value>>) -> BTreeMap<String, String> {
    let pairs = pairs.unwrap_or_default().into_iter();
    pairs
        .filter_map(|(key, value)| match value {
            Value::String(text) => Some((key, text)),
            Value::Null => None,
            other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                Some((key, other.to_string()))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(service: &str, checks: &str) -> Endpoint {
        let body = format!(
            r#"[{{"Node":{{"Node":"n","Address":"10.1.0.1","Datacenter":"dc1","Meta":null,
            "TaggedAddresses":{{"wan":"172.16.0.1"}}}},"Service":{service},"Checks":{checks}}}]"#
        );
        health(body.as_bytes(), Some("wan"))
            .unwrap()
            .endpoints
            .remove(0)
    }

    #[test]
    fn row_24_an_empty_address_is_the_nodes_and_null_tags_are_none() {
        let body = br#"[{"Node":{"Node":"n1","Address":"10.1.0.1","Datacenter":"dc1","Meta":null},"Service":{"ID":"o1","Service":"orders","Tags":null,"Address":"","Port":8080,"Meta":null,"Weights":{"Passing":10,"Warning":1}},"Checks":[{"CheckID":"serfHealth","Status":"passing","ServiceID":""},{"CheckID":"service:o1","Status":"warning","ServiceID":"o1"}]}]"#;
        let read = health(body, None).unwrap();
        let only = &read.endpoints[0];
        assert_eq!(only.address.as_str(), "10.1.0.1:8080");
        assert_eq!(
            (only.weight, only.healthy, only.enabled),
            (Weight::ONE, true, true)
        );
        assert!(only.metadata.is_empty());
        assert_eq!(
            (only.registration.as_deref(), only.zone.as_deref()),
            (Some("o1"), Some("dc1"))
        );
    }

    #[test]
    fn checks_decide_what_an_instance_is_worth() {
        let service = r#"{"Address":"10.0.0.1","Port":1,"Weights":{"Passing":10,"Warning":2}}"#;
        let check = |id: &str, status: &str| format!(r#"{{"CheckID":"{id}","Status":"{status}"}}"#);
        for (checks, weight, healthy, enabled) in [
            (vec![], 10_000, true, true),
            (vec![check("serfHealth", "passing")], 10_000, true, true),
            (
                vec![check("a", "passing"), check("b", "warning")],
                2000,
                true,
                true,
            ),
            (vec![check("a", "critical")], 10_000, false, true),
            (vec![check("a", "who knows")], 10_000, false, true),
            (
                vec![check("_service_maintenance:o1", "critical")],
                10_000,
                false,
                false,
            ),
            (
                vec![check("_node_maintenance", "critical")],
                10_000,
                false,
                false,
            ),
        ] {
            let checks = format!("[{}]", checks.join(","));
            let endpoint = one(service, &checks);
            let seen = (
                endpoint.weight.thousandths(),
                endpoint.healthy,
                endpoint.enabled,
            );
            assert_eq!(seen, (weight, healthy, enabled), "{checks}");
        }
        assert!(one(service, "null").healthy);
    }

    #[test]
    fn addresses_tags_and_metadata() {
        let tagged = one(
            r#"{"Address":"10.0.0.1","Port":1,"TaggedAddresses":{"wan":{"Address":"1.2.3.4","Port":9}}}"#,
            "[]",
        );
        assert_eq!(tagged.address.as_str(), "1.2.3.4:9");
        let of_node = one(r#"{"Address":"","Port":1}"#, "[]");
        assert_eq!(of_node.address.as_str(), "172.16.0.1:1");
        let named = one(
            r#"{"Address":"web.test","Port":1,"Tags":["a","b=c"],"Meta":{"zone":"z","n":7,"x":null}}"#,
            "[]",
        );
        assert_eq!(named.address.as_str(), "web.test:1");
        assert_eq!(named.zone.as_deref(), Some("z"));
        let pairs: Vec<_> = named
            .metadata
            .iter()
            .map(|(k, v)| format!("{k}:{v}"))
            .collect();
        assert_eq!(pairs, ["n:7", "tags:a,b=c", "zone:z"]);
    }

    #[test]
    fn row_06_one_bad_element_does_not_spoil_the_rest_but_only_bad_ones_are_no_empty_set() {
        let body = br#"[{"Service":{"Address":"10.0.0.1","Port":1}},{"Service":{"Address":"10.0.0.2","Port":0}},
            {"Service":{"Address":"a b","Port":1}},7,{},
            {"Service":{"Address":"10.0.0.9","Port":1,"Kind":"connect-proxy"}}]"#;
        let read = health(body, None).unwrap();
        assert_eq!((read.endpoints.len(), read.skipped, read.listed), (1, 4, 6));
        assert!(health(br#"[{"Service":{"Address":"10.0.0.2"}}]"#, None).is_err());
        for bad in ["", "No cluster leader", "{}", "7"] {
            assert!(health(bad.as_bytes(), None).is_err(), "{bad}");
        }
        for empty in ["[]", "null"] {
            assert_eq!(health(empty.as_bytes(), None).unwrap().listed, 0);
        }
    }

    #[test]
    fn names_have_all_tags() {
        let body = br#"{"consul":[],"a":["x","y"],"b":["x"],"c":null}"#;
        let of = |tags: &[&str]| {
            let tags: Vec<String> = tags.iter().map(|tag| (*tag).to_owned()).collect();
            names(body, &tags).unwrap().join(" ")
        };
        assert_eq!(of(&[]), "a b c consul");
        assert_eq!(of(&["x"]), "a b");
        assert_eq!(of(&["x", "y"]), "a");
        assert!(names(b"[]", &[]).is_err());
    }
}
