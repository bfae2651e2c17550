//! List and watch of the slices of one namespace as a machine: what to ask next, and what is known.
//! Pure; the task around it is `kubernetes/follow.rs`.
//!
//! | state | event | next |
//! |---|---|---|
//! | listing | a page that has a successor | the next page; nothing is swapped yet |
//! | listing | the last page | the whole map is swapped; watch from the version of the list |
//! | watching | added, modified, deleted, bookmark | the map follows, the version moves on |
//! | watching | proper end | watch from the last version, at once |
//! | any | 410, as a status or as an event, of a list or a watch | the version is forgotten: list, after a delay |
//! | any | another failure | the same again after a delay; after three in a row list |
//! | watching | long without a bookmark though there were some, or long since the last list | list |
//!
//! Versions are opaque texts. While a list is collected the old map stays in use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::wire::{Event, Page, Slice, Status};

/// The first delay after a failure doubles up to the second.
pub(super) const FIRST_RETRY: Duration = Duration::from_millis(800);
pub(super) const LAST_RETRY: Duration = Duration::from_secs(30);

/// So many failures of a watch in a row are answered by a list.
const LIST_AFTER: u32 = 3;
/// A stream that lived so long ends a row of failures.
const SETTLED: Duration = Duration::from_secs(120);
/// One that ends properly before this is no reason to hurry.
const TOO_SHORT: Duration = Duration::from_secs(5);

/// The slices of one service, by name. Shared until one of them changes.
pub(super) type Slices = Arc<BTreeMap<Arc<str>, Slice>>;

/// All services of a namespace.
pub(super) type Services = BTreeMap<Arc<str>, Slices>;

/// What to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// A list, or the next page of it.
    List(Option<String>),
    /// A watch from this version.
    Watch(String),
}

/// What a line of a watch did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// A service may have changed.
    Changed,
    /// Nothing, but the watch lives.
    Alive,
    /// The watch is over.
    Over(Trouble),
}

/// Something went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The version or token is too old (410).
    Gone(String),
    /// Anything else.
    Other(String),
}

#[derive(Debug, Default)]
pub(super) struct Machine {
    services: Services,
    /// The service of each slice.
    owners: BTreeMap<Arc<str>, Arc<str>>,
    /// `None`: list.
    version: Option<String>,
    /// A list that is being collected.
    collected: Vec<Slice>,
    more: Option<String>,
    failures: u32,
    /// Whether this server ever sent a bookmark.
    bookmarks: bool,
}

impl Machine {
    /// What to ask now.
    pub(super) fn next(&self) -> Request {
        match &self.version {
            Some(version) => Request::Watch(version.clone()),
            None => Request::List(self.more.clone()),
        }
    }

    /// A page of a list; true when it was the last.
    pub(super) fn page(&mut self, page: Page) -> bool {
        self.collected.extend(page.slices);
        self.more = page.more;
        if self.more.is_some() {
            return false;
        }
        let mut services = Services::new();
        self.owners.clear();
        for slice in std::mem::take(&mut self.collected) {
            if let Some(service) = slice.service.clone() {
                self.owners.insert(slice.name.clone(), service.clone());
                let slices = services.entry(service).or_default();
                Arc::make_mut(slices).insert(slice.name.clone(), slice);
            }
        }
        // What a service had before and has still is the same object: nobody needs to look again.
        for (name, slices) in &mut services {
            if let Some(known) = self.services.get(name)
                && known == slices
            {
                *slices = known.clone();
            }
        }
        self.services = services;
        self.version = Some(page.version);
        true
    }

    /// A line of a watch.
    pub(super) fn event(&mut self, event: Event) -> Effect {
        match event {
            Event::Put(slice) => {
                self.version = Some(slice.version.clone());
                self.put(slice);
                Effect::Changed
            }
            Event::Deleted(name, version) => {
                self.version = Some(version);
                self.remove(&name);
                Effect::Changed
            }
            Event::Bookmark(version) => {
                self.version = Some(version);
                self.bookmarks = true;
                Effect::Alive
            }
            Event::Error(status) => Effect::Over(trouble(&status)),
        }
    }

    /// A watch ended properly after this time. True: go on at once.
    pub(super) fn ended(&mut self, lived: Duration) -> bool {
        self.settle(lived);
        if lived < TOO_SHORT {
            self.failures = self.failures.saturating_add(1);
            return false;
        }
        true
    }

    /// A list or a watch failed; the watch had lived for `lived`. Returns the failures in a row.
    pub(super) fn failed(&mut self, trouble: &Trouble, lived: Duration) -> u32 {
        self.settle(lived);
        self.failures = self.failures.saturating_add(1);
        match trouble {
            Trouble::Gone(_) => self.list(),
            Trouble::Other(_) if self.failures >= LIST_AFTER => self.list(),
            Trouble::Other(_) => {}
        }
        self.failures
    }

    /// The next request is a list from its beginning.
    pub(super) fn list(&mut self) {
        self.version = None;
        self.more = None;
        self.collected.clear();
    }

    /// Whether bookmarks are to be expected.
    pub(super) fn has_bookmarks(&self) -> bool {
        self.bookmarks
    }

    pub(super) fn services(&self) -> &Services {
        &self.services
    }

    fn settle(&mut self, lived: Duration) {
        if lived >= SETTLED {
            self.failures = 0;
        }
    }

    fn put(&mut self, slice: Slice) {
        let owner = self.owners.get(&slice.name);
        if owner.is_some() && owner != slice.service.as_ref() {
            self.remove(&slice.name.clone());
        }
        let Some(service) = slice.service.clone() else {
            return;
        };
        self.owners.insert(slice.name.clone(), service.clone());
        let slices = self.services.entry(service).or_default();
        Arc::make_mut(slices).insert(slice.name.clone(), slice);
    }

    fn remove(&mut self, name: &Arc<str>) {
        let Some(service) = self.owners.remove(name) else {
            return;
        };
        if let Some(slices) = self.services.get_mut(&service) {
            Arc::make_mut(slices).remove(name);
            if slices.is_empty() {
                self.services.remove(&service);
            }
        }
    }
}

/// What a status says.
pub(super) fn trouble(status: &Status) -> Trouble {
    let Status {
        code,
        reason,
        message,
    } = status;
    let text = format!("{code} {reason}: {message}");
    match *code == 410 || reason == "Expired" || reason == "Gone" {
        true => Trouble::Gone(text),
        false => Trouble::Other(text),
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::Family;
    use super::*;

    fn slice(name: &str, service: &str, version: &str) -> Slice {
        Slice {
            name: name.into(),
            service: Some(service.into()),
            version: version.to_owned(),
            family: Family::V4,
            endpoints: Vec::new(),
            ports: Vec::new(),
        }
    }

    fn page(slices: Vec<Slice>, version: &str, more: Option<&str>) -> Page {
        Page {
            slices,
            skipped: 0,
            version: version.to_owned(),
            more: more.map(str::to_owned),
        }
    }

    fn names(machine: &Machine) -> Vec<String> {
        let services = machine.services().iter();
        services
            .map(|(name, slices)| {
                let slices: Vec<&str> = slices.keys().map(|name| &**name).collect();
                format!("{name}: {}", slices.join(" "))
            })
            .collect()
    }

    #[test]
    fn pages_are_swapped_in_at_the_last_one() {
        let mut machine = Machine::default();
        assert_eq!(machine.next(), Request::List(None));
        assert!(machine.page(page(vec![slice("old-1", "old", "1")], "5", None)));
        assert_eq!(machine.next(), Request::Watch("5".to_owned()));
        machine.list();
        assert!(!machine.page(page(vec![slice("a-1", "a", "6")], "9", Some("t"))));
        assert_eq!(names(&machine), ["old: old-1"]);
        assert_eq!(machine.next(), Request::List(Some("t".to_owned())));
        assert!(machine.page(page(vec![slice("a-2", "a", "7")], "9", None)));
        assert_eq!(names(&machine), ["a: a-1 a-2"]);
        assert_eq!(machine.next(), Request::Watch("9".to_owned()));
    }

    #[test]
    fn row_25_every_form_of_410_leads_to_a_whole_list() {
        let gone = Status {
            code: 410,
            reason: "Expired".to_owned(),
            message: "too old".to_owned(),
        };
        let fresh = || {
            let mut machine = Machine::default();
            machine.page(page(vec![slice("a-1", "a", "1")], "5", None));
            machine
        };
        // As an event, and as a status of a watch.
        let mut machine = fresh();
        let Effect::Over(trouble) = machine.event(Event::Error(gone.clone())) else {
            panic!("over");
        };
        machine.failed(&trouble, Duration::ZERO);
        assert_eq!(machine.next(), Request::List(None));
        // Of a `continue` token: not the same token again, and nothing of the half list is left.
        let mut machine = fresh();
        machine.list();
        machine.page(page(vec![slice("b-1", "b", "2")], "6", Some("t")));
        machine.failed(&super::trouble(&gone), Duration::ZERO);
        assert_eq!(machine.next(), Request::List(None));
        assert_eq!(names(&machine), ["a: a-1"], "no gap");
        machine.page(page(vec![slice("c-1", "c", "2")], "7", None));
        assert_eq!(names(&machine), ["c: c-1"]);
        let by_reason = Status {
            code: 0,
            ..gone.clone()
        };
        assert!(matches!(super::trouble(&by_reason), Trouble::Gone(_)));
    }

    #[test]
    fn events_move_the_version_and_the_map() {
        let mut machine = Machine::default();
        machine.page(page(vec![slice("a-1", "a", "1")], "5", None));
        let before = machine.services()["a"].clone();
        assert_eq!(
            machine.event(Event::Put(slice("b-1", "b", "6"))),
            Effect::Changed
        );
        assert!(Arc::ptr_eq(&before, &machine.services()["a"]), "untouched");
        // Another service takes a slice over.
        machine.event(Event::Put(slice("a-1", "b", "7")));
        assert_eq!(names(&machine), ["b: a-1 b-1"]);
        machine.event(Event::Deleted("b-1".into(), "8".to_owned()));
        machine.event(Event::Deleted("unknown".into(), "9".to_owned()));
        assert_eq!(names(&machine), ["b: a-1"]);
        assert!(!machine.has_bookmarks());
        assert_eq!(
            machine.event(Event::Bookmark("12".to_owned())),
            Effect::Alive
        );
        assert_eq!(machine.next(), Request::Watch("12".to_owned()));
        assert!(machine.has_bookmarks());
        // A list that says the same leaves the objects alone.
        let before = machine.services()["b"].clone();
        machine.list();
        machine.page(page(vec![slice("a-1", "b", "7")], "13", None));
        assert!(Arc::ptr_eq(&before, &machine.services()["b"]));
    }

    #[test]
    fn failures_are_counted_until_a_stream_lived() {
        let mut machine = Machine::default();
        machine.page(page(Vec::new(), "5", None));
        let other = Trouble::Other("reset".to_owned());
        assert_eq!(machine.failed(&other, Duration::ZERO), 1);
        assert_eq!(machine.failed(&other, Duration::ZERO), 2);
        assert_eq!(machine.next(), Request::Watch("5".to_owned()));
        assert_eq!(machine.failed(&other, Duration::ZERO), 3);
        assert_eq!(machine.next(), Request::List(None));
        machine.page(page(Vec::new(), "6", None));
        assert_eq!(machine.failed(&other, SETTLED), 1);
        assert!(
            !machine.ended(Duration::from_secs(1)),
            "an end at once is no reason to hurry"
        );
        assert!(machine.ended(Duration::from_secs(240)));
        assert_eq!(machine.failed(&other, Duration::ZERO), 1);
    }
}
