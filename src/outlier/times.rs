//! How long an instance takes to answer: times counted in slots a fifth apart, from 128 microseconds
//! to two minutes, so that a median can be had of any span of time and of all workers together.
//! `endpoint/instance.rs` counts, `detector/slow.rs` judges.

use std::collections::VecDeque;
use std::time::Duration;

use super::window::{BUCKETS, BucketIndex};

/// Number of slots: everything below 128 us, four per doubling, everything above two minutes.
pub const SLOTS: usize = 82;
/// The first time that is told from shorter ones is 4 << 5 microseconds.
const FIRST_SHIFT: u32 = 5;

/// The slot of a time.
pub fn slot_of(time: Duration) -> usize {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let Some(doublings) = micros.checked_ilog2().and_then(|n| n.checked_sub(2)) else {
        return 0;
    };
    let Some(octave) = doublings.checked_sub(FIRST_SHIFT) else {
        return 0;
    };
    let quarter = (micros >> doublings) & 3;
    let slot = 1 + u64::from(octave) * 4 + quarter;
    usize::try_from(slot).map_or(SLOTS - 1, |slot| slot.min(SLOTS - 1))
}

/// The shortest time of a slot, in microseconds.
fn start_of(slot: usize) -> u64 {
    let Some(above) = slot.checked_sub(1) else {
        return 0;
    };
    let above = u64::try_from(above).unwrap_or(0);
    (4 + above % 4) << (u64::from(FIRST_SHIFT) + above / 4)
}

/// Counts of times, by slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Times(Box<[u32; SLOTS]>);

impl Default for Times {
    fn default() -> Self {
        Self(Box::new([0; SLOTS]))
    }
}

impl Times {
    /// Counts `count` times of this length.
    pub fn add(&mut self, time: Duration, count: u32) {
        self.add_at(slot_of(time), count);
    }

    /// Counts in a slot.
    pub fn add_at(&mut self, slot: usize, count: u32) {
        if let Some(slot) = self.0.get_mut(slot) {
            *slot = slot.wrapping_add(count);
        }
    }

    /// What was counted since `earlier`, an older reading of the same counters.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut new = self.clone();
        new.subtract(earlier);
        new
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|n| u64::from(*n)).sum()
    }

    /// Half of the times are at most this long; nothing when there are none. Within a slot the
    /// times are taken as evenly spread.
    pub fn median(&self) -> Option<Duration> {
        let half = self.count().div_ceil(2);
        let mut before = 0;
        for (slot, count) in self.0.iter().enumerate() {
            let count = u64::from(*count);
            if count > 0 && before + count >= half {
                let (from, to) = (start_of(slot), start_of(slot + 1));
                let inside = half.saturating_sub(before).saturating_mul(to - from) / count;
                return Some(Duration::from_micros(from + inside));
            }
            before += count;
        }
        None
    }

    fn merge(&mut self, other: &Self) {
        for (to, from) in self.0.iter_mut().zip(other.0.iter()) {
            *to = to.wrapping_add(*from);
        }
    }

    fn subtract(&mut self, other: &Self) {
        for (to, from) in self.0.iter_mut().zip(other.0.iter()) {
            *to = to.wrapping_sub(*from);
        }
    }
}

/// The times of the last ten buckets; room only for buckets in which there were some.
#[derive(Clone, Debug, Default)]
pub struct TimesWindow {
    buckets: VecDeque<(BucketIndex, Times)>,
    total: Times,
}

impl TimesWindow {
    /// Adds to the bucket that is open.
    pub fn add(&mut self, times: &Times, now: BucketIndex) {
        self.advance(now);
        self.total.merge(times);
        match self.buckets.back_mut().filter(|(bucket, _)| *bucket == now) {
            Some((_, open)) => open.merge(times),
            None => self.buckets.push_back((now, times.clone())),
        }
    }

    /// Drops what is older than the ten buckets that end with `now`.
    pub fn advance(&mut self, now: BucketIndex) {
        while let Some((bucket, times)) = self.buckets.front() {
            if bucket.0.saturating_add(BUCKETS) > now.0 {
                break;
            }
            self.total.subtract(times);
            self.buckets.pop_front();
        }
    }

    /// The times of the window, as of the latest `add` or `advance`.
    pub const fn total(&self) -> &Times {
        &self.total
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_are_a_fifth_apart_and_without_gaps() {
        assert_eq!(slot_of(Duration::ZERO), 0);
        assert_eq!(slot_of(Duration::from_micros(127)), 0);
        assert_eq!(slot_of(Duration::from_micros(128)), 1);
        assert_eq!(slot_of(Duration::from_micros(159)), 1);
        assert_eq!(slot_of(Duration::from_micros(160)), 2);
        assert_eq!(slot_of(Duration::from_secs(3_600)), SLOTS - 1);
        for slot in 1..SLOTS - 1 {
            let from = start_of(slot);
            assert_eq!(slot_of(Duration::from_micros(from)), slot);
            assert_eq!(slot_of(Duration::from_micros(from - 1)), slot - 1);
        }
        assert!(start_of(SLOTS - 1) > 120_000_000);
    }

    #[test]
    fn a_window_forgets_what_is_older_than_ten_buckets() {
        let mut window = TimesWindow::default();
        let times = |ms, count| {
            let mut times = Times::default();
            times.add(Duration::from_millis(ms), count);
            times
        };
        window.add(&times(100, 3), BucketIndex(1));
        window.add(&times(200, 1), BucketIndex(1));
        window.add(&times(800, 2), BucketIndex(5));
        assert_eq!(window.total().count(), 6);
        window.advance(BucketIndex(10));
        assert_eq!(window.total().count(), 6);
        window.advance(BucketIndex(11));
        assert_eq!(window.total().count(), 2);
        window.advance(BucketIndex(15));
        assert!(window.is_empty() && window.total().median().is_none());
    }

    proptest! {
        #[test]
        fn a_median_is_within_a_quarter_of_the_exact_one(
            mut micros in proptest::collection::vec(200_u64..60_000_000, 1..200),
        ) {
            let mut times = Times::default();
            for micros in &micros {
                times.add(Duration::from_micros(*micros), 1);
            }
            micros.sort_unstable();
            let exact = micros[(micros.len() - 1) / 2];
            let median = u64::try_from(times.median().unwrap().as_micros()).unwrap();
            prop_assert!(median * 4 >= exact * 3 && median * 4 <= exact * 5, "{median} for {exact}");
        }

        #[test]
        fn readings_of_counters_that_wrap_differ_by_what_was_counted(
            before in any::<u32>(), more in 0_u32..1_000, slot in 0..SLOTS,
        ) {
            let mut old = Times::default();
            old.add_at(slot, before);
            let mut new = old.clone();
            new.add_at(slot, more);
            prop_assert_eq!(new.since(&old).count(), u64::from(more));
        }
    }
}
