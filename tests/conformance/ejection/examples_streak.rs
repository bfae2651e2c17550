//! Worked examples: sudden death.

use std::time::Duration;

use outrigger::outlier::UpstreamFacts;
use outrigger::outlier::detector::{Outcome, Trigger};
use outrigger::outlier::policy::{ConsecutiveErrors, Policy};
use outrigger::outlier::{Input, LeaseId};

use super::world::{GOOD, NETWORK, World, id, ms, policy, pure};

/// 200 calls per second for ten seconds, all good.
fn busy_and_good(world: &mut World) {
    for step in 0..2_000 {
        world.at(step * 5).good(1, 1);
    }
}

#[test]
fn example_31_a_busy_instance_dies() {
    let mut world = World::new(policy(50), 3);
    busy_and_good(&mut world);
    world.at(10_000).fail(1, 9);
    assert!(world.out().is_empty());
    world.fail(1, 1);
    assert_eq!(world.out(), [1]);
    assert_eq!(world.ejections()[0].trigger, Trigger::ConsecutiveErrors);
}

#[test]
fn example_31_without_the_rule_it_takes_half_a_window() {
    let mut world = World::new(pure(50), 3);
    busy_and_good(&mut world);
    let mut at = 10_000;
    while world.out().is_empty() {
        world.at(at).fail(1, 1);
        at += 5;
    }
    // The bucket of the oldest calls has just gone.
    let evidence = &world.ejections()[0].evidence;
    assert_eq!(
        (world.now, evidence.failures, evidence.calls),
        (15_000, 1_001, 1_801)
    );
}

#[test]
fn example_32_four_and_five_in_a_row_at_a_small_limit() {
    let mut world = World::new(
        Policy {
            lower_qps_limit_milli: 100,
            ..policy(50)
        },
        3,
    );
    world.good(1, 20);
    world.fail(1, 4);
    assert!(world.out().is_empty());
    world.fail(1, 1);
    assert_eq!(world.out(), [1]);
}

#[test]
fn example_33_one_success_ends_the_streak() {
    let mut world = World::new(policy(50), 3);
    world.good(1, 30);
    world.fail(1, 9);
    world.good(1, 1);
    world.fail(1, 9);
    assert!(world.out().is_empty());
}

#[test]
fn example_35_steady_errors_need_a_streak_four_times_as_long() {
    let mut world = World::new(policy(50), 3);
    for step in 0..200 {
        world.at(step * 45);
        world.good(1, 1);
        world.fail(1, 1);
        world.good(1, 1);
        world.fail(1, 1);
        world.good(1, 1);
    }
    let evidence = world.view(1).evidence;
    assert_eq!((evidence.calls, evidence.failures), (1_000, 400));
    world.fail(1, 39);
    assert!(world.out().is_empty());
    world.fail(1, 1);
    assert_eq!(world.out(), [1]);
    assert_eq!(world.ejections()[0].trigger, Trigger::ConsecutiveErrors);
}

#[test]
fn example_36_the_death_of_one_connection_is_one_in_the_streak() {
    let mut world = World::new(policy(50), 3);
    world.good(1, 200);
    for _ in 0..30 {
        let outcome = Outcome::new(id(1), NETWORK, ms(world.now));
        world.input(Input::Outcome(Outcome {
            death: Some(7),
            ..outcome
        }));
    }
    let evidence = world.view(1).evidence;
    assert_eq!(
        (evidence.streak, evidence.failures, evidence.calls),
        (1, 30, 230)
    );
    assert!(world.out().is_empty());
}

#[test]
fn example_37_ten_timeouts_over_forty_seconds() {
    let facts = UpstreamFacts {
        timeout_attempt: Some(Duration::from_secs(5)),
        ..Default::default()
    };
    let mut world = World::with_facts(policy(50), 3, facts);
    for step in 0..10u64 {
        assert!(world.out().is_empty(), "{step}");
        world.at(step * 4_000).timeout(1);
    }
    assert_eq!(world.out(), [1]);
    let evidence = &world.ejections()[0].evidence;
    assert_eq!((evidence.streak, evidence.calls), (10, 3));
}

#[test]
fn example_38_a_bad_instance_cannot_hide_in_its_ramp() {
    let ramped = Policy {
        ramp: Duration::from_secs(60),
        ..policy(50)
    };
    let mut world = World::new(ramped, 3);
    world.fail(1, 10);
    let start = world.next_trial(1);
    world.at(start).answer_trial(1, GOOD);
    assert!(world.out().is_empty());
    for call in 1..=5u64 {
        assert!(world.out().is_empty());
        world.at(start + call * 952).fail(1, 1);
    }
    assert_eq!(world.out(), [1]);
    assert_eq!(world.ejections()[1].trigger, Trigger::ConsecutiveErrors);
}

#[test]
fn a_fixed_streak_is_taken_as_it_is() {
    let fixed = Policy {
        consecutive_errors: ConsecutiveErrors::Count(3),
        ..policy(50)
    };
    let mut world = World::new(fixed, 3);
    world.good(1, 500);
    world.fail(1, 2);
    assert!(world.out().is_empty());
    world.fail(1, 1);
    assert_eq!(world.out(), [1]);
    world.answer(
        LeaseId {
            lane: 0,
            epoch: 0,
            generation: 0,
        },
        GOOD,
    );
    assert_eq!(world.out(), [1]);
}
