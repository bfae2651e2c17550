//! Answers of the open API in the shapes Nacos clients expect.

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;

use super::guard::Blocked;
use super::model::{Refusal, ServiceKey};
use super::params::ParamError;
use super::service::Instance;
use super::users::Denial;
use crate::clock::wall_now;

pub(super) type Answer = Response<Full<Bytes>>;

/// Why a request is not done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("{0}")]
    Blocked(#[from] Blocked),
    #[error("Param 'beat' is illegal, it must be the JSON object of a beat")]
    Beat,
    /// Without a token, or with one that is not good.
    #[error("{denial}")]
    Denied {
        denial: Denial,
        /// A browser is to ask for a password.
        for_people: bool,
    },
    #[error("{0}")]
    Login(Denial),
    #[error("request body is too large")]
    BodyTooLarge,
    #[error("request body did not come in time")]
    BodyTooSlow,
    #[error("no such api:{0}:{1}")]
    NoSuchApi(Method, String),
    #[error("{0}")]
    Param(#[from] ParamError),
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Param(refusal.into())
    }
}

impl Fault {
    /// Plain text `caused: ...;`, except where Nacos answers JSON (403, 501).
    pub(super) fn answer(&self) -> Answer {
        let status = match self {
            Self::Denied { for_people, .. } if *for_people => StatusCode::UNAUTHORIZED,
            Self::Login(Denial::NoRandom) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Blocked(_) | Self::Denied { .. } | Self::Login(_) => StatusCode::FORBIDDEN,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::NoSuchApi(..) => StatusCode::NOT_IMPLEMENTED,
            Self::Param(ParamError::Refused(Refusal::NoInstance)) => StatusCode::NOT_FOUND,
            Self::Beat | Self::Param(_) => StatusCode::BAD_REQUEST,
        };
        let path = match self {
            Self::NoSuchApi(_, path) => path.as_str(),
            Self::Denied {
                for_people: true, ..
            } => {
                let mut answer = text(status, format!("{self}\n"));
                let ask = HeaderValue::from_static("Basic realm=\"registry\"");
                answer.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
                return answer;
            }
            Self::Login(denial) => return text(status, denial.to_string()),
            Self::Blocked(_) | Self::Denied { .. } => "",
            Self::Beat | Self::BodyTooLarge | Self::BodyTooSlow | Self::Param(_) => {
                return text(status, format!("caused: {self};"));
            }
        };
        json(
            status,
            &serde_json::json!({
                "timestamp": epoch_millis(),
                "status": status.as_u16(),
                "error": status.canonical_reason().unwrap_or_default(),
                "message": self.to_string(),
                "path": path,
            }),
        )
    }
}

/// `ok`.
pub(super) fn ok() -> Answer {
    text(StatusCode::OK, "ok")
}

pub(super) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, "text/plain;charset=UTF-8", body.into())
}

pub(super) fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    // Only maps with keys that are no strings cannot be written, and there are none here.
    let body = serde_json::to_vec(value).unwrap_or_default();
    answer(status, "application/json;charset=UTF-8", body.into())
}

/// Milliseconds of the wall clock.
pub(super) fn epoch_millis() -> u64 {
    let since = wall_now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The answer of `instance/list`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct List {
    pub(super) name: String,
    pub(super) group_name: String,
    pub(super) clusters: String,
    pub(super) cache_millis: u64,
    pub(super) hosts: Vec<Host>,
    pub(super) last_ref_time: u64,
    pub(super) checksum: &'static str,
    #[serde(rename = "allIPs")]
    pub(super) all_ips: bool,
    pub(super) reach_protection_threshold: bool,
    pub(super) valid: bool,
}

/// One of its `hosts`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Host {
    instance_id: String,
    ip: String,
    port: u16,
    weight: f64,
    healthy: bool,
    enabled: bool,
    ephemeral: bool,
    cluster_name: String,
    service_name: String,
    metadata: std::collections::BTreeMap<String, String>,
    instance_heart_beat_interval: u64,
    instance_heart_beat_time_out: u64,
    ip_delete_timeout: u64,
    instance_id_generator: &'static str,
}

impl Host {
    pub(super) fn new(service: &ServiceKey, instance: &Instance) -> Self {
        let (key, timing) = (instance.key(), instance.timing());
        let millis =
            |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            instance_id: instance_id(service, instance),
            ip: key.ip.to_string(),
            port: key.port,
            weight: f64::from(instance.weight().thousandths()) / 1000.0,
            healthy: instance.healthy(),
            enabled: instance.enabled(),
            ephemeral: instance.ephemeral(),
            cluster_name: key.cluster.to_string(),
            service_name: service.grouped(),
            metadata: (**instance.metadata()).clone(),
            instance_heart_beat_interval: millis(timing.beat_interval),
            instance_heart_beat_time_out: millis(timing.unhealthy_after),
            ip_delete_timeout: millis(timing.remove_after),
            instance_id_generator: "simple",
        }
    }
}

/// The answer of `GET instance`.
pub(super) fn detail(service: &ServiceKey, instance: &Instance) -> Answer {
    let key = instance.key();
    json(
        StatusCode::OK,
        &serde_json::json!({
            "service": service.grouped(),
            "ip": &*key.ip,
            "port": key.port,
            "clusterName": &*key.cluster,
            "weight": f64::from(instance.weight().thousandths()) / 1000.0,
            "healthy": instance.healthy(),
            "instanceId": instance_id(service, instance),
            "metadata": &**instance.metadata(),
        }),
    )
}

fn instance_id(service: &ServiceKey, instance: &Instance) -> String {
    let key = instance.key();
    format!(
        "{}#{}#{}#{}",
        key.ip,
        key.port,
        key.cluster,
        service.grouped()
    )
}

fn answer(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
