//! A fleet whose registry goes away and comes back, driven by the schedule that runs in production:
//! how many questions arrive in each second. Each sidecar has its services; the first one that is
//! answered after the loss wakes the others, as `discovery/subscription.rs` does.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use outrigger::discovery::schedule::{Outcome, Schedule, after_return};
use outrigger::http_client::jitter::Jitter;

/// The registry's wish: what Nacos says.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);
/// The sidecars start over this many seconds.
const START: u64 = 60;
/// The registry is away from here ...
pub(crate) const AWAY: u64 = 120;
/// ... to here.
pub(crate) const BACK: u64 = 180;
const END: u64 = 300;

/// What the registry saw.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Questions by second, answered or not.
    pub(crate) questions: Vec<u32>,
    /// The second in which the last service was answered again.
    pub(crate) all_back: u64,
}

impl Seen {
    /// The mean rate of the steady time.
    pub(crate) fn steady(&self) -> u32 {
        let range = usize::try_from(START + 20).unwrap_or(0)..usize::try_from(AWAY).unwrap_or(0);
        let steady = self.questions.get(range).unwrap_or_default();
        let sum: u32 = steady.iter().sum();
        sum / u32::try_from(steady.len()).unwrap_or(1).max(1)
    }

    /// The busiest second from the loss on.
    pub(crate) fn peak(&self) -> u32 {
        let after = self
            .questions
            .iter()
            .skip(usize::try_from(AWAY).unwrap_or(0));
        after.copied().max().unwrap_or(0)
    }
}

#[derive(Clone, Copy)]
struct Service {
    schedule: Schedule,
    due: u64,
    /// Answered since the return.
    back: bool,
}

/// Runs it; times are microseconds.
pub(crate) fn play(sidecars: usize, services: usize, seed: u64) -> Seen {
    let second = Duration::from_secs(1).as_micros();
    let second = u64::try_from(second).unwrap_or(u64::MAX);
    let micros = |delay: Duration| u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
    let mut random = fastrand::Rng::with_seed(seed);
    let jitter = Jitter::new(random.fork());
    let seeds: Vec<u64> = (0..sidecars).map(|_| random.u64(..)).collect();
    let names: Vec<String> = (0..services).map(|n| format!("service-{n}")).collect();
    let mut all: Vec<Service> = Vec::with_capacity(sidecars * services);
    let mut lost = vec![false; sidecars];
    let mut queue = BinaryHeap::with_capacity(sidecars * services * 2);
    for _ in 0..sidecars {
        let due = random.u64(0..START * second);
        for _ in 0..services {
            queue.push(Reverse((due, all.len())));
            all.push(Service {
                schedule: Schedule::new(PERIOD),
                due,
                back: false,
            });
        }
    }
    let mut seen = Seen {
        questions: vec![0; usize::try_from(END).unwrap_or(0)],
        all_back: 0,
    };
    while let Some(Reverse((now, index))) = queue.pop() {
        let (sidecar, at) = (index / services.max(1), now / second);
        let Some(service) = all.get_mut(index) else {
            continue;
        };
        // Somebody woke it earlier; this entry is void.
        if service.due != now {
            continue;
        }
        let Some(count) = usize::try_from(at)
            .ok()
            .and_then(|at| seen.questions.get_mut(at))
        else {
            break;
        };
        *count += 1;
        let away = (AWAY..BACK).contains(&at);
        let outcome = if away {
            Outcome::Failed
        } else {
            Outcome::Answered { period: PERIOD }
        };
        service.due = now + micros(service.schedule.next(outcome, &jitter)).max(1);
        queue.push(Reverse((service.due, index)));
        if at >= BACK && !std::mem::replace(&mut service.back, true) {
            seen.all_back = at;
        }
        let Some(lost) = lost.get_mut(sidecar) else {
            continue;
        };
        if away {
            *lost = true;
        } else if std::mem::replace(lost, false) {
            let seed = seeds.get(sidecar).copied().unwrap_or_default();
            for (n, name) in names.iter().enumerate() {
                let other = sidecar * services + n;
                let woken = now + micros(after_return(seed, name, PERIOD)).max(1);
                if let Some(service) = all.get_mut(other)
                    && other != index
                    && woken < service.due
                {
                    service.due = woken;
                    queue.push(Reverse((woken, other)));
                }
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_comes_back_without_a_burst() {
        for seed in 0..5 {
            let seen = play(1_000, 20, seed);
            let (steady, peak) = (seen.steady(), seen.peak());
            assert!(peak <= 2 * steady, "seed {seed}: {peak} > 2 x {steady}");
            let within = BACK + 3 * PERIOD.as_secs();
            assert!(seen.all_back <= within, "seed {seed}: {}", seen.all_back);
        }
    }
}
