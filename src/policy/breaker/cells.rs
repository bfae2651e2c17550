//! Good calls of a breaker's window, counted by the workers: a cell for each, one writer per cell, so
//! that counting takes no lock and no read-modify-write. A slot belongs to one slice of one
//! generation; its stamp says which, and one with another stamp is empty.

use std::sync::atomic::{
    AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence,
};

use super::machine::GENERATIONS;
use super::window::{SLICES, Width, place};

/// Bits of a stamp that hold the slice.
const SLICE_BITS: u32 = 40;
/// Of no slice.
const EMPTY: u64 = u64::MAX;

#[derive(Debug)]
#[repr(align(128))]
struct Cell {
    slots: [Slot; 10],
}

#[derive(Debug)]
struct Slot {
    stamp: AtomicU64,
    count: AtomicU64,
}

/// The cells of all workers.
#[derive(Debug)]
pub struct GoodCalls {
    cells: Box<[Cell]>,
}

impl GoodCalls {
    /// For this many workers.
    pub fn new(workers: usize) -> Self {
        let slot = || Slot {
            stamp: AtomicU64::new(EMPTY),
            count: AtomicU64::new(0),
        };
        let cell = || Cell {
            slots: std::array::from_fn(|_| slot()),
        };
        Self {
            cells: (0..workers.max(1)).map(|_| cell()).collect(),
        }
    }

    /// Counts a good call of `worker`. Only that worker's thread does this.
    pub fn count(&self, worker: usize, generation: u32, slice: u64) {
        let cell = self.cells.get(worker);
        let Some(slot) = cell.and_then(|cell| cell.slots.get(place(slice))) else {
            return;
        };
        let stamp = stamp(generation, slice);
        let found = slot.stamp.load(Relaxed);
        // A later slice of this generation: the time that came in is an old reading.
        let later = found != EMPTY && found >> SLICE_BITS == stamp >> SLICE_BITS && found > stamp;
        if found == stamp || later {
            let count = slot.count.load(Relaxed);
            slot.count.store(count.wrapping_add(1), Relaxed);
            return;
        }
        // Nobody takes the old count for one of the new stamp.
        slot.stamp.store(EMPTY, Relaxed);
        fence(Release);
        slot.count.store(1, Relaxed);
        slot.stamp.store(stamp, Release);
    }

    /// Those of `generation` in the window that ends with slice `newest`.
    pub fn sum(&self, generation: u32, newest: u64) -> u64 {
        let slots = self.cells.iter().flat_map(|cell| &cell.slots);
        slots
            .map(|slot| slot.of(generation, newest))
            .fold(0, u64::saturating_add)
    }
}

impl Slot {
    fn of(&self, generation: u32, newest: u64) -> u64 {
        let stamp = self.stamp.load(Acquire);
        let count = self.count.load(Relaxed);
        fence(Acquire);
        let unchanged = stamp == self.stamp.load(Relaxed);
        let ours = stamp != EMPTY && stamp >> SLICE_BITS == u64::from(generation & GENERATIONS);
        let slice = stamp & ((1 << SLICE_BITS) - 1);
        let inside = Width::in_window(slice, newest) && slice < newest.saturating_add(SLICES);
        if unchanged && ours && inside {
            count
        } else {
            0
        }
    }
}

const fn stamp(generation: u32, slice: u64) -> u64 {
    let slice = slice & ((1 << SLICE_BITS) - 1);
    (((generation & GENERATIONS) as u64) << SLICE_BITS) | slice
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_sum_is_that_of_a_naive_list(
            calls in prop::collection::vec((0_usize..3, 0_u64..3, 0_u8..20), 1..300),
        ) {
            let cells = GoodCalls::new(3);
            let (mut naive, mut slice, mut generation) = (Vec::new(), 0, 7);
            for (worker, step, dice) in calls {
                slice += step;
                generation += u32::from(dice == 0);
                cells.count(worker, generation, slice);
                naive.push((generation, slice));
                let inside = |call: &&(u32, u64)| {
                    call.0 == generation && Width::in_window(call.1, slice)
                };
                let want = naive.iter().filter(inside).count() as u64;
                prop_assert_eq!(cells.sum(generation, slice), want);
            }
        }
    }

    #[test]
    fn another_thread_sees_no_count_of_another_slice() {
        let cells = GoodCalls::new(1);
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| {
                for slice in 0..20_000_u64 {
                    // As many calls as the slice's number says, so that a mix-up shows.
                    for _ in 0..=slice % 7 {
                        cells.count(0, 1, slice);
                    }
                }
            });
            while !writer.is_finished() {
                assert!(cells.sum(1, u64::MAX - SLICES) == 0);
                for newest in [0, 500, 19_999] {
                    assert!(cells.sum(1, newest) <= 70);
                }
            }
        });
        let want: u64 = (19_990..=19_999_u64).map(|slice| slice % 7 + 1).sum();
        assert_eq!(cells.sum(1, 19_999), want);
    }
}
