//! The whole registry in one task: a full read, then deltas that are folded in and compared by hash.
//! It runs while anybody looks at it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::PERIOD;
use super::client::{Client, Delta};
use super::store::Store;
use crate::clock::{Clock, Timestamp};
use crate::discovery::subscription::Failure;
use crate::http_client::jitter::Jitter;

/// At most one full read in this time is made because hashes differ: a server whose hash never fits
/// would be read fully for ever.
const FORCED_EVERY: Duration = Duration::from_secs(60);
/// A server that has no deltas is asked for them again after this: what stands before it may have
/// refused one.
const NO_DELTA_FOR: Duration = Duration::from_secs(600);
/// Many held answers are one read.
const RECHECK_EVERY: Duration = Duration::from_secs(5);
/// The first back-off is below twice this.
const RETRY: Duration = Duration::from_secs(1);
/// And none is longer.
const MOST_RETRY: Duration = Duration::from_secs(60);

/// What the last read came to.
#[derive(Clone, Debug)]
pub(super) enum Reading {
    /// Nothing was read yet.
    Nothing,
    /// The registry as a whole.
    Known(Arc<Store>),
    /// No answer.
    Failed(Failure),
}

/// The task and what it knows.
#[derive(Debug)]
pub(super) struct Fetcher {
    client: Arc<Client>,
    clock: Clock,
    jitter: Arc<Jitter>,
    readings: watch::Sender<(u64, Reading)>,
    /// Counts changes of the names.
    names: watch::Sender<u64>,
    nudge: Arc<Notify>,
    running: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    store: Option<Arc<Store>>,
    /// A delta of another server means nothing here.
    server: usize,
    forced: Option<Timestamp>,
    /// The server has no deltas; until then it is not asked for them.
    no_delta_until: Option<Timestamp>,
    /// The last read.
    read: Option<Timestamp>,
}

impl Fetcher {
    pub(super) fn new(client: Arc<Client>, clock: Clock, jitter: Arc<Jitter>) -> Self {
        Self {
            client,
            clock,
            jitter,
            readings: watch::Sender::new((0, Reading::Nothing)),
            names: watch::Sender::new(0),
            nudge: Arc::default(),
            running: AtomicBool::new(false),
            known: Mutex::default(),
        }
    }

    /// Looks at every reading from now on; starts the task where there is none.
    pub(super) fn follow(self: &Arc<Self>) -> watch::Receiver<(u64, Reading)> {
        let readings = self.readings.subscribe();
        self.start();
        readings
    }

    /// Hears of changed names.
    pub(super) fn follow_names(self: &Arc<Self>) -> watch::Receiver<u64> {
        let names = self.names.subscribe();
        self.start();
        names
    }

    /// Reads now, not when it is due.
    pub(super) fn nudge(&self) {
        self.nudge.notify_one();
    }

    /// Reads for a held answer, unless that was done just now.
    pub(super) fn recheck(&self) {
        let now = self.clock.now();
        if self
            .lock()
            .read
            .is_none_or(|at| now.since(at) >= RECHECK_EVERY)
        {
            self.nudge();
        }
    }

    fn start(self: &Arc<Self>) {
        if !self.running.swap(true, Ordering::AcqRel) {
            drop(tokio::spawn(run(Arc::downgrade(self), self.nudge.clone())));
        }
    }

    fn is_followed(&self) -> bool {
        self.readings.receiver_count() > 0 || self.names.receiver_count() > 0
    }

    /// What is old when somebody looks again is nothing.
    fn forget(&self) {
        *self.lock() = Known::default();
        self.readings.send_if_modified(|(_, last)| {
            *last = Reading::Nothing;
            false
        });
    }

    /// One read; false when it failed.
    async fn read(&self) -> bool {
        let result = self.store().await;
        self.lock().read = Some(self.clock.now());
        let good = result.is_ok();
        let reading = match result {
            Ok(store) => {
                let before = self.lock().store.replace(store.clone());
                if before.is_none_or(|before| before.names() != store.names()) {
                    self.names
                        .send_modify(|count| *count = count.wrapping_add(1));
                }
                Reading::Known(store)
            }
            Err(failure) => Reading::Failed(failure),
        };
        self.readings
            .send_modify(|(count, last)| (*count, *last) = (count.wrapping_add(1), reading));
        good
    }

    /// The registry now: the last one with a delta folded in, or read anew.
    async fn store(&self) -> Result<Arc<Store>, Failure> {
        let now = self.clock.now();
        let (known, server, no_delta) = {
            let known = self.lock();
            let no_delta = known.no_delta_until.is_some_and(|until| now < until);
            (known.store.clone(), known.server, no_delta)
        };
        let Some(known) = known.filter(|_| !no_delta) else {
            return self.full().await;
        };
        match self.client.delta().await? {
            Delta::None => {
                self.lock().no_delta_until = Some(now + NO_DELTA_FOR);
                self.full().await
            }
            Delta::Changes(_, from) if from != server => self.full().await,
            Delta::Changes(delta, _) => {
                let mut store = Store::clone(&known);
                store.apply(&delta);
                if store.hash() == delta.hash || !self.may_force() {
                    return Ok(Arc::new(store));
                }
                let (ours, theirs) = (store.hash(), &delta.hash);
                tracing::debug!(%ours, %theirs, "deltas of Eureka do not add up: all is read");
                self.full().await
            }
        }
    }

    async fn full(&self) -> Result<Arc<Store>, Failure> {
        let (all, server) = self.client.all().await?;
        {
            let mut known = self.lock();
            if known.server != server {
                known.no_delta_until = None;
            }
            known.server = server;
        }
        Ok(Arc::new(Store::new(&all)))
    }

    fn may_force(&self) -> bool {
        let now = self.clock.now();
        let mut known = self.lock();
        let may = known.forced.is_none_or(|at| now.since(at) >= FORCED_EVERY);
        if may {
            known.forced = Some(now);
        }
        may
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(fetcher: Weak<Fetcher>, nudge: Arc<Notify>) {
    let mut failures = 0u32;
    loop {
        let Some(live) = fetcher.upgrade() else {
            return;
        };
        if !live.is_followed() {
            live.forget();
            live.running.store(false, Ordering::Release);
            // Somebody may have come in between.
            if !live.is_followed() || live.running.swap(true, Ordering::AcqRel) {
                return;
            }
        }
        let pause = if live.read().await {
            failures = 0;
            live.jitter.around(PERIOD)
        } else {
            failures = failures.saturating_add(1);
            live.jitter.back_off(RETRY, failures, MOST_RETRY)
        };
        drop(live);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = nudge.notified() => {}
        }
    }
}
