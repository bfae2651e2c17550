//! A seeded storm against the outlier detector: endpoint flaps, failing checks, reloads, late and
//! lost answers, exchanges, overrides, clock jumps. A shadow model that knows nothing of windows
//! and schedules checks every effect. On failure seed and step are printed.
//!
//! `OUTRIGGER_SIM_SEED` (first seed, 1), `OUTRIGGER_SIM_SEEDS` (200), `OUTRIGGER_SIM_STEPS` (2000).

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests may fail like tests"
)]

mod model;
mod storm;

use storm::Storm;

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(default, |text| text.parse().expect(name))
}

/// Says where it happened when a check panics.
struct Place {
    seed: u64,
    step: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("simulation failed: seed {} step {}", self.seed, self.step);
        }
    }
}

fn run(seed: u64, steps: u64, keeps_history: bool) -> Storm {
    let mut place = Place { seed, step: 0 };
    let mut storm = Storm::new(seed);
    storm.keeps_history = keeps_history;
    for step in 0..steps {
        place.step = step;
        storm.step();
    }
    storm
}

#[test]
fn no_interleaving_breaks_an_invariant() {
    let first = from_env("OUTRIGGER_SIM_SEED", 1);
    let seeds = from_env("OUTRIGGER_SIM_SEEDS", 200);
    let steps = from_env("OUTRIGGER_SIM_STEPS", 2_000);
    let mut seen = model::Seen::default();
    for seed in first..first + seeds {
        seen.add(&run(seed, steps, false).model.seen);
    }
    // A storm in which something never happens proves nothing of it.
    if seeds >= 200 && steps >= 2_000 {
        assert!(seen.is_complete(), "{seen:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let seed = from_env("OUTRIGGER_SIM_SEED", 1);
    for seed in seed..seed + 5 {
        let [one, two] = [0, 1].map(|_| run(seed, 1_000, true).history);
        assert!(one.len() > 100);
        assert_eq!(one, two);
    }
}
