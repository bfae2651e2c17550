//! Which upstreams have a label of their own, and the counters of all others together. Who has a
//! name keeps it while it lives. The common counters grow by what each of the others added since
//! the last scrape, so they never fall, whoever comes, goes or gets a name.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::metrics::sheet::{Key, Sample};

/// Kept from scrape to scrape.
#[derive(Debug, Default)]
pub(super) struct Admission {
    named: BTreeSet<String>,
    /// Last counters of those without a name.
    last: HashMap<String, BTreeMap<Key, Sample>>,
    /// Of all that ever were without a name.
    total: BTreeMap<Key, Sample>,
}

impl Admission {
    /// Gives out names: `live` in order of precedence. Says who lost a name by a lowered cap.
    pub(super) fn admit<'a>(
        &mut self,
        live: impl Iterator<Item = &'a str> + Clone,
        most: usize,
    ) -> BTreeSet<String> {
        let alive: BTreeSet<&str> = live.clone().collect();
        self.named.retain(|name| alive.contains(&**name));
        let mut lost = BTreeSet::new();
        while self.named.len() > most {
            lost.extend(self.named.pop_last());
        }
        for name in live {
            if self.named.len() >= most {
                break;
            }
            if !self.named.contains(name) {
                self.named.insert(name.to_owned());
            }
        }
        let named = &self.named;
        self.last
            .retain(|name, _| alive.contains(&**name) && !named.contains(name));
        lost
    }

    /// Whether it has a name of its own.
    pub(super) fn is_named(&self, upstream: &str) -> bool {
        self.named.contains(upstream)
    }

    /// Adds the counters of an upstream without a name. `had_name`: they were shown under its own
    /// name up to now and only what follows is common.
    pub(super) fn add(&mut self, upstream: &str, now: BTreeMap<Key, Sample>, had_name: bool) {
        if had_name {
            self.last.insert(upstream.to_owned(), now);
            return;
        }
        let last = self.last.entry(upstream.to_owned()).or_default();
        for (key, sample) in &now {
            let more = match last.get(key) {
                Some(then) => sample.since(then),
                None => sample.clone(),
            };
            match self.total.get_mut(key) {
                Some(total) => total.add(&more),
                None => {
                    self.total.insert(key.clone(), more);
                }
            }
        }
        *last = now;
    }

    /// The common counters.
    pub(super) fn total(&self) -> &BTreeMap<Key, Sample> {
        &self.total
    }
}
