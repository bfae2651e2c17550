//! How the process ends, and how far it has come: wishes of signals and of the admin API on one
//! side, what is told of them on the other.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// How the process is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Not yet.
    No,
    /// Drain, and stay for questions.
    Drain,
    /// Drain, then end.
    Quit,
    /// At once.
    Now,
}

/// How far a drain has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// None was asked for.
    Serving,
    /// Callers are given time to look elsewhere; everything is served.
    Leaving,
    /// No new connections; what is in flight is finished.
    Draining,
    /// Everything is finished, or the time for it is over.
    Drained,
}

impl Stage {
    /// As in the admin API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Leaving => "leaving",
            Self::Draining => "draining",
            Self::Drained => "drained",
        }
    }
}

/// Who asked for the end and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// `signal`, or a name the caller of the API gave itself.
    pub actor: String,
    /// Why.
    pub note: Option<String>,
}

/// Wishes and how far they have come; clones are the same one.
#[derive(Clone, Debug)]
pub struct Lifecycle(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stop: watch::Sender<Stop>,
    stage: watch::Sender<Stage>,
    // Written once or twice in a life, read by the event.
    asked: Mutex<Option<Asked>>,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self::new()
    }
}

impl Lifecycle {
    /// Of a process that serves.
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            stop: watch::Sender::new(Stop::No),
            stage: watch::Sender::new(Stage::Serving),
            asked: Mutex::new(None),
        }))
    }

    /// A wish; one that asks for less than is under way changes nothing. Returns what holds.
    pub fn ask(&self, wish: Stop, by: Asked) -> Stop {
        let mut asked = self.0.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let now = *self.0.stop.borrow();
        if wish > now {
            *asked = Some(by);
            self.0.stop.send_replace(wish);
        }
        now.max(wish)
    }

    /// A signal: the first one ends in order, a second one at once. Returns what holds.
    pub fn signalled(&self) -> Stop {
        let wish = match *self.0.stop.borrow() {
            Stop::No | Stop::Drain => Stop::Quit,
            Stop::Quit | Stop::Now => Stop::Now,
        };
        let by = Asked {
            actor: "signal".to_owned(),
            note: None,
        };
        self.ask(wish, by)
    }

    /// Follows the wishes.
    pub fn wishes(&self) -> watch::Receiver<Stop> {
        self.0.stop.subscribe()
    }

    /// Whose wish is carried out.
    pub fn asked(&self) -> Option<Asked> {
        let asked = self.0.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.clone()
    }

    /// How far it has come.
    pub fn stage(&self) -> Stage {
        *self.0.stage.borrow()
    }

    /// It has come so far.
    pub fn reached(&self, stage: Stage) {
        self.0.stage.send_replace(stage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_only_grow() {
        let by = || Asked {
            actor: "a".to_owned(),
            note: None,
        };
        let lifecycle = Lifecycle::new();
        assert_eq!(lifecycle.ask(Stop::Drain, by()), Stop::Drain);
        // A drain by the API does not make the first signal the second.
        assert_eq!(lifecycle.signalled(), Stop::Quit);
        assert_eq!(lifecycle.ask(Stop::Drain, by()), Stop::Quit);
        assert_eq!(lifecycle.asked().unwrap().actor, "signal");
        assert_eq!(lifecycle.signalled(), Stop::Now);
    }
}
