//! The access log: one JSON object per logged request, field names after OpenTelemetry where it
//! has one. What is needed is kept as cheap clones; a line is made only for what is logged.

use std::time::Duration;

use http::{HeaderValue, Method};
use serde_json::{Map, Value};

use crate::clock;
use crate::config::types::{AccessLog as Settings, AccessLogMode};
use crate::error::Reason;
use crate::metrics::cells::AppProtocol;
use crate::sink::Lines;

/// Where the lines go.
#[derive(Clone, Debug)]
pub struct AccessLog {
    /// The writing thread.
    pub lines: Lines,
}

/// What a line needs from the request's head.
#[derive(Debug)]
pub struct RequestNote {
    /// The method.
    pub method: Method,
    /// As it came, undecoded.
    pub path: Option<String>,
    /// The host the app asked for.
    pub host: Option<HeaderValue>,
    /// `x-request-id`.
    pub request_id: Option<HeaderValue>,
    /// `traceparent`.
    pub traceparent: Option<HeaderValue>,
}

/// What a line needs from the end of the request.
#[derive(Debug)]
pub struct EndNote<'a> {
    /// The upstream, when one was found.
    pub upstream: Option<&'a str>,
    /// The last instance tried.
    pub instance: Option<&'a str>,
    /// Tries.
    pub attempts: u32,
    /// The app's side.
    pub protocol: AppProtocol,
    /// HTTP version of the app's side.
    pub version: &'static str,
    /// Status the app saw; 499 when it left before one.
    pub status: u16,
    /// Its gRPC code.
    pub grpc_code: Option<u16>,
    /// Our own answer, or why the body broke off.
    pub reason: Option<Reason>,
    /// From the head's arrival to the end.
    pub duration: Duration,
    /// Until the response head of the last attempt.
    pub upstream_duration: Option<Duration>,
}

impl AccessLog {
    /// Whether a request with this end is logged. `sample`: a random number of 0..1.
    pub fn wants(settings: &Settings, end: &EndNote<'_>, sample: impl FnOnce() -> f64) -> bool {
        match settings.mode {
            AccessLogMode::None => false,
            AccessLogMode::All => true,
            AccessLogMode::Errors => {
                end.reason.is_some()
                    || end.status >= 500
                    || end.grpc_code.is_some_and(|code| code != 0)
                    || end.attempts > 1
                    || (settings.sample_success > 0.0 && sample() < settings.sample_success)
            }
        }
    }

    /// Writes the line.
    pub fn write(&self, settings: &Settings, request: &RequestNote, end: &EndNote<'_>) {
        let mut line = Map::new();
        let mut put = |key: &str, value: Value| {
            line.insert(key.to_owned(), value);
        };
        put(
            "ts",
            humantime::format_rfc3339_millis(clock::wall_now())
                .to_string()
                .into(),
        );
        put("log", "access".into());
        put("http.request.method", request.method.as_str().into());
        put("http.response.status_code", end.status.into());
        if let Some(host) = &request.host {
            put("server.address", text(host));
        }
        put("network.protocol.version", end.version.into());
        if settings.log_paths
            && let Some(path) = &request.path
        {
            put("url.path", path.as_str().into());
        }
        if let Some(code) = end.grpc_code {
            put("rpc.grpc.status_code", code.into());
        }
        if let Some(reason) = end.reason {
            put("error.type", reason.as_str().into());
            put("outrigger.reason", reason.as_str().into());
        } else if end.status >= 500 {
            put("error.type", end.status.to_string().into());
        }
        if let Some(upstream) = end.upstream {
            put("outrigger.upstream", upstream.into());
        }
        if let Some(instance) = end.instance {
            put("outrigger.instance", instance.into());
        }
        put("outrigger.protocol", end.protocol.as_str().into());
        put("outrigger.attempts", end.attempts.into());
        put("outrigger.duration_ms", millis(end.duration));
        if let Some(duration) = end.upstream_duration {
            put("outrigger.upstream_ms", millis(duration));
        }
        if let Some(trace) = request.traceparent.as_ref().and_then(trace_id) {
            put("trace_id", trace.into());
        }
        if let Some(id) = &request.request_id {
            put("request_id", text(id));
        }
        if let Ok(mut bytes) = serde_json::to_vec(&Value::Object(line)) {
            bytes.push(b'\n');
            self.lines.write(&settings.sink, bytes);
        }
    }
}

/// Bytes that are no UTF-8 are replaced: a line is always valid JSON.
fn text(value: &HeaderValue) -> Value {
    String::from_utf8_lossy(value.as_bytes())
        .into_owned()
        .into()
}

fn millis(duration: Duration) -> Value {
    let micros = u32::try_from(duration.as_micros()).unwrap_or(u32::MAX);
    (f64::from(micros) / 1_000.0).into()
}

/// The trace id inside a W3C `traceparent`.
fn trace_id(value: &HeaderValue) -> Option<&str> {
    let id = value.to_str().ok()?.split('-').nth(1)?;
    (id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())).then_some(id)
}
