use super::*;
use crate::policy::breaker::words::StateView;

fn settings() -> CircuitBreaker {
    CircuitBreaker {
        mode: BreakerMode::Enforce,
        minimum_number_of_calls: 10,
        permitted_number_of_calls_in_half_open_state: 3,
        slow_call_duration: Duration::from_secs(2),
        ..CircuitBreaker::builtin()
    }
}

const fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn machine() -> Machine {
    Machine::new(settings())
}

/// One call at `now` beside `good` good ones.
fn call(machine: &mut Machine, verdict: Verdict, slow: bool, good: u64, now: Timestamp) {
    let pass = machine.admit(now).unwrap();
    machine.record(pass, verdict, slow, good, now);
}

fn opened() -> Machine {
    let mut machine = machine();
    for _ in 0..10 {
        call(&mut machine, Verdict::Failed, false, 0, at(0));
    }
    assert!(matches!(machine.state(), StateView::Open { .. }));
    machine
}

fn is_open(machine: &Machine) -> bool {
    matches!(machine.state(), StateView::Open { .. })
}

/// The three trials of half-open.
fn trials(machine: &mut Machine, now: Timestamp) -> [Pass; 3] {
    let passes = [(); 3].map(|()| machine.admit(now).unwrap());
    assert!(passes.iter().all(|pass| pass.trial.is_some()));
    assert_eq!(machine.admit(now).unwrap_err().by, RefusedBy::Trials);
    passes
}

#[test]
fn opens_at_the_threshold_and_not_below_the_minimum() {
    let mut machine = machine();
    for _ in 0..9 {
        call(&mut machine, Verdict::Failed, false, 0, at(0));
    }
    assert_eq!(machine.state(), StateView::Closed);
    // 10 of 21 are below one half, 11 of 22 are one half.
    call(&mut machine, Verdict::Failed, false, 11, at(0));
    assert_eq!(machine.state(), StateView::Closed);
    call(&mut machine, Verdict::Failed, false, 11, at(0));
    let StateView::Open { until, opening, .. } = machine.state() else {
        panic!("{:?}", machine.state());
    };
    assert_eq!(until, at(60_000));
    assert_eq!(
        (opening.cause, opening.counts.calls, opening.counts.failed),
        (Cause::FailureRate, 22, 11)
    );
    let refused = machine.admit(at(1_000)).unwrap_err();
    assert_eq!(refused.retry_after, Some(Duration::from_secs(59)));
}

#[test]
fn old_calls_leave_the_window() {
    let mut machine = machine();
    for _ in 0..9 {
        call(&mut machine, Verdict::Failed, false, 0, at(0));
    }
    // The first slice is out at 10 s.
    call(&mut machine, Verdict::Failed, false, 0, at(10_000));
    assert_eq!(machine.state(), StateView::Closed);
    for _ in 0..9 {
        call(&mut machine, Verdict::Failed, false, 0, at(19_999));
    }
    assert!(is_open(&machine));
}

#[test]
fn slow_calls_open_it_by_their_own_rate() {
    let mut machine = machine();
    for _ in 0..9 {
        call(&mut machine, Verdict::Good, true, 1, at(0));
    }
    assert_eq!(machine.state(), StateView::Closed, "9 of 10 are not all");
    call(&mut machine, Verdict::Good, true, 0, at(0));
    let StateView::Open { opening, .. } = machine.state() else {
        panic!("{:?}", machine.state());
    };
    assert_eq!(opening.cause, Cause::SlowCallRate);
}

#[test]
fn ignored_outcomes_count_nowhere() {
    let mut machine = machine();
    for _ in 0..50 {
        call(&mut machine, Verdict::Ignored, false, 0, at(0));
        call(&mut machine, Verdict::Ignored, true, 0, at(0));
    }
    assert_eq!(machine.counts(0, at(0)), Counts::default());
}

#[test]
fn all_good_trials_close_it() {
    let mut machine = opened();
    let passes = trials(&mut machine, at(60_000));
    for pass in passes {
        assert_ne!(machine.state(), StateView::Closed);
        machine.record(pass, Verdict::Good, false, 0, at(60_500));
    }
    assert_eq!(machine.state(), StateView::Closed);
    // And it begins anew.
    assert_eq!(machine.counts(0, at(60_500)), Counts::default());
    let kinds: Vec<_> = std::iter::from_fn(|| machine.poll_effect()).collect();
    assert!(matches!(
        kinds.iter().map(|e| e.kind).collect::<Vec<_>>()[..],
        [
            EffectKind::Opened { .. },
            EffectKind::HalfOpen { .. },
            EffectKind::Closed {
                good: 3,
                by: ClosedBy::Trials
            }
        ]
    ));
}

#[test]
fn one_bad_or_slow_trial_opens_it_and_the_others_are_late() {
    for (verdict, slow, cause) in [
        (Verdict::Failed, false, Cause::Trial),
        (Verdict::Good, true, Cause::SlowTrial),
    ] {
        let mut machine = opened();
        let [first, second, third] = trials(&mut machine, at(60_000));
        machine.record(first, Verdict::Good, false, 0, at(60_100));
        machine.record(second, verdict, slow, 0, at(60_200));
        let StateView::Open { until, opening, .. } = machine.state() else {
            panic!("{:?}", machine.state());
        };
        assert_eq!((until, opening.cause), (at(120_200), cause));
        machine.record(third, Verdict::Good, false, 0, at(60_300));
        machine.record(first, Verdict::Good, false, 0, at(60_300));
        assert!(is_open(&machine));
        // Nor do they move the next half-open.
        trials(&mut machine, at(120_200));
        machine.record(third, Verdict::Failed, false, 0, at(120_300));
        assert!(!is_open(&machine));
    }
}

#[test]
fn a_trial_is_given_back_by_an_ignored_outcome() {
    let mut machine = opened();
    let [first, ..] = trials(&mut machine, at(60_000));
    machine.record(first, Verdict::Ignored, false, 0, at(60_100));
    let again = machine.admit(at(60_100)).unwrap();
    assert!(again.trial.is_some() && again != first);
    assert!(machine.admit(at(60_100)).is_err());
    // Twice given back is given back once.
    machine.record(first, Verdict::Ignored, false, 0, at(60_100));
    assert!(machine.admit(at(60_100)).is_err());
}

#[test]
fn a_lost_trial_opens_it_and_one_with_a_good_head_is_good() {
    let mut machine = opened();
    let passes = trials(&mut machine, at(60_000));
    for pass in passes {
        machine.head(pass, false, at(60_100));
    }
    // The lease is that of a slow call and a second.
    assert_eq!(machine.next_deadline(), Some(at(63_000)));
    machine.settle(at(62_999));
    assert_ne!(machine.state(), StateView::Closed);
    machine.settle(at(63_000));
    assert_eq!(machine.state(), StateView::Closed);
    let mut machine = opened();
    let [first, second, _] = trials(&mut machine, at(60_000));
    machine.head(first, false, at(60_100));
    machine.head(second, false, at(60_100));
    // At its deadline an answer is late.
    machine.record(first, Verdict::Good, false, 0, at(63_000));
    let StateView::Open { opening, .. } = machine.state() else {
        panic!("{:?}", machine.state());
    };
    assert_eq!(opening.cause, Cause::LostTrial);
}

#[test]
fn a_slow_head_opens_it_at_once() {
    let mut machine = opened();
    let [first, ..] = trials(&mut machine, at(60_000));
    machine.head(first, true, at(62_500));
    assert!(is_open(&machine));
}

#[test]
fn answers_from_before_the_opening_move_nothing() {
    let mut machine = machine();
    let early = machine.admit(at(0)).unwrap();
    for _ in 0..10 {
        call(&mut machine, Verdict::Failed, false, 0, at(0));
    }
    let [first, second, third] = trials(&mut machine, at(60_000));
    machine.record(early, Verdict::Failed, false, 0, at(60_001));
    for pass in [first, second, third] {
        machine.record(pass, Verdict::Good, false, 0, at(60_002));
    }
    assert_eq!(machine.state(), StateView::Closed);
    machine.record(early, Verdict::Failed, false, 0, at(60_003));
    assert_eq!(machine.counts(0, at(60_003)), Counts::default());
}

#[test]
fn a_clock_that_stalls_or_jumps() {
    let mut machine = opened();
    let before = machine.state();
    // Another thread read the clock earlier: time stands still.
    assert!(machine.admit(at(0)).is_err());
    assert_eq!(machine.state(), before);
    // A long sleep of the whole machine: trials are due, none is given by itself.
    machine.settle(at(1_000_000_000));
    assert!(matches!(
        machine.state(),
        StateView::HalfOpen {
            good: 0,
            trying: 0,
            ..
        }
    ));
    trials(&mut machine, at(0));
    machine.settle(Timestamp::MAX);
    assert!(is_open(&machine), "lost trials");
    assert!(machine.admit(Timestamp::MAX).is_ok(), "nothing is later");
}

#[test]
fn observe_refuses_nothing_and_tells_all() {
    let mut machine = Machine::new(CircuitBreaker {
        mode: BreakerMode::Observe,
        ..settings()
    });
    for _ in 0..10 {
        call(&mut machine, Verdict::Failed, false, 0, at(0));
    }
    assert!(is_open(&machine));
    for _ in 0..5 {
        call(&mut machine, Verdict::Failed, false, 0, at(1));
    }
    assert_eq!((machine.refused(), machine.refuses(at(1))), (5, false));
    let passes: Vec<Pass> = (0..9).map(|_| machine.admit(at(60_000)).unwrap()).collect();
    assert_eq!(passes.iter().filter(|p| p.trial.is_some()).count(), 3);
    for pass in passes {
        machine.record(pass, Verdict::Good, false, 0, at(60_000));
    }
    assert_eq!(machine.state(), StateView::Closed);
    let mut all = std::iter::from_fn(|| machine.poll_effect());
    assert!(all.all(|effect| effect.observed));
}

#[test]
fn orders_stand_above_the_state_and_end() {
    let mut machine = machine();
    machine.order(Order::ForceOpen, at(5_000), at(0));
    let refused = machine.admit(at(1_000)).unwrap_err();
    assert_eq!(
        (refused.by, refused.retry_after),
        (RefusedBy::Operator, Some(Duration::from_secs(4)))
    );
    // Its end leads through trials.
    assert!(machine.admit(at(5_000)).unwrap().trial.is_some());
    let mut machine = opened();
    machine.order(Order::ForceClosed, at(500_000), at(1));
    for _ in 0..50 {
        call(&mut machine, Verdict::Failed, false, 0, at(2));
    }
    assert_eq!(machine.stage(), Stage::Closed);
    assert_eq!(machine.counts(0, at(2)).failed, 50);
    machine.order(Order::Disable, at(500_000), at(3));
    assert_eq!(machine.stage(), Stage::Off);
    call(&mut machine, Verdict::Failed, false, 0, at(3));
    machine.release(at(4));
    assert_eq!(machine.stage(), Stage::Closed);
    assert_eq!(machine.counts(0, at(4)), Counts::default());
    machine.release(at(5));
    assert_eq!(machine.ordered(), None);
}

#[test]
fn a_disabled_breaker_can_be_forced_and_is_off_after_it() {
    let mut machine = Machine::new(CircuitBreaker::builtin());
    assert_eq!(machine.stage(), Stage::Off);
    machine.order(Order::ForceOpen, at(10), at(0));
    assert!(machine.refuses(at(1)));
    machine.settle(at(10));
    assert_eq!(machine.stage(), Stage::Off);
}

#[test]
fn a_reload_changes_what_it_names() {
    let mut machine = opened();
    machine.configure(
        CircuitBreaker {
            wait_duration_in_open_state: Duration::from_secs(600),
            ..settings()
        },
        at(1),
    );
    assert_eq!(machine.next_deadline(), Some(at(60_000)), "never later");
    machine.configure(
        CircuitBreaker {
            wait_duration_in_open_state: Duration::from_secs(5),
            ..settings()
        },
        at(2),
    );
    assert_eq!(machine.next_deadline(), Some(at(5_000)));
    let [first, ..] = trials(&mut machine, at(5_000));
    machine.record(first, Verdict::Good, false, 0, at(5_001));
    machine.configure(
        CircuitBreaker {
            permitted_number_of_calls_in_half_open_state: 1,
            ..settings()
        },
        at(5_002),
    );
    assert_eq!(machine.state(), StateView::Closed);
    for _ in 0..9 {
        call(&mut machine, Verdict::Failed, false, 0, at(5_003));
    }
    let wider = CircuitBreaker {
        sliding_window_size: Duration::from_secs(100),
        ..settings()
    };
    machine.configure(wider.clone(), at(5_004));
    assert_eq!(machine.counts(0, at(5_004)), Counts::default());
    let mut machine = opened();
    machine.configure(
        CircuitBreaker {
            mode: BreakerMode::Observe,
            ..wider
        },
        at(1),
    );
    assert_eq!(machine.state(), StateView::Closed);
}

#[test]
fn an_open_breaker_is_recalled_for_what_was_left() {
    let machine = opened();
    let remembered = machine.remembered(at(20_000)).unwrap();
    assert_eq!(remembered.left, Duration::from_secs(40));
    let mut next = Machine::new(settings());
    next.recall(remembered, at(7));
    assert_eq!(next.next_deadline(), Some(at(40_007)));
    let mut clamped = Machine::new(settings());
    let left = Duration::from_secs(1 << 40);
    clamped.recall(Remembered { left }, at(0));
    assert_eq!(clamped.next_deadline(), Some(at(60_000)));
    let mut half = Machine::new(settings());
    let left = Duration::ZERO;
    half.recall(Remembered { left }, at(0));
    assert!(half.admit(at(0)).unwrap().trial.is_some());
    assert!(Machine::new(settings()).remembered(at(0)).is_none());
}

#[test]
fn what_is_told_is_bounded() {
    let mut machine = machine();
    for n in 0..2_000 {
        machine.order(Order::ForceOpen, at(n * 10 + 5), at(n * 10));
        machine.settle(at(n * 10 + 5));
    }
    assert_eq!(
        std::iter::from_fn(|| machine.poll_effect()).count(),
        MOST_EFFECTS
    );
}
