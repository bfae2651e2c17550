//! The control plane's loop: owns registries, one driver per upstream, the route table, and answers
//! questions. Nothing here is on a request's path except the first request of a discovered name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use super::reload::{Load, ReloadWish, rejected_files};
use super::sources::{Registries, SourceKey};
use super::state::{self, StateKeeper};
use super::watch::{WatchList, watch_files};
use super::{ControlHandle, Question};
use crate::clock::{self, Clock, Timestamp};
use crate::config::digest::Digests;
use crate::config::environment::Overrides;
use crate::config::passthrough::PASSTHROUGH_REGISTRY;
use crate::config::policy_select::{self, Query, policy_protocol};
use crate::config::types::{Config, Service};
use crate::discovery::NamesView;
use crate::journal::Journal;
use crate::metrics::collect::ReloadCounters;
use crate::outlier::driver::{Command, Driver, DriverSettings, DriverStart};
use crate::outlier::policy::{Mode, Policy};
use crate::registration::Registrations;
use crate::registry::EmbeddedRegistry;
use crate::router::{Conflict, Route, Settings, TableBuilder};
use crate::upstream::Upstream;
use crate::worker::{DrainPhase, Lookup, Snapshot};

/// How often idle discovered upstreams are looked for.
const TIDY_EVERY: Duration = Duration::from_secs(30);

/// What the configuration was loaded from, for reloads.
#[derive(Clone, Debug, Default)]
pub struct ConfigInputs {
    /// `-c`.
    pub path: Option<PathBuf>,
    /// Values of flags.
    pub flags: Overrides,
}

/// What the plane starts with.
#[derive(Debug)]
pub struct PlaneStart {
    /// The configuration.
    pub config: Arc<Config>,
    /// Where it came from.
    pub inputs: ConfigInputs,
    /// The files it came from.
    pub files: WatchList,
    /// Data plane threads.
    pub workers: usize,
    /// The process's clock.
    pub clock: Clock,
    /// Events go there.
    pub journal: Journal,
    /// Embedded registries that are bound already, by name.
    pub embedded: BTreeMap<Arc<str>, EmbeddedRegistry>,
    /// Swapped for the workers.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// Names that workers ask for.
    pub lookups: mpsc::Receiver<Lookup>,
    /// Questions of admin.
    pub questions: mpsc::Receiver<Question>,
    /// Reloads asked for, and their other end for those that are asked for from here.
    pub reloads: (mpsc::Sender<ReloadWish>, mpsc::Receiver<ReloadWish>),
    /// Counts reloads.
    pub reload_counters: Arc<ReloadCounters>,
    /// Told of every configuration that is applied.
    pub config_changes: watch::Sender<Arc<Config>>,
    /// Addresses by listener.
    pub listeners: BTreeMap<String, Vec<String>>,
    /// How far shutting down has come.
    pub drain: watch::Receiver<DrainPhase>,
    /// Ends the embedded registries' tasks.
    pub stop: watch::Receiver<bool>,
    /// Of all jitter.
    pub seed: u64,
}

/// One upstream that lives.
#[derive(Debug)]
pub(super) struct LiveUpstream {
    pub(super) upstream: Arc<Upstream>,
    pub(super) route: Arc<Route>,
    pub(super) discovered: bool,
    pub(super) since: Timestamp,
    pub(super) key: SourceKey,
    pub(super) policy: Arc<Policy>,
    /// Without a bound, so that orders are taken in the order they were given.
    pub(super) commands: mpsc::UnboundedSender<Command>,
    /// Overrides in force: such an upstream is not forgotten.
    pub(super) overrides: Arc<AtomicUsize>,
}

/// What reloads came to.
#[derive(Debug)]
pub(super) struct ReloadState {
    pub(super) loaded_at: SystemTime,
    pub(super) counters: Arc<ReloadCounters>,
    pub(super) last_ok: bool,
    pub(super) problems: Vec<String>,
    pub(super) restart_required: Vec<String>,
    pub(super) hash: String,
    pub(super) main_file: Option<PathBuf>,
    /// What is applied.
    pub(super) digests: Digests,
    /// Wishes that the load in hand will answer.
    pub(super) running: Vec<ReloadWish>,
    /// Those that came after it began.
    pub(super) waiting: Vec<ReloadWish>,
}

/// The control plane.
#[derive(Debug)]
pub struct Plane {
    pub(super) config: Arc<Config>,
    /// What was bound at the start: the measure of what needs a restart.
    pub(super) first_config: Arc<Config>,
    pub(super) inputs: ConfigInputs,
    pub(super) reload: ReloadState,
    pub(super) workers: usize,
    pub(super) clock: Clock,
    pub(super) started: Timestamp,
    pub(super) journal: Journal,
    pub(super) embedded: BTreeMap<Arc<str>, EmbeddedRegistry>,
    pub(super) registries: Registries,
    pub(super) registrations: Registrations,
    pub(super) names: BTreeMap<Arc<str>, watch::Receiver<NamesView>>,
    pub(super) upstreams: BTreeMap<Arc<str>, LiveUpstream>,
    pub(super) conflicts: Vec<Conflict>,
    snapshot: Arc<ArcSwap<Snapshot>>,
    lookups: mpsc::Receiver<Lookup>,
    pub(super) again: mpsc::Sender<(Lookup, bool)>,
    again_queue: mpsc::Receiver<(Lookup, bool)>,
    questions: mpsc::Receiver<Question>,
    reloads: mpsc::Receiver<ReloadWish>,
    pub(super) loads: mpsc::Sender<Box<Load>>,
    loads_done: mpsc::Receiver<Box<Load>>,
    /// Kept current for those who watch the files.
    pub(super) watched: watch::Sender<WatchList>,
    pub(super) config_changes: watch::Sender<Arc<Config>>,
    pub(super) listeners: BTreeMap<String, Vec<String>>,
    pub(super) drain: watch::Receiver<DrainPhase>,
    seed: u64,
    pub(super) last_override: u64,
    pub(super) state: StateKeeper,
    state_due: mpsc::Receiver<state::Due>,
}

impl Plane {
    /// The plane with its upstreams; the snapshot is published.
    pub fn new(start: PlaneStart) -> Self {
        let (again, again_queue) = mpsc::channel(64);
        let (loads, loads_done) = mpsc::channel(1);
        let (wishes, reloads) = start.reloads;
        let main_file = start.files.main.clone();
        let digests = start.files.loaded.clone();
        let (watched, list) = watch::channel(start.files);
        drop(tokio::spawn(watch_files(list, wishes)));
        let registries =
            Registries::new(start.clock, start.journal.clone(), start.stop, start.seed);
        let registrations = Registrations::new(
            start.clock,
            start.journal.clone(),
            start.seed.rotate_left(32),
        );
        let problems = rejected_lines(&start.config);
        let state = StateKeeper::open(&start.config, &start.journal, start.clock.now());
        let (due, state_due) = mpsc::channel(1);
        state.follow(due);
        let mut plane = Self {
            reload: ReloadState {
                loaded_at: clock::wall_now(),
                counters: start.reload_counters,
                last_ok: true,
                problems,
                restart_required: Vec::new(),
                hash: digests.name(),
                main_file,
                digests,
                running: Vec::new(),
                waiting: Vec::new(),
            },
            first_config: Arc::clone(&start.config),
            config: start.config,
            inputs: start.inputs,
            workers: start.workers,
            started: start.clock.now(),
            clock: start.clock,
            journal: start.journal,
            embedded: start.embedded,
            registries,
            registrations,
            names: BTreeMap::new(),
            upstreams: BTreeMap::new(),
            conflicts: Vec::new(),
            snapshot: start.snapshot,
            lookups: start.lookups,
            again,
            again_queue,
            questions: start.questions,
            reloads,
            loads,
            loads_done,
            watched,
            config_changes: start.config_changes,
            listeners: start.listeners,
            drain: start.drain,
            seed: start.seed,
            last_override: 0,
            state,
            state_due,
        };
        plane.registries.apply(&plane.config, &plane.embedded);
        plane.tell_rejected_policies();
        plane.apply_services(&PolicyChange::default());
        plane.follow_default_names();
        plane.publish();
        let embedded = plane.registries.embedded();
        plane.registrations.apply(&plane.config, &embedded);
        plane
    }

    /// Runs until the drain's grace is over.
    pub async fn run(mut self) {
        let mut drain = self.drain.clone();
        let mut tidy = tokio::time::interval(TIDY_EVERY);
        loop {
            tokio::select! {
                _cut = drain.wait_for(|phase| *phase == DrainPhase::Cut) => break,
                Some(due) = self.state_due.recv() => self.save_state(due),
                Some(lookup) = self.lookups.recv() => self.look_up(lookup),
                Some((lookup, answered)) = self.again_queue.recv() => {
                    self.look_up_again(lookup, answered);
                }
                Some(question) = self.questions.recv() => self.answer(question),
                Some(wish) = self.reloads.recv() => self.wish(wish),
                Some(loaded) = self.loads_done.recv() => self.loaded(*loaded),
                _ = tidy.tick() => {
                    self.forget_idle();
                    self.registrations.retry(&self.config, &self.registries.embedded());
                }
            }
        }
        self.saving().await;
    }

    /// A handle for admin, and the questions' end for [`PlaneStart`].
    pub fn questions() -> (ControlHandle, mpsc::Receiver<Question>) {
        ControlHandle::channel()
    }

    /// Keeps the list of names of the default registry current, so that the first request of a
    /// name does not wait for it.
    pub(super) fn follow_default_names(&mut self) {
        self.names.clear();
        if !self.config.auto_discover {
            return;
        }
        for name in self.config.default_registries.clone() {
            if let Some(live) = self.registries.get(&name)
                && live.handle.can_list()
            {
                self.names.insert(name, live.handle.names());
            }
        }
    }

    /// Makes the upstreams match the configuration: new ones start, changed ones are told, gone ones
    /// end. What did not change keeps its instances, windows, ejections and connections.
    pub(super) fn apply_services(&mut self, change: &PolicyChange) {
        let config = Arc::clone(&self.config);
        let mut old = std::mem::take(&mut self.upstreams);
        for (name, service) in &config.services {
            let live = old.remove(name);
            self.apply_service(name, service, false, live, change);
        }
        // Discovered ones stay as long as they may be discovered.
        for (name, live) in old {
            if !live.discovered {
                continue;
            }
            let service = if is_passthrough(&live) {
                let stays = config.passthrough.target(&name).is_some();
                stays.then(|| passthrough_service(&config, &name))
            } else {
                let stays = config.auto_discover && !config.default_registries.is_empty();
                stays.then(|| discovered_service(&config, &name))
            };
            if let Some(service) = service {
                self.apply_service(&name, &service, true, Some(live), change);
            }
        }
    }

    fn apply_service(
        &mut self,
        name: &Arc<str>,
        service: &Arc<Service>,
        discovered: bool,
        live: Option<LiveUpstream>,
        change: &PolicyChange,
    ) {
        let key = self.registries.key(&self.config, name, service);
        let policy = self.policy_of(name, service);
        let now = self.clock.now();
        let route = |upstream: &Arc<Upstream>| {
            let settings = Settings::new(Arc::clone(service), name);
            let route = Arc::new(Route::new(Arc::clone(upstream), settings));
            upstream.configure(service, now);
            route
        };
        if let Some(mut live) = live {
            let gone = change.gone.contains(&live.policy.name);
            let source = (live.key != key).then(|| self.registries.open(&key));
            let same = live.route.settings.service == *service
                && live.policy == policy
                && source.is_none()
                && !gone;
            if !same {
                let settings = DriverSettings {
                    service: Arc::clone(service),
                    policy: Arc::clone(&policy),
                    old_policy_gone: gone,
                    source,
                };
                live.route = route(&live.upstream);
                // A driver that is gone has no settings to change.
                let _gone = live.commands.send(Command::Settings(Box::new(settings)));
                live.upstream.bound_answers(service);
                live.policy = policy;
                live.key = key;
                live.discovered = discovered;
            }
            self.upstreams.insert(Arc::clone(name), live);
            return;
        }
        let upstream = Arc::new(Upstream::new(Arc::clone(name), self.workers));
        let route = route(&upstream);
        let (commands, queue) = mpsc::unbounded_channel();
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let overrides = Arc::new(AtomicUsize::new(0));
        let driver = Driver::new(DriverStart {
            upstream: Arc::clone(&upstream),
            service: Arc::clone(service),
            policy: Arc::clone(&policy),
            source: self.registries.open(&key),
            discovered,
            workers: self.workers,
            clock: self.clock,
            journal: self.journal.clone(),
            seed: self.seed,
            overrides: Arc::clone(&overrides),
            recalled: self.state.claim(name, &self.config.policies),
            touched: Arc::clone(&self.state.touched),
        });
        tokio::spawn(driver.run(queue));
        let live = LiveUpstream {
            route,
            upstream,
            discovered,
            since: self.clock.now(),
            key,
            policy,
            commands,
            overrides,
        };
        self.upstreams.insert(Arc::clone(name), live);
    }

    /// A name of the default registry, or a host of `passthrough.hosts`, becomes an upstream.
    pub(super) fn discover(&mut self, name: &Arc<str>, passthrough: bool) {
        let service = if passthrough {
            passthrough_service(&self.config, name)
        } else {
            discovered_service(&self.config, name)
        };
        self.apply_service(name, &service, true, None, &PolicyChange::default());
        self.publish();
    }

    pub(super) fn route_of(&self, name: &Arc<str>) -> Option<Arc<Route>> {
        self.upstreams.get(name).map(|live| Arc::clone(&live.route))
    }

    /// The ejection policy of an upstream.
    fn policy_of(&self, name: &str, service: &Service) -> Arc<Policy> {
        let app = &self.config.app;
        let query = Query {
            consumer: &app.name,
            upstream: name,
            namespace: app.namespace.as_deref(),
            protocol: policy_protocol(service.protocol),
        };
        let selection = policy_select::select(&self.config.policies, &query);
        if let Some(other) = &selection.tied_with {
            tracing::warn!(
                upstream = name,
                policy = %selection.winner.name,
                other = %other.name,
                "two ejection policies match equally well; the first by file and line holds"
            );
        }
        selection.winner
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Swaps in a table of all upstreams.
    pub(super) fn publish(&mut self) {
        let mut builder = TableBuilder::default();
        for live in self.upstreams.values() {
            builder.add(Arc::clone(&live.route));
        }
        let (table, conflicts) = builder.build();
        for conflict in conflicts.iter().filter(|c| !self.conflicts.contains(c)) {
            let services: Vec<&str> = conflict.services.iter().map(|s| &**s).collect();
            tracing::warn!(
                name = %conflict.key,
                services = services.join(", "),
                "two services want one name: neither has it; set services.*.hosts"
            );
        }
        self.conflicts = conflicts;
        self.snapshot.store(Arc::new(Snapshot {
            table,
            config: Arc::clone(&self.config),
        }));
    }

    /// At the start: one event and one log line for each policy file that was left out.
    fn tell_rejected_policies(&self) {
        for file in rejected_files(&self.config) {
            for problem in &file.problems {
                tracing::error!(file = %file.file, %problem, "policy file rejected");
            }
            let msg = format!("{}: {}", file.fate, file.problems.join("; "));
            let fields = vec![
                ("result", json!("rejected")),
                ("rejected_files", json!([file.file])),
                ("diagnostics", json!(file.problems)),
            ];
            self.journal.emit("config_rejected", fields, msg);
        }
    }
}

/// Which policies went away with a reload.
#[derive(Debug, Default)]
pub(super) struct PolicyChange {
    /// Names of entries that are gone or disabled now.
    pub(super) gone: Vec<Arc<str>>,
}

impl PolicyChange {
    pub(super) fn between(old: &Config, new: &Config) -> Self {
        let active = |config: &Config| -> Vec<Arc<str>> {
            let entries = config.policies.entries.iter();
            let on = entries.filter(|e| e.policy.mode != Mode::Disabled);
            on.map(|e| Arc::clone(&e.policy.name)).collect()
        };
        let now = active(new);
        let gone = active(old)
            .into_iter()
            .filter(|name| !now.contains(name))
            .collect();
        Self { gone }
    }
}

fn discovered_service(config: &Config, name: &Arc<str>) -> Arc<Service> {
    let mut service = Service::clone(&config.defaults);
    service.name = Arc::clone(name);
    service.registries = Vec::new();
    Arc::new(service)
}

/// A host outside any registry: `host:port` is its name, its address in the DNS and its Host.
fn passthrough_service(config: &Config, name: &Arc<str>) -> Arc<Service> {
    let mut service = Service::clone(&config.defaults);
    service.name = Arc::clone(name);
    service.registries = vec![Arc::from(PASSTHROUGH_REGISTRY)];
    service.registry_name = Some(Arc::clone(name));
    service.hosts = vec![Arc::clone(name)];
    Arc::new(service)
}

fn is_passthrough(live: &LiveUpstream) -> bool {
    let registries = &live.route.settings.service.registries;
    matches!(&registries[..], [only] if &**only == PASSTHROUGH_REGISTRY)
}

pub(super) fn rejected_lines(config: &Config) -> Vec<String> {
    config
        .policies
        .rejected
        .iter()
        .flat_map(|file| file.problems.clone())
        .collect()
}
