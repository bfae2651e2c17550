//! The places of a bulkhead in one word: how many are taken, how many requests wait. Every step is a
//! function from word to word, so that threads may race with compare-and-swap alone. Two rules: a
//! place is free only while nobody waits (no newcomer overtakes the queue), and a place that comes
//! back while somebody waits is handed on, not freed. Pure.

/// A word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places(pub u64);

/// What becomes of a place that comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// It is free from now on.
    Free(Places),
    /// Somebody waits: look into the queue.
    HandOn,
}

impl Places {
    /// Places taken.
    pub fn in_use(self) -> u32 {
        u32::try_from(self.0 & u64::from(u32::MAX)).unwrap_or(u32::MAX)
    }

    /// Requests that wait.
    pub fn waiting(self) -> u32 {
        u32::try_from(self.0 >> 32).unwrap_or(u32::MAX)
    }

    fn of(in_use: u32, waiting: u32) -> Self {
        Self(u64::from(waiting) << 32 | u64::from(in_use))
    }

    /// A newcomer takes a place; `None`: it has to queue.
    #[must_use]
    pub fn take(self, limit: u32) -> Option<Self> {
        (self.waiting() == 0 && self.in_use() < limit)
            .then(|| Self::of(self.in_use().saturating_add(1), 0))
    }

    /// A place comes back.
    #[must_use]
    pub fn give_back(self) -> Back {
        match self.waiting() {
            0 => Back::Free(self.freed()),
            _ => Back::HandOn,
        }
    }

    /// A place is freed although somebody waits: more are taken than the limit allows.
    #[must_use]
    pub fn freed(self) -> Self {
        Self::of(self.in_use().saturating_sub(1), self.waiting())
    }

    /// One more waits.
    #[must_use]
    pub fn queue(self) -> Self {
        Self::of(self.in_use(), self.waiting().saturating_add(1))
    }

    /// One waits no more, without a place.
    #[must_use]
    pub fn unqueue(self) -> Self {
        Self::of(self.in_use(), self.waiting().saturating_sub(1))
    }

    /// A free place goes to one that waits: the limit has grown.
    #[must_use]
    pub fn promote(self, limit: u32) -> Option<Self> {
        let (in_use, waiting) = (self.in_use(), self.waiting());
        (waiting > 0 && in_use < limit).then(|| Self::of(in_use.saturating_add(1), waiting - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_only_while_nobody_waits() {
        let one = Places::default().take(2).unwrap();
        let two = one.take(2).unwrap();
        assert_eq!((two.in_use(), two.take(2)), (2, None));
        let queued = two.queue();
        assert_eq!(queued.give_back(), Back::HandOn);
        assert_eq!(queued.freed().take(2), None);
        assert_eq!(queued.freed().promote(2), Some(two));
        assert_eq!(two.give_back(), Back::Free(one));
        assert_eq!(two.queue().unqueue(), two);
        assert_eq!(Places::default().freed().unqueue(), Places::default());
    }
}
