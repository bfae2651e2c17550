use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::super::hash::{Key, nth};
use super::super::{PickContext, RoundRobinState, pick};
use super::{Level, Owner, Table};
use crate::clock::Timestamp;
use crate::config::types::LoadBalancer;
use crate::endpoint::Address;
use crate::endpoint::instance::Instance;
use crate::endpoint::selectable::{Availability, Entry, Ramp, Selectable};
use crate::outlier::policy::Policy;

const BOTH: [LoadBalancer; 2] = [LoadBalancer::RingHash, LoadBalancer::Maglev];

/// Instances by number, of these weights, those in `out` not among the entries.
fn selectable(algorithm: LoadBalancer, all: &[(usize, u32)], out: &[usize]) -> Selectable {
    let address = |number: usize| {
        let text = format!(
            "10.{}.{}.{}:80",
            number / 65_536,
            number / 256 % 256,
            number % 256
        );
        Address::parse(&text).unwrap()
    };
    let mut entries = Vec::new();
    let mut owners = Vec::new();
    let mut places = Vec::new();
    let mut sorted: Vec<(Address, usize, u32)> = all
        .iter()
        .map(|(n, weight)| (address(*n), *n, *weight))
        .collect();
    sorted.sort();
    for (address, number, weight) in sorted {
        owners.push(Owner::new(&address, weight));
        places.push((!out.contains(&number)).then_some(entries.len()));
        if !out.contains(&number) {
            entries.push(Entry {
                instance: Arc::new(Instance::new(address, 1).unwrap()),
                weight,
                ramp: None,
                http2: None,
            });
        }
    }
    let table = Arc::new(Table::new(algorithm, owners).unwrap());
    let policy = Arc::new(Policy::builtin(false));
    Selectable::new(1, entries, Availability::Ready, policy, Vec::new(), false)
        .hashed(vec![Level::new(10_000, table, &places)])
}

fn equal(count: usize) -> Vec<(usize, u32)> {
    (0..count).map(|n| (n, 1_000)).collect()
}

fn key(n: u64) -> Key {
    Key(nth(n, 77))
}

/// Where a key goes.
fn place(s: &Selectable, algorithm: LoadBalancer, key: Key, tried: &[u64]) -> Option<Address> {
    let context = PickContext {
        now: Timestamp::ZERO,
        tried,
        key: Some(key),
    };
    let mut rng = fastrand::Rng::with_seed(1);
    let entry = pick(
        algorithm,
        s,
        &context,
        &mut rng,
        &mut RoundRobinState::default(),
    );
    entry.map(|entry| entry.instance.address.clone())
}

fn places(s: &Selectable, algorithm: LoadBalancer, keys: u64) -> Vec<Address> {
    (0..keys)
        .map(|n| place(s, algorithm, key(n), &[]).unwrap())
        .collect()
}

fn moved(before: &[Address], after: &[Address]) -> usize {
    before.iter().zip(after).filter(|(a, b)| a != b).count()
}

#[test]
fn keys_follow_the_weights() {
    for (algorithm, tolerance) in [(LoadBalancer::RingHash, 0.25), (LoadBalancer::Maglev, 0.05)] {
        let all: Vec<(usize, u32)> = (0..20)
            .map(|n| (n, if n < 5 { 3_000 } else { 1_000 }))
            .collect();
        let s = selectable(algorithm, &all, &[]);
        let mut counts: HashMap<Address, f64> = HashMap::new();
        for address in places(&s, algorithm, 60_000) {
            *counts.entry(address).or_default() += 1.0;
        }
        for entry in &s.entries {
            let want = 60_000.0 * f64::from(entry.weight) / 30_000.0;
            let got = counts[&entry.instance.address];
            let off = (got - want).abs() / want;
            // The keys are a sample themselves: about 2 % of 2,000.
            assert!(
                off < tolerance + 0.05,
                "{algorithm:?}: {got} instead of {want}"
            );
        }
    }
}

#[test]
fn one_of_n_gone_moves_about_a_nth_of_the_keys() {
    for algorithm in BOTH {
        for count in [2, 10, 100, 1_000] {
            let keys = 20_000_u64;
            let before = places(&selectable(algorithm, &equal(count), &[]), algorithm, keys);
            let mut rest = equal(count);
            rest.remove(count / 2);
            let after = places(&selectable(algorithm, &rest, &[]), algorithm, keys);
            let share = moved(&before, &after) as f64 / keys as f64;
            let ideal = 1.0 / count as f64;
            // Maglev moves some keys of others (its paper, 5.3); a ring moves none.
            let slack = if algorithm == LoadBalancer::Maglev {
                0.02
            } else {
                0.003
            };
            let most = ideal * 1.3 + slack;
            assert!(
                (ideal * 0.6..most).contains(&share),
                "{algorithm:?} of {count}: {share}"
            );
        }
    }
}

#[test]
fn the_order_in_the_registry_decides_nothing() {
    for algorithm in BOTH {
        let mut all = equal(50);
        let before = places(&selectable(algorithm, &all, &[]), algorithm, 2_000);
        all.reverse();
        assert_eq!(
            places(&selectable(algorithm, &all, &[]), algorithm, 2_000),
            before
        );
    }
}

#[test]
fn tables_of_ten_thousand_are_bounded_and_use_everybody() {
    for algorithm in BOTH {
        let mut all = equal(10_000);
        // As uneven as weights can be: the build must not take longer for it.
        all[0].1 = 10_000_000;
        let s = selectable(algorithm, &all, &[]);
        let owners = match &s.hashing[0].table.kind {
            super::Kind::Ring(ring) => ring.owners(),
            super::Kind::Maglev(maglev) => maglev.owners(),
        };
        assert!(owners.len() < 700_000, "{}", owners.len());
        let mut seen: Vec<u32> = owners.to_vec();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (0..10_000).collect::<Vec<u32>>());
    }
}

#[test]
fn a_ramp_brings_keys_back_by_and_by_and_none_leaves_again() {
    for algorithm in BOTH {
        let mut s = selectable(algorithm, &equal(10), &[]);
        let full = places(&s, algorithm, 4_000);
        let returning = s.entries[3].instance.address.clone();
        s.entries[3].ramp = Some(Ramp {
            start: Timestamp::ZERO,
            length: Duration::from_secs(10),
        });
        let mut here: Vec<usize> = Vec::new();
        for (ms, share) in [(0, 0.125), (5_000, 0.5625), (9_999, 1.0)] {
            let now = Timestamp::from_millis(ms);
            let mut rng = fastrand::Rng::with_seed(1);
            let mut state = RoundRobinState::default();
            let mut back = Vec::new();
            for (n, home) in full.iter().enumerate() {
                let context = PickContext {
                    now,
                    tried: &[],
                    key: Some(key(n as u64)),
                };
                let entry = pick(algorithm, &s, &context, &mut rng, &mut state).unwrap();
                let at_home = entry.instance.address == *home;
                assert!(at_home || *home == returning, "others stay where they are");
                if at_home && *home == returning {
                    back.push(n);
                }
            }
            assert!(here.iter().all(|n| back.contains(n)), "a key left again");
            let keys = full.iter().filter(|home| **home == returning).count();
            let got = back.len() as f64 / keys as f64;
            assert!((got - share).abs() < 0.1, "{algorithm:?} at {ms} ms: {got}");
            here = back;
        }
    }
}

#[test]
fn without_a_key_any_instance_is_as_good() {
    for algorithm in BOTH {
        let s = selectable(algorithm, &equal(4), &[]);
        let context = PickContext {
            now: Timestamp::ZERO,
            tried: &[],
            key: None,
        };
        let mut rng = fastrand::Rng::with_seed(1);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let mut state = RoundRobinState::default();
            let entry = pick(algorithm, &s, &context, &mut rng, &mut state).unwrap();
            seen.insert(entry.instance.id);
        }
        assert_eq!(seen.len(), 4);
    }
}

#[test]
fn levels_share_the_keys_and_a_key_stays_on_its_level() {
    let algorithm = LoadBalancer::RingHash;
    let s = selectable(algorithm, &equal(8), &[]);
    let owners = |range: std::ops::Range<usize>| -> Arc<Table> {
        let entries = &s.entries[range];
        let owners = entries
            .iter()
            .map(|e| Owner::new(&e.instance.address, 1_000));
        Arc::new(Table::new(algorithm, owners.collect()).unwrap())
    };
    let near: Vec<Option<usize>> = (0..4).map(Some).collect();
    let far: Vec<Option<usize>> = (4..8).map(Some).collect();
    let shared = |near_bp: u32| {
        let entries = s.entries.to_vec();
        let policy = Arc::clone(&s.policy);
        let levels = vec![
            Level::new(near_bp, owners(0..4), &near),
            Level::new(10_000, owners(4..8), &far),
        ];
        Selectable::new(2, entries, Availability::Ready, policy, Vec::new(), false).hashed(levels)
    };
    let is_near = |address: &Address| {
        let mut near = s.entries[..4].iter();
        near.any(|e| e.instance.address == *address)
    };
    let before = places(&shared(8_000), algorithm, 5_000);
    let share = before.iter().filter(|a| is_near(a)).count() as f64 / 5_000.0;
    assert!((share - 0.8).abs() < 0.03, "{share}");
    let after = places(&shared(6_000), algorithm, 5_000);
    for (a, b) in before.iter().zip(&after) {
        assert!(
            a == b || (is_near(a) && !is_near(b)),
            "only from near to far: {a} {b}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// An ejection moves the keys of the ejected alone, over all the others, and its return brings
    /// exactly them back.
    #[test]
    fn an_ejection_moves_only_its_own_keys(
        count in 2_usize..40,
        out in 0_usize..40,
        maglev in any::<bool>(),
        weights in proptest::collection::vec(1_u32..5_000, 40),
    ) {
        let out = out % count;
        let algorithm = BOTH[usize::from(maglev)];
        let all: Vec<(usize, u32)> = (0..count).map(|n| (n, weights[n])).collect();
        let whole = selectable(algorithm, &all, &[]);
        let less = selectable(algorithm, &all, &[out]);
        let before = places(&whole, algorithm, 500);
        let during = places(&less, algorithm, 500);
        let gone = &whole.entries.iter().map(|e| &e.instance.address).find(|a| {
            less.entries.iter().all(|e| e.instance.address != **a)
        }).unwrap();
        for (a, b) in before.iter().zip(&during) {
            prop_assert!(a == b || a == *gone);
            prop_assert_ne!(b, *gone);
        }
        prop_assert_eq!(places(&selectable(algorithm, &all, &[]), algorithm, 500), before);
    }

    /// A retry goes to the next one, the same every time, and never to one that was tried; all are
    /// tried before nobody is left.
    #[test]
    fn retries_walk_on_until_everybody_was_tried(count in 2_usize..12, maglev in any::<bool>(), n in any::<u64>()) {
        let algorithm = BOTH[usize::from(maglev)];
        let s = selectable(algorithm, &equal(count), &[]);
        let mut tried = Vec::new();
        for _ in 0..count {
            let address = place(&s, algorithm, key(n), &tried).unwrap();
            prop_assert_eq!(place(&s, algorithm, key(n), &tried), Some(address.clone()));
            let entry = s.entries.iter().find(|e| e.instance.address == address).unwrap();
            prop_assert!(!tried.contains(&entry.instance.id));
            tried.push(entry.instance.id);
        }
        prop_assert_eq!(place(&s, algorithm, key(n), &tried), None);
    }
}
