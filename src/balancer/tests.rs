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
        let context = PickContext {
            now,
            tried: &[],
            key: None,
        };
        let entry = pick(algorithm, s, &context, &mut rng, &mut state).unwrap();
        *counts.entry(entry.instance.id).or_default() += 1;
    }
    s.entries
        .iter()
        .map(|e| f64::from(counts.get(&e.instance.id).copied().unwrap_or(0)) / f64::from(picks))
        .collect()
}

const ALL: [LoadBalancer; 6] = [
    LoadBalancer::P2cLeastRequest,
    LoadBalancer::PeakEwma,
    LoadBalancer::RingHash,
    LoadBalancer::Maglev,
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
                key: None,
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
                key: None,
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
            key: None,
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

#[test]
fn peak_ewma_avoids_the_slow_one_and_tries_it_again_by_and_by() {
    let s = selectable(&[1000, 1000, 1000]);
    let (fast, slow) = (Duration::from_millis(2), Duration::from_millis(400));
    for (entry, took) in s.entries.iter().zip([fast, slow, fast]) {
        entry.instance.latency.observe(took, Timestamp::ZERO);
    }
    let soon = Timestamp::from_millis(100);
    assert!(shares(LoadBalancer::PeakEwma, &s, soon, 3_000)[1] < 0.01);
    // Nothing was heard of it for a while, of the others all the time.
    let later = Timestamp::from_millis(90_000);
    for entry in [&s.entries[0], &s.entries[2]] {
        entry.instance.latency.observe(fast, later);
    }
    assert!(shares(LoadBalancer::PeakEwma, &s, later, 3_000)[1] > 0.5);
    // With a request in flight that does not come back it is what it was.
    s.entries[1].instance.enter(0);
    assert!(shares(LoadBalancer::PeakEwma, &s, later, 3_000)[1] < 0.01);
}

#[test]
fn peak_ewma_counts_requests_in_flight_and_weights() {
    let s = selectable(&[1000, 3000]);
    let took = Duration::from_millis(10);
    for (entry, busy) in s.entries.iter().zip([3, 6]) {
        entry.instance.latency.observe(took, Timestamp::ZERO);
        (0..busy).for_each(|_| entry.instance.enter(0));
    }
    // 4 / 1 against 7 / 3.
    let got = shares(LoadBalancer::PeakEwma, &s, Timestamp::ZERO, 1_000);
    assert!(got[1] > 0.99, "{got:?}");
}

#[test]
fn an_unknown_instance_is_tried_once_and_then_waited_for() {
    let s = selectable(&[1000, 1000]);
    let took = Duration::from_millis(10);
    s.entries[0].instance.latency.observe(took, Timestamp::ZERO);
    let got = shares(LoadBalancer::PeakEwma, &s, Timestamp::ZERO, 100);
    assert!(got[1] > 0.99, "{got:?}");
    s.entries[1].instance.enter(0);
    let got = shares(LoadBalancer::PeakEwma, &s, Timestamp::ZERO, 100);
    assert!(got[0] > 0.99, "{got:?}");
}

#[test]
fn a_retry_goes_on_with_the_spare_levels_in_their_order() {
    let all = selectable(&[1000; 5]);
    let [near, a, b, c, last] = &all.entries[..] else {
        panic!("five")
    };
    let spare = vec![vec![a.clone(), b.clone(), c.clone()], vec![last.clone()]];
    let policy = Arc::clone(&all.policy);
    let s = Selectable::new(
        1,
        vec![near.clone()],
        Availability::Ready,
        policy,
        Vec::new(),
        false,
    )
    .with_spare(spare);
    assert_eq!(s.pickable(), 5);
    for algorithm in ALL {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut tried = Vec::new();
        while s.untried(&tried) {
            let context = PickContext {
                now: Timestamp::ZERO,
                tried: &tried,
                key: None,
            };
            let mut state = RoundRobinState::default();
            let entry = pick(algorithm, &s, &context, &mut rng, &mut state).unwrap();
            tried.push(entry.instance.id);
        }
        assert_eq!((tried[0], tried[4]), (near.instance.id, last.instance.id));
    }
}
