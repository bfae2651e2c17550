//! What a worker saw to be kept just now: an answer that comes by the thousand is neither judged nor
//! looked up again in the shared cache meanwhile. A direct-mapped table; a wrong hit would cost one
//! copy that is not made for a second. Pure but for the seed of its hash.

use std::hash::{BuildHasher, RandomState};

use crate::clock::Timestamp;

/// Slots of the table.
const SLOTS: usize = 256;

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    mark: u64,
    /// What the cache had forgotten when it was asked.
    forgotten: u64,
    until: Timestamp,
}

/// Marks of requests whose answer need not be kept again for a while.
#[derive(Debug, Default)]
pub struct Recent {
    /// Empty until the first mark is set.
    slots: Vec<Slot>,
    hasher: RandomState,
}

impl Recent {
    /// The mark of a request for `target` at `host`, whose answers are kept by `owner`.
    pub fn mark(&self, owner: usize, host: &[u8], target: &str) -> u64 {
        self.hasher.hash_one((owner, host, target))
    }

    /// Whether it was seen to be kept, and nothing was forgotten since.
    pub fn has(&self, mark: u64, forgotten: u64, now: Timestamp) -> bool {
        self.slots.get(slot(mark)).is_some_and(|slot| {
            slot.mark == mark && slot.forgotten == forgotten && now < slot.until
        })
    }

    /// It was: until then nothing is to be done.
    pub fn set(&mut self, mark: u64, forgotten: u64, until: Timestamp) {
        if self.slots.is_empty() {
            self.slots.resize(SLOTS, Slot::default());
        }
        if let Some(place) = self.slots.get_mut(slot(mark)) {
            *place = Slot {
                mark,
                forgotten,
                until,
            };
        }
    }
}

fn slot(mark: u64) -> usize {
    usize::try_from(mark % SLOTS as u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_holds_for_its_time_and_until_something_is_forgotten() {
        let ms = Timestamp::from_millis;
        let mut recent = Recent::default();
        let mark = recent.mark(1, b"svc", "/a");
        assert!(!recent.has(mark, 0, ms(0)));
        recent.set(mark, 0, ms(1000));
        assert!(recent.has(mark, 0, ms(999)));
        assert!(!recent.has(mark, 0, ms(1000)));
        assert!(!recent.has(mark, 1, ms(999)));
        for other in [
            recent.mark(2, b"svc", "/a"),
            recent.mark(1, b"sv", "c/a"),
            recent.mark(1, b"svc", "/b"),
        ] {
            assert!(!recent.has(other, 0, ms(0)));
        }
    }
}
