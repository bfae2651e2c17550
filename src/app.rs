//! Wiring: bind everything, then start everything, then wait for the end. The only file beside
//! `main.rs` that knows all parts.
//!
//! Threads: `worker-N` (data plane), the caller's (control), `admin` (admin and telemetry), `lines`
//! (writes logs). Shutting down: propagation delay while still serving, then no new connections,
//! then the grace for what is in flight, then the end.

mod ending;
mod workers;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use http::HeaderValue;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use self::ending::{End, Ending, end_when_fatal, open_connections};
use self::workers::start_workers;
use crate::access_log::AccessLog;
use crate::admin;
use crate::clock::Clock;
use crate::config::types::{Config, Listen, RegistryKind, Sink};
use crate::control::plane::{ConfigInputs, Plane, PlaneStart};
use crate::control::reload::ReloadWish;
use crate::control::watch::WatchList;
use crate::control::{ControlHandle, Facts};
use crate::drain::Lifecycle;
use crate::journal::Journal;
use crate::listener::bind::{self, BindError, Bound};
use crate::log::LogControl;
use crate::metrics::cells::WorkerCells;
use crate::metrics::collect::ReloadCounters;
use crate::registry::EmbeddedRegistry;
use crate::router::RouteTable;
use crate::sink::Lines;
use crate::worker::{DrainPhase, Shared, Snapshot};

/// How long the admin thread may take to end; a little more than its own bound.
const ADMIN_WAIT: Duration = Duration::from_secs(3);
/// Between two looks at whether it has.
const ADMIN_LOOK: Duration = Duration::from_millis(5);
/// Longest wait for workers once their connections are cut.
const CUT_WAIT: Duration = Duration::from_secs(2);
/// Open files kept for all but the data plane.
const KEPT_FILES: u64 = 64;
/// Open files of a worker beside its connections: its sockets, what wakes it.
const FILES_OF_A_WORKER: u64 = 10;
/// Open files below this are worth a warning.
const FEW_FILES: u64 = 4096;

/// Wishes for reloads, and the end that makes more of them.
pub type Reloads = (mpsc::Sender<ReloadWish>, mpsc::Receiver<ReloadWish>);

/// What moves the app from outside.
#[derive(Debug)]
pub struct Controls {
    /// How it ends.
    pub lifecycle: Lifecycle,
    /// When it loads its files again.
    pub reloads: Reloads,
    /// What it logs.
    pub log: LogControl,
}

/// How the process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything in flight was finished, or its grace was over.
    Drained,
    /// A second signal cut it short.
    Forced,
}

/// Everything bound, nothing started.
#[derive(Debug)]
pub struct App {
    config: Arc<Config>,
    inputs: ConfigInputs,
    files: WatchList,
    workers: usize,
    clock: Clock,
    lines: Lines,
    journal: Journal,
    data: Vec<Listener>,
    admin: Bound,
    telemetry: Bound,
    registries: Vec<BoundRegistry>,
    listeners: BTreeMap<String, Vec<String>>,
    questions: mpsc::Receiver<crate::control::Question>,
    control: ControlHandle,
}

/// An embedded registry and its listener, if it has one.
#[derive(Debug)]
struct BoundRegistry {
    name: Arc<str>,
    registry: EmbeddedRegistry,
    bound: Option<Bound>,
    grpc: Option<Bound>,
}

/// A data listener; `service` on an own port.
#[derive(Debug)]
struct Listener {
    bound: Bound,
    service: Option<Arc<str>>,
}

impl App {
    /// Binds every listener of `config`.
    ///
    /// # Errors
    /// The first address that cannot be had; nothing stays bound.
    pub fn bind(config: Config, inputs: ConfigInputs, files: WatchList) -> anyhow::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let workers = config
            .workers
            .map_or_else(|| cores.min(2), usize::from)
            .max(1);
        // The runtime's clock needs none of its timers: a copy of the origin serves all threads.
        let clock = Clock::new();
        let lines = Lines::start().context("cannot start the log thread")?;
        open_sinks(&config, &lines)?;
        let journal = Journal::new(lines.clone(), &config.telemetry.events);
        let mut data = Vec::new();
        for listen in &config.listen {
            let bound = bind::bind(listen, workers, "listen")?;
            data.push(Listener {
                bound,
                service: None,
            });
        }
        for (name, service) in &config.services {
            if let Some(port) = service.port {
                let bound = bind::bind(&Listen::Localhost(port), workers, "services.*.port")?;
                data.push(Listener {
                    bound,
                    service: Some(Arc::clone(name)),
                });
            }
        }
        let admin = bind::bind(&config.admin.listen, 1, "admin.listen")?;
        let telemetry = bind::bind(&telemetry_listen(&config), 1, "telemetry.listen")?;
        let registries = bind_registries(&config, clock)?;
        let listeners = addresses(&data, &admin, &telemetry, &registries);
        let (control, questions) = Plane::questions();
        Ok(Self {
            config: Arc::new(config),
            inputs,
            files,
            workers,
            clock,
            lines,
            journal,
            data,
            admin,
            telemetry,
            registries,
            listeners,
            questions,
            control,
        })
    }

    /// Addresses by listener: `data`, `admin`, `telemetry`, `service:NAME`, `registry:NAME`,
    /// `registry_grpc:NAME`.
    pub fn listeners(&self) -> &BTreeMap<String, Vec<String>> {
        &self.listeners
    }

    /// The journal, for those who follow it in-process.
    pub fn journal(&self) -> Journal {
        self.journal.clone()
    }

    /// Asks control, once the app runs.
    pub fn control(&self) -> ControlHandle {
        self.control.clone()
    }

    /// Runs until `stop` says so. Blocks the calling thread, which becomes the control thread.
    ///
    /// # Errors
    /// When a thread or a runtime cannot be started.
    pub fn run(self, controls: Controls) -> anyhow::Result<Ended> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the control runtime")?;
        let ended = runtime.block_on(self.control_thread(controls));
        // A read of a file that hangs must not keep the process.
        runtime.shutdown_timeout(CUT_WAIT);
        ended
    }

    async fn control_thread(self, controls: Controls) -> anyhow::Result<Ended> {
        let room = room_for_connections(self.workers);
        self.tell_listening();
        let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot {
            table: RouteTable::default(),
            config: Arc::clone(&self.config),
        }));
        let cells: Arc<[WorkerCells]> = (0..self.workers).map(|_| WorkerCells::default()).collect();
        let (lookups, lookup_queue) = mpsc::channel(256);
        let (drain, drain_seen) = watch::channel(DrainPhase::Serving);
        let (end, ended) = watch::channel(false);
        let mut seeds = fastrand::Rng::new();
        let shared = Arc::new(Shared {
            snapshot: Arc::clone(&snapshot),
            cells: Arc::clone(&cells),
            hop: hop_token(&mut seeds),
            lookups,
            drain: drain_seen.clone(),
            access_log: AccessLog {
                lines: self.lines.clone(),
            },
            clock: self.clock,
            room,
        });
        let mut embedded = BTreeMap::new();
        let mut registry_tasks = tokio::task::JoinSet::new();
        for BoundRegistry {
            name,
            registry,
            bound,
            grpc,
        } in self.registries
        {
            registry_tasks.spawn(registry.clone().maintain(ended.clone()));
            for (_, listener) in bound.iter().flat_map(|b| &b.unix) {
                let listener = tokio::net::UnixListener::from_std(listener.try_clone()?)?;
                registry_tasks.spawn(registry.clone().serve(listener, ended.clone()));
            }
            for socket in bound
                .into_iter()
                .flat_map(|b| b.tcp)
                .flat_map(|b| b.sockets)
            {
                let listener = tokio::net::TcpListener::from_std(socket)?;
                registry_tasks.spawn(registry.clone().serve(listener, ended.clone()));
            }
            for socket in grpc.into_iter().flat_map(|b| b.tcp).flat_map(|b| b.sockets) {
                let listener = tokio::net::TcpListener::from_std(socket)?;
                registry_tasks.spawn(registry.clone().serve_grpc(listener, ended.clone()));
            }
            embedded.insert(name, registry);
        }
        let reload_counters = Arc::new(ReloadCounters::new());
        let (config_changes, config_seen) = watch::channel(Arc::clone(&self.config));
        let plane = Plane::new(PlaneStart {
            reload_counters: Arc::clone(&reload_counters),
            config_changes,
            config: Arc::clone(&self.config),
            inputs: self.inputs,
            files: self.files,
            workers: self.workers,
            clock: self.clock,
            journal: self.journal.clone(),
            embedded,
            snapshot,
            lookups: lookup_queue,
            questions: self.questions,
            reloads: controls.reloads,
            listeners: self.listeners.clone(),
            drain: drain_seen.clone(),
            stop: ended.clone(),
            seed: seeds.u64(..),
        });
        let fatal = plane.fatal();
        let plane = tokio::spawn(plane.run());
        let failed = end_when_fatal(fatal, controls.lifecycle.clone());
        let (workers_gone, mut all_gone) = mpsc::channel::<()>(1);
        start_workers(self.data, &shared, &mut seeds, &workers_gone)?;
        drop(workers_gone);
        let config_now = config_seen.clone();
        let settings = follow_settings(config_seen, controls.log.clone());
        let facts = Arc::new(Facts {
            version: env!("CARGO_PKG_VERSION"),
            workers: cells,
        });
        let deps = admin::Deps::new(
            self.control.clone(),
            self.journal.clone(),
            facts,
            reload_counters,
            settings,
        )
        .with_process(controls.lifecycle.clone(), controls.log.clone());
        let admin = admin::spawn(self.admin, self.telemetry, deps, ended.clone())
            .context("cannot start the admin thread")?;

        let ending = Ending {
            lifecycle: &controls.lifecycle,
            journal: &self.journal,
            drain: &drain,
            shared: &shared,
            control: self.control,
            config: config_now,
        };
        let end_kind = ending.come(&mut all_gone).await;
        let forced = end_kind == End::Now;
        let left = open_connections(&shared);
        drain.send_replace(DrainPhase::Cut);
        if !forced {
            // Each worker ends by itself once its connections are cut.
            let _late = tokio::time::timeout(CUT_WAIT, all_gone.recv()).await;
            if end_kind == (End::InOrder { told: false }) {
                let fields = vec![("open_connections", json!(left))];
                self.journal
                    .emit("drain_finished", fields, "drained".to_owned());
            }
        }
        end.send_replace(true);
        let _late = tokio::time::timeout(CUT_WAIT, async {
            let _ended = plane.await;
            while registry_tasks.join_next().await.is_some() {}
        })
        .await;
        if !forced {
            // It ends by itself, within its own bound: answers in flight and streams end whole.
            let _late = tokio::time::timeout(ADMIN_WAIT, async {
                while !admin.is_finished() {
                    tokio::time::sleep(ADMIN_LOOK).await;
                }
            })
            .await;
        }
        let msg = if forced {
            "stopped by a second signal"
        } else {
            "stopped"
        };
        self.journal
            .emit("stopped", vec![("forced", json!(forced))], msg.to_owned());
        self.lines.flush();
        if let Some(problem) = failed.borrow().clone() {
            anyhow::bail!(problem);
        }
        Ok(if forced {
            Ended::Forced
        } else {
            Ended::Drained
        })
    }

    fn tell_listening(&self) {
        for (listener, addresses) in &self.listeners {
            for address in addresses {
                self.journal.emit(
                    "listening",
                    vec![("listener", json!(listener)), ("address", json!(address))],
                    format!("{listener} listens on {address}"),
                );
            }
        }
        let bounds = self.data.iter().map(|l| &l.bound);
        for warning in bounds.flat_map(|b| &b.warnings) {
            tracing::warn!(%warning, "one address family of localhost is not served");
        }
    }
}

/// What admin and telemetry need of the configuration, kept current.
fn follow_settings(
    mut config: watch::Receiver<Arc<Config>>,
    log: LogControl,
) -> watch::Receiver<admin::Settings> {
    let first = admin::Settings::from(&*config.borrow_and_update());
    let (settings, seen) = watch::channel(first);
    tokio::spawn(async move {
        while config.changed().await.is_ok() {
            let config = Arc::clone(&config.borrow_and_update());
            log.configure(config.log.level);
            settings.send_replace(admin::Settings::from(&config));
        }
    });
    seen
}

fn bind_registries(config: &Config, clock: Clock) -> Result<Vec<BoundRegistry>, BindError> {
    let mut all = Vec::new();
    for (name, registry) in &config.registries {
        if let RegistryKind::Embedded(settings) = &registry.kind {
            let (bound, grpc) = match &settings.listen {
                Some(listen) => {
                    let (http, grpc) = bind::bind_registry(listen, "registries.*.listen")?;
                    (Some(http), Some(grpc))
                }
                None => (None, None),
            };
            all.push(BoundRegistry {
                name: Arc::clone(name),
                registry: EmbeddedRegistry::new(settings, clock),
                bound,
                grpc,
            });
        }
    }
    Ok(all)
}

fn addresses(
    data: &[Listener],
    admin: &Bound,
    telemetry: &Bound,
    registries: &[BoundRegistry],
) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |name: String, bound: &Bound| {
        let list = all.entry(name).or_default();
        list.extend(bound.tcp.iter().map(|b| b.address.to_string()));
        list.extend(
            bound
                .unix
                .iter()
                .map(|(path, _)| format!("unix:{}", path.display())),
        );
    };
    for listener in data {
        let name = listener
            .service
            .as_ref()
            .map_or_else(|| "data".to_owned(), |s| format!("service:{s}"));
        add(name, &listener.bound);
    }
    add("admin".to_owned(), admin);
    add("telemetry".to_owned(), telemetry);
    for BoundRegistry {
        name, bound, grpc, ..
    } in registries
    {
        if let Some(bound) = bound {
            add(format!("registry:{name}"), bound);
        }
        if let Some(grpc) = grpc.as_ref().filter(|grpc| !grpc.tcp.is_empty()) {
            add(format!("registry_grpc:{name}"), grpc);
        }
    }
    all
}

/// `auto`: all addresses in a container, so that Prometheus can come; on a laptop loopback only.
fn telemetry_listen(config: &Config) -> Listen {
    config.telemetry.listen.clone().unwrap_or_else(|| {
        let marker = ["/.dockerenv", "/run/.containerenv"]
            .iter()
            .any(|f| Path::new(f).exists());
        let container = marker || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let address = if container {
            [0, 0, 0, 0]
        } else {
            [127, 0, 0, 1]
        };
        Listen::Tcp((address, 15003).into())
    })
}

/// Eight hex digits that a request of ours carries, so that we know it when it comes back.
fn hop_token(rng: &mut fastrand::Rng) -> HeaderValue {
    let text = format!("{:08x}", rng.u32(..));
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("00000000"))
}

fn open_sinks(config: &Config, lines: &Lines) -> anyhow::Result<()> {
    let sinks = config
        .telemetry
        .events
        .sinks
        .iter()
        .chain([&config.telemetry.access_log.sink]);
    for sink in sinks {
        if let Sink::File(path) = sink {
            let what = || format!("cannot open {} for the log", path.display());
            lines.open(sink).with_context(what)?;
        }
    }
    Ok(())
}

/// Raises the soft limit of open files to the hard one. Returns how many of them connections may take,
/// those of the app and those to instances; the others are for admin, telemetry, registries and
/// checks.
fn room_for_connections(workers: usize) -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where raising is not allowed the present limit holds, and the warning tells.
    let _refused = setrlimit(Resource::Nofile, limit);
    let Some(files) = getrlimit(Resource::Nofile).current else {
        return usize::MAX;
    };
    let own = FILES_OF_A_WORKER.saturating_mul(u64::try_from(workers).unwrap_or(u64::MAX));
    let kept = KEPT_FILES.saturating_add(own).min(files / 4 * 3);
    let room = usize::try_from(files - kept).unwrap_or(usize::MAX).max(1);
    if files < FEW_FILES {
        tracing::warn!(
            files,
            room,
            "few open files are allowed, so few connections; raise the limit \
             (ulimit -n) above {FEW_FILES}"
        );
    }
    room
}
