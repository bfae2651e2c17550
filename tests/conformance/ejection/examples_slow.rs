//! The slow trigger: peers decide what is slow, errors come first, a trial must be fast enough.

use std::time::Duration;

use outrigger::outlier::Input;
use outrigger::outlier::detector::{Cause, Effect, Ejected, RestoredBy, Trigger};
use outrigger::outlier::policy::{Mode, Policy, Slow, SlowMode};
use outrigger::outlier::times::Times;

use super::world::{GOOD, World, id, policy};

/// Half may go; slow above 3 x the peers and 200 ms, from 20 answers on.
fn enforced() -> Policy {
    Policy {
        slow: Some(Slow {
            mode: SlowMode::Enforce,
            ..Slow::DEFAULT
        }),
        ..policy(50)
    }
}

fn observed() -> Policy {
    Policy {
        slow: Some(Slow::DEFAULT),
        ..policy(50)
    }
}

impl World {
    /// Good answers that took this long.
    fn took(&mut self, number: u32, millis: u64, count: u32) {
        let mut times = Times::default();
        times.add(Duration::from_millis(millis), count);
        let address = id(number);
        self.input(Input::Times { address, times });
        self.good(number, count);
    }

    fn would_eject(&self) -> Vec<&Ejected> {
        let would = |(_, effect): &'_ (u64, Effect)| matches!(effect, Effect::WouldEject(_));
        let found = self.log.iter().filter(|entry| would(entry));
        found
            .filter_map(|(_, effect)| match effect {
                Effect::WouldEject(ejected) => Some(&**ejected),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn an_instance_that_is_much_slower_than_its_peers_is_ejected_at_a_bucket_close() {
    let mut world = World::new(enforced(), 4);
    for number in 1..=3 {
        world.took(number, 100, 20);
    }
    world.took(4, 900, 20);
    assert_eq!(world.out(), [] as [u32; 0], "a bucket close judges");
    world.at(1_000);
    assert_eq!(world.out(), [4]);
    let ejections = world.ejections();
    assert_eq!(ejections[0].trigger, Trigger::Slow);
    let slow = ejections[0].evidence.slow.unwrap();
    assert_eq!((slow.calls, slow.measured_peers), (20, 3));
    // Slots are a fifth wide.
    assert!(slow.median > Duration::from_millis(760) && slow.median < Duration::from_millis(1_030));
    assert!(slow.peers > Duration::from_millis(80) && slow.peers < Duration::from_millis(120));
    assert_eq!(slow.limit, slow.peers * 3);
}

#[test]
fn below_the_floor_nobody_is_slow() {
    let mut world = World::new(enforced(), 4);
    for number in 1..=3 {
        world.took(number, 2, 50);
    }
    world.took(4, 150, 50);
    world.at(20_000);
    assert_eq!(world.out(), [] as [u32; 0]);
}

#[test]
fn too_few_answers_or_too_few_peers_say_nothing() {
    let mut few_answers = World::new(enforced(), 5);
    for number in 1..=4 {
        few_answers.took(number, 100, 50);
    }
    few_answers.took(5, 5_000, 19);
    few_answers.at(1_000);
    assert_eq!(few_answers.out(), [] as [u32; 0]);
    few_answers.took(5, 5_000, 1);
    few_answers.at(2_000);
    assert_eq!(few_answers.out(), [5]);

    let mut few_peers = World::new(enforced(), 4);
    for number in 1..=2 {
        few_peers.took(number, 100, 50);
    }
    few_peers.took(3, 100, 19);
    few_peers.took(4, 5_000, 50);
    few_peers.at(1_000);
    assert_eq!(few_peers.out(), [] as [u32; 0], "two peers were measured");
}

#[test]
fn where_all_are_slow_none_is() {
    let mut world = World::new(enforced(), 5);
    for number in 1..=5 {
        world.took(number, 4_000, 50);
    }
    world.at(1_000);
    assert_eq!(world.out(), [] as [u32; 0]);
}

#[test]
fn the_cap_holds_for_the_slow_and_errors_go_first() {
    let only_one = Policy {
        instance_removal_rate_threshold_bp: 2_000,
        ..enforced()
    };
    let mut world = World::new(only_one, 7);
    for number in 1..=5 {
        world.took(number, 100, 30);
    }
    world.took(6, 2_000, 30);
    world.took(7, 2_000, 30);
    world.at(1_000);
    assert_eq!(world.out(), [6], "the same rate and failures: by id");
    assert_eq!(world.causes(), [Cause::RemovalRate]);

    // A dead one takes the slot of a slow one.
    world.fail(1, 12);
    assert_eq!(world.out(), [1]);
    let restores = world.restores();
    assert_eq!(restores[0].1, id(6));
    assert_eq!(restores[0].2, RestoredBy::Exchanged);
}

#[test]
fn a_trial_of_a_slow_one_must_be_fast_enough() {
    let mut world = World::new(enforced(), 4);
    for number in 1..=3 {
        world.took(number, 100, 30);
    }
    world.took(4, 900, 30);
    world.at(1_000);
    assert_eq!(world.out(), [4]);

    let mut trial = |at: u64, takes: u64| {
        world.at(at - 500);
        world.good(1, 1);
        world.input(Input::RequestSeen { retryable: true });
        world.at(at);
        let started = world.request().expect("a trial is due");
        world.at(at + takes);
        world.answer(started.lease, GOOD);
    };
    trial(31_000, 800);
    trial(31_800 + 60_000, 100);
    let failed = world.log.iter().find_map(|(at, effect)| match effect {
        Effect::TrialFailed(failed) => Some((*at, failed.k, failed.slow.unwrap())),
        _ => None,
    });
    let (at, k, (time, limit)) = failed.unwrap();
    assert_eq!((at, k), (31_800, 2));
    assert_eq!(time, Duration::from_millis(800));
    // The peers have no measured answers now: the limit of the ejection holds.
    assert!(limit > Duration::from_millis(240) && limit < Duration::from_millis(360));
    assert_eq!(world.restores(), [(91_900, id(4), RestoredBy::Probe)]);
}

#[test]
fn a_trial_of_one_that_failed_may_take_its_time() {
    let mut world = World::new(enforced(), 4);
    world.fail(4, 12);
    assert_eq!(world.out(), [4]);
    world.at(29_500);
    world.input(Input::RequestSeen { retryable: true });
    world.at(30_000);
    let started = world.request().expect("a trial is due");
    world.at(30_900);
    world.answer(started.lease, GOOD);
    assert_eq!(world.out(), [] as [u32; 0]);
}

#[test]
fn unwritten_it_is_only_observed_and_takes_no_slot() {
    let mut world = World::new(observed(), 4);
    for number in 1..=3 {
        world.took(number, 100, 30);
    }
    world.took(4, 900, 30);
    world.at(1_000);
    assert_eq!(world.out(), [] as [u32; 0]);
    let would = world.would_eject();
    assert_eq!(would.len(), 1);
    assert_eq!(
        (would[0].trigger, would[0].numbers.mode),
        (Trigger::Slow, Mode::Observe)
    );
    assert!(would[0].evidence.slow.is_some());

    // Said once while it lasts.
    for second in 2..20 {
        for number in 1..=3 {
            world.took(number, 100, 5);
        }
        world.took(4, 900, 5);
        world.at(second * 1_000);
    }
    assert_eq!(world.would_eject().len(), 1);
    assert!(world.view(4).evidence.slow.is_some());

    // Both slots are free for those that fail.
    world.fail(1, 12);
    world.fail(2, 12);
    assert_eq!(world.out(), [1, 2]);
}

#[test]
fn in_a_policy_that_observes_a_slow_one_would_go_and_come_back() {
    let shadow = Policy {
        mode: Mode::Observe,
        ..enforced()
    };
    let mut world = World::new(shadow, 4);
    let second = |world: &mut World, at: u64, millis: u64| {
        for number in 1..=3 {
            world.took(number, 100, 5);
        }
        world.took(4, millis, 5);
        world.at(at * 1_000);
    };
    for at in 1..=10 {
        second(&mut world, at, 900);
    }
    assert_eq!(world.would_eject().len(), 1);
    assert_eq!(world.would_eject()[0].trigger, Trigger::Slow);
    let back = |world: &World| world.count(|e| matches!(e, Effect::WouldRestore(_)));
    for at in 11..=40 {
        second(&mut world, at, 900);
    }
    assert_eq!(back(&world), 0, "its answers are as slow as before");
    for at in 41..=120 {
        second(&mut world, at, 100);
    }
    assert_eq!(back(&world), 1);
}

#[test]
fn a_reload_without_it_forgets_who_was_slow() {
    let mut world = World::new(observed(), 4);
    for number in 1..=3 {
        world.took(number, 100, 30);
    }
    world.took(4, 900, 30);
    world.at(1_000);
    assert!(world.view(4).evidence.slow.is_some());
    world.reload(policy(50));
    world.at(2_000);
    assert!(world.view(4).evidence.slow.is_none());
    assert!(world.view(4).median.is_none());
}
