//! What one instance sees of 2,000 sidecars that eject it within a second: trials per second until it
//! returns, with and without the jitter of the schedule, and its load against its fair share while
//! everybody ramps up. Detector, snapshot and balancer are those of production.
//! `cargo run --release --example fleet_ejection [DIRECTORY SIDECARS SEED]`, some seconds; with a
//! directory it writes the plots of `docs/fleet.md` there.

#[path = "../../tests/simulation/fleet.rs"]
mod fleet;
mod svg;

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use fleet::{BAD, Fleet, Seen, play};
use outrigger::config::types::LoadBalancer;
use svg::{Line, Plot};

/// One row of the table, played with and without jitter.
struct Row {
    what: &'static str,
    fleet: Fleet,
}

fn rows(sidecars: u32, seed: u64) -> Vec<Row> {
    let usual = Fleet {
        sidecars,
        instances: 10,
        rate_milli: 1_000,
        latency: Duration::from_millis(20),
        repaired: BAD + 10,
        jitter: 10,
        balancer: LoadBalancer::P2cLeastRequest,
        seed,
    };
    let row = |what, fleet| Row { what, fleet };
    vec![
        row(
            "good at the 3rd trial",
            Fleet {
                repaired: BAD + 120,
                ..usual.clone()
            },
        ),
        row("good at the 1st trial", usual.clone()),
        row(
            "1st, round robin",
            Fleet {
                balancer: LoadBalancer::RoundRobin,
                ..usual.clone()
            },
        ),
        row(
            "1st, random",
            Fleet {
                balancer: LoadBalancer::Random,
                ..usual.clone()
            },
        ),
        row(
            "1st, half the traffic",
            Fleet {
                rate_milli: 500,
                ..usual.clone()
            },
        ),
        row(
            "1st, 10 x traffic, 200 ms",
            Fleet {
                rate_milli: 10_000,
                latency: Duration::from_millis(200),
                ..usual
            },
        ),
    ]
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let at = |index: usize, default: &str| {
        arguments
            .get(index)
            .map_or_else(|| default.to_owned(), Clone::clone)
    };
    let (sidecars, seed) = (at(1, "2000").parse()?, at(2, "1").parse()?);
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{sidecars} sidecars, 10 instances; one fails at {BAD} s and all eject it within a second. Unit 30 s, ramp 10 s.\n"
    )?;
    writeln!(
        out,
        "| repaired, balancer | jitter | fair share | most trials in a second | all back within | load of the ramps, most in a second |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    let mut plots = Vec::new();
    for row in rows(sidecars, seed) {
        let [with, without] = [10, 0].map(|jitter| {
            play(&Fleet {
                jitter,
                ..row.fleet.clone()
            })
        });
        for (jitter, seen) in [("0-10 %", &with), ("none", &without)] {
            anyhow::ensure!(seen.returned == sidecars, "not all are back");
            writeln!(
                out,
                "| {} | {jitter} | {}/s | {}/s | {:.1} s | {:.2} x fair share |",
                row.what,
                seen.fair,
                seen.most_trials(),
                seen.back.1.since(seen.back.0).as_secs_f64(),
                seen.peak(),
            )?;
        }
        plots.push((with, without));
    }
    if let Some(directory) = arguments.first() {
        let directory = Path::new(directory);
        if let [(with, without), ..] = plots.as_slice() {
            std::fs::write(directory.join("fleet-trials.svg"), trials(with, without))?;
            std::fs::write(directory.join("fleet-load.svg"), load(with, without))?;
        }
    }
    Ok(())
}

fn trials(with: &Seen, without: &Seen) -> String {
    let of = |seen: &Seen| seen.trials.iter().copied().map(f64::from).collect();
    Plot {
        title: "Trials of the instance per second, 2,000 sidecars",
        x: "seconds",
        y: "trials per second",
        lines: vec![
            Line::new("without jitter", "b", of(without)),
            Line::new("with jitter (0-10 %)", "a", of(with)),
        ],
        marks: Vec::new(),
    }
    .draw()
}

fn load(with: &Seen, without: &Seen) -> String {
    let of = |seen: &Seen| {
        let fair = f64::from(seen.fair);
        seen.load.iter().map(|n| f64::from(*n) / fair).collect()
    };
    Plot {
        title: "Requests of the instance against its fair share, 2,000 sidecars",
        x: "seconds",
        y: "x fair share",
        lines: vec![
            Line::new("without jitter", "b", of(without)),
            Line::new("with jitter (0-10 %)", "a", of(with)),
        ],
        marks: vec![("1.2 x fair share", 1.2)],
    }
    .draw()
}
