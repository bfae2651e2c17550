//! When a registration acts: the delays of beats, retries and looks, all with jitter, so that ten
//! thousand apps whose registry was away do not come back as one. Pure: randomness comes in.

use std::time::Duration;

/// A registry asks for some interval; one outside of these is taken for a mistake.
const LEAST_INTERVAL: Duration = Duration::from_millis(500);
const MOST_INTERVAL: Duration = Duration::from_secs(300);
/// The first retry of a registration comes within this time.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// What was forgotten is registered again within this time.
const AGAIN: Duration = Duration::from_secs(1);
/// What is refused, by a wrong setting or a missing right, is tried again about this often.
const REFUSED: Duration = Duration::from_secs(60);
/// Whether the instance is still listed is looked at about this often.
const LOOK: Duration = Duration::from_secs(60);

/// How a registry wants to be kept informed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rhythm {
    /// `None`: the registry sees by itself whether we live (a connection), no beats.
    pub beats: Option<Beats>,
    /// An instance is listed while its app starts, as one that takes no traffic yet.
    pub starting: bool,
    /// An instance that leaves is marked first, so that callers that keep it see why.
    pub marks_leaving: bool,
}

/// How it is beaten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beats {
    /// Between two beats, until the registry says otherwise.
    pub interval: Duration,
    /// Each delay is shorter by up to this percentage of the interval.
    pub jitter_percent: u32,
    /// Beats that may be under way at once: more than one where an answer may take longer than the
    /// lease.
    pub overlap: u32,
    /// After one that was not answered the instance is registered, not beaten: a beat alone would
    /// not bring it back.
    pub register_after_failure: bool,
}

/// Draws delays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delays {
    interval: Duration,
    jitter_percent: u32,
}

impl Delays {
    pub(super) fn new(rhythm: &Rhythm) -> Self {
        let beats = rhythm.beats;
        Self {
            interval: beats.map_or(LOOK, |beats| beats.interval),
            jitter_percent: beats.map_or(0, |beats| beats.jitter_percent.min(100)),
        }
    }

    /// The registry's own interval.
    pub(super) fn follow(&mut self, interval: Duration) {
        if !interval.is_zero() {
            self.interval = interval.clamp(LEAST_INTERVAL, MOST_INTERVAL);
        }
    }

    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// Until the next beat.
    pub(super) fn beat(&self, rng: &mut fastrand::Rng) -> Duration {
        let least = self.interval / 100 * (100 - self.jitter_percent);
        between(least, self.interval, rng)
    }

    /// After what was not answered, the n-th time in a row: full jitter below 1 s x 2^n, at most one
    /// and a half intervals. So a registry that comes back is told within two beats, and at no
    /// moment by more apps than beat it anyway.
    pub(super) fn retry(&self, failures: u32, rng: &mut fastrand::Rng) -> Duration {
        let grown = FIRST_RETRY.saturating_mul(1u32 << failures.saturating_sub(1).min(16));
        self.spread(grown.min(self.longest_retry()), rng)
    }

    /// After a beat that was not answered: as `retry`, but at once as slow as it gets, since beats
    /// were spread already and faster ones help nobody.
    pub(super) fn beat_again(&self, rng: &mut fastrand::Rng) -> Duration {
        self.spread(self.longest_retry(), rng)
    }

    fn longest_retry(&self) -> Duration {
        (self.interval + self.interval / 2).min(LOOK)
    }

    /// Full jitter, but no closer than a tenth: nothing is tried twice in one moment.
    fn spread(&self, most: Duration, rng: &mut fastrand::Rng) -> Duration {
        between(most / 10, most, rng)
    }

    /// After a refusal.
    pub(super) fn refused(rng: &mut fastrand::Rng) -> Duration {
        between(REFUSED / 2, REFUSED, rng)
    }

    /// Until what the registry forgot is registered again.
    pub(super) fn again(&self, rng: &mut fastrand::Rng) -> Duration {
        between(Duration::ZERO, AGAIN.min(self.interval / 5), rng)
    }

    /// Until the next look.
    pub(super) fn look(rng: &mut fastrand::Rng) -> Duration {
        between(LOOK * 3 / 4, LOOK * 5 / 4, rng)
    }
}

fn between(least: Duration, most: Duration, rng: &mut fastrand::Rng) -> Duration {
    least + most.saturating_sub(least).mul_f64(rng.f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(interval: u64) -> Delays {
        Delays::new(&Rhythm {
            beats: Some(Beats {
                interval: Duration::from_secs(interval),
                jitter_percent: 20,
                overlap: 1,
                register_after_failure: false,
            }),
            starting: false,
            marks_leaving: false,
        })
    }

    #[test]
    fn beats_come_a_little_early_and_never_late() {
        let mut rng = fastrand::Rng::with_seed(1);
        let delays = delays(5);
        let drawn: Vec<_> = (0..1000).map(|_| delays.beat(&mut rng)).collect();
        let (least, most) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
        assert!(*least >= Duration::from_secs(4) && *least < Duration::from_millis(4050));
        assert!(*most <= Duration::from_secs(5) && *most > Duration::from_millis(4950));
    }

    #[test]
    fn retries_grow_to_one_and_a_half_intervals() {
        let mut rng = fastrand::Rng::with_seed(1);
        let delays = delays(5);
        let mut longest = |failures| {
            let drawn = (0..500).map(|_| delays.retry(failures, &mut rng));
            drawn.max().unwrap()
        };
        assert!(longest(1) <= Duration::from_secs(1));
        assert!(longest(3) > Duration::from_secs(3) && longest(3) <= Duration::from_secs(4));
        assert!(longest(u32::MAX) <= Duration::from_millis(7500));
        assert!(longest(u32::MAX) > Duration::from_secs(7));
    }

    #[test]
    fn an_interval_that_is_a_mistake_is_bounded() {
        let mut delays = delays(5);
        delays.follow(Duration::ZERO);
        assert_eq!(delays.interval(), Duration::from_secs(5));
        delays.follow(Duration::from_millis(1));
        assert_eq!(delays.interval(), Duration::from_millis(500));
        delays.follow(Duration::from_secs(86_400));
        assert_eq!(delays.interval(), Duration::from_secs(300));
    }
}
