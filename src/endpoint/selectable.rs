//! What a balancer sees: one immutable snapshot of the instances of an upstream that may be picked,
//! with the policy that classifies answers and the trials on offer. Built by the upstream's driver
//! (`outlier/driver.rs`), swapped in whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::instance::Instance;
use crate::balancer::hashing::Level;
use crate::clock::Timestamp;
use crate::outlier::LeaseId;
use crate::outlier::policy::Policy;

/// The instances of one upstream that may be picked, and what goes with them.
#[derive(Debug)]
pub struct Selectable {
    /// Grows with every swap; balancers keep state for one version.
    pub version: u64,
    /// Pickable instances, in the registry's order.
    pub entries: Box<[Entry]>,
    /// Instances that may be picked and get no traffic by themselves, by level, the preferred first:
    /// a request that has tried all entries goes on with them.
    pub spare: Box<[Box<[Entry]>]>,
    /// Running sums of the weights, for weighted picks; empty when all weights are equal.
    cumulative: Box<[u64]>,
    /// Whether any entry is in its ramp.
    pub ramping: bool,
    /// Why there may be nothing to pick.
    pub state: Availability,
    /// Classifies the answers.
    pub policy: Arc<Policy>,
    /// Ejected instances that wait for a live request as their trial.
    pub trials: Box<[TrialOffer]>,
    /// Where routes are judged: what each of them sees, by the slot of its lane; else empty.
    pub lanes: Box<[Option<Box<Self>>]>,
    /// The slot of the lane this is for; 0: the whole upstream.
    pub lane: u8,
    /// The route of that lane.
    pub route: Option<Arc<str>>,
    /// The lane of requests without one of their own.
    pub rest: u8,
    /// Something is ejected: note when requests come by that could serve as a trial.
    pub watch_requests: bool,
    /// Tables of consistent hashing, where that balances.
    pub hashing: Box<[Level]>,
}

/// A pickable instance.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The instance.
    pub instance: Arc<Instance>,
    /// Its weight in thousandths, above zero.
    pub weight: u32,
    /// While it returns to full traffic.
    pub ramp: Option<Ramp>,
    /// It speaks HTTP/2 (the registry's hint); `None`: no hint.
    pub http2: Option<bool>,
}

/// Linear growth from 1/8 of the traffic to all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ramp {
    /// When it began.
    pub start: Timestamp,
    /// How long it takes.
    pub length: Duration,
}

impl Ramp {
    /// The share at `now` in hundredths of a percent: 1250 + 8750 x elapsed / length.
    pub fn share_bp(&self, now: Timestamp) -> u32 {
        let length = self.length.as_nanos().max(1);
        let elapsed = now.since(self.start).as_nanos().min(length);
        u32::try_from(1_250 + 8_750 * elapsed / length).unwrap_or(10_000)
    }
}

/// Why there may be nothing to pick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// The registry has not answered yet.
    Waiting,
    /// The registry lists instances, none of them routable, or none at all.
    Empty {
        /// How many it lists.
        listed: usize,
    },
    /// Active checks refuse all (`when_all_unhealthy: refuse`).
    AllUnhealthy {
        /// How many are routable.
        routable: usize,
    },
    /// There is something to pick.
    Ready,
}

/// A request trial that is due: the first eligible request that claims it is the trial.
#[derive(Debug)]
pub struct TrialOffer {
    /// The ejected instance.
    pub instance: Arc<Instance>,
    /// HTTP/2 hint of the instance.
    pub http2: Option<bool>,
    /// Names the lease towards the driver.
    pub lease: LeaseId,
    /// Longest time the trial may take (the unit of the schedule).
    pub unit: Duration,
    claimed: Arc<AtomicBool>,
}

impl TrialOffer {
    /// An offer nobody has claimed.
    pub fn new(
        instance: Arc<Instance>,
        http2: Option<bool>,
        lease: LeaseId,
        unit: Duration,
    ) -> Self {
        Self {
            instance,
            http2,
            lease,
            unit,
            claimed: Arc::default(),
        }
    }

    /// The same offer in another list: claimed in one, it is claimed in all.
    #[must_use]
    pub fn shared(&self) -> Self {
        Self {
            instance: Arc::clone(&self.instance),
            http2: self.http2,
            lease: self.lease,
            unit: self.unit,
            claimed: Arc::clone(&self.claimed),
        }
    }

    /// Claims it; true for exactly one caller.
    pub fn claim(&self) -> bool {
        self.claimed
            .compare_exchange(false, true, Relaxed, Relaxed)
            .is_ok()
    }

    /// Whether somebody has claimed it.
    pub fn is_claimed(&self) -> bool {
        self.claimed.load(Relaxed)
    }
}

impl Selectable {
    /// A snapshot of these entries.
    pub fn new(
        version: u64,
        entries: Vec<Entry>,
        state: Availability,
        policy: Arc<Policy>,
        trials: Vec<TrialOffer>,
        watch_requests: bool,
    ) -> Self {
        let first = entries.first().map_or(0, |e| e.weight);
        let equal = entries.iter().all(|e| e.weight == first);
        let cumulative = if equal {
            Box::default()
        } else {
            entries
                .iter()
                .scan(0_u64, |sum, e| {
                    *sum += u64::from(e.weight);
                    Some(*sum)
                })
                .collect()
        };
        let ramping = entries.iter().any(|e| e.ramp.is_some());
        Self {
            version,
            entries: entries.into(),
            cumulative,
            ramping,
            state,
            policy,
            trials: trials.into(),
            lanes: Box::default(),
            lane: 0,
            route: None,
            rest: 0,
            watch_requests,
            hashing: Box::default(),
            spare: Box::default(),
        }
    }

    /// What the requests of a lane see: the whole where no routes are judged.
    pub fn of_lane(&self, slot: u8) -> &Self {
        let at = |slot: u8| self.lanes.get(usize::from(slot))?.as_deref();
        at(slot).or_else(|| at(self.rest)).unwrap_or(self)
    }

    /// The same for a route whose lane is not known yet.
    pub fn of_route(&self, route: &str) -> &Self {
        let mut lists = self.lanes.iter().flatten();
        let named = lists.find(|list| list.route.as_deref() == Some(route));
        named.map_or_else(|| self.of_lane(self.rest), |list| &**list)
    }

    /// With levels that get no traffic by themselves.
    pub fn with_spare(mut self, levels: Vec<Vec<Entry>>) -> Self {
        self.spare = levels.into_iter().map(Vec::into_boxed_slice).collect();
        self
    }

    /// How many may be picked.
    pub fn pickable(&self) -> usize {
        self.entries.len() + self.spare.iter().map(|level| level.len()).sum::<usize>()
    }

    /// Whether one is left that was not tried.
    pub fn untried(&self, tried: &[u64]) -> bool {
        let mut all = self.entries.iter().chain(self.spare.iter().flatten());
        all.any(|entry| !tried.contains(&entry.instance.id))
    }

    /// With tables of consistent hashing.
    pub fn hashed(mut self, levels: Vec<Level>) -> Self {
        self.hashing = levels.into();
        self
    }

    /// Before the registry's first answer.
    pub fn waiting(policy: Arc<Policy>) -> Self {
        Self::new(
            0,
            Vec::new(),
            Availability::Waiting,
            policy,
            Vec::new(),
            false,
        )
    }

    /// A random entry with chances as the weights, ramps left aside.
    pub fn sample(&self, rng: &mut fastrand::Rng) -> Option<&Entry> {
        match self.cumulative.last() {
            None if self.entries.is_empty() => None,
            None => self.entries.get(rng.usize(0..self.entries.len())),
            Some(0) => None,
            Some(total) => {
                let ticket = rng.u64(0..*total);
                self.entries
                    .get(self.cumulative.partition_point(|sum| *sum <= ticket))
            }
        }
    }

    /// Whether all weights are equal.
    pub fn equal_weights(&self) -> bool {
        self.cumulative.is_empty()
    }
}
