//! Picks an instance from one immutable snapshot. Pure: the random source, the time and the
//! instances already tried come in; nothing is kept but the round robin's place.
//! Next: `upstream/pool.rs`, where the picked instance's connection comes from.

pub mod hash;
pub mod hashing;
mod least_request;
pub mod levels;
mod maglev;
mod peak_ewma;
mod random;
mod ring_hash;
mod round_robin;

pub use round_robin::RoundRobinState;

use crate::clock::Timestamp;
use crate::config::types::LoadBalancer;
use crate::endpoint::selectable::{Entry, Selectable};

/// How often a random pick is repeated before a scan decides.
const TRIES: usize = 16;

/// What a pick depends on besides the snapshot.
#[derive(Debug)]
pub struct PickContext<'a> {
    /// Now, for ramps.
    pub now: Timestamp,
    /// Instances this request has tried: never picked again.
    pub tried: &'a [u64],
    /// What consistent hashing goes by, where the request has it.
    pub key: Option<hash::Key>,
}

impl PickContext<'_> {
    fn allows(&self, entry: &Entry) -> bool {
        !self.tried.contains(&entry.instance.id)
    }

    /// A ramping instance accepts a pick with its share; others always.
    fn accepts(&self, entry: &Entry, rng: &mut fastrand::Rng) -> bool {
        entry
            .ramp
            .is_none_or(|ramp| rng.u32(0..10_000) < ramp.share_bp(self.now))
    }
}

/// Picks an entry, or `None` when every one was tried or there is none.
pub fn pick<'a>(
    algorithm: LoadBalancer,
    selectable: &'a Selectable,
    context: &PickContext<'_>,
    rng: &mut fastrand::Rng,
    round_robin: &mut RoundRobinState,
) -> Option<&'a Entry> {
    let found = match selectable.entries.as_ref() {
        [] => None,
        [only] => context.allows(only).then_some(only),
        _ => by_algorithm(algorithm, selectable, context, rng, round_robin)
            .or_else(|| any_untried(&selectable.entries, context, rng)),
    };
    found.or_else(|| {
        let mut spare = selectable.spare.iter();
        spare.find_map(|level| any_untried(level, context, rng))
    })
}

fn by_algorithm<'a>(
    algorithm: LoadBalancer,
    selectable: &'a Selectable,
    context: &PickContext<'_>,
    rng: &mut fastrand::Rng,
    round_robin: &mut RoundRobinState,
) -> Option<&'a Entry> {
    match algorithm {
        LoadBalancer::P2cLeastRequest => least_request::pick(selectable, context, rng),
        LoadBalancer::PeakEwma => peak_ewma::pick(selectable, context, rng),
        LoadBalancer::RingHash | LoadBalancer::Maglev => hashing::pick(selectable, context, rng),
        LoadBalancer::RoundRobin => round_robin::pick(selectable, context, rng, round_robin),
        LoadBalancer::Random => random::pick(selectable, context, rng),
    }
}

/// Two drawn by weight, and of them the second only if it is better than the first: `keeps_first` compares
/// a.load / a.weight <= b.load / b.weight, without a division.
fn better_of_two<'a>(
    selectable: &'a Selectable,
    context: &PickContext<'_>,
    rng: &mut fastrand::Rng,
    keeps_first: impl Fn(&Entry, &Entry) -> bool,
) -> Option<&'a Entry> {
    let first = draw(selectable, context, rng, None)?;
    let second = draw(selectable, context, rng, Some(first));
    Some(
        second
            .filter(|second| !keeps_first(first, second))
            .unwrap_or(first),
    )
}

/// One drawn by weight that may be picked and is not `other_than`.
fn draw<'a>(
    selectable: &'a Selectable,
    context: &PickContext<'_>,
    rng: &mut fastrand::Rng,
    other_than: Option<&Entry>,
) -> Option<&'a Entry> {
    for _ in 0..TRIES {
        let entry = selectable.sample(rng)?;
        let other = other_than.is_none_or(|o| o.instance.id != entry.instance.id);
        if other && context.allows(entry) && context.accepts(entry, rng) {
            return Some(entry);
        }
    }
    None
}

/// When the algorithm found nothing (almost all tried, or unlucky ramps): a scan from a random
/// place, so that a request never fails while an untried instance is left.
fn any_untried<'a>(
    entries: &'a [Entry],
    context: &PickContext<'_>,
    rng: &mut fastrand::Rng,
) -> Option<&'a Entry> {
    let start = rng.usize(0..entries.len().max(1));
    let (before, after) = entries.split_at_checked(start)?;
    after
        .iter()
        .chain(before)
        .find(|entry| context.allows(entry))
}

#[cfg(test)]
mod tests;
