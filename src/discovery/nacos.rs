//! Endpoints from Nacos: by gRPC with pushes (`nacos/grpc.rs`), or by polling its v1 HTTP API, which
//! every release and r-nacos answer. With `protocol: auto` gRPC is used where it is answered, HTTP
//! meanwhile.
//!
//! Polling: One task
//! per service, at most `max_in_flight` requests; the delay is the server's `cacheMillis` between
//! 3 and 60 s, with jitter; after errors it doubles up to a minute. A held answer is read again
//! every 10 s without back-off.
//!
//! Next: `nacos/login.rs` (the access token), `nacos/wire.rs` (bodies), `http_client/servers.rs` (which
//! server, one request).

mod datagram;
mod grpc;
mod login;
mod server_list;
mod udp;
mod wire;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use form_urlencoded::Serializer;
use http::{HeaderName, HeaderValue, Method, header};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OnceCell, broadcast};

use super::schedule::{LONGEST, Outcome, Schedule};
use super::source::{Listing, Source, Task};
use super::subscription::{Answer, Failure, Subscription};
use crate::clock::{Clock, Timestamp};
use crate::config::types::{Nacos, NacosProtocol, Registry};
use crate::http_client::auth::Auth;
use crate::http_client::jitter::Jitter;
use crate::http_client::servers::{Call, Server, Servers, by_status};
use crate::http_client::tls::TlsClient;
use crate::http_client::{HttpClient, MAX_BODY};
use crate::nacos_client::link::{Link, LinkSettings, State};
use datagram::Hint;
use grpc::{Ended, Follower, Wanted};
use login::Login;
pub(crate) use server_list::ServerList;
use udp::UdpPush;

/// Least delay between two polls of a service; the longest is that of the schedule.
const LEAST_DELAY: Duration = Duration::from_secs(3);
/// Between two polls because of pushes, at least.
const HINT_PAUSE: Duration = Duration::from_secs(1);
/// Before a socket for pushes that could not be opened is tried again.
const UDP_RETRY: Duration = Duration::from_secs(60);
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
    let servers = config.servers.iter().map(|server| parse(server, &tls));
    let mut random = fastrand::Rng::with_seed(seed);
    let login = Login::new(config, clock, random.fork());
    let start = random.usize(0..config.servers.len().max(1));
    Servers::new(servers.collect(), start, http, registry.max_in_flight)
        .with_auth(login.map(|login| Arc::new(login) as Arc<dyn Auth>))
}

/// Where there is an `endpoint`: keeps its servers those of the list behind that URL, as long as what
/// is returned lives.
pub(crate) fn follow_endpoint(
    config: &Nacos,
    registry: &Registry,
    http: HttpClient,
    servers: &Arc<Servers>,
    seed: u64,
) -> Option<ServerList> {
    let tls = Arc::new(TlsClient::new(registry.tls.clone()));
    let url = Server::parse(config.endpoint.as_ref()?, DEFAULT_PORT, &tls);
    let jitter = Jitter::new(fastrand::Rng::with_seed(seed));
    let parse = move |line: &str| parse(line, &tls);
    Some(ServerList::start(url, http, servers.clone(), parse, jitter))
}

fn parse(text: &str, tls: &Arc<TlsClient>) -> Server {
    let mut server = Server::parse(text, DEFAULT_PORT, tls);
    if server.prefix.is_empty() {
        CONTEXT.clone_into(&mut server.prefix);
    }
    server
}

/// One Nacos registry.
#[derive(Debug)]
pub(super) struct NacosSource {
    namespace: Arc<str>,
    group: Arc<str>,
    clusters: Vec<String>,
    protocol: NacosProtocol,
    servers: Arc<Servers>,
    http: HttpClient,
    max_in_flight: usize,
    clock: Clock,
    jitter: Jitter,
    links: Mutex<Links>,
    /// The configuration, for what is started at the first subscription.
    config: Nacos,
    registry: Registry,
    list: OnceLock<Option<ServerList>>,
    udp: OnceCell<UdpPush>,
    /// When that was last tried; held meanwhile.
    udp_tried: tokio::sync::Mutex<Option<Timestamp>>,
    seed: u64,
}

/// One connection for each namespace that is followed.
#[derive(Debug)]
struct Links {
    random: fastrand::Rng,
    /// That of the registry's own namespace stays.
    own: Option<Arc<Link>>,
    others: BTreeMap<Arc<str>, Weak<Link>>,
}

/// Why polling ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Polled {
    /// Nobody listens.
    Closed,
    /// gRPC is answered.
    LinkUp,
}

impl NacosSource {
    pub(super) fn new(config: &Nacos, registry: &Registry, clock: Clock, seed: u64) -> Self {
        let http = HttpClient {
            timeout: registry.timeout,
            max_body: MAX_BODY,
        };
        let mut random = fastrand::Rng::with_seed(seed);
        let links = Mutex::new(Links {
            random: random.fork(),
            own: None,
            others: BTreeMap::new(),
        });
        let servers = nacos_servers(config, registry, http, clock, random.u64(..));
        Self {
            namespace: config.namespace.clone(),
            group: config.group.clone(),
            clusters: config.clusters.clone(),
            protocol: config.protocol,
            servers: Arc::new(servers),
            http,
            max_in_flight: registry.max_in_flight,
            clock,
            jitter: Jitter::new(random),
            links,
            config: config.clone(),
            registry: registry.clone(),
            list: OnceLock::new(),
            udp: OnceCell::new(),
            udp_tried: tokio::sync::Mutex::default(),
            seed,
        }
    }

    /// The list of servers, where there is one; started when it is first asked for.
    fn list_of_servers(&self) -> Option<&ServerList> {
        let list = self.list.get_or_init(|| {
            let (config, registry) = (&self.config, &self.registry);
            follow_endpoint(config, registry, self.http, &self.servers, self.seed)
        });
        list.as_ref()
    }

    /// Waits until servers are known; false when nobody listens any more.
    async fn servers_known(&self, subscription: &mut Subscription) -> bool {
        let Some(list) = self
            .list_of_servers()
            .filter(|_| self.config.servers.is_empty())
        else {
            return true;
        };
        let mut known = list.known();
        loop {
            let now = known.borrow_and_update().clone();
            match now {
                Some(Ok(())) => return true,
                Some(Err(why)) => {
                    subscription.failed(&Failure::Unanswered(why.to_string()));
                }
                None => {}
            }
            tokio::select! {
                () = subscription.closed() => return false,
                result = known.changed() => if result.is_err() {
                    return false;
                },
            }
        }
    }

    /// Where pushes by UDP are taken, if they are wanted.
    async fn udp(&self) -> Option<&UdpPush> {
        if !self.config.udp_push {
            return None;
        }
        let mut tried = self.udp_tried.lock().await;
        let now = self.clock.now();
        let wait = tried.is_some_and(|at| now.since(at) < UDP_RETRY);
        if self.udp.get().is_none() && !wait {
            *tried = Some(now);
            let started = UdpPush::start(self.servers.clone(), self.clock).await;
            // Nobody else sets it meanwhile.
            drop(started.map(|started| self.udp.set(started)));
        }
        self.udp.get()
    }

    /// The same with other servers, beginning at the first.
    #[cfg(test)]
    fn with_list(mut self, list: Vec<Server>) -> Self {
        if let Some(servers) = Arc::into_inner(self.servers) {
            self.servers = Arc::new(servers.with_list(list));
            return self;
        }
        unreachable!("nobody else has them yet")
    }

    /// The connection for a namespace.
    fn link(&self, namespace: &str) -> Arc<Link> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let own = *namespace == *self.namespace;
        let known = match own {
            true => links.own.clone(),
            false => links.others.get(namespace).and_then(Weak::upgrade),
        };
        if let Some(link) = known {
            return link;
        }
        let link = Arc::new(Link::start(LinkSettings {
            namespace: namespace.into(),
            servers: self.servers.clone(),
            http: self.http,
            auth: self.servers.auth(),
            max_in_flight: self.max_in_flight,
            clock: self.clock,
            random: links.random.fork(),
            optional: self.protocol == NacosProtocol::Auto,
        }));
        if own {
            links.own = Some(link.clone());
        } else {
            links.others.retain(|_, link| link.strong_count() > 0);
            links.others.insert(namespace.into(), Arc::downgrade(&link));
        }
        link
    }

    /// Follows one service until nobody listens.
    async fn run(self: Arc<Self>, mut subscription: Subscription) {
        let wanted = self.wanted(&subscription);
        if !self.servers_known(&mut subscription).await {
            return;
        }
        if self.protocol == NacosProtocol::Http {
            self.poll(&wanted, &mut subscription, None).await;
            return;
        }
        let link = self.link(&wanted.namespace);
        let optional = self.protocol == NacosProtocol::Auto;
        loop {
            let mut follower = Follower {
                link: &link,
                wanted: &wanted,
                jitter: &self.jitter,
                clock: self.clock,
                used: false,
            };
            if follower.follow(&mut subscription, optional).await == Ended::Closed {
                return;
            }
            if follower.used {
                // It usually is back soon, on another server: no burst of polls by a whole fleet.
                let pause = self.jitter.between(LEAST_DELAY, FIRST_DELAY);
                tokio::select! {
                    () = up(&link) => continue,
                    listened = subscription.sleep(pause) => if !listened {
                        return;
                    },
                }
            }
            let polled = self.poll(&wanted, &mut subscription, Some(&link)).await;
            if polled == Polled::Closed {
                return;
            }
        }
    }

    async fn ask(
        &self,
        path: &str,
        query: &str,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<Bytes, Failure> {
        let mut call = Call::new(Method::GET, format!("{path}?{query}"));
        call.headers = headers.to_vec();
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
            let body = self.ask("/v1/ns/service/list", &query, &[]).await?;
            let page = wire::names(&body).map_err(Failure::Unanswered)?;
            let last = page.doms.is_empty() || names.len() + page.doms.len() >= page.count;
            names.extend(page.doms.iter().map(|name| name.as_str().into()));
            if last {
                break;
            }
        }
        Ok(names)
    }

    /// Polls one service until nobody listens, or until a link is up.
    async fn poll(
        &self,
        wanted: &Wanted,
        subscription: &mut Subscription,
        link: Option<&Link>,
    ) -> Polled {
        let mut query = list_query(wanted);
        let mut hints = None;
        let mut headers = Vec::new();
        let mut link_up = pin!(async {
            match link {
                Some(link) => up(link).await,
                None => std::future::pending().await,
            }
        });
        let mut schedule = Schedule::new(FIRST_DELAY);
        subscription.set_period(schedule.period());
        loop {
            if headers.is_empty()
                && let Some(udp) = self.udp().await
            {
                hints = Some(udp.hints());
                let (ip, port) = (udp.address.ip(), udp.address.port());
                query.push_str(&format!("&udpPort={port}&clientIP={ip}"));
                let agent = HeaderValue::from_static(udp::PUSHED_AGENT);
                headers.push((header::USER_AGENT, agent));
            }
            let result = tokio::select! {
                () = subscription.closed() => return Polled::Closed,
                () = link_up.as_mut() => return Polled::LinkUp,
                result = self.ask("/v1/ns/instance/list", &query, &headers) => result,
            };
            let list = result.and_then(|body| wire::list(&body).map_err(Failure::Unanswered));
            let outcome = match list {
                Ok(list) => {
                    let period = list
                        .cache
                        .map_or(FIRST_DELAY, |c| c.clamp(LEAST_DELAY, LONGEST));
                    subscription.set_period(period);
                    let answer = Answer {
                        endpoints: list.endpoints,
                        health_unknown: list.protected,
                        skipped: list.skipped,
                    };
                    match subscription.answer(answer) {
                        Some(recheck) => Outcome::Held { recheck },
                        None => Outcome::Answered { period },
                    }
                }
                Err(failure) => {
                    subscription.failed(&failure);
                    match failure {
                        Failure::Refused(_) => Outcome::Refused,
                        Failure::Unanswered(_) => Outcome::Failed,
                    }
                }
            };
            let pause = schedule.next(outcome, &self.jitter);
            let asked = self.clock.now();
            tokio::select! {
                () = link_up.as_mut() => return Polled::LinkUp,
                listened = subscription.sleep(pause) => if !listened {
                    return Polled::Closed;
                },
                () = hinted(&mut hints, wanted) => {
                    // However many hints come.
                    let pause = (asked + HINT_PAUSE).since(self.clock.now());
                    if !subscription.sleep(pause).await {
                        return Polled::Closed;
                    }
                }
            }
        }
    }

    fn wanted(&self, subscription: &Subscription) -> Wanted {
        let wanted = &subscription.query;
        let (group, name) = match wanted.registry_name.split_once("@@") {
            Some((group, name)) => (group, name),
            None => (
                &**wanted.group.as_ref().unwrap_or(&self.group),
                &*wanted.registry_name,
            ),
        };
        Wanted {
            namespace: wanted.namespace.as_ref().unwrap_or(&self.namespace).clone(),
            group: group.to_owned(),
            name: name.to_owned(),
            clusters: wanted.clusters.as_ref().unwrap_or(&self.clusters).clone(),
        }
    }
}

/// Until a push says that a service changed.
async fn hinted(hints: &mut Option<broadcast::Receiver<Hint>>, wanted: &Wanted) {
    while let Some(receiver) = hints {
        match receiver.recv().await {
            Ok(hint) if hint.group == wanted.group && hint.name == wanted.name => return,
            Ok(_) => {}
            // Some were missed, perhaps one of ours.
            Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => *hints = None,
        }
    }
    std::future::pending::<()>().await;
}

/// Until a link is up.
async fn up(link: &Link) {
    let mut state = link.state();
    if state
        .wait_for(|state| matches!(state, State::Up(_)))
        .await
        .is_err()
    {
        std::future::pending::<()>().await;
    }
}

fn list_query(wanted: &Wanted) -> String {
    let mut query = Serializer::new(String::new());
    query
        .append_pair("serviceName", &wanted.name)
        .append_pair("groupName", &wanted.group)
        .append_pair("namespaceId", &wanted.namespace)
        .append_pair("healthyOnly", "false");
    if !wanted.clusters.is_empty() {
        query.append_pair("clusters", &wanted.clusters.join(","));
    }
    query.finish()
}

impl Source for NacosSource {
    fn follow(self: Arc<Self>, subscription: Subscription) -> Task {
        Box::pin(self.run(subscription))
    }

    fn names(self: Arc<Self>) -> Listing {
        Box::pin(async move {
            if let Some(list) = self
                .list_of_servers()
                .filter(|_| self.config.servers.is_empty())
            {
                let mut known = list.known();
                let first = known.wait_for(Option::is_some).await;
                if let Some(Some(Err(why))) = first.ok().map(|known| known.clone()) {
                    return Err(Failure::Unanswered(why.to_string()));
                }
            }
            let by_grpc = match self.protocol {
                NacosProtocol::Http => false,
                NacosProtocol::Grpc => true,
                NacosProtocol::Auto => {
                    let link = self.link(&self.namespace);
                    let state = link.state();
                    matches!(&*state.borrow(), State::Up(_))
                }
            };
            if !by_grpc {
                return self.list().await;
            }
            let link = self.link(&self.namespace);
            Ok(grpc::names(&link, &self.namespace, &self.group).await?)
        })
    }
}

#[cfg(test)]
mod tests;
