//! The operators' orders that hold for some time: who gave them, why, until when. The detector
//! decides what an order does and when it ends; the book only tells of it, and is bounded.

use std::collections::BTreeMap;
use std::time::Duration;

use super::detector::{OverrideKind, RestoredBy};
use crate::clock::Timestamp;
use crate::endpoint::Address;

/// Orders of one upstream that may hold at a time.
pub const MOST: usize = 200;

/// Who gave an order and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// A name the caller gave itself.
    pub actor: String,
    /// Why.
    pub note: Option<String>,
}

/// An order that has passed the checks of its form.
#[derive(Clone, Debug)]
pub struct Order {
    /// Its number, should it hold for some time; never used twice in one process.
    pub id: u64,
    /// Which instance.
    pub address: Address,
    /// What.
    pub kind: OverrideKind,
    /// How long.
    pub ttl: Option<Duration>,
    /// Beyond the cap, or down to nothing.
    pub force: bool,
    /// By whom and why.
    pub signed: Signed,
}

/// What can hold for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lasting {
    /// Ejected by an operator.
    Eject,
    /// Never ejected by the rules.
    Hold,
    /// Not used and not counted.
    Disable,
}

impl Lasting {
    /// The label of metrics and events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Eject => "eject",
            Self::Hold => "hold",
            Self::Disable => "disable",
        }
    }

    /// The order that ends it before its time.
    pub const fn undone_by(self) -> OverrideKind {
        match self {
            Self::Eject => OverrideKind::Restore,
            Self::Hold => OverrideKind::Release,
            Self::Disable => OverrideKind::Enable,
        }
    }

    /// What an order makes hold, if anything.
    pub const fn of(kind: OverrideKind) -> Option<Self> {
        match kind {
            OverrideKind::Eject => Some(Self::Eject),
            OverrideKind::Hold => Some(Self::Hold),
            OverrideKind::Disable => Some(Self::Disable),
            OverrideKind::Clear
            | OverrideKind::Enable
            | OverrideKind::Release
            | OverrideKind::Restore => None,
        }
    }
}

/// One order in force.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its number.
    pub id: u64,
    /// When it was given.
    pub since: Timestamp,
    /// When it ends by itself.
    pub until: Timestamp,
    /// Beyond the cap.
    pub forced: bool,
    /// By whom and why.
    pub signed: Signed,
    /// What ended it, where that is known before it is struck out.
    pub ended_by: Option<RestoredBy>,
}

/// All orders in force of one upstream.
#[derive(Debug, Default)]
pub struct Book(BTreeMap<(Address, Lasting), Entry>);

impl Book {
    /// Whether one more of this kind may be written down; one for the same instance replaces.
    pub fn has_room(&self, address: &Address, what: Lasting) -> bool {
        self.0.len() < MOST || self.0.contains_key(&(address.clone(), what))
    }

    /// Writes an order down.
    pub fn write(&mut self, address: Address, what: Lasting, entry: Entry) {
        self.0.insert((address, what), entry);
    }

    /// A manual ejection ended in this way.
    pub fn note_end(&mut self, address: &Address, by: RestoredBy) {
        if let Some(entry) = self.0.get_mut(&(address.clone(), Lasting::Eject)) {
            entry.ended_by = Some(by);
        }
    }

    /// Strikes out what does not hold any more.
    pub fn strike(
        &mut self,
        holds: impl Fn(&Address, Lasting, &Entry) -> bool,
    ) -> Vec<(Address, Lasting, Entry)> {
        let over =
            |(address, what): &(Address, Lasting), entry: &mut Entry| !holds(address, *what, entry);
        let struck = self.0.extract_if(.., over);
        struck.map(|((a, w), entry)| (a, w, entry)).collect()
    }

    /// All of them, by address.
    pub fn iter(&self) -> impl Iterator<Item = (&Address, Lasting, &Entry)> {
        self.0.iter().map(|((a, what), entry)| (a, *what, entry))
    }

    /// The one for an instance.
    pub fn get(&self, address: &Address, what: Lasting) -> Option<&Entry> {
        self.0.get(&(address.clone(), what))
    }

    /// When the next one ends by itself.
    pub fn next_end(&self) -> Option<Timestamp> {
        self.0.values().map(|entry| entry.until).min()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is ordered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64) -> Entry {
        Entry {
            id,
            since: Timestamp::ZERO,
            until: Timestamp::from_nanos(id),
            forced: false,
            signed: Signed {
                actor: "a".to_owned(),
                note: None,
            },
            ended_by: None,
        }
    }

    #[test]
    fn the_book_is_bounded_and_an_order_replaces_its_like() {
        let mut book = Book::default();
        let address = |n: u64| Address::parse(&format!("10.0.0.1:{}", n + 1)).unwrap();
        for n in 0..MOST as u64 {
            assert!(book.has_room(&address(n), Lasting::Hold));
            book.write(address(n), Lasting::Hold, entry(n));
        }
        assert!(!book.has_room(&address(0), Lasting::Eject));
        assert!(book.has_room(&address(0), Lasting::Hold));
        book.write(address(0), Lasting::Hold, entry(999));
        assert_eq!(
            (book.len(), book.next_end()),
            (MOST, Some(Timestamp::from_nanos(1)))
        );
        let struck = book.strike(|_, _, entry| entry.id < 999);
        assert_eq!((struck.len(), struck[0].2.id), (1, 999));
        assert!(book.get(&address(0), Lasting::Hold).is_none());
    }
}
