//! Registries and where each service's endpoints come from.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::ListedNames;
use super::events::JournalEvents;
use crate::clock::Clock;
use crate::config::environment::ProcessEnvironment;
use crate::config::types::{Config, Registry, Service};
use crate::discovery::{self, Cache, Deps, RegistryHandle, ServiceQuery, ServiceView};
use crate::endpoint::EndpointSet;
use crate::journal::Journal;
use crate::outlier::driver::EndpointSource;
use crate::registry::overview::Overview;
use crate::registry::{EmbeddedRegistry, ServiceKey};

/// How long a registry may take to list its services for somebody who asks.
const LIST_PATIENCE: Duration = Duration::from_secs(3);

/// A registry that runs.
#[derive(Debug)]
pub(super) struct LiveRegistry {
    config: Registry,
    pub(super) handle: RegistryHandle,
    embedded: Option<EmbeddedRegistry>,
}

impl LiveRegistry {
    /// What it holds, if it is ours.
    pub(super) fn overview(&self) -> Option<(Arc<str>, Overview)> {
        let embedded = self.embedded.as_ref()?;
        Some((Arc::clone(&self.config.name), embedded.overview()))
    }

    /// Its services, read now. The embedded one counts their instances too.
    pub(super) fn list(&self) -> impl Future<Output = ListedNames> + Send + use<> {
        let (handle, embedded) = (self.handle.clone(), self.embedded.clone());
        async move {
            let names = handle.names();
            let answered = tokio::time::timeout(LIST_PATIENCE, handle.refresh_names()).await;
            let view = names.borrow().clone();
            let count = |name: &Arc<str>| {
                let key = ServiceKey::new(None, None, name).ok()?;
                Some(embedded.as_ref()?.endpoints(&key, &[]).len())
            };
            let listed = match (view.names, view.error) {
                (Some(names), _) => {
                    let all = names.iter().map(|name| (name.to_string(), count(name)));
                    Ok(all.collect())
                }
                (None, Some(error)) => Err(error.to_string()),
                (None, None) if answered.is_err() => Err("no answer in time".to_owned()),
                (None, None) => Err("no answer yet".to_owned()),
            };
            (handle.name().to_string(), listed)
        }
    }
}

/// All registries of the configuration.
#[derive(Debug)]
pub(super) struct Registries {
    clock: Clock,
    journal: Journal,
    live: BTreeMap<Arc<str>, LiveRegistry>,
    stop: watch::Receiver<bool>,
    cache: Cache,
    seed: u64,
}

/// What a service's endpoints depend on; a change means a new source.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SourceKey {
    /// Static endpoints.
    Fixed(Arc<[crate::endpoint::Endpoint]>),
    /// Those of registries, by their configuration, and the query.
    Registries(Vec<Registry>, ServiceQuery),
    /// There is no such registry.
    Missing,
}

impl Registries {
    /// None yet. `stop` ends the embedded ones.
    pub(super) fn new(
        clock: Clock,
        journal: Journal,
        stop: watch::Receiver<bool>,
        seed: u64,
    ) -> Self {
        Self {
            clock,
            journal,
            live: BTreeMap::new(),
            cache: Cache::default(),
            stop,
            seed,
        }
    }

    /// Starts what is new or changed, drops what is gone. Embedded registries keep their leases.
    pub(super) fn apply(
        &mut self,
        config: &Config,
        embedded: &BTreeMap<Arc<str>, EmbeddedRegistry>,
    ) {
        self.cache.set_folder(config.cache_dir.as_deref());
        let mut old = std::mem::take(&mut self.live);
        for (name, registry) in &config.registries {
            let live = match old.remove(name) {
                Some(live) if live.config == *registry => live,
                before => self.start(registry, embedded.get(name).cloned(), before),
            };
            self.live.insert(Arc::clone(name), live);
        }
    }

    fn start(
        &mut self,
        config: &Registry,
        prepared: Option<EmbeddedRegistry>,
        before: Option<LiveRegistry>,
    ) -> LiveRegistry {
        let embedded = config.kind.embedded().map(|settings| {
            let known = before.and_then(|live| live.embedded).or(prepared);
            known.unwrap_or_else(|| {
                let registry = EmbeddedRegistry::new(settings, self.clock);
                tokio::spawn(registry.clone().maintain(self.stop.clone()));
                registry
            })
        });
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let deps = Deps {
            embedded: embedded.clone(),
            cache: self.cache.clone(),
            parser: parse_endpoints,
            clock: self.clock,
            events: Arc::new(JournalEvents(self.journal.clone())),
            seed: self.seed,
        };
        LiveRegistry {
            config: config.clone(),
            handle: discovery::start(config, deps),
            embedded,
        }
    }

    /// Those in this process, by name.
    pub(super) fn embedded(&self) -> BTreeMap<Arc<str>, EmbeddedRegistry> {
        let own = |(name, live): (&Arc<str>, &LiveRegistry)| {
            Some((Arc::clone(name), live.embedded.clone()?))
        };
        self.live.iter().filter_map(own).collect()
    }

    pub(super) fn get(&self, name: &str) -> Option<&LiveRegistry> {
        self.live.get(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LiveRegistry> {
        self.live.values()
    }

    /// What the endpoints of `service` depend on.
    pub(super) fn key(&self, config: &Config, name: &Arc<str>, service: &Service) -> SourceKey {
        if let Some(endpoints) = &service.endpoints {
            return SourceKey::Fixed(Arc::clone(endpoints));
        }
        let names = match &service.registries[..] {
            [] => &config.default_registries,
            _ => &service.registries,
        };
        let live = names.iter().filter_map(|name| self.live.get(name));
        let registries: Vec<Registry> = live.map(|live| live.config.clone()).collect();
        if registries.is_empty() {
            return SourceKey::Missing;
        }
        let query = ServiceQuery {
            service: Arc::clone(name),
            registry_name: service
                .registry_name
                .clone()
                .unwrap_or_else(|| name.clone()),
            namespace: service.namespace.clone(),
            group: service.group.clone(),
            clusters: service.clusters.clone(),
        };
        SourceKey::Registries(registries, query)
    }

    /// Opens the source behind a key.
    pub(super) fn open(&self, key: &SourceKey) -> EndpointSource {
        match key {
            SourceKey::Fixed(endpoints) => {
                let set = EndpointSet {
                    endpoints: Arc::clone(endpoints),
                    health_unknown: false,
                };
                EndpointSource {
                    name: "static".into(),
                    view: ServiceView::fixed(set, self.clock.now()),
                    heartbeat: false,
                    in_process: true,
                }
            }
            SourceKey::Registries(configs, query) => {
                let live: Vec<&LiveRegistry> = configs
                    .iter()
                    .filter_map(|config| self.live.get(&config.name))
                    .collect();
                let names: Vec<&str> = live.iter().map(|live| &**live.handle.name()).collect();
                let mut views: Vec<_> = live
                    .iter()
                    .map(|live| {
                        let view = live.handle.subscribe(query.clone());
                        (Arc::clone(live.handle.name()), view)
                    })
                    .collect();
                let view = match views.len() {
                    0 => return self.open(&SourceKey::Missing),
                    1 => views.remove(0).1,
                    _ => discovery::combine(views),
                };
                EndpointSource {
                    name: names.join(", ").into(),
                    view,
                    heartbeat: live.iter().all(|live| live.handle.heartbeat()),
                    in_process: live.iter().all(|live| live.embedded.is_some()),
                }
            }
            SourceKey::Missing => EndpointSource {
                name: "none".into(),
                view: ServiceView::fixed(EndpointSet::default(), self.clock.now()),
                heartbeat: false,
                in_process: true,
            },
        }
    }
}

/// The endpoints file's parser in the form the file source wants.
fn parse_endpoints(text: &str, path: &Path) -> Result<BTreeMap<Arc<str>, EndpointSet>, String> {
    let name = path.display().to_string();
    match crate::config::endpoints::parse(text, &name, &ProcessEnvironment) {
        Ok(file) => {
            for warning in file.warnings.iter() {
                tracing::warn!(problem = %warning.line(), "endpoints file");
            }
            Ok(file.services)
        }
        Err(problems) => {
            let lines: Vec<String> = problems.iter().map(|p| p.line()).collect();
            Err(lines.join("\n"))
        }
    }
}
