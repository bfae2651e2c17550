//! How often an address showed wrong passwords, so that guessing takes its time. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::clock::Timestamp;

/// Wrong ones that are let pass within [`SPAN`].
const MOST: u32 = 10;
/// After it an address begins anew.
const SPAN: Duration = Duration::from_secs(10);
/// Addresses that are kept in mind; beyond them the oldest is forgotten.
const MAX_ADDRESSES: usize = 10_000;

/// The addresses with wrong passwords of late.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    seen: BTreeMap<IpAddr, (u32, Timestamp)>,
}

impl Guesses {
    /// Whether a password from there is looked at at all.
    pub(super) fn may_try(&self, from: IpAddr, now: Timestamp) -> bool {
        self.seen
            .get(&from)
            .is_none_or(|(count, since)| *count < MOST || now.since(*since) >= SPAN)
    }

    /// One was wrong. True when it was the one too many.
    pub(super) fn wrong(&mut self, from: IpAddr, now: Timestamp) -> bool {
        if self.seen.len() >= MAX_ADDRESSES && !self.seen.contains_key(&from) {
            self.seen.retain(|_, (_, since)| now.since(*since) < SPAN);
            let oldest = self.seen.iter().min_by_key(|(_, (_, since))| *since);
            if self.seen.len() >= MAX_ADDRESSES
                && let Some((oldest, _)) = oldest
            {
                let oldest = *oldest;
                self.seen.remove(&oldest);
            }
        }
        let (count, since) = self.seen.entry(from).or_insert((0, now));
        if now.since(*since) >= SPAN {
            (*count, *since) = (0, now);
        }
        *count = count.saturating_add(1);
        *count == MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn ten_wrong_ones_in_ten_seconds_are_enough() {
        let mut guesses = Guesses::default();
        let (bad, other) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        for n in 0..10 {
            assert!(guesses.may_try(bad, at(n)));
            assert_eq!(guesses.wrong(bad, at(n)), n == 9);
        }
        assert!(!guesses.may_try(bad, at(9_999)) && guesses.may_try(other, at(9_999)));
        assert!(guesses.may_try(bad, at(10_000)));
        assert!(!guesses.wrong(bad, at(10_000)), "it begins anew");
    }

    #[test]
    fn addresses_are_bounded() {
        let mut guesses = Guesses::default();
        for n in 0..10_005_u32 {
            guesses.wrong(IpAddr::from(n.to_be_bytes()), at(u64::from(n) / 10));
        }
        assert_eq!(guesses.seen.len(), MAX_ADDRESSES);
    }
}
