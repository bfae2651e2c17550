//! Worked examples, then everything at random.

use proptest::prelude::*;

use super::*;
use crate::registration::rhythm::Beats;

const NACOS: Rhythm = Rhythm {
    beats: Some(Beats {
        interval: Duration::from_secs(5),
        jitter_percent: 20,
        overlap: 1,
        register_after_failure: false,
    }),
    starting: false,
    marks_leaving: true,
};
const EUREKA: Rhythm = Rhythm {
    beats: Some(Beats {
        interval: Duration::from_secs(30),
        jitter_percent: 10,
        overlap: 1,
        register_after_failure: false,
    }),
    starting: true,
    marks_leaving: true,
};
const CONSUL: Rhythm = Rhythm {
    beats: Some(Beats {
        interval: Duration::from_secs(5),
        jitter_percent: 10,
        overlap: 4,
        register_after_failure: true,
    }),
    starting: false,
    marks_leaving: true,
};
/// A connection is the lease.
const BOUND: Rhythm = Rhythm {
    beats: None,
    starting: false,
    marks_leaving: false,
};
const UP: Wish = Wish::Listed(Standing::Up);
const DOWN: Wish = Wish::Listed(Standing::Down);

/// A machine, its time and its chance.
struct World {
    machine: Machine,
    now: Timestamp,
    rng: fastrand::Rng,
}

impl World {
    fn new(rhythm: Rhythm) -> Self {
        Self {
            machine: Machine::new(rhythm, Timestamp::ZERO),
            now: Timestamp::ZERO,
            rng: fastrand::Rng::with_seed(7),
        }
    }

    /// One that is up, with its first beat made.
    fn up(rhythm: Rhythm) -> Self {
        let mut world = Self::new(rhythm);
        world.wish(UP);
        let register = Action::Register(Standing::Up);
        let registered = world.expect(register, Outcome::DONE);
        assert_eq!(registered, Some(Change::Registered { again: false }));
        if rhythm.beats.is_some() {
            world.expect(Action::Beat(Beat::Full), terms(true));
        }
        world
    }

    fn wish(&mut self, wish: Wish) {
        self.machine.wish(wish, self.now);
    }

    /// The next call, at its time, and the time since then.
    fn next(&mut self) -> Option<(Action, Duration)> {
        let before = self.now;
        self.now = self.now.max(self.machine.due()?);
        let action = self.machine.begin(self.now, &mut self.rng);
        Some((action.expect("it is due"), self.now.since(before)))
    }

    fn done(&mut self, action: Action, outcome: Outcome) -> Option<Change> {
        self.machine.done(action, outcome, self.now, &mut self.rng)
    }

    /// The next call is `action`, and this becomes of it.
    fn expect(&mut self, action: Action, outcome: Outcome) -> Option<Change> {
        let next = self.next();
        assert_eq!(next.map(|(action, _)| action), Some(action));
        self.done(action, outcome)
    }

    /// Goes on until a beat is due.
    fn next_beat(&mut self) -> (Action, Duration) {
        let before = self.now;
        loop {
            match self.next().expect("something is due") {
                (Action::Observe, _) => {
                    self.done(Action::Observe, Outcome::DONE);
                }
                (action @ Action::Beat(_), _) => return (action, self.now.since(before)),
                (other, _) => panic!("{other:?}"),
            }
        }
    }
}

fn terms(light: bool) -> Outcome {
    Outcome::Accepted(Terms {
        interval: None,
        light: Some(light),
    })
}

fn failed() -> Outcome {
    Outcome::Failed("refused".to_owned())
}

#[test]
fn nothing_happens_before_the_app_is_up() {
    let mut world = World::new(NACOS);
    assert_eq!(world.machine.due(), None);
    world.wish(DOWN);
    assert_eq!(world.machine.due(), None);
    world.wish(UP);
    assert_eq!(world.machine.due(), Some(Timestamp::ZERO));
}

#[test]
fn a_registry_with_a_word_for_it_is_told_of_the_start() {
    let mut world = World::new(EUREKA);
    let told = world.expect(Action::Register(Standing::Starting), Outcome::DONE);
    assert_eq!(told, None);
    assert_eq!(world.machine.due(), None, "no beats before it is up");
    world.wish(UP);
    let up = world.expect(Action::Register(Standing::Up), Outcome::DONE);
    assert_eq!(up, Some(Change::Registered { again: false }));
}

#[test]
fn beats_are_full_then_light_and_every_twelfth_is_full() {
    let mut world = World::up(NACOS);
    for n in 1..=36 {
        let (beat, after) = world.next_beat();
        let want = if n % 12 == 0 { Beat::Full } else { Beat::Light };
        assert_eq!(beat, Action::Beat(want), "beat {n}");
        assert!(
            after >= Duration::from_secs(4) && after <= Duration::from_secs(5),
            "{after:?}"
        );
        world.done(beat, terms(true));
    }
}

#[test]
fn beats_stay_full_where_light_ones_are_not_understood() {
    let mut world = World::up(NACOS);
    for _ in 0..3 {
        let (beat, _) = world.next_beat();
        world.done(beat, terms(false));
    }
    assert_eq!(world.next_beat().0, Action::Beat(Beat::Full));
}

#[test]
fn the_registry_sets_the_pace() {
    let mut world = World::up(NACOS);
    let (beat, _) = world.next_beat();
    let terms = Terms {
        interval: Some(Duration::from_secs(2)),
        light: None,
    };
    world.done(beat, Outcome::Accepted(terms));
    let (_, after) = world.next_beat();
    assert!(after <= Duration::from_secs(2), "{after:?}");
}

#[test]
fn what_was_forgotten_is_registered_within_a_second_and_beaten_in_full() {
    let mut world = World::up(NACOS);
    let (beat, _) = world.next_beat();
    assert_eq!(beat, Action::Beat(Beat::Light));
    assert_eq!(world.done(beat, Outcome::Missing), Some(Change::Forgotten));
    let (action, after) = world.next().unwrap();
    assert_eq!(action, Action::Register(Standing::Up));
    assert!(after <= Duration::from_secs(1));
    let again = world.done(action, Outcome::DONE);
    assert_eq!(again, Some(Change::Registered { again: true }));
    let (beat, after) = world.next_beat();
    assert_eq!(beat, Action::Beat(Beat::Full));
    assert!(
        after >= Duration::from_secs(4),
        "it keeps its place: {after:?}"
    );
}

#[test]
fn a_look_once_a_minute_finds_what_is_missing() {
    let mut world = World::up(NACOS);
    let start = world.now;
    let looked = loop {
        match world.next().unwrap() {
            (Action::Observe, _) => break world.now,
            (beat, _) => world.done(beat, terms(true)),
        };
    };
    let after = looked.since(start);
    assert!(after >= Duration::from_secs(45) && after <= Duration::from_secs(75));
    let change = world.done(Action::Observe, Outcome::Missing);
    assert_eq!(change, Some(Change::Forgotten));
    world.expect(Action::Register(Standing::Up), Outcome::DONE);
}

#[test]
fn a_beat_that_fails_is_told_once_and_repeated_within_one_and_a_half_intervals() {
    let mut world = World::up(NACOS);
    let (beat, _) = world.next_beat();
    assert!(matches!(
        world.done(beat, failed()),
        Some(Change::Failing { .. })
    ));
    assert!(!world.machine.is_up());
    for _ in 0..20 {
        let (beat, after) = world.next_beat();
        assert_eq!(beat, Action::Beat(Beat::Full));
        assert!(after <= Duration::from_millis(7500));
        assert_eq!(world.done(beat, failed()), None);
    }
    let (beat, _) = world.next_beat();
    assert_eq!(world.done(beat, terms(true)), Some(Change::BeatsAgain));
    assert!(world.machine.is_up());
}

#[test]
fn consul_is_registered_again_after_a_beat_that_failed() {
    let mut world = World::up(CONSUL);
    let (beat, _) = world.next_beat();
    world.done(beat, failed());
    world.expect(Action::Register(Standing::Up), Outcome::DONE);
    assert!(world.machine.is_up());
}

#[test]
fn a_beat_that_hangs_does_not_hold_up_the_next_where_that_is_allowed() {
    let mut world = World::up(CONSUL);
    let begun: Vec<_> = (0..4).map(|_| world.next().unwrap().0).collect();
    assert_eq!(begun, [Action::Beat(Beat::Light); 4]);
    assert_eq!(world.machine.due(), None, "four are enough");
    let mut world = World::up(NACOS);
    assert!(matches!(world.next().unwrap().0, Action::Beat(_)));
    assert_eq!(world.machine.due(), None);
}

#[test]
fn an_app_that_fails_is_withdrawn_at_once_and_not_beaten() {
    let mut world = World::up(NACOS);
    world.wish(DOWN);
    let now = world.now;
    let withdrawn = world.expect(Action::Withdraw, Outcome::DONE);
    assert_eq!((withdrawn, world.now), (Some(Change::Withdrawn), now));
    assert_eq!(world.machine.due(), None);
    world.wish(UP);
    let up = world.expect(Action::Register(Standing::Up), Outcome::DONE);
    assert_eq!(up, Some(Change::Registered { again: true }));
}

#[test]
fn a_withdrawal_does_not_wait_for_a_back_off() {
    let mut world = World::new(NACOS);
    world.wish(UP);
    for _ in 0..9 {
        world.expect(Action::Register(Standing::Up), failed());
    }
    let now = world.now;
    world.wish(DOWN);
    world.expect(Action::Withdraw, Outcome::Missing);
    assert_eq!(world.now, now);
    assert_eq!(world.machine.due(), None);
}

#[test]
fn the_end_waits_for_the_beat_marks_and_deregisters() {
    let mut world = World::up(NACOS);
    let (beat, _) = world.next_beat();
    world.wish(Wish::Gone);
    assert_eq!(world.machine.due(), None, "the beat is under way");
    world.done(beat, terms(true));
    world.expect(Action::Withdraw, failed());
    let gone = world.expect(Action::Deregister, Outcome::DONE);
    assert_eq!(gone, Some(Change::Deregistered));
    assert!(world.machine.is_over());
    world.wish(UP);
    assert_eq!(world.machine.due(), None, "there is no way back");
}

#[test]
fn what_was_never_registered_is_not_deregistered() {
    let mut world = World::new(NACOS);
    world.wish(Wish::Gone);
    assert!(world.machine.is_over());
    // But what perhaps arrived is.
    let mut world = World::new(NACOS);
    world.wish(UP);
    world.expect(Action::Register(Standing::Up), failed());
    world.wish(Wish::Gone);
    assert!(!world.machine.is_over());
    world.expect(Action::Deregister, Outcome::Missing);
    assert!(world.machine.is_over());
}

#[test]
fn what_is_refused_is_tried_slowly() {
    let mut world = World::new(NACOS);
    world.wish(UP);
    let refused = Outcome::Refused("403".to_owned());
    world.expect(Action::Register(Standing::Up), refused);
    let (_, after) = world.next().unwrap();
    assert!(after >= Duration::from_secs(30) && after <= Duration::from_secs(60));
}

#[test]
fn a_change_is_told_in_place() {
    let mut world = World::up(NACOS);
    world.machine.changed(world.now);
    let now = world.now;
    let told = world.expect(Action::Register(Standing::Up), Outcome::DONE);
    assert_eq!((told, world.now), (None, now));
}

#[test]
fn a_lost_connection_loses_the_registration() {
    let mut world = World::up(BOUND);
    let (action, _) = world.next().unwrap();
    assert_eq!(action, Action::Observe, "no beats");
    world.done(action, Outcome::DONE);
    let change = world.machine.lost(world.now, &mut world.rng);
    assert_eq!(change, Some(Change::Forgotten));
    world.expect(Action::Register(Standing::Up), Outcome::DONE);
}

#[test]
fn a_withdrawal_that_arrived_without_an_answer_is_undone_by_registering() {
    let mut world = World::up(NACOS);
    world.wish(DOWN);
    world.expect(Action::Withdraw, failed());
    world.wish(UP);
    world.expect(Action::Register(Standing::Up), Outcome::DONE);
    assert!(world.machine.is_up());
}

#[test]
fn a_lost_connection_does_not_end_a_withdrawal() {
    let mut world = World::up(BOUND);
    world.wish(DOWN);
    world.machine.lost(world.now, &mut world.rng);
    world.expect(Action::Withdraw, Outcome::DONE);
    assert_eq!(world.machine.due(), None);
}

#[test]
fn bad_news_during_a_call_does_not_wait_after_it() {
    for (wish, next) in [(DOWN, Action::Withdraw), (Wish::Gone, Action::Deregister)] {
        let mut world = World::new(NACOS);
        world.wish(UP);
        let (register, _) = world.next().unwrap();
        world.wish(wish);
        world.done(register, Outcome::Refused("403".to_owned()));
        let (action, after) = world.next().unwrap();
        assert_eq!((action, after), (next, Duration::ZERO));
    }
}

#[test]
fn a_mark_that_finds_nothing_does_not_spare_the_end() {
    let mut world = World::up(NACOS);
    world.wish(Wish::Gone);
    world.expect(Action::Withdraw, Outcome::Missing);
    world.expect(Action::Deregister, Outcome::DONE);
    assert!(world.machine.is_over());
}

#[derive(Clone, Copy, Debug)]
enum Happening {
    Wish(Wish),
    Changed,
    /// With its connection; true: the next one has told it again already.
    Lost(bool),
    /// The machine begins what is due, at its time.
    Begin,
    /// The n-th of those under way ends so.
    End(usize, u8),
    Pass(u64),
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let one = prop_oneof![
        2 => Just(Happening::Wish(UP)),
        1 => Just(Happening::Wish(DOWN)),
        1 => Just(Happening::Wish(Wish::Listed(Standing::Starting))),
        1 => Just(Happening::Changed),
        1 => any::<bool>().prop_map(Happening::Lost),
        12 => Just(Happening::Begin),
        12 => (0..4usize, 0..7u8).prop_map(|(n, outcome)| Happening::End(n, outcome)),
        2 => (1..90_000u64).prop_map(Happening::Pass),
    ];
    proptest::collection::vec(one, 0..120)
}

/// The sixth fails for us only: the registry did what was asked.
const APPLIED: u8 = 6;

fn outcome(n: u8) -> Outcome {
    match n {
        0 | 1 => Outcome::DONE,
        2 => terms(true),
        3 => Outcome::Missing,
        4 | APPLIED => failed(),
        _ => Outcome::Refused("no".to_owned()),
    }
}

/// The world with what is under way, and what must hold at every call.
struct Checked {
    world: World,
    wish: Wish,
    under_way: Vec<Action>,
    registered: bool,
    leaving: bool,
    /// What the registry really shows.
    shown: Option<Standing>,
}

impl Checked {
    fn begin(&mut self) {
        let Some((action, _)) = self.world.next() else {
            return;
        };
        let beat = matches!(action, Action::Beat(_));
        let exclusive = |a: &Action| !matches!(a, Action::Beat(_));
        assert!(
            !self.under_way.iter().any(exclusive),
            "alone: {:?}",
            self.under_way
        );
        assert!(
            beat || self.under_way.is_empty(),
            "{action:?} waits for the beats"
        );
        let max = self.world.machine.rhythm.beats.map_or(0, |b| b.overlap);
        assert!(self.under_way.len() < max.max(1) as usize);
        match action {
            Action::Beat(_) | Action::Observe => assert_eq!(self.wish, UP),
            Action::Register(standing) => {
                assert_eq!(self.wish, Wish::Listed(standing));
                self.registered = true;
            }
            Action::Withdraw => assert!(self.registered && self.wish != UP),
            Action::Deregister => {
                assert!(self.registered && self.wish == Wish::Gone);
                self.leaving = true;
            }
        }
        assert!(
            !self.leaving || matches!(action, Action::Deregister),
            "{action:?} after the end"
        );
        self.under_way.push(action);
    }

    fn end(&mut self, n: usize, result: Outcome, applied: bool) {
        if n < self.under_way.len() {
            let action = self.under_way.remove(n);
            match action {
                _ if result == Outcome::Missing => self.shown = None,
                Action::Register(standing) if applied => self.shown = Some(standing),
                Action::Withdraw if applied => self.shown = Some(Standing::Down),
                Action::Deregister if applied => self.shown = None,
                Action::Register(_)
                | Action::Withdraw
                | Action::Deregister
                | Action::Beat(_)
                | Action::Observe => {}
            }
            self.world.done(action, result);
        }
    }

    fn play(rhythm: Rhythm, happenings: Vec<Happening>) -> Self {
        let mut checked = Self {
            world: World::new(rhythm),
            wish: Wish::Listed(Standing::Starting),
            under_way: Vec::new(),
            registered: false,
            leaving: false,
            shown: None,
        };
        for happening in happenings {
            match happening {
                Happening::Wish(wish) => {
                    checked.wish = wish;
                    checked.world.wish(wish);
                }
                Happening::Changed => checked.world.machine.changed(checked.world.now),
                Happening::Lost(shown) => {
                    checked.shown = checked.shown.filter(|_| shown);
                    let world = &mut checked.world;
                    world.machine.lost(world.now, &mut world.rng);
                }
                Happening::Begin => checked.begin(),
                Happening::End(n, result) => {
                    checked.end(n, outcome(result), matches!(result, 0..=2 | APPLIED));
                }
                Happening::Pass(millis) => {
                    checked.world.now = checked.world.now + Duration::from_millis(millis);
                }
            }
        }
        checked
    }

    /// From here on the registry answers well. The calls until `settled`.
    fn settle(&mut self, settled: impl Fn(&Machine) -> bool) -> usize {
        while !self.under_way.is_empty() {
            self.end(0, Outcome::DONE, true);
        }
        for calls in 0..10 {
            if settled(&self.world.machine) {
                return calls;
            }
            self.begin();
            self.end(0, Outcome::DONE, true);
        }
        panic!("it never settles: {:?}", self.world.machine);
    }
}

fn rhythms() -> impl Strategy<Value = Rhythm> {
    prop_oneof![Just(NACOS), Just(EUREKA), Just(CONSUL), Just(BOUND)]
}

proptest! {
    #[test]
    fn whatever_happens_it_comes_to_what_is_wished(
        rhythm in rhythms(), happenings in happenings(), last in prop_oneof![Just(UP), Just(DOWN)],
    ) {
        let mut checked = Checked::play(rhythm, happenings);
        checked.wish = last;
        checked.world.wish(last);
        let calls = checked.settle(|machine| {
            if last == UP {
                return machine.is_up();
            }
            !matches!(machine.told(), Some(Standing::Up)) && machine.due().is_none()
        });
        prop_assert!(calls <= 4, "{calls}");
        let up = checked.shown == Some(Standing::Up);
        prop_assert_eq!(up, last == UP, "{:?}", checked.shown);
    }

    #[test]
    fn whatever_happened_the_end_is_clean(rhythm in rhythms(), happenings in happenings()) {
        let mut checked = Checked::play(rhythm, happenings);
        checked.wish = Wish::Gone;
        checked.world.wish(Wish::Gone);
        let calls = checked.settle(Machine::is_over);
        prop_assert!(calls <= 2, "{calls}");
        prop_assert_eq!(checked.world.machine.due(), None);
        prop_assert_eq!(checked.shown, None);
    }
}
