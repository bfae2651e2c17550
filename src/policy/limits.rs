//! Time limits of a request and of its attempts. Pure.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::config::types::{AttemptTimeout, Timeouts};

/// Longest automatic attempt.
const AUTO_ATTEMPT: Duration = Duration::from_secs(5);
/// Idle limit of tunnels, gRPC and event streams unless one is written.
pub const LONG_IDLE: Duration = Duration::from_secs(3600);

/// The limits of one request.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    started: Timestamp,
    /// Time spent sending the body, which does not count.
    paused: Duration,
    request: Option<Duration>,
    attempt: AttemptTimeout,
    max_attempts: u32,
    client: Option<Timestamp>,
}

impl RequestLimits {
    /// For a request that came at `started`. gRPC requests have no limits but explicit ones and
    /// their own deadline `client`.
    pub fn new(
        timeouts: &Timeouts,
        max_attempts: u32,
        grpc: bool,
        client: Option<Timestamp>,
        started: Timestamp,
    ) -> Self {
        let request = timeouts
            .request
            .filter(|_| !grpc || timeouts.request_explicit);
        let attempt = match timeouts.attempt {
            AttemptTimeout::Auto if grpc => AttemptTimeout::Unlimited,
            limit @ (AttemptTimeout::Auto
            | AttemptTimeout::After(_)
            | AttemptTimeout::Unlimited) => limit,
        };
        Self {
            started,
            paused: Duration::ZERO,
            request,
            attempt,
            max_attempts,
            client,
        }
    }

    /// The request's time begins at `now`: until then it waited for a place.
    pub const fn restart(&mut self, now: Timestamp) {
        self.started = now;
    }

    /// The body took this long to send; that time does not count.
    pub fn pause(&mut self, time: Duration) {
        self.paused = self.paused.saturating_add(time);
    }

    /// When the request's time is over; `Timestamp::MAX` for never.
    pub fn deadline(&self) -> Timestamp {
        let own = self
            .request
            .map_or(Timestamp::MAX, |r| self.started + r + self.paused);
        self.client.map_or(own, |client| own.min(client))
    }

    /// How long the attempt may wait for its head. `more`: another try may follow it.
    pub fn attempt(&self, more: bool) -> Option<Duration> {
        match self.attempt {
            AttemptTimeout::After(limit) => Some(limit),
            AttemptTimeout::Unlimited => None,
            AttemptTimeout::Auto if more => {
                let share = self.request.map(|r| r / self.max_attempts.max(1));
                Some(share.map_or(AUTO_ATTEMPT, |s| s.min(AUTO_ATTEMPT)))
            }
            AttemptTimeout::Auto => None,
        }
    }

    /// What the attempt limit would be with more tries to follow: the measure for "gave up on a
    /// hung instance".
    pub fn attempt_measure(&self) -> Duration {
        self.attempt(true).or(self.request).unwrap_or(AUTO_ATTEMPT)
    }

    /// min(attempt, request) / 2: a try that ran at least this long is charged when the request's
    /// time is over. The app's own deadline is a limit of the request too.
    pub fn charged_after(&self, more: bool) -> Duration {
        let client = self.client.map(|client| client.since(self.started));
        let limits = [self.attempt(more), self.request, client];
        limits
            .into_iter()
            .flatten()
            .min()
            .map_or(Duration::ZERO, |limit| limit / 2)
    }

    /// When the request came.
    pub const fn started(&self) -> Timestamp {
        self.started
    }

    /// The app's own deadline.
    pub const fn client(&self) -> Option<Timestamp> {
        self.client
    }
}

/// Parses `grpc-timeout`: 1-8 digits and a unit. `None` for anything else.
pub fn parse_grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let n: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(n * 3600),
        b'M' => Duration::from_secs(n * 60),
        b'S' => Duration::from_secs(n),
        b'm' => Duration::from_millis(n),
        b'u' => Duration::from_micros(n),
        b'n' => Duration::from_nanos(n),
        _ => return None,
    })
}

/// Writes what is left of the app's deadline: milliseconds rounded up, microseconds below one,
/// coarser units where eight digits do not do.
pub fn format_grpc_timeout(left: Duration) -> String {
    const MAX: u128 = 99_999_999;
    let us = left.as_micros();
    if us < 1_000 {
        return format!("{}u", us.max(1));
    }
    let ms = us.div_ceil(1_000);
    if ms <= MAX {
        return format!("{ms}m");
    }
    let s = ms.div_ceil(1_000);
    if s <= MAX {
        format!("{s}S")
    } else {
        format!("{}M", s.div_ceil(60).min(MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeouts_are_read_and_written() {
        for (text, want) in [
            ("1S", Duration::from_secs(1)),
            ("100m", Duration::from_millis(100)),
            ("250u", Duration::from_micros(250)),
            ("5n", Duration::from_nanos(5)),
            ("2H", Duration::from_secs(7200)),
            ("30M", Duration::from_secs(1800)),
            ("0m", Duration::ZERO),
        ] {
            assert_eq!(parse_grpc_timeout(text.as_bytes()), Some(want), "{text}");
        }
        for bad in ["123456789m", "m", "1s", "-1S", "1.5S", ""] {
            assert_eq!(parse_grpc_timeout(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(format_grpc_timeout(Duration::from_micros(1_500)), "2m");
        assert_eq!(format_grpc_timeout(Duration::from_micros(900)), "900u");
        assert_eq!(format_grpc_timeout(Duration::from_secs(200_000)), "200000S");
    }

    #[test]
    fn automatic_attempts_leave_room_for_another() {
        let timeouts = Timeouts {
            connect: Duration::from_secs(3),
            attempt: AttemptTimeout::Auto,
            request: Some(Duration::from_secs(4)),
            request_explicit: true,
            idle: None,
            idle_explicit: false,
        };
        let mut limits = RequestLimits::new(&timeouts, 2, false, None, Timestamp::ZERO);
        assert_eq!(limits.attempt(true), Some(Duration::from_secs(2)));
        assert_eq!(limits.attempt(false), None);
        assert_eq!(limits.deadline(), Timestamp::from_millis(4_000));
        limits.pause(Duration::from_secs(1));
        assert_eq!(limits.deadline(), Timestamp::from_millis(5_000));
        let grpc = RequestLimits::new(
            &Timeouts {
                request_explicit: false,
                ..timeouts
            },
            2,
            true,
            None,
            Timestamp::ZERO,
        );
        assert_eq!(
            (grpc.attempt(true), grpc.deadline()),
            (None, Timestamp::MAX)
        );
    }
    #[test]
    fn a_try_that_begins_late_is_not_charged_for_the_apps_deadline() {
        let timeouts = Timeouts {
            connect: Duration::from_secs(3),
            attempt: AttemptTimeout::Auto,
            request: None,
            request_explicit: false,
            idle: None,
            idle_explicit: false,
        };
        let charged_after = |client| {
            let client = Some(Timestamp::from_millis(client));
            let limits =
                RequestLimits::new(&timeouts, 2, true, client, Timestamp::from_millis(500));
            limits.charged_after(true)
        };
        assert_eq!(charged_after(1_500), Duration::from_millis(500));
        assert_eq!(charged_after(500), Duration::ZERO);
    }
}
