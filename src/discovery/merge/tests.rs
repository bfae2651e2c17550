use super::*;
use proptest::prelude::*;

fn endpoint(n: u16) -> Endpoint {
    Endpoint::new(Address::from_parts("10.0.0.1", n).unwrap())
}

fn set(ports: impl IntoIterator<Item = u16>) -> EndpointSet {
    EndpointSet {
        endpoints: ports.into_iter().map(endpoint).collect::<Vec<_>>().into(),
        health_unknown: false,
    }
}

fn policy(on_empty: OnEmpty) -> EmptyPolicy {
    EmptyPolicy {
        on_empty,
        grace: Duration::from_secs(30),
        answers: 3,
        shrink_percent: 50,
    }
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

fn is_hold(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Hold { .. })
}

#[test]
fn one_entry_per_address_and_the_healthiest_wins() {
    let mut sick = endpoint(1);
    sick.healthy = false;
    let mut disabled = endpoint(2);
    disabled.enabled = false;
    let kept = dedupe(vec![sick, endpoint(2), endpoint(1), disabled]);
    assert_eq!(kept, vec![endpoint(1), endpoint(2)]);
}

#[test]
fn the_winner_among_equals_does_not_depend_on_the_order() {
    let [mut a, mut b] = [endpoint(1), endpoint(1)];
    a.registration = Some("a".into());
    b.registration = Some("b".into());
    assert_eq!(dedupe(vec![a.clone(), b.clone()]), dedupe(vec![b, a]));
}

#[test]
fn row_05_order_alone_is_no_change() {
    let mut guard = Guard::new(policy(OnEmpty::Hold));
    assert_eq!(guard.offer(set([1, 2]), at(0)), Verdict::Apply);
    assert_eq!(guard.offer(set([2, 1]), at(1)), Verdict::Unchanged);
    let mut heavier = set([1, 2]).endpoints.to_vec();
    heavier[0].weight = crate::endpoint::Weight::ZERO;
    let heavier = EndpointSet {
        endpoints: heavier.into(),
        health_unknown: false,
    };
    assert_eq!(guard.offer(heavier.clone(), at(2)), Verdict::Apply);
    let unknown = EndpointSet {
        health_unknown: true,
        ..heavier
    };
    assert_eq!(guard.offer(unknown, at(3)), Verdict::Apply);
}

#[test]
fn row_03_empty_needs_both_three_answers_and_thirty_seconds() {
    let mut guard = Guard::new(policy(OnEmpty::Hold));
    guard.offer(set([1]), at(0));
    assert!(is_hold(guard.offer(set([]), at(10))));
    assert!(is_hold(guard.offer(set([]), at(11))));
    assert!(
        is_hold(guard.offer(set([]), at(12))),
        "three answers are not enough"
    );
    assert_eq!(guard.current(), Some(&set([1])));
    assert_eq!(guard.held().unwrap().answers, 3);
    assert_eq!(guard.offer(set([]), at(40)), Verdict::Apply);
    assert_eq!(guard.current(), Some(&set([])));
    assert_eq!(guard.held(), None);

    let mut guard = Guard::new(policy(OnEmpty::Hold));
    guard.offer(set([1]), at(0));
    guard.offer(set([]), at(10));
    assert!(
        is_hold(guard.offer(set([]), at(100))),
        "thirty seconds are not enough"
    );
    assert_eq!(guard.offer(set([]), at(101)), Verdict::Apply);
}

#[test]
fn row_02_a_good_answer_ends_the_hold_and_the_next_one_starts_anew() {
    let mut guard = Guard::new(policy(OnEmpty::Hold));
    guard.offer(set([1]), at(0));
    for second in [10, 20] {
        assert!(is_hold(guard.offer(set([]), at(second))));
    }
    assert_eq!(guard.offer(set([1]), at(25)), Verdict::Unchanged);
    let again = guard.offer(set([]), at(60));
    assert!(matches!(again, Verdict::Hold { first: true, .. }));
    assert_eq!(guard.held().unwrap().since, at(60));
}

#[test]
fn a_first_empty_answer_is_an_answer() {
    let mut guard = Guard::new(policy(OnEmpty::Hold));
    assert_eq!(guard.offer(set([]), at(0)), Verdict::Apply);
    assert_eq!(guard.offer(set([]), at(1)), Verdict::Unchanged);
    assert_eq!(guard.offer(set([1]), at(2)), Verdict::Apply);
}

#[test]
fn obey_and_never_do_what_they_say() {
    let mut guard = Guard::new(policy(OnEmpty::Obey));
    guard.offer(set(1..=10), at(0));
    assert_eq!(guard.offer(set([1]), at(1)), Verdict::Apply);
    assert_eq!(guard.offer(set([]), at(2)), Verdict::Apply);

    let mut guard = Guard::new(policy(OnEmpty::Never));
    guard.offer(set(1..=10), at(0));
    assert_eq!(guard.offer(set([1]), at(1)), Verdict::Apply);
    for second in 2..200 {
        assert!(is_hold(guard.offer(set([]), at(second))));
    }
}

#[test]
fn row_04_a_shrink_is_held_above_the_percentage_and_from_three_on() {
    for (before, after, held) in [
        (10, 5, false),
        (10, 4, true),
        (4, 1, true),
        (3, 1, false),
        (2, 1, false),
        (5, 2, true),
    ] {
        let mut guard = Guard::new(policy(OnEmpty::Hold));
        guard.offer(set(1..=before), at(0));
        let verdict = guard.offer(set(1..=after), at(1));
        assert_eq!(is_hold(verdict), held, "{before} -> {after}");
    }
}

#[test]
fn additions_are_applied_while_a_shrink_is_held() {
    let mut guard = Guard::new(policy(OnEmpty::Hold));
    guard.offer(set(1..=10), at(0));
    let verdict = guard.offer(set([1, 2, 11]), at(1));
    assert!(matches!(
        verdict,
        Verdict::Hold {
            updated: true,
            cause: HoldCause::Shrink,
            ..
        }
    ));
    assert_eq!(guard.current(), Some(&set(1..=11)));
    let verdict = guard.offer(set([1, 2, 11]), at(20));
    assert!(matches!(
        verdict,
        Verdict::Hold {
            updated: false,
            first: false,
            ..
        }
    ));
    assert_eq!(guard.offer(set([1, 2, 11]), at(31)), Verdict::Apply);
    assert_eq!(guard.current(), Some(&set([1, 2, 11])));
}

proptest! {
    #[test]
    fn deduping_keeps_every_address_once(ports in prop::collection::vec(1u16..20, 0..40)) {
        let kept = dedupe(ports.iter().map(|p| endpoint(*p)).collect());
        let mut wanted = ports;
        wanted.sort_unstable();
        wanted.dedup();
        let mut got: Vec<_> = kept.iter().map(|e| e.address.socket().unwrap().port()).collect();
        got.sort_unstable();
        prop_assert_eq!(got, wanted);
    }

    /// Whatever comes: under `hold` a set in use that has endpoints is never replaced by an empty one
    /// before `grace` has passed since the first empty answer in a row, nor before three of them.
    #[test]
    fn nothing_is_emptied_without_confirmation(
        steps in prop::collection::vec((0u64..20, prop::collection::vec(1u16..30, 0..12)), 1..60),
    ) {
        let mut guard = Guard::new(policy(OnEmpty::Hold));
        let (mut now, mut row, mut row_start) = (0, 0u32, 0);
        for (pause, ports) in steps {
            now += pause;
            let offered = EndpointSet {
                endpoints: dedupe(ports.into_iter().map(endpoint).collect()).into(),
                health_unknown: false,
            };
            let before = guard.current().cloned();
            if offered.endpoints.is_empty() {
                if row == 0 {
                    row_start = now;
                }
                row += 1;
            } else {
                row = 0;
            }
            let verdict = guard.offer(offered.clone(), at(now));
            let had = before.as_ref().is_some_and(|set| !set.endpoints.is_empty());
            let emptied = guard.current().unwrap().endpoints.is_empty();
            if had && emptied {
                prop_assert!(row >= 3 && now - row_start >= 30);
            }
            match verdict {
                Verdict::Apply => prop_assert!(same(guard.current().unwrap(), &offered)),
                Verdict::Unchanged => prop_assert_eq!(guard.current(), before.as_ref()),
                Verdict::Hold { .. } => prop_assert!(guard.held().is_some()),
            }
            prop_assert_eq!(guard.held().is_some(), is_hold(verdict));
        }
    }
}
