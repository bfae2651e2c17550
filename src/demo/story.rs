//! The story: what happens when, in recovery units, and what must be seen for it to be complete.
//! Pure: events and instants come in, acts come out. Next: `demo/summary.rs`.

mod findings;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::Timestamp;

pub use findings::{Ejection, Findings};

/// Steady traffic before anything happens, in tenths of a unit.
const STEADY: u32 = 20;
/// Between the return of the one and the silence of the other.
const CALM: u32 = 12;
/// Beat, six units of silence, and some room.
const EVICTION: u32 = 70;
/// What does not scale: failures are counted in calls, not in units.
const ROOM: Duration = Duration::from_secs(3);
/// More failed probes than this show nothing new.
const MOST_FAILED_PROBES: u32 = 3;

/// How the story is paced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    unit: Duration,
    duration: Duration,
    failed_probes: u32,
}

/// The duration does not hold the story.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is too short to see ejection, probes, return and eviction: with a recovery unit of {} the \
     story needs {}; give --duration {} or a smaller --unit",
    text(*duration), text(*unit), text(*least), text(*least)
)]
pub struct TooShort {
    duration: Duration,
    unit: Duration,
    least: Duration,
}

impl Plan {
    /// As many failed probes as the duration has room for, up to three.
    ///
    /// # Errors
    /// [`TooShort`] when there is not even room for one.
    pub fn new(unit: Duration, duration: Duration) -> Result<Self, TooShort> {
        let fits = |count: &u32| needed(unit, *count) <= duration;
        let Some(failed_probes) = (1..=MOST_FAILED_PROBES).rev().find(fits) else {
            let least = whole_seconds(needed(unit, 1));
            return Err(TooShort {
                duration,
                unit,
                least,
            });
        };
        Ok(Self {
            unit,
            duration,
            failed_probes,
        })
    }

    /// The recovery unit.
    pub const fn unit(&self) -> Duration {
        self.unit
    }

    /// How long it runs.
    pub const fn duration(&self) -> Duration {
        self.duration
    }
}

/// Trials come after 1, 2, 3 ... units, each up to a tenth later.
fn needed(unit: Duration, failed_probes: u32) -> Duration {
    let units_out = (failed_probes + 1) * (failed_probes + 2) / 2;
    tenths(unit, STEADY + 11 * units_out + CALM + EVICTION) + ROOM
}

fn tenths(unit: Duration, count: u32) -> Duration {
    unit * count / 10
}

fn whole_seconds(duration: Duration) -> Duration {
    let begun = u64::from(duration.subsec_nanos() > 0);
    Duration::from_secs(duration.as_secs().saturating_add(begun))
}

fn text(duration: Duration) -> String {
    humantime::format_duration(duration)
        .to_string()
        .replace(' ', "")
}

/// What an instance is in the story.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// It turns bad and is repaired.
    Bad,
    /// It falls silent for good.
    Silent,
    /// Nothing happens to it; the number tells them apart.
    Good(usize),
}

/// What is done to the instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// The bad one answers 500 from now on.
    Break,
    /// It is well again.
    Repair,
    /// The other one stops beating and answering.
    Silence,
    /// The time is over.
    End,
}

/// What was seen, in the journal or in the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// `instance_ejected`, after this many failed calls.
    Ejected { calls: u64 },
    /// `probe_failed`: the step of the schedule that follows.
    ProbeFailed { k: u64 },
    /// `instance_restored` after this long, by a good probe or otherwise.
    Restored { out_for: Duration, by_probe: bool },
    /// The registry's list says unhealthy.
    Unhealthy,
    /// `instance_left`.
    Left,
}

/// The story as it goes.
#[derive(Debug)]
pub struct Story {
    plan: Plan,
    begun: Timestamp,
    out: BTreeSet<Part>,
    listed: usize,
    ended: bool,
    findings: Findings,
}

impl Story {
    /// Begins now, with `listed` instances.
    pub fn new(plan: Plan, listed: usize, begun: Timestamp) -> Self {
        Self {
            plan,
            begun,
            out: BTreeSet::new(),
            listed,
            ended: false,
            findings: Findings::default(),
        }
    }

    /// Takes down what was seen of an instance.
    pub fn see(&mut self, part: Part, happening: Happening, now: Timestamp) {
        match happening {
            Happening::Ejected { .. } => {
                self.out.insert(part);
                self.findings.most_out = self.findings.most_out.max(self.out.len());
                self.findings.all_out |= self.out.len() >= self.listed;
            }
            Happening::Restored { .. } => {
                self.out.remove(&part);
            }
            Happening::Left => {
                self.out.remove(&part);
                self.listed = self.listed.saturating_sub(1);
            }
            Happening::ProbeFailed { .. } | Happening::Unhealthy => {}
        }
        let found = &mut self.findings;
        match (part, happening) {
            (Part::Bad, Happening::Ejected { calls })
                if found.broken.is_some() && found.bad_ejected.is_none() =>
            {
                found.bad_ejected = Some(Ejection { at: now, calls });
            }
            (Part::Silent, Happening::Ejected { calls })
                if found.silenced.is_some() && found.silent_ejected.is_none() =>
            {
                found.silent_ejected = Some(Ejection { at: now, calls });
            }
            (_, Happening::Ejected { .. }) => found.unexpected += 1,
            (Part::Bad, Happening::ProbeFailed { k }) => found.failed_probes.push((now, k)),
            (Part::Bad, Happening::Restored { out_for, by_probe }) => {
                if by_probe && found.repaired.is_some() {
                    found.returned.get_or_insert((now, out_for));
                }
            }
            (Part::Silent, Happening::Unhealthy) if found.silenced.is_some() => {
                found.unhealthy.get_or_insert(now);
            }
            (Part::Silent, Happening::Left) if found.silenced.is_some() => {
                found.left.get_or_insert(now);
            }
            (_, _) => {}
        }
    }

    /// There was nothing to pick.
    pub fn see_nothing_selectable(&mut self) {
        self.findings.all_out = true;
    }

    /// What comes next, and when; nothing after the end.
    pub fn next(&self) -> Option<(Timestamp, Act)> {
        if self.ended {
            return None;
        }
        let found = &self.findings;
        let end = (self.begun + self.plan.duration, Act::End);
        let after = |at: Timestamp, count: u32| at + tenths(self.plan.unit, count);
        let failed = found.failed_probes.len();
        let last_planned = usize::try_from(self.plan.failed_probes)
            .ok()
            .and_then(|planned| planned.checked_sub(1))
            .and_then(|index| found.failed_probes.get(index));
        let act = match (found.broken, found.repaired, found.silenced) {
            (None, _, _) => Some((after(self.begun, STEADY), Act::Break)),
            (Some(_), None, _) if failed > 0 => {
                last_planned.map(|(at, _)| (after(*at, 5), Act::Repair))
            }
            (Some(_), Some(_), None) => found
                .returned
                .map(|(at, _)| (after(at, CALM), Act::Silence)),
            (Some(_), None | Some(_), _) => None,
        };
        Some(act.filter(|act| act.0 < end.0).unwrap_or(end))
    }

    /// An act was carried out.
    pub fn done(&mut self, act: Act, now: Timestamp) {
        let found = &mut self.findings;
        match act {
            Act::Break => found.broken = Some(now),
            Act::Repair => found.repaired = Some(now),
            Act::Silence => found.silenced = Some(now),
            Act::End => self.ended = true,
        }
    }

    /// When it began.
    pub const fn begun(&self) -> Timestamp {
        self.begun
    }

    /// What was seen so far.
    pub const fn findings(&self) -> &Findings {
        &self.findings
    }
}

#[cfg(test)]
mod tests;
