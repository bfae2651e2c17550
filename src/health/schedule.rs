//! When each instance is checked: one heap of due times for all instances of an upstream, instead of a
//! timer for each. The first check is due at once, the second after a random part of the interval, so
//! that checks which began together do not stay together; from then on an interval and up to a tenth
//! more lie between two. Pure; the caller bounds how many run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use crate::clock::Timestamp;

/// Due times are rounded up to this, so that many checks share one wake-up.
const TICK: Duration = Duration::from_millis(5);

/// The checks of one upstream's instances, by the numbers of these.
#[derive(Debug)]
pub struct Schedule {
    interval: Duration,
    rng: fastrand::Rng,
    due: BinaryHeap<Reverse<(Timestamp, u64)>>,
    slots: HashMap<u64, Slot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// Due then; an entry of the heap with another time is an old one.
    Waiting { due: Timestamp, first: bool },
    /// Under way; another one at once if `again`.
    Running { first: bool, again: bool },
}

impl Schedule {
    /// Without instances.
    pub fn new(interval: Duration, seed: u64) -> Self {
        Self {
            interval,
            rng: fastrand::Rng::with_seed(seed),
            due: BinaryHeap::new(),
            slots: HashMap::new(),
        }
    }

    /// An instance that is due at once. One that is known stays as it is.
    pub fn add(&mut self, id: u64, now: Timestamp) {
        if !self.slots.contains_key(&id) {
            self.wait(id, now, true);
        }
    }

    /// An instance is gone; a check of it that is under way ends as it may.
    pub fn remove(&mut self, id: u64) {
        self.slots.remove(&id);
    }

    /// When the next one is due.
    pub fn next_due(&mut self) -> Option<Timestamp> {
        loop {
            let Reverse((due, id)) = *self.due.peek()?;
            match self.slots.get(&id) {
                Some(Slot::Waiting { due: own, .. }) if *own == due => return Some(due),
                Some(_) | None => drop(self.due.pop()),
            }
        }
    }

    /// Takes the one that is due longest.
    pub fn start(&mut self, now: Timestamp) -> Option<u64> {
        self.next_due().filter(|due| *due <= now)?;
        let Reverse((_, id)) = self.due.pop()?;
        let slot = self.slots.get_mut(&id)?;
        let first = matches!(slot, Slot::Waiting { first: true, .. });
        *slot = Slot::Running {
            first,
            again: false,
        };
        Some(id)
    }

    /// A check has ended.
    pub fn finished(&mut self, id: u64, now: Timestamp) {
        let Some(Slot::Running { first, again }) = self.slots.get(&id).copied() else {
            return;
        };
        let nanos = u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX);
        let pause = match (again, first) {
            (true, _) => 0,
            (false, true) => self.rng.u64(0..=nanos.saturating_add(nanos / 20)),
            (false, false) => nanos.saturating_add(self.rng.u64(0..=nanos / 10)),
        };
        self.wait(id, now + Duration::from_nanos(pause), false);
    }

    /// There is reason to look at once, or at once again when a check is under way.
    pub fn hurry(&mut self, id: u64, now: Timestamp) {
        match self.slots.get_mut(&id) {
            Some(Slot::Running { again, .. }) => *again = true,
            Some(Slot::Waiting { first, .. }) => {
                let first = *first;
                self.wait(id, now, first);
            }
            None => {}
        }
    }

    fn wait(&mut self, id: u64, at: Timestamp, first: bool) {
        let tick = u64::try_from(TICK.as_nanos()).unwrap_or(1);
        let due = Timestamp::from_nanos(at.as_nanos().div_ceil(tick).saturating_mul(tick));
        self.slots.insert(id, Slot::Waiting { due, first });
        self.due.push(Reverse((due, id)));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    /// Starts everything that is due by `now`, ends it at once; returns the numbers.
    fn pass(schedule: &mut Schedule, now: Timestamp) -> Vec<u64> {
        let mut started = Vec::new();
        while let Some(id) = schedule.start(now) {
            schedule.finished(id, now);
            started.push(id);
        }
        started
    }

    #[test]
    fn all_are_checked_at_once_and_spread_from_then_on() {
        let mut schedule = Schedule::new(INTERVAL, 7);
        for id in 0..10_000 {
            schedule.add(id, Timestamp::ZERO);
        }
        assert_eq!(pass(&mut schedule, Timestamp::ZERO).len(), 10_000);
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        let mut per_second = Vec::new();
        for second in 0..60 {
            let mut count = 0;
            for step in 0..100 {
                let at = second * 1_000 + step * 10;
                for id in pass(&mut schedule, Timestamp::from_millis(at)) {
                    count += 1;
                    if let Some(before) = last.insert(id, at) {
                        let pause = at - before;
                        assert!((9_990..=11_020).contains(&pause), "{pause} ms");
                    }
                }
            }
            per_second.push(count);
        }
        // 950 a second when evenly spread.
        assert!(
            per_second.iter().all(|n| (450..1_500).contains(n)),
            "{per_second:?}"
        );
        assert_eq!(last.len(), 10_000);
    }

    #[test]
    fn nothing_is_due_while_it_runs_and_a_hurry_is_not_lost() {
        let mut schedule = Schedule::new(INTERVAL, 1);
        let at = Timestamp::from_millis;
        schedule.add(1, at(0));
        schedule.add(1, at(0));
        assert_eq!(schedule.start(at(0)), Some(1));
        assert_eq!(
            (schedule.start(at(60_000)), schedule.next_due()),
            (None, None)
        );
        schedule.hurry(1, at(1));
        schedule.finished(1, at(1_000));
        assert_eq!(schedule.start(at(1_000)), Some(1));
        schedule.finished(1, at(2_000));
        assert!(schedule.next_due().is_some_and(|due| due > at(2_000)));
        schedule.hurry(1, at(2_010));
        assert_eq!(schedule.start(at(2_010)), Some(1));
        schedule.remove(1);
        schedule.finished(1, at(3_000));
        assert_eq!(schedule.next_due(), None);
    }

    proptest! {
        /// Whatever happens, each known instance is checked again and again, one check at a time.
        #[test]
        fn nobody_is_forgotten(steps in proptest::collection::vec((0_u8..4, 0_u64..5, 0_u64..3_000), 1..200)) {
            let mut schedule = Schedule::new(INTERVAL, 3);
            let (mut known, mut running) = (BTreeMap::new(), Vec::new());
            let mut now = 0;
            for (what, id, pause) in steps {
                now += pause;
                let at = Timestamp::from_millis(now);
                match what {
                    0 => { schedule.add(id, at); known.insert(id, ()); }
                    1 => { schedule.remove(id); known.remove(&id); running.retain(|r| *r != id); }
                    2 => schedule.hurry(id, at),
                    _ => if let Some(id) = schedule.start(at) {
                        prop_assert!(known.contains_key(&id) && !running.contains(&id));
                        running.push(id);
                    } else if let Some(id) = running.pop() {
                        schedule.finished(id, at);
                    },
                }
            }
            let later = Timestamp::from_millis(now + 12_000);
            for id in running.drain(..) {
                schedule.finished(id, Timestamp::from_millis(now));
            }
            let mut seen = Vec::new();
            while let Some(id) = schedule.start(later) {
                seen.push(id);
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, known.into_keys().collect::<Vec<_>>());
        }
    }
}
