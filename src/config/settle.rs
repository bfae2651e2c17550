//! When a change of the files is one to act on: a file that is being written is let finish, and one
//! that is away for a moment (an editor, a mount that is made anew) is given time to return.

use super::digest::Digests;

/// Equal readings in a row until a change counts.
const AGREEING: u32 = 2;
/// The same where a file went away: what its policies ejected would come back.
const AGREEING_LOST: u32 = 8;

/// What to do after a look at the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// They hold what was loaded.
    Quiet,
    /// Something differs: look again soon.
    Again,
    /// It differs and has settled: load.
    Changed,
}

/// Remembers what was seen of a change so far.
#[derive(Debug, Default)]
pub struct Settle {
    seen: Option<(Digests, u32)>,
}

impl Settle {
    /// Takes a reading; `loaded` is what the last load read, whatever came of it.
    pub fn look(&mut self, now: Digests, loaded: &Digests) -> Look {
        if now == *loaded {
            self.seen = None;
            return Look::Quiet;
        }
        let needed = if now.lost_any_of(loaded) {
            AGREEING_LOST
        } else {
            AGREEING
        };
        let times = match &self.seen {
            Some((before, times)) if *before == now => times + 1,
            Some(_) | None => 1,
        };
        if times >= needed {
            self.seen = None;
            return Look::Changed;
        }
        self.seen = Some((now, times));
        Look::Again
    }

    /// Whether a change is being watched.
    pub const fn is_waiting(&self) -> bool {
        self.seen.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::digest::Digest;

    fn files(list: &[(&str, &str)]) -> Digests {
        let mut digests = Digests::default();
        for (path, text) in list {
            digests.insert(PathBuf::from(path), Some(Digest::of(text.as_bytes())));
        }
        digests
    }

    #[test]
    fn a_change_counts_when_two_readings_agree() {
        let loaded = files(&[("m", "1")]);
        let mut settle = Settle::default();
        assert_eq!(settle.look(loaded.clone(), &loaded), Look::Quiet);
        assert_eq!(settle.look(files(&[("m", "2")]), &loaded), Look::Again);
        assert_eq!(settle.look(files(&[("m", "23")]), &loaded), Look::Again);
        assert_eq!(settle.look(files(&[("m", "23")]), &loaded), Look::Changed);
        // Back before it settled: nothing happened.
        assert_eq!(settle.look(files(&[("m", "2")]), &loaded), Look::Again);
        assert_eq!(settle.look(loaded.clone(), &loaded), Look::Quiet);
        assert!(!settle.is_waiting());
    }

    #[test]
    fn a_file_that_is_away_is_waited_for() {
        let loaded = files(&[("m", "1"), ("p", "1")]);
        let mut settle = Settle::default();
        let gone = files(&[("m", "1")]);
        for _ in 1..AGREEING_LOST {
            assert_eq!(settle.look(gone.clone(), &loaded), Look::Again);
        }
        assert_eq!(settle.look(gone.clone(), &loaded), Look::Changed);
        // A file that is new, or one whose last load found nothing, is not waited for.
        assert_eq!(settle.look(loaded.clone(), &gone), Look::Again);
        assert_eq!(settle.look(loaded, &gone), Look::Changed);
    }
}
