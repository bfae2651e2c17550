//! Registration with Nacos: by gRPC in `nacos/grpc.rs` (`protocol: grpc`), here over its v1 HTTP API, which every release and r-nacos answer: register,
//! beat (light where the server understands it), disable by registering again with `enabled=false`
//! (an update would be kept as an operator's word and outlive the next registration), deregister.
//!
//! Next: `nacos/wire.rs` (parameters and answers).

pub(super) mod grpc;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};

use self::wire::Names;
use super::machine::{Beat, Outcome, Standing, Terms};
use super::record::Record;
use super::registrar::{Call, Registrar};
use super::rhythm::{Beats, Rhythm};
use crate::config::types::Nacos;
use crate::http_client::servers::{self, CallError, Servers, Verdict, by_status, message};

/// Its readers poll every 10 s at the slowest.
const DEREGISTER_WAIT: Duration = Duration::from_secs(12);

/// One instance there.
#[derive(Debug)]
pub(super) struct NacosRegistrar {
    servers: Arc<Servers>,
    names: Names,
    record: Record,
}

impl NacosRegistrar {
    pub(super) fn new(servers: Arc<Servers>, config: &Nacos, record: Record) -> Self {
        Self {
            servers,
            names: Names::of(config, &record),
            record,
        }
    }

    async fn ask(
        &self,
        call: servers::Call,
        judge: fn(&Response<Bytes>) -> Verdict,
    ) -> Result<Response<Bytes>, Outcome> {
        let answered = self.servers.ask(&call, judge).await;
        answered
            .map(|answered| answered.response)
            .map_err(Outcome::from)
    }

    async fn put(&self, enabled: bool) -> Outcome {
        let query = wire::register(&self.names, &self.record, enabled);
        let call = servers::Call::new(Method::POST, format!("/v1/ns/instance?{query}"));
        match self.ask(call, by_status).await {
            Ok(_) => Outcome::DONE,
            Err(outcome) => outcome,
        }
    }

    async fn send_beat(&self, beat: Beat) -> Outcome {
        let query = wire::identity(&self.names);
        let path = format!("/v1/ns/instance/beat?{query}");
        let mut call = servers::Call::new(Method::PUT, path);
        if beat == Beat::Full {
            let form = HeaderValue::from_static("application/x-www-form-urlencoded");
            call.headers.push((header::CONTENT_TYPE, form));
            call.body = wire::beat(&self.names, &self.record).into();
        }
        let answer = match self.ask(call, by_status).await {
            Ok(answer) => wire::beaten(answer.body()),
            Err(outcome) => return outcome,
        };
        match answer {
            Outcome::Accepted(terms) => Outcome::Accepted(Terms {
                interval: self.record.heartbeat_interval.or(terms.interval),
                ..terms
            }),
            other @ (Outcome::Missing | Outcome::Failed(_) | Outcome::Refused(_)) => other,
        }
    }

    async fn look(&self) -> Outcome {
        let query = wire::identity(&self.names);
        let call = servers::Call::new(Method::GET, format!("/v1/ns/instance?{query}"));
        match self.ask(call, detail).await {
            Ok(answer) if answer.status() == StatusCode::OK => Outcome::DONE,
            Ok(_) => Outcome::Missing,
            Err(outcome) => outcome,
        }
    }
}

/// The detail of an instance that is not there is a 404, or a 500 with a text of its own.
fn detail(answer: &Response<Bytes>) -> Verdict {
    match answer.status() {
        StatusCode::NOT_FOUND => Verdict::Take,
        StatusCode::INTERNAL_SERVER_ERROR | StatusCode::BAD_REQUEST
            if wire::is_missing(&message(answer.body())) =>
        {
            Verdict::Take
        }
        _ => by_status(answer),
    }
}

impl From<CallError> for Outcome {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(why) => Self::Refused(why),
            CallError::Unanswered(why) => Self::Failed(why),
        }
    }
}

impl Registrar for NacosRegistrar {
    fn rhythm(&self) -> Rhythm {
        let beats = Beats {
            interval: self.record.heartbeat_interval.unwrap_or(wire::INTERVAL),
            jitter_percent: 20,
            overlap: 1,
            register_after_failure: false,
        };
        Rhythm {
            // What is not ephemeral is probed by the server.
            beats: self.record.ephemeral.then_some(beats),
            starting: false,
            marks_leaving: true,
        }
    }

    fn deregister_wait(&self) -> Duration {
        DEREGISTER_WAIT
    }

    fn register(self: Arc<Self>, _: Standing) -> Call {
        Box::pin(async move { self.put(true).await })
    }

    fn beat(self: Arc<Self>, beat: Beat) -> Call {
        Box::pin(async move { self.send_beat(beat).await })
    }

    fn withdraw(self: Arc<Self>) -> Call {
        Box::pin(async move { self.put(false).await })
    }

    fn deregister(self: Arc<Self>) -> Call {
        Box::pin(async move {
            let mut query = wire::identity(&self.names);
            query.push_str(&format!("&ephemeral={}", self.record.ephemeral));
            let call = servers::Call::new(Method::DELETE, format!("/v1/ns/instance?{query}"));
            match self.ask(call, by_status).await {
                Ok(_) => Outcome::DONE,
                Err(outcome) => outcome,
            }
        })
    }

    fn observe(self: Arc<Self>) -> Call {
        Box::pin(async move { self.look().await })
    }
}

#[cfg(test)]
mod tests;
