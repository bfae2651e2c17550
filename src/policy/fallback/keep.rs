//! The cache of an upstream or a route as workers share it, and the copy of an answer's body that is made while
//! it streams to the app. Nothing here is touched unless a `cache` is configured; the lock is held
//! for one look-up or one entry, never across a wait.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::cache::{Cache, Hit, Kept, Key};
use super::storable::Terms;
use crate::clock::Timestamp;
use crate::config::types::LastGood;
use crate::upstream::route_state::RouteState;

/// An answer is at most this part of the cache ...
const SHARE: usize = 4;
/// ... and at most this large.
const MAX_ANSWER: usize = 1024 * 1024;
/// What was kept so short a time ago is not copied again: answers that come by the thousand cost one
/// copy in a while.
const SOON: Duration = Duration::from_secs(1);

/// The last good answers of one upstream or route.
#[derive(Debug, Default)]
pub struct Answers {
    cache: Mutex<Cache>,
    /// Bytes of copies that are not whole yet.
    growing: AtomicUsize,
    /// How often something was forgotten.
    forgotten: AtomicU64,
}

impl Answers {
    /// Holds this bound from now on; 0 where no cache is configured.
    pub fn bound(&self, max_bytes: usize) {
        self.with(|cache| cache.shrink(max_bytes));
        self.forgotten.fetch_add(1, Relaxed);
    }

    /// What may be given instead of an error.
    pub fn get(
        &self,
        key: &Key,
        request: &HeaderMap,
        settings: &LastGood,
        now: Timestamp,
    ) -> Option<Hit> {
        self.with(|cache| {
            cache.shrink(settings.max_bytes);
            cache.get(key, request, settings.max_age, now)
        })?
    }

    /// What was kept is not true any more.
    pub fn forget(&self, key: &Key) {
        self.with(|cache| cache.remove(key));
        self.forgotten.fetch_add(1, Relaxed);
    }

    /// How often something was forgotten.
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Relaxed)
    }

    /// Bytes of what is kept.
    pub fn bytes(&self) -> usize {
        self.with(|cache| cache.bytes()).unwrap_or_default()
    }

    /// Until when the answer to `request` need not be kept again, when it was kept just now.
    pub fn kept_until(
        &self,
        key: &Key,
        request: &HeaderMap,
        settings: &LastGood,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let at = self.with(|cache| cache.kept_at(key, request)).flatten()?;
        let until = at + SOON.min(settings.max_age / 10);
        (now < until).then_some(until)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Cache) -> T) -> Option<T> {
        // Poisoned only by a panic inside of the cache; then it is not used any more.
        self.cache.lock().ok().map(|mut cache| act(&mut cache))
    }
}

/// A copy of an answer that grows while its body streams to the app. Dropped before its end it leaves
/// nothing behind.
#[derive(Debug)]
pub struct Copying {
    state: Arc<RouteState>,
    settings: LastGood,
    key: Key,
    request: HeaderMap,
    status: StatusCode,
    fields: HeaderMap,
    terms: Terms,
    at: Timestamp,
    body: Vec<u8>,
    /// Of `body`, in `growing`.
    reserved: usize,
}

/// The head of an answer that is to be kept.
#[derive(Debug)]
pub struct Head {
    /// Its status.
    pub status: StatusCode,
    /// What is kept of its fields.
    pub fields: HeaderMap,
    /// `content-length`, where it says one.
    pub length: Option<u64>,
    /// On what terms.
    pub terms: Terms,
}

impl Copying {
    /// Begins a copy of an answer whose head came `now`, unless it is too large.
    pub fn begin(
        state: &Arc<RouteState>,
        settings: LastGood,
        key: Key,
        head: Head,
        now: Timestamp,
    ) -> Option<Box<Self>> {
        let Head {
            status,
            fields,
            length,
            terms,
        } = head;
        let most = u64::try_from(most(&settings)).unwrap_or(u64::MAX);
        if length.is_some_and(|length| length > most) {
            return None;
        }
        // What variants are compared by, no more.
        let mut named = HeaderMap::new();
        for (name, values) in &terms.vary {
            for value in values {
                named.append(name.clone(), value.clone());
            }
        }
        let mut copying = Box::new(Self {
            state: Arc::clone(state),
            settings,
            key,
            request: named,
            status,
            fields,
            terms,
            at: now,
            body: Vec::new(),
            reserved: 0,
        });
        let length = length.and_then(|length| usize::try_from(length).ok());
        if let Some(length) = length {
            if !copying.reserve(length) {
                return None;
            }
            copying.body.reserve_exact(length);
        }
        Some(copying)
    }

    /// Copies a piece of the body. False when the answer is too large to be kept: then the copy is of
    /// no use any more.
    pub fn push(&mut self, data: &[u8]) -> bool {
        let length = self.body.len() + data.len();
        if length > most(&self.settings) || !self.reserve(length) {
            return false;
        }
        self.body.extend_from_slice(data);
        true
    }

    /// The body is whole.
    pub fn keep(mut self: Box<Self>) {
        let kept = Kept {
            status: self.status,
            fields: std::mem::take(&mut self.fields),
            body: Bytes::from(std::mem::take(&mut self.body).into_boxed_slice()),
            terms: std::mem::take(&mut self.terms),
            at: self.at,
        };
        let (key, request, most) = (&self.key, &self.request, self.settings.max_bytes);
        let answers = &self.state.answers;
        answers.with(|cache| cache.put(key, kept, request, most));
    }

    /// All copies that grow at a time share as much room as the largest answers may take.
    fn reserve(&mut self, length: usize) -> bool {
        let more = length.saturating_sub(self.reserved);
        if more == 0 {
            return true;
        }
        let growing = &self.state.answers.growing;
        let room = self.settings.max_bytes / SHARE;
        if growing.fetch_add(more, Relaxed).saturating_add(more) > room {
            growing.fetch_sub(more, Relaxed);
            return false;
        }
        self.reserved = length;
        true
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        let growing = &self.state.answers.growing;
        growing.fetch_sub(self.reserved, Relaxed);
    }
}

fn most(settings: &LastGood) -> usize {
    (settings.max_bytes / SHARE).min(MAX_ANSWER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Upstream;

    const SETTINGS: LastGood = LastGood {
        max_age: Duration::from_secs(60),
        max_bytes: 64 * 1024,
    };

    fn begin(upstream: &Arc<Upstream>, target: &str, length: Option<u64>) -> Option<Box<Copying>> {
        begin_at(upstream, target, length, Timestamp::ZERO)
    }

    fn begin_at(
        upstream: &Arc<Upstream>,
        target: &str,
        length: Option<u64>,
        now: Timestamp,
    ) -> Option<Box<Copying>> {
        let head = Head {
            status: StatusCode::OK,
            fields: HeaderMap::new(),
            length,
            terms: Terms::default(),
        };
        let key = Key::new(b"svc", target);
        Copying::begin(upstream.own_state(), SETTINGS, key, head, now)
    }

    fn get(upstream: &Upstream, target: &str) -> Option<Bytes> {
        let (key, request) = (Key::new(b"svc", target), HeaderMap::new());
        let hit = upstream
            .own_state()
            .answers
            .get(&key, &request, &SETTINGS, Timestamp::ZERO)?;
        Some(hit.kept.body.clone())
    }

    #[test]
    fn only_a_whole_body_is_kept_and_every_way_gives_its_room_back() {
        let upstream = Arc::new(Upstream::new(Arc::from("svc"), 1));
        let mut copying = begin(&upstream, "/a", None).unwrap();
        assert!(copying.push(b"half"));
        drop(copying);
        assert_eq!(get(&upstream, "/a"), None);
        let mut copying = begin(&upstream, "/a", Some(5)).unwrap();
        assert!(copying.push(b"wh") && copying.push(b"ole"));
        copying.keep();
        assert_eq!(get(&upstream, "/a").as_deref(), Some(&b"whole"[..]));
        let answers = &upstream.own_state().answers;
        let kept_until = |ms| {
            let (key, now) = (Key::new(b"svc", "/a"), Timestamp::from_millis(ms));
            answers.kept_until(&key, &HeaderMap::new(), &SETTINGS, now)
        };
        assert_eq!(kept_until(999), Some(Timestamp::from_millis(1000)));
        assert_eq!(kept_until(1000), None);
        assert_eq!(upstream.own_state().answers.growing.load(Relaxed), 0);
        upstream.own_state().answers.bound(0);
        assert_eq!(upstream.own_state().answers.bytes(), 0);
    }

    #[test]
    fn the_age_counts_from_the_head_and_an_older_answer_replaces_no_newer_one() {
        let upstream = Arc::new(Upstream::new(Arc::from("svc"), 1));
        let at = |seconds: u64| Timestamp::from_millis(seconds * 1_000);
        let mut slow = begin_at(&upstream, "/a", None, at(1)).unwrap();
        let mut fast = begin_at(&upstream, "/a", None, at(3)).unwrap();
        assert!(slow.push(b"old") && fast.push(b"new"));
        fast.keep();
        slow.keep();
        let (key, request) = (Key::new(b"svc", "/a"), HeaderMap::new());
        let answers = &upstream.own_state().answers;
        let hit = answers.get(&key, &request, &SETTINGS, at(10)).unwrap();
        assert_eq!(hit.kept.body, "new");
        assert_eq!(hit.age, Duration::from_secs(7));
    }

    #[test]
    fn copies_that_grow_share_a_bounded_room() {
        let upstream = Arc::new(Upstream::new(Arc::from("svc"), 1));
        let limit = SETTINGS.max_bytes / SHARE;
        assert!(begin(&upstream, "/a", Some(limit as u64 + 1)).is_none());
        let mut copying = begin(&upstream, "/a", None).unwrap();
        assert!(copying.push(&vec![b'x'; limit]));
        assert!(!copying.push(b"y"), "larger than an answer may be");
        let mut other = begin(&upstream, "/b", None).unwrap();
        assert!(!other.push(b"y"), "no room beside the first");
        drop(copying);
        assert!(other.push(b"y"));
        drop(other);
        assert_eq!(upstream.own_state().answers.growing.load(Relaxed), 0);
    }
}
