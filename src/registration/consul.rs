//! Registration with the local agent of Consul: a service with a TTL check, beaten at a third of the
//! TTL. A beat may be answered late (while there is no leader after up to half a minute), so the
//! next one does not wait for it. After a beat that failed the service is registered again: that is
//! idempotent, and an agent may have lost it.
//!
//! Next: `consul/wire.rs`.

mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use tracing::info;

use super::machine::{Beat, Outcome, Standing};
use super::record::Record;
use super::registrar::{Call, Registrar};
use super::rhythm::{Beats, Rhythm};
use crate::http_client::servers::{self, Servers, Verdict};

/// A third of the least TTL that a busy agent can keep.
const INTERVAL: Duration = Duration::from_secs(5);
/// Blocking queries bring it within a second.
const DEREGISTER_WAIT: Duration = Duration::from_secs(3);
/// Time enough for a request to an agent without a leader.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// Beats under way at once: what fits into that time.
const OVERLAP: u32 = 6;

/// One service at the agent.
#[derive(Debug)]
pub(super) struct ConsulRegistrar {
    servers: Arc<Servers>,
    record: Record,
    /// Whose services ours are.
    owner: Arc<str>,
    id: String,
    /// What an earlier run left behind was looked for.
    tidied: AtomicBool,
}

impl ConsulRegistrar {
    pub(super) fn new(servers: Arc<Servers>, record: Record, owner: Arc<str>) -> Self {
        Self {
            id: wire::id(&record),
            servers,
            record,
            owner,
            tidied: AtomicBool::new(false),
        }
    }

    fn interval(&self) -> Duration {
        self.record.heartbeat_interval.unwrap_or(INTERVAL)
    }

    async fn list(&self) -> Outcome {
        if !self.tidied.swap(true, Ordering::Relaxed) {
            self.tidy().await;
        }
        let body = wire::service(&self.record, &self.owner, self.interval());
        let mut call = put("/v1/agent/service/register".to_owned());
        let json = HeaderValue::from_static("application/json");
        call.headers.push((header::CONTENT_TYPE, json));
        call.body = Bytes::from(body);
        let listed = self.ask(&call, |answer| judge(answer, &[])).await;
        if !matches!(listed, Outcome::Accepted(_)) {
            return listed;
        }
        // A check that is there already keeps its state, whatever the registration says.
        let passed = self.pass().await;
        if passed == Outcome::Missing {
            let what = "the agent does not know the check that it was given";
            return Outcome::Failed(what.to_owned());
        }
        passed
    }

    /// Removes services that an earlier run of ours left at another port: same name, same address,
    /// our mark, and nobody beats them.
    async fn tidy(&self) {
        let path = format!(
            "/v1/agent/health/service/name/{}",
            wire::segment(&self.record.service)
        );
        let call = servers::Call::new(Method::GET, path);
        // The state of the checks is the status of the answer.
        let known = [
            StatusCode::NOT_FOUND,
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ];
        let Ok(answered) = self
            .servers
            .ask(&call, |answer| judge(answer, &known))
            .await
        else {
            return;
        };
        for id in wire::leftovers(answered.response.body(), &self.record, &self.owner) {
            let path = format!("/v1/agent/service/deregister/{}", wire::segment(&id));
            let removed = self.ask(&put(path), |answer| judge(answer, &[])).await;
            info!(
                service = id,
                ?removed,
                "leftover of an earlier run at the agent"
            );
        }
    }

    async fn pass(&self) -> Outcome {
        let unknown = [StatusCode::NOT_FOUND, StatusCode::INTERNAL_SERVER_ERROR];
        self.check("pass", &unknown).await
    }

    async fn check(&self, verb: &str, unknown: &[StatusCode]) -> Outcome {
        // The note never changes: a new one would wake every watcher of the service.
        let path = format!("/v1/agent/check/{verb}/{}", wire::check_segment(&self.id));
        self.ask(&put(path), |answer| judge(answer, unknown)).await
    }

    async fn ask(
        &self,
        call: &servers::Call,
        judge: impl Fn(&Response<Bytes>) -> Verdict + Send + Sync,
    ) -> Outcome {
        match self.servers.ask(call, judge).await {
            Ok(answered) if answered.response.status().is_success() => Outcome::DONE,
            Ok(_) => Outcome::Missing,
            Err(error) => error.into(),
        }
    }
}

fn put(path: String) -> servers::Call {
    servers::Call::new(Method::PUT, path)
}

/// 2xx is done; `unknown` are the statuses that say that there is no such thing. Who has no right
/// asks again slowly.
fn judge(answer: &Response<Bytes>, unknown: &[StatusCode]) -> Verdict {
    match answer.status() {
        status if status.is_success() || unknown.contains(&status) => Verdict::Take,
        StatusCode::BAD_REQUEST | StatusCode::FORBIDDEN | StatusCode::METHOD_NOT_ALLOWED => {
            Verdict::Refuse
        }
        _ => Verdict::Next,
    }
}

impl Registrar for ConsulRegistrar {
    fn rhythm(&self) -> Rhythm {
        Rhythm {
            beats: Some(Beats {
                interval: self.interval(),
                jitter_percent: 10,
                overlap: OVERLAP,
                register_after_failure: true,
            }),
            starting: false,
            marks_leaving: true,
        }
    }

    fn deregister_wait(&self) -> Duration {
        DEREGISTER_WAIT
    }

    fn register(self: Arc<Self>, _: Standing) -> Call {
        Box::pin(async move { self.list().await })
    }

    fn beat(self: Arc<Self>, _: Beat) -> Call {
        Box::pin(async move { self.pass().await })
    }

    fn withdraw(self: Arc<Self>) -> Call {
        // A 500 is no word of the check here: it may still pass.
        Box::pin(async move { self.check("fail", &[StatusCode::NOT_FOUND]).await })
    }

    fn deregister(self: Arc<Self>) -> Call {
        Box::pin(async move {
            let path = format!("/v1/agent/service/deregister/{}", wire::segment(&self.id));
            self.ask(&put(path), |answer| judge(answer, &[StatusCode::NOT_FOUND]))
                .await
        })
    }

    fn observe(self: Arc<Self>) -> Call {
        Box::pin(async move {
            let path = format!("/v1/agent/service/{}", wire::segment(&self.id));
            let call = servers::Call::new(Method::GET, path);
            self.ask(&call, |answer| judge(answer, &[StatusCode::NOT_FOUND]))
                .await
        })
    }
}

#[cfg(test)]
mod tests;
