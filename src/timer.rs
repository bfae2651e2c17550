//! One timer per request, taken from a free list of the worker. Moving a runtime timer that is
//! still registered to a later instant is one atomic write, so the usual request pays no
//! registration, no lock and no allocation for its time limits. Moving one to an earlier instant is a
//! registration, and wakes the runtime; so short waits have a free list of their own.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::thread::LocalKey;

use tokio::time::Sleep;

use crate::clock::{Clock, Timestamp};

/// Timers kept for reuse at most.
const FREE: usize = 1024;

thread_local! {
    static LIMITS: FreeList = const { RefCell::new(Vec::new()) };
    static WAITS: FreeList = const { RefCell::new(Vec::new()) };
}

type FreeList = RefCell<Vec<Pin<Box<Sleep>>>>;

/// A timer that fires at one instant at a time.
#[derive(Debug)]
pub struct Timer {
    clock: Clock,
    sleep: Option<Pin<Box<Sleep>>>,
    at: Timestamp,
    free: &'static LocalKey<FreeList>,
}

impl Timer {
    /// A timer for limits of requests, which are seconds away. It never fires until it is set.
    pub const fn new(clock: Clock) -> Self {
        Self::of(clock, &LIMITS)
    }

    /// The same for waits that usual requests do not see the end of, like those of hedges.
    pub const fn short(clock: Clock) -> Self {
        Self::of(clock, &WAITS)
    }

    const fn of(clock: Clock, free: &'static LocalKey<FreeList>) -> Self {
        Self {
            clock,
            sleep: None,
            at: Timestamp::MAX,
            free,
        }
    }

    /// Fires at `at`; `Timestamp::MAX` is never.
    pub fn set(&mut self, at: Timestamp) {
        if at == self.at {
            return;
        }
        self.at = at;
        if at == Timestamp::MAX {
            return;
        }
        let instant = self.clock.instant(at);
        match &mut self.sleep {
            Some(sleep) => sleep.as_mut().reset(instant),
            None => {
                let reused = self.free.with_borrow_mut(Vec::pop);
                self.sleep = Some(match reused {
                    Some(mut sleep) => {
                        sleep.as_mut().reset(instant);
                        sleep
                    }
                    None => Box::pin(tokio::time::sleep_until(instant)),
                });
            }
        }
    }

    /// When it fires.
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// Ready once the instant has come.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.sleep {
            Some(sleep) if self.at != Timestamp::MAX => sleep.as_mut().poll(cx),
            _ => Poll::Pending,
        }
    }
}

/// Runs a future until an instant; `None` when that came first.
pub async fn within<F: Future>(
    timer: &mut Timer,
    until: Timestamp,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    timer.set(until);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        timer.poll(cx).map(|()| None)
    })
    .await
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(sleep) = self.sleep.take() {
            self.free.with_borrow_mut(|free| {
                if free.len() < FREE {
                    free.push(sleep);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn fires_at_the_instant_and_is_reused() {
        let clock = Clock::new();
        for _ in 0..3 {
            let mut timer = Timer::new(clock);
            let start = clock.now();
            timer.set(start + Duration::from_secs(60));
            timer.set(start + Duration::from_secs(2));
            std::future::poll_fn(|cx| timer.poll(cx)).await;
            let took = clock.now().since(start);
            assert!(
                took >= Duration::from_secs(2) && took < Duration::from_millis(2_010),
                "{took:?}"
            );
        }
        assert_eq!(LIMITS.with_borrow(Vec::len), 1);
    }
}
