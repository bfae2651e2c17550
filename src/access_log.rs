//! The access log: one JSON object per logged request, field names after OpenTelemetry where it
//! has one. What is needed is kept as cheap clones; a line is made only for what is logged.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderValue, Method};
use serde::Serialize;

use crate::clock;
use crate::config::types::{AccessLog as Settings, AccessLogMode, Condition};
use crate::error::Reason;
use crate::metrics::cells::{AppProtocol, FallbackSource};
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

/// Which fallback answered.
#[derive(Clone, Copy, Debug)]
pub struct FallbackNote {
    /// Where the answer came from.
    pub source: FallbackSource,
    /// What asked for it.
    pub condition: Condition,
}

/// What a line needs from the end of the request.
#[derive(Debug)]
pub struct EndNote<'a> {
    /// The upstream, when one was found.
    pub upstream: Option<&'a str>,
    /// Which of its routes.
    pub route: Option<&'a str>,
    /// The last instance tried.
    pub instance: Option<&'a str>,
    /// Tries.
    pub attempts: u32,
    /// A fallback answered.
    pub fallback: Option<FallbackNote>,
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
        let failed = (end.status >= 500).then(|| end.status.to_string());
        let error = end.reason.map(Reason::as_str).or(failed.as_deref());
        let path = request.path.as_deref().filter(|_| settings.log_paths);
        let line = Line {
            ts: humantime::format_rfc3339_millis(clock::wall_now()).to_string(),
            log: "access",
            method: request.method.as_str(),
            status: end.status,
            host: request.host.as_ref().map(text),
            version: end.version,
            path,
            grpc_code: end.grpc_code,
            error,
            reason: end.reason.map(Reason::as_str),
            upstream: end.upstream,
            route: end.route,
            instance: end.instance,
            fallback: end.fallback.map(|note| note.source.as_str()),
            fallback_for: end.fallback.map(|note| note.condition.as_str()),
            protocol: end.protocol.as_str(),
            attempts: end.attempts,
            duration_ms: millis(end.duration),
            upstream_ms: end.upstream_duration.map(millis),
            trace_id: request.traceparent.as_ref().and_then(trace_id),
            request_id: request.request_id.as_ref().map(text),
        };
        if let Ok(mut bytes) = serde_json::to_vec(&line) {
            bytes.push(b'\n');
            self.lines.write(&settings.sink, bytes);
        }
    }
}

/// A line, in the order of its fields.
#[derive(Serialize)]
struct Line<'a> {
    ts: String,
    log: &'static str,
    #[serde(rename = "http.request.method")]
    method: &'a str,
    #[serde(rename = "http.response.status_code")]
    status: u16,
    #[serde(rename = "server.address", skip_serializing_if = "Option::is_none")]
    host: Option<Cow<'a, str>>,
    #[serde(rename = "network.protocol.version")]
    version: &'static str,
    #[serde(rename = "url.path", skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    #[serde(
        rename = "rpc.grpc.status_code",
        skip_serializing_if = "Option::is_none"
    )]
    grpc_code: Option<u16>,
    #[serde(rename = "error.type", skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(rename = "outrigger.reason", skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(rename = "outrigger.upstream", skip_serializing_if = "Option::is_none")]
    upstream: Option<&'a str>,
    #[serde(rename = "outrigger.route", skip_serializing_if = "Option::is_none")]
    route: Option<&'a str>,
    #[serde(rename = "outrigger.instance", skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
    #[serde(rename = "outrigger.fallback", skip_serializing_if = "Option::is_none")]
    fallback: Option<&'static str>,
    #[serde(
        rename = "outrigger.fallback_for",
        skip_serializing_if = "Option::is_none"
    )]
    fallback_for: Option<&'static str>,
    #[serde(rename = "outrigger.protocol")]
    protocol: &'static str,
    #[serde(rename = "outrigger.attempts")]
    attempts: u32,
    #[serde(rename = "outrigger.duration_ms")]
    duration_ms: f64,
    #[serde(
        rename = "outrigger.upstream_ms",
        skip_serializing_if = "Option::is_none"
    )]
    upstream_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<Cow<'a, str>>,
}

/// Bytes that are no UTF-8 are replaced: a line is always valid JSON.
fn text(value: &HeaderValue) -> Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}

fn millis(duration: Duration) -> f64 {
    f64::from(u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)) / 1_000.0
}

/// The trace id inside a W3C `traceparent`.
fn trace_id(value: &HeaderValue) -> Option<&str> {
    let id = value.to_str().ok()?.split('-').nth(1)?;
    (id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())).then_some(id)
}
