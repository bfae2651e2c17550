//! Consistent hashing over one snapshot: the key of a request has a place in a table of the instances
//! that are offered, be they usable or not; who is not (ejected, failing its checks, tried) is passed
//! over on a walk to the next. So a table changes with the set of instances alone, an ejection moves
//! only the keys of the ejected, and they come back with it, by and by if it is on a ramp.
//! A request without a key takes the pick of `p2c_least_request`.

use std::sync::Arc;

use super::hash::{self, Key};
use super::maglev::Maglev;
use super::ring_hash::Ring;
use super::{PickContext, least_request};
use crate::config::types::LoadBalancer;
use crate::endpoint::Address;
use crate::endpoint::selectable::{Entry, Selectable};

/// Steps of a walk at most. With half of the instances out, one in 2^256 walks is that long.
const STEPS: usize = 256;

/// In `Level::slots`: at the moment it is no entry.
const NO_ENTRY: u32 = u32::MAX;

/// An instance that owns a part of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Of its address.
    pub(super) hash: u64,
    /// Above zero.
    pub(super) weight: u32,
}

impl Owner {
    /// The instance at an address.
    pub fn new(address: &Address, weight: u32) -> Self {
        Self {
            hash: hash::of_bytes(address.as_str().as_bytes()),
            weight,
        }
    }
}

/// Whose each key is.
#[derive(Debug)]
pub struct Table {
    owners: Vec<Owner>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Ring(Ring),
    Maglev(Maglev),
}

impl Table {
    /// The table of an algorithm; `None` for one that has none. `owners` in an order that is the same
    /// whenever the set is the same, as that of their addresses.
    pub fn new(algorithm: LoadBalancer, owners: Vec<Owner>) -> Option<Self> {
        let kind = match algorithm {
            LoadBalancer::RingHash => Kind::Ring(Ring::new(&owners)),
            LoadBalancer::Maglev => Kind::Maglev(Maglev::new(&owners)),
            LoadBalancer::P2cLeastRequest
            | LoadBalancer::PeakEwma
            | LoadBalancer::RoundRobin
            | LoadBalancer::Random => return None,
        };
        Some(Self { owners, kind })
    }

    /// Whether it is that of these instances.
    pub fn is_of(&self, algorithm: LoadBalancer, owners: &[Owner]) -> bool {
        let same = match self.kind {
            Kind::Ring(_) => algorithm == LoadBalancer::RingHash,
            Kind::Maglev(_) => algorithm == LoadBalancer::Maglev,
        };
        same && self.owners == owners
    }

    /// The numbers of the owners from a key's place on.
    fn walk(&self, key: Key) -> impl Iterator<Item = u32> {
        let (start, owners) = match &self.kind {
            Kind::Ring(ring) => (ring.start(key), ring.owners()),
            Kind::Maglev(maglev) => (maglev.start(key), maglev.owners()),
        };
        let (before, after) = owners.split_at_checked(start).unwrap_or((owners, &[]));
        after.iter().chain(before).take(STEPS).copied()
    }
}

/// One level of instances (priority, locality) with its share of the keys.
#[derive(Debug)]
pub struct Level {
    /// Of 10,000 parts of all keys, those below this and not below that of the level before.
    pub until_bp: u32,
    /// Over all that are offered in it.
    pub table: Arc<Table>,
    /// The entry of each owner.
    pub slots: Box<[u32]>,
}

impl Level {
    /// A level whose owners are at these places among the entries.
    pub fn new(until_bp: u32, table: Arc<Table>, places: &[Option<usize>]) -> Self {
        let slot = |place: &Option<usize>| {
            place
                .and_then(|place| u32::try_from(place).ok())
                .unwrap_or(NO_ENTRY)
        };
        Self {
            until_bp,
            table,
            slots: places.iter().map(slot).collect(),
        }
    }
}

pub(super) fn pick<'a>(
    selectable: &'a Selectable,
    context: &PickContext<'_>,
    rng: &mut fastrand::Rng,
) -> Option<&'a Entry> {
    let Some(key) = context.key else {
        return least_request::pick(selectable, context, rng);
    };
    on_its_level(selectable, context, key).or_else(|| anywhere(selectable, context, key))
}

fn on_its_level<'a>(
    selectable: &'a Selectable,
    context: &PickContext<'_>,
    key: Key,
) -> Option<&'a Entry> {
    let levels = &selectable.hashing;
    let part = u32::try_from(hash::nth(key.0, 3) % 10_000).unwrap_or(0);
    let level = match levels.as_ref() {
        [only] => only,
        levels => levels.iter().find(|level| part < level.until_bp)?,
    };
    level.table.walk(key).find_map(|owner| {
        let slot = level.slots.get(owner as usize)?;
        let entry = selectable.entries.get(*slot as usize)?;
        (context.allows(entry) && accepts(entry, context, key)).then_some(entry)
    })
}

/// A ramping instance takes those of its keys that are due; a key that has come back stays.
fn accepts(entry: &Entry, context: &PickContext<'_>, key: Key) -> bool {
    entry.ramp.is_none_or(|ramp| {
        let place = hash::nth(key.0, entry.instance.id.wrapping_add(4)) % 10_000;
        place < u64::from(ramp.share_bp(context.now))
    })
}

/// Almost all of its level are out: the key still goes to the same one as long as they stay so.
fn anywhere<'a>(
    selectable: &'a Selectable,
    context: &PickContext<'_>,
    key: Key,
) -> Option<&'a Entry> {
    let entries = &selectable.entries;
    let start = usize::try_from(key.0 % (entries.len().max(1) as u64)).unwrap_or(0);
    let (before, after) = entries.split_at_checked(start)?;
    let mut all = after.iter().chain(before);
    all.find(|entry| context.allows(entry))
}

#[cfg(test)]
mod tests;
