//! The slow trigger: whether an instance answers much later than its peers do. Judged at bucket
//! closes from the medians of the window; off unless a policy asks for it, and only observed unless
//! it says `enforce`. Peers decide what is slow: where all are, none is.

use std::sync::Arc;
use std::time::Duration;

use super::Detector;
use super::effect::{Cause, Effect, Ejected, Numbers, SlowEvidence, Suppressed, Trigger};
use super::instance::{Instance, Origin};
use crate::endpoint::Address;
use crate::outlier::policy::{Mode, SlowMode};
use crate::outlier::schedule::scaled;
use crate::outlier::times::Times;

/// Fewest peers that say what is usual.
const FEWEST_PEERS: usize = 3;

/// The median of one instance that was measured.
struct Measured {
    address: Address,
    median: Duration,
    calls: u64,
}

impl Detector {
    /// Times of answers of an instance.
    pub(super) fn times(&mut self, address: &Address, times: &Times) {
        if self.policy.slow.is_none() {
            return;
        }
        let Some(instance) = self.instances.get_mut(address) else {
            return;
        };
        let out = instance.ejection.as_ref();
        if out.is_some_and(|ejection| ejection.origin != Origin::Shadow) {
            return;
        }
        let window = instance.times.get_or_insert_default();
        window.add(times, self.bucket);
        self.timed = true;
        self.watch.insert(address.clone());
        self.dirty.insert(address.clone());
    }

    /// At a bucket close, before anybody is judged: who is slow now.
    pub(super) fn measure(&mut self) {
        if !self.timed {
            return;
        }
        let Some(slow) = self.policy.slow else {
            self.timed = false;
            for instance in self.instances.values_mut() {
                instance.times = None;
                instance.slow = None;
            }
            return;
        };
        for instance in self.instances.values_mut() {
            if let Some(times) = &mut instance.times {
                times.advance(self.bucket);
            }
        }
        let measured = self.measured();
        let mut sorted: Vec<Duration> = measured.iter().map(|one| one.median).collect();
        sorted.sort_unstable();
        let mut verdicts = measured.into_iter().peekable();
        let mut turned = Vec::new();
        for (address, instance) in &mut self.instances {
            let now = verdicts.next_if(|one| one.address == *address);
            let now = now.and_then(|one| {
                let peers = median_without(&sorted, one.median)?;
                let limit = limit(slow.factor_centi, slow.floor, peers);
                (one.median > limit).then_some(SlowEvidence {
                    median: one.median,
                    peers,
                    measured_peers: sorted.len() - 1,
                    calls: one.calls,
                    limit,
                })
            });
            if now.is_some() && instance.slow.is_none() {
                turned.push(address.clone());
            }
            instance.slow = now;
        }
        if slow.mode == SlowMode::Observe {
            for address in turned {
                self.tell_slow(&address);
            }
        }
    }

    /// The longest time that is not slow, by those in service now.
    pub(super) fn slow_limit(&self) -> Option<Duration> {
        let slow = self.policy.slow?;
        let mut sorted: Vec<Duration> = self.measured().iter().map(|one| one.median).collect();
        sorted.sort_unstable();
        if sorted.len() < FEWEST_PEERS {
            return None;
        }
        Some(limit(slow.factor_centi, slow.floor, median(&sorted)?))
    }

    /// Those in service with enough calls in the window, by id.
    fn measured(&self) -> Vec<Measured> {
        let Some(slow) = self.policy.slow else {
            return Vec::new();
        };
        let one = |(address, instance): (&Address, &Instance)| {
            if !instance.in_service() || !self.tally.passes(instance) {
                return None;
            }
            let times = instance.times.as_ref()?.total();
            let calls = times.count();
            let enough = calls >= u64::from(slow.min_calls.max(1));
            let median = times.median().filter(|_| enough)?;
            let address = address.clone();
            Some(Measured {
                address,
                median,
                calls,
            })
        };
        self.instances.iter().filter_map(one).collect()
    }

    /// Observed only: said once when an instance turns slow, at most once per unit. It takes no slot
    /// and changes nothing.
    fn tell_slow(&mut self, address: &Address) {
        let (now, unit) = (self.now, self.policy.recovery_detection_unit_time);
        let Some(instance) = self.instances.get_mut(address) else {
            return;
        };
        let told = instance.slow_told.replace(now);
        if told.is_some_and(|told| now.since(told) < unit) {
            instance.slow_told = told;
            return;
        }
        let Some(instance) = self.instances.get(address) else {
            return;
        };
        let Some(verdict) = self.verdict(address) else {
            return;
        };
        let mut evidence = verdict.evidence(&self.policy, &instance.window);
        evidence.slow = instance.slow;
        let numbers = self.numbers();
        let numbers = Arc::new(Numbers {
            mode: Mode::Observe,
            ..Numbers::clone(&numbers)
        });
        let others = self.tally.others_passing(instance);
        let held = self.holds.contains_key(address);
        let cause = match (others, held) {
            (0, _) => Some(Cause::LastInstance),
            (_, true) => Some(Cause::Hold),
            (_, false) => (self.tally.out >= self.cap()).then_some(Cause::RemovalRate),
        };
        let (address, trigger) = (address.clone(), Trigger::Slow);
        self.effects.push_back(match cause {
            Some(cause) => Effect::WouldSuppress(Box::new(Suppressed {
                address,
                cause,
                trigger,
                evidence,
                numbers,
            })),
            None => Effect::WouldEject(Box::new(Ejected {
                address,
                trigger,
                evidence,
                numbers,
                k: 1,
                next_trial: None,
                times_ejected: instance.times_ejected,
            })),
        });
    }
}

fn limit(factor_centi: u32, floor: Duration, peers: Duration) -> Duration {
    scaled(peers, u128::from(factor_centi), 100).max(floor)
}

/// The median of `sorted` without one of the value `own`; `None`: too few are left.
fn median_without(sorted: &[Duration], own: Duration) -> Option<Duration> {
    let peers = sorted.len().checked_sub(1)?;
    if peers < FEWEST_PEERS {
        return None;
    }
    let place = sorted.partition_point(|other| *other < own);
    let at = |index: usize| sorted.get(index + usize::from(index >= place)).copied();
    let (low, high) = (at((peers - 1) / 2)?, at(peers / 2)?);
    Some((low + high) / 2)
}

fn median(sorted: &[Duration]) -> Option<Duration> {
    let last = sorted.len().checked_sub(1)?;
    let (low, high) = (sorted.get(last / 2)?, sorted.get(sorted.len() / 2)?);
    Some((*low + *high) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_median_of_peers_leaves_the_own_one_out(
            mut all in proptest::collection::vec(1_u64..100, 1..12), own in 0_usize..12,
        ) {
            all.sort_unstable();
            let all: Vec<Duration> = all.into_iter().map(Duration::from_millis).collect();
            let own = own % all.len();
            let mut others = all.clone();
            let value = others.remove(own);
            let expected = (others.len() >= FEWEST_PEERS).then(|| median(&others)).flatten();
            prop_assert_eq!(median_without(&all, value), expected);
        }
    }
}
