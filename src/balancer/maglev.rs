//! Maglev's look-up table: every instance has its own permutation of the slots; in turns, as often as
//! their weights say, each takes the next free one of its own. Source: Eisenbud et al., "Maglev: A
//! Fast and Reliable Software Network Load Balancer" (NSDI 2016), 3.4. More even than a ring; when an
//! instance goes, some keys of others move too.

use super::hash::{self, Key};
use super::hashing::Owner;

/// The sizes of the paper; both are primes. A table has a hundred slots for each instance, or is the
/// large one.
const SMALL: u32 = 65_537;
const LARGE: u32 = 655_373;

const FREE: u32 = u32::MAX;

/// Whose each slot is.
#[derive(Debug)]
pub(super) struct Maglev {
    slots: Box<[u32]>,
}

/// The permutation of one instance, and how far it has come.
struct Walk {
    at: u64,
    skip: u64,
    /// Turns taken.
    turns: u64,
    weight: u64,
    /// Of the next instance that has its turn in the same round.
    next: u32,
}

impl Maglev {
    /// The table of these instances.
    pub(super) fn new(owners: &[Owner]) -> Self {
        let large = owners.len().saturating_mul(100) > SMALL as usize;
        let size = if large { LARGE } else { SMALL };
        let slots = fill(owners, size);
        Self {
            slots: slots.into(),
        }
    }

    /// Where the walk of a key begins.
    pub(super) fn start(&self, key: Key) -> usize {
        let size = self.slots.len().max(1) as u64;
        usize::try_from(key.0 % size).unwrap_or(0)
    }

    /// Whose the slots are, in the order of a walk.
    pub(super) fn owners(&self) -> &[u32] {
        &self.slots
    }
}

/// Rounds are numbered from 1; an instance's turn number `k` (from 0) is in round 1 + k x heaviest /
/// weight. Each round is a list of those that have a turn in it, so that a light instance among heavy
/// ones costs nothing in the rounds between.
fn fill(owners: &[Owner], size: u32) -> Vec<u32> {
    let prime = u64::from(size);
    let mut table = vec![FREE; size as usize];
    let heaviest = owners.iter().map(|o| o.weight.max(1)).max();
    let Some(heaviest) = heaviest.map(u64::from) else {
        return Vec::new();
    };
    let mut walks: Vec<Walk> = owners
        .iter()
        .map(|owner| Walk {
            at: hash::nth(owner.hash, 1) % prime,
            skip: hash::nth(owner.hash, 2) % (prime - 1) + 1,
            turns: 0,
            weight: u64::from(owner.weight.max(1)),
            next: FREE,
        })
        .collect();
    // First and last of each round; the first one is everybody's, in order.
    let mut rounds: Vec<(u32, u32)> = vec![(FREE, FREE); size as usize + 2];
    for number in (0_u32..).take(walks.len()) {
        queue(&mut rounds, &mut walks, 1, number);
    }
    let mut free = size;
    let mut round = 1_usize;
    while free > 0 {
        let Some((first, _)) = rounds.get(round).copied() else {
            break;
        };
        let mut current = first;
        while current != FREE && free > 0 {
            let Some(walk) = walks.get_mut(current as usize) else {
                break;
            };
            let follows = std::mem::replace(&mut walk.next, FREE);
            take(&mut table, walk, current, prime);
            free -= 1;
            walk.turns += 1;
            let later = walk.turns.saturating_mul(heaviest).div_ceil(walk.weight);
            let later = usize::try_from(later.saturating_add(1)).unwrap_or(usize::MAX);
            queue(&mut rounds, &mut walks, later, current);
            current = follows;
        }
        round += 1;
    }
    table
}

/// Takes the next slot of its permutation that is free. There is one: the caller counts them.
fn take(table: &mut [u32], walk: &mut Walk, number: u32, prime: u64) {
    for _ in 0..table.len() {
        let at = usize::try_from(walk.at).unwrap_or(0);
        walk.at = (walk.at + walk.skip) % prime;
        if let Some(slot) = table.get_mut(at)
            && *slot == FREE
        {
            *slot = number;
            return;
        }
    }
}

/// Puts an instance at the end of a round; a round beyond the last slot never comes.
fn queue(rounds: &mut [(u32, u32)], walks: &mut [Walk], round: usize, number: u32) {
    let Some((first, last)) = rounds.get_mut(round) else {
        return;
    };
    if *first == FREE {
        *first = number;
    } else if let Some(before) = walks.get_mut(*last as usize) {
        before.next = number;
    }
    *last = number;
}
