//! Corners beyond the worked examples.

use std::sync::Arc;
use std::time::Duration;

use outrigger::clock::Timestamp;
use outrigger::outlier::detector::{
    Cause, Effect, OverrideKind, Refusal, RestoredBy, StateView, TrialKind,
};
use outrigger::outlier::policy::{Mode, Policy, ProbeKind};
use outrigger::outlier::{Detector, Input, Jitter, UpstreamFacts};

use super::world::{BUSINESS, GOOD, IGNORED, NETWORK, World, id, ms, policy, pure};

fn one_out(policy: Policy) -> World {
    let mut world = World::new(policy, 3);
    world.fail(1, 10);
    assert_eq!(world.out(), [1]);
    world
}

fn command(world: &mut World, number: u32, kind: OverrideKind, ttl: Option<u64>, force: bool) {
    let ttl = ttl.map(Duration::from_millis);
    world.input(Input::Override {
        address: id(number),
        kind,
        ttl,
        force,
    });
}

#[test]
fn successes_make_a_sample_and_the_bucket_close_judges_it() {
    let mut world = World::new(pure(50), 3);
    world.fail(1, 9);
    world.at(500).good(1, 1);
    assert!(world.out().is_empty());
    world.at(1_000);
    assert_eq!(world.out(), [1]);
}

#[test]
fn a_bucket_close_judges_before_the_oldest_is_dropped() {
    let mut world = World::new(pure(50), 3);
    world.fail(1, 6);
    world.at(9_999).good(1, 4);
    assert!(world.out().is_empty());
    world.at(10_000);
    assert_eq!(world.out(), [1]);
    assert_eq!(world.ejections()[0].evidence.calls, 10);
}

#[test]
fn a_failing_response_judges_the_moved_windows_of_all() {
    let mut world = World::new(pure(50), 4);
    // Half of its calls fail until the early successes leave its window.
    world.good(1, 2);
    world.at(5_000).good(1, 10);
    world.fail(1, 11);
    world.at(9_999);
    assert!(world.out().is_empty());
    world.at(10_500);
    assert!(world.out().is_empty());
    world.fail(2, 1);
    assert_eq!(world.out(), [1]);
}

#[test]
fn an_idle_detector_has_no_deadline() {
    let mut world = World::new(policy(50), 3);
    assert_eq!(world.detector.next_deadline(), None);
    world.good(1, 100);
    assert_eq!(world.detector.next_deadline(), None);
    world.fail(1, 1);
    assert_eq!(world.detector.next_deadline(), Some(ms(1_000)));
    world.at(60_000);
    assert_eq!(world.detector.next_deadline(), None);
}

#[test]
fn an_answer_at_the_deadline_is_late_unless_its_head_was_good() {
    for (head, k) in [(false, Some(2)), (true, None)] {
        let mut world = one_out(pure(50));
        world.at(29_000).request();
        world.at(30_000);
        let trial = world.request().unwrap();
        if head {
            world
                .at(31_000)
                .input(Input::TrialHead { lease: trial.lease });
        }
        world
            .at(trial.deadline.as_millis())
            .answer(trial.lease, GOOD);
        assert_eq!(world.is_out(1).then(|| world.k(1)), k);
    }
}

#[test]
fn an_expired_request_is_followed_by_a_check() {
    let mut world = one_out(pure(50));
    world.at(29_000).request();
    world.at(30_000);
    let trial = world.request().unwrap();
    let end = trial.deadline.as_millis();
    for step in 1..8 {
        world.at(end + step * 8_000);
        world.request();
    }
    world.at(end + 60_000);
    assert_eq!(
        world.trial(1).map(|trial| trial.1),
        Some(TrialKind::Synthetic)
    );
}

#[test]
fn without_requests_the_check_comes_at_once_and_else_after_a_unit() {
    let mut world = one_out(pure(50));
    world.at(30_000);
    assert_eq!(
        world.trial(1).map(|trial| trial.1),
        Some(TrialKind::Synthetic)
    );
    let mut world = one_out(pure(50));
    world.at(0).request();
    world.at(59_999);
    assert_eq!(world.trial(1), None);
    assert_eq!(world.detector.offers().len(), 1);
    world.at(60_000);
    assert_eq!(
        world.trial(1).map(|trial| trial.1),
        Some(TrialKind::Synthetic)
    );
    assert!(world.detector.offers().is_empty());
}

#[test]
fn an_ignored_trial_is_no_evidence() {
    let mut world = one_out(pure(50));
    world.at(29_000).request();
    world.at(30_000);
    let trial = world.request().unwrap();
    world.at(31_000).answer(trial.lease, IGNORED);
    assert_eq!((world.k(1), world.trial(1)), (1, None));
    let again = world.request().expect("the next eligible request");
    world.answer(again.lease, IGNORED);
    world.at(60_000);
    assert_eq!(
        world.trial(1).map(|trial| trial.1),
        Some(TrialKind::Synthetic)
    );
    world.answer_trial(1, IGNORED);
    assert_eq!((world.k(1), world.next_trial(1)), (1, 90_000));
}

#[test]
fn a_business_error_is_a_good_trial_under_network() {
    let mut world = one_out(pure(50));
    world.at(30_000).answer_trial(1, BUSINESS);
    assert!(world.out().is_empty());
}

#[test]
fn several_good_trials_in_a_row_can_be_asked_for() {
    let mut world = one_out(Policy {
        trials_to_restore: 2,
        ..pure(50)
    });
    world.at(30_000).answer_trial(1, GOOD);
    assert_eq!((world.k(1), world.next_trial(1)), (1, 60_000));
    world.at(60_000).answer_trial(1, NETWORK);
    assert_eq!((world.k(1), world.next_trial(1)), (2, 120_000));
    world.at(120_000).answer_trial(1, GOOD);
    world.at(150_000).answer_trial(1, GOOD);
    assert!(world.out().is_empty());
}

#[test]
fn a_check_before_the_request_decides_alone_when_idle() {
    let facts = UpstreamFacts {
        health_check: true,
        ..Default::default()
    };
    let mut world = World::with_facts(pure(50), 3, facts);
    world.fail(1, 10);
    world.at(10_000).request();
    world.at(30_000).answer_trial(1, GOOD);
    assert_eq!(world.out(), [1]);
    let trial = world.request().unwrap();
    world.answer(trial.lease, NETWORK);
    assert_eq!(world.k(1), 2);
    // Nobody asks any more.
    world.at(90_000).answer_trial(1, GOOD);
    assert!(world.out().is_empty());
}

#[test]
fn a_restore_by_a_connect_alone_remembers_k() {
    let facts = UpstreamFacts {
        tcp_check: true,
        ..Default::default()
    };
    let mut world = World::with_facts(pure(50), 3, facts);
    world.fail(1, 10);
    world.at(30_000).answer_trial(1, GOOD);
    world.at(50_000).fail(1, 10);
    assert_eq!(world.k(1), 2);
}

#[test]
fn k_is_forgotten_after_successes_and_a_normal_bucket_close() {
    for (calls, k) in [(9, 2), (10, 1)] {
        let mut world = one_out(Policy {
            flap_memory: 5,
            ..pure(50)
        });
        world.at(30_000).answer_trial(1, GOOD);
        world.at(41_000).good(1, calls);
        world.at(60_000).fail(1, 10);
        assert_eq!(world.k(1), k, "{calls} calls");
    }
}

#[test]
fn last_instance_is_no_recovery_and_does_not_raise_k() {
    let mut world = one_out(pure(50));
    world.fail_trials(1, 2);
    assert_eq!(world.k(1), 3);
    world.remove(2);
    world.remove(3);
    assert_eq!(world.restores()[0].2, RestoredBy::LastInstance);
    world.add(2, None);
    world.fail(1, 10);
    assert_eq!(world.k(1), 3);
}

#[test]
fn a_passing_one_returns_first_when_none_is_left() {
    let mut world = World::new(pure(67), 3);
    world.fail(1, 10);
    world.at(1_000).fail(2, 10);
    world.check(1, false);
    world.remove(3);
    assert_eq!(world.restores(), [(1_000, id(2), RestoredBy::LastInstance)]);
}

#[test]
fn a_non_routable_one_is_not_tried_and_is_due_when_it_is_back() {
    let mut world = one_out(pure(50));
    world.set_routable(1, false);
    world.at(100_000);
    assert_eq!((world.trial(1), world.k(1)), (None, 1));
    assert_eq!(world.detector.summary().numbers.out, 0);
    world.set_routable(1, true);
    assert_eq!(
        world.trial(1).map(|trial| trial.1),
        Some(TrialKind::Synthetic)
    );
}

#[test]
fn a_lease_does_not_outlive_the_absence_of_its_address() {
    let mut world = one_out(pure(50));
    world.at(30_000);
    let lease = world.trial(1).unwrap().0;
    world.remove(1);
    world.answer(lease, GOOD);
    world.at(31_000).add(1, None);
    assert_eq!((world.k(1), world.out()), (1, vec![1]));
    assert!(world.trial(1).is_some_and(|trial| trial.0 != lease));
}

#[test]
fn an_old_lease_cannot_restore_a_later_ejection() {
    let mut world = one_out(pure(50));
    world.at(30_000);
    let lease = world.trial(1).unwrap().0;
    world.answer(lease, GOOD);
    world.at(50_000).fail(1, 10);
    world.answer(lease, GOOD);
    assert_eq!(world.out(), [1]);
}

#[test]
fn failing_checks_do_not_move_the_cap_but_the_last_passing_one_stays() {
    let mut world = World::new(pure(100), 3);
    world.check(2, false);
    world.check(3, false);
    assert_eq!(world.detector.summary().numbers.cap, 2);
    world.fail(1, 10);
    assert_eq!(
        (world.out(), world.causes()),
        (vec![], vec![Cause::LastInstance])
    );
    // When the checks of none pass, all do.
    world.check(1, false);
    world.fail(1, 1);
    assert_eq!(world.out(), [1]);
}

#[test]
fn the_worst_goes_first_at_one_evaluation() {
    let mut world = World::new(pure(50), 3);
    // Both have too small a sample until the successes make it one.
    world.fail(1, 8);
    world.fail(2, 9);
    world.good(1, 2);
    world.good(2, 1);
    world.at(1_000);
    assert_eq!(
        (world.out(), world.causes()),
        (vec![2], vec![Cause::RemovalRate])
    );
}

#[test]
fn most_turning_abnormal_within_a_window_is_told_once() {
    let mut world = World::new(policy(50), 4);
    for number in 1..=4 {
        world.at(u64::from(number) * 500).fail(number, 10);
    }
    let told = world.log.iter().filter_map(|(_, effect)| match effect {
        Effect::CorrelatedFailure { turned, .. } => Some(*turned),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [3]);
}

#[test]
fn calm_after_suppression_is_a_hint_for_the_ejected() {
    let mut world = World::new(pure(34), 3);
    world.fail(1, 10);
    world.fail_trials(1, 3);
    assert_eq!((world.out(), world.k(1)), (vec![1], 4));
    world.at(210_000).fail(2, 10);
    assert_eq!(world.causes(), [Cause::RemovalRate]);
    // Abnormal until its failures have left the window at 220 s, then calm for a window.
    world.at(229_999);
    assert_eq!(world.trial(1), None);
    let seen = world.log.len();
    world.at(231_000);
    let hinted: Vec<bool> = world
        .starts_since(seen)
        .iter()
        .map(|start| start.hinted)
        .collect();
    assert_eq!(hinted, [true]);
}

#[test]
fn a_regular_trial_that_falls_due_during_a_hinted_one_is_replaced() {
    let mut world = one_out(Policy {
        probe: ProbeKind::Active,
        ..pure(50)
    });
    world.fail_trials(1, 1);
    assert_eq!(world.next_trial(1), 90_000);
    world.at(89_500).input(Input::Hint { address: id(1) });
    assert!(world.trial(1).is_some());
    world.at(90_200).answer_trial(1, NETWORK);
    assert_eq!((world.k(1), world.next_trial(1)), (2, 150_200));
}

#[test]
fn policies_that_go_or_change_return_what_they_ejected() {
    for (next, by) in [
        (None, RestoredBy::PolicyDisabled),
        (Some(Mode::Disabled), RestoredBy::PolicyDisabled),
        (Some(Mode::Observe), RestoredBy::PolicyChange),
    ] {
        let mut world = one_out(Policy {
            flap_memory: 5,
            ..pure(50)
        });
        let policy = next.map(|mode| Arc::new(Policy { mode, ..pure(50) }));
        world.input(Input::Policy(policy));
        assert_eq!(world.restores(), [(0, id(1), by)]);
        let remembered = world.view(1).memory.is_some();
        assert_eq!(remembered, by == RestoredBy::PolicyChange);
        assert_eq!(world.view(1).ramp_start, Some(Timestamp::ZERO));
    }
}

#[test]
fn a_changed_window_starts_empty_and_raising_moves_nothing() {
    let mut world = one_out(pure(50));
    world.fail(2, 9);
    let window = Duration::from_secs(20);
    let unit = Duration::from_secs(60);
    let changed = Policy {
        statistics_window: window,
        recovery_detection_unit_time: unit,
        ..pure(50)
    };
    world.at(1_000).reload(changed);
    assert_eq!(
        (world.view(2).evidence.calls, world.next_trial(1)),
        (0, 30_000)
    );
}

#[test]
fn observed_trials_are_decided_by_answers_sent_when_due() {
    let mut world = World::new(
        Policy {
            mode: Mode::Observe,
            ..pure(50)
        },
        3,
    );
    world.fail(1, 10);
    world.at(30_500).outcome_sent(1, GOOD, 29_999);
    assert_eq!(world.k(1), 1);
    world.outcome_sent(1, NETWORK, 30_000);
    assert_eq!((world.k(1), world.next_trial(1)), (2, 90_500));
    world.at(90_500).outcome(1, IGNORED);
    world.outcome(1, GOOD);
    assert_eq!(world.view(1).state, StateView::In);
    assert_eq!(
        world.count(|effect| matches!(effect, Effect::WouldRestore(_))),
        1
    );
    assert_eq!(world.starts_since(0).len(), 0);
}

#[test]
fn manual_ejections_obey_the_last_instance_and_end_at_their_time() {
    let mut world = World::new(policy(34), 3);
    command(&mut world, 1, OverrideKind::Eject, Some(10_000), false);
    command(&mut world, 2, OverrideKind::Eject, None, false);
    command(&mut world, 2, OverrideKind::Eject, None, true);
    command(&mut world, 3, OverrideKind::Eject, None, true);
    assert_eq!(world.out(), [1, 2]);
    assert_eq!(world.detector.summary().numbers.out, 1);
    let refused = world.log.iter().filter_map(|(_, effect)| match effect {
        Effect::OverrideRefused { refusal, .. } => Some(*refusal),
        _ => None,
    });
    assert_eq!(
        refused.collect::<Vec<_>>(),
        [Refusal::CapFull, Refusal::LastInstance]
    );
    world.at(20_000);
    assert_eq!(
        world.restores(),
        [(10_000, id(1), RestoredBy::OverrideExpired)]
    );
    assert_eq!(world.starts_since(0).len(), 0);
    world.input(Input::Policy(None));
    assert_eq!(world.out(), [2]);
    command(&mut world, 2, OverrideKind::Clear, None, false);
    assert!(world.out().is_empty());
}

#[test]
fn a_held_instance_stays_and_a_disabled_one_is_not_counted() {
    let mut world = World::new(policy(50), 4);
    command(&mut world, 1, OverrideKind::Hold, Some(5_000), false);
    world.fail(1, 10);
    assert_eq!((world.out(), world.causes()), (vec![], vec![Cause::Hold]));
    world.at(5_000);
    assert_eq!(world.out(), [1]);
    command(&mut world, 2, OverrideKind::Disable, None, false);
    assert_eq!(world.detector.summary().numbers.n, 3);
    world.remove(2);
    world.add(2, Some("new"));
    assert!(!world.view(2).routable);
    command(&mut world, 2, OverrideKind::Enable, None, false);
    assert_eq!(world.detector.summary().numbers.n, 4);
}

#[test]
fn ten_thousand_instances_without_failures_cost_no_timer() {
    let facts = UpstreamFacts::default();
    let policy = Arc::new(policy(50));
    let mut detector = Detector::new(policy, facts, Jitter::none(), Timestamp::ZERO);
    let address = |n: u32| {
        outrigger::endpoint::Address::parse(&format!("10.{}.{}.1:80", n / 250, n % 250)).unwrap()
    };
    let list = (0..10_000).map(|n| outrigger::outlier::RoutableEndpoint::new(address(n)));
    detector.handle(Input::Endpoints(list.collect()), Timestamp::ZERO);
    assert_eq!(detector.next_deadline(), None);
    assert_eq!(detector.summary().numbers.cap, 5_000);
}

#[test]
fn a_forced_ejection_that_is_ordered_again_without_force_stays_beside_the_cap() {
    let mut world = World::new(policy(34), 3);
    command(&mut world, 1, OverrideKind::Eject, Some(60_000), false);
    command(&mut world, 2, OverrideKind::Eject, Some(10_000), true);
    command(&mut world, 2, OverrideKind::Eject, Some(30_000), false);
    assert_eq!(world.detector.summary().numbers.out, 1);
    let StateView::EjectedByOperator { forced, .. } = world.view(2).state else {
        panic!("{:?}", world.view(2).state);
    };
    assert!(forced);
    // The new time holds.
    world.at(20_000);
    assert_eq!(world.out(), [1, 2]);
    world.at(30_000);
    assert_eq!(world.out(), [1]);
}

#[test]
fn one_that_failed_its_checks_and_comes_back_passes_until_its_first_check() {
    let mut world = World::new(policy(100), 2);
    world.check(2, false);
    assert!(!world.detector.instance(&id(2)).unwrap().check_passes);
    let all = world.endpoints.clone();
    world.endpoints.truncate(1);
    world.publish();
    world.endpoints = all;
    world.publish();
    // A good first check is no news, so nothing else would tell.
    assert_eq!(world.detector.summary().passing, 2);
    assert!(world.detector.instance(&id(2)).unwrap().check_passes);
}
