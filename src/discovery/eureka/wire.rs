//! Bodies of Eureka, read tolerantly: one or many, numbers as texts, both spellings. Unknown fields
//! are ignored, missing ones take their default, what cannot be used is counted (G15). Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::endpoint::{Address, Endpoint, Weight};

/// The ports of an instance that says none.
const PORT: u16 = 7001;
const SECURE_PORT: u16 = 7002;

/// How an instance is connected to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// By `ipAddr`, not by `hostName`.
    pub(super) prefer_ip: bool,
    /// By the secure port.
    pub(super) secure: bool,
}

/// What a delta says of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Put,
    Delete,
}

/// One instance, of whatever status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instance {
    /// Upper case.
    pub(super) app: Arc<str>,
    pub(super) id: Arc<str>,
    /// Upper case, as it goes into the hash.
    pub(super) status: Arc<str>,
    /// The version of the record.
    pub(super) dirty: u64,
    pub(super) action: Action,
    /// `None`: without an address or a port of the wanted kind.
    pub(super) endpoint: Option<Endpoint>,
}

/// `{"applications": ...}`.
#[derive(Clone, Debug, Default)]
pub(super) struct Applications {
    pub(super) instances: Vec<Instance>,
    /// `apps__hashcode`.
    pub(super) hash: String,
    /// Elements without a name or an id.
    pub(super) skipped: usize,
}

/// Reads a whole registry or a delta.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn applications(body: &[u8], choice: Choice) -> Result<Applications, String> {
    let root = json(body)?;
    let Some(Value::Object(found)) = root.get("applications") else {
        return Err("an answer without `applications`".to_owned());
    };
    let hash = found.get("apps__hashcode").and_then(text);
    let mut all = Applications {
        hash: hash.unwrap_or_default(),
        ..Applications::default()
    };
    for app in many(found.get("application")) {
        application_into(app, choice, &mut all);
    }
    Ok(all)
}

/// Reads one application.
///
/// # Errors
/// What is wrong, for people.
pub(super) fn application(body: &[u8], choice: Choice) -> Result<Applications, String> {
    let root = json(body)?;
    let Some(app @ Value::Object(_)) = root.get("application") else {
        return Err("an answer without `application`".to_owned());
    };
    let mut all = Applications::default();
    application_into(app, choice, &mut all);
    Ok(all)
}

fn json(body: &[u8]) -> Result<Value, String> {
    if body.trim_ascii_start().first() == Some(&b'<') {
        return Err("the answer is XML or HTML, not JSON: is it a Eureka server?".to_owned());
    }
    let mut parser = serde_json::Deserializer::from_slice(body);
    Value::deserialize(&mut parser).map_err(|error| format!("not JSON: {error}"))
}

fn application_into(app: &Value, choice: Choice, all: &mut Applications) {
    let name = app.get("name").and_then(text).unwrap_or_default();
    for instance in many(app.get("instance")) {
        match instance.as_object().and_then(|i| read(i, &name, choice)) {
            Some(instance) => all.instances.push(instance),
            None => all.skipped += 1,
        }
    }
}

fn read(fields: &Map<String, Value>, app: &str, choice: Choice) -> Option<Instance> {
    let field = |key: &str| fields.get(key).and_then(text).filter(|t| !t.is_empty());
    let app = field("app").unwrap_or_else(|| app.to_owned());
    let host = field("hostName");
    // Very old servers have no ids.
    let id = field("instanceId").or_else(|| host.clone())?;
    if app.is_empty() {
        return None;
    }
    let known = |status: Option<String>| status.map(|s| s.to_ascii_uppercase());
    let status = known(field("status")).unwrap_or_else(|| "UNKNOWN".to_owned());
    let over = known(field("overriddenStatus").or_else(|| field("overriddenstatus")));
    let over = over.filter(|status| status != "UNKNOWN");
    let metadata = metadata(fields.get("metadata"));
    let ip = field("ipAddr");
    let (first, second) = if choice.prefer_ip {
        (ip, host)
    } else {
        (host, ip)
    };
    let port = port(fields, choice.secure);
    let address = [first, second]
        .into_iter()
        .flatten()
        .find_map(|host| Address::from_parts(&host, port?).ok());
    let endpoint = address.map(|address| {
        let effective = over.as_deref().unwrap_or(&status);
        let weight = metadata.get("weight").and_then(|w| w.trim().parse().ok());
        Endpoint {
            weight: weight.map_or(Weight::ONE, |w: f64| Weight::from_number(w).0),
            healthy: effective == "UP",
            // An operator's word.
            enabled: effective != "OUT_OF_SERVICE",
            registration: Some(id.as_str().into()),
            zone: zone(fields, &metadata),
            metadata: Arc::new(metadata),
            ..Endpoint::new(address)
        }
    });
    let deleted = field("actionType").is_some_and(|a| a.eq_ignore_ascii_case("DELETED"));
    Some(Instance {
        app: app.to_ascii_uppercase().into(),
        id: id.into(),
        status: status.into(),
        dirty: fields
            .get("lastDirtyTimestamp")
            .and_then(number)
            .unwrap_or(0),
        action: if deleted { Action::Delete } else { Action::Put },
        endpoint,
    })
}

/// The wanted port, when it is switched on.
fn port(fields: &Map<String, Value>, secure: bool) -> Option<u16> {
    let (key, port, on) = if secure {
        ("securePort", SECURE_PORT, false)
    } else {
        ("port", PORT, true)
    };
    let (number_of, on) = match fields.get(key) {
        None | Some(Value::Null) => (Some(u64::from(port)), on),
        Some(Value::Object(port_fields)) => {
            let on = match port_fields.get("@enabled") {
                Some(Value::Bool(on)) => *on,
                Some(Value::String(on)) => on.eq_ignore_ascii_case("true"),
                Some(_) | None => on,
            };
            let value = port_fields.get("$");
            (value.map_or_else(|| Some(u64::from(port)), number), on)
        }
        // A bare number is meant to be used.
        Some(bare) => (number(bare), true),
    };
    number_of
        .filter(|_| on)
        .and_then(|n| u16::try_from(n).ok())
        .filter(|n| *n > 0)
}

fn metadata(value: Option<&Value>) -> BTreeMap<String, String> {
    let entries = value.and_then(Value::as_object);
    entries
        .into_iter()
        .flatten()
        .filter(|(key, _)| !key.starts_with('@'))
        .filter_map(|(key, value)| Some((key.clone(), text(value)?)))
        .collect()
}

fn zone(fields: &Map<String, Value>, metadata: &BTreeMap<String, String>) -> Option<Arc<str>> {
    let amazon = fields
        .get("dataCenterInfo")
        .and_then(|info| info.get("metadata")?.get("availability-zone"));
    let zone = metadata.get("zone").cloned();
    zone.or_else(|| amazon.and_then(text)).map(Arc::from)
}

/// One bare value, an array, or nothing.
fn many(value: Option<&Value>) -> &[Value] {
    match value {
        Some(Value::Array(values)) => values,
        Some(Value::Null) | None => &[],
        Some(one) => std::slice::from_ref(one),
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(on) => Some(on.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICE: Choice = Choice {
        prefer_ip: true,
        secure: false,
    };

    fn one(instance: &str) -> Instance {
        let body = format!(r#"{{"application":{{"name":"A","instance":{instance}}}}}"#);
        let mut all = application(body.as_bytes(), CHOICE).unwrap();
        assert_eq!((all.instances.len(), all.skipped), (1, 0), "{body}");
        all.instances.remove(0)
    }

    fn address(instance: &Instance) -> Option<&str> {
        instance.endpoint.as_ref().map(|e| e.address.as_str())
    }

    #[test]
    fn row_16_quirks_together() {
        let body = br#"{"applications":{"versions__delta":"1","apps__hashcode":"UP_1_","application":{"name":"ORDERS",
            "instance":{"instanceId":"a","app":"ORDERS","ipAddr":"10.0.0.1","hostName":"h","status":"UP",
            "overriddenstatus":"UNKNOWN","port":{"$":"8080","@enabled":true},"securePort":{"@enabled":"false","$":"443"},
            "metadata":{"@class":"java.util.Collections$EmptyMap"},"lastDirtyTimestamp":1700000000000,"actionType":"ADDED"}}}}"#;
        let all = applications(body, CHOICE).unwrap();
        assert_eq!((all.hash.as_str(), all.instances.len()), ("UP_1_", 1));
        let instance = &all.instances[0];
        assert_eq!(address(instance), Some("10.0.0.1:8080"));
        assert_eq!((&*instance.app, &*instance.id), ("ORDERS", "a"));
        assert_eq!(instance.dirty, 1_700_000_000_000);
        let endpoint = instance.endpoint.as_ref().unwrap();
        assert!(endpoint.metadata.is_empty() && endpoint.healthy && endpoint.enabled);
    }

    #[test]
    fn row_16_both_spellings_of_the_override_and_statuses() {
        for (fields, healthy, enabled, hashed) in [
            (r#""status":"UP""#, true, true, "UP"),
            (r#""status":"up""#, true, true, "UP"),
            (r#""status":"DOWN""#, false, true, "DOWN"),
            (r#""status":"STARTING""#, false, true, "STARTING"),
            (r#""status":"odd""#, false, true, "ODD"),
            (r#""hostName":"h""#, false, true, "UNKNOWN"),
            (
                r#""status":"OUT_OF_SERVICE""#,
                false,
                false,
                "OUT_OF_SERVICE",
            ),
            (
                r#""status":"UP","overriddenstatus":"OUT_OF_SERVICE""#,
                false,
                false,
                "UP",
            ),
            (
                r#""status":"UP","overriddenStatus":"DOWN""#,
                false,
                true,
                "UP",
            ),
            (
                r#""status":"UP","overriddenStatus":"UNKNOWN""#,
                true,
                true,
                "UP",
            ),
        ] {
            let instance = one(&format!(
                r#"{{"instanceId":"i","ipAddr":"10.0.0.1",{fields}}}"#
            ));
            let endpoint = instance.endpoint.unwrap();
            assert_eq!(
                (endpoint.healthy, endpoint.enabled),
                (healthy, enabled),
                "{fields}"
            );
            assert_eq!(&*instance.status, hashed, "{fields}");
            assert_eq!(endpoint.address.as_str(), "10.0.0.1:7001");
        }
    }

    #[test]
    fn ports_and_hosts() {
        let read = |fields: &str, choice: Choice| {
            let body = format!(
                r#"{{"application":{{"name":"a","instance":[{{"hostName":"h","ipAddr":"10.0.0.1",{fields}}}]}}}}"#
            );
            let all = application(body.as_bytes(), choice).unwrap();
            address(&all.instances[0]).map(str::to_owned)
        };
        let both = r#""port":{"$":80,"@enabled":"true"},"securePort":{"$":443,"@enabled":"true"}"#;
        let secure = Choice {
            secure: true,
            ..CHOICE
        };
        let by_name = Choice {
            prefer_ip: false,
            ..CHOICE
        };
        assert_eq!(read(both, CHOICE).as_deref(), Some("10.0.0.1:80"));
        assert_eq!(read(both, secure).as_deref(), Some("10.0.0.1:443"));
        assert_eq!(read(both, by_name).as_deref(), Some("h:80"));
        assert_eq!(
            read(r#""port":8080"#, CHOICE).as_deref(),
            Some("10.0.0.1:8080")
        );
        assert_eq!(read(r#""port":{"$":80,"@enabled":"false"}"#, CHOICE), None);
        assert_eq!(read(r#""port":{"$":80,"@enabled":"true"}"#, secure), None);
        assert_eq!(read(r#""port":{"$":0}"#, CHOICE), None);
    }

    #[test]
    fn odd_answers() {
        for bad in [
            "",
            "null",
            "[]",
            "{}",
            "<applications/>",
            r#"{"application":[]}"#,
        ] {
            assert!(applications(bad.as_bytes(), CHOICE).is_err(), "{bad}");
            assert!(application(bad.as_bytes(), CHOICE).is_err(), "{bad}");
        }
        let none = br#"{"applications":{"versions__delta":"-1","apps__hashcode":""}}"#;
        assert!(applications(none, CHOICE).unwrap().instances.is_empty());
        let mixed =
            br#"{"application":{"name":"A","instance":[7,{},{"instanceId":"i","ipAddr":"10.0.0.1"},
            {"hostName":"only","metadata":{"n":5,"x":null,"zone":"a"}}]}}"#;
        let all = application(mixed, CHOICE).unwrap();
        assert_eq!((all.instances.len(), all.skipped), (2, 2));
        let last = all.instances[1].endpoint.clone().unwrap();
        assert_eq!(
            (last.address.as_str(), last.zone.as_deref()),
            ("only:7001", Some("a"))
        );
        assert_eq!(last.metadata["n"], "5");
    }
}
