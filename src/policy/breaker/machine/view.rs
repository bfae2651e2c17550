//! How a breaker stands: what the workers are shown, what control waits for, what operators see.

use std::time::Duration;

use super::{Machine, State};
use crate::clock::Timestamp;
use crate::config::types::{BreakerMode, CircuitBreaker};
use crate::policy::breaker::window::Width;
use crate::policy::breaker::words::{Order, Remembered, Stage, StateView};

impl Machine {
    /// What holds.
    pub const fn stage(&self) -> Stage {
        match (self.order, &self.state) {
            (Some((Order::ForceOpen, _)), _) => Stage::Guarded,
            (Some((Order::ForceClosed, _)), _) => Stage::Closed,
            (Some((Order::Disable, _)), _) => Stage::Off,
            (None, _) if matches!(self.settings.mode, BreakerMode::Disabled) => Stage::Off,
            (None, State::Closed) => Stage::Closed,
            (None, State::Open { .. } | State::HalfOpen { .. }) => Stage::Guarded,
        }
    }

    /// When the time alone changes something.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let order = self.order.map(|(_, until)| until);
        let own = match &self.state {
            State::Closed => None,
            State::Open { until, .. } => Some(*until),
            State::HalfOpen { trials, .. } => trials.iter().map(|trial| trial.until).min(),
        };
        [order, own].into_iter().flatten().min()
    }

    /// The present generation.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// The width of the slices.
    pub const fn width(&self) -> Width {
        self.width
    }

    /// The settings.
    pub const fn settings(&self) -> &CircuitBreaker {
        &self.settings
    }

    /// The order in force and its end.
    pub const fn ordered(&self) -> Option<(Order, Timestamp)> {
        self.order
    }

    /// Calls that were refused since it opened; under `observe` those that would have been.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// The state below any order.
    pub fn state(&self) -> StateView {
        match &self.state {
            State::Closed => StateView::Closed,
            State::Open {
                since,
                until,
                opening,
            } => StateView::Open {
                since: *since,
                until: *until,
                opening: *opening,
            },
            State::HalfOpen {
                since,
                good,
                trials,
                ..
            } => StateView::HalfOpen {
                since: *since,
                good: *good,
                trying: u32::try_from(trials.len()).unwrap_or(u32::MAX),
                permitted: self.permitted(),
            },
        }
    }

    /// What another process should know.
    pub fn remembered(&self, now: Timestamp) -> Option<Remembered> {
        if self.settings.mode != BreakerMode::Enforce || self.order.is_some() {
            return None;
        }
        let left = match &self.state {
            State::Closed => return None,
            State::Open { until, .. } => until.since(now),
            State::HalfOpen { .. } => Duration::ZERO,
        };
        Some(Remembered { left })
    }
}
