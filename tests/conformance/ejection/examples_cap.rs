//! Worked examples: how many may be out.

use outrigger::outlier::detector::{Cause, Effect, RestoredBy};
use outrigger::outlier::policy::{Mode, Policy};

use super::world::{World, id, policy, pure};

/// Ten failed calls make an instance abnormal under the defaults.
fn turn_abnormal(world: &mut World, numbers: impl IntoIterator<Item = u32>) {
    for number in numbers {
        world.fail(number, 10);
    }
}

#[test]
fn example_01_six_instances_sixty_percent_five_abnormal() {
    let mut world = World::new(pure(60), 6);
    turn_abnormal(&mut world, 1..=5);
    assert_eq!(world.out(), [1, 2, 3]);
    assert_eq!(world.causes(), [Cause::RemovalRate; 2]);
}

#[test]
fn example_04_ten_percent_of_five_is_none() {
    let mut world = World::new(pure(10), 5);
    turn_abnormal(&mut world, 1..=2);
    assert!(world.out().is_empty());
    assert_eq!(world.detector.summary().numbers.cap, 0);
    assert_eq!(
        world.count(|effect| matches!(effect, Effect::CapZero(_))),
        1
    );
}

#[test]
fn example_05_ten_percent_of_ten_is_one() {
    let mut world = World::new(pure(10), 10);
    turn_abnormal(&mut world, 1..=3);
    assert_eq!(world.out(), [1]);
}

#[test]
fn example_06_fifty_percent_of_three_is_one() {
    let mut world = World::new(pure(50), 3);
    turn_abnormal(&mut world, 1..=3);
    assert_eq!(world.out(), [1]);
}

#[test]
fn example_07_sixty_seven_percent_of_three_is_two() {
    let mut world = World::new(pure(67), 3);
    turn_abnormal(&mut world, 1..=3);
    assert_eq!(world.out(), [1, 2]);
}

#[test]
fn example_08_a_hundred_percent_keeps_the_last() {
    let mut world = World::new(pure(100), 4);
    turn_abnormal(&mut world, 1..=4);
    assert_eq!(world.out(), [1, 2, 3]);
    assert_eq!(world.causes(), [Cause::LastInstance]);
}

#[test]
fn example_09_a_single_instance_stays() {
    let mut world = World::new(pure(100), 1);
    turn_abnormal(&mut world, 1..=1);
    assert!(world.out().is_empty());
}

#[test]
fn example_10_seventy_percent_of_ninety_is_sixty_three() {
    let mut world = World::new(pure(70), 90);
    turn_abnormal(&mut world, 1..=90);
    assert_eq!(world.out().len(), 63);
}

fn three_of_six_out() -> World {
    let mut world = World::new(pure(60), 6);
    turn_abnormal(&mut world, 1..=3);
    assert_eq!(world.out(), [1, 2, 3]);
    world
}

#[test]
fn example_13_an_ejected_one_that_leaves_frees_its_slot() {
    let mut world = three_of_six_out();
    world.remove(1);
    let numbers = world.detector.summary().numbers;
    assert_eq!((numbers.n, numbers.cap, numbers.out), (5, 3, 2));
    turn_abnormal(&mut world, 4..=5);
    assert_eq!(world.out(), [2, 3, 4]);
}

fn two_healthy_ones_left() -> World {
    let mut world = three_of_six_out();
    world.remove(5);
    world.remove(6);
    world
}

#[test]
fn example_14_a_shrunken_set_forces_nobody_back() {
    let mut world = two_healthy_ones_left();
    let numbers = world.detector.summary().numbers;
    assert_eq!((numbers.n, numbers.cap, numbers.out), (4, 2, 3));
    turn_abnormal(&mut world, 4..=4);
    assert_eq!(world.out(), [1, 2, 3]);
    assert!(world.restores().is_empty());
}

#[test]
fn example_15_the_last_routable_one_leaves() {
    let mut world = two_healthy_ones_left();
    world.remove(4);
    assert_eq!(world.restores(), [(0, id(1), RestoredBy::LastInstance)]);
    assert_eq!(world.out(), [2, 3]);
}

#[test]
fn example_29_observe_would_do_the_same() {
    let mut world = World::new(
        Policy {
            mode: Mode::Observe,
            ..pure(60)
        },
        6,
    );
    turn_abnormal(&mut world, 1..=5);
    assert!((1..=6).all(|number| !world.view(number).state.is_out()));
    assert_eq!(world.count(|effect| matches!(effect, Effect::Eject(_))), 0);
    assert_eq!(
        world.count(|effect| matches!(effect, Effect::WouldEject(_))),
        3
    );
    assert_eq!(
        world.count(|effect| matches!(effect, Effect::WouldSuppress(_))),
        2
    );
}

#[test]
fn example_34_a_dead_one_takes_the_place_of_a_mildly_bad_one() {
    let mut world = World::new(pure(50), 3);
    // 13 of 25 calls, never above one half before the last.
    let mildly_bad = |world: &mut World| {
        for _ in 0..12 {
            world.good(1, 1);
            world.fail(1, 1);
        }
        world.fail(1, 1);
    };
    mildly_bad(&mut world);
    assert_eq!(world.out(), [1]);
    assert_eq!(world.ejections()[0].evidence.rate_bp, 5_200);
    world.at(1_000).fail(2, 10);
    assert_eq!(world.restores(), [(1_000, id(1), RestoredBy::Exchanged)]);
    assert_eq!(world.out(), [2]);
    world.at(15_000);
    mildly_bad(&mut world);
    assert_eq!(world.out(), [2]);
    assert_eq!(world.causes(), [Cause::RemovalRate]);
    assert_eq!(world.restores().len(), 1);
}

#[test]
fn example_41_one_of_two_stays() {
    let mut world = World::new(policy(50), 2);
    turn_abnormal(&mut world, 1..=2);
    assert_eq!(world.out(), [1]);
    assert_eq!(world.causes(), [Cause::LastInstance]);
}
