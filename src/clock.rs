//! Time, in one place. Everything that decides takes a [`Timestamp`] as an argument; only the async
//! shell reads a [`Clock`]. The clock follows tokio's, so a paused runtime moves it too.
//! Wall time is for log stamps and nothing else: a jump of it changes no decision.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime};

/// Nanoseconds since an origin that only the clock knows. Any value can be made in a test;
/// arithmetic saturates.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The origin of the clock.
    pub const ZERO: Self = Self(0);
    /// Later than any instant that can be reached.
    pub const MAX: Self = Self(u64::MAX);

    /// A timestamp `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A timestamp `millis` milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the origin.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Time since `earlier`; zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(nanos(rhs)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(rhs)))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

/// Nanoseconds of a duration, saturating; without 128-bit arithmetic, since requests ask often.
const fn nanos(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_mul(1_000_000_000)
        .saturating_add(duration.subsec_nanos() as u64)
}

/// The monotonic clock of the process: copies share one origin, so their timestamps compare.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: tokio::time::Instant,
}

impl Clock {
    /// A clock whose origin is now.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the monotonic clock"
    )]
    #[expect(
        clippy::new_without_default,
        reason = "an origin is a choice, not a default"
    )]
    pub fn new() -> Self {
        Self {
            origin: tokio::time::Instant::now(),
        }
    }

    /// Now.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the monotonic clock"
    )]
    pub fn now(&self) -> Timestamp {
        let since = tokio::time::Instant::now().duration_since(self.origin);
        Timestamp::from_nanos(nanos(since))
    }

    /// The instant of `at`, for the runtime's timers.
    pub fn instant(&self, at: Timestamp) -> tokio::time::Instant {
        // Far beyond any deadline (30 years), and still inside what the runtime can hold.
        const LIMIT: u64 = 30 * 365 * 24 * 3600 * 1_000_000_000;
        self.origin + Duration::from_nanos(at.as_nanos().min(LIMIT))
    }
}

/// Wall time now, for log stamps and certificates only.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the wall clock"
)]
pub fn wall_now() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let t = Timestamp::from_millis(5);
        assert_eq!(t - Duration::from_secs(1), Timestamp::ZERO);
        assert_eq!(Timestamp::MAX + Duration::from_secs(1), Timestamp::MAX);
        assert_eq!(Timestamp::ZERO.since(t), Duration::ZERO);
        assert_eq!(Timestamp::from_millis(7).since(t), Duration::from_millis(2));
    }
}
