//! Delays with chance in them (rule G7): a fleet that starts or recovers at one moment must not ask
//! at one moment.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Draws delays; the seed is given, so that a test can repeat them.
#[derive(Debug)]
pub struct Jitter(Mutex<fastrand::Rng>);

/// Even with full jitter an error is not followed sooner.
const LEAST_RETRY: Duration = Duration::from_millis(500);

impl Jitter {
    /// One that draws from `random`.
    pub fn new(random: fastrand::Rng) -> Self {
        Self(Mutex::new(random))
    }

    /// A delay of 0.9 to 1.1 times `delay`.
    pub fn around(&self, delay: Duration) -> Duration {
        self.between(delay.mul_f64(0.9), delay.mul_f64(1.1))
    }

    /// Full jitter below min(`delay` x 2^`failures`, `most`), but half a second at least.
    pub fn back_off(&self, delay: Duration, failures: u32, most: Duration) -> Duration {
        let most = delay.saturating_mul(1 << failures.min(10)).min(most);
        self.between(LEAST_RETRY.min(most), most)
    }

    /// Evenly between the two.
    pub fn between(&self, least: Duration, most: Duration) -> Duration {
        let share = self.lock().f64();
        least + most.saturating_sub(least).mul_f64(share)
    }

    /// One of so many; 0 of none.
    pub fn index(&self, length: usize) -> usize {
        self.lock().usize(0..length.max(1))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, fastrand::Rng> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_off_is_spread_over_all_of_it_and_bounded() {
        let jitter = Jitter::new(fastrand::Rng::with_seed(1));
        let (base, most) = (Duration::from_secs(1), Duration::from_secs(60));
        for failures in [1, 3, 5, 6, 40] {
            let limit = base.saturating_mul(1 << failures.min(10)).min(most);
            let drawn: Vec<Duration> = (0..400)
                .map(|_| jitter.back_off(base, failures, most))
                .collect();
            assert!(drawn.iter().all(|d| (LEAST_RETRY..=limit).contains(d)));
            assert!(drawn.iter().any(|d| *d < limit / 2) && drawn.iter().any(|d| *d > limit / 2));
        }
        let short = Duration::from_millis(100);
        assert_eq!(jitter.back_off(short, 0, short), short);
        assert_eq!(jitter.index(0), 0);
    }
}
