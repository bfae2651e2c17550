//! Rise and fall. Pure.

/// Checks of one instance: passing before the first check, which counts alone; then `rise` good
/// ones in a row to pass, `fall` bad ones in a row to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCounter {
    rise: u32,
    fall: u32,
    passing: bool,
    seen: bool,
    against: u32,
}

impl HealthCounter {
    /// Before the first check.
    pub const fn new(rise: u32, fall: u32) -> Self {
        Self {
            rise,
            fall,
            passing: true,
            seen: false,
            against: 0,
        }
    }

    /// With the verdict of another one, until the first check.
    #[must_use]
    pub const fn passing_as(self, other: Self) -> Self {
        Self {
            passing: other.passing,
            ..self
        }
    }

    /// Counts a check. `Some` when the verdict changed.
    pub fn record(&mut self, good: bool) -> Option<bool> {
        let first = !std::mem::replace(&mut self.seen, true);
        if good == self.passing {
            self.against = 0;
            return None;
        }
        self.against = self.against.saturating_add(1);
        let needed = if good { self.rise } else { self.fall };
        if first || self.against >= needed.max(1) {
            self.passing = good;
            self.against = 0;
            return Some(good);
        }
        None
    }

    /// Takes a verdict that counts alone. Whether it is another one.
    pub fn set(&mut self, passing: bool) -> bool {
        self.seen = true;
        self.against = 0;
        std::mem::replace(&mut self.passing, passing) != passing
    }

    /// The verdict.
    pub const fn passing(&self) -> bool {
        self.passing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_check_counts_alone_then_rise_and_fall() {
        let mut counter = HealthCounter::new(2, 3);
        assert!(counter.passing());
        assert_eq!(counter.record(false), Some(false));
        assert_eq!(counter.record(true), None);
        assert_eq!(counter.record(false), None);
        assert_eq!(counter.record(true), None);
        assert_eq!(counter.record(true), Some(true));
        assert_eq!(counter.record(false), None);
        assert_eq!(counter.record(false), None);
        assert_eq!(counter.record(true), None);
        assert_eq!(
            (0..3)
                .filter_map(|_| counter.record(false))
                .collect::<Vec<_>>(),
            [false]
        );
    }

    #[test]
    fn a_verdict_that_is_told_counts_alone() {
        let mut counter = HealthCounter::new(2, 3);
        assert!(!counter.set(true));
        assert!(counter.set(false));
        assert!(!counter.passing());
        assert_eq!(counter.record(true), None);
        assert_eq!(counter.record(true), Some(true));
    }

    #[test]
    fn under_new_settings_the_verdict_holds_until_the_first_check() {
        let mut old = HealthCounter::new(2, 3);
        assert_eq!(old.record(false), Some(false));
        let mut counter = HealthCounter::new(5, 5).passing_as(old);
        assert!(!counter.passing());
        assert_eq!(counter.record(true), Some(true));
        assert_eq!(counter.record(false), None);
        let mut counter = HealthCounter::new(5, 5).passing_as(old);
        assert_eq!(counter.record(false), None);
        assert_eq!(counter.record(true), None);
    }

    #[test]
    fn a_good_first_check_changes_nothing() {
        let mut counter = HealthCounter::new(2, 3);
        assert_eq!(counter.record(true), None);
        assert_eq!(counter.record(false), None);
        assert!(counter.passing());
    }
}
