//! All registrations of the process: started and changed with the configuration (one that did not
//! change is not touched), ended together, shown. The control plane owns it.
//! Next: `registration/driver.rs` (one of them), `registration/client.rs` (one registry).

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::advertise;
use super::app_check::{self, AppHealth};
use super::client::Client;
use super::driver::{self, Label, Renewal};
use super::machine::Standing;
use super::record::Record;
use super::view::View;
use crate::clock::{Clock, Timestamp};
use crate::config::types::{Advertise, AppCheck, Config, Register, Registry};
use crate::endpoint::Address;
use crate::journal::Journal;
use crate::registry::EmbeddedRegistry;

/// Longest wait for registries to take the way out; after it the leases do it.
const LEAVE_PATIENCE: Duration = Duration::from_secs(10);

/// What a registration is told apart by: another one of these is another instance.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    registry: Arc<str>,
    service: Arc<str>,
    group: Option<Arc<str>>,
    cluster: Option<Arc<str>>,
    advertise: Advertise,
}

/// One that runs, or could not be started.
#[derive(Debug)]
struct Live {
    key: Key,
    register: Register,
    client: Arc<Client>,
    /// `host:port`, or what is configured where that is not known.
    address: Arc<str>,
    stamp: Arc<AtomicU64>,
    deregister_wait: Duration,
    view: watch::Receiver<View>,
    leave: watch::Sender<bool>,
    changes: mpsc::UnboundedSender<Renewal>,
    /// Its driver.
    task: Option<AbortHandle>,
    /// Why it could not be started.
    problem: Option<String>,
}

/// What the registrations came to at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// How many there were.
    pub registrations: usize,
    /// How many did not get off their lists in time.
    pub unfinished: usize,
    /// How long callers may still come, from now on, as far as the registries are known.
    pub wait: Duration,
}

/// One registration, for admin and metrics.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The registry's name.
    pub registry: Arc<str>,
    /// Its kind.
    pub kind: &'static str,
    /// The service there.
    pub service: Arc<str>,
    /// `host:port`.
    pub address: Arc<str>,
    /// As it stands.
    pub view: View,
}

/// The registrations.
#[derive(Debug)]
pub struct Registrations {
    clock: Clock,
    journal: Journal,
    rng: fastrand::Rng,
    live: Vec<Live>,
    /// Those on their way out.
    leaving: Vec<Live>,
    clients: BTreeMap<Arc<str>, Arc<Client>>,
    checks: Vec<(AppCheck, watch::Receiver<AppHealth>)>,
    /// For those without a check.
    unchecked: watch::Sender<AppHealth>,
    /// Why the process has to end: a registration with `fail_fast` failed.
    fatal: watch::Sender<Option<String>>,
    /// `fail_fast` counts: until all of the first configuration were started.
    armed: bool,
    /// All are to end, and nothing starts any more.
    ending: bool,
    /// When all were off their lists.
    left_at: Arc<OnceLock<Timestamp>>,
    /// Beats of registrations that are gone, taken and not taken, by registry.
    past: BTreeMap<Arc<str>, (u64, u64)>,
}

impl Registrations {
    /// None yet.
    pub fn new(clock: Clock, journal: Journal, seed: u64) -> Self {
        Self {
            clock,
            journal,
            rng: fastrand::Rng::with_seed(seed),
            live: Vec::new(),
            leaving: Vec::new(),
            clients: BTreeMap::new(),
            checks: Vec::new(),
            unchecked: watch::Sender::new(AppHealth {
                standing: Standing::Up,
                message: Arc::from("no check is configured"),
            }),
            fatal: watch::Sender::new(None),
            armed: true,
            ending: false,
            left_at: Arc::default(),
            past: BTreeMap::new(),
        }
    }

    /// Becomes `Some` when a registration with `fail_fast` fails.
    pub fn fatal(&self) -> watch::Receiver<Option<String>> {
        self.fatal.subscribe()
    }

    /// Starts what is new, changes what changed, ends what is gone. After [`Self::leave`] nothing
    /// starts any more.
    pub fn apply(&mut self, config: &Config, embedded: &BTreeMap<Arc<str>, EmbeddedRegistry>) {
        if self.ending {
            return;
        }
        self.refresh_clients(config, embedded);
        let owner: Arc<str> = format!("outrigger/{}", config.app.name).into();
        let mut old = std::mem::take(&mut self.live);
        for register in config.app.register.iter().flat_map(instances) {
            let Some(client) = self.clients.get(&register.registry).cloned() else {
                continue;
            };
            let key = key(&register);
            let before = old.iter().position(|live| live.key == key);
            let before = before.map(|at| old.swap_remove(at));
            let live = match before {
                Some(live) if live.is_same(&register, &client) => live,
                Some(live) if live.changes_in_place(&register, &client) => {
                    let health = self.health(register.check.as_ref());
                    live.changed(register, &owner, health)
                }
                before => self.start(key, register, client, &owner, before),
            };
            self.live.push(live);
        }
        for gone in old {
            self.retire(gone);
        }
        let used: Vec<&AppCheck> = self
            .live
            .iter()
            .filter_map(|l| l.register.check.as_ref())
            .collect();
        self.checks.retain(|(check, _)| used.contains(&check));
        self.armed = false;
    }

    /// Starts again what could not be started: an address that was not there yet.
    pub fn retry(&mut self, config: &Config, embedded: &BTreeMap<Arc<str>, EmbeddedRegistry>) {
        if self.live.iter().any(|live| live.problem.is_some()) {
            self.apply(config, embedded);
        }
    }

    /// Takes every registration off its list (G12): no beat after it. Ends when all are off, or after
    /// ten seconds.
    pub fn leave(&mut self) -> impl Future<Output = Left> + Send + use<> {
        let clock = self.clock;
        let left_at = Arc::clone(&self.left_at);
        self.ending = true;
        let mut views = Vec::new();
        let mut wait = Duration::ZERO;
        self.leaving.retain(|live| !live.is_over());
        for live in self.live.iter().chain(&self.leaving) {
            live.leave.send_replace(true);
            if live.view.borrow().last_success.is_some() {
                wait = wait.max(live.deregister_wait);
            }
            if !live.is_over() {
                views.push(live.view.clone());
            }
        }
        async move {
            let registrations = views.len();
            let all = async {
                for view in &mut views {
                    let _gone = view.wait_for(|view| view.over).await;
                }
            };
            let _late = tokio::time::timeout(LEAVE_PATIENCE, all).await;
            let unfinished = views.iter().filter(|view| !view.borrow().over).count();
            Left {
                registrations,
                unfinished,
                wait: (*left_at.get_or_init(|| clock.now()) + wait).since(clock.now()),
            }
        }
    }

    /// Each as it stands.
    pub fn shown(&self) -> Vec<Shown> {
        let one = |live: &Live| {
            let mut view = live.view.borrow().clone();
            if let Some(problem) = &live.problem {
                view.error = Some(Arc::from(problem.as_str()));
            }
            Shown {
                registry: Arc::clone(&live.key.registry),
                kind: live.client.config.kind.word(),
                service: Arc::clone(&live.key.service),
                address: Arc::clone(&live.address),
                view,
            }
        };
        self.live.iter().map(one).collect()
    }

    /// Beats that were taken and that were not, by registry, since the start.
    pub fn heartbeats(&self) -> BTreeMap<Arc<str>, (u64, u64)> {
        let mut counts = self.past.clone();
        for live in &self.live {
            count(&mut counts, live);
        }
        counts
    }

    /// Ends one; it is kept until nothing of it is left.
    fn retire(&mut self, gone: Live) {
        gone.leave.send_replace(true);
        count(&mut self.past, &gone);
        self.leaving.retain(|live| !live.is_over());
        if gone.problem.is_none() {
            self.leaving.push(gone);
        }
    }

    /// How the app stands, and why; `None` where nothing checks it.
    pub fn app(&self) -> Option<(Standing, Vec<Arc<str>>)> {
        let health: Vec<AppHealth> = self
            .checks
            .iter()
            .map(|(_, h)| h.borrow().clone())
            .collect();
        let has = |standing| health.iter().any(|health| health.standing == standing);
        let standing = match (has(Standing::Down), has(Standing::Starting)) {
            _ if health.is_empty() => return None,
            (true, _) => Standing::Down,
            (false, true) => Standing::Starting,
            (false, false) => Standing::Up,
        };
        let messages = health.into_iter().map(|health| health.message);
        Some((standing, messages.collect()))
    }

    fn refresh_clients(
        &mut self,
        config: &Config,
        embedded: &BTreeMap<Arc<str>, EmbeddedRegistry>,
    ) {
        let mut old = std::mem::take(&mut self.clients);
        for register in &config.app.register {
            let name = &register.registry;
            let Some(registry) = config.registries.get(name) else {
                continue;
            };
            if self.clients.contains_key(name) {
                continue;
            }
            let client = match old.remove(name) {
                Some(client) if is_same_registry(&client.config, registry) => Some(client),
                Some(_) | None => {
                    let ours = embedded.get(name);
                    Client::new(registry, ours, self.clock, &mut self.rng).map(Arc::new)
                }
            };
            if let Some(client) = client {
                self.clients.insert(Arc::clone(name), client);
            }
        }
    }

    fn start(
        &mut self,
        key: Key,
        register: Register,
        client: Arc<Client>,
        owner: &Arc<str>,
        before: Option<Live>,
    ) -> Live {
        let stamp = before
            .as_ref()
            .map(|live| Arc::clone(&live.stamp))
            .unwrap_or_default();
        let registrar = record(&register).and_then(|record| {
            let address = address(&record);
            Ok((client.registrar(record, &stamp, owner)?, address))
        });
        let (view, seen) = watch::channel(View::default());
        let (leave, leaves) = watch::channel(false);
        let (changes, changed) = mpsc::unbounded_channel();
        let old = before.as_ref().and_then(|live| {
            let task = live.task.clone()?;
            Some((live.view.clone(), task))
        });
        if let Some(before) = before {
            self.retire(before);
        }
        let mut live = Live {
            address: format!(
                "{:?}:{}",
                register.advertise.address, register.advertise.port
            )
            .into(),
            deregister_wait: Duration::ZERO,
            task: None,
            problem: None,
            view: seen,
            key,
            client,
            stamp,
            leave,
            changes,
            register,
        };
        let (registrar, address) = match registrar {
            Ok(found) => found,
            Err(problem) => {
                tracing::error!(service = %live.key.service, %problem, "the app cannot be registered");
                if live.register.fail_fast && self.armed {
                    self.fatal.send_replace(Some(fatal(&live.key, &problem)));
                }
                live.problem = Some(problem);
                return live;
            }
        };
        live.address = address;
        live.deregister_wait = registrar.deregister_wait();
        let start = driver::Start {
            label: Label {
                registry: Arc::clone(&live.key.registry),
                service: Arc::clone(&live.key.service),
                address: Arc::clone(&live.address),
            },
            registrar,
            health: self.health(live.register.check.as_ref()),
            leave: leaves,
            changes: changed,
            pre_register: live.register.pre_register.clone(),
            post_register: live.register.post_register.clone(),
            view,
            clock: self.clock,
            journal: self.journal.clone(),
            seed: self.rng.u64(..),
        };
        let task = tokio::spawn(async move {
            // The same instance with other settings: the old one goes first. Where its registry does
            // not answer any more it is given up, so that it takes nothing off the list later.
            if let Some((mut view, task)) = old {
                let gone = view.wait_for(|view| view.over);
                if tokio::time::timeout(LEAVE_PATIENCE, gone).await.is_err() {
                    task.abort();
                }
            }
            driver::run(start).await;
        });
        live.task = Some(task.abort_handle());
        if live.register.fail_fast && self.armed {
            tokio::spawn(watch_first(
                live.key.clone(),
                live.view.clone(),
                self.fatal.clone(),
            ));
        }
        live
    }

    /// Follows a check; the same check of several registrations runs once.
    fn health(&mut self, check: Option<&AppCheck>) -> watch::Receiver<AppHealth> {
        let Some(check) = check else {
            return self.unchecked.subscribe();
        };
        if let Some((_, health)) = self.checks.iter().find(|(known, _)| known == check) {
            return health.clone();
        }
        let (sender, health) = watch::channel(app_check::unknown());
        tokio::spawn(app_check::run(check.clone(), sender, self.journal.clone()));
        self.checks.push((check.clone(), health.clone()));
        health
    }
}

impl Live {
    /// Whether nothing of it is left.
    fn is_over(&self) -> bool {
        self.task.as_ref().is_none_or(AbortHandle::is_finished)
    }

    fn is_same(&self, register: &Register, client: &Arc<Client>) -> bool {
        self.problem.is_none() && self.register == *register && Arc::ptr_eq(&self.client, client)
    }

    /// Whether nothing but what a register call replaces, the check or the hooks is different.
    fn changes_in_place(&self, register: &Register, client: &Arc<Client>) -> bool {
        let with_ours = Register {
            weight: register.weight,
            metadata: register.metadata.clone(),
            fail_fast: register.fail_fast,
            check: register.check.clone(),
            pre_register: register.pre_register.clone(),
            post_register: register.post_register.clone(),
            ..self.register.clone()
        };
        self.problem.is_none() && with_ours == *register && Arc::ptr_eq(&self.client, client)
    }

    fn changed(
        mut self,
        register: Register,
        owner: &Arc<str>,
        health: watch::Receiver<AppHealth>,
    ) -> Self {
        let told_alike =
            self.register.weight == register.weight && self.register.metadata == register.metadata;
        let registrar = if told_alike {
            Ok(None)
        } else {
            record(&register)
                .and_then(|record| self.client.registrar(record, &self.stamp, owner))
                .map(Some)
        };
        match registrar {
            Ok(registrar) => {
                let _ended = self.changes.send(Renewal {
                    registrar,
                    health,
                    pre_register: register.pre_register.clone(),
                    post_register: register.post_register.clone(),
                });
                self.register = register;
            }
            Err(problem) => {
                tracing::error!(service = %self.key.service, %problem, "the registration stays as it was");
            }
        }
        self
    }
}

/// Whether nothing differs that a registration uses.
fn is_same_registry(known: &Registry, new: &Registry) -> bool {
    let with_new = Registry {
        empty: new.empty.clone(),
        ..known.clone()
    };
    with_new == *new
}

/// Ends the process when the first call does not succeed.
async fn watch_first(
    key: Key,
    mut view: watch::Receiver<View>,
    fatal_end: watch::Sender<Option<String>>,
) {
    let first = view.wait_for(|view| view.first.is_some()).await;
    let first = first.ok().and_then(|view| view.first.clone().flatten());
    if let Some(problem) = first {
        fatal_end.send_replace(Some(fatal(&key, &problem)));
    }
}

fn count(counts: &mut BTreeMap<Arc<str>, (u64, u64)>, live: &Live) {
    let view = live.view.borrow();
    let (ok, failed) = counts.entry(Arc::clone(&live.key.registry)).or_default();
    *ok = ok.saturating_add(view.beats);
    *failed = failed.saturating_add(view.failed_beats);
}

fn fatal(key: &Key, problem: &str) -> String {
    format!(
        "{} cannot be registered with {} (app.register, fail_fast): {problem}",
        key.service, key.registry
    )
}

/// The item and its management instance.
fn instances(register: &Register) -> impl Iterator<Item = Register> + use<> {
    let management = register.management.as_ref().map(|management| Register {
        service: Arc::clone(&management.service),
        advertise: Advertise {
            address: register.advertise.address.clone(),
            port: management.port,
        },
        management: None,
        pre_register: None,
        post_register: None,
        ..register.clone()
    });
    std::iter::once(register.clone()).chain(management)
}

fn key(register: &Register) -> Key {
    Key {
        registry: Arc::clone(&register.registry),
        service: Arc::clone(&register.service),
        group: register.group.clone(),
        cluster: register.cluster.clone(),
        advertise: register.advertise.clone(),
    }
}

fn record(register: &Register) -> Result<Record, String> {
    let variable = |name: &str| std::env::var(name).ok();
    Ok(Record {
        service: Arc::clone(&register.service),
        group: register.group.clone(),
        cluster: register.cluster.clone(),
        address: advertise::address(&register.advertise.address, variable)?,
        port: register.advertise.port,
        weight: register.weight,
        metadata: register.metadata.clone(),
        ephemeral: register.ephemeral,
        heartbeat_interval: register.heartbeat_interval,
    })
}

fn address(record: &Record) -> Arc<str> {
    match Address::from_parts(&record.address, record.port) {
        Ok(address) => Arc::from(address.as_str()),
        Err(_) => format!("{}:{}", record.address, record.port).into(),
    }
}
