//! The circuit breaker of an upstream or a route, shared by all workers. While it is closed a request
//! pays one load of a word and, for a good answer, one store into a cell of its own worker. The lock of
//! the machine is taken for bad calls, while it is open or half-open, and by control.
//! The rules are in `breaker/machine.rs`; the caller is `policy/stack.rs`.

pub mod cells;
pub mod machine;
pub mod window;
pub mod words;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use self::cells::GoodCalls;
use self::machine::{GENERATIONS, Machine};
use self::window::Width;
use self::words::{Counts, Effect, Order, Pass, Refused, Remembered, Stage, StateView, Verdict};
use crate::clock::Timestamp;
use crate::config::types::{BreakerMode, CircuitBreaker};

/// A breaker.
#[derive(Debug)]
pub struct Breaker {
    /// What the workers need of the machine's state, in one load: see [`Word`].
    word: AtomicU64,
    /// Longer calls are slow; nanoseconds.
    slow_after: AtomicU64,
    good: GoodCalls,
    // A short section: a bad call, or any call while it is not closed.
    machine: Mutex<Machine>,
    /// Told when there is something to tell.
    news: Arc<Notify>,
}

/// Stage, generation and width of the slices: bits 0-1, 2-25, 32-63.
#[derive(Clone, Copy, Debug)]
struct Word(u64);

impl Word {
    fn of(machine: &Machine) -> Self {
        let stage = match machine.stage() {
            Stage::Off => 0,
            Stage::Closed => 1,
            Stage::Guarded => 2,
        };
        let generation = u64::from(machine.generation() & GENERATIONS);
        Self(stage | generation << 2 | u64::from(machine.width().millis()) << 32)
    }

    const fn stage(self) -> Stage {
        match self.0 & 3 {
            0 => Stage::Off,
            1 => Stage::Closed,
            _ => Stage::Guarded,
        }
    }

    fn generation(self) -> u32 {
        u32::try_from(self.0 >> 2 & u64::from(GENERATIONS)).unwrap_or(0)
    }

    fn width(self) -> Width {
        Width::from_millis(u32::try_from(self.0 >> 32).unwrap_or(u32::MAX))
    }
}

/// How a breaker stands, for status and metrics.
#[derive(Clone, Debug)]
pub struct View {
    /// Its mode.
    pub mode: BreakerMode,
    /// Its state below any order.
    pub state: StateView,
    /// The order in force and its end.
    pub ordered: Option<(Order, Timestamp)>,
    /// The window.
    pub counts: Counts,
    /// Calls that were refused since it opened; under `observe`, would have been.
    pub refused: u64,
    /// The settings.
    pub settings: CircuitBreaker,
}

impl Breaker {
    /// A closed one; `news` is told when [`Breaker::settle`] has something new.
    pub fn new(settings: &CircuitBreaker, workers: usize, news: Arc<Notify>) -> Self {
        let machine = Machine::new(settings.clone());
        Self {
            word: AtomicU64::new(Word::of(&machine).0),
            slow_after: AtomicU64::new(nanos(settings.slow_call_duration)),
            good: GoodCalls::new(workers),
            machine: Mutex::new(machine),
            news,
        }
    }

    fn word(&self) -> Word {
        Word(self.word.load(Relaxed))
    }

    /// Whether it has nothing to do with calls at all.
    pub fn is_off(&self) -> bool {
        self.word().stage() == Stage::Off
    }

    /// Lets a call through; `None`: it is not counted.
    ///
    /// # Errors
    /// It is refused.
    pub fn admit(&self, now: Timestamp) -> Result<Option<Pass>, Refused> {
        let word = self.word();
        match word.stage() {
            Stage::Off => Ok(None),
            Stage::Closed => Ok(Some(Pass {
                generation: word.generation(),
                trial: None,
            })),
            Stage::Guarded => self.with(|machine| machine.admit(now).map(Some)),
        }
    }

    /// Whether a call that is asked for now is refused. Takes no trial; the time is read only where it
    /// is needed.
    ///
    /// # Errors
    /// It is.
    pub fn check(&self, now: impl FnOnce() -> Timestamp) -> Result<(), Refused> {
        match self.word().stage() {
            Stage::Off | Stage::Closed => Ok(()),
            Stage::Guarded => {
                let now = now();
                self.with(|machine| machine.check(now))
            }
        }
    }

    /// Whether a call would be refused now.
    pub fn refuses(&self, now: Timestamp) -> bool {
        match self.word().stage() {
            Stage::Off | Stage::Closed => false,
            Stage::Guarded => self.with(|machine| machine.refuses(now)),
        }
    }

    /// Whether a call would be a trial now.
    pub fn offers_trial(&self, now: Timestamp) -> bool {
        match self.word().stage() {
            Stage::Off | Stage::Closed => false,
            Stage::Guarded => self.with(|machine| machine.offers_trial(now)),
        }
    }

    /// Whether a call whose head took this long is slow.
    pub fn is_slow(&self, took: Duration) -> bool {
        nanos(took) > self.slow_after.load(Relaxed)
    }

    /// A trial's response head came.
    pub fn head(&self, pass: Pass, slow: bool, now: Timestamp) {
        self.with(|machine| machine.head(pass, slow, now));
    }

    /// The outcome of a call that was let through, seen by `worker`.
    pub fn record(&self, worker: usize, pass: Pass, verdict: Verdict, slow: bool, now: Timestamp) {
        if pass.trial.is_none() {
            let word = self.word();
            let counted = word.stage() == Stage::Closed && word.generation() == pass.generation;
            if !counted || verdict == Verdict::Ignored {
                return;
            }
            if verdict == Verdict::Good && !slow {
                let slice = word.width().slice(now);
                self.good.count(worker, pass.generation, slice);
                return;
            }
        }
        self.with(|machine| {
            // The window of the machine's time, which an old reading of the clock is behind.
            let now = machine.settle(now);
            let good = self.good_calls(machine, now);
            machine.record(pass, verdict, slow, good, now);
        });
    }

    fn good_calls(&self, machine: &Machine, now: Timestamp) -> u64 {
        let newest = machine.width().slice(now);
        self.good.sum(machine.generation(), newest)
    }

    /// New settings after a reload.
    pub fn configure(&self, settings: &CircuitBreaker, now: Timestamp) {
        self.slow_after
            .store(nanos(settings.slow_call_duration), Relaxed);
        self.with(|machine| {
            if machine.settings() != settings {
                machine.configure(settings.clone(), now);
            }
        });
    }

    /// An operator's order.
    pub fn order(&self, order: Order, until: Timestamp, now: Timestamp) {
        self.with(|machine| machine.order(order, until, now));
    }

    /// Its end.
    pub fn release(&self, now: Timestamp) {
        self.with(|machine| machine.release(now));
    }

    /// What an earlier process knew.
    pub fn recall(&self, remembered: Remembered, now: Timestamp) {
        self.with(|machine| machine.recall(remembered, now));
    }

    /// What another process should know.
    pub fn remembered(&self, now: Timestamp) -> Option<Remembered> {
        self.lock().remembered(now)
    }

    /// Lets the time come to `now`; what there is to tell, and when the time alone changes something.
    pub fn settle(&self, now: Timestamp) -> (Vec<Effect>, Option<Timestamp>) {
        self.with(|machine| {
            machine.settle(now);
            let effects = std::iter::from_fn(|| machine.poll_effect()).collect();
            (effects, machine.next_deadline())
        })
    }

    /// How it stands.
    pub fn view(&self, now: Timestamp) -> View {
        self.with(|machine| {
            let now = machine.settle(now);
            let good = self.good_calls(machine, now);
            View {
                mode: machine.settings().mode,
                state: machine.state(),
                ordered: machine.ordered(),
                counts: machine.counts(good, now),
                refused: machine.refused(),
                settings: machine.settings().clone(),
            }
        })
    }

    /// Does something with the machine, and shows the workers what came of it.
    fn with<T>(&self, change: impl FnOnce(&mut Machine) -> T) -> T {
        let mut machine = self.lock();
        let untold = machine.has_effects();
        let done = change(&mut machine);
        self.word.store(Word::of(&machine).0, Relaxed);
        let news = !untold && machine.has_effects();
        drop(machine);
        if news {
            self.news.notify_one();
        }
        done
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
