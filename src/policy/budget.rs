//! The retry budget of one upstream: retries are at most a percentage of the requests, with a floor
//! per second. Nothing is done per request: tokens are worked out from the request counter when a
//! retry asks. Source: Finagle's retry budgets (tokens from deposits, unused ones expire).

use std::time::Duration;

use crate::clock::Timestamp;

/// Tokens are kept for this long.
const HORIZON: Duration = Duration::from_secs(10);
/// Thousandths of a token.
const TOKEN: u64 = 1_000;

/// How many retries are left.
#[derive(Debug, Default)]
pub struct Budget {
    tokens: u64,
    requests: u64,
    filled_at: Option<Timestamp>,
}

impl Budget {
    /// Takes one retry out of the budget; `requests` = requests of the upstream since the start.
    pub fn take(
        &mut self,
        percent: u32,
        min_per_second: u32,
        requests: u64,
        now: Timestamp,
    ) -> bool {
        self.fill(percent, min_per_second, requests, now);
        match self.tokens.checked_sub(TOKEN) {
            Some(left) => {
                self.tokens = left;
                true
            }
            None => false,
        }
    }

    /// Gives a token back that was set aside and not used.
    pub fn give_back(&mut self) {
        self.tokens = self.tokens.saturating_add(TOKEN);
    }

    fn fill(&mut self, percent: u32, min_per_second: u32, requests: u64, now: Timestamp) {
        let new = requests.saturating_sub(self.requests);
        self.requests = requests;
        let elapsed = self
            .filled_at
            .map_or(Duration::from_secs(1), |at| now.since(at));
        self.filled_at = Some(now);
        let millis = u64::try_from(elapsed.min(HORIZON).as_millis()).unwrap_or(u64::MAX);
        let from_requests = new
            .saturating_mul(u64::from(percent))
            .saturating_mul(TOKEN / 100);
        let from_time = u64::from(min_per_second).saturating_mul(millis);
        let floor = u64::from(min_per_second).saturating_mul(TOKEN * HORIZON.as_secs());
        let cap = floor.max(from_requests).max(10 * TOKEN);
        self.tokens = self
            .tokens
            .saturating_add(from_requests)
            .saturating_add(from_time)
            .min(cap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_floor_holds_without_traffic() {
        let mut budget = Budget::default();
        let taken = (0..100)
            .filter(|_| budget.take(20, 10, 0, Timestamp::ZERO))
            .count();
        assert_eq!(taken, 10);
        let later = Timestamp::from_millis(500);
        assert_eq!(
            (0..100).filter(|_| budget.take(20, 10, 0, later)).count(),
            5
        );
    }

    proptest! {
        #[test]
        fn never_more_than_share_plus_floor(
            steps in prop::collection::vec((0_u64..50, 0_u64..400), 1..300),
        ) {
            let mut budget = Budget::default();
            let (mut requests, mut ms, mut taken) = (0, 0, 0_u64);
            for (more, wait) in steps {
                requests += more;
                ms += wait;
                for _ in 0..more {
                    taken += u64::from(budget.take(20, 10, requests, Timestamp::from_millis(ms)));
                }
            }
            prop_assert!(taken <= requests / 5 + 10 + ms / 100 + 1, "{taken} of {requests} in {ms} ms");
        }
    }
}
