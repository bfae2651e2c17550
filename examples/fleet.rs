//! What a registry that was away for a minute sees of 10,000 sidecars with 20 services each: questions
//! per second over time, by the schedule that runs in production.
//! `cargo run --release --example fleet [SIDECARS SERVICES SEED]`, some seconds.

#[path = "../tests/simulation/polling.rs"]
mod polling;

use std::io::Write as _;

use polling::{AWAY, BACK, PERIOD, play};

fn main() -> anyhow::Result<()> {
    let mut numbers = std::env::args().skip(1);
    let mut number = |default: &str| numbers.next().unwrap_or_else(|| default.to_owned());
    let (sidecars, services) = (number("10000").parse()?, number("20").parse()?);
    let seen = play(sidecars, services, number("1").parse()?);
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{sidecars} sidecars, {services} services each, a question every {PERIOD:?}; away from {AWAY} s to {BACK} s"
    )?;
    let steady = seen.steady().max(1);
    for (second, count) in seen.questions.iter().enumerate().step_by(2) {
        let share = f64::from(*count) / f64::from(steady);
        let length = u64::from(*count) * 30 / u64::from(steady);
        let bar = "#".repeat(usize::try_from(length)?);
        writeln!(out, "{second:>4} s {count:>7}/s {share:>5.2} {bar}")?;
    }
    let peak = seen.peak();
    writeln!(
        out,
        "steady {steady}/s, peak after the loss {peak}/s = {:.2} x steady, all answered again {} s after the return",
        f64::from(peak) / f64::from(steady),
        seen.all_back.saturating_sub(BACK)
    )?;
    Ok(())
}
