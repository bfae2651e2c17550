//! The admin and the telemetry listener, both on a thread of their own beside the data plane: what
//! they need they ask control for. `admin/server.rs` accepts and bounds connections,
//! `admin/guard.rs` keeps others out, `admin/routes.rs` finds the page, `admin/api.rs` and its
//! neighbours, and `admin/telemetry.rs`, answer.

mod answer;
mod api;
mod breakers;
mod bundle;
mod call;
mod config;
mod events;
mod guard;
mod history;
mod lifecycle;
mod openapi;
mod orders;
mod overrides;
mod registrations;
mod registry;
mod resolve;
mod routes;
mod server;
mod services;
mod stream;
mod telemetry;
pub mod views;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

pub use self::server::Doors;
use self::server::{Bounds, serve};
use crate::config::types::Config;
use crate::control::{ControlHandle, Facts, NoAnswer};
use crate::drain::Lifecycle;
use crate::journal::Journal;
use crate::listener::bind::Bound;
use crate::log::LogControl;
use crate::metrics::collect::{Caps, Collector, ReloadCounters};

/// How long control may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a reload may take.
const RELOAD_PATIENCE: Duration = Duration::from_secs(9);
/// How long it may take to show that it lives.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Streams at a time, of the connections there may be.
const STREAMS: usize = 16;

/// What a reload may change of both listeners.
#[derive(Clone, Debug)]
pub struct Settings {
    /// File with the token that the admin listener asks for. Read at each request, so a new token
    /// holds at once.
    pub token_file: Option<PathBuf>,
    /// Bounds of `/metrics`.
    pub caps: Caps,
    /// All of it, to be shown.
    pub config: Arc<Config>,
}

impl From<&Arc<Config>> for Settings {
    fn from(config: &Arc<Config>) -> Self {
        Self {
            token_file: config.admin.token_file.clone(),
            caps: Caps::from(&config.telemetry),
            config: Arc::clone(config),
        }
    }
}

/// What both listeners need; clones share it.
#[derive(Clone, Debug)]
pub struct Deps {
    /// Answers questions.
    pub control: ControlHandle,
    /// Events.
    pub journal: Journal,
    /// Counters of the workers.
    pub facts: Arc<Facts>,
    /// Counted by control.
    pub reloads: Arc<ReloadCounters>,
    /// The settings in force.
    pub settings: watch::Receiver<Settings>,
    /// How the process ends.
    pub lifecycle: Lifecycle,
    /// What it logs.
    pub log: LogControl,
    collector: Arc<Collector>,
    history: history::History,
    /// Places of streams.
    streams: Arc<Semaphore>,
}

impl Deps {
    /// All of it.
    pub fn new(
        control: ControlHandle,
        journal: Journal,
        facts: Arc<Facts>,
        reloads: Arc<ReloadCounters>,
        settings: watch::Receiver<Settings>,
    ) -> Self {
        Self {
            control,
            journal,
            facts,
            reloads,
            settings,
            lifecycle: Lifecycle::new(),
            log: LogControl::detached(),
            collector: Arc::default(),
            history: history::History::default(),
            streams: Arc::new(Semaphore::new(STREAMS)),
        }
    }

    /// With what moves the process.
    #[must_use]
    pub fn with_process(self, lifecycle: Lifecycle, log: LogControl) -> Self {
        Self {
            lifecycle,
            log,
            ..self
        }
    }
}

/// Starts the thread that serves both listeners until `shutdown` is true or its sender is gone. It
/// then finishes what is in flight, two seconds at most.
///
/// # Errors
/// When the thread or its runtime cannot be had.
pub fn spawn(
    admin: Bound,
    telemetry: Bound,
    deps: Deps,
    shutdown: watch::Receiver<bool>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let doors = {
        let _inside = runtime.enter();
        (Doors::new(admin)?, Doors::new(telemetry)?)
    };
    thread::Builder::new().name("admin".into()).spawn(move || {
        let (admin, telemetry) = doors;
        let other = (deps.clone(), shutdown.clone());
        runtime.block_on(async {
            let samples = tokio::spawn(history::collect(deps.clone()));
            tokio::join!(
                serve_admin(admin, deps, shutdown),
                serve_telemetry(telemetry, other.0, other.1),
            );
            samples.abort();
        });
    })
}

/// Serves the admin API.
pub async fn serve_admin(doors: Doors, deps: Deps, shutdown: watch::Receiver<bool>) {
    let bounds = Bounds { connections: 64 };
    let stop = shutdown.clone();
    serve(doors, bounds, shutdown, move |request, local| {
        api::answer(deps.clone(), request, local, stop.clone())
    })
    .await;
}

/// Serves metrics and probes.
pub async fn serve_telemetry(doors: Doors, deps: Deps, shutdown: watch::Receiver<bool>) {
    let bounds = Bounds { connections: 256 };
    serve(doors, bounds, shutdown, move |request, _| {
        let deps = deps.clone();
        async move { telemetry::answer(&deps, &request).await }
    })
    .await;
}

/// Control's answer within `limit`.
async fn within<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, NoAnswer>>,
) -> Result<T, NoAnswer> {
    tokio::time::timeout(limit, answer)
        .await
        .unwrap_or(Err(NoAnswer))
}

#[cfg(test)]
pub(crate) mod tests;
