//! What is told of a registration: by its driver, for admin, metrics and whoever waits for it. Pure.

use std::sync::Arc;
use std::time::Duration;

use super::machine::{Action, Outcome, Standing};
use crate::clock::Timestamp;

/// What the registry was told last, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// Nothing, or it forgot, or nobody knows.
    #[default]
    Nothing,
    /// The app starts.
    Starting,
    /// The app takes traffic.
    Up,
    /// The app takes none.
    Down,
}

impl Told {
    /// As in the admin API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "absent",
            Self::Starting => "starting",
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

impl From<Standing> for Told {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Starting => Self::Starting,
            Standing::Up => Self::Up,
            Standing::Down => Self::Down,
        }
    }
}

/// One registration as it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// What the registry was told.
    pub told: Told,
    /// It is listed as up, and the registry took the last beat.
    pub up: bool,
    /// Nothing of it is left.
    pub over: bool,
    /// The interval of its beats.
    pub interval: Option<Duration>,
    /// When the registry last took a call.
    pub last_success: Option<Timestamp>,
    /// Why it did not take the last one; `None` when it did.
    pub error: Option<Arc<str>>,
    /// Beats that were taken.
    pub beats: u64,
    /// Beats that were not taken, or whose instance was unknown.
    pub failed_beats: u64,
    /// Why the very first call did not succeed; `Some(None)` when it did.
    pub first: Option<Option<Arc<str>>>,
}

impl View {
    /// Counts a call that ended.
    pub(super) fn count(&mut self, action: Action, outcome: &Outcome, now: Timestamp) {
        let error = match outcome {
            Outcome::Accepted(_) => None,
            Outcome::Missing if matches!(action, Action::Deregister | Action::Withdraw) => None,
            Outcome::Missing => Some(Arc::from("the registry does not know the instance")),
            Outcome::Failed(why) | Outcome::Refused(why) => Some(Arc::from(why.as_str())),
        };
        if let Action::Beat(_) = action {
            let counter = match error {
                None => &mut self.beats,
                Some(_) => &mut self.failed_beats,
            };
            *counter = counter.saturating_add(1);
        }
        if error.is_none() {
            self.last_success = Some(now);
        }
        if self.first.is_none() {
            self.first = Some(error.clone());
        }
        self.error = error;
    }
}
