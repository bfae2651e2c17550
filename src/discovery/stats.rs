//! The numbers of one registry, written by its tasks and read at a scrape (G18).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::clock::{Timestamp, wall_now};

/// A reading of one registry's numbers.
#[derive(Clone, Debug, Default)]
pub struct RegistryStats {
    /// The last requests were answered.
    pub up: bool,
    /// At least one subscription has had no answer for three periods.
    pub stale: bool,
    /// Subscriptions that live on a set of an earlier process.
    pub cached: usize,
    /// At least one set has forged health flags (Nacos protection threshold).
    pub protected: bool,
    /// The last answer.
    pub last_success: Option<Timestamp>,
    /// The same by the wall clock.
    pub last_success_wall: Option<SystemTime>,
    /// Time since the last answer.
    pub age: Option<Duration>,
    /// Answers by result.
    pub updates: Updates,
    /// Live subscriptions.
    pub subscriptions: usize,
    /// Of the last request that failed; `None` while up.
    pub last_error: Option<Arc<str>>,
}

/// Answers by result (`outrigger_registry_updates_total`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Updates {
    /// It changed the set in use.
    pub applied: u64,
    /// It said what was in use.
    pub unchanged: u64,
    /// Empty, held back.
    pub ignored_empty: u64,
    /// Much smaller, held back.
    pub ignored_shrink: u64,
    /// Used, but elements of it were unusable.
    pub partial: u64,
    /// No answer, or one that cannot be read.
    pub failed: u64,
}

/// The counters themselves.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) applied: AtomicU64,
    pub(super) unchanged: AtomicU64,
    pub(super) ignored_empty: AtomicU64,
    pub(super) ignored_shrink: AtomicU64,
    pub(super) partial: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) subscriptions: AtomicUsize,
    pub(super) stale: AtomicUsize,
    pub(super) cached: AtomicUsize,
    pub(super) protected: AtomicUsize,
    link: Mutex<Link>,
}

/// Whether the registry answers. A small lock: touched once per request to the registry.
#[derive(Debug, Default)]
struct Link {
    up: bool,
    lost_at: Option<Timestamp>,
    failures: u32,
    last_success: Option<(Timestamp, SystemTime)>,
    error: Option<Arc<str>>,
}

/// Failures in a row, over all subscriptions, until a registry that answered counts as lost: one
/// service that always fails beside others that work is no loss of the registry.
const LOST_AFTER: u32 = 2;

impl Counters {
    /// Notes an answer; `Some` when the registry was lost, with the time it was.
    pub(super) fn answered(&self, now: Timestamp) -> Option<Duration> {
        let mut link = self.lock();
        link.up = true;
        link.failures = 0;
        link.error = None;
        link.last_success = Some((now, wall_now()));
        link.lost_at.take().map(|since| now.since(since))
    }

    /// Notes that nothing was answered; true when this makes the registry lost.
    pub(super) fn unanswered(&self, now: Timestamp, error: &Arc<str>) -> bool {
        let mut link = self.lock();
        link.failures = link.failures.saturating_add(1);
        link.error = Some(error.clone());
        let lost = link.lost_at.is_none() && (!link.up || link.failures >= LOST_AFTER);
        if lost {
            link.up = false;
            link.lost_at = Some(now);
        }
        lost
    }

    pub(super) fn read(&self, now: Timestamp) -> RegistryStats {
        let link = self.lock();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RegistryStats {
            up: link.up,
            stale: self.stale.load(Ordering::Relaxed) > 0,
            cached: self.cached.load(Ordering::Relaxed),
            protected: self.protected.load(Ordering::Relaxed) > 0,
            last_success: link.last_success.map(|(at, _)| at),
            last_success_wall: link.last_success.map(|(_, at)| at),
            age: link.last_success.map(|(at, _)| now.since(at)),
            updates: Updates {
                applied: count(&self.applied),
                unchanged: count(&self.unchanged),
                ignored_empty: count(&self.ignored_empty),
                ignored_shrink: count(&self.ignored_shrink),
                partial: count(&self.partial),
                failed: count(&self.failed),
            },
            subscriptions: self.subscriptions.load(Ordering::Relaxed),
            last_error: link.error.clone(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
