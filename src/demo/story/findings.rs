//! What was seen of the story, and what of a complete one is missing.

use std::time::Duration;

use crate::clock::Timestamp;

/// An ejection that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// When.
    pub at: Timestamp,
    /// Failed calls that led to it, those hidden by retries too.
    pub calls: u64,
}

/// What was seen so far.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The bad one turned bad.
    pub broken: Option<Timestamp>,
    /// Its first ejection after that.
    pub bad_ejected: Option<Ejection>,
    /// The k after each of its failed probes.
    pub failed_probes: Vec<(Timestamp, u64)>,
    /// It was repaired.
    pub repaired: Option<Timestamp>,
    /// It came back by a good probe, after so long.
    pub returned: Option<(Timestamp, Duration)>,
    /// The silent one fell silent.
    pub silenced: Option<Timestamp>,
    /// Its ejection after that.
    pub silent_ejected: Option<Ejection>,
    /// The registry marked it unhealthy.
    pub unhealthy: Option<Timestamp>,
    /// It left the set.
    pub left: Option<Timestamp>,
    /// Ejections of instances that did nothing wrong, or a second time.
    pub unexpected: u32,
    /// Most instances out at once.
    pub most_out: usize,
    /// There was a moment without an instance to pick.
    pub all_out: bool,
}

impl Findings {
    /// What a complete story has and this one lacks.
    pub fn missing(&self) -> Vec<&'static str> {
        [
            (self.bad_ejected.is_some(), "the ejection of the bad one"),
            (!self.failed_probes.is_empty(), "a probe"),
            (self.returned.is_some(), "the return after a good probe"),
            (self.left.is_some(), "the eviction of the silent one"),
        ]
        .into_iter()
        .filter_map(|(seen, what)| (!seen).then_some(what))
        .collect()
    }
}
