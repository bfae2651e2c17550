//! One registration as a loop towards a desired state (rule G11): what the registry is to show, what
//! it was told, and the one thing to do next with its time. Pure: the time and the randomness come
//! in, actions go out, and what became of them comes back. The driver carries them out.
//!
//! | what the registry knows | wished: up | wished: down | wished: gone |
//! |---|---|---|---|
//! | nothing of us (`Absent`) | register | - | the end |
//! | perhaps something (`Unsure`) | register | withdraw | deregister |
//! | up | beat, look once a minute | withdraw | withdraw where it marks leaving, deregister |
//! | down | register | - | deregister |
//!
//! While the app starts, a registry that has a state for it is told, another one is told nothing.
//! Everything but a beat waits until no call is under way, so a beat never follows a deregister.
//! Next: `registration/rhythm.rs` (delays), `registration/driver.rs`.

use std::time::Duration;

use super::rhythm::{Delays, Rhythm};
use crate::clock::Timestamp;

/// Light beats in a row before a full one.
const LIGHT_BEATS: u32 = 11;

/// How an instance stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The app has not passed its check yet.
    Starting,
    /// Traffic is welcome.
    Up,
    /// Alive perhaps, but no traffic.
    Down,
}

/// What the registry is to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The instance, with this standing.
    Listed(Standing),
    /// Nothing of us. There is no way back from it.
    Gone,
}

/// A call to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make the registry list the instance, as starting or as up.
    Register(Standing),
    /// Tell that it lives.
    Beat(Beat),
    /// Keep it listed, but without traffic: DOWN, disabled, critical.
    Withdraw,
    /// Take it off the list.
    Deregister,
    /// Look whether it is listed.
    Observe,
}

/// How much a beat says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// Everything: some registries make the instance from it when they do not know it.
    Full,
    /// Only who we are.
    Light,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; listed, when that was asked.
    Accepted(Terms),
    /// The registry does not know the instance.
    Missing,
    /// No answer, or one that says nothing of the instance.
    Failed(String),
    /// The registry will not take it before something changes: a setting, a right.
    Refused(String),
}

/// What an answer asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Between two beats from now on.
    pub interval: Option<Duration>,
    /// Whether light beats are understood.
    pub light: Option<bool>,
}

impl Outcome {
    /// Done, nothing asked for.
    pub const DONE: Self = Self::Accepted(Terms {
        interval: None,
        light: None,
    });
}

/// Something to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is listed as up; `again`: the registry had forgotten it, or it was down.
    Registered {
        /// Not the first time.
        again: bool,
    },
    /// It is listed without traffic.
    Withdrawn,
    /// It is off the list.
    Deregistered,
    /// The registry does not know it any more; it is registered again at once.
    Forgotten,
    /// The first call in a row that did not succeed.
    Failing {
        /// Which one.
        action: Action,
        /// Why.
        why: String,
    },
    /// The first beat that succeeds after those that did not.
    BeatsAgain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Absent,
    Unsure,
    Told(Standing),
}

/// One registration.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that do not depend on each other"
)]
pub struct Machine {
    rhythm: Rhythm,
    delays: Delays,
    wish: Wish,
    known: Known,
    /// What the registry was told is not what is to be told now.
    changed: bool,
    /// The call under way that is no beat.
    busy: Option<Action>,
    beats_under_way: u32,
    next_try: Timestamp,
    next_beat: Timestamp,
    next_look: Timestamp,
    failures: u32,
    unheard: bool,
    ever_up: bool,
    light: bool,
    light_in_a_row: u32,
}

impl Machine {
    /// Nothing is registered yet.
    pub fn new(rhythm: Rhythm, now: Timestamp) -> Self {
        Self {
            delays: Delays::new(&rhythm),
            rhythm,
            wish: Wish::Listed(Standing::Starting),
            known: Known::Absent,
            changed: false,
            busy: None,
            beats_under_way: 0,
            next_try: now,
            next_beat: now,
            next_look: now,
            failures: 0,
            unheard: false,
            ever_up: false,
            light: false,
            light_in_a_row: 0,
        }
    }

    /// What the registry is to show from now on.
    pub fn wish(&mut self, wish: Wish, now: Timestamp) {
        if self.wish == Wish::Gone || self.wish == wish {
            return;
        }
        self.wish = wish;
        // Bad news does not wait for the end of a back-off.
        if wish != Wish::Listed(Standing::Up) {
            self.next_try = self.next_try.min(now);
        }
    }

    /// The instance has another weight, say, than the registry was told.
    pub fn changed(&mut self, now: Timestamp) {
        self.changed = true;
        self.next_try = self.next_try.min(now);
    }

    /// The registry has lost what it was told: it was bound to a connection that is gone.
    pub fn lost(&mut self, now: Timestamp, rng: &mut fastrand::Rng) -> Option<Change> {
        match self.known {
            Known::Absent => None,
            Known::Unsure | Known::Told(_) => {
                let change = self.forgotten(now, rng);
                // Or it has it again, as it was last told: the link repeats that.
                self.known = Known::Unsure;
                Some(change)
            }
        }
    }

    /// When [`Self::begin`] will have something, if nothing happens before.
    pub fn due(&self) -> Option<Timestamp> {
        self.step().map(|(at, _)| at)
    }

    /// The call to make now. It is under way until [`Self::done`].
    pub fn begin(&mut self, now: Timestamp, rng: &mut fastrand::Rng) -> Option<Action> {
        let (at, action) = self.step()?;
        if at > now {
            return None;
        }
        match action {
            Action::Beat(_) => {
                self.beats_under_way += 1;
                self.next_beat = now + self.delays.beat(rng);
            }
            Action::Register(_) => {
                self.changed = false;
                self.busy = Some(action);
            }
            Action::Withdraw | Action::Deregister | Action::Observe => self.busy = Some(action),
        }
        Some(action)
    }

    /// What became of a call that [`Self::begin`] gave out.
    pub fn done(
        &mut self,
        action: Action,
        outcome: Outcome,
        now: Timestamp,
        rng: &mut fastrand::Rng,
    ) -> Option<Change> {
        match action {
            Action::Beat(_) => self.beats_under_way = self.beats_under_way.saturating_sub(1),
            Action::Register(_) | Action::Withdraw | Action::Deregister | Action::Observe => {
                self.busy = None;
            }
        }
        match outcome {
            Outcome::Accepted(terms) => self.accepted(action, terms, now, rng),
            Outcome::Missing => self.missing(action, now, rng),
            Outcome::Failed(why) => {
                let delay = self.delays.retry(self.failures.saturating_add(1), rng);
                self.failed(action, why, delay, now, rng)
            }
            Outcome::Refused(why) => {
                let delay = Delays::refused(rng);
                self.failed(action, why, delay, now, rng)
            }
        }
    }

    /// Whether the registry shows it as up, and was heard at the last try.
    pub fn is_up(&self) -> bool {
        self.known == Known::Told(Standing::Up) && !self.unheard
    }

    /// What the registry was told, as far as is known.
    pub fn told(&self) -> Option<Standing> {
        match self.known {
            Known::Absent | Known::Unsure => None,
            Known::Told(standing) => Some(standing),
        }
    }

    /// The interval in force.
    pub fn interval(&self) -> Option<Duration> {
        self.rhythm.beats.map(|_| self.delays.interval())
    }

    /// Nothing of us is left, and nothing is to come.
    pub fn is_over(&self) -> bool {
        self.wish == Wish::Gone && self.is_idle() && self.known == Known::Absent
    }

    fn is_idle(&self) -> bool {
        self.busy.is_none() && self.beats_under_way == 0
    }

    /// The next thing to do, and when.
    fn step(&self) -> Option<(Timestamp, Action)> {
        if self.busy.is_some() {
            return None;
        }
        let call = match (self.wish, self.known) {
            (Wish::Listed(Standing::Up), Known::Told(Standing::Up)) if !self.changed => {
                return self.upkeep();
            }
            (Wish::Listed(Standing::Up), _) => Action::Register(Standing::Up),
            (Wish::Listed(Standing::Starting), Known::Absent | Known::Unsure)
                if self.rhythm.starting =>
            {
                Action::Register(Standing::Starting)
            }
            (Wish::Listed(Standing::Starting), _)
            | (Wish::Listed(Standing::Down), Known::Absent | Known::Told(Standing::Down))
            | (Wish::Gone, Known::Absent) => return None,
            (Wish::Listed(Standing::Down), Known::Unsure | Known::Told(_)) => Action::Withdraw,
            (Wish::Gone, Known::Told(Standing::Up | Standing::Starting))
                if self.rhythm.marks_leaving =>
            {
                Action::Withdraw
            }
            (Wish::Gone, Known::Unsure | Known::Told(_)) => Action::Deregister,
        };
        self.is_idle().then_some((self.next_try, call))
    }

    /// A beat or a look, whichever comes first. While beats fail a look would tell nothing more.
    fn upkeep(&self) -> Option<(Timestamp, Action)> {
        let looks = self.is_idle() && !self.unheard;
        let look = looks.then_some((self.next_look, Action::Observe));
        let beats = self.rhythm.beats;
        let beat = beats
            .filter(|beats| self.beats_under_way < beats.overlap.max(1))
            .map(|_| (self.next_beat, Action::Beat(self.next_kind())));
        match (beat, look) {
            (Some(beat), Some(look)) if look.0 < beat.0 => Some(look),
            (Some(beat), _) => Some(beat),
            (None, look) => look,
        }
    }

    fn next_kind(&self) -> Beat {
        if self.light && self.light_in_a_row < LIGHT_BEATS {
            Beat::Light
        } else {
            Beat::Full
        }
    }

    /// The next beat says everything.
    fn full_next(&mut self) {
        self.light_in_a_row = LIGHT_BEATS;
    }

    fn accepted(
        &mut self,
        action: Action,
        terms: Terms,
        now: Timestamp,
        rng: &mut fastrand::Rng,
    ) -> Option<Change> {
        self.failures = 0;
        if let Some(interval) = terms.interval
            && interval != self.delays.interval()
        {
            self.delays.follow(interval);
            if let Action::Beat(_) = action {
                self.next_beat = now + self.delays.beat(rng);
            }
        }
        self.light = terms.light.unwrap_or(self.light);
        match action {
            Action::Beat(kind) => {
                self.light_in_a_row = match kind {
                    Beat::Full => 0,
                    Beat::Light => self.light_in_a_row.saturating_add(1),
                };
                let unheard = std::mem::take(&mut self.unheard);
                if unheard {
                    self.next_look = now + Delays::look(rng);
                }
                unheard.then_some(Change::BeatsAgain)
            }
            Action::Register(standing) => {
                let was_up = self.known == Known::Told(Standing::Up);
                self.known = Known::Told(standing);
                self.unheard = false;
                self.full_next();
                self.next_look = now + Delays::look(rng);
                if standing != Standing::Up {
                    return None;
                }
                let again = std::mem::replace(&mut self.ever_up, true);
                // The first beat of all comes at once; after a registry that forgot everybody the
                // beats keep to their places.
                self.next_beat = if again {
                    now + self.delays.beat(rng)
                } else {
                    now
                };
                (!was_up).then_some(Change::Registered { again })
            }
            Action::Withdraw => {
                self.known = Known::Told(Standing::Down);
                self.unheard = false;
                Some(Change::Withdrawn)
            }
            Action::Deregister => {
                self.known = Known::Absent;
                Some(Change::Deregistered)
            }
            Action::Observe => {
                self.next_look = now + Delays::look(rng);
                None
            }
        }
    }

    fn missing(
        &mut self,
        action: Action,
        now: Timestamp,
        rng: &mut fastrand::Rng,
    ) -> Option<Change> {
        match action {
            Action::Beat(_) | Action::Observe => {
                self.failures = 0;
                let known = matches!(self.known, Known::Told(_));
                let change = self.forgotten(now, rng);
                known.then_some(change)
            }
            // An answer that makes no sense for it.
            Action::Register(_) => {
                let why = "the registry does not know what is to be registered".to_owned();
                let delay = Delays::refused(rng);
                self.failed(action, why, delay, now, rng)
            }
            // Whatever the mark says of it, it is taken off the list.
            Action::Withdraw if self.wish == Wish::Gone => {
                self.known = Known::Unsure;
                self.next_try = now;
                None
            }
            Action::Withdraw => {
                self.known = Known::Absent;
                None
            }
            Action::Deregister => {
                self.known = Known::Absent;
                Some(Change::Deregistered)
            }
        }
    }

    fn forgotten(&mut self, now: Timestamp, rng: &mut fastrand::Rng) -> Change {
        self.known = Known::Absent;
        self.unheard = false;
        self.full_next();
        self.next_try = now + self.delays.again(rng);
        Change::Forgotten
    }

    fn failed(
        &mut self,
        action: Action,
        why: String,
        delay: Duration,
        now: Timestamp,
        rng: &mut fastrand::Rng,
    ) -> Option<Change> {
        if action == Action::Observe {
            // The beats tell soon enough whether it answers.
            self.next_look = now + Delays::look(rng);
            return None;
        }
        let mut first = self.failures == 0;
        self.failures = self.failures.saturating_add(1);
        match action {
            Action::Beat(_) => {
                first = !std::mem::replace(&mut self.unheard, true);
                self.full_next();
                let again = now + self.delays.beat_again(rng);
                self.next_beat = again;
                let registers = self.rhythm.beats.is_some_and(|b| b.register_after_failure);
                if registers && self.known == Known::Told(Standing::Up) {
                    self.known = Known::Unsure;
                    self.next_try = again;
                }
            }
            Action::Register(_) => {
                self.known = Known::Unsure;
                // Bad news that came meanwhile does not wait either.
                let bad = matches!(self.wish, Wish::Listed(Standing::Down) | Wish::Gone);
                self.next_try = if bad { now } else { now + delay };
            }
            // It is to go anyway: the next step is to take it off the list.
            Action::Withdraw if self.wish == Wish::Gone => {
                self.known = Known::Told(Standing::Down);
                self.next_try = now;
            }
            // It may have been done all the same.
            Action::Withdraw => {
                self.known = Known::Unsure;
                self.next_try = now + delay;
            }
            Action::Deregister | Action::Observe => self.next_try = now + delay,
        }
        first.then_some(Change::Failing { action, why })
    }
}

#[cfg(test)]
mod tests;
