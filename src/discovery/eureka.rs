//! Endpoints from Eureka, read every 30 s: one request per application, or the whole registry by
//! deltas, which pays when names are wanted or services are many. A held answer is read again after
//! 10 s. `UP` is weak evidence (a server that preserves itself expires nobody): health checks and
//! ejection judge.
//!
//! Next: `eureka/fetcher.rs` (the whole registry), `eureka/client.rs` (one read), `eureka/wire.rs`
//! and `eureka/store.rs` (bodies and deltas).

mod basic;
mod client;
mod fetcher;
mod store;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use self::basic::Basic;
use self::client::Client;
use self::fetcher::{Fetcher, Reading};
use self::wire::Choice;
use super::source::{Listing, Source, Task};
use super::subscription::{Answer, Failure, Subscription};
use crate::clock::Clock;
use crate::config::types::{Eureka, EurekaMode, Registry};
use crate::http_client::auth::Auth;
use crate::http_client::jitter::Jitter;
use crate::http_client::servers::{Server, Servers};
use crate::http_client::tls::TlsClient;
use crate::http_client::{HttpClient, MAX_BODY};

/// The time between two reads.
const PERIOD: Duration = Duration::from_secs(30);
/// The first back-off is below twice this.
const RETRY: Duration = Duration::from_secs(1);
/// And none is longer.
const MOST_RETRY: Duration = Duration::from_secs(60);
/// With more services than this `auto` reads the whole registry.
const MANY: usize = 20;
/// The port of a server without a scheme.
const PORT: u16 = 8761;

/// One Eureka.
#[derive(Debug)]
pub(super) struct EurekaSource {
    mode: EurekaMode,
    client: Arc<Client>,
    fetcher: Arc<Fetcher>,
    jitter: Arc<Jitter>,
    /// Somebody wants to know names.
    listed: AtomicBool,
    services: AtomicUsize,
}

/// Counts a service as long as it is followed.
struct Counted(Arc<EurekaSource>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.services.fetch_sub(1, Ordering::Relaxed);
    }
}

impl EurekaSource {
    pub(super) fn new(config: &Eureka, registry: &Registry, clock: Clock, seed: u64) -> Self {
        let tls = Arc::new(TlsClient::new(registry.tls.clone()));
        let list = config.servers.iter();
        let list = list
            .map(|server| Server::parse(server, PORT, &tls))
            .collect();
        Self::with_servers(config, registry, clock, seed, list)
    }

    fn with_servers(
        config: &Eureka,
        registry: &Registry,
        clock: Clock,
        seed: u64,
        list: Vec<Server>,
    ) -> Self {
        let http = HttpClient {
            timeout: registry.timeout,
            max_body: MAX_BODY,
        };
        let jitter = Arc::new(Jitter::new(fastrand::Rng::with_seed(seed)));
        let start = jitter.index(list.len());
        let auth = Basic::new(config).map(|basic| Arc::new(basic) as Arc<dyn Auth>);
        let client = Arc::new(Client {
            servers: Servers::new(list, start, http, registry.max_in_flight).with_auth(auth),
            choice: Choice {
                prefer_ip: config.prefer_ip,
                secure: config.secure,
            },
        });
        Self {
            mode: config.mode,
            fetcher: Arc::new(Fetcher::new(client.clone(), clock, jitter.clone())),
            client,
            jitter,
            listed: AtomicBool::new(false),
            services: AtomicUsize::new(0),
        }
    }

    /// Whether the whole registry is read.
    fn whole(&self) -> bool {
        match self.mode {
            EurekaMode::Delta => true,
            EurekaMode::PerApp => false,
            EurekaMode::Auto => {
                self.listed.load(Ordering::Relaxed) || self.services.load(Ordering::Relaxed) > MANY
            }
        }
    }

    async fn watch(self: Arc<Self>, mut subscription: Subscription) {
        self.services.fetch_add(1, Ordering::Relaxed);
        let _counted = Counted(self.clone());
        subscription.set_period(PERIOD);
        if self.one(&mut subscription).await {
            self.part(&mut subscription).await;
        }
    }

    /// Reads one application until the whole registry is read (true) or nobody listens.
    async fn one(&self, subscription: &mut Subscription) -> bool {
        let name = subscription.query.registry_name.clone();
        let mut failures = 0u32;
        loop {
            if self.whole() {
                return true;
            }
            let result = tokio::select! {
                () = subscription.closed() => return false,
                result = self.client.application(&name) => result,
            };
            let pause = match result {
                Ok(app) => {
                    failures = 0;
                    let store = store::Store::new(&app);
                    let (endpoints, without) = store.endpoints(&name);
                    let held = subscription.answer(Answer {
                        endpoints,
                        skipped: app.skipped + without,
                        ..Answer::default()
                    });
                    held.unwrap_or_else(|| self.jitter.around(PERIOD))
                }
                Err(failure) => {
                    failures = failures.saturating_add(1);
                    subscription.failed(&failure);
                    match failure {
                        Failure::Refused(_) => self.jitter.around(MOST_RETRY),
                        Failure::Unanswered(_) => self.jitter.back_off(RETRY, failures, MOST_RETRY),
                    }
                }
            };
            if !subscription.sleep(pause).await {
                return false;
            }
        }
    }

    /// Takes its part out of every reading of the whole registry.
    async fn part(&self, subscription: &mut Subscription) {
        let name = subscription.query.registry_name.clone();
        let mut readings = self.fetcher.follow();
        loop {
            let (_, reading) = readings.borrow_and_update().clone();
            let held = match reading {
                Reading::Nothing => None,
                Reading::Known(store) => {
                    let (endpoints, without) = store.endpoints(&name);
                    subscription.answer(Answer {
                        endpoints,
                        skipped: without,
                        ..Answer::default()
                    })
                }
                Reading::Failed(failure) => {
                    subscription.failed(&failure);
                    None
                }
            };
            // Wakes to mark the set stale, and to read again where it is held.
            let pause = held.unwrap_or(PERIOD);
            tokio::select! {
                changed = readings.changed() => if changed.is_err() {
                    return subscription.closed().await;
                },
                listened = subscription.sleep(pause) => {
                    if !listened {
                        return;
                    }
                    if held.is_some() {
                        self.fetcher.recheck();
                    }
                    tokio::select! {
                        () = subscription.closed() => return,
                        changed = readings.changed() => if changed.is_err() {
                            return subscription.closed().await;
                        },
                    }
                }
            }
        }
    }

    /// The names, read now.
    async fn list(&self) -> Result<Vec<Arc<str>>, Failure> {
        self.listed.store(true, Ordering::Relaxed);
        if self.mode == EurekaMode::PerApp {
            let (all, _) = self.client.all().await?;
            return Ok(store::Store::new(&all).names());
        }
        let mut readings = self.fetcher.follow();
        readings.mark_unchanged();
        self.fetcher.nudge();
        let ended = |_| Failure::Unanswered("the source has ended".to_owned());
        readings.changed().await.map_err(ended)?;
        let (_, reading) = readings.borrow().clone();
        match reading {
            Reading::Known(store) => Ok(store.names()),
            Reading::Failed(failure) => Err(failure),
            Reading::Nothing => Err(Failure::Unanswered("nothing was read yet".to_owned())),
        }
    }
}

impl Source for EurekaSource {
    fn follow(self: Arc<Self>, subscription: Subscription) -> Task {
        Box::pin(self.watch(subscription))
    }

    fn names(self: Arc<Self>) -> Listing {
        Box::pin(async move { self.list().await })
    }

    fn names_changes(&self) -> Option<watch::Receiver<u64>> {
        (self.mode != EurekaMode::PerApp).then(|| self.fetcher.follow_names())
    }
}

#[cfg(test)]
mod tests;
