//! What the detector is told. Next: `detector/effect.rs`, what it answers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::routes::Half;
use super::seed::Remembered;
use crate::clock::Timestamp;
use crate::endpoint::Address;
use crate::outlier::classify::{ErrorKind, OutcomeClass};
use crate::outlier::policy::Policy;
use crate::outlier::times::Times;

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// An active check of an instance changed its state.
    Check {
        /// Which instance.
        address: Address,
        /// Whether it passes now.
        passing: bool,
    },
    /// The whole new set of the registry.
    Endpoints(Vec<RoutableEndpoint>),
    /// Changed settings of the upstream.
    Facts(UpstreamFacts),
    /// An explicit re-registration of an address that was present throughout.
    Hint {
        /// Which instance.
        address: Address,
    },
    /// Outcomes of ordinary attempts.
    Outcome(Outcome),
    /// An operator's command.
    Override {
        /// Which instance.
        address: Address,
        /// What is to hold.
        kind: OverrideKind,
        /// How long; `None`: until cleared.
        ttl: Option<Duration>,
        /// An ejection that the cap does not bind, and that does not count against it.
        force: bool,
    },
    /// A reload. `None`: the entry that held the upstream is gone and the built-in policy takes
    /// over; send it before `Some` when another entry takes over from one that is gone.
    Policy(Option<Arc<Policy>>),
    /// A request came by.
    RequestSeen {
        /// Whether it may serve as a trial.
        retryable: bool,
    },
    /// Of the upstream where routes are judged: half of the routes of an instance are bad, or no
    /// longer.
    Routes {
        /// Which instance.
        address: Address,
        /// The count; `None`: it is no longer so.
        half: Option<Half>,
    },
    /// What an earlier process remembered; before the first set of endpoints.
    Seed(Vec<Remembered>),
    /// Of a route: the upstream as a whole has the instance out, or in again.
    Taken {
        /// Which instance.
        address: Address,
        /// It is out.
        out: bool,
    },
    /// Time passed, nothing else.
    Tick,
    /// How long good answers of ordinary attempts took; only where the policy asks.
    Times {
        /// Of which instance.
        address: Address,
        /// The answers since the last time.
        times: Times,
    },
    /// A trial ended. A late, unknown or second answer changes nothing.
    TrialFinished {
        /// Whose trial.
        lease: LeaseId,
        /// What the answer says under the policy.
        class: OutcomeClass,
    },
    /// The head of a trial's answer was good and its body is still open: at the deadline that is
    /// a good trial.
    TrialHead {
        /// Whose trial.
        lease: LeaseId,
    },
    /// A worker claimed an offered request trial.
    TrialTaken {
        /// The instance of the offer.
        address: Address,
        /// The lease of the offer.
        lease: LeaseId,
        /// When half of the request's remaining time is over.
        latest: Option<Timestamp>,
    },
}

/// One or `count` equal outcomes of ordinary attempts.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The instance that is charged.
    pub address: Address,
    /// What it says.
    pub class: OutcomeClass,
    /// When the attempt started; at the moment of an ejection or a restore means after it.
    pub sent_at: Timestamp,
    /// It failed by a time limit of ours, or by a client that gave up on a hung server.
    pub own_timeout: bool,
    /// The multiplexed connection it died with.
    pub death: Option<u64>,
    /// How it failed.
    pub kind: Option<ErrorKind>,
    /// How many; successes come in batches.
    pub count: u32,
}

impl Outcome {
    /// One outcome without further detail.
    pub const fn new(address: Address, class: OutcomeClass, sent_at: Timestamp) -> Self {
        Self {
            address,
            class,
            sent_at,
            own_timeout: false,
            death: None,
            kind: None,
            count: 1,
        }
    }
}

/// One endpoint as far as ejection is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutableEndpoint {
    /// Identity inside the upstream.
    pub address: Address,
    /// Whether the registry offers it: healthy or, in panic, used anyway; enabled, weight above
    /// zero, not draining. An operator's `disable` is known here and is not part of it.
    pub routable: bool,
    /// Set only where the registry really knows one.
    pub incarnation: Option<Arc<str>>,
}

impl RoutableEndpoint {
    /// A routable endpoint without incarnation.
    pub const fn new(address: Address) -> Self {
        Self {
            address,
            routable: true,
            incarnation: None,
        }
    }
}

/// Settings of the upstream that trials depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, none excludes another"
)]
pub struct UpstreamFacts {
    /// A health check is configured.
    pub health_check: bool,
    /// Its synthetic checks are a TCP connect alone.
    pub tcp_check: bool,
    /// It speaks Dubbo, whose built-in policy has a longer window.
    pub dubbo: bool,
    /// Routes have detectors of their own: half of them bad is the rule here, not rate and streak.
    pub by_route: bool,
    /// Limit for opening a connection.
    pub timeout_connect: Duration,
    /// Limit for one attempt; `None` is auto.
    pub timeout_attempt: Option<Duration>,
    /// Limit for one synthetic check.
    pub check_timeout: Duration,
}

impl UpstreamFacts {
    /// The limit for one attempt.
    pub fn attempt_limit(&self) -> Duration {
        self.timeout_attempt.unwrap_or(AUTO_ATTEMPT)
    }
}

impl Default for UpstreamFacts {
    fn default() -> Self {
        Self {
            health_check: false,
            tcp_check: false,
            dubbo: false,
            by_route: false,
            timeout_connect: Duration::from_secs(1),
            timeout_attempt: None,
            check_timeout: Duration::from_secs(1),
        }
    }
}

const AUTO_ATTEMPT: Duration = Duration::from_secs(5);

/// What an operator orders for one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideKind {
    /// End whatever holds: manual ejection, hold, disable.
    Clear,
    /// Take it out of n.
    Disable,
    /// End `disable`.
    Enable,
    /// Eject it; it is not probed.
    Eject,
    /// Never eject it automatically.
    Hold,
    /// End `hold`.
    Release,
    /// Put it back now.
    Restore,
}

/// One trial: never used twice, in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    /// The lane of the route whose detector gave it; 0: that of the whole upstream.
    pub lane: u8,
    /// The ejection it belongs to; never used twice for an address.
    pub epoch: u64,
    /// Number of the lease.
    pub generation: u64,
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lane > 0 {
            write!(f, "{}/", self.lane)?;
        }
        write!(f, "{}.{}", self.epoch, self.generation)
    }
}
