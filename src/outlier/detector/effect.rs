//! What the detector decided, with the arithmetic behind it: the driver publishes, counts, logs.
//! Next: `detector/view.rs`, the state between effects.

use std::sync::Arc;
use std::time::Duration;

use super::input::{LeaseId, OverrideKind};
use super::routes::Half;
use crate::clock::Timestamp;
use crate::endpoint::Address;
use crate::outlier::classify::ErrorKind;
use crate::outlier::policy::Mode;

/// A decision. In mode observe only the `Would...` forms occur for automatic ejections.
#[derive(Clone, Debug)]
pub enum Effect {
    /// The cap is zero although the policy is enforced: nothing can ever be ejected.
    CapZero(Arc<Numbers>),
    /// More than half of the routable instances turned abnormal within a window.
    CorrelatedFailure {
        /// How many.
        turned: usize,
        /// The cap and what is out.
        numbers: Arc<Numbers>,
    },
    /// It goes out of rotation.
    Eject(Box<Ejected>),
    /// An address left the registry's set.
    InstanceLeft {
        /// Which.
        address: Address,
        /// Whether it was ejected; its ejection is remembered for five minutes.
        ejected: bool,
    },
    /// Whether ejected instances may serve requests that have nothing else left, as their trials.
    LastResort {
        /// It began, or ended.
        on: bool,
    },
    /// A request trial is due: a worker may claim it.
    OfferTrial {
        /// Of which instance.
        address: Address,
        /// The lease to claim.
        lease: LeaseId,
        /// Since when it is due.
        due: Timestamp,
    },
    /// An operator's command took effect.
    OverrideSet {
        /// On which instance.
        address: Address,
        /// What.
        kind: OverrideKind,
    },
    /// A hold or disable ended at its time.
    OverrideExpired {
        /// On which instance.
        address: Address,
        /// What.
        kind: OverrideKind,
    },
    /// An operator's command would have broken a rule.
    OverrideRefused {
        /// On which instance.
        address: Address,
        /// What.
        kind: OverrideKind,
        /// Which rule.
        refusal: Refusal,
    },
    /// An ejection that an earlier process wrote down meets its instance.
    Recalled {
        /// Which.
        address: Address,
        /// Its step.
        k: u32,
        /// The next regular trial; `None`: there is no room for it, the instance is in.
        next_trial: Option<Timestamp>,
        /// It is observed only.
        observed: bool,
        /// Failures and calls of its window when it was ejected.
        rate: (u64, u64),
    },
    /// It is back in rotation.
    Restore(Box<Restored>),
    /// Outcomes of attempts from before the latest ejection or restore: in no window.
    Stale {
        /// Of which instance.
        address: Address,
        /// How many.
        count: u32,
    },
    /// A trial begins. A synthetic one the driver runs now; a request one was claimed.
    StartTrial(TrialStarted),
    /// An abnormal instance is left in.
    Suppress(Box<Suppressed>),
    /// A trial failed.
    TrialFailed(TrialFailed),
    /// A trial said nothing.
    TrialIgnored {
        /// Of which instance.
        address: Address,
        /// Which trial.
        lease: LeaseId,
    },
    /// A good trial that does not yet restore: more are needed, or a request is to follow.
    TrialPassed {
        /// Of which instance.
        address: Address,
        /// Which trial.
        lease: LeaseId,
    },
    /// An offer is no longer open.
    WithdrawOffer {
        /// Of which instance.
        address: Address,
        /// The lease that was offered.
        lease: LeaseId,
    },
    /// Observed only: it would go out.
    WouldEject(Box<Ejected>),
    /// Observed only: it would come back.
    WouldRestore(Box<Restored>),
    /// Observed only: it would be left in.
    WouldSuppress(Box<Suppressed>),
}

/// The state of the upstream at a decision, and the policy that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Name of the policy.
    pub policy: Arc<str>,
    /// Where it stands, `file:line`.
    pub origin: Arc<str>,
    /// Whether it is enforced.
    pub mode: Mode,
    /// Routable instances, ejected ones included.
    pub n: usize,
    /// How many may be out.
    pub cap: usize,
    /// How many others are out.
    pub out: usize,
    /// Those that are out, the first by id; at most eight.
    pub holders: Vec<Address>,
}

/// The window of one instance at a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Length of the window.
    pub window: Duration,
    /// Judged calls in it.
    pub calls: u64,
    /// Network errors.
    pub network: u64,
    /// Business errors, whether they count or not.
    pub business: u64,
    /// Those that count as failures.
    pub failures: u64,
    /// Failures in a row.
    pub streak: u64,
    /// Failures in a row that are needed; zero: the rule is off.
    pub streak_limit: u64,
    /// Rate of failures in hundredths of a percent, rounded down.
    pub rate_bp: u32,
    /// Abnormal above this rate.
    pub threshold_bp: u32,
    /// Calls that are needed to judge the rate.
    pub sample: u64,
    /// Calls in thousandths per second.
    pub qps_milli: u64,
    /// The lower QPS limit, likewise.
    pub limit_milli: u64,
    /// Errors of the window by kind.
    pub errors: Vec<(ErrorKind, u64)>,
    /// It answers later than its peers; only where the policy asks.
    pub slow: Option<SlowEvidence>,
    /// Half of its routes are bad; only where routes are judged.
    pub routes: Option<Half>,
}

/// How late an instance answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowEvidence {
    /// Median of its own answers in the window.
    pub median: Duration,
    /// Median of its peers' medians.
    pub peers: Duration,
    /// How many peers were measured.
    pub measured_peers: usize,
    /// Own answers that were measured.
    pub calls: u64,
    /// Slow above this.
    pub limit: Duration,
}

/// An ejection.
#[derive(Clone, Debug)]
pub struct Ejected {
    /// Which instance.
    pub address: Address,
    /// Which rule.
    pub trigger: Trigger,
    /// What was seen of it.
    pub evidence: Evidence,
    /// The upstream before it.
    pub numbers: Arc<Numbers>,
    /// Step of the schedule; zero for an operator's.
    pub k: u32,
    /// First trial; `None` for an operator's.
    pub next_trial: Option<Timestamp>,
    /// How often this instance was ejected, this time included.
    pub times_ejected: u32,
}

/// A return.
#[derive(Clone, Debug)]
pub struct Restored {
    /// Which instance.
    pub address: Address,
    /// By what.
    pub restored_by: RestoredBy,
    /// How long it was out.
    pub ejected_for: Duration,
    /// The step it had reached.
    pub k: u32,
    /// Whether k is remembered for the next ejection.
    pub remembered: bool,
    /// Length of its ramp; zero: full traffic at once.
    pub ramp: Duration,
    /// The upstream after it.
    pub numbers: Arc<Numbers>,
}

/// An abnormal instance that stays in.
#[derive(Clone, Debug)]
pub struct Suppressed {
    /// Which instance.
    pub address: Address,
    /// Why.
    pub cause: Cause,
    /// Which rule holds.
    pub trigger: Trigger,
    /// What was seen of it.
    pub evidence: Evidence,
    /// The upstream at that moment.
    pub numbers: Arc<Numbers>,
}

/// A trial that begins.
#[derive(Clone, Debug)]
pub struct TrialStarted {
    /// Of which instance.
    pub address: Address,
    /// Its lease.
    pub lease: LeaseId,
    /// How.
    pub kind: TrialKind,
    /// Its lease ends here.
    pub deadline: Timestamp,
    /// A hint pulled it forward.
    pub hinted: bool,
    /// It belongs to the last resort.
    pub last_resort: bool,
    /// Step of the schedule.
    pub k: u32,
}

/// A trial that failed.
#[derive(Clone, Debug)]
pub struct TrialFailed {
    /// Of which instance.
    pub address: Address,
    /// Its lease.
    pub lease: LeaseId,
    /// How it was tried.
    pub kind: TrialKind,
    /// The step from now on.
    pub k: u32,
    /// The next regular trial.
    pub next_trial: Timestamp,
    /// Nothing came before the deadline.
    pub expired: bool,
    /// A hint had pulled it forward.
    pub hinted: bool,
    /// It belonged to the last resort.
    pub last_resort: bool,
    /// The answer was good but came too late: its time, and the longest that would have done.
    pub slow: Option<(Duration, Duration)>,
    /// The upstream, the instance included.
    pub numbers: Arc<Numbers>,
}

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident => $label:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// The label of metrics, events and traces.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $label,)+ }
            }
        }
    };
}

labels! {
    /// The rule that ejects.
    Trigger {
        /// Failures in a row.
        ConsecutiveErrors => "consecutive_errors",
        /// Rate of failures; also when both hold.
        ErrorRate => "error_rate",
        /// An operator.
        Operator => "operator",
        /// Half of its routes are bad.
        Routes => "routes",
        /// Answers much later than its peers.
        Slow => "slow",
    }
}

labels! {
    /// Why an abnormal instance is left in.
    Cause {
        /// An override pins it.
        Hold => "hold",
        /// No other un-ejected instance that passes is left.
        LastInstance => "last_instance",
        /// The cap is full.
        RemovalRate => "removal_rate",
    }
}

labels! {
    /// What put an instance back.
    RestoredBy {
        /// A worse one took its place.
        Exchanged => "exchanged",
        /// No routable instance would have been left.
        LastInstance => "last_instance",
        /// An operator.
        Operator => "operator",
        /// A manual ejection reached its time.
        OverrideExpired => "override_expired",
        /// The mode of the policy changed.
        PolicyChange => "policy_change",
        /// The policy is gone or disabled.
        PolicyDisabled => "policy_disabled",
        /// A good trial.
        Probe => "probe",
        /// A new incarnation at the address.
        Replaced => "replaced",
    }
}

labels! {
    /// How an instance is tried.
    TrialKind {
        /// One live request.
        Request => "request",
        /// A check of ours.
        Synthetic => "synthetic",
    }
}

labels! {
    /// Why a command is refused.
    Refusal {
        /// The cap is full; `force` would do.
        CapFull => "cap_full",
        /// It is the last un-ejected instance that passes.
        LastInstance => "last_instance",
        /// No such instance.
        Unknown => "unknown",
        /// `enable` finds no `disable` to end.
        NotDisabled => "not_disabled",
        /// It is not in a state that the command could end.
        NotEjected => "not_ejected",
        /// There is no `hold` to end.
        NotHeld => "not_held",
    }
}
