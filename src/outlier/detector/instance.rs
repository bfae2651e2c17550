//! What the detector knows of one instance. Plain data: the other files of this folder change it.
//!
//! Life of an instance: *in* (window and streak; perhaps on a ramp, perhaps with a remembered k)
//! -> *ejected* (waiting for its next trial -> offered to requests, or in flight under a lease)
//! -> *in* again. An ejection by an operator waits for no trial. In mode observe the ejection is a
//! shadow: the same states, but nobody outside acts on them.

use std::sync::Arc;
use std::time::Duration;

use super::effect::{Cause, SlowEvidence, TrialKind};
use super::input::LeaseId;
use super::routes::Half;
use crate::clock::Timestamp;
use crate::outlier::times::TimesWindow;
use crate::outlier::window::Window;

#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, none excludes another"
)]
pub(super) struct Instance {
    /// Offered by the registry, not disabled by an operator.
    pub(super) routable: bool,
    /// What the registry says alone.
    pub(super) offered: bool,
    /// Of a route: the upstream as a whole has it out.
    pub(super) taken: bool,
    /// Of the upstream: half of its routes are bad.
    pub(super) routes: Option<Half>,
    pub(super) incarnation: Option<Arc<str>>,
    /// Its active checks pass; so too before the first.
    pub(super) check_passes: bool,
    /// Changes at every ejection, restore and replacement; never used twice.
    pub(super) epoch: u64,
    /// Attempts sent before it are stragglers.
    pub(super) epoch_start: Timestamp,
    pub(super) window: Window,
    /// Times of answers, where the policy asks.
    pub(super) times: Option<TimesWindow>,
    /// It was slow at the latest bucket close.
    pub(super) slow: Option<SlowEvidence>,
    /// When that was last said of it.
    pub(super) slow_told: Option<Timestamp>,
    pub(super) abnormal_since: Option<Timestamp>,
    /// Why it was left in, at the latest evaluation.
    pub(super) suppressed: Option<Cause>,
    /// Since when it is normal after it was suppressed, until that became a hint.
    pub(super) calm_since: Option<Timestamp>,
    pub(super) memory: Option<Memory>,
    pub(super) ramp_start: Option<Timestamp>,
    /// The same after a would-be restore: the rules see it, traffic does not.
    pub(super) shadow_ramp: Option<Timestamp>,
    pub(super) ejection: Option<Box<Ejection>>,
    pub(super) times_ejected: u32,
}

impl Instance {
    pub(super) fn new(epoch: u64, now: Timestamp) -> Self {
        Self {
            routable: true,
            offered: true,
            taken: false,
            routes: None,
            incarnation: None,
            check_passes: true,
            epoch,
            epoch_start: now,
            window: Window::default(),
            times: None,
            slow: None,
            slow_told: None,
            abnormal_since: None,
            suppressed: None,
            calm_since: None,
            memory: None,
            ramp_start: None,
            shadow_ramp: None,
            ejection: None,
            times_ejected: 0,
        }
    }

    /// Whether a bucket close could change anything about it.
    pub(super) fn needs_watch(&self) -> bool {
        !self.window.is_clean()
            || self.abnormal_since.is_some()
            || self.routes.is_some()
            || self.suppressed.is_some()
            || self.calm_since.is_some()
            || (self.memory.is_some() && self.window.counts().calls() > 0)
            || self.times.as_ref().is_some_and(|times| !times.is_empty())
    }

    /// Forgets verdicts and counts, not the ejection.
    pub(super) fn clear_judgement(&mut self) {
        self.window.clear();
        self.times = None;
        self.slow = None;
        self.routes = None;
        self.abnormal_since = None;
        self.suppressed = None;
        self.calm_since = None;
    }

    pub(super) fn in_service(&self) -> bool {
        self.routable && self.ejection.is_none() && !self.taken
    }
}

/// An operator's hold or disable; it ends at its time, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pin {
    pub(super) until: Option<Timestamp>,
}

/// k of an ended ejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) k: u32,
    /// The next ejection counts as a failed trial.
    pub(super) raise: bool,
    /// Real successes that are still needed to forget it.
    pub(super) successes_left: u32,
}

impl Memory {
    /// What a restore that no rule treats otherwise leaves behind.
    pub(super) const fn usual(k: u32, flap_memory: u32) -> Option<Self> {
        if flap_memory == 0 {
            return None;
        }
        Some(Self {
            k,
            raise: true,
            successes_left: flap_memory,
        })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Ejection {
    pub(super) at: Timestamp,
    /// How long it was out before that, in an earlier process.
    pub(super) out_before: Duration,
    pub(super) origin: Origin,
    pub(super) k: u32,
    /// The next regular trial.
    pub(super) next: Timestamp,
    /// When `next` was set, and to how many units from then.
    pub(super) scheduled_at: Timestamp,
    pub(super) units: u32,
    /// How bad it was: calls and failures of its window.
    pub(super) rate: Fraction,
    /// Its last five calls failed, or a trial has failed since.
    pub(super) hopeless: bool,
    /// It was slow: a trial is good within this time, or what its peers say then.
    pub(super) slow_limit: Option<Duration>,
    /// Good trials in a row.
    pub(super) good: u32,
    /// An unused hint, and the moment from which it holds.
    pub(super) hint: Option<Timestamp>,
    /// When the latest trial ended.
    pub(super) last_trial_end: Option<Timestamp>,
    /// How the latest trial was made.
    pub(super) last_kind: Option<TrialKind>,
    /// When the last resort made it due, and when it was tried for that.
    pub(super) resort_since: Timestamp,
    pub(super) resort_tried: Option<Timestamp>,
    /// It was not routable until then: what fell due meanwhile is due at that moment.
    pub(super) back_at: Timestamp,
    /// The next trial is a synthetic check, whatever the policy says.
    pub(super) check_next: bool,
    pub(super) stage: Stage,
}

/// Who ejected it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The rules.
    Rules,
    /// The rules, observed only.
    Shadow,
    /// An operator, within the cap or beside it.
    Operator {
        forced: bool,
        until: Option<Timestamp>,
    },
}

impl Origin {
    pub(super) const fn is_manual(self) -> bool {
        match self {
            Self::Operator { .. } => true,
            Self::Rules | Self::Shadow => false,
        }
    }

    pub(super) const fn counts(self) -> bool {
        match self {
            Self::Operator { forced, .. } => !forced,
            Self::Rules | Self::Shadow => true,
        }
    }
}

/// Where the next trial stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not due.
    Waiting,
    /// Due, and open to requests: before it was judged (`checked`: its check has passed).
    Pending { due: Due, checked: bool },
    /// Due and published to requests.
    Offered {
        lease: LeaseId,
        due: Due,
        checked: bool,
    },
    /// In flight.
    Trial(Trial),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) at: Timestamp,
    pub(super) cause: DueCause,
}

/// What made a trial due. In this order when several do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DueCause {
    Regular,
    Hint,
    LastResort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trial {
    pub(super) lease: LeaseId,
    pub(super) kind: TrialKind,
    pub(super) due: Due,
    pub(super) deadline: Timestamp,
    /// False: a check that a request is to follow.
    pub(super) decides: bool,
    /// Its check has passed already.
    pub(super) checked: bool,
    /// When it began.
    pub(super) begun: Timestamp,
    /// When its good head was there, the body still open.
    pub(super) good_head: Option<Timestamp>,
}

/// `part` of `whole`, compared without rounding.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fraction {
    pub(super) part: u64,
    pub(super) whole: u64,
}

impl Fraction {
    pub(super) const FULL: Self = Self { part: 1, whole: 1 };

    /// Nothing of nothing is nothing.
    fn terms(self) -> (u128, u128) {
        (u128::from(self.part), u128::from(self.whole.max(1)))
    }

    pub(super) fn compare(self, other: Self) -> std::cmp::Ordering {
        let ((a, b), (c, d)) = (self.terms(), other.terms());
        (a * d).cmp(&(c * b))
    }

    /// Whether it is above `other` by at least a fifth of the whole.
    pub(super) fn exceeds_by_fifth(self, other: Self) -> bool {
        let ((a, b), (c, d)) = (self.terms(), other.terms());
        (5 * a * d)
            .checked_sub(5 * c * b)
            .is_some_and(|difference| difference >= b * d)
    }

    /// In hundredths of a percent, rounded down.
    pub(super) fn basis_points(self) -> u32 {
        let (part, whole) = self.terms();
        u32::try_from(part * 10_000 / whole).unwrap_or(u32::MAX)
    }
}
