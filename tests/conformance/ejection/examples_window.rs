//! Worked examples: what the window counts and when its rate decides.

use std::time::Duration;

use outrigger::outlier::classify::{classify_client_gone, classify_grpc, classify_http};
use outrigger::outlier::detector::Trigger;
use outrigger::outlier::policy::{ExceptionType, Policy};

use super::world::{BUSINESS, GOOD, IGNORED, NETWORK, World, policy, pure};

fn both(policy: Policy) -> Policy {
    Policy {
        exception_type: ExceptionType::NetworkAndBusiness,
        ..policy
    }
}

#[test]
fn example_02_six_of_ten_failed() {
    let mut world = World::new(pure(50), 3);
    world.good(1, 4);
    world.fail(1, 6);
    assert_eq!(world.out(), [1]);
    assert_eq!(world.ejections()[0].trigger, Trigger::ErrorRate);
}

#[test]
fn example_03_five_of_ten_is_not_strictly_above() {
    let mut world = World::new(pure(50), 3);
    world.good(1, 5);
    world.fail(1, 5);
    world.at(60_000);
    assert!(world.out().is_empty());
}

#[test]
fn example_11_nine_calls_are_not_judged() {
    let mut world = World::new(pure(50), 3);
    world.fail(1, 9);
    assert!(world.out().is_empty());
    world.fail(1, 1);
    assert_eq!(world.out(), [1]);
}

#[test]
fn example_12_the_dubbo_profile_needs_fifteen_calls() {
    let dubbo = Policy {
        statistics_window: Policy::builtin(true).statistics_window,
        ..pure(50)
    };
    let mut world = World::new(dubbo, 3);
    world.good(1, 6);
    world.fail(1, 8);
    assert!(world.out().is_empty());
    let mut world = World::new(
        Policy {
            statistics_window: Duration::from_secs(15),
            ..pure(50)
        },
        3,
    );
    world.good(1, 7);
    world.fail(1, 8);
    assert_eq!(world.out(), [1]);
}

#[test]
fn example_21_client_cancels_are_nothing() {
    let mut world = World::new(policy(50), 3);
    for _ in 0..20 {
        let class = classify_client_gone(Some(Duration::from_millis(900)), Duration::from_secs(5));
        world.outcome(1, class);
    }
    let evidence = world.view(1).evidence;
    assert_eq!(
        (evidence.calls, evidence.failures, evidence.streak),
        (0, 0, 0)
    );
}

#[test]
fn example_22_bulkhead_refusals_are_nothing() {
    let mut world = World::new(policy(50), 3);
    for _ in 0..50 {
        world.outcome(1, IGNORED);
    }
    world.good(1, 10);
    let evidence = world.view(1).evidence;
    assert_eq!((evidence.failures, evidence.calls), (0, 10));
}

#[test]
fn example_23_grpc_status_in_trailers_is_business() {
    let policy = both(policy(50));
    let failed = classify_grpc(Some(13), &policy);
    assert_eq!(failed, BUSINESS);
    let mut world = World::new(policy, 3);
    world.good(1, 4);
    for _ in 0..6 {
        world.outcome(1, failed);
    }
    assert_eq!(world.out(), [1]);
}

#[test]
fn example_24_under_network_a_500_is_no_failure() {
    let policy = policy(50);
    let class = classify_http(500, &policy);
    let mut world = World::new(policy, 3);
    for _ in 0..10 {
        world.outcome(1, class);
    }
    assert!(world.out().is_empty());
    let evidence = world.view(1).evidence;
    assert_eq!(
        (evidence.calls, evidence.business, evidence.failures),
        (10, 10, 0)
    );
}

#[test]
fn example_25_every_attempt_is_charged_to_its_instance() {
    let policy = both(policy(50));
    let [server_error, ok] = [500, 200].map(|status| classify_http(status, &policy));
    let mut world = World::new(policy, 3);
    for (number, class) in [(1, server_error), (2, server_error), (3, ok)] {
        world.outcome(number, class);
    }
    let seen = |number| {
        let evidence = world.view(number).evidence;
        (evidence.calls, evidence.failures)
    };
    assert_eq!([seen(1), seen(2), seen(3)], [(1, 1), (1, 1), (1, 0)]);
}

#[test]
fn example_26_alternating_failures_cross_a_threshold_of_forty() {
    let mut world = World::new(
        Policy {
            error_rate_threshold_bp: 4_000,
            ..pure(50)
        },
        3,
    );
    for _ in 0..10 {
        world.outcome(1, NETWORK);
        world.outcome(1, GOOD);
    }
    world.at(1_000);
    assert_eq!(world.out(), [1]);
}

#[test]
fn example_42_the_first_four_calls_are_never_judged() {
    for limit in [0, 100] {
        let mut world = World::new(
            Policy {
                lower_qps_limit_milli: limit,
                ..policy(50)
            },
            3,
        );
        world.fail(1, 4);
        assert!(world.out().is_empty());
        world.fail(1, 1);
        assert_eq!(world.out(), [1]);
    }
}

#[test]
fn example_44_an_upload_that_is_broken_off_and_a_wait_for_a_head() {
    let limit = Duration::from_secs(5);
    assert_eq!(classify_client_gone(None, limit), IGNORED);
    assert_eq!(
        classify_client_gone(Some(Duration::from_secs(4)), limit),
        NETWORK
    );
}
