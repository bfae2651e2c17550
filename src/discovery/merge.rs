//! Pure rules between a registry's answer and what the proxy uses: one entry per address (G10),
//! no event without a change (G9), and no sudden emptiness or mass loss without confirmation
//! (G3, G4). Time is an argument. The tasks around it: `discovery/subscription.rs`.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::config::types::{EmptyPolicy, OnEmpty};
use crate::endpoint::{Address, Endpoint, EndpointSet};

/// While an answer is held the source reads again this often, without back-off.
pub const RECHECK: Duration = Duration::from_secs(10);

/// A loss of fewer endpoints than this is never held.
const LEAST_SHRINK: usize = 3;

/// One entry per address, in the order of first appearance: the healthiest wins, among equals the
/// one with the greater registration id, so that the registry's order decides nothing.
pub fn dedupe(endpoints: Vec<Endpoint>) -> Vec<Endpoint> {
    let mut at: HashMap<Address, usize> = HashMap::with_capacity(endpoints.len());
    let mut kept: Vec<Endpoint> = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        let seen = at
            .get(&endpoint.address)
            .and_then(|index| kept.get_mut(*index));
        match seen {
            Some(old) => {
                if rank(&endpoint) > rank(old) {
                    *old = endpoint;
                }
            }
            None => {
                at.insert(endpoint.address.clone(), kept.len());
                kept.push(endpoint);
            }
        }
    }
    kept
}

/// Whether two sets say the same; the order of their endpoints does not count.
pub fn same(a: &EndpointSet, b: &EndpointSet) -> bool {
    if a.health_unknown != b.health_unknown || a.endpoints.len() != b.endpoints.len() {
        return false;
    }
    if a.endpoints == b.endpoints {
        return true;
    }
    sorted(a).eq(&sorted(b))
}

/// Why a set is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldCause {
    /// It is empty and would replace one that is not.
    Empty,
    /// It lacks too many endpoints of the one in use.
    Shrink,
}

/// A set that is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Endpoints of the withheld set.
    pub count: usize,
    /// When the first such answer came.
    pub since: Timestamp,
    /// Such answers in a row.
    pub answers: u32,
    /// Why.
    pub cause: HoldCause,
}

/// What to do with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the set in use now.
    Apply,
    /// It says what is in use already.
    Unchanged,
    /// It waits for confirmation.
    Hold {
        /// Ask again after this time.
        recheck_in: Duration,
        /// Why.
        cause: HoldCause,
        /// First answer of this hold: worth an event.
        first: bool,
        /// The set in use has changed all the same: endpoints that both sets know were updated and
        /// new ones added at once.
        updated: bool,
    },
}

/// The machine behind one subscription.
///
/// | in use | offered | result |
/// |---|---|---|
/// | nothing or empty | anything | apply |
/// | the same | the same | unchanged; ends a hold |
/// | not empty | empty | `obey`: apply; `never`: hold; `hold`: hold until confirmed |
/// | n endpoints | less than `100 - shrink_percent` % of them (and 3 fewer) | the same under `hold`, else apply |
/// | any | otherwise | apply; ends a hold |
///
/// Confirmed = `answers` suspicious answers in a row with the same cause, the first at least `grace` ago.
#[derive(Clone, Debug)]
pub struct Guard {
    policy: EmptyPolicy,
    current: Option<EndpointSet>,
    held: Option<Held>,
}

impl Guard {
    /// A guard that knows no set yet.
    pub fn new(policy: EmptyPolicy) -> Self {
        Self {
            policy,
            current: None,
            held: None,
        }
    }

    /// Starts with a set that an earlier process had.
    pub fn seed(&mut self, set: EndpointSet) {
        self.current = Some(set);
    }

    /// Judges an answer of the registry.
    pub fn offer(&mut self, set: EndpointSet, now: Timestamp) -> Verdict {
        let Some(current) = &self.current else {
            return self.apply(set);
        };
        if same(current, &set) {
            self.held = None;
            return Verdict::Unchanged;
        }
        let Some(cause) = self.suspicion(current, &set) else {
            return self.apply(set);
        };
        let first = self.held.is_none_or(|held| held.cause != cause);
        let held = match self.held {
            Some(held) if !first => Held {
                count: set.endpoints.len(),
                answers: held.answers.saturating_add(1),
                ..held
            },
            _ => Held {
                count: set.endpoints.len(),
                since: now,
                answers: 1,
                cause,
            },
        };
        let confirmed =
            held.answers >= self.policy.answers && now.since(held.since) >= self.policy.grace;
        if confirmed && self.policy.on_empty != OnEmpty::Never {
            return self.apply(set);
        }
        let merged = union(current, &set);
        let updated = cause == HoldCause::Shrink && !same(current, &merged);
        if updated {
            self.current = Some(merged);
        }
        self.held = Some(held);
        Verdict::Hold {
            recheck_in: RECHECK,
            cause,
            first,
            updated,
        }
    }

    /// The set in use.
    pub fn current(&self) -> Option<&EndpointSet> {
        self.current.as_ref()
    }

    /// What is held back, if anything.
    pub fn held(&self) -> Option<Held> {
        self.held
    }

    fn apply(&mut self, set: EndpointSet) -> Verdict {
        self.current = Some(set);
        self.held = None;
        Verdict::Apply
    }

    fn suspicion(&self, current: &EndpointSet, set: &EndpointSet) -> Option<HoldCause> {
        let (before, after) = (current.endpoints.len(), set.endpoints.len());
        if before == 0 {
            return None;
        }
        match (self.policy.on_empty, after) {
            (OnEmpty::Hold | OnEmpty::Never, 0) => Some(HoldCause::Empty),
            (OnEmpty::Hold, _) => {
                let lost = before.saturating_sub(after);
                let percent = usize::try_from(self.policy.shrink_percent).unwrap_or(usize::MAX);
                let too_many = lost.saturating_mul(100) > before.saturating_mul(percent);
                (lost >= LEAST_SHRINK && too_many).then_some(HoldCause::Shrink)
            }
            (OnEmpty::Obey | OnEmpty::Never, _) => None,
        }
    }
}

/// Everything of `current`, in the words of `offered` where that knows it, then what is new.
fn union(current: &EndpointSet, offered: &EndpointSet) -> EndpointSet {
    let mut fresh: HashMap<&Address, &Endpoint> = offered
        .endpoints
        .iter()
        .map(|endpoint| (&endpoint.address, endpoint))
        .collect();
    let mut all: Vec<Endpoint> = current
        .endpoints
        .iter()
        .map(|old| fresh.remove(&old.address).unwrap_or(old).clone())
        .collect();
    all.extend(
        offered
            .endpoints
            .iter()
            .filter(|e| fresh.contains_key(&e.address))
            .cloned(),
    );
    EndpointSet {
        endpoints: all.into(),
        health_unknown: offered.health_unknown,
    }
}

fn rank(endpoint: &Endpoint) -> impl Ord + use<> {
    (
        endpoint.enabled,
        endpoint.healthy,
        !endpoint.draining,
        !endpoint.weight.is_zero(),
        endpoint.registration.clone(),
    )
}

fn sorted(set: &EndpointSet) -> Vec<&Endpoint> {
    let mut endpoints: Vec<&Endpoint> = set.endpoints.iter().collect();
    endpoints.sort_by(|a, b| a.address.cmp(&b.address));
    endpoints
}

#[cfg(test)]
mod tests;
