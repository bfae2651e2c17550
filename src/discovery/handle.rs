//! What the rest of the proxy holds of a registry: subscribe to services, see names, read numbers.
//! Each subscription and the list of names is one task; it ends when nobody listens.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use super::cache::Cache;
use super::combine::combine;
use super::consul::ConsulSource;
use super::dns::DnsSource;
use super::embedded::EmbeddedSource;
use super::eureka::EurekaSource;
use super::file::FileSource;
use super::kubernetes::KubernetesSource;
use super::nacos::NacosSource;
use super::schedule::{Outcome, Schedule};
use super::source::Source;
use super::stats::{Counters, RegistryStats};
use super::subscription::{Failure, Subscription};
use super::zookeeper::ZookeeperSource;
use super::{Deps, NamesView, RegistryEvents, ServiceQuery, ServiceView};
use crate::clock::{Clock, Timestamp};
use crate::config::types::{Registry, RegistryKind};
use crate::http_client::jitter::Jitter;
use crate::protocol::dubbo_registry::nacos_names;

/// Names are read again about this often, where the registry does not tell of changes.
const NAMES_PERIOD: Duration = Duration::from_secs(30);

/// The same after the first failures, before any answer; grows as that of subscriptions.
const NAMES_RETRY: Duration = Duration::from_secs(5);

/// Names are read for an unknown one at most this often.
const REFRESH_LIMIT: Duration = Duration::from_secs(1);

/// Starts a registry's source on the current runtime. Nothing is asked before the first
/// subscription.
pub fn start(config: &Registry, deps: Deps) -> RegistryHandle {
    let shared = Shared::new(config, &deps);
    let source: Arc<dyn Source> = match &config.kind {
        RegistryKind::Embedded(_) => Arc::new(EmbeddedSource::new(deps.embedded)),
        RegistryKind::File { path } => {
            Arc::new(FileSource::start(path.clone(), deps.parser, &shared))
        }
        RegistryKind::Nacos(nacos) => {
            Arc::new(NacosSource::new(nacos, config, deps.clock, deps.seed))
        }
        RegistryKind::Zookeeper(zookeeper) => Arc::new(ZookeeperSource::new(
            zookeeper, config, deps.clock, deps.seed,
        )),
        RegistryKind::Dns(dns) => Arc::new(DnsSource::new(dns, config, deps.seed)),
        RegistryKind::Eureka(eureka) => {
            Arc::new(EurekaSource::new(eureka, config, deps.clock, deps.seed))
        }
        RegistryKind::Consul(consul) => {
            Arc::new(ConsulSource::new(consul, config, deps.clock, deps.seed))
        }
        RegistryKind::Kubernetes(kubernetes) => Arc::new(KubernetesSource::new(
            kubernetes, config, deps.clock, deps.seed,
        )),
    };
    RegistryHandle::new(shared, source)
}

/// A registry that endpoints are read from. Clones are the same one.
#[derive(Clone, Debug)]
pub struct RegistryHandle(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    source: Arc<dyn Source>,
    names: watch::Sender<NamesView>,
    /// Whether the task that reads them runs; the lock makes its end and its start exclusive.
    names_followed: Mutex<bool>,
    /// When the names were last read for an unknown one, and whether that was answered. Held during
    /// the read, so that all who ask meanwhile share its result.
    refreshed: tokio::sync::Mutex<Option<(Timestamp, bool)>>,
}

/// What the tasks of a registry share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Registry,
    pub(super) clock: Clock,
    pub(super) events: Arc<dyn RegistryEvents>,
    pub(super) counters: Counters,
    pub(super) cache: Cache,
    /// Of chance that must be the same at each run.
    pub(super) seed: u64,
    /// Wakes subscriptions that wait out their back-off.
    pub(super) restored: tokio::sync::Notify,
}

impl RegistryHandle {
    pub(super) fn new(shared: Arc<Shared>, source: Arc<dyn Source>) -> Self {
        let names = NamesView {
            names: shared.cached_names(),
            ..NamesView::default()
        };
        Self(Arc::new(Inner {
            shared,
            source,
            names: watch::Sender::new(names),
            names_followed: Mutex::new(false),
            refreshed: tokio::sync::Mutex::new(None),
        }))
    }

    /// Its key in the configuration.
    pub fn name(&self) -> &Arc<str> {
        &self.0.shared.config.name
    }

    /// The word of `kind` in the configuration.
    pub fn kind(&self) -> &'static str {
        self.0.shared.config.kind.word()
    }

    /// Whether its health flags come from heart-beats: then "all unhealthy" is answered by using all
    /// that are enabled (G6).
    pub fn heartbeat(&self) -> bool {
        self.0.shared.config.kind.heartbeat()
    }

    /// Whether it can list its services.
    pub fn can_list(&self) -> bool {
        self.0.shared.config.kind.lists()
    }

    /// Follows a service; the task behind it ends when the receiver and all its clones are dropped.
    pub fn subscribe(&self, query: ServiceQuery) -> watch::Receiver<ServiceView> {
        if !self.0.shared.config.kind.is_nacos() {
            return self.subscribe_one(query);
        }
        // Dubbo's providers may be there under two names.
        let names = nacos_names(&query.registry_name);
        if names.len() < 2 {
            return self.subscribe_one(query);
        }
        let views = names.into_iter().map(|name| {
            let query = ServiceQuery {
                registry_name: name.into(),
                ..query.clone()
            };
            (self.name().clone(), self.subscribe_one(query))
        });
        combine(views.collect())
    }

    fn subscribe_one(&self, query: ServiceQuery) -> watch::Receiver<ServiceView> {
        let (sender, receiver) = watch::channel(ServiceView::default());
        let subscription = Subscription::new(self.0.shared.clone(), query, sender);
        drop(tokio::spawn(self.0.source.clone().follow(subscription)));
        receiver
    }

    /// Follows the names of the registry's own namespace and group.
    pub fn names(&self) -> watch::Receiver<NamesView> {
        let receiver = self.0.names.subscribe();
        let mut followed = self
            .0
            .names_followed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !*followed {
            *followed = true;
            drop(tokio::spawn(follow_names(self.0.clone())));
        }
        receiver
    }

    /// Reads the names now, for one that is unknown; at most once a second. True when the registry
    /// answered (within that second).
    pub async fn refresh_names(&self) -> bool {
        let mut refreshed = self.0.refreshed.lock().await;
        let now = self.0.shared.clock.now();
        if let Some((at, answered)) = *refreshed
            && now.since(at) < REFRESH_LIMIT
        {
            return answered;
        }
        // Whoever gives up during the read leaves the limit in force.
        let before = refreshed.is_some_and(|(_, answered)| answered);
        *refreshed = Some((now, before));
        let outcome = self.0.read_names().await;
        let answered = matches!(outcome, Outcome::Answered { .. });
        *refreshed = Some((self.0.shared.clock.now(), answered));
        answered
    }

    /// Its numbers now.
    pub fn stats(&self) -> RegistryStats {
        if self.0.source.is_here() {
            self.0.shared.answered(self.0.shared.clock.now());
        }
        self.0.shared.counters.read(self.0.shared.clock.now())
    }
}

impl Inner {
    async fn read_names(&self) -> Outcome {
        let result = self.source.clone().names().await;
        let now = self.shared.clock.now();
        match result {
            Ok(mut names) => {
                names.sort_unstable();
                names.dedup();
                self.shared.answered(now);
                if self.names.borrow().names.as_deref() != Some(&names[..]) {
                    self.shared.keep_names(&names);
                }
                self.names.send_modify(|view| {
                    if view.names.as_deref() != Some(&names[..]) {
                        view.names = Some(names.into());
                    }
                    view.last_success = Some(now);
                    view.error = None;
                });
                Outcome::Answered {
                    period: NAMES_PERIOD,
                }
            }
            Err(failure) => {
                let error: Arc<str> = failure.to_string().into();
                let outcome = match failure {
                    Failure::Unanswered(_) => {
                        self.shared.unanswered(&error);
                        Outcome::Failed
                    }
                    Failure::Refused(_) => Outcome::Refused,
                };
                self.names.send_modify(|view| view.error = Some(error));
                outcome
            }
        }
    }

    /// True when the task may end: nobody listens.
    fn unfollow_names(&self) -> bool {
        let mut followed = self
            .names_followed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *followed = self.names.receiver_count() > 0;
        !*followed
    }
}

impl Shared {
    pub(super) fn new(config: &Registry, deps: &Deps) -> Arc<Self> {
        Arc::new(Self {
            config: config.clone(),
            clock: deps.clock,
            events: deps.events.clone(),
            counters: Counters::default(),
            cache: deps.cache.clone(),
            seed: deps.seed,
            restored: tokio::sync::Notify::new(),
        })
    }

    /// Whether sets of this registry are worth keeping: those in this process and in a file are.
    pub(super) fn caches(&self) -> bool {
        !matches!(
            self.config.kind,
            RegistryKind::Embedded(_) | RegistryKind::File { .. }
        )
    }

    fn cached_names(&self) -> Option<Arc<[Arc<str>]>> {
        let names = self.caches().then(|| self.cache.names(&self.config.name));
        names.flatten().map(Arc::from)
    }

    fn keep_names(&self, names: &[Arc<str>]) {
        if self.caches() {
            self.cache.keep_names(&self.config.name, names);
        }
    }

    pub(super) fn answered(&self, now: Timestamp) {
        if let Some(lost_for) = self.counters.answered(now) {
            info!(registry = %self.config.name, ?lost_for, "registry answers again");
            self.events.restored(&self.config.name, lost_for);
            self.restored.notify_waiters();
        }
    }

    pub(super) fn unanswered(&self, error: &Arc<str>) {
        if self.counters.unanswered(self.clock.now(), error) {
            warn!(registry = %self.config.name, %error, "registry lost; the last good sets stay");
            self.events.lost(&self.config.name, error);
        }
    }
}

async fn follow_names(inner: Arc<Inner>) {
    let mut changes = inner.source.names_changes();
    let jitter = Jitter::new(fastrand::Rng::with_seed(inner.shared.seed));
    let mut schedule = Schedule::new(NAMES_RETRY);
    loop {
        if let Some(changes) = &mut changes {
            changes.mark_unchanged();
        }
        let outcome = tokio::select! {
            () = inner.names.closed() => None,
            outcome = inner.read_names() => Some(outcome),
        };
        let pause = outcome.map_or(Duration::ZERO, |outcome| schedule.next(outcome, &jitter));
        let answered = matches!(outcome, Some(Outcome::Answered { .. }));
        let due = async {
            match &mut changes {
                Some(changes) if answered => drop(changes.changed().await),
                Some(changes) => tokio::select! {
                    _ = changes.changed() => {}
                    () = tokio::time::sleep(pause) => {}
                },
                None => tokio::time::sleep(pause).await,
            }
        };
        tokio::select! {
            () = inner.names.closed() => {
                if inner.unfollow_names() {
                    return;
                }
            }
            () = due => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::config::types::{EmptyPolicy, OnEmpty, RegistryTls};
    use crate::discovery::NoEvents;
    use crate::discovery::source::{Listing, Task};

    /// Lists names, unless it is told to fail.
    #[derive(Debug)]
    struct Lister {
        asked: AtomicUsize,
        failing: watch::Sender<bool>,
        changes: Option<watch::Sender<u64>>,
    }

    impl Source for Lister {
        fn follow(self: Arc<Self>, subscription: Subscription) -> Task {
            Box::pin(async move { subscription.closed().await })
        }

        fn names(self: Arc<Self>) -> Listing {
            Box::pin(async move {
                self.asked.fetch_add(1, Ordering::Relaxed);
                if *self.failing.borrow() {
                    return Err(Failure::Unanswered("away".to_owned()));
                }
                Ok(vec!["a".into()])
            })
        }

        fn names_changes(&self) -> Option<watch::Receiver<u64>> {
            self.changes.as_ref().map(watch::Sender::subscribe)
        }
    }

    fn start(told: bool, seed: u64) -> (Arc<Lister>, RegistryHandle) {
        let config = Registry {
            name: "r".into(),
            kind: RegistryKind::File {
                path: "none".into(),
            },
            empty: EmptyPolicy {
                on_empty: OnEmpty::Hold,
                grace: Duration::from_secs(30),
                answers: 3,
                shrink_percent: 50,
            },
            max_in_flight: 8,
            timeout: Duration::from_secs(5),
            tls: RegistryTls::default(),
        };
        let deps = Deps {
            embedded: None,
            cache: Cache::default(),
            parser: |_, _| Ok(BTreeMap::new()),
            clock: Clock::new(),
            events: Arc::new(NoEvents),
            seed,
        };
        let source = Arc::new(Lister {
            asked: AtomicUsize::new(0),
            failing: watch::Sender::new(true),
            changes: told.then(watch::Sender::default),
        });
        let handle = RegistryHandle::new(Shared::new(&config, &deps), source.clone());
        (source, handle)
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_cannot_be_read_are_asked_for_with_growing_pauses() {
        for told in [false, true] {
            let (source, handle) = start(told, 7);
            let mut names = handle.names();
            tokio::time::sleep(Duration::from_secs(600)).await;
            let asked = source.asked.load(Ordering::Relaxed);
            assert!((10..60).contains(&asked), "{asked}");
            source.failing.send_replace(false);
            let known = names.wait_for(|view| view.names.is_some());
            let known = tokio::time::timeout(Duration::from_secs(61), known)
                .await
                .is_ok();
            assert!(known, "told of changes: {told}");
            let asked = source.asked.load(Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(600)).await;
            let more = source.asked.load(Ordering::Relaxed) - asked;
            let want = if told { 0..=0 } else { 18..=23 };
            assert!(want.contains(&more), "{more}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn two_processes_do_not_read_names_at_one_moment() {
        let mut firsts = Vec::new();
        for seed in 0..5 {
            let (source, handle) = start(false, seed);
            source.failing.send_replace(false);
            let clock = Clock::new();
            let start = clock.now();
            let _names = handle.names();
            while source.asked.load(Ordering::Relaxed) < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            firsts.push(clock.now().since(start).as_millis() / 100);
        }
        firsts.dedup();
        assert_eq!(firsts.len(), 5, "{firsts:?}");
    }
}
