//! Header work between the two sides: hop-by-hop fields go (RFC 9110, 7.6.1), what the proxy adds is
//! added after that, so that nobody can strip it. One pass finds what is there; only that is
//! removed.

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, Entry, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};

/// `keep-alive`.
pub const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// `proxy-connection`.
pub const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// The loop guard.
pub const HOP: HeaderName = HeaderName::from_static("x-outrigger-hop");
/// Why Outrigger answered itself.
pub const REASON: HeaderName = HeaderName::from_static("x-outrigger-reason");
/// Kept or generated.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Set when a path prefix was stripped.
pub const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
/// With `forwarded_headers: append`.
pub const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// With `forwarded_headers: append`.
pub const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// With `forwarded_headers: append`.
pub const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// W3C trace context.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// What a browser says of a request's origin.
pub const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The client's own deadline.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// Our entry in `via`.
pub const VIA_ENTRY: HeaderValue = HeaderValue::from_static("1.1 outrigger");
/// `trailers`.
pub const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");

const OWN_PREFIX: &[u8] = b"x-outrigger-";

/// What one pass over a header section found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen(u16);

impl Seen {
    const CONNECTION: u16 = 1;
    const KEEP_ALIVE: u16 = 1 << 1;
    const PROXY_CONNECTION: u16 = 1 << 2;
    const TE: u16 = 1 << 3;
    const TRAILER: u16 = 1 << 4;
    const TRANSFER_ENCODING: u16 = 1 << 5;
    const UPGRADE: u16 = 1 << 6;
    const PROXY_AUTH: u16 = 1 << 7;
    const OWN: u16 = 1 << 8;
    const EXPECT: u16 = 1 << 9;
    const COOKIE: u16 = 1 << 10;
    const REQUEST_ID: u16 = 1 << 11;
    const VIA: u16 = 1 << 12;
    const TRACEPARENT: u16 = 1 << 13;
    const SEC_FETCH_SITE: u16 = 1 << 14;

    /// One pass over the names.
    pub fn scan(headers: &HeaderMap) -> Self {
        let mut seen = 0;
        for name in headers.keys() {
            let bytes = name.as_str().as_bytes();
            // First byte and length leave almost nothing to compare.
            seen |= match (bytes.first(), bytes.len()) {
                (Some(b'c'), 10) if *name == CONNECTION => Self::CONNECTION,
                (Some(b'c'), 6) if *name == COOKIE => Self::COOKIE,
                (Some(b'e'), 6) if *name == EXPECT => Self::EXPECT,
                (Some(b'k'), 10) if *name == KEEP_ALIVE => Self::KEEP_ALIVE,
                (Some(b'p'), 16) if *name == PROXY_CONNECTION => Self::PROXY_CONNECTION,
                (Some(b'p'), 18 | 19)
                    if *name == PROXY_AUTHENTICATE || *name == PROXY_AUTHORIZATION =>
                {
                    Self::PROXY_AUTH
                }
                (Some(b's'), 14) if *name == SEC_FETCH_SITE => Self::SEC_FETCH_SITE,
                (Some(b't'), 2) => Self::TE,
                (Some(b't'), 11) if *name == TRACEPARENT => Self::TRACEPARENT,
                (Some(b't'), 7) if *name == TRAILER => Self::TRAILER,
                (Some(b't'), 17) if *name == TRANSFER_ENCODING => Self::TRANSFER_ENCODING,
                (Some(b'u'), 7) if *name == UPGRADE => Self::UPGRADE,
                (Some(b'v'), 3) if *name == VIA => Self::VIA,
                (Some(b'x'), 12) if *name == REQUEST_ID => Self::REQUEST_ID,
                (Some(b'x'), _) if bytes.starts_with(OWN_PREFIX) => Self::OWN,
                _ => 0,
            };
        }
        Self(seen)
    }

    const fn has(self, bit: u16) -> bool {
        self.0 & bit != 0
    }

    /// `expect` is there.
    pub const fn expect(self) -> bool {
        self.has(Self::EXPECT)
    }

    /// `transfer-encoding` is there.
    pub const fn transfer_encoding(self) -> bool {
        self.has(Self::TRANSFER_ENCODING)
    }

    /// `upgrade` is there.
    pub const fn upgrade(self) -> bool {
        self.has(Self::UPGRADE)
    }

    /// `te` is there.
    pub const fn te(self) -> bool {
        self.has(Self::TE)
    }

    /// A header of our own is there.
    pub const fn own(self) -> bool {
        self.has(Self::OWN)
    }

    /// `traceparent` is there.
    pub const fn traceparent(self) -> bool {
        self.has(Self::TRACEPARENT)
    }

    /// `sec-fetch-site` is there.
    pub const fn sec_fetch_site(self) -> bool {
        self.has(Self::SEC_FETCH_SITE)
    }

    /// `via` is there.
    pub const fn via(self) -> bool {
        self.has(Self::VIA)
    }

    /// `x-request-id` is there.
    pub const fn request_id(self) -> bool {
        self.has(Self::REQUEST_ID)
    }
}

/// Whether the comma-separated lists of `name` hold `token`, whatever its case.
pub fn list_has(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers.get_all(name).iter().any(|value| {
        value.as_bytes().split(|b| *b == b',').any(|item| {
            let item = item.split(|b| *b == b';').next().unwrap_or_default();
            item.trim_ascii().eq_ignore_ascii_case(token.as_bytes())
        })
    })
}

/// Removes what is meant for this hop from a request; the loop guard's tokens of others stay, so
/// that a loop over several processes is seen too. `upgrade`: the tunnel's protocol is kept.
/// Returns whether the app takes trailers.
pub fn clean_request(headers: &mut HeaderMap, seen: Seen, upgrade: bool) -> bool {
    let trailers = seen.te() && list_has(headers, &TE, "trailers");
    let protocol = if upgrade {
        headers.get(UPGRADE).cloned()
    } else {
        None
    };
    clean(headers, seen);
    if seen.expect() {
        headers.remove(EXPECT);
    }
    if trailers {
        headers.insert(TE, TRAILERS);
    }
    if let Some(protocol) = protocol {
        headers.insert(UPGRADE, protocol);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    trailers
}

/// Removes what is meant for this hop from a response. `keep_trailer`: the app takes trailers, so
/// their announcement stays. `switched`: a 101, whose `upgrade` stays. Returns whether the framing
/// can be trusted, and what was there.
pub fn clean_response(
    headers: &mut HeaderMap,
    keep_trailer: bool,
    switched: bool,
) -> (Framing, Seen) {
    let seen = Seen::scan(headers);
    // With both, the coding holds and the length is gone (RFC 9112, 6.3); somebody between us and
    // the instance may have read it the other way.
    let doubtful = seen.has(Seen::TRANSFER_ENCODING) && headers.remove(CONTENT_LENGTH).is_some();
    let announced = if keep_trailer && seen.has(Seen::TRAILER) {
        headers.get(TRAILER).cloned()
    } else {
        None
    };
    let protocol = if switched {
        headers.get(UPGRADE).cloned()
    } else {
        None
    };
    clean(headers, seen);
    if seen.has(Seen::OWN) {
        headers.remove(HOP);
    }
    if let Some(announced) = announced {
        headers.insert(TRAILER, announced);
    }
    if let Some(protocol) = protocol {
        headers.insert(UPGRADE, protocol);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    let framing = if doubtful {
        Framing::Doubtful
    } else {
        Framing::Sound
    };
    (framing, seen)
}

/// Whether the end of a response is where its head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Yes.
    Sound,
    /// It is told in two ways: what follows on the connection cannot be trusted.
    Doubtful,
}

fn clean(headers: &mut HeaderMap, seen: Seen) {
    const HOP_BY_HOP: u16 = Seen::CONNECTION
        | Seen::KEEP_ALIVE
        | Seen::PROXY_CONNECTION
        | Seen::TE
        | Seen::TRAILER
        | Seen::TRANSFER_ENCODING
        | Seen::UPGRADE
        | Seen::PROXY_AUTH
        | Seen::OWN;
    if seen.0 & HOP_BY_HOP == 0 {
        return;
    }
    if seen.has(Seen::CONNECTION) {
        remove_nominated(headers);
        headers.remove(CONNECTION);
    }
    for (bit, name) in [
        (Seen::KEEP_ALIVE, KEEP_ALIVE),
        (Seen::PROXY_CONNECTION, PROXY_CONNECTION),
        (Seen::TE, TE),
        (Seen::TRAILER, TRAILER),
        (Seen::TRANSFER_ENCODING, TRANSFER_ENCODING),
        (Seen::UPGRADE, UPGRADE),
        (Seen::PROXY_AUTH, PROXY_AUTHENTICATE),
        (Seen::PROXY_AUTH, PROXY_AUTHORIZATION),
    ] {
        if seen.has(bit) {
            headers.remove(name);
        }
    }
    if seen.has(Seen::OWN) {
        let own = |n: &&HeaderName| n.as_str().as_bytes().starts_with(OWN_PREFIX) && **n != HOP;
        let names: Vec<HeaderName> = headers.keys().filter(own).cloned().collect();
        for name in names {
            headers.remove(name);
        }
    }
}

/// Removes the fields that `connection` names, except those without which the message would mean
/// something else.
fn remove_nominated(headers: &mut HeaderMap) {
    let mut names = Vec::new();
    for value in headers.get_all(CONNECTION) {
        for item in value.as_bytes().split(|b| *b == b',') {
            let item = item.trim_ascii();
            let common = [&b"close"[..], b"keep-alive", b"upgrade", b"te"];
            if item.is_empty() || common.iter().any(|c| item.eq_ignore_ascii_case(c)) {
                continue;
            }
            names.extend(HeaderName::from_bytes(item).ok());
        }
    }
    for name in names {
        if name != HOST && name != CONTENT_LENGTH {
            headers.remove(name);
        }
    }
}

/// Sets `name` to what is there, joined to one line, and `value`. `there`: whether the field may be
/// there at all, so that the usual case costs no look-up.
pub fn append_to_list(headers: &mut HeaderMap, there: bool, name: HeaderName, value: &HeaderValue) {
    if !there {
        headers.append(name, value.clone());
        return;
    }
    let mut occupied = match headers.entry(name) {
        Entry::Vacant(vacant) => {
            vacant.insert(value.clone());
            return;
        }
        Entry::Occupied(occupied) => occupied,
    };
    let mut line: Vec<u8> = Vec::new();
    for old in occupied.iter() {
        line.extend_from_slice(old.as_bytes());
        line.extend_from_slice(b", ");
    }
    line.extend_from_slice(value.as_bytes());
    if let Ok(joined) = HeaderValue::from_bytes(&line) {
        occupied.insert(joined);
    }
}

/// Joins the cookie crumbs of HTTP/2 to the one line HTTP/1 has (RFC 9113, 8.2.3).
pub fn join_cookies(headers: &mut HeaderMap, seen: Seen) {
    if !seen.has(Seen::COOKIE) || headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let mut line: Vec<u8> = Vec::new();
    for crumb in headers.get_all(COOKIE) {
        if !line.is_empty() {
            line.extend_from_slice(b"; ");
        }
        line.extend_from_slice(crumb.as_bytes());
    }
    if let Ok(joined) = HeaderValue::from_bytes(&line) {
        headers.insert(COOKIE, joined);
    }
}

/// Framing and routing fields mean nothing in trailers and must not get in that way (RFC 9110,
/// 6.5.1).
pub fn clean_request_trailers(trailers: &mut HeaderMap) {
    use http::header::{
        AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, MAX_FORWARDS,
        PRAGMA, RANGE, SET_COOKIE,
    };
    for name in [
        AUTHORIZATION,
        CACHE_CONTROL,
        CONNECTION,
        CONTENT_ENCODING,
        CONTENT_LENGTH,
        CONTENT_RANGE,
        CONTENT_TYPE,
        COOKIE,
        EXPECT,
        HOST,
        KEEP_ALIVE,
        MAX_FORWARDS,
        PRAGMA,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        PROXY_CONNECTION,
        RANGE,
        SET_COOKIE,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ] {
        trailers.remove(name);
    }
    let own = |n: &&HeaderName| n.as_str().as_bytes().starts_with(OWN_PREFIX);
    let names: Vec<HeaderName> = trailers.keys().filter(own).cloned().collect();
    for name in names {
        trailers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        headers
    }

    #[test]
    fn hop_by_hop_fields_and_nominated_ones_go() {
        let mut headers = map(&[
            ("connection", ""),
            ("connection", "close, X-Foo, host, content-length"),
            ("x-foo", "1"),
            ("keep-alive", "1"),
            ("proxy-connection", "x"),
            ("te", "gzip, trailers;q=0.5"),
            ("trailer", "x-t"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "x"),
            ("x-outrigger-reason", "spoof"),
            ("host", "svc"),
            ("content-length", "3"),
            ("x-kept", "1"),
        ]);
        let seen = Seen::scan(&headers);
        assert!(clean_request(&mut headers, seen, false));
        let left = map(&[
            ("host", "svc"),
            ("content-length", "3"),
            ("x-kept", "1"),
            ("te", "trailers"),
        ]);
        assert_eq!(headers, left);
    }

    #[test]
    fn a_tunnel_keeps_its_protocol() {
        let mut headers = map(&[
            ("connection", "Upgrade, x-a"),
            ("upgrade", "websocket"),
            ("x-a", "1"),
        ]);
        let seen = Seen::scan(&headers);
        clean_request(&mut headers, seen, true);
        assert_eq!(
            headers,
            map(&[("upgrade", "websocket"), ("connection", "upgrade")])
        );
    }

    #[test]
    fn lists_are_joined() {
        let mut headers = map(&[
            ("via", "1.0 fred"),
            ("via", "1.1 ben"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
        ]);
        let seen = Seen::scan(&headers);
        append_to_list(&mut headers, true, VIA, &VIA_ENTRY);
        join_cookies(&mut headers, seen);
        assert_eq!(
            headers,
            map(&[
                ("via", "1.0 fred, 1.1 ben, 1.1 outrigger"),
                ("cookie", "a=1; b=2")
            ])
        );
    }
}
