//! Slices of time: what of a breaker's window is counted exactly, in its machine, and which slices
//! belong to the window. Slice i is `[i x w, (i + 1) x w)`, w a tenth of the window; the window is the
//! present slice and the nine before. Good calls are counted by the workers (`breaker/cells.rs`), in
//! slices of the same numbers. Pure.

use std::time::Duration;

use crate::clock::Timestamp;

/// Slices of every window.
pub const SLICES: u64 = 10;

/// The width of the slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width {
    millis: u32,
}

impl Width {
    /// A tenth of the window, in whole milliseconds, at least one.
    pub fn of(window: Duration) -> Self {
        let tenth = window.as_millis() / u128::from(SLICES);
        Self::from_millis(u32::try_from(tenth).unwrap_or(u32::MAX))
    }

    /// This many milliseconds, at least one.
    pub const fn from_millis(millis: u32) -> Self {
        Self {
            millis: if millis == 0 { 1 } else { millis },
        }
    }

    /// In milliseconds; never zero.
    pub const fn millis(self) -> u32 {
        self.millis
    }

    /// The slice that holds `at`.
    pub const fn slice(self, at: Timestamp) -> u64 {
        at.as_nanos() / (self.millis as u64 * 1_000_000)
    }

    /// Whether `slice` belongs to the window that ends with `newest`. A later one does too: another
    /// thread read the clock a little later.
    pub const fn in_window(slice: u64, newest: u64) -> bool {
        slice.saturating_add(SLICES) > newest
    }
}

/// Calls that were failures or slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bad {
    /// All of them.
    pub calls: u64,
    /// Failures.
    pub failed: u64,
    /// Slow ones, failed or not.
    pub slow: u64,
}

impl Bad {
    const fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.slow += other.slow;
    }

    const fn subtract(&mut self, other: Self) {
        self.calls -= other.calls;
        self.failed -= other.failed;
        self.slow -= other.slow;
    }
}

/// Bad calls by slice, and their sum.
#[derive(Clone, Debug, Default)]
pub struct BadCalls {
    newest: u64,
    slices: [Bad; 10],
    total: Bad,
}

impl BadCalls {
    /// Counts a call at `slice`, or at the newest one when that is later.
    pub fn add(&mut self, failed: bool, slow: bool, slice: u64) {
        self.advance(slice);
        let call = Bad {
            calls: 1,
            failed: u64::from(failed),
            slow: u64::from(slow),
        };
        if let Some(bucket) = self.slices.get_mut(place(self.newest)) {
            bucket.add(call);
            self.total.add(call);
        }
    }

    /// Drops what is older than the window that ends with `slice`.
    pub fn advance(&mut self, slice: u64) {
        if slice <= self.newest {
            return;
        }
        for step in 0..(slice - self.newest).min(SLICES) {
            if let Some(bucket) = self.slices.get_mut(place(slice - step)) {
                self.total.subtract(*bucket);
                *bucket = Bad::default();
            }
        }
        self.newest = slice;
    }

    /// The sum over the window.
    pub const fn total(&self) -> Bad {
        self.total
    }
}

/// Where a slice is kept.
pub fn place(slice: u64) -> usize {
    usize::try_from(slice % SLICES).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_width_is_a_tenth_and_never_zero() {
        assert_eq!(Width::of(Duration::from_secs(10)).millis(), 1_000);
        assert_eq!(Width::of(Duration::from_millis(3)).millis(), 1);
        assert_eq!(Width::of(Duration::MAX).millis(), u32::MAX);
        let width = Width::of(Duration::from_secs(10));
        assert_eq!(width.slice(Timestamp::from_millis(1_999)), 1);
        assert!(Width::in_window(11, 20) && !Width::in_window(10, 20) && Width::in_window(21, 20));
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_a_naive_list(
            calls in prop::collection::vec((0_u64..4, any::<bool>(), any::<bool>()), 1..200),
            jump in 0_u64..30,
        ) {
            let mut counted = BadCalls::default();
            let mut naive: Vec<(u64, bool, bool)> = Vec::new();
            let mut slice = 0;
            for (n, (step, failed, slow)) in calls.into_iter().enumerate() {
                slice += if n == 50 { jump } else { step };
                counted.add(failed, slow, slice);
                naive.push((slice, failed, slow));
                let inside = naive.iter().filter(|(at, ..)| Width::in_window(*at, slice));
                let inside: Vec<_> = inside.collect();
                let count = |flag: fn(&(u64, bool, bool)) -> bool| {
                    inside.iter().filter(|call| flag(call)).count() as u64
                };
                let want = Bad {
                    calls: inside.len() as u64,
                    failed: count(|c| c.1),
                    slow: count(|c| c.2),
                };
                prop_assert_eq!(counted.total(), want);
            }
        }
    }
}
