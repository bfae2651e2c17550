use std::time::Duration;

use super::*;

fn settings(limit: u32, queue: u32) -> Settings {
    Settings {
        max_concurrent_calls: limit,
        max_queue: queue,
        max_wait_duration: Duration::from_secs(1),
    }
}

fn wait(bulkhead: &Arc<Bulkhead>, urgent: bool) -> Waiting {
    bulkhead.queue(urgent).unwrap().unwrap_err()
}

#[test]
fn the_limit_holds_and_a_place_comes_back_by_its_drop() {
    let bulkhead = Bulkhead::new(&settings(2, 0));
    let first = bulkhead.take().unwrap();
    let _second = bulkhead.take().unwrap();
    assert!(bulkhead.take().is_none());
    let full = bulkhead.queue(false).unwrap_err();
    assert_eq!((full.in_use, full.limit, full.waiting), (2, 2, 0));
    drop(first);
    assert!(bulkhead.queue(false).unwrap().is_ok());
    assert_eq!(bulkhead.in_use(), 1);
}

#[test]
fn those_who_wait_are_called_in_their_order_and_the_urgent_first() {
    let bulkhead = Bulkhead::new(&settings(1, 3));
    let held = bulkhead.take().unwrap();
    let mut first = wait(&bulkhead, false);
    let mut second = wait(&bulkhead, false);
    let mut urgent = wait(&bulkhead, true);
    assert_eq!(bulkhead.queue(true).unwrap_err().waiting, 3);
    drop(held);
    // A newcomer does not overtake them.
    assert!(bulkhead.take().is_none());
    assert!(first.try_called().is_none());
    let place = urgent.try_called().unwrap();
    drop(place);
    let place = first.try_called().unwrap();
    assert!(second.try_called().is_none());
    drop(place);
    assert!(second.try_called().is_some());
    assert_eq!((bulkhead.in_use(), bulkhead.waiting()), (0, 0));
}

#[test]
fn one_who_leaves_gives_up_its_turn_also_when_it_was_just_called() {
    let bulkhead = Bulkhead::new(&settings(1, 3));
    let held = bulkhead.take().unwrap();
    let first = wait(&bulkhead, false);
    let second = wait(&bulkhead, false);
    let mut third = wait(&bulkhead, false);
    drop(first);
    assert_eq!(bulkhead.waiting(), 2);
    drop(held);
    // It was called and never looked.
    drop(second);
    assert!(third.try_called().is_some());
    assert_eq!((bulkhead.in_use(), bulkhead.waiting()), (0, 0));
    let held = bulkhead.take().unwrap();
    let late = wait(&bulkhead, false);
    drop(held);
    assert!(late.give_up().is_some(), "called at the very last moment");
    assert_eq!(bulkhead.in_use(), 0);
}

#[test]
fn a_resize_calls_some_or_waits_for_places_to_come_back() {
    let bulkhead = Bulkhead::new(&settings(1, 9));
    let held = bulkhead.take().unwrap();
    let mut waiting: Vec<Waiting> = (0..3).map(|_| wait(&bulkhead, false)).collect();
    bulkhead.configure(&settings(3, 9));
    let places: Vec<Option<Place>> = waiting.iter_mut().map(Waiting::try_called).collect();
    assert_eq!(
        places.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, true, false]
    );
    bulkhead.configure(&settings(1, 0));
    assert_eq!(bulkhead.in_use(), 3);
    drop(held);
    drop(waiting.swap_remove(0));
    assert_eq!((bulkhead.in_use(), bulkhead.waiting()), (2, 1));
    drop(places);
    assert!(waiting.iter_mut().any(|one| one.try_called().is_some()));
    assert_eq!((bulkhead.in_use(), bulkhead.waiting()), (0, 0));
}

#[test]
fn threads_never_exceed_the_limit_and_nobody_is_forgotten() {
    let bulkhead = Bulkhead::new(&settings(3, 64));
    let inside = AtomicU32::new(0);
    std::thread::scope(|threads| {
        for thread in 0..4_u64 {
            let (bulkhead, inside) = (&bulkhead, &inside);
            threads.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(thread);
                for _ in 0..3_000 {
                    let place = match bulkhead.take() {
                        Some(place) => place,
                        None => match bulkhead.queue(rng.bool()).unwrap() {
                            Ok(place) => place,
                            Err(waiting) if rng.u8(0..4) == 0 => match waiting.give_up() {
                                Some(place) => place,
                                None => continue,
                            },
                            // Nobody is forgotten: or this never returns.
                            Err(mut waiting) => waiting.blocking(),
                        },
                    };
                    assert!(inside.fetch_add(1, AcqRel) < 3);
                    std::hint::spin_loop();
                    inside.fetch_sub(1, AcqRel);
                    drop(place);
                }
            });
        }
    });
    assert_eq!((bulkhead.in_use(), bulkhead.waiting()), (0, 0));
}
