//! A ring of hashes: each instance has points on it in proportion to its weight, a key belongs to the
//! next point. Source: Karger et al., "Consistent Hashing and Random Trees" (1997); points per
//! instance as in Ketama. An index by the first bits makes a look-up as cheap on a large ring as on a
//! small one.

use super::hash::{self, Key};
use super::hashing::Owner;

/// Points of an instance of the mean weight, while the ring has room.
const POINTS: u64 = 160;
/// Points of a whole ring at most (and one for each instance): 3 MiB, some ten milliseconds to build.
const MOST_POINTS: u64 = 1 << 18;

/// The points of all instances in the order of their hashes.
#[derive(Debug)]
pub(super) struct Ring {
    hashes: Box<[u32]>,
    owners: Box<[u32]>,
    /// Where the hashes begin whose first `bits` bits are the position in this.
    index: Box<[u32]>,
    bits: u32,
}

impl Ring {
    /// A ring of these instances.
    pub(super) fn new(owners: &[Owner]) -> Self {
        let count = owners.len() as u64;
        let total: u64 = owners.iter().map(|o| u64::from(o.weight)).sum();
        let room = (count.saturating_mul(POINTS)).min(MOST_POINTS);
        let mut points: Vec<u64> = Vec::with_capacity(usize::try_from(room + count).unwrap_or(0));
        for (owner, number) in owners.iter().zip(0_u32..) {
            let share = u128::from(room) * u128::from(owner.weight) / u128::from(total.max(1));
            let share = u64::try_from(share).unwrap_or(room).max(1);
            points.extend((0..share).map(|point| {
                let hash = hash::nth(owner.hash, point);
                (hash & !u64::from(u32::MAX)) | u64::from(number)
            }));
        }
        points.sort_unstable();
        let hashes: Box<[u32]> = points.iter().map(|point| upper(*point)).collect();
        let bits = points.len().max(2).next_power_of_two().ilog2().min(24);
        let mut index = Vec::with_capacity(1 << bits);
        let mut at = 0_u32;
        for prefix in 0_u64..1 << bits {
            let least = prefix << (32 - bits);
            while usize::try_from(at)
                .ok()
                .and_then(|at| hashes.get(at))
                .is_some_and(|hash| u64::from(*hash) < least)
            {
                at += 1;
            }
            index.push(at);
        }
        Self {
            hashes,
            owners: points.iter().map(|point| lower(*point)).collect(),
            index: index.into(),
            bits,
        }
    }

    /// Where the walk of a key begins.
    pub(super) fn start(&self, key: Key) -> usize {
        let hash = upper(key.0);
        let prefix = usize::try_from(hash >> (32 - self.bits)).unwrap_or(0);
        let first = self.index.get(prefix).copied().unwrap_or(0);
        let first = usize::try_from(first).unwrap_or(0);
        let rest = self.hashes.get(first..).unwrap_or_default();
        let further = rest.iter().take_while(|point| **point < hash).count();
        first + further
    }

    /// Whose the points are, in the order of a walk.
    pub(super) fn owners(&self) -> &[u32] {
        &self.owners
    }
}

fn upper(packed: u64) -> u32 {
    u32::try_from(packed >> 32).unwrap_or(0)
}

fn lower(packed: u64) -> u32 {
    u32::try_from(packed & u64::from(u32::MAX)).unwrap_or(0)
}
