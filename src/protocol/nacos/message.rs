//! The JSON bodies of Nacos's gRPC messages. One shape, [`Naming`], covers every request about services:
//! each kind uses some of its fields. Read tolerantly: everything may be missing or null.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Payload;

/// Names of messages, as they stand in [`Payload::kind`].
pub mod kind {
    /// Unary: is the server ready, and who are we to it.
    pub const SERVER_CHECK: &str = "ServerCheckRequest";
    /// Unary: does the connection live.
    pub const HEALTH_CHECK: &str = "HealthCheckRequest";
    /// The first message of a client's stream.
    pub const SETUP: &str = "ConnectionSetupRequest";
    /// The server's answer to it on the stream, where abilities were negotiated; has no answer.
    pub const SETUP_ACK: &str = "SetupAckRequest";
    /// Unary: one instance comes or goes.
    pub const INSTANCE: &str = "InstanceRequest";
    /// The same for one that lives without a connection.
    pub const PERSISTENT_INSTANCE: &str = "PersistentInstanceRequest";
    /// Unary: all instances of this connection in a service.
    pub const BATCH_INSTANCE: &str = "BatchInstanceRequest";
    /// Unary: pushes on or off.
    pub const SUBSCRIBE: &str = "SubscribeServiceRequest";
    /// Unary: the instances of a service.
    pub const QUERY: &str = "ServiceQueryRequest";
    /// Unary: the names of services.
    pub const LIST: &str = "ServiceListRequest";
    /// Stream, from the server: a service changed.
    pub const NOTIFY: &str = "NotifySubscriberRequest";
    /// Stream, from the server: are you there.
    pub const DETECTION: &str = "ClientDetectionRequest";
    /// Stream, from the server: go to another one.
    pub const RESET: &str = "ConnectResetRequest";
    /// What may come instead of every response.
    pub const ERROR: &str = "ErrorResponse";

    /// The name of the response to a request.
    pub fn response(request: &str) -> String {
        match request {
            QUERY => "QueryServiceResponse".to_owned(),
            PERSISTENT_INSTANCE => "InstanceResponse".to_owned(),
            other => match other.strip_suffix("Request") {
                Some(stem) => format!("{stem}Response"),
                None => ERROR.to_owned(),
            },
        }
    }
}

/// `resultCode` and `errorCode`.
pub mod code {
    /// `resultCode`: done.
    pub const SUCCESS: i64 = 200;
    /// `resultCode`: not done.
    pub const FAIL: i64 = 500;
    /// `errorCode`: a parameter is missing or illegal.
    pub const INVALID_PARAM: i64 = 400;
    /// `errorCode`: the server starts.
    pub const NOT_READY: i64 = 300;
    /// `errorCode`: no set-up was made on this connection.
    pub const UNREGISTERED: i64 = 301;
    /// `errorCode`: nobody takes this kind of message.
    pub const NO_HANDLER: i64 = 302;
    /// `errorCode`: log in first.
    pub const NO_RIGHT: i64 = 403;
    /// `errorCode`: too many connections or requests.
    pub const OVER_THRESHOLD: i64 = 503;
}

/// `type` of an instance request.
pub const REGISTER: &str = "registerInstance";
/// `type` of an instance request.
pub const DEREGISTER: &str = "deregisterInstance";
/// `type` of a batch request.
pub const BATCH_REGISTER: &str = "batchRegisterInstance";

/// Any request about services.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Naming {
    /// Namespace id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Bare name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// Group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_name: Option<String>,
    /// [`REGISTER`], [`DEREGISTER`] or [`BATCH_REGISTER`].
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// Of an instance request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<Instance>,
    /// Of a batch request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances: Option<Vec<Instance>>,
    /// Of a subscription: a list with commas; empty: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clusters: Option<String>,
    /// The same of a query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Pushes on or off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subscribe: Option<bool>,
    /// Of a query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthy_only: Option<bool>,
    /// Of a list, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_no: Option<u64>,
    /// Of a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_size: Option<u64>,
}

/// An instance as a client describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Instance {
    /// Address or host name.
    pub ip: Option<String>,
    /// Port.
    pub port: Option<u32>,
    /// Share of traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// The health it claims.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthy: Option<bool>,
    /// Whether it takes traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Whether it lives with its connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<bool>,
    /// Cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// Free metadata; values that are no strings are taken as their text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
}

impl Instance {
    /// Metadata as texts; null is absent.
    pub fn metadata_texts(&self) -> BTreeMap<String, String> {
        let pairs = self.metadata.iter().flatten();
        let present = pairs.filter(|(_, value)| !value.is_null());
        present
            .map(|(name, value)| {
                let text = value.as_str().map(str::to_owned);
                (name.clone(), text.unwrap_or_else(|| value.to_string()))
            })
            .collect()
    }
}

/// A request that is not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error {code}: {message}")]
pub struct Denied {
    /// One of [`code`].
    pub code: i64,
    /// For people.
    pub message: String,
}

impl Denied {
    /// One.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// A request with its body; `module` is what Nacos sorts requests by.
pub fn request(kind: &str, module: &str, body: &impl Serialize) -> Payload {
    let mut value = serde_json::to_value(body).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.insert("module".to_owned(), Value::from(module));
    }
    Payload::new(kind, value.to_string())
}

/// The response to a request of `kind`: done, with these further fields.
pub fn done(kind: &str, request_id: Option<&Value>, mut fields: Map<String, Value>) -> Payload {
    fields.insert("resultCode".to_owned(), Value::from(code::SUCCESS));
    fields.insert("errorCode".to_owned(), Value::from(0));
    fields.insert("success".to_owned(), Value::from(true));
    if let Some(id) = request_id.filter(|id| !id.is_null()) {
        fields.insert("requestId".to_owned(), id.clone());
    }
    Payload::new(kind::response(kind), Value::Object(fields).to_string())
}

/// The response to a request that is not done.
pub fn denied(response: impl Into<String>, denied: &Denied) -> Payload {
    let body = json!({
        "resultCode": code::FAIL,
        "errorCode": denied.code,
        "message": denied.message,
        "success": false,
    });
    Payload::new(response, body.to_string())
}

/// What a response says. The type is looked at first: any request may be answered by an
/// `ErrorResponse`, and its missing fields are no empty answer.
///
/// # Errors
/// [`Denied`], also for a response that cannot be read or has another type.
pub fn outcome(kind: &str, response: &Payload) -> Result<Value, Denied> {
    let value: Value = serde_json::from_slice(&response.body)
        .map_err(|error| Denied::new(code::FAIL, format!("unreadable response: {error}")))?;
    let number = |name: &str| value.get(name).and_then(Value::as_i64);
    let result = number("resultCode").unwrap_or(code::FAIL);
    if response.kind != kind::ERROR && result == code::SUCCESS {
        let wanted = kind::response(kind);
        if response.kind != wanted {
            let what = format!("a {} where a {wanted} was due", response.kind);
            return Err(Denied::new(code::FAIL, what));
        }
        return Ok(value);
    }
    let message = value.get("message").and_then(Value::as_str);
    let code = number("errorCode").filter(|code| *code != 0);
    Err(Denied::new(
        code.unwrap_or(result),
        message.unwrap_or("no reason is given"),
    ))
}

/// `requestId` of a message: a text, a number or nothing.
pub fn request_id(body: &Bytes) -> Option<Value> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head {
        request_id: Option<Value>,
    }
    serde_json::from_slice::<Head>(body).ok()?.request_id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_have_the_names_of_nacos() {
        for (request, want) in [
            (kind::INSTANCE, "InstanceResponse"),
            (kind::PERSISTENT_INSTANCE, "InstanceResponse"),
            (kind::BATCH_INSTANCE, "BatchInstanceResponse"),
            (kind::SUBSCRIBE, "SubscribeServiceResponse"),
            (kind::QUERY, "QueryServiceResponse"),
            (kind::LIST, "ServiceListResponse"),
            (kind::NOTIFY, "NotifySubscriberResponse"),
            (kind::SERVER_CHECK, "ServerCheckResponse"),
            ("Nonsense", "ErrorResponse"),
        ] {
            assert_eq!(kind::response(request), want);
        }
    }

    #[test]
    fn requests_of_stock_clients_are_read() {
        // Java 2.5: nothing of no value is left out, unknown fields.
        let java = r#"{"headers":{},"namespace":"public","serviceName":"s","groupName":"g",
            "module":"naming","type":"registerInstance","instance":{"ip":"10.0.0.1","port":80,
            "weight":1.0,"healthy":true,"enabled":true,"ephemeral":true,"metadata":{"a":"b","n":1},
            "instanceHeartBeatInterval":5000}}"#;
        let read: Naming = serde_json::from_str(java).unwrap();
        let instance = read.instance.unwrap();
        assert_eq!(
            (instance.port, instance.cluster_name.as_deref()),
            (Some(80), None)
        );
        assert_eq!(instance.metadata_texts()["n"], "1");
        // Rust: null for what is not there.
        let rust = r#"{"requestId":null,"module":"naming","namespace":null,"serviceName":"s",
            "groupName":null,"clusters":"","subscribe":true}"#;
        let read: Naming = serde_json::from_str(rust).unwrap();
        assert_eq!((read.namespace, read.subscribe), (None, Some(true)));
        assert_eq!(
            request_id(&Bytes::from_static(b"{\"requestId\":\"7\"}")),
            Some("7".into())
        );
        assert_eq!(
            request_id(&Bytes::from_static(b"{\"requestId\":null}")),
            None
        );
    }

    #[test]
    fn an_error_in_place_of_an_answer_is_no_empty_answer() {
        let error = Denied::new(code::UNREGISTERED, "Connection is unregistered.");
        let payload = denied(kind::ERROR, &error);
        assert_eq!(outcome(kind::SUBSCRIBE, &payload), Err(error));
        let forbidden = Denied::new(code::NO_RIGHT, "user not found!");
        let payload = denied("SubscribeServiceResponse", &forbidden);
        assert_eq!(outcome(kind::SUBSCRIBE, &payload), Err(forbidden));
        let other = done(kind::QUERY, None, Map::new());
        assert!(outcome(kind::SUBSCRIBE, &other).is_err());
        assert!(outcome(kind::QUERY, &other).is_ok());
        assert!(outcome(kind::QUERY, &Payload::new("QueryServiceResponse", "{}")).is_err());
        assert!(outcome(kind::QUERY, &Payload::new("QueryServiceResponse", "<")).is_err());
    }

    #[test]
    fn requests_say_only_what_they_mean() {
        let naming = Naming {
            namespace: Some("public".to_owned()),
            service_name: Some("s".to_owned()),
            subscribe: Some(true),
            ..Naming::default()
        };
        let payload = request(kind::SUBSCRIBE, "naming", &naming);
        let text = r#"{"namespace":"public","serviceName":"s","subscribe":true,"module":"naming"}"#;
        assert_eq!(payload.body, text);
    }
}
