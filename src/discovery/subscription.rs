//! One subscription: what every source does with an answer or a failure. The task of the source owns
//! it; dropping it takes its share out of the registry's numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::cache::REWRITE;
use super::handle::Shared;
use super::merge::{Guard, HoldCause, Verdict, dedupe};
use super::schedule::{LONGEST, after_return};
use super::{Ignored, ServiceQuery, ServiceView};
use crate::clock::Timestamp;
use crate::endpoint::{Endpoint, EndpointSet};
use crate::http_client::servers::CallError;
use crate::protocol::dubbo_registry::nacos_endpoint;

/// A well-formed answer of a registry.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) health_unknown: bool,
    /// Elements that could not be used.
    pub(super) skipped: usize,
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Failure {
    /// It answers, but refuses this very request: the configuration is wrong.
    #[error("{0}")]
    Refused(String),
    /// It did not answer, or not in a readable way.
    #[error("{0}")]
    Unanswered(String),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(what) => Self::Refused(what),
            CallError::Unanswered(what) => Self::Unanswered(what),
        }
    }
}

#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) query: ServiceQuery,
    pub(super) shared: Arc<Shared>,
    guard: Guard,
    view: watch::Sender<ServiceView>,
    started: Timestamp,
    /// The usual time between two answers; `None` where silence means nothing new.
    period: Option<Duration>,
    stale: bool,
    protected: bool,
    /// The set in use is that of an earlier process.
    cached: bool,
    /// When the set was given to the cache.
    kept: Option<Timestamp>,
    /// Without an answer until then it is stale, whatever the period.
    stale_by: Option<Timestamp>,
}

impl Subscription {
    pub(super) fn new(
        shared: Arc<Shared>,
        query: ServiceQuery,
        view: watch::Sender<ServiceView>,
    ) -> Self {
        shared
            .counters
            .subscriptions
            .fetch_add(1, Ordering::Relaxed);
        let mut guard = Guard::new(shared.config.empty.clone());
        let (registry, cache) = (&shared.config.name, &shared.cache);
        let found = if shared.caches() {
            cache.set(registry, &query)
        } else {
            None
        };
        let cached = found.is_some();
        if let Some(found) = found {
            let endpoints = found.set.endpoints.len();
            info!(%registry, service = %query.service, endpoints, "cached set in use until the registry answers");
            guard.seed(found.set.clone());
            view.send_modify(|view| {
                view.set = Some(found.set);
                view.version = 1;
                view.stale = true;
                view.cached = Some(found.saved);
            });
        }
        Self {
            stale: flag(&shared.counters.stale, false, cached),
            cached: flag(&shared.counters.cached, false, cached),
            started: shared.clock.now(),
            kept: None,
            stale_by: None,
            query,
            shared,
            guard,
            view,
            period: None,
            protected: false,
        }
    }

    /// Publishes an answer. `Some`: it is held; read again after this time.
    pub(super) fn answer(&mut self, answer: Answer) -> Option<Duration> {
        let now = self.shared.clock.now();
        self.shared.answered(now);
        self.stale_by = None;
        let skipped = answer.skipped;
        let health_unknown = answer.health_unknown;
        let mut endpoints = answer.endpoints;
        if self.shared.config.kind.is_nacos() {
            endpoints = endpoints.into_iter().map(nacos_endpoint).collect();
        }
        let set = EndpointSet {
            endpoints: dedupe(endpoints).into(),
            health_unknown,
        };
        let offered = set.endpoints.len();
        let verdict = self.guard.offer(set, now);
        let changed = self.count(verdict, skipped, offered);
        self.stale = flag(&self.shared.counters.stale, self.stale, false);
        self.cached = flag(&self.shared.counters.cached, self.cached, false);
        self.keep(changed, now);
        self.protected = flag(
            &self.shared.counters.protected,
            self.protected,
            health_unknown,
        );
        let (guard, held) = (&self.guard, self.guard.held());
        // Listeners are woken only for what they may act upon.
        self.view.send_if_modified(|view| {
            let news = changed || view.stale || view.held != held || view.error.is_some();
            if changed {
                view.set = guard.current().cloned();
                view.version = view.version.saturating_add(1);
            }
            view.last_success = Some(now);
            view.stale = false;
            view.cached = None;
            view.held = held;
            view.error = None;
            news
        });
        match verdict {
            Verdict::Hold { recheck_in, .. } => Some(recheck_in),
            Verdict::Apply | Verdict::Unchanged => None,
        }
    }

    /// Gives the set in use to the cache when it changed, and now and then.
    fn keep(&mut self, changed: bool, now: Timestamp) {
        let due = self.kept.is_none_or(|at| now.since(at) >= REWRITE);
        if (changed || due)
            && self.shared.caches()
            && let Some(set) = self.guard.current()
        {
            self.kept = Some(now);
            let (shared, query) = (&self.shared, &self.query);
            shared.cache.keep(&shared.config.name, query, set);
        }
    }

    /// Notes a failure: the set stays.
    pub(super) fn failed(&mut self, failure: &Failure) {
        let error: Arc<str> = failure.to_string().into();
        self.shared.counters.failed.fetch_add(1, Ordering::Relaxed);
        if matches!(failure, Failure::Unanswered(_)) {
            self.shared.unanswered(&error);
        }
        let registry = &self.shared.config.name;
        let before = self.view.borrow().error.clone();
        if before.as_ref() == Some(&error) {
            debug!(%registry, service = %self.query.service, %error, "registry read failed again");
        } else {
            warn!(%registry, service = %self.query.service, %error, "registry read failed");
        }
        self.view.send_if_modified(|view| {
            let news = view.error.as_ref() != Some(&error);
            view.error = Some(error);
            news
        });
        self.mark_stale();
    }

    /// Tells how often answers usually come: without one for three times that, the set is stale.
    pub(super) fn set_period(&mut self, period: Duration) {
        self.period = Some(period);
    }

    /// Tells that answers have ceased to come: without one for this long from now, the set is stale.
    pub(super) fn stale_in(&mut self, after: Duration) {
        let at = self.shared.clock.now() + after;
        self.stale_by = Some(self.stale_by.map_or(at, |known| known.min(at)));
    }

    /// Waits; false when nobody listens any more. Marks the set stale when that time comes.
    pub(super) async fn sleep(&mut self, delay: Duration) -> bool {
        let mut until = self.shared.clock.now() + delay;
        let shared = self.shared.clone();
        loop {
            let restored = shared.restored.notified();
            let wake = match self.stale_at() {
                Some(at) if !self.stale => at.min(until),
                _ => until,
            };
            tokio::select! {
                () = self.view.closed() => return false,
                () = tokio::time::sleep_until(self.shared.clock.instant(wake)) => {}
                () = restored => {
                    // Another request of this registry was answered: no need to wait out a long
                    // back-off, but no burst either.
                    let period = self.period.unwrap_or(LONGEST);
                    let spread = after_return(shared.seed, &self.query.service, period);
                    until = until.min(self.shared.clock.now() + spread);
                }
            }
            self.mark_stale();
            if self.shared.clock.now() >= until {
                return true;
            }
        }
    }

    /// Waits for a change of the source, or until a held answer is due again; false when nobody
    /// listens any more.
    pub(super) async fn changed(
        &self,
        changes: &mut watch::Receiver<u64>,
        recheck: Option<Duration>,
    ) -> bool {
        let recheck = async {
            match recheck {
                Some(delay) => tokio::time::sleep(delay).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.view.closed() => false,
            () = recheck => true,
            result = changes.changed() => {
                if result.is_err() {
                    self.closed().await;
                }
                result.is_ok()
            }
        }
    }

    /// Until nobody listens.
    pub(super) async fn closed(&self) {
        self.view.closed().await;
    }

    fn stale_at(&self) -> Option<Timestamp> {
        if self.stale_by.is_some() {
            return self.stale_by;
        }
        let last = self.view.borrow().last_success.unwrap_or(self.started);
        self.period.map(|period| last + period.saturating_mul(3))
    }

    fn mark_stale(&mut self) {
        let due = self
            .stale_at()
            .is_some_and(|at| self.shared.clock.now() >= at);
        if due && !self.stale {
            self.stale = flag(&self.shared.counters.stale, self.stale, true);
            self.view.send_modify(|view| view.stale = true);
        }
    }

    /// Counts an answer and logs what deserves it; true when the set in use changed.
    fn count(&self, verdict: Verdict, skipped: usize, offered: usize) -> bool {
        let counters = &self.shared.counters;
        let (registry, service) = (&self.shared.config.name, &self.query.service);
        let kept = self.guard.current().map_or(0, |set| set.endpoints.len());
        let (counter, changed) = match verdict {
            Verdict::Apply => {
                info!(%registry, %service, endpoints = offered, "endpoints changed");
                (&counters.applied, true)
            }
            Verdict::Unchanged => (&counters.unchanged, false),
            Verdict::Hold {
                cause,
                first,
                updated,
                ..
            } => {
                if first {
                    warn!(%registry, %service, kept, offered, ?cause, "suspicious answer held back");
                    let service = service.clone();
                    let ignored = Ignored {
                        service,
                        cause,
                        kept,
                        offered,
                    };
                    self.shared.events.empty_ignored(registry, &ignored);
                }
                match cause {
                    HoldCause::Empty => (&counters.ignored_empty, updated),
                    HoldCause::Shrink => (&counters.ignored_shrink, updated),
                }
            }
        };
        if skipped > 0 {
            debug!(%registry, %service, skipped, "answer has elements that cannot be used");
            counters.partial.fetch_add(1, Ordering::Relaxed);
        } else {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        changed
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let counters = &self.shared.counters;
        counters.subscriptions.fetch_sub(1, Ordering::Relaxed);
        flag(&counters.stale, self.stale, false);
        flag(&counters.cached, self.cached, false);
        flag(&counters.protected, self.protected, false);
    }
}

/// Moves one subscription's share of a gauge from `old` to `new`, which is returned.
fn flag(gauge: &AtomicUsize, old: bool, new: bool) -> bool {
    match (old, new) {
        (false, true) => gauge.fetch_add(1, Ordering::Relaxed),
        (true, false) => gauge.fetch_sub(1, Ordering::Relaxed),
        (true, true) | (false, false) => 0,
    };
    new
}
