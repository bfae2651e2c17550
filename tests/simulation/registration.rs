//! Ten thousand apps at one registry that goes away or forgets them, driven by the machine that
//! runs in production: no burst, and everybody is back within two beats.

#![expect(
    clippy::cast_possible_truncation,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests may fail like tests"
)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::time::Duration;

use outrigger::clock::Timestamp;
use outrigger::registration::machine::{Action, Beat, Machine, Outcome, Standing, Terms, Wish};
use outrigger::registration::rhythm::{Beats, Rhythm};

const APPS: usize = 10_000;
/// The apps were started over this time; then it is steady.
const STEADY: u64 = 120;
/// The registry goes away then, if it does, ...
const AWAY: u64 = 180;
/// ... and is back, empty.
const BACK: u64 = 240;
const END: u64 = 330;

/// How a registry treats beats.
struct Kind {
    interval: u64,
    jitter_percent: u32,
    register_after_failure: bool,
    /// It understands light beats, and a full beat makes the instance.
    light: bool,
}

const NACOS: Kind = Kind {
    interval: 5,
    jitter_percent: 20,
    register_after_failure: false,
    light: true,
};
const EUREKA: Kind = Kind {
    interval: 30,
    jitter_percent: 10,
    register_after_failure: false,
    light: false,
};
const CONSUL: Kind = Kind {
    interval: 5,
    jitter_percent: 10,
    register_after_failure: true,
    light: false,
};

/// What was seen.
struct Seen {
    /// Requests that arrived, by second.
    requests: Vec<u32>,
    /// When the last app was listed again.
    all_back: u64,
}

impl Seen {
    /// The mean of the steady time.
    fn steady(&self) -> f64 {
        let steady = &self.requests[STEADY as usize..AWAY as usize];
        f64::from(steady.iter().sum::<u32>()) / steady.len() as f64
    }

    /// The busiest second from `AWAY` on.
    fn peak(&self) -> f64 {
        let after = &self.requests[AWAY as usize..END as usize];
        f64::from(after.iter().copied().max().unwrap())
    }
}

/// The registry is away from `AWAY` to `back`, and knows nobody afterwards.
fn play(kind: &Kind, back: u64, seed: u64) -> Seen {
    let mut rng = fastrand::Rng::with_seed(seed);
    let rhythm = Rhythm {
        beats: Some(Beats {
            interval: Duration::from_secs(kind.interval),
            jitter_percent: kind.jitter_percent,
            overlap: 1,
            register_after_failure: kind.register_after_failure,
        }),
        starting: false,
        marks_leaving: true,
    };
    let mut apps: Vec<Machine> = Vec::new();
    let mut due = BinaryHeap::new();
    for n in 0..APPS {
        let start = Timestamp::from_millis(rng.u64(0..60_000));
        let mut machine = Machine::new(rhythm, start);
        machine.wish(Wish::Listed(Standing::Up), start);
        due.push(Reverse((start, n)));
        apps.push(machine);
    }
    let mut listed: HashSet<usize> = HashSet::new();
    let mut emptied = false;
    let mut seen = Seen {
        requests: vec![0; END as usize + 1],
        all_back: 0,
    };
    while let Some(Reverse((now, n))) = due.pop() {
        let second = now.as_millis() / 1000;
        if second >= END {
            break;
        }
        if second >= AWAY && !emptied {
            emptied = true;
            listed.clear();
        }
        let machine = &mut apps[n];
        let Some(action) = machine.begin(now, &mut rng) else {
            continue;
        };
        seen.requests[second as usize] += 1;
        let terms = Outcome::Accepted(Terms {
            interval: None,
            light: Some(kind.light),
        });
        let outcome = if (AWAY..back).contains(&second) {
            Outcome::Failed("connection refused".to_owned())
        } else {
            let makes = match action {
                Action::Register(_) => true,
                Action::Beat(Beat::Full) => kind.light,
                _ => false,
            };
            if makes && listed.insert(n) && listed.len() == APPS {
                seen.all_back = second;
            }
            if listed.contains(&n) {
                terms
            } else {
                Outcome::Missing
            }
        };
        let later = now + Duration::from_millis(rng.u64(1..5));
        machine.done(action, outcome, later, &mut rng);
        let next = machine.due().expect("an app that is up has a next call");
        due.push(Reverse((next.max(later), n)));
    }
    assert_eq!(listed.len(), APPS, "everybody is back");
    seen
}

/// The noise of one second among ten thousand apps is not part of the promise.
fn assert_no_burst(name: &str, seen: &Seen) {
    let (steady, peak) = (seen.steady(), seen.peak());
    assert!(
        peak <= 2.0 * steady,
        "{name}: {peak} requests/s at the peak, {steady:.0} before"
    );
}

#[test]
fn an_outage_of_a_minute_brings_no_burst_and_all_are_back_within_two_beats() {
    for (name, kind) in [("nacos", &NACOS), ("eureka", &EUREKA), ("consul", &CONSUL)] {
        let seen = play(kind, BACK, 1);
        assert_no_burst(name, &seen);
        let after = seen.all_back - BACK;
        assert!(
            after <= 2 * kind.interval,
            "{name}: all back after {after} s"
        );
    }
}

#[test]
fn a_registry_that_forgot_everybody_sees_no_burst() {
    for (name, kind) in [("nacos", &NACOS), ("eureka", &EUREKA), ("consul", &CONSUL)] {
        let seen = play(kind, AWAY, 2);
        assert_no_burst(name, &seen);
        let after = seen.all_back - AWAY;
        assert!(
            after <= 2 * kind.interval,
            "{name}: all back after {after} s"
        );
    }
}
