//! The blocking-query loop of one service as a machine: which index is asked with, and when. Pure.
//!
//! | answer | index of the next query | the list |
//! |---|---|---|
//! | first, or after a failure | the returned one | is used |
//! | no index, or 0 | 1: 0 would not block, a hot loop | is used |
//! | the same index | the same: nothing changed within `wait` | is used (and says nothing new) |
//! | a greater one | that | is used; other writes raise it too, so contents decide |
//! | a smaller one | 0: another server, or data lost | is not: the next read tells |
//! | failure | 0: after a loss of data an old index would block for a whole `wait` | none |
//!
//! Queries are two at once and then one a second; after a minute of never resting one per 15 s until
//! the service rests.

use std::time::Duration;

use crate::clock::Timestamp;

/// The first delay after a failure doubles up to the second.
pub(super) const FIRST_RETRY: Duration = Duration::from_secs(1);
pub(super) const LAST_RETRY: Duration = Duration::from_secs(60);

const PERIOD: Duration = Duration::from_secs(1);
const FLAPPING_PERIOD: Duration = Duration::from_secs(15);
/// Queries in a row that had to wait for their turn.
const FLAPPING_AFTER: u32 = 60;

/// What an answer is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Its list is the state of the service.
    Use,
    /// Only a reason to read again without blocking.
    Again,
}

#[derive(Debug)]
pub(super) struct Watch {
    index: u64,
    failures: u32,
    /// When a query would be due if they came evenly.
    due: Timestamp,
    /// Queries in a row that came before their turn.
    hurried: u32,
}

impl Watch {
    /// One whose first query is made `now`.
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            index: 0,
            failures: 0,
            due: now + PERIOD,
            hurried: 0,
        }
    }

    /// To ask with; 0 does not block.
    pub(super) fn index(&self) -> u64 {
        self.index
    }

    /// An answer with this index.
    pub(super) fn answered(&mut self, index: Option<u64>) -> Step {
        self.failures = 0;
        let index = index.unwrap_or_default().max(1);
        if index < self.index {
            self.index = 0;
            return Step::Again;
        }
        self.index = index;
        Step::Use
    }

    /// No answer; returns the number of failures in a row.
    pub(super) fn failed(&mut self) -> u32 {
        self.index = 0;
        self.failures = self.failures.saturating_add(1);
        self.failures
    }

    /// The next query is not to block.
    pub(super) fn forget(&mut self) {
        self.index = 0;
    }

    /// How long the next query has to wait; it counts as made then.
    pub(super) fn pause(&mut self, now: Timestamp) -> Duration {
        // One may come early.
        let at = (self.due - PERIOD).max(now);
        let pause = at.since(now);
        self.hurried = match pause.is_zero() {
            true => 0,
            false => self.hurried.saturating_add(1),
        };
        let period = match self.hurried >= FLAPPING_AFTER {
            true => FLAPPING_PERIOD,
            false => PERIOD,
        };
        self.due = self.due.max(at) + period;
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn row_20_an_index_that_falls_is_read_anew_and_none_never_does_not_block() {
        let mut watch = Watch::new(Timestamp::ZERO);
        assert_eq!((watch.index(), watch.answered(Some(10))), (0, Step::Use));
        // 10 -> 3: reset, and no event.
        assert_eq!((watch.index(), watch.answered(Some(3))), (10, Step::Again));
        assert_eq!((watch.index(), watch.answered(Some(3))), (0, Step::Use));
        // 0 and none: 1.
        for odd in [Some(0), None] {
            watch.forget();
            assert_eq!(watch.answered(odd), Step::Use);
            assert_eq!(watch.index(), 1);
        }
        // The same.
        assert_eq!((watch.answered(Some(1)), watch.index()), (Step::Use, 1));
        watch.answered(Some(90));
        assert_eq!((watch.failed(), watch.failed()), (1, 2));
        assert_eq!(watch.index(), 0);
        watch.answered(Some(5));
        assert_eq!((watch.index(), watch.failed()), (5, 1));
    }

    #[test]
    fn a_service_that_rests_is_asked_at_once_and_one_that_does_not_ever_more_slowly() {
        let mut watch = Watch::new(Timestamp::ZERO);
        let mut now = Timestamp::ZERO;
        assert!(watch.pause(now).is_zero());
        for _ in 0..60 {
            let pause = watch.pause(now);
            assert_eq!(pause, PERIOD);
            now = now + pause;
        }
        for _ in 0..4 {
            let pause = watch.pause(now);
            assert_eq!(pause, FLAPPING_PERIOD);
            now = now + pause;
        }
        now = now + Duration::from_secs(60);
        assert!(watch.pause(now).is_zero());
        assert!(watch.pause(now) <= PERIOD);
    }

    proptest! {
        #[test]
        fn never_more_than_one_a_second_and_two(gaps in prop::collection::vec(0u64..3000, 1..200)) {
            let mut watch = Watch::new(Timestamp::ZERO);
            let mut asked = vec![Timestamp::ZERO];
            let mut now = Timestamp::ZERO;
            for gap in gaps {
                now = now + Duration::from_millis(gap);
                now = now + watch.pause(now);
                asked.push(now);
            }
            for (first, from) in asked.iter().enumerate() {
                for (last, to) in asked.iter().enumerate().skip(first) {
                    let (count, seconds) = (last - first + 1, to.since(*from).as_secs_f64());
                    prop_assert!(count as f64 <= seconds + 2.0 + 1e-6);
                }
            }
        }
    }
}
