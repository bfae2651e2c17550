use proptest::prelude::*;

use super::*;

const NETWORK: ExceptionType = ExceptionType::Network;
const BOTH: ExceptionType = ExceptionType::NetworkAndBusiness;

fn sample(class: OutcomeClass, count: u64) -> Sample {
    Sample {
        class,
        count,
        own_timeout: false,
        death: None,
        kind: None,
    }
}

fn failed() -> Sample {
    sample(OutcomeClass::NetworkError, 1)
}

#[test]
fn holds_ten_buckets_and_no_more() {
    let mut window = Window::default();
    window.add(&failed(), BucketIndex(5));
    window.advance(BucketIndex(14));
    assert_eq!(window.counts().network, 1);
    window.advance(BucketIndex(15));
    assert_eq!(window.counts(), Counts::default());
}

#[test]
fn business_errors_end_the_network_streak_only() {
    let mut window = Window::default();
    window.add(&failed(), BucketIndex(0));
    window.add(&sample(OutcomeClass::BusinessError, 1), BucketIndex(0));
    window.add(&failed(), BucketIndex(0));
    assert_eq!(window.streak(NETWORK, 10).failures, 1);
    assert_eq!(window.streak(BOTH, 10).failures, 3);
    window.add(&sample(OutcomeClass::Ignored, 7), BucketIndex(0));
    assert_eq!(window.streak(BOTH, 10).failures, 3);
    window.add(&sample(OutcomeClass::Success, 1), BucketIndex(0));
    assert_eq!(window.streak(BOTH, 10), StreakLength::default());
}

#[test]
fn one_death_counts_once_until_the_streak_ends() {
    let mut window = Window::default();
    let died = Sample {
        death: Some(7),
        ..failed()
    };
    for _ in 0..30 {
        window.add(&died, BucketIndex(0));
    }
    let streak = window.streak(NETWORK, 10);
    assert_eq!(
        (streak.failures, streak.calls, window.counts().network),
        (1, 30, 30)
    );
    window.add(&sample(OutcomeClass::Success, 1), BucketIndex(1));
    window.add(&died, BucketIndex(1));
    assert_eq!(window.streak(NETWORK, 10).failures, 1);
    // The one of a death stays in the bucket of the first.
    window.add(&died, BucketIndex(10));
    window.advance(BucketIndex(11));
    assert_eq!(window.streak(NETWORK, 10).failures, 0);
}

#[test]
fn own_timeouts_outlive_the_window() {
    let mut window = Window::default();
    window.add(
        &Sample {
            own_timeout: true,
            ..failed()
        },
        BucketIndex(0),
    );
    window.add(&failed(), BucketIndex(0));
    window.advance(BucketIndex(49));
    let streak = window.streak(NETWORK, 50);
    assert_eq!(
        (streak.failures, streak.own_timeouts, streak.calls),
        (1, 1, 0)
    );
    window.advance(BucketIndex(50));
    assert_eq!(window.streak(NETWORK, 50).failures, 0);
    window.forget_streak(50);
    assert!(window.is_clean());
}

#[test]
fn kinds_age_with_the_window() {
    let mut window = Window::default();
    let of = |kind| Sample {
        kind: Some(kind),
        ..failed()
    };
    window.add(&of(ErrorKind::Reset), BucketIndex(0));
    window.add(&of(ErrorKind::Reset), BucketIndex(3));
    window.add(&of(ErrorKind::ConnectRefused), BucketIndex(3));
    let want = [(ErrorKind::ConnectRefused, 1), (ErrorKind::Reset, 2)];
    assert_eq!(window.errors_by_kind(), want);
    window.advance(BucketIndex(10));
    assert_eq!(
        window.errors_by_kind(),
        [(ErrorKind::ConnectRefused, 1), (ErrorKind::Reset, 1)]
    );
}

proptest! {
    /// The ring against a list of everything that ever happened.
    #[test]
    fn equals_a_naive_count(steps in prop::collection::vec((0u64..4, 0u8..4, 1u64..5, any::<bool>(), 0u64..4), 1..200)) {
        let classes =
            [OutcomeClass::Success, OutcomeClass::NetworkError, OutcomeClass::BusinessError, OutcomeClass::Ignored];
        let (mut window, mut now, mut all) = (Window::default(), 0u64, Vec::new());
        for (gap, class, count, own_timeout, death) in steps {
            now += gap * gap;
            let class = classes[usize::from(class)];
            let death = (death == 0).then_some(death);
            window.add(&Sample { class, count, own_timeout, death, kind: None }, BucketIndex(now));
            if class != OutcomeClass::Ignored {
                all.push((now, class, count, own_timeout, death));
            }
            let recent = |of: OutcomeClass| -> u64 {
                all.iter().filter(|(at, c, ..)| at + 10 > now && *c == of).map(|(_, _, n, ..)| n).sum()
            };
            let counts = window.counts();
            prop_assert_eq!(counts.success, recent(OutcomeClass::Success));
            prop_assert_eq!(counts.network, recent(OutcomeClass::NetworkError));
            prop_assert_eq!(counts.business, recent(OutcomeClass::BusinessError));
            for kind in [NETWORK, BOTH] {
                prop_assert_eq!(window.streak(kind, 25), naive_streak(&all, kind, 25, now));
            }
        }
    }
}

type Seen = (u64, OutcomeClass, u64, bool, Option<u64>);

fn naive_streak(all: &[Seen], kind: ExceptionType, life: u64, now: u64) -> StreakLength {
    let start = all
        .iter()
        .rposition(|(_, class, ..)| !class.is_failure(kind))
        .map_or(0, |i| i + 1);
    let (mut length, mut died) = (StreakLength::default(), false);
    for (at, _, count, own_timeout, death) in &all[start..] {
        let counted = match death {
            Some(_) if died => 0,
            Some(_) => 1,
            None => *count,
        };
        died |= death.is_some();
        if at + 10 > now {
            length.calls += count;
        }
        if *own_timeout && at + life > now {
            length.failures += counted;
            length.own_timeouts += counted;
        } else if !own_timeout && at + 10 > now {
            length.failures += counted;
        }
    }
    length
}
