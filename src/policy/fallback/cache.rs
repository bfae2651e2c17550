//! The last good answers of an upstream: a bounded map by host and target, with the variants that
//! `Vary` makes. Pure: the time comes in. Who was not asked for the longest time goes first.
//!
//! Invariants: `bytes` is the sum over the entries and never above the bound of the last call that
//! named one; every sequence number in `by_key` is in `by_use` and the other way round.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::directives::RequestDirectives;
use super::storable::Terms;
use crate::clock::Timestamp;

/// Variants of one target at most; the one that was not used for the longest time makes room.
const MAX_VARIANTS: usize = 32;
/// Entries at most.
const MAX_ENTRIES: usize = 65_536;
/// What an entry costs beside its texts: maps, counters, the allocator.
const ENTRY_COST: usize = 512;
/// What a field costs beside its texts.
const FIELD_COST: usize = 64;

/// What an answer is kept under.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// For requests of `target` at `host`, as the instances see them.
    pub fn new(host: &[u8], target: &str) -> Self {
        // A host has no space.
        Self([host, b" ", target.as_bytes()].concat().into())
    }
}

/// A kept answer.
#[derive(Debug)]
pub struct Kept {
    /// Its status.
    pub status: StatusCode,
    /// Its fields, without those of one exchange.
    pub fields: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// When it may be given.
    pub terms: Terms,
    /// When its head came.
    pub at: Timestamp,
}

impl Kept {
    /// What it is counted as, under `key`.
    fn cost(&self, key: &Key) -> usize {
        let field = |name: &str, value: &[u8]| name.len() + value.len() + FIELD_COST;
        let fields = self.fields.iter();
        let fields: usize = fields.map(|(n, v)| field(n.as_str(), v.as_bytes())).sum();
        let vary = self.terms.vary.iter();
        let vary: usize = vary
            .map(|(name, values)| {
                let values: usize = values.iter().map(|v| v.len() + FIELD_COST).sum();
                values + name.as_str().len() + FIELD_COST
            })
            .sum();
        self.body.len() + fields + vary + key.0.len() + ENTRY_COST
    }

    fn answers(&self, request: &HeaderMap) -> bool {
        let same = |name: &http::HeaderName, values: &Vec<http::HeaderValue>| {
            request.get_all(name).iter().eq(values.iter())
        };
        self.terms
            .vary
            .iter()
            .all(|(name, values)| same(name, values))
    }
}

/// A kept answer that may be given now.
#[derive(Clone, Debug)]
pub struct Hit {
    /// It.
    pub kept: Arc<Kept>,
    /// How old it is, its age when it came included.
    pub age: Duration,
}

impl Hit {
    /// Whether it is older than it said it would be good for.
    pub fn is_stale(&self) -> bool {
        self.age > self.kept.terms.fresh_for || self.kept.terms.fresh_for.is_zero()
    }
}

#[derive(Debug)]
struct Stored {
    key: Key,
    kept: Arc<Kept>,
    cost: usize,
}

/// The last good answers of one upstream.
#[derive(Debug, Default)]
pub struct Cache {
    /// By the number of its last use.
    by_use: BTreeMap<u64, Stored>,
    /// Variants, in no order.
    by_key: HashMap<Key, Vec<u64>>,
    uses: u64,
    bytes: usize,
}

impl Cache {
    /// What all entries are counted as.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_use.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_use.is_empty()
    }

    /// Holds the bound, from now on and until another one is given.
    pub fn shrink(&mut self, max_bytes: usize) {
        while self.bytes > max_bytes || self.by_use.len() > MAX_ENTRIES {
            let Some((number, _)) = self.by_use.first_key_value() else {
                return;
            };
            let number = *number;
            self.take(number);
        }
    }

    /// Keeps an answer in place of the one that answers the same request, unless that came later; not
    /// one that alone is larger than the bound.
    pub fn put(&mut self, key: &Key, kept: Kept, request: &HeaderMap, max_bytes: usize) {
        if self.kept_at(key, request).is_some_and(|at| at > kept.at) {
            return;
        }
        for number in self.matching(key, request) {
            self.take(number);
        }
        let cost = kept.cost(key);
        if cost > max_bytes {
            return;
        }
        let variants = self.by_key.get(key);
        if let Some(variants) = variants.filter(|v| v.len() >= MAX_VARIANTS)
            && let Some(oldest) = variants.iter().min().copied()
        {
            self.take(oldest);
        }
        self.shrink(max_bytes - cost);
        if self.by_use.len() >= MAX_ENTRIES
            && let Some((number, _)) = self.by_use.first_key_value()
        {
            let number = *number;
            self.take(number);
        }
        self.enter(Stored {
            key: key.clone(),
            kept: Arc::new(kept),
            cost,
        });
    }

    /// The answer to `request`, if it may be given `now`: not kept longer than `max_age`, and as its
    /// own words and those of the request allow. What is too old goes.
    pub fn get(
        &mut self,
        key: &Key,
        request: &HeaderMap,
        max_age: Duration,
        now: Timestamp,
    ) -> Option<Hit> {
        let asked = RequestDirectives::of(request);
        if asked.no_cache {
            return None;
        }
        let mut best: Option<(u64, Timestamp)> = None;
        for number in self.matching(key, request) {
            let Some(stored) = self.by_use.get(&number) else {
                continue;
            };
            let at = stored.kept.at;
            if now.since(at) > max_age {
                self.take(number);
            } else if best.is_none_or(|(_, latest)| at >= latest) {
                best = Some((number, at));
            }
        }
        let (number, at) = best?;
        let terms = &self.by_use.get(&number)?.kept.terms;
        let age = terms.age + now.since(at);
        let stale = age.saturating_sub(terms.fresh_for);
        if asked.max_age.is_some_and(|most| age > most)
            || (!stale.is_zero() && terms.stale_for.is_some_and(|most| stale > most))
        {
            return None;
        }
        let stored = self.take(number)?;
        let kept = Arc::clone(&stored.kept);
        self.enter(stored);
        Some(Hit { kept, age })
    }

    /// When the answer to `request` was kept.
    pub fn kept_at(&self, key: &Key, request: &HeaderMap) -> Option<Timestamp> {
        let matching = self.matching(key, request).into_iter();
        let kept = matching.filter_map(|number| self.by_use.get(&number));
        kept.map(|stored| stored.kept.at).max()
    }

    /// Drops all variants.
    pub fn remove(&mut self, key: &Key) {
        for number in self.by_key.get(key).cloned().unwrap_or_default() {
            self.take(number);
        }
    }

    fn matching(&self, key: &Key, request: &HeaderMap) -> Vec<u64> {
        let variants = self.by_key.get(key).into_iter().flatten().copied();
        variants
            .filter(|number| {
                let stored = self.by_use.get(number);
                stored.is_some_and(|stored| stored.kept.answers(request))
            })
            .collect()
    }

    /// As the last used one.
    fn enter(&mut self, stored: Stored) {
        self.uses += 1;
        self.bytes += stored.cost;
        self.by_key
            .entry(stored.key.clone())
            .or_default()
            .push(self.uses);
        self.by_use.insert(self.uses, stored);
    }

    fn take(&mut self, number: u64) -> Option<Stored> {
        let stored = self.by_use.remove(&number)?;
        self.bytes -= stored.cost;
        if let Some(variants) = self.by_key.get_mut(&stored.key) {
            variants.retain(|other| *other != number);
            if variants.is_empty() {
                self.by_key.remove(&stored.key);
            }
        }
        Some(stored)
    }
}

#[cfg(test)]
mod tests;
