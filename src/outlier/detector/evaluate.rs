//! One evaluation: all instances of the upstream are judged, the worst go while the cap and the
//! last passing instance allow it, the others are left in and that is said once. Made on a failing
//! response and at each bucket close; n and cap are read once.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::Detector;
use super::effect::{Cause, Effect, RestoredBy, Suppressed};
use super::instance::Origin;
use super::judge::{Rules, Verdict};
use crate::clock::Timestamp;
use crate::endpoint::Address;
use crate::outlier::policy::Mode;
use crate::outlier::schedule::{FULL_SHARE, scaled};

/// What makes an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    Failure,
    BucketClose,
}

/// An abnormal instance that could go.
#[derive(Debug)]
struct Candidate {
    address: Address,
    verdict: Verdict,
    since: Timestamp,
}

impl Candidate {
    /// The worst first: rate, failures, longest abnormal, id.
    fn compare(&self, other: &Self) -> Ordering {
        let rank = other.verdict.rank().compare(&self.verdict.rank());
        rank.then(self.since.cmp(&other.since))
            .then_with(|| self.address.cmp(&other.address))
    }
}

impl Detector {
    pub(super) fn evaluate(&mut self, occasion: Occasion) {
        if self.policy.mode == Mode::Disabled {
            self.watch.clear();
            self.dirty.clear();
            return;
        }
        if occasion == Occasion::BucketClose {
            self.measure();
        }
        let (was_abnormal, turned) = (self.abnormal.len(), self.turned.len());
        let mut judged = self.judge(occasion);
        let changed = self.abnormal.len() != was_abnormal || self.turned.len() != turned;
        let rested = self.is_rested();
        // Where nothing changed since all were placed, only the ranks of these did: they alone could
        // be exchanged. An outage must not cost all its instances at each of its failures.
        if changed || self.unsettled || self.placed != Some(rested) {
            judged = self.candidates(judged);
        }
        self.place(judged);
        self.placed = Some(rested);
        if self.turned.len() > turned {
            self.note_correlation();
        }
        if occasion == Occasion::BucketClose {
            self.after_close();
        }
        self.unsettled |= changed;
        self.check_placement();
    }

    /// At the next evaluation every verdict is made anew.
    pub(super) fn judge_all(&mut self) {
        self.dirty.extend(self.watch.iter().cloned());
    }

    pub(super) fn verdict(&self, address: &Address) -> Option<Verdict> {
        let instance = self.instances.get(address)?;
        let rules = Rules {
            policy: &self.policy,
            facts: &self.facts,
            upstream_calls: self.calls.total().calls(),
        };
        Some(rules.judge_instance(instance, self.share_of(instance)))
    }

    /// Judges what can have changed. Gives those of them that could be ejected.
    fn judge(&mut self, occasion: Occasion) -> Vec<Candidate> {
        self.calls.advance(self.bucket);
        let busy = self.rules().upstream_is_busy();
        let mut addresses = std::mem::take(&mut self.dirty);
        if occasion == Occasion::BucketClose || self.was_busy.replace(busy) != Some(busy) {
            addresses = self.watch.clone();
        }
        let life = self.rules().longest_life();
        let mut candidates = Vec::new();
        for address in addresses {
            if let Some(instance) = self.instances.get_mut(&address) {
                instance.window.advance(self.bucket);
                instance.window.forget_streak(life);
            }
            let Some(verdict) = self.verdict(&address) else {
                continue;
            };
            self.note_verdict(&address, &verdict);
            let Some(instance) = self.instances.get(&address) else {
                continue;
            };
            let Some(since) = instance.abnormal_since else {
                continue;
            };
            // On a ramp the sample grows with time: it may be abnormal no more the next time.
            if self.share_of(instance) < FULL_SHARE {
                self.dirty.insert(address.clone());
            }
            if instance.in_service() {
                candidates.push(Candidate {
                    address,
                    verdict,
                    since,
                });
            }
        }
        candidates.sort_by(Candidate::compare);
        candidates
    }

    /// All that could be ejected, the worst first, with the verdicts of `judged`.
    fn candidates(&self, judged: Vec<Candidate>) -> Vec<Candidate> {
        let known: BTreeSet<Address> = judged.iter().map(|c| c.address.clone()).collect();
        let mut candidates = judged;
        for address in self.abnormal.difference(&known) {
            let instance = self
                .instances
                .get(address)
                .filter(|instance| instance.in_service());
            let since = instance.and_then(|instance| instance.abnormal_since);
            if let (Some(since), Some(verdict)) = (since, self.verdict(address)) {
                candidates.push(Candidate {
                    address: address.clone(),
                    verdict,
                    since,
                });
            }
        }
        candidates.sort_by(Candidate::compare);
        candidates
    }

    fn is_rested(&self) -> bool {
        let unit = self.policy.recovery_detection_unit_time;
        self.last_exchange
            .is_none_or(|last| last + unit <= self.now)
    }

    pub(super) fn rules(&self) -> Rules<'_> {
        let upstream_calls = self.calls.total().calls();
        Rules {
            policy: &self.policy,
            facts: &self.facts,
            upstream_calls,
        }
    }

    fn note_verdict(&mut self, address: &Address, verdict: &Verdict) {
        let now = self.now;
        let Some(instance) = self.instances.get_mut(address) else {
            return;
        };
        if instance.ejection.is_some() {
            return;
        }
        match (verdict.is_abnormal(), instance.abnormal_since) {
            (true, None) => {
                instance.abnormal_since = Some(now);
                instance.calm_since = None;
                self.abnormal.insert(address.clone());
                self.turned.push_back((now, address.clone()));
            }
            (false, Some(_)) => {
                instance.abnormal_since = None;
                if instance.suppressed.take().is_some() {
                    instance.calm_since = Some(now);
                }
                self.abnormal.remove(address);
                self.unsettled = true;
            }
            (true, Some(_)) | (false, None) => {}
        }
    }

    /// Ejects, exchanges or leaves in, in the order given.
    fn place(&mut self, candidates: Vec<Candidate>) {
        let cap = self.cap();
        for candidate in candidates {
            let Some(instance) = self.instances.get(&candidate.address) else {
                continue;
            };
            if !instance.in_service() {
                continue;
            }
            let others = self.tally.others_passing(instance);
            let held = self.holds.contains_key(&candidate.address);
            if !held && others > 0 && self.tally.out < cap {
                self.eject_by_rules(&candidate.address, &candidate.verdict);
                continue;
            }
            let cause = match (others, held) {
                (0, _) => Cause::LastInstance,
                (_, true) => Cause::Hold,
                (_, false) => Cause::RemovalRate,
            };
            if !held && self.exchange(&candidate, cap) {
                continue;
            }
            self.leave_in(&candidate, cause);
        }
    }

    fn leave_in(&mut self, candidate: &Candidate, cause: Cause) {
        let Some(instance) = self.instances.get_mut(&candidate.address) else {
            return;
        };
        if instance.suppressed.replace(cause) == Some(cause) {
            return;
        }
        let evidence = candidate.verdict.evidence(&self.policy, &instance.window);
        let suppressed = Box::new(Suppressed {
            address: candidate.address.clone(),
            cause,
            trigger: candidate.verdict.trigger(),
            evidence,
            numbers: self.numbers(),
        });
        let enforced = self.is_enforced();
        self.effects.push_back(match enforced {
            true => Effect::Suppress(suppressed),
            false => Effect::WouldSuppress(suppressed),
        });
    }

    /// A full cap must not keep a mildly bad instance out and a dead one in: the best holder
    /// returns and the candidate goes, in one step, at most once per unit.
    fn exchange(&mut self, candidate: &Candidate, cap: usize) -> bool {
        if self.tally.out > cap || !self.is_rested() {
            return false;
        }
        let Some(holder) = self.best_holder(candidate) else {
            return false;
        };
        self.last_exchange = Some(self.now);
        self.restore(&holder, RestoredBy::Exchanged);
        self.eject_by_rules(&candidate.address, &candidate.verdict);
        true
    }

    /// The holder with the lowest rate, if the candidate is at least twenty points worse and the
    /// swap leaves another passing instance in.
    fn best_holder(&self, candidate: &Candidate) -> Option<Address> {
        let automatic = |address: &&Address| {
            self.instances.get(*address).is_some_and(|instance| {
                let manual = instance
                    .ejection
                    .as_ref()
                    .is_none_or(|e| e.origin.is_manual());
                instance.routable && !manual
            })
        };
        let holders = self.ejected.iter().filter(automatic).filter_map(|address| {
            let ejection = self.instances.get(address)?.ejection.as_ref()?;
            Some((address, ejection.rank(), ejection.returns_at()))
        });
        let (address, rank, _) = holders.min_by(|(id_a, rank_a, at_a), (id_b, rank_b, at_b)| {
            rank_a
                .compare(*rank_b)
                .then(at_a.cmp(at_b))
                .then(id_a.cmp(id_b))
        })?;
        let worse = candidate.verdict.rank().rate.exceeds_by_fifth(rank);
        let holder_passes = self.tally.passes(self.instances.get(address)?);
        let others = self
            .tally
            .others_passing(self.instances.get(&candidate.address)?);
        (worse && (holder_passes || others > 0)).then(|| address.clone())
    }

    /// More than half of the routable ones turned abnormal within a window: a dependency they
    /// share, or our own network.
    fn note_correlation(&mut self) {
        let window = self.policy.statistics_window;
        while self
            .turned
            .front()
            .is_some_and(|(at, _)| self.now.since(*at) >= window)
        {
            self.turned.pop_front();
        }
        let mut turned: Vec<&Address> = self.turned.iter().map(|(_, address)| address).collect();
        turned.sort_unstable();
        turned.dedup();
        let routable =
            |address: &&&Address| self.instances.get(**address).is_some_and(|i| i.routable);
        let turned = turned.iter().filter(routable).count();
        let told = self
            .last_correlated
            .is_some_and(|last| self.now.since(last) < window);
        if self.tally.n >= 2 && turned * 2 > self.tally.n && !told {
            self.last_correlated = Some(self.now);
            self.effects.push_back(Effect::CorrelatedFailure {
                turned,
                numbers: self.numbers(),
            });
        }
    }

    /// What only a bucket close decides: k is forgotten, calm after suppression becomes a hint.
    fn after_close(&mut self) {
        let window = self.policy.statistics_window;
        let mut calm = false;
        for address in self.watch.clone() {
            let verdict = self.verdict_on_full_sample(&address);
            let Some(instance) = self.instances.get_mut(&address) else {
                self.watch.remove(&address);
                continue;
            };
            let ramp = instance.ramp_start.or(instance.shadow_ramp);
            let ramping = ramp.is_some_and(|start| self.now.since(start) < self.policy.ramp);
            if !ramping {
                instance.ramp_start = None;
                instance.shadow_ramp = None;
                let proven = verdict.is_some_and(|verdict| verdict.is_proven_normal());
                let earned = instance
                    .memory
                    .is_some_and(|memory| memory.successes_left == 0);
                if earned && proven {
                    instance.memory = None;
                }
            }
            if instance
                .calm_since
                .is_some_and(|since| self.now.since(since) >= window)
            {
                instance.calm_since = None;
                calm = true;
            }
            if !instance.needs_watch() {
                self.watch.remove(&address);
            }
        }
        if calm {
            self.hint_all();
        }
        // The window moves on: the next failing response may find others abnormal than it did.
        self.judge_all();
    }

    fn verdict_on_full_sample(&self, address: &Address) -> Option<Verdict> {
        let instance = self.instances.get(address)?;
        instance.memory?;
        Some(self.rules().judge_instance(instance, FULL_SHARE))
    }

    /// A hint for every ejected instance, spread over one unit.
    fn hint_all(&mut self) {
        let targets = self.ejected_by_rules();
        let unit = self.policy.recovery_detection_unit_time;
        let count = targets.len();
        for (index, address) in targets.into_iter().enumerate() {
            let [index, count] = [index, count].map(|n| u128::try_from(n).unwrap_or(0));
            self.hint(&address, self.now + scaled(unit, index, count));
        }
    }

    pub(super) fn forget_verdicts_of(&mut self, address: &Address) {
        self.abnormal.remove(address);
        self.watch.remove(address);
        self.dirty.remove(address);
    }

    pub(super) fn origin_by_mode(&self) -> Origin {
        if self.is_enforced() {
            Origin::Rules
        } else {
            Origin::Shadow
        }
    }
}
