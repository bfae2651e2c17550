//! Where endpoints come from. One [`RegistryHandle`] per entry of `registries`; a subscription is a
//! `watch` of a [`ServiceView`] that a task of its own keeps current. An error never empties a set
//! (G2), an empty answer only after confirmation (G3, `discovery/merge.rs`), and the last good set is
//! kept for ever (G5). What the flags of an endpoint mean for traffic is decided by whoever builds
//! the selectable set.
//!
//! Next: `discovery/handle.rs` (what callers hold), `discovery/subscription.rs` (what every source
//! does with an answer), then one file per source.

mod cache;
mod combine;
mod consul;
mod dns;
mod embedded;
mod eureka;
mod file;
mod handle;
mod kubernetes;
pub mod merge;
mod nacos;
pub mod schedule;
mod source;
mod stats;
mod subscription;
mod zookeeper;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

pub use cache::Cache;
pub use combine::{REGISTRY_KEY, combine};
pub use handle::{RegistryHandle, start};
pub use merge::{Held, HoldCause};
pub(crate) use nacos::{ServerList, follow_endpoint, nacos_servers};
pub use stats::{RegistryStats, Updates};

use crate::clock::{Clock, Timestamp};
use crate::endpoint::EndpointSet;
use crate::registry::EmbeddedRegistry;

/// Which service of a registry is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceQuery {
    /// Our name, for logs and events.
    pub service: Arc<str>,
    /// Its name there; `group@@name` overrides the group.
    pub registry_name: Arc<str>,
    /// Overrides the registry's.
    pub namespace: Option<Arc<str>>,
    /// Overrides the registry's.
    pub group: Option<Arc<str>>,
    /// Overrides the registry's; empty: all.
    pub clusters: Option<Vec<String>>,
}

impl ServiceQuery {
    /// The service `name` with the registry's own namespace, group and clusters.
    pub fn named(name: &str) -> Self {
        Self {
            service: name.into(),
            registry_name: name.into(),
            namespace: None,
            group: None,
            clusters: None,
        }
    }
}

/// What is known of one service.
#[derive(Clone, Debug, Default)]
pub struct ServiceView {
    /// `None` until the first answer; the last good set is kept for ever.
    pub set: Option<EndpointSet>,
    /// Grows with every change of `set`.
    pub version: u64,
    /// The last answer, changed or not.
    pub last_success: Option<Timestamp>,
    /// No answer for three periods.
    pub stale: bool,
    /// When the set was kept that is in use because the registry has not answered since the start;
    /// then it is stale too.
    pub cached: Option<SystemTime>,
    /// An answer that is held back until it is confirmed.
    pub held: Option<Held>,
    /// Of the last try; `None` when it was answered.
    pub error: Option<Arc<str>>,
}

impl ServiceView {
    /// A set that never changes: static endpoints of a service.
    pub fn fixed(set: EndpointSet, now: Timestamp) -> watch::Receiver<Self> {
        let view = Self {
            set: Some(set),
            version: 1,
            last_success: Some(now),
            ..Self::default()
        };
        watch::channel(view).1
    }
}

/// The names a registry knows.
#[derive(Clone, Debug, Default)]
pub struct NamesView {
    /// `None` until the first answer; sorted.
    pub names: Option<Arc<[Arc<str>]>>,
    /// The last answer.
    pub last_success: Option<Timestamp>,
    /// Of the last try; `None` when it was answered.
    pub error: Option<Arc<str>>,
}

/// A held answer, for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// Our name of the service.
    pub service: Arc<str>,
    /// Why.
    pub cause: HoldCause,
    /// Endpoints that stay in use.
    pub kept: usize,
    /// Endpoints of the answer.
    pub offered: usize,
}

/// Who hears of a registry's life: the event journal.
pub trait RegistryEvents: fmt::Debug + Send + Sync {
    /// It does not answer any more (`registry_lost`).
    fn lost(&self, registry: &Arc<str>, error: &str);
    /// It answers again (`registry_restored`).
    fn restored(&self, registry: &Arc<str>, lost_for: Duration);
    /// An empty or shrunk answer is held back (`registry_empty_ignored`); once per hold.
    fn empty_ignored(&self, registry: &Arc<str>, ignored: &Ignored);
}

/// Nobody hears.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEvents;

impl RegistryEvents for NoEvents {
    fn lost(&self, _: &Arc<str>, _: &str) {}
    fn restored(&self, _: &Arc<str>, _: Duration) {}
    fn empty_ignored(&self, _: &Arc<str>, _: &Ignored) {}
}

/// Reads the text of an endpoints file; an error tells `file:line: what`, all problems, one a line.
pub type EndpointsParser = fn(&str, &Path) -> Result<BTreeMap<Arc<str>, EndpointSet>, String>;

/// What [`start`] needs besides the configuration; the same for every registry.
#[derive(Clone, Debug)]
pub struct Deps {
    /// Ours, for `kind: embedded`.
    pub embedded: Option<EmbeddedRegistry>,
    /// For `kind: file`.
    pub parser: EndpointsParser,
    /// Time.
    pub clock: Clock,
    /// The journal.
    pub events: Arc<dyn RegistryEvents>,
    /// Sets of an earlier process.
    pub cache: Cache,
    /// Of all jitter.
    pub seed: u64,
}
