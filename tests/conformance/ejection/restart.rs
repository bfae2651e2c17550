//! Ejections survive a restart (section 6): same k, same next probe, clamped to [0, k x unit]; the
//! cap and the last instance hold for them too.

use std::sync::Arc;
use std::time::Duration;

use outrigger::clock::Timestamp;
use outrigger::outlier::detector::{Effect, Remembered, StateView};
use outrigger::outlier::policy::{Mode, Policy};
use outrigger::outlier::{Detector, Input, Jitter, RoutableEndpoint, UpstreamFacts};

use super::world::{World, id, ms, policy};

/// An ejected instance as an earlier process left it.
fn out(number: u32, k: u32, next_in_s: u64, failures: u64) -> Remembered {
    let ejection = outrigger::outlier::detector::RememberedEjection {
        observed: false,
        k,
        next_in: Duration::from_secs(next_in_s),
        out_for: Duration::from_secs(100),
        rate: (failures, 10),
        hopeless: false,
        slow_limit: None,
        good: 0,
        check_next: false,
    };
    Remembered {
        address: id(number),
        incarnation: None,
        times_ejected: 3,
        ejection: Some(ejection),
        memory: None,
    }
}

/// A process that starts with this, and whose registry lists 1 to `count` at once.
fn started(policy: Policy, seed: Vec<Remembered>, count: u32) -> World {
    let facts = UpstreamFacts::default();
    let detector = Detector::new(Arc::new(policy), facts, Jitter::none(), Timestamp::ZERO);
    let mut world = World {
        detector,
        now: 0,
        log: Vec::new(),
        endpoints: Vec::new(),
    };
    world.input(Input::Seed(seed));
    world.endpoints = (1..=count).map(|n| RoutableEndpoint::new(id(n))).collect();
    world.publish();
    world
}

/// k and next probe in milliseconds.
fn ejected(world: &World, number: u32) -> Option<(u32, u64)> {
    match world.detector.instance(&id(number))?.state {
        StateView::Ejected { k, next_trial, .. } => Some((k, next_trial.as_millis())),
        StateView::In | StateView::EjectedByOperator { .. } => None,
    }
}

#[test]
fn k_and_next_probe_survive_and_are_clamped() {
    let seed = vec![out(1, 3, 40, 9), out(2, 2, 9_999, 9), out(3, 99, 5, 9)];
    let world = started(policy(100), seed, 4);
    assert_eq!(ejected(&world, 1), Some((3, 40_000)));
    // k x unit: the wall clock was wrong, or the unit was lowered meanwhile.
    assert_eq!(ejected(&world, 2), Some((2, 60_000)));
    assert_eq!(ejected(&world, 3), Some((20, 5_000)));
    assert_eq!(ejected(&world, 4), None);
    let view = world.detector.instance(&id(1)).unwrap();
    assert_eq!(view.times_ejected, 3);
}

#[test]
fn what_is_remembered_of_a_recalled_one_is_what_was() {
    let seed = vec![out(1, 3, 40, 9)];
    let world = started(policy(100), seed.clone(), 4);
    assert_eq!(world.detector.remembered(), seed);
}

#[test]
fn an_overdue_probe_is_due_at_once() {
    let mut world = started(policy(100), vec![out(1, 3, 0, 9)], 2);
    world.at(100);
    let due = |(at, effect): &(u64, Effect)| {
        let trial = matches!(effect, Effect::StartTrial(_) | Effect::OfferTrial { .. });
        trial && *at <= 100
    };
    assert!(world.log.iter().any(due), "{:?}", world.log);
}

#[test]
fn the_cap_holds_and_the_worst_stay_out() {
    let seed = vec![out(1, 1, 30, 6), out(2, 1, 30, 9), out(3, 1, 30, 7)];
    // Of four at 50 % two.
    let world = started(policy(50), seed, 4);
    assert!(ejected(&world, 2).is_some() && ejected(&world, 3).is_some());
    assert_eq!(ejected(&world, 1), None);
    let memory = world.detector.instance(&id(1)).unwrap().memory.unwrap();
    assert_eq!(memory.k, 1, "k is remembered");
}

#[test]
fn somebody_always_stays_in() {
    let seed = vec![out(1, 1, 30, 9), out(2, 1, 30, 6)];
    let world = started(policy(100), seed, 2);
    assert!(ejected(&world, 1).is_some() && ejected(&world, 2).is_none());
    let world = started(policy(100), vec![out(1, 1, 30, 9)], 1);
    assert_eq!(ejected(&world, 1), None);
}

#[test]
fn one_that_appears_later_resumes_and_lapses_after_five_minutes() {
    for (later_s, want) in [(200, true), (301, false)] {
        let mut world = started(policy(100), vec![out(5, 7, 300, 9)], 3);
        world.at(later_s * 1_000);
        world.add(5, None);
        assert_eq!(ejected(&world, 5).is_some(), want, "after {later_s} s");
    }
}

#[test]
fn another_incarnation_starts_clean() {
    let mut seed = out(9, 3, 40, 9);
    seed.incarnation = Some("old".into());
    let mut world = started(policy(100), vec![seed], 3);
    world.add(9, Some("new"));
    assert_eq!(ejected(&world, 9), None);
}

#[test]
fn a_changed_mode_forgets_what_it_would_at_a_reload() {
    let observe = Policy {
        mode: Mode::Observe,
        flap_memory: 5,
        ..policy(100)
    };
    let world = started(observe, vec![out(1, 3, 40, 9)], 3);
    let view = world.detector.instance(&id(1)).unwrap();
    assert_eq!(ejected(&world, 1), None);
    assert_eq!(view.memory.map(|memory| memory.k), Some(3));
    let disabled = Policy {
        mode: Mode::Disabled,
        ..policy(100)
    };
    let world = started(disabled, vec![out(1, 3, 40, 9)], 3);
    assert_eq!(ejected(&world, 1), None);
    assert!(world.detector.next_deadline().is_none_or(|due| due > ms(0)));
}
