//! Laws that hold for every history: the cap, the last instance, the schedule.

use outrigger::outlier::detector::{Effect, StateView};
use outrigger::outlier::policy::{Policy, ProbeKind};
use outrigger::outlier::{Input, RoutableEndpoint};
use proptest::prelude::*;

use super::world::{NETWORK, World, id, policy};

/// One step: the endpoints that are there (bits), those of them that are routable, one that fails.
type Step = (u16, u16, u32, u64);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((any::<u16>(), any::<u16>(), 1u32..=8, 0u64..3_000), 1..40)
}

proptest! {
    #[test]
    fn the_cap_holds_after_every_sequence_of_endpoint_changes(
        steps in steps(), rate in 0u32..=100, min_ejectable in 0u32..4,
    ) {
        let mut world = World::new(Policy { min_ejectable, ..policy(rate) }, 0);
        let mut n = 0;
        for (there, routable, victim, gap) in steps {
            let at = world.now + gap;
            world.at(at);
            let bit = |bits: u16, number: u32| bits & (1 << number) != 0;
            world.endpoints = (1..=8)
                .filter(|number| bit(there, *number))
                .map(|number| RoutableEndpoint {
                    routable: bit(routable, number),
                    ..RoutableEndpoint::new(id(number))
                })
                .collect();
            // What was due before the change belongs to the former set.
            check_ejections(&world, 0, n, rate, min_ejectable);
            world.log.clear();
            world.publish();
            n = world.endpoints.iter().filter(|endpoint| endpoint.routable).count();
            let seen = world.log.len();
            world.fail(victim, 10);
            check_ejections(&world, seen, n, rate, min_ejectable);
            let out = world.endpoints.iter().filter(|endpoint| {
                let view = world.detector.instance(&endpoint.address).unwrap();
                endpoint.routable && view.state != StateView::In
            });
            prop_assert!(n == 0 || out.count() < n, "all are out");
        }
    }

    #[test]
    fn trials_follow_the_schedule(answers in prop::collection::vec(0u64..900, 1..60), max in 1u32..25) {
        let policy = Policy { max_recovery_checks: max, probe: ProbeKind::Active, ..policy(50) };
        let mut world = World::new(policy, 3);
        world.fail(1, 10);
        let mut due = 30_000;
        for (failed, wait) in answers.iter().enumerate() {
            prop_assert_eq!(world.next_trial(1), due);
            world.at(due - 1);
            prop_assert_eq!(world.trial(1), None);
            world.at(due + wait).answer_trial(1, NETWORK);
            let k = u64::try_from(failed + 2).unwrap().min(u64::from(max));
            prop_assert_eq!(u64::from(world.k(1)), k);
            due = due + wait + k * 30_000;
        }
        world.input(Input::Tick);
        prop_assert_eq!(world.restores().len(), 0);
    }
}

fn check_ejections(world: &World, from: usize, n: usize, rate: u32, min_ejectable: u32) {
    for (_, effect) in world.log.iter().skip(from) {
        let Effect::Eject(ejected) = effect else {
            continue;
        };
        let floor = n * usize::try_from(rate).unwrap() / 100;
        let limit = floor
            .max(usize::try_from(min_ejectable).unwrap())
            .min(n - 1);
        assert!(ejected.numbers.out < limit, "{ejected:?}");
        assert_eq!((ejected.numbers.n, ejected.numbers.cap), (n, limit));
    }
}
