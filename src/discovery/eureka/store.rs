//! A whole Eureka registry, kept current by deltas and compared by the server's hash. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::wire::{Action, Applications, Instance};
use crate::endpoint::Endpoint;

/// All instances of all statuses, by application and id.
#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    apps: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Instance>>,
}

impl Store {
    /// Of a full answer.
    pub(super) fn new(all: &Applications) -> Self {
        let mut store = Self::default();
        store.apply(all);
        store
    }

    /// Folds a delta in. It holds the changes of the last minutes, so most are known already.
    pub(super) fn apply(&mut self, delta: &Applications) {
        for instance in &delta.instances {
            match instance.action {
                Action::Put => {
                    let app = self.apps.entry(instance.app.clone()).or_default();
                    let newer = app
                        .get(&instance.id)
                        .is_none_or(|known| known.dirty <= instance.dirty);
                    if newer {
                        app.insert(instance.id.clone(), instance.clone());
                    }
                }
                Action::Delete => {
                    if let Some(app) = self.apps.get_mut(&instance.app) {
                        app.remove(&instance.id);
                    }
                }
            }
        }
        self.apps.retain(|_, instances| !instances.is_empty());
    }

    /// What the server counts: `DOWN_1_UP_5_`.
    pub(super) fn hash(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for instance in self.apps.values().flat_map(BTreeMap::values) {
            *counts.entry(&instance.status).or_default() += 1;
        }
        let mut hash = String::new();
        for (status, count) in counts {
            // Writing into a String does not fail.
            let _infallible = write!(hash, "{status}_{count}_");
        }
        hash
    }

    /// The endpoints of an application, and how many of its instances have none.
    pub(super) fn endpoints(&self, app: &str) -> (Vec<Endpoint>, usize) {
        let app = self.apps.get(app.to_ascii_uppercase().as_str());
        let instances = app.into_iter().flat_map(BTreeMap::values);
        let endpoints: Vec<Endpoint> = instances
            .clone()
            .filter_map(|instance| instance.endpoint.clone())
            .collect();
        let without = instances.count() - endpoints.len();
        (endpoints, without)
    }

    /// The names of all applications, sorted.
    pub(super) fn names(&self) -> Vec<Arc<str>> {
        self.apps.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::Address;

    fn instance(app: &str, id: &str, status: &str, action: Action) -> Instance {
        Instance {
            app: app.into(),
            id: id.into(),
            status: status.into(),
            dirty: 1,
            action,
            endpoint: Some(Endpoint::new(Address::parse(&format!("{id}:80")).unwrap())),
        }
    }

    fn delta(instances: &[Instance]) -> Applications {
        Applications {
            instances: instances.to_vec(),
            ..Applications::default()
        }
    }

    #[test]
    fn row_19_a_delta_may_come_again() {
        let one = instance("A", "one", "UP", Action::Put);
        let two = instance("A", "two", "DOWN", Action::Put);
        let mut store = Store::new(&delta(&[one, two]));
        assert_eq!(store.hash(), "DOWN_1_UP_1_");
        let gone = delta(&[instance("A", "one", "UP", Action::Delete)]);
        for _ in 0..3 {
            store.apply(&gone);
            assert_eq!(store.hash(), "DOWN_1_");
            assert_eq!(store.endpoints("a").0.len(), 1);
        }
        let back = delta(&[instance("A", "one", "UP", Action::Put)]);
        for _ in 0..2 {
            store.apply(&back);
            assert_eq!(store.hash(), "DOWN_1_UP_1_");
        }
        store.apply(&delta(&[
            instance("A", "one", "UP", Action::Delete),
            instance("A", "two", "UP", Action::Delete),
            instance("A", "three", "UP", Action::Delete),
        ]));
        assert!(store.names().is_empty() && store.hash().is_empty());
    }

    #[test]
    fn an_older_record_does_not_replace_a_newer_one() {
        let mut newer = instance("A", "one", "DOWN", Action::Put);
        newer.dirty = 5;
        let mut store = Store::new(&delta(&[newer]));
        store.apply(&delta(&[instance("A", "one", "UP", Action::Put)]));
        assert_eq!(store.hash(), "DOWN_1_");
    }
}
