//! Registration with Eureka: POST while the app starts, POST again with a later stamp for every
//! change, renew every 30 s, DOWN and then DELETE at the end. `OUT_OF_SERVICE` is an operator's word
//! and never ours. A renew is judged by its status only: the bodies of 404 come in three forms.
//!
//! Next: `eureka/instance.rs` (the JSON).

mod basic;
mod instance;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

pub(super) use self::basic::auth;
use super::machine::{Beat, Outcome, Standing};
use super::record::Record;
use super::registrar::{Call, Registrar};
use super::rhythm::{Beats, Rhythm};
use crate::clock::wall_now;
use crate::http_client::servers::{self, Servers, Verdict};

/// What every client of it does.
const INTERVAL: Duration = Duration::from_secs(30);
/// The server's cache, then its clients' period, and a little.
const DEREGISTER_WAIT: Duration = Duration::from_secs(65);

/// One path segment.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':');

/// One instance there.
#[derive(Debug)]
pub(super) struct EurekaRegistrar {
    servers: Arc<Servers>,
    record: Record,
    /// Path of the application and of the instance.
    app: String,
    path: String,
    /// The `lastDirtyTimestamp` of the last POST: the version of our record. It grows with every one,
    /// shared with the record's successor when a reload changes it.
    stamp: Arc<AtomicU64>,
}

impl EurekaRegistrar {
    pub(super) fn new(servers: Arc<Servers>, record: Record, stamp: Arc<AtomicU64>) -> Self {
        let segment = |text: &str| utf8_percent_encode(text, SEGMENT).to_string();
        let app = format!("/apps/{}", segment(&instance::app(&record)));
        let path = format!("{app}/{}", segment(&instance::id(&record)));
        Self {
            servers,
            record,
            app,
            path,
            stamp,
        }
    }

    fn interval(&self) -> Duration {
        self.record.heartbeat_interval.unwrap_or(INTERVAL)
    }

    /// Registers with this status. The stamp is stored before the call: a server that answers late
    /// has it too.
    async fn post(&self, status: &str) -> Outcome {
        let wall = wall_now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX);
        let stamp = wall.max(self.stamp.load(Ordering::Relaxed).saturating_add(1));
        self.stamp.store(stamp, Ordering::Relaxed);
        let body = instance::json(&self.record, status, self.interval(), stamp);
        let mut call = servers::Call::new(Method::POST, self.app.clone());
        let json = HeaderValue::from_static("application/json");
        call.headers.push((header::CONTENT_TYPE, json));
        call.body = Bytes::from(body);
        self.ask(call).await
    }

    async fn ask(&self, mut call: servers::Call) -> Outcome {
        let json = HeaderValue::from_static("application/json");
        call.headers.push((header::ACCEPT, json));
        match self.servers.ask(&call, judge).await {
            Ok(answered) if answered.response.status() == StatusCode::NOT_FOUND => Outcome::Missing,
            Ok(_) => Outcome::DONE,
            Err(error) => error.into(),
        }
    }
}

/// 2xx is done, 404 is "unknown", whatever stands in the body.
fn judge(answer: &Response<Bytes>) -> Verdict {
    match answer.status() {
        status if status.is_success() => Verdict::Take,
        StatusCode::NOT_FOUND => Verdict::Take,
        StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED => Verdict::Refuse,
        _ => Verdict::Next,
    }
}

impl Registrar for EurekaRegistrar {
    fn rhythm(&self) -> Rhythm {
        Rhythm {
            beats: Some(Beats {
                interval: self.interval(),
                jitter_percent: 10,
                overlap: 1,
                register_after_failure: false,
            }),
            starting: true,
            marks_leaving: true,
        }
    }

    fn deregister_wait(&self) -> Duration {
        DEREGISTER_WAIT
    }

    fn register(self: Arc<Self>, standing: Standing) -> Call {
        let status = match standing {
            Standing::Starting => "STARTING",
            Standing::Up => "UP",
            Standing::Down => "DOWN",
        };
        Box::pin(async move { self.post(status).await })
    }

    fn beat(self: Arc<Self>, _: Beat) -> Call {
        Box::pin(async move {
            let stamp = self.stamp.load(Ordering::Relaxed);
            let query = format!("status=UP&lastDirtyTimestamp={stamp}");
            let path = format!("{}?{query}", self.path);
            self.ask(servers::Call::new(Method::PUT, path)).await
        })
    }

    fn withdraw(self: Arc<Self>) -> Call {
        Box::pin(async move { self.post("DOWN").await })
    }

    fn deregister(self: Arc<Self>) -> Call {
        Box::pin(async move {
            let call = servers::Call::new(Method::DELETE, self.path.clone());
            self.ask(call).await
        })
    }

    fn observe(self: Arc<Self>) -> Call {
        Box::pin(async move {
            let call = servers::Call::new(Method::GET, self.path.clone());
            self.ask(call).await
        })
    }
}

#[cfg(test)]
mod tests;
