//! The live part of one route of an upstream, or of the upstream itself. It outlives reloads: a
//! route that keeps its name keeps its counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use tokio::sync::Notify;

use crate::clock::Timestamp;
use crate::config::types::{self, BreakerMode, CircuitBreaker, Service};
use crate::metrics::cells::UpstreamCells;
use crate::policy::breaker::Breaker;
use crate::policy::bulkhead::Bulkhead;
use crate::policy::fallback::keep::Answers;

/// What of a route is live.
#[derive(Debug)]
pub struct RouteState {
    /// Its name; `None`: the upstream itself, for all that no route takes.
    pub name: Option<Arc<str>>,
    /// What request tasks count; that of the upstream itself stands in the upstream.
    pub cells: Option<UpstreamCells>,
    /// Its circuit breaker; off where it shares that of the upstream.
    pub breaker: Breaker,
    /// Its bulkhead; empty where it shares that of the upstream.
    pub bulkhead: Arc<Bulkhead>,
    lane: AtomicU8,
    /// The last good answers, where a fallback gives them.
    pub answers: Answers,
}

impl RouteState {
    /// Of the upstream itself. `news` is told when its breaker has something to tell.
    pub(super) fn own(workers: usize, news: Arc<Notify>) -> Self {
        Self {
            name: None,
            cells: None,
            lane: AtomicU8::new(0),
            breaker: Breaker::new(&CircuitBreaker::builtin(), workers, news),
            bulkhead: Bulkhead::new(&types::Bulkhead::builtin()),
            answers: Answers::default(),
        }
    }

    /// Of a route.
    pub(super) fn named(name: Arc<str>, workers: usize, news: Arc<Notify>) -> Self {
        Self {
            name: Some(name),
            cells: Some(UpstreamCells::new(workers)),
            ..Self::own(workers, news)
        }
    }

    /// The slot of its lane where routes are judged (`outlier/lanes.rs`); 0: none is known yet.
    pub fn lane(&self) -> u8 {
        self.lane.load(Relaxed)
    }

    /// The driver alone does this.
    pub fn set_lane(&self, slot: u8) {
        self.lane.store(slot, Relaxed);
    }

    /// The settings of the day. What is shared with the upstream is off here.
    pub(super) fn configure(&self, service: &Service, now: Timestamp) {
        if service.shares.breaker {
            let off = CircuitBreaker {
                mode: BreakerMode::Disabled,
                ..service.circuit_breaker.clone()
            };
            self.breaker.configure(&off, now);
        } else {
            self.breaker.configure(&service.circuit_breaker, now);
        }
        self.bulkhead.configure(&service.bulkhead);
    }
}
