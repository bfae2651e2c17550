//! Endpoints from Consul: one blocking query per service, of all instances with their checks, so that
//! what an instance is worth is decided here. The agent answers when something changed or after
//! `wait`. More than a hundred services are not all watched, since an agent allows so many
//! connections; the rest is polled. A held answer is read again every 10 s without blocking.
//!
//! Next: `consul/watch.rs` (index, speed, back-off), `consul/wire.rs` (bodies).

mod watch;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use form_urlencoded::Serializer;
use http::{HeaderMap, HeaderName, Method, Response, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::source::{Listing, Source, Task};
use super::subscription::{Answer, Failure, Subscription};
use crate::clock::Clock;
use crate::config::types::{Consistency, Consul, Registry};
use crate::http_client::auth::{Auth, TokenFile};
use crate::http_client::jitter::Jitter;
use crate::http_client::servers::{Answered, Call, Server, Servers, Verdict};
use crate::http_client::tls::TlsClient;
use crate::http_client::{HttpClient, MAX_BODY};
use watch::{Step, Watch};

/// The port of an address that names none; addresses are URLs, so it is never needed.
const DEFAULT_PORT: u16 = 8500;
/// Watches of one agent: it allows 200 connections of one client, and the app has its own.
const MAX_WATCHES: usize = 100;
/// Without a watch a service is read this often.
const POLL: Duration = Duration::from_secs(10);
/// After a refusal; only a change of the configuration or of a token helps.
const REFUSED_DELAY: Duration = Duration::from_secs(30);
/// From this failure on silence is no sign of rest.
const LOST_AFTER: u32 = 3;
/// A token is read again this often, and when it is refused.
const TOKEN_PERIOD: Duration = Duration::from_secs(60);
/// Beside `wait` and the agent's own jitter of a sixteenth of it.
const PATIENCE: Duration = Duration::from_secs(5);
/// What stays as it is in a name inside a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

const TOKEN: HeaderName = HeaderName::from_static("x-consul-token");
const INDEX: HeaderName = HeaderName::from_static("x-consul-index");
const FILTERED: HeaderName = HeaderName::from_static("x-consul-results-filtered-by-acls");
const ACL_POLICY: HeaderName = HeaderName::from_static("x-consul-default-acl-policy");

/// One Consul agent.
#[derive(Debug)]
pub(super) struct ConsulSource {
    config: Consul,
    clock: Clock,
    servers: Servers,
    jitter: Jitter,
    watches: Arc<Semaphore>,
}

/// A readable answer.
struct Read {
    index: Option<u64>,
    answer: Answer,
}

impl ConsulSource {
    pub(super) fn new(config: &Consul, registry: &Registry, clock: Clock, seed: u64) -> Self {
        let http = HttpClient {
            timeout: registry.timeout,
            max_body: MAX_BODY,
        };
        let tls = Arc::new(TlsClient::new(registry.tls.clone()));
        let agent = Server::parse(&config.address, DEFAULT_PORT, &tls);
        let token = config.token_file.clone().map(|path| {
            Arc::new(TokenFile::new(path, TOKEN, "", TOKEN_PERIOD, clock)) as Arc<dyn Auth>
        });
        Self {
            config: config.clone(),
            clock,
            servers: Servers::new(vec![agent], 0, http, registry.max_in_flight).with_auth(token),
            jitter: Jitter::new(fastrand::Rng::with_seed(seed)),
            watches: Arc::new(Semaphore::new(MAX_WATCHES)),
        }
    }

    /// Follows one service until nobody listens.
    async fn watch(self: Arc<Self>, mut subscription: Subscription) {
        let path = self.path(&subscription);
        let mut watch = Watch::new(self.clock.now());
        let mut place: Option<OwnedSemaphorePermit> = None;
        loop {
            if place.is_none() {
                place = self.watches.clone().try_acquire_owned().ok();
            }
            let index = if place.is_some() { watch.index() } else { 0 };
            let result = tokio::select! {
                () = subscription.closed() => return,
                result = self.read(&path, index) => result,
            };
            let now = self.clock.now();
            let pause = match result {
                Ok(read) => {
                    let period = if place.is_some() {
                        self.config.wait
                    } else {
                        POLL
                    };
                    subscription.set_period(period);
                    let recheck = match watch.answered(read.index) {
                        Step::Use => subscription.answer(read.answer),
                        Step::Again => None,
                    };
                    match (recheck, &place) {
                        (Some(recheck), _) => {
                            watch.forget();
                            recheck
                        }
                        (None, Some(_)) => watch.pause(now),
                        (None, None) => self.jitter.around(POLL),
                    }
                }
                Err(failure) => {
                    let failures = watch.failed();
                    subscription.failed(&failure);
                    if failures >= LOST_AFTER {
                        subscription.set_period(POLL);
                    }
                    match failure {
                        Failure::Refused(_) => self.jitter.around(REFUSED_DELAY),
                        Failure::Unanswered(_) => {
                            let (base, most) = (watch::FIRST_RETRY, watch::LAST_RETRY);
                            self.jitter.back_off(base, failures, most)
                        }
                    }
                }
            };
            if !subscription.sleep(pause).await {
                return;
            }
        }
    }

    async fn read(&self, path: &str, index: u64) -> Result<Read, Failure> {
        let mut call = Call::new(Method::GET, path.to_owned());
        if index > 0 {
            let wait = self.config.wait;
            call.path = format!("{path}&index={index}&wait={}ms", wait.as_millis());
            call.wait = wait.saturating_add(wait / 16).saturating_add(PATIENCE);
        }
        let answered = self.servers.ask(&call, judge).await?;
        let health = wire::health(
            answered.response.body(),
            self.config.tagged_address.as_deref(),
        );
        let health = health.map_err(Failure::Unanswered)?;
        if health.listed == 0 {
            self.is_truly_empty(&answered)?;
        }
        Ok(Read {
            index: number(answered.response.headers(), &INDEX),
            answer: Answer {
                endpoints: health.endpoints,
                health_unknown: false,
                skipped: health.skipped,
            },
        })
    }

    /// An empty list may be what a token without rights sees, or nobody at all.
    fn is_truly_empty(&self, answered: &Answered) -> Result<(), Failure> {
        let headers = answered.response.headers();
        let is = |name: &HeaderName, value: &str| {
            headers
                .get(name)
                .is_some_and(|found| found.as_bytes().eq_ignore_ascii_case(value.as_bytes()))
        };
        let anonymous = self.config.token_file.is_none() && is(&ACL_POLICY, "deny");
        if is(&FILTERED, "true") {
            let what = "the token of `token_file` may not read this: it needs `service:read` and \
                        `node:read`";
            return Err(Failure::Refused(what.to_owned()));
        }
        if anonymous {
            let what = "the agent hides everything from those without a token: set `token_file`";
            return Err(Failure::Refused(what.to_owned()));
        }
        Ok(())
    }

    /// The names of the datacenter that have all configured tags.
    async fn list(&self) -> Result<Vec<Arc<str>>, Failure> {
        let call = Call::new(Method::GET, self.names_path());
        let answered = self.servers.ask(&call, judge).await?;
        let names = wire::names(answered.response.body(), &self.config.tags);
        let names = names.map_err(Failure::Unanswered)?;
        if names.is_empty() {
            self.is_truly_empty(&answered)?;
        }
        Ok(names)
    }

    fn names_path(&self) -> String {
        let mut query = Serializer::new(String::new());
        self.common(&mut query);
        format!("/v1/catalog/services?{}", query.finish())
    }

    fn path(&self, subscription: &Subscription) -> String {
        let wanted = &subscription.query;
        let mut query = Serializer::new(String::new());
        self.common(&mut query);
        for tag in &self.config.tags {
            query.append_pair("tag", tag);
        }
        if let Some(filter) = &self.config.filter {
            query.append_pair("filter", filter);
        }
        if let Some(namespace) = &wanted.namespace {
            query.append_pair("ns", namespace);
        }
        let name = utf8_percent_encode(&wanted.registry_name, SEGMENT);
        format!("/v1/health/service/{name}?{}", query.finish())
    }

    fn common(&self, query: &mut Serializer<'_, String>) {
        match self.config.consistency {
            Consistency::Stale => {
                query.append_pair("stale", "");
            }
            Consistency::Default => {}
            Consistency::Consistent => {
                query.append_pair("consistent", "");
            }
        }
        if let Some(datacenter) = &self.config.datacenter {
            query.append_pair("dc", datacenter);
        }
    }
}

impl Source for ConsulSource {
    fn follow(self: Arc<Self>, subscription: Subscription) -> Task {
        Box::pin(self.watch(subscription))
    }

    fn names(self: Arc<Self>) -> Listing {
        Box::pin(async move { self.list().await })
    }
}

/// A filter that cannot be read is 500 here, and a token without rights 403.
fn judge(answer: &Response<bytes::Bytes>) -> Verdict {
    match answer.status() {
        StatusCode::OK => Verdict::Take,
        StatusCode::BAD_REQUEST | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => Verdict::Refuse,
        StatusCode::INTERNAL_SERVER_ERROR if wire::is_bad_filter(answer.body()) => Verdict::Refuse,
        _ => Verdict::Next,
    }
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
