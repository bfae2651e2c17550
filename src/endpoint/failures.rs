//! Failures of an instance, or of it for one route: kept in their order by request tasks until the
//! driver has read them. They go through a short lock, since they are rare and must be exact.

use std::sync::Mutex;

use crate::clock::Timestamp;
use crate::outlier::classify::{ErrorKind, OutcomeClass};

/// Beyond this many unread records further ones are joined to the last: counts stay exact, only the
/// order against successes in between is lost.
const MAX_RECORDS: usize = 8192;

/// One failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRecord {
    /// Network or business error.
    pub class: OutcomeClass,
    /// What exactly.
    pub kind: ErrorKind,
    /// When the attempt was sent.
    pub sent_at: Timestamp,
    /// When the failure was seen.
    pub seen_at: Timestamp,
    /// It failed by our own attempt or request limit, or the app gave up waiting.
    pub own_timeout: bool,
    /// The multiplexed connection it died with.
    pub death: Option<u64>,
    /// Successes counted beside it, all workers together, when the failure was seen.
    pub successes_before: u64,
    /// How many equal ones this record stands for.
    pub count: u32,
}

/// Those that the driver has not read.
#[derive(Debug, Default)]
pub struct Failures(Mutex<Vec<FailureRecord>>);

impl Failures {
    /// Keeps one. Returns true when it is the first unread one, so the driver has to be woken.
    pub fn push(&self, record: FailureRecord) -> bool {
        let Ok(mut records) = self.0.lock() else {
            return false;
        };
        let full = records.len() >= MAX_RECORDS;
        if full && let Some(last) = records.last_mut() {
            last.count = last.count.saturating_add(record.count);
            return false;
        }
        records.push(record);
        records.len() == 1
    }

    /// Takes all, oldest first.
    pub fn take(&self) -> Vec<FailureRecord> {
        self.0
            .lock()
            .map(|mut records| std::mem::take(&mut *records))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_one_wakes_and_a_flood_is_bounded_but_counted() {
        let failures = Failures::default();
        let record = |at| FailureRecord {
            class: OutcomeClass::NetworkError,
            kind: ErrorKind::Reset,
            sent_at: Timestamp::ZERO,
            seen_at: Timestamp::from_millis(at),
            own_timeout: false,
            death: None,
            successes_before: 0,
            count: 1,
        };
        let woken = (0..10_000).filter(|at| failures.push(record(*at)));
        assert_eq!(woken.count(), 1);
        let taken = failures.take();
        assert_eq!(taken.len(), MAX_RECORDS);
        assert!(taken.windows(2).all(|two| two[0].seen_at <= two[1].seen_at));
        assert_eq!(taken.iter().map(|r| r.count).sum::<u32>(), 10_000);
        assert!(failures.push(record(1)), "read: the next one wakes again");
    }
}
