//! What is counted of an instance for one route, where routes are judged (`scope: route`): exact, one
//! counter per worker, failures through a short lock, as those of the instance itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::failures::Failures;
use crate::clock::Timestamp;
use crate::outlier::classify::OutcomeClass;

/// Successes of one worker, alone on its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell(AtomicU64);

/// The counts of one instance for one route.
#[derive(Debug)]
pub struct Ledger {
    cells: Box<[Cell]>,
    transition: AtomicU64,
    /// Those that the driver has not read.
    pub failures: Failures,
}

impl Ledger {
    /// Empty, for this many workers.
    pub fn new(workers: usize) -> Self {
        Self {
            cells: (0..workers.max(1)).map(|_| Cell::default()).collect(),
            transition: AtomicU64::new(0),
            failures: Failures::default(),
        }
    }

    /// Counts an outcome. Returns false when the attempt is stale: sent before the last ejection or
    /// restore.
    pub fn count(&self, worker: usize, class: OutcomeClass, sent_at: Timestamp) -> bool {
        let fresh = sent_at.as_nanos() >= self.transition.load(Relaxed);
        if fresh
            && class == OutcomeClass::Success
            && let Some(Cell(counter)) = self.cells.get(worker)
        {
            counter.store(counter.load(Relaxed).wrapping_add(1), Relaxed);
        }
        fresh
    }

    /// Successes since the start, all workers.
    pub fn successes(&self) -> u64 {
        self.cells.iter().map(|cell| cell.0.load(Relaxed)).sum()
    }

    /// What was sent before is stale from now on.
    pub fn begin_anew(&self, at: Timestamp) {
        self.transition.store(at.as_nanos(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_before_a_transition_is_not_counted() {
        let ledger = Ledger::new(2);
        let at = Timestamp::from_millis;
        assert!(ledger.count(0, OutcomeClass::Success, at(5)));
        assert!(ledger.count(1, OutcomeClass::Success, at(6)));
        ledger.begin_anew(at(10));
        assert!(!ledger.count(0, OutcomeClass::Success, at(9)));
        assert!(!ledger.count(0, OutcomeClass::NetworkError, at(9)));
        assert!(ledger.count(0, OutcomeClass::Success, at(10)));
        assert_eq!(ledger.successes(), 3);
    }
}
