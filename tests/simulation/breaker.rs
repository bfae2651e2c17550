//! The circuit breaker as the workers share it, against a naive model, through seeded storms: calls
//! that overlap, late answers, lost trials, arrivals at one instant, clocks that stall and jump,
//! orders, reloads. How many and how long: as in `detector.rs`.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use outrigger::clock::Timestamp;
use outrigger::config::types::{BreakerMode, CircuitBreaker};
use outrigger::policy::breaker::Breaker;
use outrigger::policy::breaker::words::{EffectKind, Order, Pass, StateView, Verdict};

const WORKERS: usize = 2;

/// A call that is under way.
#[derive(Clone, Copy, Debug)]
struct Call {
    pass: Pass,
    /// As the model numbers it.
    model: Shadow,
}

/// What the model knows of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shadow {
    era: u64,
    trial: Option<u64>,
}

#[derive(Clone, Debug)]
enum Phase {
    Closed,
    /// Since when, until when.
    Open(u64, u64),
    /// Good trials, and those under way: number, deadline, whether a good head came.
    Half(u32, Vec<(u64, u64, bool)>),
}

/// All calls since the beginning of the present era, nothing ever dropped; times in milliseconds.
struct Model {
    settings: CircuitBreaker,
    phase: Phase,
    era: u64,
    calls: Vec<(u64, bool, bool)>,
    order: Option<(Order, u64)>,
    now: u64,
    trials: u64,
    told: Vec<&'static str>,
}

impl Model {
    fn tenth(&self) -> u64 {
        u64::try_from(self.settings.sliding_window_size.as_millis()).unwrap() / 10
    }

    fn new_era(&mut self, phase: Phase, told: Option<&'static str>) {
        self.phase = phase;
        self.era += 1;
        self.calls.clear();
        self.told.extend(told);
    }

    fn open(&mut self) {
        let wait = self.settings.wait_duration_in_open_state;
        let wait = u64::try_from(wait.as_millis()).unwrap();
        self.new_era(Phase::Open(self.now, self.now + wait), Some("opened"));
    }

    fn after_order(&mut self, order: Order) {
        let enforce = self.settings.mode == BreakerMode::Enforce;
        if order == Order::ForceOpen && enforce {
            self.new_era(Phase::Half(0, Vec::new()), Some("half_open"));
        } else {
            self.new_era(Phase::Closed, None);
        }
    }

    fn pass_time(&mut self, now: u64) {
        self.now = self.now.max(now);
        if let Some((order, until)) = self.order
            && until <= self.now
        {
            self.order = None;
            self.told.push("order_ended");
            self.after_order(order);
        }
        if let Phase::Open(_, until) = self.phase
            && until <= self.now
        {
            self.new_era(Phase::Half(0, Vec::new()), Some("half_open"));
        }
        if let Phase::Half(good, trials) = &mut self.phase {
            let over = trials.iter().filter(|(_, until, _)| *until <= self.now);
            let lost = over.clone().any(|(.., head)| !head);
            *good += u32::try_from(over.filter(|(.., head)| *head).count()).unwrap();
            trials.retain(|(_, until, _)| *until > self.now);
            if lost {
                self.open();
            }
        }
        self.perhaps_close();
    }

    fn perhaps_close(&mut self) {
        let permitted = self.settings.permitted_number_of_calls_in_half_open_state;
        if let Phase::Half(good, _) = self.phase
            && good >= permitted
        {
            self.new_era(Phase::Closed, Some("closed"));
        }
    }

    /// `None`: refused.
    fn admit(&mut self) -> Option<Shadow> {
        let plain = Shadow {
            era: self.era,
            trial: None,
        };
        match self.order {
            Some((Order::ForceOpen, _)) => return None,
            Some(_) => return Some(plain),
            None if self.settings.mode == BreakerMode::Disabled => return Some(plain),
            None => {}
        }
        let slow = self.settings.slow_call_duration + Duration::from_secs(1);
        let lease = self.now + u64::try_from(slow.as_millis()).unwrap();
        let permitted = self.settings.permitted_number_of_calls_in_half_open_state;
        match &mut self.phase {
            Phase::Closed => return Some(plain),
            Phase::Half(good, trials)
                if *good + u32::try_from(trials.len()).unwrap() < permitted =>
            {
                self.trials += 1;
                trials.push((self.trials, lease, false));
                return Some(Shadow {
                    era: self.era,
                    trial: Some(self.trials),
                });
            }
            Phase::Open(..) | Phase::Half(..) => {}
        }
        (self.settings.mode == BreakerMode::Observe).then_some(plain)
    }

    fn counts(&self) -> (u64, u64, u64) {
        let first = (self.now / self.tenth()).saturating_sub(9);
        let inside = |at: u64| at / self.tenth() >= first;
        let inside: Vec<_> = self.calls.iter().filter(|c| inside(c.0)).collect();
        let count = |flag: fn(&(u64, bool, bool)) -> bool| {
            inside.iter().filter(|call| flag(call)).count() as u64
        };
        (inside.len() as u64, count(|c| c.1), count(|c| c.2))
    }

    fn record(&mut self, call: Shadow, verdict: Verdict, slow: bool, at: u64) {
        let off = match self.order {
            Some((Order::Disable, _)) => true,
            Some(_) => false,
            None => self.settings.mode == BreakerMode::Disabled,
        };
        if call.era != self.era || off {
            return;
        }
        match (&mut self.phase, call.trial) {
            (Phase::Closed, None) if verdict != Verdict::Ignored => {
                let failed = verdict == Verdict::Failed;
                // A good one is counted by its worker, at that one's time.
                let at = if failed || slow { self.now } else { at };
                self.calls.push((at, failed, slow));
                let (calls, bad, late) = self.counts();
                let enough = calls >= u64::from(self.settings.minimum_number_of_calls);
                let rate = |part: u64, bp: u32| part * 10_000 >= calls * u64::from(bp);
                let judged = (failed || slow) && enough && self.order.is_none();
                if judged
                    && (rate(bad, self.settings.failure_rate_bp)
                        || rate(late, self.settings.slow_call_rate_bp))
                {
                    self.open();
                }
            }
            (Phase::Half(good, trials), Some(id)) => {
                let Some(at) = trials.iter().position(|trial| trial.0 == id) else {
                    return;
                };
                trials.remove(at);
                match verdict {
                    Verdict::Ignored => {}
                    Verdict::Good if !slow => *good += 1,
                    Verdict::Good | Verdict::Failed => self.open(),
                }
                self.perhaps_close();
            }
            _ => {}
        }
    }

    fn head(&mut self, call: Shadow, slow: bool) {
        let era = self.era;
        let Phase::Half(_, trials) = &mut self.phase else {
            return;
        };
        let trial = trials.iter_mut().find(|trial| Some(trial.0) == call.trial);
        match trial {
            Some(_) if slow && call.era == era => self.open(),
            Some(trial) if call.era == era => trial.2 = true,
            Some(_) | None => {}
        }
    }
}

struct Storm {
    rng: Rng,
    now: u64,
    breaker: Breaker,
    model: Model,
    calls: Vec<Call>,
    /// A worker's clock never goes back.
    clocks: [u64; WORKERS],
    history: Vec<String>,
    /// How many transitions there were, by name.
    seen: std::collections::BTreeMap<&'static str, u64>,
}

fn any_settings(rng: &mut Rng) -> CircuitBreaker {
    let modes = [
        BreakerMode::Enforce,
        BreakerMode::Enforce,
        BreakerMode::Enforce,
        BreakerMode::Observe,
        BreakerMode::Disabled,
    ];
    CircuitBreaker {
        mode: rng.choice(modes).unwrap(),
        failure_rate_bp: rng.choice([100, 2_500, 5_000, 10_000]).unwrap(),
        slow_call_rate_bp: rng.choice([5_000, 10_000]).unwrap(),
        slow_call_duration: Duration::from_millis(rng.choice([10, 500, 5_000]).unwrap()),
        minimum_number_of_calls: rng.u32(1..12),
        sliding_window_size: Duration::from_millis(rng.choice([1_000, 10_000]).unwrap()),
        wait_duration_in_open_state: Duration::from_millis(rng.u64(1..8_000)),
        permitted_number_of_calls_in_half_open_state: rng.u32(1..5),
    }
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let settings = any_settings(&mut rng);
        Self {
            breaker: Breaker::new(&settings, WORKERS, Arc::default()),
            model: Model {
                settings,
                phase: Phase::Closed,
                era: 0,
                calls: Vec::new(),
                order: None,
                now: 0,
                trials: 0,
                told: Vec::new(),
            },
            now: 0,
            calls: Vec::new(),
            clocks: [0; WORKERS],
            history: Vec::new(),
            seen: std::collections::BTreeMap::new(),
            rng,
        }
    }

    const fn at(&self) -> Timestamp {
        Timestamp::from_millis(self.now)
    }

    fn step(&mut self) {
        match self.rng.u8(0..100) {
            0..30 => {}
            30..70 => self.now += self.rng.u64(0..40),
            70..90 => self.now += self.rng.u64(0..900),
            // Exactly at a deadline.
            90..96 => {
                let (_, next) = self.settle();
                let next = next.map_or(self.now, Timestamp::as_millis);
                self.now = self.now.max(next.min(self.now + 30_000));
            }
            96..98 => self.now += self.rng.u64(0..60_000),
            // Another thread's clock reading, a little old.
            _ => self.now = self.now.saturating_sub(self.rng.u64(0..3_000)),
        }
        match self.rng.u8(0..100) {
            0..45 => {
                for _ in 0..self.rng.choice([1, 1, 1, 6]).unwrap() {
                    self.arrive();
                }
            }
            45..88 => self.answer(),
            88..92 => self.first_byte(),
            92..95 => {
                self.settle();
            }
            95..97 => self.command(),
            97 => self.reload(),
            _ => self.forget_some(),
        }
        self.compare();
    }

    fn arrive(&mut self) {
        if self.model.order.is_some_and(|(_, until)| until <= self.now) {
            // Control's timer: what lets all calls pass does not ask for the time.
            self.settle();
        }
        self.model.pass_time(self.now);
        let refuses = self.breaker.refuses(self.at());
        let got = self.breaker.admit(self.at());
        let want = self.model.admit();
        self.history.push(format!("{} arrive {got:?}", self.now));
        assert_eq!(got.is_err(), want.is_none(), "{got:?} {want:?}");
        assert_eq!(refuses, got.is_err());
        if let (Ok(Some(pass)), Some(model)) = (got, want) {
            assert_eq!(pass.trial.is_some(), model.trial.is_some());
            self.calls.push(Call { pass, model });
        }
        assert!(self.calls.len() < 100_000);
    }

    fn any_call(&mut self, keep: bool) -> Option<Call> {
        if self.calls.is_empty() {
            return None;
        }
        let at = self.rng.usize(0..self.calls.len());
        Some(if keep {
            self.calls[at]
        } else {
            self.calls.swap_remove(at)
        })
    }

    fn answer(&mut self) {
        // Sometimes an answer comes twice.
        let keep = self.rng.u8(0..30) == 0;
        let Some(call) = self.any_call(keep) else {
            return;
        };
        let verdict = match self.rng.u8(0..10) {
            0 => Verdict::Ignored,
            1..4 => Verdict::Failed,
            _ => Verdict::Good,
        };
        let slow = self.rng.u8(0..8) == 0;
        let worker = self.rng.usize(0..WORKERS);
        self.history
            .push(format!("{} answer {call:?} {verdict:?} {slow}", self.now));
        let at = self.now.max(self.clocks[worker]);
        self.clocks[worker] = at;
        self.breaker
            .record(worker, call.pass, verdict, slow, Timestamp::from_millis(at));
        self.model.pass_time(at);
        self.model.record(call.model, verdict, slow, at);
    }

    fn first_byte(&mut self) {
        let Some(call) = self.any_call(true) else {
            return;
        };
        if call.pass.trial.is_none() {
            return;
        }
        let slow = self.rng.u8(0..6) == 0;
        self.history
            .push(format!("{} head {call:?} {slow}", self.now));
        self.breaker.head(call.pass, slow, self.at());
        self.model.pass_time(self.now);
        self.model.head(call.model, slow);
    }

    /// Trials and others whose answers never come.
    fn forget_some(&mut self) {
        for _ in 0..self.rng.usize(0..3) {
            self.any_call(false);
        }
    }

    fn command(&mut self) {
        let order = self
            .rng
            .choice([Order::ForceOpen, Order::ForceClosed, Order::Disable]);
        let order = order.unwrap();
        self.model.pass_time(self.now);
        let open = !matches!(self.model.phase, Phase::Closed);
        if self.rng.bool() {
            self.history.push(format!("{} release", self.now));
            self.breaker.release(self.at());
            if let Some((order, _)) = self.model.order.take() {
                self.model.after_order(order);
            }
        } else {
            let until = self.now.max(self.model.now) + self.rng.u64(1..4_000);
            self.history.push(format!("{} {order:?}", self.now));
            self.breaker
                .order(order, Timestamp::from_millis(until), self.at());
            self.model.order = Some((order, until));
            self.model.new_era(Phase::Closed, open.then_some("closed"));
        }
    }

    fn reload(&mut self) {
        let mut settings = any_settings(&mut self.rng);
        if self.rng.bool() {
            settings.mode = self.model.settings.mode;
        }
        self.history.push(format!("{} {settings:?}", self.now));
        self.breaker.configure(&settings, self.at());
        if settings == self.model.settings {
            return;
        }
        self.model.pass_time(self.now);
        let open = !matches!(self.model.phase, Phase::Closed);
        let old = std::mem::replace(&mut self.model.settings, settings);
        let new = &self.model.settings;
        let (mode, window) = (
            old.mode != new.mode,
            old.sliding_window_size != new.sliding_window_size,
        );
        let wait = u64::try_from(new.wait_duration_in_open_state.as_millis()).unwrap();
        if mode {
            self.model.new_era(Phase::Closed, open.then_some("closed"));
        }
        if window && matches!(self.model.phase, Phase::Closed) {
            self.model.new_era(Phase::Closed, None);
        }
        if let Phase::Open(since, until) = &mut self.model.phase {
            *until = (*until).min(*since + wait);
        }
        self.model.perhaps_close();
        self.model.pass_time(self.now);
    }

    fn settle(&mut self) -> (usize, Option<Timestamp>) {
        self.model.pass_time(self.now);
        let (effects, next) = self.breaker.settle(self.at());
        let got: Vec<&str> = effects
            .iter()
            .map(|effect| match effect.kind {
                EffectKind::Opened { .. } => "opened",
                EffectKind::HalfOpen { .. } => "half_open",
                EffectKind::Closed { .. } => "closed",
                EffectKind::OrderEnded(_) => "order_ended",
            })
            .collect();
        let want = std::mem::take(&mut self.model.told);
        assert_eq!(got, want);
        for name in want {
            *self.seen.entry(name).or_default() += 1;
        }
        (got.len(), next)
    }

    fn compare(&mut self) {
        self.settle();
        let view = self.breaker.view(self.at());
        let same = match (&view.state, &self.model.phase) {
            (StateView::Closed, Phase::Closed) => true,
            (StateView::Open { until, .. }, Phase::Open(_, want)) => until.as_millis() == *want,
            (StateView::HalfOpen { good, trying, .. }, Phase::Half(want, trials)) => {
                assert!(
                    good + trying
                        <= (want + u32::try_from(trials.len()).unwrap()).max(
                            self.model
                                .settings
                                .permitted_number_of_calls_in_half_open_state
                        )
                );
                good == want && usize::try_from(*trying).unwrap() == trials.len()
            }
            _ => false,
        };
        assert!(same, "{:?} is not {:?}", view.state, self.model.phase);
        let counts = (view.counts.calls, view.counts.failed, view.counts.slow);
        if matches!(self.model.phase, Phase::Closed) {
            assert_eq!(counts, self.model.counts());
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_breaker_and_a_naive_model_agree_through_every_storm() {
        let first = number("OUTRIGGER_SIM_SEED", 1);
        let seeds = number("OUTRIGGER_SIM_SEEDS", 200);
        let steps = number("OUTRIGGER_SIM_STEPS", 2_000);
        let mut seen = std::collections::BTreeMap::new();
        for seed in first..first + seeds {
            let mut storm = Storm::new(seed);
            for step in 0..steps {
                let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| storm.step()));
                if tried.is_err() {
                    let from = storm.history.len().saturating_sub(25);
                    panic!(
                        "seed {seed} step {step}:\n{}",
                        storm.history[from..].join("\n")
                    );
                }
            }
            for (name, count) in storm.seen {
                *seen.entry(name).or_insert(0) += count;
            }
        }
        // A storm in which something never happens proves nothing of it.
        if seeds >= 200 && steps >= 2_000 {
            for name in ["opened", "half_open", "closed", "order_ended"] {
                assert!(seen.get(name).is_some_and(|n| *n > seeds), "{seen:?}");
            }
        }
    }
}
