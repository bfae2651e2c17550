use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{PickContext, RoundRobinState, pick};
use crate::clock::Timestamp;
use crate::config::types::LoadBalancer;
use crate::endpoint::Address;
use crate::endpoint::instance::Instance;
use crate::endpoint::selectable::{Availability, Entry, Ramp, Selectable};
use crate::outlier::policy::Policy;

fn selectable(weights: &[u32]) -> Selectable {
    let entries = weights
        .iter()
        .enumerate()
        .map(|(i, weight)| Entry {
            instance: Arc::new(
                Instance::new(Address::parse(&format!("10.0.0.{i}:80")).unwrap(), 1).unwrap(),
            ),
            weight: *weight,
            ramp: None,
            http2: None,
        })
        .collect();
    let policy = Arc::new(Policy::builtin(false));
    Selectable::new(1, entries, Availability::Ready, policy, Vec::new(), false)
}

fn shares(algorithm: LoadBalancer, s: &Selectable, now: Timestamp, picks: u32) -> Vec<f64> {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut state = RoundRobinState::default();
    let mut counts: HashMap<u64, u32> = HashMap::new();
    for _ in 0..picks {
        let context = PickContext { now, tried: &[] };
        let entry = pick(algorithm, s, &context, &mut rng, &mut state).unwrap();
        *counts.entry(entry.instance.id).or_default() += 1;
    }
    s.entries
        .iter()
        .map(|e| f64::from(counts.get(&e.instance.id).copied().unwrap_or(0)) / f64::from(picks))
        .collect()
}

const ALL: [LoadBalancer; 3] = [
    LoadBalancer::P2cLeastRequest,
    LoadBalancer::RoundRobin,
    LoadBalancer::Random,
];

#[test]
fn every_algorithm_keeps_the_weights_at_low_load() {
    let s = selectable(&[1000, 2000, 1000, 4000]);
    for algorithm in ALL {
        let got = shares(algorithm, &s, Timestamp::ZERO, 40_000);
        for (share, want) in got.iter().zip([0.125, 0.25, 0.125, 0.5]) {
            // Drawing two different ones flattens the shares of the least-request pick a little.
            assert!((share - want).abs() < 0.08, "{algorithm:?}: {got:?}");
        }
    }
}

#[test]
fn round_robin_is_smooth_and_exact() {
    let s = selectable(&[5000, 1000, 1000]);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut state = RoundRobinState::default();
    let order: Vec<u64> = (0..7)
        .map(|_| {
            let context = PickContext {
                now: Timestamp::ZERO,
                tried: &[],
            };
            let id = pick(LoadBalancer::RoundRobin, &s, &context, &mut rng, &mut state);
            id.unwrap().instance.id - s.entries[0].instance.id
        })
        .collect();
    assert_eq!(order.iter().filter(|i| **i == 0).count(), 5, "{order:?}");
    assert_ne!(
        &order[..5],
        [0, 0, 0, 0, 0],
        "the light ones come in between: {order:?}"
    );
}

#[test]
fn an_instance_already_tried_is_never_picked() {
    let s = selectable(&[1000, 1000, 3000]);
    for algorithm in ALL {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut state = RoundRobinState::default();
        let mut tried = Vec::new();
        for _ in 0..3 {
            let context = PickContext {
                now: Timestamp::ZERO,
                tried: &tried,
            };
            let id = pick(algorithm, &s, &context, &mut rng, &mut state)
                .unwrap()
                .instance
                .id;
            assert!(!tried.contains(&id));
            tried.push(id);
        }
        let context = PickContext {
            now: Timestamp::ZERO,
            tried: &tried,
        };
        assert!(pick(algorithm, &s, &context, &mut rng, &mut state).is_none());
    }
}

#[test]
fn a_ramping_instance_starts_with_an_eighth_of_its_share() {
    let mut s = selectable(&[1000, 1000]);
    let ramp = Ramp {
        start: Timestamp::ZERO,
        length: Duration::from_secs(10),
    };
    s.entries[0].ramp = Some(ramp);
    assert_eq!(ramp.share_bp(Timestamp::ZERO), 1_250);
    assert_eq!(ramp.share_bp(Timestamp::from_millis(5_000)), 5_625);
    assert_eq!(ramp.share_bp(Timestamp::from_millis(50_000)), 10_000);
    for algorithm in ALL {
        let early = shares(algorithm, &s, Timestamp::ZERO, 20_000)[0];
        assert!((0.03..0.2).contains(&early), "{algorithm:?}: {early}");
    }
}

#[test]
fn least_request_avoids_the_busy_one() {
    let s = selectable(&[1000, 1000, 1000]);
    for _ in 0..50 {
        s.entries[1].instance.enter(0);
    }
    assert!(shares(LoadBalancer::P2cLeastRequest, &s, Timestamp::ZERO, 3_000)[1] < 0.01);
}
