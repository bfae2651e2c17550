use http::header::{ACCEPT, HeaderValue};
use proptest::prelude::*;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn request(accept: u8) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if accept > 0 {
        headers.insert(ACCEPT, HeaderValue::from(u16::from(accept)));
    }
    headers
}

fn key(n: u8) -> Key {
    Key::new(b"svc", &format!("/{n}"))
}

/// `varies`: the answer depends on `accept`.
fn kept(body: &str, varies: Option<u8>, at: Timestamp) -> Kept {
    let vary = varies.map(|accept| {
        let values = request(accept).get_all(ACCEPT).iter().cloned().collect();
        (ACCEPT, values)
    });
    Kept {
        status: StatusCode::OK,
        fields: HeaderMap::new(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        terms: Terms {
            vary: vary.into_iter().collect(),
            ..Terms::default()
        },
        at,
    }
}

fn body(cache: &mut Cache, n: u8, accept: u8, now: Timestamp) -> Option<String> {
    let hit = cache.get(&key(n), &request(accept), HOUR, now)?;
    Some(String::from_utf8_lossy(&hit.kept.body).into_owned())
}

#[test]
fn terms_decide_until_when_it_is_given() {
    let mut cache = Cache::default();
    let plain = request(0);
    let at = Timestamp::from_millis(1_000);
    let put = |cache: &mut Cache, terms: Terms| {
        let kept = Kept {
            terms,
            ..kept("x", None, at)
        };
        cache.put(&key(1), kept, &plain, 10_000);
    };
    let age = |cache: &mut Cache, seconds: u64| {
        let now = at + Duration::from_secs(seconds);
        let hit = cache.get(&key(1), &plain, HOUR, now);
        hit.map(|hit| (hit.age.as_secs(), hit.is_stale()))
    };
    put(&mut cache, Terms::default());
    assert_eq!(age(&mut cache, 0), Some((0, true)));
    assert_eq!(age(&mut cache, 3600), Some((3600, true)));
    assert_eq!(age(&mut cache, 3601), None);
    assert!(cache.is_empty(), "what is too old goes");
    let fresh = Terms {
        age: Duration::from_secs(5),
        fresh_for: Duration::from_secs(60),
        stale_for: Some(Duration::ZERO),
        ..Terms::default()
    };
    put(&mut cache, fresh.clone());
    assert_eq!(age(&mut cache, 55), Some((60, false)));
    assert_eq!(age(&mut cache, 56), None);
    let stale_for = Some(Duration::from_secs(10));
    put(&mut cache, Terms { stale_for, ..fresh });
    assert_eq!(age(&mut cache, 65), Some((70, true)));
    assert_eq!(age(&mut cache, 66), None);
}

#[test]
fn a_request_may_refuse_what_is_kept() {
    let mut cache = Cache::default();
    let at = Timestamp::from_millis(0);
    cache.put(&key(1), kept("x", None, at), &request(0), 10_000);
    let now = at + Duration::from_secs(10);
    let mut given = |text: &'static str| {
        let mut headers = request(0);
        let value = HeaderValue::from_static(text);
        headers.insert(http::header::CACHE_CONTROL, value);
        cache.get(&key(1), &headers, HOUR, now).is_some()
    };
    assert!(!given("no-cache"));
    assert!(!given("max-age=9"));
    assert!(given("max-age=10"));
    assert!(given("no-store"));
}

#[test]
fn a_change_removes_all_variants() {
    let mut cache = Cache::default();
    let at = Timestamp::ZERO;
    for accept in 1..4 {
        let kept = kept("x", Some(accept), at);
        cache.put(&key(1), kept, &request(accept), 10_000);
    }
    assert_eq!(cache.len(), 3);
    cache.remove(&key(1));
    assert_eq!((cache.len(), cache.bytes(), cache.by_key.len()), (0, 0, 0));
}

#[test]
fn one_target_has_a_bounded_number_of_variants() {
    let mut cache = Cache::default();
    for accept in 1..=100 {
        let kept = kept("x", Some(accept), Timestamp::ZERO);
        cache.put(&key(1), kept, &request(accept), usize::MAX);
    }
    assert_eq!(cache.len(), MAX_VARIANTS);
    assert_eq!(
        body(&mut cache, 1, 100, Timestamp::ZERO).as_deref(),
        Some("x")
    );
    assert_eq!(body(&mut cache, 1, 1, Timestamp::ZERO), None);
}

/// A list, the last used one at its end.
#[derive(Default)]
struct Naive(Vec<(u8, Option<u8>, String, usize, Timestamp)>);

impl Naive {
    fn position(&self, n: u8, accept: u8) -> Vec<usize> {
        let all = self.0.iter().enumerate();
        let found = all
            .filter(|(_, (k, varies, ..))| *k == n && varies.is_none_or(|varies| varies == accept));
        found.map(|(at, _)| at).collect()
    }

    fn put(
        &mut self,
        n: u8,
        varies: Option<u8>,
        accept: u8,
        body: &str,
        most: usize,
        at: Timestamp,
    ) {
        for position in self.position(n, accept).into_iter().rev() {
            self.0.remove(position);
        }
        let cost = kept(body, varies, at).cost(&key(n));
        if cost > most {
            return;
        }
        self.0.push((n, varies, body.to_owned(), cost, at));
        while self.0.iter().map(|(.., cost, _)| cost).sum::<usize>() > most {
            self.0.remove(0);
        }
    }

    fn get(&mut self, n: u8, accept: u8, now: Timestamp) -> Option<String> {
        let found = self.position(n, accept);
        let mut best: Option<usize> = None;
        for position in &found {
            let newer = best.is_none_or(|b| self.0[b].4 <= self.0[*position].4);
            if newer {
                best = Some(*position);
            }
        }
        let entry = self.0[best?].clone();
        if now.since(entry.4) > HOUR {
            self.0.retain(|other| {
                let matches = other.0 == n && other.1.is_none_or(|v| v == accept);
                !matches || now.since(other.4) <= HOUR
            });
            return None;
        }
        for position in found.into_iter().rev() {
            if now.since(self.0[position].4) > HOUR || Some(position) == best {
                self.0.remove(position);
            }
        }
        self.0.push(entry.clone());
        Some(entry.2)
    }
}

#[derive(Clone, Debug)]
enum Move {
    Put(u8, bool, u8, usize),
    Get(u8, u8),
    Remove(u8),
    Shrink(usize),
    Wait(u64),
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => (0_u8..5, any::<bool>(), 0_u8..4, 0_usize..3_000)
            .prop_map(|(n, varies, accept, size)| Move::Put(n, varies, accept, size)),
        4 => (0_u8..5, 0_u8..4).prop_map(|(n, accept)| Move::Get(n, accept)),
        1 => (0_u8..5).prop_map(Move::Remove),
        1 => (0_usize..12_000).prop_map(Move::Shrink),
        1 => (0_u64..4_000).prop_map(Move::Wait),
    ]
}

proptest! {
    #[test]
    fn agrees_with_a_naive_list_and_holds_its_bound(
        moves in prop::collection::vec(moves(), 1..200),
        bound in 0_usize..20_000,
    ) {
        let (mut cache, mut naive) = (Cache::default(), Naive::default());
        let (mut bound, mut now) = (bound, Timestamp::ZERO);
        for (step, one) in moves.into_iter().enumerate() {
            // No two answers come at one instant.
            now = now + Duration::from_millis(1);
            match one {
                Move::Put(n, varies, accept, size) => {
                    let text = format!("{step}{}", "x".repeat(size));
                    let varies = varies.then_some(accept);
                    cache.put(&key(n), kept(&text, varies, now), &request(accept), bound);
                    naive.put(n, varies, accept, &text, bound, now);
                }
                Move::Get(n, accept) => {
                    let found = body(&mut cache, n, accept, now);
                    prop_assert_eq!(found, naive.get(n, accept, now));
                }
                Move::Remove(n) => {
                    cache.remove(&key(n));
                    naive.0.retain(|(k, ..)| *k != n);
                }
                Move::Shrink(to) => {
                    bound = to;
                    cache.shrink(bound);
                    while naive.0.iter().map(|(.., cost, _)| cost).sum::<usize>() > bound {
                        naive.0.remove(0);
                    }
                }
                Move::Wait(seconds) => now = now + Duration::from_secs(seconds),
            }
            let costs: usize = cache.by_use.values().map(|stored| stored.cost).sum();
            prop_assert_eq!(cache.bytes(), costs);
            prop_assert!(cache.bytes() <= bound, "{} of {}", cache.bytes(), bound);
            let variants: usize = cache.by_key.values().map(Vec::len).sum();
            prop_assert_eq!(variants, cache.len());
            prop_assert!(cache.by_key.values().all(|v| !v.is_empty()));
            prop_assert_eq!(cache.len(), naive.0.len());
        }
    }
}
