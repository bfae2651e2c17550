//! An instance: our live object for one endpoint. It outlives registry refreshes and reloads.
//! Request tasks write counters of their own worker; failures go through a small lock, since they
//! are rare and must be exact. The detector's driver is the only reader that decides.

use std::fmt;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use http::HeaderValue;
use http::uri::Authority;

use super::Address;
use super::failures::Failures;
use super::latency::Latency;
use super::ledger::Ledger;
use crate::clock::Timestamp;
use crate::outlier::classify::OutcomeClass;
use crate::outlier::lanes;
use crate::outlier::times::{SLOTS, Times, slot_of};

/// Number of outcome classes, the length of per-outcome counters.
const CLASSES: usize = 4;

/// Counters of one worker. Only that worker writes, so a load and a store do; alone on its cache
/// lines, so that workers do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell {
    in_flight: AtomicU32,
    attempts: [AtomicU64; CLASSES],
    stale_successes: AtomicU64,
}

/// Times of answers that one worker counted; there only while a policy asks for them.
#[derive(Debug)]
#[repr(align(128))]
struct TimesCell([AtomicU32; SLOTS]);

impl Default for TimesCell {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(0)))
    }
}

/// Whether an instance takes requests, as far as connection pools are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    /// In rotation.
    Serving = 0,
    /// Ejected: requests in flight go on, idle connections are closed.
    Ejected = 1,
    /// No longer in the registry's set, or not routable: as ejected.
    Gone = 2,
}

/// Our live object for one endpoint.
pub struct Instance {
    /// Unique in the process, never reused.
    pub id: u64,
    /// Identity inside the upstream.
    pub address: Address,
    /// Set when the address is an IP literal.
    pub socket: Option<SocketAddr>,
    /// The address as an authority, for HTTP/2 targets.
    pub authority: Authority,
    /// The address as a header value.
    pub host_value: HeaderValue,
    /// How long it takes; kept where `peak_ewma` balances.
    pub latency: Latency,
    cells: Box<[Cell]>,
    times: OnceLock<Box<[TimesCell]>>,
    /// By the slot of a lane; there only where routes are judged.
    ledgers: OnceLock<Box<[OnceLock<Ledger>]>>,
    connections: AtomicU32,
    /// The worker that last found no place for a connection, plus 1; 0 for none.
    lacking: AtomicUsize,
    standing: AtomicU8,
    transition: AtomicU64,
    /// Those that its driver has not read.
    pub failures: Failures,
}

impl Instance {
    /// A new instance in rotation. `None` when the address cannot be an authority (never the case
    /// for a parsed [`Address`]).
    pub fn new(address: Address, workers: usize) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let authority: Authority = address.as_str().parse().ok()?;
        let host_value = HeaderValue::from_str(address.as_str()).ok()?;
        Some(Self {
            id: NEXT.fetch_add(1, Relaxed),
            socket: address.socket(),
            address,
            authority,
            host_value,
            latency: Latency::default(),
            cells: (0..workers.max(1)).map(|_| Cell::default()).collect(),
            times: OnceLock::new(),
            ledgers: OnceLock::new(),
            connections: AtomicU32::new(0),
            lacking: AtomicUsize::new(0),
            standing: AtomicU8::new(Standing::Serving as u8),
            transition: AtomicU64::new(0),
            failures: Failures::default(),
        })
    }

    /// Requests in flight, all workers.
    pub fn in_flight(&self) -> u32 {
        self.cells.iter().map(|c| c.in_flight.load(Relaxed)).sum()
    }

    /// One more request of `worker` is in flight.
    pub fn enter(&self, worker: usize) {
        if let Some(cell) = self.cells.get(worker) {
            cell.in_flight
                .store(cell.in_flight.load(Relaxed).wrapping_add(1), Relaxed);
        }
    }

    /// One request of `worker` is over.
    pub fn leave(&self, worker: usize) {
        if let Some(cell) = self.cells.get(worker) {
            cell.in_flight
                .store(cell.in_flight.load(Relaxed).saturating_sub(1), Relaxed);
        }
    }

    /// Counts the one outcome of an attempt. Returns false when the attempt is stale: it was sent
    /// before the last ejection or restore, so no window takes it.
    pub fn count(&self, worker: usize, class: OutcomeClass, sent_at: Timestamp) -> bool {
        let fresh = sent_at.as_nanos() >= self.transition.load(Relaxed);
        if let Some(cell) = self.cells.get(worker) {
            if let Some(counter) = cell.attempts.get(class as usize) {
                add(counter);
            }
            if !fresh && class == OutcomeClass::Success {
                add(&cell.stale_successes);
            }
        }
        fresh
    }

    /// What is counted for the lane of this slot, made at the first call.
    pub fn ledger(&self, slot: u8) -> Option<&Ledger> {
        let empty = || (0..lanes::SLOTS).map(|_| OnceLock::new()).collect();
        let ledger = self.ledgers.get_or_init(empty).get(usize::from(slot))?;
        Some(ledger.get_or_init(|| Ledger::new(self.cells.len())))
    }

    /// The same where something was counted already.
    pub fn known_ledger(&self, slot: u8) -> Option<&Ledger> {
        self.ledgers.get()?.get(usize::from(slot))?.get()
    }

    /// Counts how long a good answer took, sent at this time. Only where the policy asks.
    pub fn count_time(&self, worker: usize, sent_at: Timestamp, took: Duration) {
        if sent_at.as_nanos() < self.transition.load(Relaxed) {
            return;
        }
        let cells = || self.cells.iter().map(|_| TimesCell::default()).collect();
        let cell = self.times.get_or_init(cells).get(worker);
        if let Some(counter) = cell.and_then(|cell| cell.0.get(slot_of(took))) {
            counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
        }
    }

    /// Times of good answers since the start, all workers; nothing while no policy asked.
    pub fn times(&self) -> Option<Times> {
        let mut all = Times::default();
        for cell in self.times.get()? {
            for (slot, counter) in cell.0.iter().enumerate() {
                all.add_at(slot, counter.load(Relaxed));
            }
        }
        Some(all)
    }

    /// Successes that windows may count, all workers, since the start.
    pub fn successes(&self) -> u64 {
        self.cells
            .iter()
            .map(|c| {
                let all = c.attempts.first().map_or(0, |a| a.load(Relaxed));
                all.saturating_sub(c.stale_successes.load(Relaxed))
            })
            .sum()
    }

    /// Attempts by outcome class since the start, all workers.
    pub fn attempts(&self, class: OutcomeClass) -> u64 {
        let of = |c: &Cell| {
            c.attempts
                .get(class as usize)
                .map_or(0, |a| a.load(Relaxed))
        };
        self.cells.iter().map(of).sum()
    }

    /// Takes a place for a new connection if fewer than `limit` are open, over all workers.
    pub fn take_connection(&self, limit: u32) -> bool {
        let more = |open: u32| (limit == 0 || open < limit).then(|| open.saturating_add(1));
        self.connections
            .fetch_update(Relaxed, Relaxed, more)
            .is_ok()
    }

    /// Gives a connection's place back.
    pub fn return_connection(&self) {
        let less = |open: u32| open.checked_sub(1);
        // Never below zero: a place is returned once per place taken.
        let _already_zero = self.connections.fetch_update(Relaxed, Relaxed, less);
    }

    /// `worker` found no place: others are to close an idle connection.
    pub fn lack_connection(&self, worker: usize) {
        self.lacking.store(worker.saturating_add(1), Relaxed);
    }

    /// Whether another worker than `worker` found no place since this was last true.
    pub fn is_lacking_elsewhere(&self, worker: usize) -> bool {
        let lacking = self.lacking.load(Relaxed);
        lacking != 0
            && lacking != worker.saturating_add(1)
            && self
                .lacking
                .compare_exchange(lacking, 0, Relaxed, Relaxed)
                .is_ok()
    }

    /// Open connections, all workers.
    pub fn connections(&self) -> u32 {
        self.connections.load(Relaxed)
    }

    /// Sets the standing; `at` is given on an ejection or restore and makes older attempts stale.
    pub fn set_standing(&self, standing: Standing, at: Option<Timestamp>) {
        self.standing.store(standing as u8, Relaxed);
        if let Some(at) = at {
            self.transition.store(at.as_nanos(), Relaxed);
        }
    }

    /// The standing.
    pub fn standing(&self) -> Standing {
        match self.standing.load(Relaxed) {
            0 => Standing::Serving,
            1 => Standing::Ejected,
            _ => Standing::Gone,
        }
    }
}

fn add(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance")
            .field("id", &self.id)
            .field("address", &self.address)
            .finish()
    }
}
