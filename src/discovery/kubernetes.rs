//! Endpoints from Kubernetes: the EndpointSlices of whole namespaces, one watch each, whatever number
//! of services is wanted. A subscription looks at the slices of its service in the namespace's map.
//! Readiness is a probe by the kubelet, not a heart-beat: what is not ready gets nothing.
//!
//! Next: `kubernetes/follow.rs` (the task of a namespace), `kubernetes/machine.rs` (what it does next),
//! `kubernetes/wire.rs` (slices), `kubernetes/set.rs` (from slices to endpoints).

mod follow;
mod identity;
mod machine;
mod set;
mod wire;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header;
use tokio::sync::watch;

use super::ServiceQuery;
use super::source::{Listing, Source, Task};
use super::subscription::{Answer, Failure, Subscription};
use crate::clock::{Clock, Timestamp};
use crate::config::types::{Kubernetes, Registry};
use crate::http_client::auth::{Auth, TokenFile};
use crate::http_client::jitter::Jitter;
use crate::http_client::servers::{Server, Servers};
use crate::http_client::tls::TlsClient;
use crate::http_client::{HttpClient, MAX_BODY};
use follow::{Api, Follower, Known};
use identity::{Identity, Surroundings};
use machine::Slices;
use set::Choice;

/// The port of a server that names none.
const DEFAULT_PORT: u16 = 443;
/// The kubelet replaces a token long before its end.
const TOKEN_PERIOD: Duration = Duration::from_secs(60);
/// Between two signs of life: bookmarks, or ends of a watch where there are none.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
const WATCH_PERIOD: Duration = Duration::from_secs(300);
/// While it fails.
const LOST_PERIOD: Duration = Duration::from_secs(10);
/// Failures of a namespace in a row until silence is no sign of rest.
const LOST_AFTER: u32 = 3;
/// Slices that did not change are a sign of life at most this often.
const REFRESH: Duration = Duration::from_secs(30);
/// What a service in another namespace may have at its end.
const CLUSTER_DOMAINS: [&str; 2] = [".svc.cluster.local", ".svc"];

/// The API server of one cluster.
#[derive(Debug)]
pub(super) struct KubernetesSource {
    api: Arc<Api>,
    choice: Choice,
    /// Watched; the first is where bare names live.
    namespaces: Vec<Arc<str>>,
    watched: Arc<Watched>,
    /// Keeps the watches alive that names are read from.
    kept: Mutex<HashMap<Arc<str>, watch::Receiver<Known>>>,
    patience: Duration,
    /// Why nothing can be asked.
    lost: Option<String>,
}

/// The namespaces that are followed by a task.
#[derive(Debug, Default)]
struct Watched(Mutex<HashMap<Arc<str>, Arc<watch::Sender<Known>>>>);

impl KubernetesSource {
    pub(super) fn new(config: &Kubernetes, registry: &Registry, clock: Clock, seed: u64) -> Self {
        Self::within(config, registry, clock, seed, &Surroundings::read())
    }

    fn within(
        config: &Kubernetes,
        registry: &Registry,
        clock: Clock,
        seed: u64,
        around: &Surroundings,
    ) -> Self {
        let identity = Identity::new(config, registry, around);
        let http = HttpClient {
            timeout: registry.timeout,
            max_body: MAX_BODY,
        };
        let tls = Arc::new(TlsClient::new(identity.tls));
        let api = identity.api.as_deref();
        let server = api.map(|url| Server::parse(url, DEFAULT_PORT, &tls));
        let token = identity.token_file.map(|path| {
            let header = header::AUTHORIZATION;
            Arc::new(TokenFile::new(path, header, "Bearer ", TOKEN_PERIOD, clock)) as Arc<dyn Auth>
        });
        let lost = server.is_none().then(|| {
            "this is no pod (KUBERNETES_SERVICE_HOST is not set): set `api`, `token_file` and \
             `ca_file`"
                .to_owned()
        });
        let servers = Servers::new(
            server.into_iter().collect(),
            0,
            http,
            registry.max_in_flight,
        );
        Self {
            api: Arc::new(Api {
                servers: servers.with_auth(token),
                jitter: Jitter::new(fastrand::Rng::with_seed(seed)),
                clock,
            }),
            choice: Choice {
                port_name: config.port_name.clone(),
                family: config.ip_family,
                own: around.own_ip,
            },
            namespaces: identity
                .namespaces
                .iter()
                .map(|n| n.as_str().into())
                .collect(),
            watched: Arc::default(),
            kept: Mutex::default(),
            patience: registry.timeout,
            lost,
        }
    }

    /// What is known of a namespace, now and later; its task runs as long as somebody has this.
    fn namespace(&self, name: &Arc<str>) -> watch::Receiver<Known> {
        let mut watched = self.watched.lock();
        if let Some(known) = watched.get(name) {
            return known.subscribe();
        }
        let (sender, receiver) = watch::channel(Known::default());
        let sender = Arc::new(sender);
        watched.insert(name.clone(), sender.clone());
        let mut follower = Follower::new(self.api.clone(), name.clone(), sender.clone());
        let (watched, name) = (self.watched.clone(), name.clone());
        drop(tokio::spawn(async move {
            loop {
                follower.run().await;
                let mut watched = watched.lock();
                if sender.receiver_count() == 0 {
                    watched.remove(&name);
                    return;
                }
            }
        }));
        receiver
    }

    /// The namespace and the name that a query means.
    fn place(&self, query: &ServiceQuery) -> (Arc<str>, Arc<str>) {
        let (name, namespace) = split(&query.registry_name);
        let own = || self.namespaces.first().cloned().unwrap_or_default();
        let namespace = query.namespace.clone().or(namespace).unwrap_or_else(own);
        (namespace, name)
    }

    /// Follows one service until nobody listens.
    async fn watch(self: Arc<Self>, mut subscription: Subscription) {
        if let Some(lost) = &self.lost {
            subscription.failed(&Failure::Refused(lost.clone()));
            subscription.closed().await;
            return;
        }
        let (namespace, name) = self.place(&subscription.query);
        let mut receiver = self.namespace(&namespace);
        let mut seen = Seen::default();
        loop {
            let known = receiver.borrow_and_update().clone();
            self.look(&mut subscription, &known, &mut seen, &namespace, &name);
            let now = self.api.clock.now();
            let pause = seen.recheck_at.map_or(LOST_PERIOD, |at| at.since(now));
            tokio::select! {
                alive = subscription.sleep(pause) => {
                    if !alive {
                        return;
                    }
                    if seen.recheck_at.take().is_some() {
                        seen.answers = 0;
                        seen.slices = None;
                    }
                }
                changed = receiver.changed() => {
                    if changed.is_err() {
                        receiver = self.namespace(&namespace);
                        seen = Seen::default();
                    }
                }
            }
        }
    }

    /// Tells a subscription what is new of its namespace.
    fn look(
        &self,
        subscription: &mut Subscription,
        known: &Known,
        seen: &mut Seen,
        namespace: &str,
        name: &str,
    ) {
        if let Some(failure) = &known.failure {
            if seen.failures != known.failures {
                seen.failures = known.failures;
                seen.in_a_row = seen.in_a_row.saturating_add(1);
                seen.slices = None;
                subscription.failed(failure);
                if seen.in_a_row >= LOST_AFTER {
                    subscription.set_period(LOST_PERIOD);
                }
            }
            return;
        }
        let Some(services) = &known.services else {
            return;
        };
        if seen.answers == known.answers {
            return;
        }
        (seen.answers, seen.in_a_row) = (known.answers, 0);
        let slices = services.get(name).cloned().unwrap_or_default();
        let now = self.api.clock.now();
        if let Some((last, at)) = &seen.slices
            && now.since(*at) < REFRESH
            && (Arc::ptr_eq(last, &slices) || (last.is_empty() && slices.is_empty()))
        {
            return;
        }
        subscription.set_period(match known.bookmarks {
            true => BOOKMARK_PERIOD,
            false => WATCH_PERIOD,
        });
        let found = set::endpoints(&slices, namespace, &self.choice);
        seen.slices = Some((slices, now));
        match found {
            Ok((endpoints, skipped)) => {
                let held = subscription.answer(Answer {
                    endpoints,
                    health_unknown: false,
                    skipped: skipped + known.skipped,
                });
                seen.recheck_at = held.map(|recheck| now + recheck);
            }
            Err(why) => {
                let what = format!("service `{name}` in namespace `{namespace}`: {why}");
                subscription.failed(&Failure::Refused(what));
            }
        }
    }

    /// The services of all watched namespaces, in every form in which a name may be written.
    async fn list(&self) -> Result<Vec<Arc<str>>, Failure> {
        if let Some(lost) = &self.lost {
            return Err(Failure::Refused(lost.clone()));
        }
        let mut names = Vec::new();
        for (position, namespace) in self.namespaces.iter().enumerate() {
            let mut receiver = {
                let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
                let kept = kept.entry(namespace.clone());
                kept.or_insert_with(|| self.namespace(namespace)).clone()
            };
            let waited = tokio::time::timeout(
                self.patience,
                receiver.wait_for(|known| known.services.is_some() || known.failure.is_some()),
            );
            let known = match waited.await {
                Ok(Ok(known)) => known.clone(),
                Ok(Err(_)) | Err(_) => Known::default(),
            };
            if let Some(failure) = known.failure {
                return Err(failure);
            }
            let Some(services) = known.services else {
                let what = format!("namespace `{namespace}` is not listed yet");
                return Err(Failure::Unanswered(what));
            };
            for name in services.keys() {
                if position == 0 {
                    names.push(name.clone());
                }
                names.push(format!("{name}.{namespace}").into());
                names.extend(
                    CLUSTER_DOMAINS
                        .iter()
                        .map(|domain| format!("{name}.{namespace}{domain}").into()),
                );
            }
        }
        Ok(names)
    }
}

/// What a subscription has been told.
#[derive(Default)]
struct Seen {
    answers: u64,
    failures: u64,
    in_a_row: u32,
    slices: Option<(Slices, Timestamp)>,
    /// When an answer that is held is to be told again; what happens elsewhere in the namespace does
    /// not put that off.
    recheck_at: Option<Timestamp>,
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<watch::Sender<Known>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `name`, `name.namespace`, `name.namespace.svc`, or that with the domain of the cluster: names of
/// services and namespaces have no dots.
fn split(text: &str) -> (Arc<str>, Option<Arc<str>>) {
    let text = text.to_ascii_lowercase();
    match text.split_once('.') {
        Some((name, rest)) => {
            let namespace = rest.split('.').next().unwrap_or_default();
            (name.into(), Some(namespace.into()))
        }
        None => (text.into(), None),
    }
}

impl Source for KubernetesSource {
    fn follow(self: Arc<Self>, subscription: Subscription) -> Task {
        Box::pin(self.watch(subscription))
    }

    fn names(self: Arc<Self>) -> Listing {
        Box::pin(async move { self.list().await })
    }
}

#[cfg(test)]
mod tests;
