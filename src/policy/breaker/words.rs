//! What goes into the circuit breaker's machine and comes out of it: passes, verdicts, orders, views,
//! effects. Pure. Next: `breaker/machine.rs`.

use std::time::Duration;

use crate::clock::Timestamp;

/// What lets a call through, to be handed back with its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Of the state it was given in.
    pub generation: u32,
    /// Which trial it is.
    pub trial: Option<u64>,
}

/// What a call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A proper answer.
    Good,
    /// A failure.
    Failed,
    /// It says nothing.
    Ignored,
}

/// A call that is not let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub by: RefusedBy,
    /// How long until calls are let through again, as far as that is known.
    pub retry_after: Option<Duration>,
    /// What opened it.
    pub opening: Opening,
}

/// What refuses calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedBy {
    /// It is open.
    Open,
    /// Half-open, and all trials are taken.
    Trials,
    /// An operator.
    Operator,
}

/// Why it opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The failure rate reached its threshold.
    FailureRate,
    /// The rate of slow calls did.
    SlowCallRate,
    /// A trial failed.
    Trial,
    /// A trial was slow.
    SlowTrial,
    /// A trial gave no answer within its lease.
    LostTrial,
    /// It was open before the restart.
    Recalled,
    /// An operator held it open.
    Operator,
}

impl Cause {
    /// As in events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FailureRate => "failure_rate",
            Self::SlowCallRate => "slow_call_rate",
            Self::Trial => "failed_trial",
            Self::SlowTrial => "slow_trial",
            Self::LostTrial => "lost_trial",
            Self::Recalled => "recalled",
            Self::Operator => "operator",
        }
    }
}

/// Calls of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All judged ones.
    pub calls: u64,
    /// Failures.
    pub failed: u64,
    /// Slow ones.
    pub slow: u64,
}

/// An opening, as evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Why.
    pub cause: Cause,
    /// What was seen; zeros where a trial decided.
    pub counts: Counts,
}

/// An order of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// Refuse everything.
    ForceOpen,
    /// Refuse nothing, whatever is counted.
    ForceClosed,
    /// Neither count nor refuse.
    Disable,
}

/// What holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is counted or refused.
    Off,
    /// Calls are let through and counted.
    Closed,
    /// Ask the machine: calls are refused or are trials, unless it only observes.
    Guarded,
}

/// A state, for views and effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateView {
    /// Closed.
    Closed,
    /// Open.
    Open {
        /// Since when.
        since: Timestamp,
        /// Until when.
        until: Timestamp,
        /// Why.
        opening: Opening,
    },
    /// Half-open.
    HalfOpen {
        /// Since when.
        since: Timestamp,
        /// Good trials.
        good: u32,
        /// Trials under way.
        trying: u32,
        /// Trials that close it.
        permitted: u32,
    },
}

/// Something to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// When.
    pub at: Timestamp,
    /// It only observes.
    pub observed: bool,
    /// What.
    pub kind: EffectKind,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectKind {
    /// It opened.
    Opened {
        /// On what evidence.
        opening: Opening,
        /// How long at least.
        wait: Duration,
    },
    /// Trials begin.
    HalfOpen {
        /// How long it was open.
        after: Duration,
    },
    /// It closed.
    Closed {
        /// Good trials; zero where something else closed it.
        good: u32,
        /// What closed it.
        by: ClosedBy,
    },
    /// An order's time is over.
    OrderEnded(Order),
}

/// What closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedBy {
    /// All trials were good.
    Trials,
    /// Another mode after a reload.
    Configuration,
    /// An operator's order.
    Operator,
}

impl ClosedBy {
    /// As in events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Trials => "trials",
            Self::Configuration => "configuration",
            Self::Operator => "operator",
        }
    }
}

/// What outlives the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Until trials.
    pub left: Duration,
}
