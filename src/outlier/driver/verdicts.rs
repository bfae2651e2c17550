//! Verdicts of active checks that have turned: the detectors are told, the snapshot follows, an event
//! says why. Where many turn together they share a snapshot, and one event stands for the rest.

use std::time::Duration;

use serde_json::json;

use super::{Driver, report};
use crate::clock::Timestamp;
use crate::config::types::WhenAllUnhealthy;
use crate::endpoint::Address;
use crate::outlier::Input;

/// Up to this many instances each turn of a check is published at once; of more, all turns within
/// [`TOGETHER`] are: when a thousand turn in a second, a snapshot for each would be all we do.
const SMALL: usize = 256;
const TOGETHER: Duration = Duration::from_millis(100);
/// Turns within [`SPAN`] that have an event of their own; one more tells how many others there were.
const TOLD: u32 = 32;
const SPAN: Duration = Duration::from_secs(1);

/// A verdict that has turned.
#[derive(Debug)]
pub(super) struct Turned {
    pub(super) address: Address,
    pub(super) passing: bool,
    /// What the check saw.
    pub(super) why: String,
    /// It is no longer checked; since when it failed.
    pub(super) cleared: Option<Timestamp>,
}

impl Turned {
    pub(super) const fn new(address: Address, passing: bool, why: String) -> Self {
        Self {
            address,
            passing,
            why,
            cleared: None,
        }
    }
}

/// Bounds the events of turns.
#[derive(Debug, Default)]
pub(super) struct TurnLog {
    since: Option<Timestamp>,
    told: u32,
    untold: Untold,
}

/// Turns without an event of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Untold {
    failing: u32,
    passing: u32,
}

impl TurnLog {
    /// Whether a turn has an event of its own; if not it is counted.
    fn admits(&mut self, passing: bool, now: Timestamp) -> bool {
        if self.since.is_none_or(|since| now.since(since) >= SPAN) {
            self.since = Some(now);
            self.told = 0;
        }
        if self.told < TOLD {
            self.told += 1;
            return true;
        }
        let counter = if passing {
            &mut self.untold.passing
        } else {
            &mut self.untold.failing
        };
        *counter = counter.saturating_add(1);
        false
    }

    /// When the untold ones are to be told together.
    pub(super) fn due(&self) -> Option<Timestamp> {
        let since = self.since.filter(|_| self.untold != Untold::default())?;
        Some(since + SPAN)
    }

    fn take_due(&mut self, now: Timestamp) -> Option<Untold> {
        self.due().filter(|due| *due <= now)?;
        Some(std::mem::take(&mut self.untold))
    }
}

impl Driver {
    /// Verdicts have turned.
    pub(super) fn turn(&mut self, turned: Vec<Turned>) {
        if turned.is_empty() {
            return;
        }
        self.feed();
        self.tell_untold();
        let now = self.clock.now();
        for one in turned {
            self.tell_turn(&one, now);
            let (address, passing) = (one.address, one.passing);
            let check = Input::Check { address, passing };
            self.detector.handle(check, now);
        }
        if self.members.len() <= SMALL {
            self.publish_due = true;
        } else {
            self.publish_at.get_or_insert(now + TOGETHER);
        }
    }

    fn tell_turn(&mut self, turned: &Turned, now: Timestamp) {
        let health = self.members.get_mut(&turned.address);
        let health = health.and_then(|member| member.health.as_mut());
        let failing = match (health, turned.passing) {
            (Some(health), true) => health.failing_since.take(),
            (Some(health), false) => health.failing_since.replace(now),
            (None, _) => turned.cleared,
        };
        if let Some(checks) = &mut self.checks {
            checks.verdict_turned(turned.passing);
        }
        if !self.turns.admits(turned.passing, now) {
            return;
        }
        let (address, name) = (&turned.address, &self.upstream.name);
        let mut fields = vec![("check", json!(turned.why))];
        if self.checks.is_some() {
            fields.extend(self.verdicts());
        }
        if !turned.passing {
            let all = self.words_of_all();
            let msg = format!("{address} of {name} fails its checks: {}{all}", turned.why);
            report::emit(self, "instance_unhealthy", Some(address), fields, msg);
            return;
        }
        let failing = failing.map_or(Duration::ZERO, |since| now.since(since));
        fields.push(("unhealthy_for_s", json!(failing.as_secs_f64())));
        let verb = match turned.cleared {
            Some(_) => "counts as healthy",
            None => "passes its checks again",
        };
        let (after, all) = (report::span(failing), self.words_of_all());
        let msg = format!(
            "{address} of {name} {verb} after {after}: {}{all}",
            turned.why
        );
        report::emit(self, "instance_healthy", Some(address), fields, msg);
    }

    /// The turns of the last moment that have no event of their own, when that is over.
    pub(super) fn tell_untold(&mut self) {
        let Some(untold) = self.turns.take_due(self.clock.now()) else {
            return;
        };
        let (name, all) = (&self.upstream.name, self.words_of_all());
        for (count, event, verb) in [
            (untold.failing, "instance_unhealthy", "failed"),
            (untold.passing, "instance_healthy", "passed"),
        ] {
            if count > 0 {
                let mut fields = vec![("count", json!(count))];
                fields.extend(self.verdicts());
                let msg = format!("{count} further instances of {name} {verb} their checks{all}");
                report::emit(self, event, None, fields, msg);
            }
        }
    }

    fn verdicts(&self) -> [(&'static str, serde_json::Value); 2] {
        let (passing, checked) = self.checks.as_ref().map_or((0, 0), |c| c.verdicts());
        [("passing", json!(passing)), ("checked", json!(checked))]
    }

    /// How the others are, in words.
    fn words_of_all(&self) -> String {
        let Some((passing, checked)) = self.checks.as_ref().map(|c| c.verdicts()) else {
            return String::new();
        };
        let then = match (passing, self.service.when_all_unhealthy) {
            (1.., _) => "",
            (0, WhenAllUnhealthy::UseAll) => ", so all are used",
            (0, WhenAllUnhealthy::Refuse) => ", so requests are refused",
        };
        format!("; {passing} of {checked} pass{then}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_turns_are_told_one_by_one_and_the_rest_together() {
        let mut log = TurnLog::default();
        let at = Timestamp::from_millis;
        let told = (0..10_000).filter(|n| log.admits(n % 10 == 0, at(5 + n / 20)));
        assert_eq!(told.count(), 32);
        assert_eq!(log.due(), Some(at(1_005)));
        assert_eq!(log.take_due(at(1_004)), None);
        let untold = log.take_due(at(1_005)).unwrap();
        assert_eq!(untold.failing + untold.passing, 10_000 - 32);
        assert_eq!((untold.passing, log.due()), (1_000 - 4, None));
        // The next moment has its own.
        assert!(log.admits(true, at(1_100)));
        assert_eq!(log.due(), None);
    }
}
