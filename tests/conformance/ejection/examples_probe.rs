//! Worked examples: trials, restores, identity.

use std::time::Duration;

use outrigger::outlier::detector::{Effect, RestoredBy, StateView, TrialKind};
use outrigger::outlier::policy::Policy;
use outrigger::outlier::{Input, UpstreamFacts};

use super::world::{GOOD, NETWORK, World, id, policy, pure};

/// Instance 1 of three is out since time 0.
fn one_out(policy: Policy) -> World {
    let mut world = World::new(policy, 3);
    world.fail(1, 10);
    assert_eq!(world.out(), [1]);
    world
}

#[test]
fn example_16_an_address_that_returns_resumes() {
    let mut world = one_out(pure(50));
    world.fail_trials(1, 2);
    let next = world.next_trial(1);
    assert_eq!((world.k(1), next), (3, 180_000));
    world.remove(1);
    world.at(95_000).add(1, None);
    assert_eq!((world.k(1), world.next_trial(1)), (3, next));
    world.remove(1);
    world.at(95_000 + 360_000).add(1, None);
    assert!(world.out().is_empty());
    assert_eq!(world.view(1).share_bp, 10_000);
}

#[test]
fn example_16_exactly_five_minutes_are_included() {
    let mut world = one_out(pure(50));
    world.remove(1);
    world.at(300_000).add(1, None);
    assert_eq!((world.out(), world.k(1)), (vec![1], 1));
}

#[test]
fn example_17_a_new_incarnation_is_clean_and_ramps() {
    let mut world = World::new(pure(50), 2);
    world.add(3, Some("pod-a"));
    world.fail(3, 10);
    assert_eq!(world.out(), [3]);
    // Re-registered without one, then with the same.
    for incarnation in [None, Some("pod-a")] {
        world.endpoints.pop();
        world.add(3, incarnation);
        world.input(Input::Hint { address: id(3) });
        assert_eq!(world.out(), [3]);
    }
    world.at(1_000);
    world.endpoints.pop();
    world.add(3, Some("pod-b"));
    assert_eq!(world.restores(), [(1_000, id(3), RestoredBy::Replaced)]);
    assert_eq!(world.view(3).share_bp, 1_250);
    assert_eq!(world.view(3).memory, None);
}

#[test]
fn example_18_a_straggler_changes_nothing() {
    let mut world = World::new(pure(50), 3);
    world.at(5_000).fail(1, 10);
    world.at(6_000).outcome_sent(1, GOOD, 3_000);
    assert_eq!(world.out(), [1]);
    assert_eq!(
        world.count(|effect| matches!(effect, Effect::Stale { count: 1, .. })),
        1
    );
}

#[test]
fn example_19_a_silent_server_fails_its_trial() {
    let facts = UpstreamFacts {
        timeout_connect: Duration::from_secs(1),
        timeout_attempt: Some(Duration::from_secs(4)),
        ..Default::default()
    };
    let mut world = World::with_facts(pure(50), 3, facts);
    world.fail(1, 10);
    world.at(20_000).request();
    world.at(30_000);
    let trial = world.request().expect("the trial is granted");
    assert_eq!(
        (trial.kind, trial.deadline.as_millis()),
        (TrialKind::Request, 35_000)
    );
    world.at(34_999);
    assert_eq!(world.k(1), 1);
    world.at(35_000).answer(trial.lease, GOOD);
    assert_eq!(
        (world.k(1), world.trial(1), world.next_trial(1)),
        (2, None, 95_000)
    );
}

#[test]
fn example_20_one_of_a_hundred_requests_is_the_trial() {
    let mut world = one_out(pure(50));
    world.at(29_000).request();
    world.at(30_000);
    let offers = world.detector.offers();
    assert_eq!(offers.len(), 1);
    let seen = world.log.len();
    for _ in 0..100 {
        world.input(Input::RequestSeen { retryable: true });
        world.input(Input::TrialTaken {
            address: id(1),
            lease: offers[0].lease,
            latest: None,
        });
    }
    assert_eq!(world.starts_since(seen).len(), 1);
}

#[test]
fn example_27_k_is_remembered_by_the_flap_memory() {
    for (flap_memory, k, wait) in [(0, 1, 30_000), (5, 5, 150_000)] {
        let mut world = one_out(Policy {
            flap_memory,
            ..pure(50)
        });
        world.fail_trials(1, 3);
        world.at(300_000).answer_trial(1, GOOD);
        assert!(world.out().is_empty());
        world.at(320_000).good(1, 2);
        world.fail(1, 10);
        assert_eq!((world.k(1), world.next_trial(1)), (k, 320_000 + wait));
    }
}

#[test]
fn example_28_a_lower_maximum_pulls_the_pending_trial() {
    let mut world = one_out(pure(50));
    let last = world.fail_trials(1, 6);
    assert_eq!((world.k(1), world.next_trial(1)), (7, last + 210_000));
    world.at(last + 20_000).reload(Policy {
        max_recovery_checks: 3,
        ..pure(50)
    });
    assert_eq!((world.k(1), world.next_trial(1)), (3, last + 90_000));
    world.reload(pure(50));
    assert_eq!((world.k(1), world.next_trial(1)), (3, last + 90_000));
}

#[test]
fn example_30_no_wall_clock_comes_in() {
    // Inputs carry monotonic time only: a jump of the wall clock has no way in. A monotonic clock
    // that seems to go backwards stands still.
    let mut world = one_out(pure(50));
    world.at(10_000).input(Input::Tick);
    world.now = 1;
    world.input(Input::Tick);
    assert_eq!((world.k(1), world.next_trial(1)), (1, 30_000));
}

#[test]
fn example_39_only_a_check_that_turns_good_is_a_hint() {
    let mut world = one_out(pure(50));
    world.fail_trials(1, 3);
    assert_eq!((world.k(1), world.next_trial(1)), (4, 300_000));
    for at in (190_000..240_000).step_by(10_000) {
        world.at(at).check(1, true);
        assert_eq!(world.trial(1), None);
    }
    world.at(240_000).check(1, false);
    world.at(241_000).check(1, true);
    world.answer_trial(1, NETWORK);
    assert_eq!((world.k(1), world.next_trial(1)), (4, 300_000));
    // Not within a unit of the last trial.
    world.at(250_000).check(1, false);
    world.check(1, true);
    world.at(270_999);
    assert_eq!(world.trial(1), None);
    world.at(271_000);
    assert!(world.trial(1).is_some());
}

#[test]
fn example_40_the_ejected_are_tried_while_the_others_are_down() {
    let mut world = World::new(pure(67), 3);
    world.fail(2, 10);
    world.fail(3, 10);
    assert_eq!(world.out(), [2, 3]);
    let mut tried = Vec::new();
    world.at(5_000).check(1, false);
    for at in [5_000, 8_000, 11_000] {
        world.at(at);
        for number in [2, 3] {
            let trial = world.trial(number).expect("due by the last resort");
            tried.push((number, trial.1));
            world.answer(trial.0, NETWORK);
            assert_eq!((world.k(number), world.next_trial(number)), (1, 30_000));
        }
    }
    assert_eq!(
        tried,
        [2, 3, 2, 3, 2, 3].map(|number| (number, TrialKind::Synthetic))
    );
    assert_eq!(world.view(1).state, StateView::In);
    world.at(14_000).answer_trial(3, GOOD);
    assert_eq!(world.restores(), [(14_000, id(3), RestoredBy::Probe)]);
}

#[test]
fn example_43_a_repaired_instance_returns_when_the_other_dies() {
    let mut world = World::new(
        Policy {
            flap_memory: 5,
            ..policy(50)
        },
        2,
    );
    world.fail(1, 10);
    world.fail_trials(1, 11);
    assert_eq!(world.k(1), 12);
    let start = world.now + 60_000;
    world.at(start).fail(2, 10);
    world.at(start + 1).answer_trial(1, GOOD);
    assert_eq!(world.out(), [] as [u32; 0]);
    assert!(world.now <= start + 3_000);
    assert_eq!(world.view(1).memory.map(|memory| memory.k), Some(12));
}
