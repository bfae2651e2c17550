use std::sync::Barrier;
use std::sync::atomic::AtomicUsize;

use super::words::RefusedBy;
use super::*;

fn settings() -> CircuitBreaker {
    CircuitBreaker {
        mode: BreakerMode::Enforce,
        minimum_number_of_calls: 10,
        permitted_number_of_calls_in_half_open_state: 4,
        ..CircuitBreaker::builtin()
    }
}

fn breaker() -> Breaker {
    Breaker::new(&settings(), 2, Arc::default())
}

const fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

#[test]
fn good_calls_of_all_workers_are_seen_by_the_machine() {
    let breaker = breaker();
    for n in 0..20 {
        let pass = breaker.admit(at(n)).unwrap().unwrap();
        let worker = usize::try_from(n % 2).unwrap();
        breaker.record(worker, pass, Verdict::Good, false, at(n));
    }
    // 19 of 39 are not one half, 20 of 40 are.
    for n in 0..20_u64 {
        assert!(!breaker.refuses(at(100)), "{n}");
        let pass = breaker.admit(at(100)).unwrap().unwrap();
        breaker.record(0, pass, Verdict::Failed, false, at(100));
    }
    assert!(breaker.refuses(at(100)));
    let refused = breaker.admit(at(1_100)).unwrap_err();
    assert_eq!(refused.opening.counts.calls, 40);
    assert_eq!(refused.retry_after, Some(Duration::from_secs(59)));
    let (effects, next) = breaker.settle(at(1_100));
    assert_eq!((effects.len(), next), (1, Some(at(60_100))));
}

#[test]
fn one_that_is_off_lets_pass_and_counts_nothing() {
    let breaker = Breaker::new(&CircuitBreaker::builtin(), 1, Arc::default());
    assert!(breaker.is_off());
    assert_eq!(breaker.admit(at(0)), Ok(None));
    breaker.configure(&settings(), at(1));
    assert!(!breaker.is_off());
    assert!(breaker.admit(at(1)).unwrap().is_some());
}

#[test]
fn threads_that_arrive_together_share_the_trials() {
    for round in 0..50 {
        let breaker = breaker();
        for _ in 0..10 {
            let pass = breaker.admit(at(0)).unwrap().unwrap();
            breaker.record(0, pass, Verdict::Failed, false, at(0));
        }
        let (given, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let together = Barrier::new(4);
        std::thread::scope(|threads| {
            for worker in 0..4 {
                let (breaker, together) = (&breaker, &together);
                let (given, refused) = (&given, &refused);
                threads.spawn(move || {
                    together.wait();
                    let mine: Vec<_> = (0..4).map(|_| breaker.admit(at(60_000))).collect();
                    together.wait();
                    for pass in mine {
                        match pass {
                            Ok(Some(pass)) if pass.trial.is_some() => {
                                given.fetch_add(1, Relaxed);
                                // The trial of one thread fails in every other round.
                                let bad = round % 2 == 1 && worker == 0;
                                let verdict = if bad { Verdict::Failed } else { Verdict::Good };
                                breaker.record(0, pass, verdict, false, at(60_001));
                            }
                            Err(end) if end.by == RefusedBy::Trials => {
                                refused.fetch_add(1, Relaxed);
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                });
            }
        });
        assert_eq!((given.into_inner(), refused.into_inner()), (4, 12));
        let state = breaker.view(at(60_002)).state;
        let closed = state == StateView::Closed;
        assert!(
            closed || matches!(state, StateView::Open { .. }),
            "{state:?}"
        );
        assert!(round % 2 == 1 || closed, "{state:?}");
    }
}

#[tokio::test]
async fn news_wakes_the_one_who_tells() {
    let news = Arc::new(Notify::new());
    let breaker = Breaker::new(&settings(), 1, Arc::clone(&news));
    breaker.order(Order::ForceOpen, at(10), at(0));
    // Whoever comes by first finds that its time is over.
    assert!(breaker.refuses(at(9)) && !breaker.refuses(at(10)));
    news.notified().await;
    let (effects, _) = breaker.settle(at(10));
    assert_eq!(effects.len(), 2);
}
