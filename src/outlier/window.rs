//! What was seen of one instance: exact counts in ten buckets of the monotonic clock, and the
//! streak of failures since the last call that was none. Bucket i is `[i x w, (i + 1) x w)`.
//! It counts and does not judge: `detector/judge.rs` does.

use std::collections::VecDeque;

use super::classify::{ErrorKind, OutcomeClass};
use super::policy::ExceptionType;

/// Buckets of every window.
pub const BUCKETS: u64 = 10;

/// The number of a bucket since the origin of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BucketIndex(pub u64);

/// Judged calls, by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls that were no error.
    pub success: u64,
    /// Network errors.
    pub network: u64,
    /// Business errors, whether or not they count as failures.
    pub business: u64,
}

impl Counts {
    /// All judged calls.
    pub const fn calls(&self) -> u64 {
        self.success + self.network + self.business
    }

    /// The failures where `exception_type` holds.
    pub const fn failures(&self, exception_type: ExceptionType) -> u64 {
        match exception_type {
            ExceptionType::Network => self.network,
            ExceptionType::NetworkAndBusiness => self.network + self.business,
        }
    }

    const fn add(&mut self, class: OutcomeClass, count: u64) {
        match class {
            OutcomeClass::Success => self.success += count,
            OutcomeClass::NetworkError => self.network += count,
            OutcomeClass::BusinessError => self.business += count,
            OutcomeClass::Ignored => {}
        }
    }

    const fn subtract(&mut self, other: &Self) {
        self.success -= other.success;
        self.network -= other.network;
        self.business -= other.business;
    }
}

/// One or several equal outcomes of ordinary attempts.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// What it says of the instance.
    pub class: OutcomeClass,
    /// How many.
    pub count: u64,
    /// It failed by a time limit of ours, or by a client that gave up on it.
    pub own_timeout: bool,
    /// The multiplexed connection it died with.
    pub death: Option<u64>,
    /// How it failed, for explaining.
    pub kind: Option<ErrorKind>,
}

/// Length of the streak as it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreakLength {
    /// Failures in a row; the death of one connection counts once.
    pub failures: u64,
    /// Those of them that were time-outs of ours.
    pub own_timeouts: u64,
    /// Calls of the window that belong to it, each counted.
    pub calls: u64,
}

/// Ten buckets and their sum.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    newest: BucketIndex,
    buckets: [Counts; 10],
    total: Counts,
}

impl Ring {
    /// Adds at `now`, the bucket that is open.
    pub fn add(&mut self, class: OutcomeClass, count: u64, now: BucketIndex) {
        self.advance(now);
        if let Some(bucket) = self.buckets.get_mut(slot(self.newest)) {
            bucket.add(class, count);
            self.total.add(class, count);
        }
    }

    /// Drops what is older than the ten buckets that end with `now`.
    pub fn advance(&mut self, now: BucketIndex) {
        if now <= self.newest {
            return;
        }
        let passed = (now.0 - self.newest.0).min(BUCKETS);
        for step in 0..passed {
            if let Some(bucket) = self.buckets.get_mut(slot(BucketIndex(now.0 - step))) {
                self.total.subtract(bucket);
                *bucket = Counts::default();
            }
        }
        self.newest = now;
    }

    /// Counts of the last ten buckets, as of the latest `add` or `advance`.
    pub const fn total(&self) -> Counts {
        self.total
    }
}

/// Counts of one instance.
#[derive(Clone, Debug, Default)]
pub struct Window {
    ring: Ring,
    kinds: VecDeque<(BucketIndex, ErrorKind, u64)>,
    /// Business errors end this one ...
    network_streak: Streak,
    /// ... and belong to this one. Both are kept, so that a reload may change the exception type.
    any_streak: Streak,
}

impl Window {
    /// Adds at `now`, the bucket that is open.
    pub fn add(&mut self, sample: &Sample, now: BucketIndex) {
        self.advance(now);
        if sample.class == OutcomeClass::Ignored || sample.count == 0 {
            return;
        }
        self.ring.add(sample.class, sample.count, now);
        match sample.class {
            OutcomeClass::Success => {
                self.network_streak.end();
                self.any_streak.end();
            }
            OutcomeClass::NetworkError => {
                self.network_streak.add(sample, now);
                self.any_streak.add(sample, now);
            }
            OutcomeClass::BusinessError => {
                self.network_streak.end();
                self.any_streak.add(sample, now);
            }
            OutcomeClass::Ignored => {}
        }
        if let Some(kind) = sample.kind {
            self.add_kind(kind, sample.count, now);
        }
    }

    /// Drops what is older than the ten buckets that end with `now`.
    pub fn advance(&mut self, now: BucketIndex) {
        self.ring.advance(now);
        while self
            .kinds
            .front()
            .is_some_and(|(bucket, ..)| !in_last(BUCKETS, *bucket, now))
        {
            self.kinds.pop_front();
        }
    }

    /// Drops failures of the streak that are older than `life` buckets; `life` is at least ten.
    pub fn forget_streak(&mut self, life: u64) {
        self.network_streak.forget(life, self.ring.newest);
        self.any_streak.forget(life, self.ring.newest);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        let ring = Ring {
            newest: self.ring.newest,
            ..Ring::default()
        };
        *self = Self {
            ring,
            ..Self::default()
        };
    }

    /// Counts of the last ten buckets, as of the latest `add` or `advance`.
    pub const fn counts(&self) -> Counts {
        self.ring.total()
    }

    /// The streak where `exception_type` holds. Time-outs of ours stay in it for `life` buckets.
    pub fn streak(&self, exception_type: ExceptionType, life: u64) -> StreakLength {
        match exception_type {
            ExceptionType::Network => self.network_streak.length(life, self.ring.newest),
            ExceptionType::NetworkAndBusiness => self.any_streak.length(life, self.ring.newest),
        }
    }

    /// Errors of the window by kind, in the order of the label list.
    pub fn errors_by_kind(&self) -> Vec<(ErrorKind, u64)> {
        let sum = |kind| {
            self.kinds
                .iter()
                .filter(|(_, k, _)| *k == kind)
                .map(|(.., n)| n)
                .sum()
        };
        ErrorKind::ALL
            .into_iter()
            .map(|kind| (kind, sum(kind)))
            .filter(|(_, n)| *n > 0)
            .collect()
    }

    /// Whether nothing in it could ever make the instance abnormal.
    pub fn is_clean(&self) -> bool {
        self.counts().network == 0 && self.counts().business == 0 && self.any_streak.runs.is_empty()
    }

    fn add_kind(&mut self, kind: ErrorKind, count: u64, now: BucketIndex) {
        let same =
            |(bucket, k, _): &&mut (BucketIndex, ErrorKind, u64)| *bucket == now && *k == kind;
        match self.kinds.iter_mut().rev().find(same) {
            Some((.., n)) => *n += count,
            None => self.kinds.push_back((now, kind, count)),
        }
    }
}

/// Failures since the last call that was none, by bucket.
#[derive(Clone, Debug, Default)]
struct Streak {
    runs: VecDeque<Run>,
    /// Connections whose death is in it already. Bounded: a forgotten one would count once more.
    deaths: VecDeque<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Run {
    bucket: BucketIndex,
    ordinary: u64,
    own_timeouts: u64,
    calls: u64,
}

impl Streak {
    fn add(&mut self, sample: &Sample, now: BucketIndex) {
        const DEATHS: usize = 256;
        const RUNS: usize = 1_024;
        if self.runs.back().is_none_or(|run| run.bucket != now) {
            self.runs.push_back(Run {
                bucket: now,
                ..Run::default()
            });
        }
        let mut length = sample.count;
        if let Some(death) = sample.death {
            length = u64::from(!self.deaths.contains(&death));
            if length == 1 {
                self.deaths.push_back(death);
            }
            if self.deaths.len() > DEATHS {
                self.deaths.pop_front();
            }
        }
        // Ten time-outs of ours decide: what is cut off here could change a number, no verdict.
        if self.runs.len() > RUNS {
            self.runs.pop_front();
        }
        if let Some(run) = self.runs.back_mut() {
            run.calls += sample.count;
            match sample.own_timeout {
                true => run.own_timeouts += length,
                false => run.ordinary += length,
            }
        }
    }

    fn end(&mut self) {
        self.runs.clear();
        self.deaths.clear();
    }

    fn forget(&mut self, life: u64, now: BucketIndex) {
        let gone = |run: &Run| {
            let life = if run.own_timeouts > 0 {
                life.max(BUCKETS)
            } else {
                BUCKETS
            };
            !in_last(life, run.bucket, now)
        };
        while self.runs.front().is_some_and(gone) {
            self.runs.pop_front();
        }
    }

    fn length(&self, life: u64, now: BucketIndex) -> StreakLength {
        let mut length = StreakLength::default();
        for run in &self.runs {
            if in_last(BUCKETS, run.bucket, now) {
                length.failures += run.ordinary;
                length.calls += run.calls;
            }
            if in_last(life.max(BUCKETS), run.bucket, now) {
                length.failures += run.own_timeouts;
                length.own_timeouts += run.own_timeouts;
            }
        }
        length
    }
}

const fn in_last(buckets: u64, bucket: BucketIndex, now: BucketIndex) -> bool {
    bucket.0.saturating_add(buckets) > now.0
}

fn slot(bucket: BucketIndex) -> usize {
    usize::try_from(bucket.0 % BUCKETS).unwrap_or(0)
}

#[cfg(test)]
mod tests;
