//! The live part of one route of an upstream, or of the upstream itself. It outlives reloads: a
//! route that keeps its name keeps its counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::metrics::cells::UpstreamCells;
use crate::policy::fallback::keep::Answers;

/// What of a route is live.
#[derive(Debug)]
pub struct RouteState {
    /// Its name; `None`: the upstream itself, for all that no route takes.
    pub name: Option<Arc<str>>,
    /// What request tasks count; that of the upstream itself stands in the upstream.
    pub cells: Option<UpstreamCells>,
    lane: AtomicU8,
    /// The last good answers, where a fallback gives them.
    pub answers: Answers,
}

impl RouteState {
    /// Of the upstream itself.
    pub(super) fn own() -> Self {
        Self {
            name: None,
            cells: None,
            lane: AtomicU8::new(0),
            answers: Answers::default(),
        }
    }

    /// Of a route.
    pub(super) fn named(name: Arc<str>, workers: usize) -> Self {
        Self {
            name: Some(name),
            cells: Some(UpstreamCells::new(workers)),
            lane: AtomicU8::new(0),
            answers: Answers::default(),
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
}
