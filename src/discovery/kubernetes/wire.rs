//! EndpointSlices as the API server sends them, in lists and in the lines of a watch, read tolerantly:
//! unknown fields are ignored, `null` is a default, what cannot be read is counted (G15). Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

/// Names the service of a slice.
pub(super) const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// One page of a list.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) slices: Vec<Slice>,
    pub(super) skipped: usize,
    /// Of the whole list; opaque.
    pub(super) version: String,
    /// For the next page.
    pub(super) more: Option<String>,
}

/// A line of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Added or modified.
    Put(Slice),
    /// Its name, and the version of its end.
    Deleted(Arc<str>, String),
    /// Nothing happened up to this version.
    Bookmark(String),
    /// The watch is over.
    Error(Status),
}

/// What the API server says instead of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) code: u16,
    pub(super) reason: String,
    pub(super) message: String,
}

/// A part of the endpoints of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    /// Unique in its namespace.
    pub(super) name: Arc<str>,
    /// `None`: it belongs to none.
    pub(super) service: Option<Arc<str>>,
    /// Opaque.
    pub(super) version: String,
    pub(super) family: Family,
    pub(super) endpoints: Vec<SliceEndpoint>,
    pub(super) ports: Vec<SlicePort>,
}

/// `addressType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    V4,
    V6,
    Name,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SliceEndpoint {
    /// The first one; they are all the same to us.
    pub(super) address: String,
    pub(super) ready: bool,
    pub(super) serving: bool,
    pub(super) terminating: bool,
    pub(super) zone: Option<Arc<str>>,
    pub(super) node: Option<Arc<str>>,
    /// Name and uid of the pod.
    pub(super) pod: Option<(Arc<str>, Option<Arc<str>>)>,
}

/// A TCP port with a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlicePort {
    pub(super) name: Arc<str>,
    pub(super) port: u16,
    pub(super) app_protocol: Option<Arc<str>>,
}

#[derive(Deserialize)]
struct RawPage {
    #[serde(default)]
    metadata: RawMeta,
    items: Option<Vec<Value>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawMeta {
    name: Option<String>,
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    more: Option<String>,
    labels: Option<BTreeMap<String, Option<String>>>,
}

#[derive(Deserialize)]
struct RawEvent {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSlice {
    metadata: RawMeta,
    #[serde(default)]
    address_type: String,
    endpoints: Option<Vec<RawEndpoint>>,
    ports: Option<Vec<RawPort>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEndpoint {
    addresses: Option<Vec<String>>,
    conditions: Option<RawConditions>,
    target_ref: Option<RawRef>,
    node_name: Option<String>,
    zone: Option<String>,
}

#[derive(Default, Deserialize)]
struct RawConditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Deserialize)]
struct RawRef {
    name: Option<String>,
    uid: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPort {
    name: Option<String>,
    port: Option<u16>,
    protocol: Option<String>,
    app_protocol: Option<String>,
}

/// Reads a list.
pub(super) fn page(body: &[u8]) -> Result<Page, String> {
    let raw: RawPage =
        serde_json::from_slice(body).map_err(|e| format!("unreadable list of slices: {e}"))?;
    let version = raw.metadata.resource_version.unwrap_or_default();
    let (Some(items), false) = (raw.items, version.is_empty()) else {
        return Err("unreadable list of slices: no items and no resourceVersion".to_owned());
    };
    let total = items.len();
    let slices: Vec<Slice> = items.into_iter().filter_map(|i| slice(i).ok()).collect();
    Ok(Page {
        skipped: total.saturating_sub(slices.len()),
        slices,
        version,
        more: raw.metadata.more.filter(|token| !token.is_empty()),
    })
}

/// Reads a line of a watch.
pub(super) fn event(line: &[u8]) -> Result<Event, String> {
    let raw: RawEvent =
        serde_json::from_slice(line).map_err(|e| format!("unreadable event: {e}"))?;
    match raw.kind.as_str() {
        "ADDED" | "MODIFIED" => slice(raw.object).map(Event::Put),
        "DELETED" => slice(raw.object).map(|slice| Event::Deleted(slice.name, slice.version)),
        "BOOKMARK" => {
            let version = raw.object.pointer("/metadata/resourceVersion");
            let version = version.and_then(Value::as_str).unwrap_or_default();
            match version.is_empty() {
                true => Err("unreadable event: a bookmark without a version".to_owned()),
                false => Ok(Event::Bookmark(version.to_owned())),
            }
        }
        "ERROR" => Ok(Event::Error(
            serde_json::from_value(raw.object).unwrap_or_default(),
        )),
        other => Err(format!("unknown event `{other}`")),
    }
}

/// What the body of an error answer says.
pub(super) fn status(code: u16, body: &[u8]) -> Status {
    let mut status: Status = serde_json::from_slice(body).unwrap_or_default();
    status.code = code;
    if status.message.is_empty() {
        let text = String::from_utf8_lossy(body);
        status.message = text.chars().filter(|c| !c.is_control()).take(200).collect();
    }
    status
}

fn slice(object: Value) -> Result<Slice, String> {
    let raw: RawSlice =
        serde_json::from_value(object).map_err(|e| format!("unreadable slice: {e}"))?;
    let name = raw.metadata.name.filter(|name| !name.is_empty());
    let name = name.ok_or("unreadable slice: no name")?;
    let family = match raw.address_type.as_str() {
        "IPv4" => Family::V4,
        "IPv6" => Family::V6,
        "FQDN" => Family::Name,
        other => return Err(format!("slice `{name}`: unknown addressType `{other}`")),
    };
    let labels = raw.metadata.labels.unwrap_or_default();
    let service = labels.get(SERVICE_LABEL).cloned().flatten();
    let endpoints = raw.endpoints.unwrap_or_default().into_iter();
    let ports = raw.ports.unwrap_or_default().into_iter();
    Ok(Slice {
        name: name.into(),
        service: service.filter(|s| !s.is_empty()).map(Arc::from),
        version: raw.metadata.resource_version.unwrap_or_default(),
        family,
        endpoints: endpoints.filter_map(endpoint).collect(),
        ports: ports.filter_map(port).collect(),
    })
}

fn endpoint(raw: RawEndpoint) -> Option<SliceEndpoint> {
    let conditions = raw.conditions.unwrap_or_default();
    let pod = raw.target_ref.and_then(|target| {
        let name: Arc<str> = target.name?.into();
        Some((name, target.uid.map(Arc::from)))
    });
    Some(SliceEndpoint {
        address: raw.addresses?.into_iter().next()?,
        ready: conditions.ready.unwrap_or(true),
        serving: conditions.serving.unwrap_or(true),
        terminating: conditions.terminating.unwrap_or(false),
        zone: raw.zone.map(Arc::from),
        node: raw.node_name.map(Arc::from),
        pod,
    })
}

fn port(raw: RawPort) -> Option<SlicePort> {
    let tcp = raw.protocol.is_none_or(|protocol| protocol == "TCP");
    Some(SlicePort {
        name: raw.name.unwrap_or_default().into(),
        port: raw.port.filter(|port| tcp && *port > 0)?,
        app_protocol: raw.app_protocol.map(Arc::from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_watch() {
        let lines = [
            r#"{"type":"ADDED","object":{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"orders-abc","uid":"u1","resourceVersion":"100","labels":{"kubernetes.io/service-name":"orders"}},"addressType":"IPv4","endpoints":[{"addresses":["10.2.0.1","10.2.0.9"],"conditions":{}},{"addresses":["10.2.0.2"],"conditions":{"ready":false,"serving":true,"terminating":true},"targetRef":{"kind":"Pod","name":"p","uid":"pu"},"zone":"z","nodeName":"n"}],"ports":[{"name":"http","protocol":"TCP","port":8080,"appProtocol":"kubernetes.io/h2c"},{"name":"dns","protocol":"UDP","port":53},{"name":"all","port":null}]}}"#,
            r#"{"type":"BOOKMARK","object":{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"resourceVersion":"150"},"addressType":"","endpoints":null,"ports":null}}"#,
            r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","message":"too old resource version","code":410}}"#,
            r#"{"type":"DELETED","object":{"metadata":{"name":"orders-abc","resourceVersion":"160"},"addressType":"IPv4","endpoints":null,"ports":null}}"#,
        ];
        let Event::Put(slice) = event(lines[0].as_bytes()).unwrap() else {
            panic!("a slice");
        };
        assert_eq!(
            (&*slice.name, slice.service.as_deref()),
            ("orders-abc", Some("orders"))
        );
        let [first, second] = &slice.endpoints[..] else {
            panic!("two");
        };
        assert_eq!(first.address, "10.2.0.1");
        assert!(first.ready && first.serving && !first.terminating);
        assert!(!second.ready && second.serving && second.terminating);
        assert_eq!(second.pod, Some(("p".into(), Some("pu".into()))));
        assert_eq!(
            slice.ports.len(),
            1,
            "UDP and ports without a number are none"
        );
        assert_eq!(
            event(lines[1].as_bytes()),
            Ok(Event::Bookmark("150".to_owned()))
        );
        let Event::Error(status) = event(lines[2].as_bytes()).unwrap() else {
            panic!("an error");
        };
        assert_eq!((status.code, &*status.reason), (410, "Expired"));
        let deleted = Event::Deleted("orders-abc".into(), "160".to_owned());
        assert_eq!(event(lines[3].as_bytes()), Ok(deleted));
        for bad in [
            "",
            "{}",
            r#"{"type":"ODD","object":{}}"#,
            r#"{"type":"ADDED","object":{}}"#,
        ] {
            assert!(event(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn pages() {
        let body = br#"{"kind":"EndpointSliceList","metadata":{"resourceVersion":"7","continue":"t"},
            "items":[{"metadata":{"name":"a"},"addressType":"IPv6","endpoints":null},{"metadata":{}},7]}"#;
        let read = page(body).unwrap();
        assert_eq!(
            (read.slices.len(), read.skipped, &*read.version),
            (1, 2, "7")
        );
        assert_eq!(read.more.as_deref(), Some("t"));
        let last = page(br#"{"metadata":{"resourceVersion":"7","continue":""},"items":[]}"#);
        assert_eq!(last.unwrap().more, None);
        for bad in [
            "",
            "{}",
            r#"{"items":[]}"#,
            r#"{"metadata":{"resourceVersion":"7"}}"#,
        ] {
            assert!(page(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn errors_for_people() {
        let body = br#"{"kind":"Status","reason":"Forbidden","message":"cannot list","code":403}"#;
        assert_eq!(status(403, body).message, "cannot list");
        assert_eq!(status(502, b"<html>\n").message, "<html>");
    }
}
