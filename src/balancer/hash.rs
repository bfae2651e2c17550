//! Stable hashes: the same in every process and version, so that all sidecars of an app send a key to
//! one instance, and a restart changes nothing. FNV-1a over the bytes, then the finalizer of
//! SplitMix64, which spreads what FNV leaves close together.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::COOKIE;

use crate::config::types::HashOn;

/// Where a key lies on all rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub u64);

/// The key of a request: of its header, cookie, path without query, or of the app's address. `None`
/// where it has none (or an empty one): then no instance is better than another.
pub fn key_of(on: &HashOn, headers: &HeaderMap, path: &str, source: Option<IpAddr>) -> Option<Key> {
    let bytes: &[u8] = match on {
        HashOn::Header(name) => headers.get(name)?.as_bytes(),
        HashOn::Cookie(name) => headers
            .get_all(COOKIE)
            .iter()
            .find_map(|line| cookie(line.as_bytes(), name.as_bytes()))?,
        HashOn::Path => path.as_bytes(),
        HashOn::Source => {
            return Some(Key(match source?.to_canonical() {
                IpAddr::V4(ip) => of_bytes(&ip.octets()),
                IpAddr::V6(ip) => of_bytes(&ip.octets()),
            }));
        }
    };
    (!bytes.is_empty()).then(|| Key(of_bytes(bytes)))
}

/// The hash of some bytes.
pub(super) fn of_bytes(bytes: &[u8]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let fnv = bytes
        .iter()
        .fold(OFFSET, |h, b| (h ^ u64::from(*b)).wrapping_mul(PRIME));
    mix(fnv)
}

/// Another one of a hash, for each `n`.
pub(super) const fn nth(hash: u64, n: u64) -> u64 {
    mix(hash.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

const fn mix(mut h: u64) -> u64 {
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

/// The value of a cookie in one line of them.
fn cookie<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    line.split(|b| *b == b';').find_map(|pair| {
        let rest = pair.trim_ascii().strip_prefix(name)?;
        rest.strip_prefix(b"=")
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = fields.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        pairs.collect()
    }

    #[test]
    fn a_key_is_the_same_in_every_process() {
        assert_eq!(of_bytes(b""), 0xf52a_15e9_a9b5_e89b);
        assert_eq!(of_bytes(b"alice"), of_bytes(b"alice"));
        assert_ne!(of_bytes(b"alice"), of_bytes(b"alicf"));
    }

    #[test]
    fn keys_of_requests() {
        let on = HashOn::Header(HeaderName::from_static("x-user"));
        let key = |on: &HashOn, headers: &HeaderMap| key_of(on, headers, "/a", None);
        let alice = Some(Key(of_bytes(b"alice")));
        assert_eq!(key(&on, &headers(&[("x-user", "alice")])), alice);
        assert_eq!(key(&on, &headers(&[("x-user", "")])), None);
        assert_eq!(key(&on, &headers(&[])), None);
        let on = HashOn::Cookie("sid".into());
        for line in ["sid=alice", "a=b; sid=alice", "xsid=no;sid=alice;sid=bob"] {
            assert_eq!(key(&on, &headers(&[("cookie", line)])), alice, "{line}");
        }
        let many = headers(&[("cookie", "sidx=no")]);
        assert_eq!(key(&on, &many), None);
        assert_eq!(key(&HashOn::Path, &many), Some(Key(of_bytes(b"/a"))));
        let from = |ip: &str| key_of(&HashOn::Source, &many, "/", Some(ip.parse().unwrap()));
        assert_eq!(from("10.0.0.1"), from("::ffff:10.0.0.1"));
        assert_ne!(from("10.0.0.1"), from("10.0.0.2"));
        assert_eq!(key(&HashOn::Source, &many), None);
    }
}
