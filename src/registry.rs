//! The embedded registry: instances register themselves over the Nacos v1 HTTP API (or in-process)
//! and stay by heart-beats, or over Nacos's gRPC protocol and stay by their connection.
//! [`EmbeddedRegistry`] is a handle around the pure lease table; a change is
//! told to in-process watchers at once.
//!
//! Its tasks are run by its owner: [`EmbeddedRegistry::maintain`] (expiry, snapshot, users) and, per
//! listener, [`EmbeddedRegistry::serve`] and [`EmbeddedRegistry::serve_grpc`].
//!
//! Next: `registry/lease.rs` (the table), `registry/server.rs` (HTTP), `registry/api.rs`,
//! `registry/grpc.rs`.

mod answer;
mod api;
mod clients;
mod grpc;
mod guard;
mod guesses;
pub mod lease;
pub mod model;
mod naming;
pub mod overview;
mod params;
mod people;
mod push;
mod server;
mod service;
pub mod session;
mod snapshot;
mod users;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tracing::{info, warn};

pub use model::{InstanceKey, Patch, Refusal, Registration, ServiceKey, Target};
pub use server::Listener;
pub use service::Instance;

use crate::clock::{Clock, Timestamp};
use crate::config::types::Embedded;
use crate::endpoint::Endpoint;
use clients::Clients;
use lease::{Bounds, Table};
use model::Timing;
use overview::Overview;
use push::Pushes;
use snapshot::Store;
use users::Users;

/// The embedded registry; clones are the same one.
#[derive(Clone, Debug)]
pub struct EmbeddedRegistry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    beat_interval: Duration,
    store: Option<Store>,
    /// The last snapshot could not be written, and that has been said.
    unsaved: AtomicBool,
    /// Held for one operation of the pure table, never across an await.
    table: Mutex<Table>,
    /// Who follows which service; senders without receivers are dropped when the next one comes.
    watchers: Mutex<HashMap<ServiceKey, watch::Sender<u64>>>,
    names: watch::Sender<u64>,
    /// Counts all changes: the snapshot is due.
    changes: watch::Sender<u64>,
    /// Who is told of changes by UDP.
    pushes: Pushes,
    /// Who is told of changes by gRPC.
    clients: Clients,
    users: Users,
    /// Of each listener.
    max_connections: usize,
    /// The next deadline moved forward.
    rearm: Notify,
}

impl EmbeddedRegistry {
    /// One that knows what its snapshot knows (if `data` is set), every lease with a full fresh
    /// period.
    pub fn new(config: &Embedded, clock: Clock) -> Self {
        let bounds = Bounds {
            services: config.max_services,
            instances: config.max_instances,
            metadata_bytes: config.max_metadata_bytes,
        };
        let timing = Timing {
            beat_interval: config.beat_interval,
            unhealthy_after: config.unhealthy_after,
            remove_after: config.remove_after,
        };
        let mut table = Table::new(bounds, timing);
        let store = config.data.as_ref().map(|folder| Store::new(folder));
        if let Some(store) = &store {
            let (restored, refused) = snapshot::restore(store.load(), &mut table, clock.now());
            if refused > 0 {
                warn!(restored, refused, "registry snapshot restored in part");
            } else if restored > 0 {
                info!(restored, "registry snapshot restored");
            }
            drop(table.take_changes());
        }
        Self(Arc::new(Inner {
            clock,
            beat_interval: config.beat_interval,
            store,
            unsaved: AtomicBool::new(false),
            table: Mutex::new(table),
            watchers: Mutex::default(),
            names: watch::Sender::default(),
            changes: watch::Sender::default(),
            pushes: Pushes::default(),
            clients: Clients::default(),
            users: Users::new(config.users_file.clone()),
            max_connections: config.max_connections,
            rearm: Notify::new(),
        }))
    }

    /// Registers an instance, or renews and replaces it.
    ///
    /// # Errors
    /// [`Refusal`] says which bound or rule stands against it.
    pub fn register(&self, key: &ServiceKey, registration: Registration) -> Result<(), Refusal> {
        self.with(|table, now| table.register(key, registration, now))
    }

    /// Renews a lease; the interval until the next beat, or `None` when there is no such instance.
    pub fn beat(&self, key: &ServiceKey, target: Target<'_>) -> Option<Duration> {
        self.with(|table, now| table.beat(key, target, now))
    }

    /// Removes an instance; false when there was none.
    pub fn deregister(&self, key: &ServiceKey, target: Target<'_>, ephemeral: bool) -> bool {
        self.with(|table, now| table.deregister(key, target, ephemeral, now))
    }

    /// An operator's change.
    ///
    /// # Errors
    /// [`Refusal`] when there is no such instance or the metadata is not legal.
    pub fn patch(
        &self,
        key: &ServiceKey,
        target: Target<'_>,
        patch: &Patch,
    ) -> Result<(), Refusal> {
        self.with(|table, now| table.patch(key, target, patch, now))
    }

    /// The endpoints of a service in the order of registration, disabled and unhealthy ones too;
    /// empty `clusters`: all.
    pub fn endpoints(&self, key: &ServiceKey, clusters: &[String]) -> Vec<Endpoint> {
        let wanted = |one: &&Instance| {
            clusters.is_empty() || clusters.iter().any(|name| **name == *one.key().cluster)
        };
        self.with(|table, now| {
            let all = table.list(key, now).into_iter().flatten();
            all.filter(wanted).filter_map(Instance::endpoint).collect()
        })
    }

    /// Whether an instance is on the list, disabled or not.
    pub fn knows(&self, key: &ServiceKey, target: Target<'_>) -> bool {
        self.with(|table, now| table.get(key, target, now).is_some())
    }

    /// The services of a namespace and group, sorted.
    pub fn names(&self, namespace: &str, group: &str) -> Vec<Arc<str>> {
        self.with(|table, now| table.names(namespace, group, now))
    }

    /// All services with their instances, for people.
    pub fn overview(&self) -> Overview {
        let clients = self.0.clients.count();
        self.with(|table, now| Overview::new(table, clients, now))
    }

    /// Services and instances, counted.
    pub fn counts(&self) -> (usize, usize) {
        self.with(|table, now| {
            table.expire(now);
            table.counts()
        })
    }

    /// Counts changes of a service from now on.
    pub fn watch(&self, key: &ServiceKey) -> watch::Receiver<u64> {
        let mut watchers = self
            .0
            .watchers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        watchers.retain(|_, sender| sender.receiver_count() > 0);
        watchers.entry(key.clone()).or_default().subscribe()
    }

    /// Counts comings and goings of services from now on.
    pub fn watch_names(&self) -> watch::Receiver<u64> {
        self.0.names.subscribe()
    }

    /// Expires leases when they are due, pushes changes and keeps the snapshot; ends when `shutdown` becomes true (or
    /// its sender is dropped), after a last snapshot.
    pub async fn maintain(self, shutdown: watch::Receiver<bool>) {
        tokio::join!(
            self.expire_and_save(shutdown.clone()),
            self.read_users(shutdown.clone()),
            push::run(&self, shutdown)
        );
    }

    async fn expire_and_save(&self, mut shutdown: watch::Receiver<bool>) {
        let mut changes = self.0.changes.subscribe();
        let mut save_at: Option<Timestamp> = None;
        loop {
            let rearmed = self.0.rearm.notified();
            let now = self.0.clock.now();
            let due = self.with(|table, now| {
                table.expire(now);
                table.next_deadline()
            });
            if changes.has_changed().unwrap_or(false) {
                changes.mark_unchanged();
                save_at = save_at.or(Some(now + SAVE_DELAY));
            }
            if save_at.is_some_and(|at| at <= now) {
                save_at = None;
                self.save().await;
            }
            let due = due.unwrap_or(Timestamp::MAX).max(now + EXPIRY_PAUSE);
            let wake = self.0.clock.instant(save_at.map_or(due, |at| at.min(due)));
            tokio::select! {
                () = stopped(&mut shutdown) => break,
                () = tokio::time::sleep_until(wake) => {}
                () = rearmed => {}
                _ = changes.changed(), if save_at.is_none() => changes.mark_changed(),
            }
        }
        self.save().await;
    }

    async fn read_users(&self, mut shutdown: watch::Receiver<bool>) {
        while self.0.users.required() {
            tokio::select! {
                () = stopped(&mut shutdown) => return,
                () = tokio::time::sleep(USERS_PERIOD) => self.0.users.refresh().await,
            }
        }
    }

    async fn save(&self) {
        let Some(store) = self.0.store.clone() else {
            return;
        };
        let saved = self.with(snapshot::saved);
        let path = store.path().display().to_string();
        let written = tokio::task::spawn_blocking(move || store.save(&saved)).await;
        let written = written.map_err(std::io::Error::other).flatten();
        // Said when it begins and when it ends: a full disk would repeat it every few seconds.
        let unsaved = self.0.unsaved.swap(written.is_err(), Ordering::Relaxed);
        match written {
            Err(error) if !unsaved => warn!(
                %path, %error,
                "registry snapshot cannot be written: leases will not survive a restart"
            ),
            Ok(()) if unsaved => info!(%path, "registry snapshot written again"),
            Ok(()) | Err(_) => {}
        }
    }

    /// One operation on the table at the present time; tells all who follow what it changed.
    fn with<R>(&self, operation: impl FnOnce(&mut Table, Timestamp) -> R) -> R {
        let inner = &*self.0;
        let mut table = inner.table.lock().unwrap_or_else(PoisonError::into_inner);
        let before = table.next_deadline();
        let result = operation(&mut table, inner.clock.now());
        let after = table.next_deadline();
        let changes = table.take_changes();
        drop(table);
        if after.is_some_and(|after| before.is_none_or(|before| after < before)) {
            inner.rearm.notify_waiters();
        }
        if changes.is_empty() {
            return result;
        }
        let count = |number: &mut u64| *number = number.saturating_add(1);
        let watchers = inner
            .watchers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for key in &changes.services {
            if let Some(sender) = watchers.get(key) {
                sender.send_modify(count);
            }
        }
        drop(watchers);
        inner.clients.changed(&changes.services, inner.clock.now());
        inner.pushes.changed(changes.services);
        if changes.names {
            inner.names.send_modify(count);
        }
        inner.changes.send_modify(count);
        result
    }
}

/// Until `shutdown` is true or its sender is gone.
async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    drop(shutdown.wait_for(|stop| *stop).await);
}

/// Changes of this time are written together.
const SAVE_DELAY: Duration = Duration::from_secs(1);

/// The users file is looked at this often.
const USERS_PERIOD: Duration = Duration::from_secs(5);

/// Deadlines of this time are handled together.
const EXPIRY_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
