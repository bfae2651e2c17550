//! The end of the story in a few lines: what the app saw, what was decided, whether all of it was
//! there. Pure.

use std::fmt;
use std::time::Duration;

use super::story::{Ejection, Findings};
use crate::clock::Timestamp;

/// More failures the app saw per ejection are no good service.
const MOST_FAILURES: usize = 10;

/// What the app saw while an instance was at fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Failed requests after the bad one turned bad.
    pub bad: usize,
    /// Failed requests after the silent one fell silent.
    pub silent: usize,
}

/// The summary.
#[derive(Debug)]
pub struct Summary<'a> {
    /// What was seen.
    pub findings: &'a Findings,
    /// Requests of the app.
    pub requests: u64,
    /// Those that failed, whenever.
    pub failed: u64,
    /// By instance at fault.
    pub seen: Seen,
    /// Instances at the start.
    pub instances: usize,
    /// Names of the bad one and the silent one.
    pub names: (&'a str, &'a str),
}

impl Summary<'_> {
    /// What keeps the demo from having shown what it is to show.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let missing = self.findings.missing();
        if !missing.is_empty() {
            faults.push(format!("not seen: {}", missing.join(", ")));
        }
        for (name, seen) in [
            (self.names.0, self.seen.bad),
            (self.names.1, self.seen.silent),
        ] {
            if seen > MOST_FAILURES {
                faults.push(format!(
                    "the app saw {seen} failures of {name}, more than {MOST_FAILURES}"
                ));
            }
        }
        if self.findings.all_out {
            faults.push("there was a moment with all instances out".to_owned());
        }
        faults
    }

    fn ejection(&self, bad: Option<Timestamp>, ejection: Option<Ejection>, seen: usize) -> String {
        let (Some(bad), Some(ejection)) = (bad, ejection) else {
            return "not seen".to_owned();
        };
        let hidden = match usize::try_from(ejection.calls) {
            Ok(calls) if calls > seen => format!(" ({calls} calls failed, retries hid the rest)"),
            Ok(_) | Err(_) => String::new(),
        };
        format!(
            "{} after it began, {seen} failures the app saw{hidden}",
            seconds(ejection.at.since(bad))
        )
    }

    fn probes(&self) -> String {
        let found = self.findings;
        let failed = &found.failed_probes;
        if failed.is_empty() {
            return "not seen".to_owned();
        }
        let steps: Vec<String> = failed.iter().map(|(_, k)| format!("k={k}")).collect();
        let good = usize::from(found.returned.is_some());
        format!(
            "{}: {} failed ({}), {good} good",
            failed.len() + good,
            failed.len(),
            steps.join(", ")
        )
    }

    fn back(&self) -> String {
        let Some((at, out_for)) = self.findings.returned else {
            return "not seen".to_owned();
        };
        let repaired = self.findings.repaired.map_or(at, |repaired| repaired);
        format!(
            "after {} out, {} after its repair",
            seconds(out_for),
            seconds(at.since(repaired))
        )
    }

    fn eviction(&self) -> String {
        let found = self.findings;
        let (Some(silenced), Some(left)) = (found.silenced, found.left) else {
            return "not seen".to_owned();
        };
        let unhealthy = found.unhealthy.map_or_else(String::new, |at| {
            format!("unhealthy after {}, ", seconds(at.since(silenced)))
        });
        format!(
            "{unhealthy}removed after {} of silence",
            seconds(left.since(silenced))
        )
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.findings;
        let (bad, silent) = self.names;
        let never = if found.all_out {
            "AND ALL AT ONCE"
        } else {
            "never all"
        };
        let rows = [
            (
                "requests".to_owned(),
                format!("{}, {} failures the app saw", self.requests, self.failed),
            ),
            (
                format!("{bad} ejected"),
                self.ejection(found.broken, found.bad_ejected, self.seen.bad),
            ),
            (format!("{bad} probes"), self.probes()),
            (format!("{bad} back"), self.back()),
            (
                format!("{silent} ejected"),
                self.ejection(found.silenced, found.silent_ejected, self.seen.silent),
            ),
            (format!("{silent} evicted"), self.eviction()),
            (
                "out at once".to_owned(),
                format!("{} of {} at most, {never}", found.most_out, self.instances),
            ),
        ];
        writeln!(f, "Summary")?;
        for (name, text) in rows {
            writeln!(f, "  {name:<12} {text}")?;
        }
        if found.unexpected > 0 {
            writeln!(f, "  {:<12} {}", "other", others(found.unexpected))?;
        }
        let faults = self.faults();
        if faults.is_empty() {
            return write!(
                f,
                "  {:<12} ejection, probes, return and eviction seen",
                "complete"
            );
        }
        write!(f, "  {:<12} {}", "INCOMPLETE", faults.join("; "))
    }
}

fn others(count: u32) -> String {
    format!("{count} more ejections than the story has")
}

fn seconds(duration: Duration) -> String {
    format!("{:.1}s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Option<Timestamp> {
        Some(Timestamp::from_millis(ms))
    }

    fn complete() -> Findings {
        let ejection = |ms, calls| at(ms).map(|at| Ejection { at, calls });
        Findings {
            broken: at(4000),
            bad_ejected: ejection(4400, 5),
            failed_probes: vec![(Timestamp::from_millis(6400), 2)],
            repaired: at(7400),
            returned: at(10_400).map(|at| (at, Duration::from_secs(6))),
            silenced: at(12_000),
            silent_ejected: ejection(12_300, 5),
            unhealthy: at(17_500),
            left: at(23_500),
            unexpected: 0,
            most_out: 1,
            all_out: false,
        }
    }

    fn summary(findings: &Findings, bad: usize) -> Summary<'_> {
        Summary {
            findings,
            requests: 1800,
            failed: 5,
            seen: Seen { bad, silent: 0 },
            instances: 5,
            names: ("B", "D"),
        }
    }

    #[test]
    fn a_complete_story_reads_like_one() {
        let findings = complete();
        let summary = summary(&findings, 5);
        assert_eq!(summary.faults(), Vec::<String>::new());
        assert_eq!(
            summary.to_string(),
            "Summary
  requests     1800, 5 failures the app saw
  B ejected    0.4s after it began, 5 failures the app saw
  B probes     2: 1 failed (k=2), 1 good
  B back       after 6.0s out, 3.0s after its repair
  D ejected    0.3s after it began, 0 failures the app saw (5 calls failed, retries hid the rest)
  D evicted    unhealthy after 5.5s, removed after 11.5s of silence
  out at once  1 of 5 at most, never all
  complete     ejection, probes, return and eviction seen"
        );
    }

    #[test]
    fn what_is_missing_or_too_much_is_named() {
        let findings = Findings {
            all_out: true,
            left: None,
            ..complete()
        };
        let summary = summary(&findings, 11);
        let faults = summary.faults().join("; ");
        for part in ["eviction", "11 failures of B", "all instances out"] {
            assert!(faults.contains(part), "{faults}");
        }
        assert!(summary.to_string().contains("D evicted    not seen"));
    }
}
