//! Contents of files by their SHA-256, so that people can compare with `sha256sum`, and so that a
//! reload knows whether anything changed, whatever time stamps say.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// The content of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The first six hex digits.
    pub fn short(self) -> String {
        let mut text = self.to_string();
        text.truncate(6);
        text
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Files and their contents; `None`: the file cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digests(BTreeMap<PathBuf, Option<Digest>>);

impl Digests {
    /// What `path` holds.
    pub fn insert(&mut self, path: PathBuf, digest: Option<Digest>) {
        self.0.insert(path, digest);
    }

    /// What `path` held.
    pub fn get(&self, path: &Path) -> Option<Digest> {
        self.0.get(path).copied().flatten()
    }

    /// Whether a file that `before` could read is missing or unreadable here.
    pub fn lost_any_of(&self, before: &Self) -> bool {
        let mut readable = before.0.iter().filter(|(_, digest)| digest.is_some());
        readable.any(|(path, _)| self.get(path).is_none())
    }

    /// A name of all of it, 16 hex digits: "which configuration runs here".
    pub fn name(&self) -> String {
        let mut all = Sha256::new();
        for digest in self.0.values() {
            all.update(digest.map_or([0; 32], |digest| digest.0));
        }
        let mut text = String::new();
        for byte in all.finalize().iter().take(8) {
            // Writing to a string cannot fail.
            let _infallible = write!(text, "{byte:02x}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_sha256sum() {
        let digest = Digest::of(b"abc");
        assert_eq!(
            digest.to_string(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(digest.short(), "ba7816");
    }

    #[test]
    fn a_set_knows_what_it_lost_and_has_a_name_of_its_content() {
        let (a, b) = (PathBuf::from("a"), PathBuf::from("b"));
        let mut before = Digests::default();
        before.insert(a.clone(), Some(Digest::of(b"1")));
        before.insert(b.clone(), None);
        let mut after = Digests::default();
        after.insert(a, Some(Digest::of(b"2")));
        assert!(!after.lost_any_of(&before), "b was not readable before");
        assert_ne!(after.name(), before.name());
        after.insert(b, Some(Digest::of(b"1")));
        assert!(before.lost_any_of(&after));
        assert_eq!(after.name().len(), 16);
    }
}
