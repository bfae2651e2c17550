//! Endpoints from Nacos by polling its v1 HTTP API, which every release and r-nacos answer. One task
//! per service, at most `max_in_flight` requests; the delay is the server's `cacheMillis` between
//! 3 and 60 s, with jitter; after errors it doubles up to a minute. A held answer is read again
//! every 10 s without back-off.
//!
//! Next: `nacos/login.rs` (the access token), `nacos/wire.rs` (bodies), `http_client/servers.rs` (which
//! server, one request).

mod login;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use form_urlencoded::Serializer;
use http::Method;

use super::source::{Listing, Source, Task};
use super::subscription::{Answer, Failure, Subscription};
use crate::clock::Clock;
use crate::config::types::{Nacos, Registry};
use crate::http_client::auth::Auth;
use crate::http_client::jitter::Jitter;
use crate::http_client::servers::{Call, Server, Servers, by_status};
use crate::http_client::tls::TlsClient;
use crate::http_client::{HttpClient, MAX_BODY};
use login::Login;

/// Bounds of the delay between two polls of a service.
const LEAST_DELAY: Duration = Duration::from_secs(3);
const MOST_DELAY: Duration = Duration::from_secs(60);
/// The delay before the server has said one.
const FIRST_DELAY: Duration = Duration::from_secs(10);
/// The port of a server that names none.
const DEFAULT_PORT: u16 = 8848;
/// Where Nacos lives on every server that says nothing else.
const CONTEXT: &str = "/nacos";
/// Names asked for at once, and pages at most.
const PAGE_SIZE: usize = 500;
const MAX_PAGES: usize = 200;

/// The servers of a Nacos registry with its login; registrations ask them too.
pub(crate) fn nacos_servers(
    config: &Nacos,
    registry: &Registry,
    http: HttpClient,
    clock: Clock,
    seed: u64,
) -> Servers {
    let tls = Arc::new(TlsClient::new(registry.tls.clone()));
    let servers = config.servers.iter().map(|server| {
        let mut server = Server::parse(server, DEFAULT_PORT, &tls);
        if server.prefix.is_empty() {
            CONTEXT.clone_into(&mut server.prefix);
        }
        server
    });
    let mut random = fastrand::Rng::with_seed(seed);
    let login = Login::new(config, clock, random.fork());
    let start = random.usize(0..config.servers.len().max(1));
    Servers::new(servers.collect(), start, http, registry.max_in_flight)
        .with_auth(login.map(|login| Arc::new(login) as Arc<dyn Auth>))
}

/// One Nacos registry.
#[derive(Debug)]
pub(super) struct NacosSource {
    namespace: Arc<str>,
    group: Arc<str>,
    clusters: Vec<String>,
    servers: Servers,
    jitter: Jitter,
}

impl NacosSource {
    pub(super) fn new(config: &Nacos, registry: &Registry, clock: Clock, seed: u64) -> Self {
        let http = HttpClient {
            timeout: registry.timeout,
            max_body: MAX_BODY,
        };
        let mut random = fastrand::Rng::with_seed(seed);
        let servers = nacos_servers(config, registry, http, clock, random.u64(..));
        Self {
            namespace: config.namespace.clone(),
            group: config.group.clone(),
            clusters: config.clusters.clone(),
            servers,
            jitter: Jitter::new(random),
        }
    }

    async fn ask(&self, path: &str, query: &str) -> Result<Bytes, Failure> {
        let call = Call::new(Method::GET, format!("{path}?{query}"));
        let answered = self.servers.ask(&call, by_status).await?;
        Ok(answered.response.into_body())
    }

    /// The names of the registry's namespace and group.
    async fn list(&self) -> Result<Vec<Arc<str>>, Failure> {
        let mut names: Vec<Arc<str>> = Vec::new();
        for page in 1..=MAX_PAGES {
            let query = Serializer::new(String::new())
                .append_pair("pageNo", &page.to_string())
                .append_pair("pageSize", &PAGE_SIZE.to_string())
                .append_pair("namespaceId", &self.namespace)
                .append_pair("groupName", &self.group)
                .finish();
            let body = self.ask("/v1/ns/service/list", &query).await?;
            let page = wire::names(&body).map_err(Failure::Unanswered)?;
            let last = page.doms.is_empty() || names.len() + page.doms.len() >= page.count;
            names.extend(page.doms.iter().map(|name| name.as_str().into()));
            if last {
                break;
            }
        }
        Ok(names)
    }

    /// Polls one service until nobody listens.
    async fn poll(self: Arc<Self>, mut subscription: Subscription) {
        let query = self.list_query(&subscription);
        let mut delay = FIRST_DELAY;
        let mut failures = 0u32;
        subscription.set_period(delay);
        loop {
            let result = tokio::select! {
                () = subscription.closed() => return,
                result = self.ask("/v1/ns/instance/list", &query) => result,
            };
            let list = result.and_then(|body| wire::list(&body).map_err(Failure::Unanswered));
            let pause = match list {
                Ok(list) => {
                    failures = 0;
                    delay = list
                        .cache
                        .map_or(FIRST_DELAY, |c| c.clamp(LEAST_DELAY, MOST_DELAY));
                    subscription.set_period(delay);
                    let answer = Answer {
                        endpoints: list.endpoints,
                        health_unknown: list.protected,
                        skipped: list.skipped,
                    };
                    subscription
                        .answer(answer)
                        .unwrap_or_else(|| self.jitter.around(delay))
                }
                Err(failure) => {
                    failures = failures.saturating_add(1);
                    subscription.failed(&failure);
                    match failure {
                        Failure::Refused(_) => self.jitter.around(MOST_DELAY),
                        Failure::Unanswered(_) => self.jitter.back_off(delay, failures, MOST_DELAY),
                    }
                }
            };
            if !subscription.sleep(pause).await {
                return;
            }
        }
    }

    fn list_query(&self, subscription: &Subscription) -> String {
        let wanted = &subscription.query;
        let (group, name) = match wanted.registry_name.split_once("@@") {
            Some((group, name)) => (group, name),
            None => (
                &**wanted.group.as_ref().unwrap_or(&self.group),
                &*wanted.registry_name,
            ),
        };
        let clusters = wanted.clusters.as_ref().unwrap_or(&self.clusters);
        let mut query = Serializer::new(String::new());
        query
            .append_pair("serviceName", name)
            .append_pair("groupName", group)
            .append_pair(
                "namespaceId",
                wanted.namespace.as_ref().unwrap_or(&self.namespace),
            )
            .append_pair("healthyOnly", "false");
        if !clusters.is_empty() {
            query.append_pair("clusters", &clusters.join(","));
        }
        query.finish()
    }
}

impl Source for NacosSource {
    fn follow(self: Arc<Self>, subscription: Subscription) -> Task {
        Box::pin(self.poll(subscription))
    }

    fn names(self: Arc<Self>) -> Listing {
        Box::pin(async move { self.list().await })
    }
}

#[cfg(test)]
mod tests;
