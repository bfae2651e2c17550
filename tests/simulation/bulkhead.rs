//! The bulkhead against a naive model, through seeded storms: places taken and given back in any
//! order, waits that end, turns that are missed, resizes while in use.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use outrigger::config::types::Bulkhead as Settings;
use outrigger::policy::bulkhead::{Bulkhead, Place, Waiting};

/// One that waits: its number, whether it is urgent.
type Turn = (u64, bool);

struct Storm {
    rng: Rng,
    bulkhead: Arc<Bulkhead>,
    settings: Settings,
    inside: Vec<Place>,
    waiting: Vec<(u64, Waiting)>,
    /// In the order they are to be called.
    line: Vec<Turn>,
    /// Called and not looked: they hold a place.
    called: Vec<u64>,
    numbers: u64,
    /// Refused, called, missed, left, shrunk below what is in use.
    seen: [u64; 5],
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let settings = any_settings(&mut rng);
        Self {
            bulkhead: Bulkhead::new(&settings),
            settings,
            inside: Vec::new(),
            waiting: Vec::new(),
            line: Vec::new(),
            called: Vec::new(),
            numbers: 0,
            seen: [0; 5],
            rng,
        }
    }

    fn in_use(&self) -> usize {
        self.inside.len() + self.called.len()
    }

    fn limit(&self) -> usize {
        usize::try_from(self.settings.max_concurrent_calls).unwrap()
    }

    fn step(&mut self) {
        match self.rng.u8(0..100) {
            0..50 => self.arrive(),
            50..80 => self.finish(),
            80..90 => self.look(),
            90..96 => self.leave(),
            _ => self.resize(),
        }
        let (in_use, waiting) = (self.bulkhead.in_use(), self.bulkhead.waiting());
        assert_eq!(usize::try_from(in_use).unwrap(), self.in_use());
        assert_eq!(usize::try_from(waiting).unwrap(), self.line.len());
        // Nobody waits beside a free place.
        assert!(self.line.is_empty() || self.in_use() >= self.limit());
    }

    fn arrive(&mut self) {
        let free = self.line.is_empty() && self.in_use() < self.limit();
        let place = self.bulkhead.take();
        assert_eq!(place.is_some(), free);
        if let Some(place) = place {
            self.inside.push(place);
            return;
        }
        let urgent = self.rng.u8(0..4) == 0;
        let room = self.line.len() < usize::try_from(self.settings.max_queue).unwrap();
        match self.bulkhead.queue(urgent) {
            Ok(Ok(_)) => panic!("no place was free"),
            Ok(Err(waiting)) => {
                assert!(room);
                self.numbers += 1;
                let at = self.line.iter().position(|(_, other)| urgent && !other);
                let at = at.unwrap_or(self.line.len());
                self.line.insert(at, (self.numbers, urgent));
                self.waiting.push((self.numbers, waiting));
            }
            Err(full) => {
                assert!(!room);
                assert_eq!(usize::try_from(full.in_use).unwrap(), self.in_use());
                self.seen[0] += 1;
            }
        }
    }

    /// A place came back: the model's side.
    fn came_back(&mut self) {
        // One is gone from `in_use` already.
        if self.in_use() < self.limit() && !self.line.is_empty() {
            let (number, _) = self.line.remove(0);
            self.called.push(number);
            self.seen[1] += 1;
        }
    }

    fn finish(&mut self) {
        if self.inside.is_empty() {
            return;
        }
        let at = self.rng.usize(0..self.inside.len());
        drop(self.inside.swap_remove(at));
        self.came_back();
    }

    /// Those who were called notice it.
    fn look(&mut self) {
        for (number, waiting) in &mut self.waiting {
            let called = self.called.iter().position(|it| it == number);
            let place = waiting.try_called();
            assert_eq!(place.is_some(), called.is_some());
            if let (Some(place), Some(at)) = (place, called) {
                self.called.swap_remove(at);
                self.inside.push(place);
            }
        }
        let line: Vec<u64> = self.line.iter().map(|turn| turn.0).collect();
        self.waiting.retain(|(number, _)| line.contains(number));
    }

    /// One stops to wait, its time over or its app gone.
    fn leave(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let at = self.rng.usize(0..self.waiting.len());
        let (number, waiting) = self.waiting.swap_remove(at);
        let called = self.called.iter().position(|it| *it == number);
        self.line.retain(|turn| turn.0 != number);
        self.seen[3] += 1;
        if self.rng.bool() {
            let place = waiting.give_up();
            assert_eq!(place.is_some(), called.is_some());
            if let (Some(place), Some(at)) = (place, called) {
                self.called.swap_remove(at);
                self.inside.push(place);
            }
            return;
        }
        drop(waiting);
        if let Some(at) = called {
            self.called.swap_remove(at);
            self.seen[2] += 1;
            self.came_back();
        }
    }

    fn resize(&mut self) {
        self.settings = any_settings(&mut self.rng);
        self.bulkhead.configure(&self.settings);
        self.seen[4] += u64::from(self.in_use() > self.limit());
        while self.in_use() < self.limit() && !self.line.is_empty() {
            let (number, _) = self.line.remove(0);
            self.called.push(number);
        }
    }
}

fn any_settings(rng: &mut Rng) -> Settings {
    Settings {
        max_concurrent_calls: rng.u32(1..8),
        max_queue: rng.u32(0..8),
        max_wait_duration: Duration::from_secs(1),
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn no_storm_loses_a_place_or_a_turn() {
    let first = number("OUTRIGGER_SIM_SEED", 1);
    let seeds = number("OUTRIGGER_SIM_SEEDS", 200);
    let steps = number("OUTRIGGER_SIM_STEPS", 2_000);
    let mut seen = [0; 5];
    for seed in first..first + seeds {
        let mut storm = Storm::new(seed);
        for step in 0..steps {
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| storm.step())).is_err() {
                panic!("seed {seed} step {step}");
            }
        }
        drop(storm.waiting);
        drop(storm.inside);
        assert_eq!((storm.bulkhead.in_use(), storm.bulkhead.waiting()), (0, 0));
        for (sum, n) in seen.iter_mut().zip(storm.seen) {
            *sum += n;
        }
    }
    if seeds >= 200 && steps >= 2_000 {
        assert!(seen.iter().all(|n| *n > seeds), "{seen:?}");
    }
}
