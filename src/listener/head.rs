//! Checks on a parsed request head, once, without allocation: what hyper lets pass and a proxy must
//! not forward. Pure.

use http::header::{CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING};
use http::{Method, Version, request};

use crate::error::{Reason, Refusal};
use crate::router::Authority;
use crate::upstream::headers::{HOP, SEC_FETCH_SITE, Seen, list_has};

/// Settings the checks need.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits<'a> {
    /// Bytes of a request target.
    pub max_target_bytes: usize,
    /// Bytes of an HTTP/1 head; `None` where it cannot have that many. h2 counts its own.
    pub max_header_bytes: Option<usize>,
    /// Refuse browser requests from foreign sites.
    pub browser_guard: bool,
    /// This process's token.
    pub hop: &'a [u8],
}

/// Checks the head. The authority is the one that counts: an absolute target or `:authority` before
/// Host; `None` only for HTTP/1.0 without Host.
///
/// # Errors
/// The refusal to answer with; nothing may go upstream.
pub fn check<'a>(
    parts: &'a request::Parts,
    seen: Seen,
    limits: &HeadLimits<'_>,
) -> Result<Option<Authority<'a>>, Refusal> {
    if parts.method == Method::CONNECT {
        return Err(Refusal::new(
            Reason::Connect,
            "CONNECT is not served: address the service by its name",
        ));
    }
    let target = parts.uri.path_and_query().map_or(0, |p| p.as_str().len());
    if target > limits.max_target_bytes {
        return Err(Refusal::new(
            Reason::TargetTooLong,
            format!(
                "the request target has {target} bytes, {} are allowed",
                limits.max_target_bytes
            ),
        ));
    }
    if let Some(most) = limits.max_header_bytes {
        let bytes = head_bytes(parts);
        if bytes > most {
            return Err(Refusal::new(
                Reason::HeaderTooLarge,
                format!("the request head has {bytes} bytes, {most} are allowed"),
            ));
        }
    }
    let authority = authority(parts)?;
    if seen.transfer_encoding() {
        transfer_encoding(parts)?;
    }
    if seen.expect() && !expect_is_continue(parts) {
        return Err(Refusal::new(
            Reason::Expect,
            "the only expectation that can be met is 100-continue",
        ));
    }
    if seen.own() && list_has_bytes(parts, limits.hop) {
        return Err(Refusal::new(
            Reason::Loop,
            "the request came back to this Outrigger: an instance's address is our own listener",
        ));
    }
    if limits.browser_guard
        && seen.sec_fetch_site()
        && parts
            .headers
            .get(SEC_FETCH_SITE)
            .is_some_and(|v| v.as_bytes() == b"cross-site")
    {
        return Err(Refusal::new(
            Reason::BlockedCrossSite,
            "a web page of a foreign site sent this; set browser_guard: false to allow it",
        ));
    }
    Ok(authority)
}

/// The size of an HTTP/1 head, blanks around values not counted.
fn head_bytes(parts: &request::Parts) -> usize {
    let authority = match (parts.uri.scheme_str(), parts.uri.authority()) {
        (Some(scheme), Some(authority)) => scheme.len() + "://".len() + authority.as_str().len(),
        (None | Some(_), _) => 0,
    };
    let target = authority + parts.uri.path_and_query().map_or(0, |p| p.as_str().len());
    let line = parts.method.as_str().len() + target + "  HTTP/1.1\r\n".len();
    let fields = parts.headers.iter();
    let fields: usize = fields
        .map(|(n, v)| n.as_str().len() + v.len() + ": \r\n".len())
        .sum();
    line + fields + "\r\n".len()
}

fn bad(message: &'static str) -> Refusal {
    Refusal::new(Reason::BadRequest, message)
}

fn authority(parts: &request::Parts) -> Result<Option<Authority<'_>>, Refusal> {
    const MALFORMED: &str = "the Host is no host name or address with an optional port";
    let host = parts.headers.get(HOST);
    let doubled = parts.headers.len() > parts.headers.keys_len();
    if doubled && parts.headers.get_all(HOST).iter().nth(1).is_some() {
        return Err(bad("more than one Host"));
    }
    let host = match host {
        Some(value) => Some(value.to_str().map_err(|_| bad(MALFORMED))?),
        None => None,
    };
    let target = parts.uri.authority().map(http::uri::Authority::as_str);
    let text = match (target, host) {
        (Some(target), Some(host)) if parts.version >= Version::HTTP_2 => {
            if !target.eq_ignore_ascii_case(host) {
                return Err(bad(":authority and host disagree"));
            }
            target
        }
        (Some(target), _) => target,
        (None, Some(host)) => host,
        (None, None) if parts.version == Version::HTTP_10 => return Ok(None),
        (None, None) => return Err(bad("the Host is missing")),
    };
    if parts.version == Version::HTTP_11 && host.is_none() {
        return Err(bad("the Host is missing"));
    }
    if let (Some(host), true) = (host, target.is_some())
        && !host.is_empty()
    {
        Authority::parse(host).map_err(|_| bad(MALFORMED))?;
    }
    Authority::parse(text).map(Some).map_err(|_| bad(MALFORMED))
}

/// hyper makes sure that a request's last coding is `chunked`; anything before it would have to be
/// decoded by us.
fn transfer_encoding(parts: &request::Parts) -> Result<(), Refusal> {
    let mut codings = 0;
    for value in parts.headers.get_all(TRANSFER_ENCODING) {
        for item in value.as_bytes().split(|b| *b == b',') {
            let item = item.trim_ascii();
            codings += 1;
            if !item.eq_ignore_ascii_case(b"chunked") {
                if parts.headers.contains_key(CONTENT_LENGTH) || item.is_empty() {
                    return Err(bad("broken framing: transfer-encoding"));
                }
                return Err(Refusal::new(
                    Reason::TransferCoding,
                    "the only transfer coding that is served is chunked",
                ));
            }
        }
    }
    if codings > 1 {
        return Err(bad("broken framing: chunked twice"));
    }
    Ok(())
}

fn expect_is_continue(parts: &request::Parts) -> bool {
    parts
        .headers
        .get_all(EXPECT)
        .iter()
        .all(|v| v.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

fn list_has_bytes(parts: &request::Parts, token: &[u8]) -> bool {
    std::str::from_utf8(token).is_ok_and(|token| list_has(&parts.headers, &HOP, token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn verdict(build: request::Builder) -> Result<Option<String>, Reason> {
        let (parts, ()) = build.body(()).unwrap().into_parts();
        let seen = Seen::scan(&parts.headers);
        let limits = HeadLimits {
            max_target_bytes: 100,
            max_header_bytes: Some(400),
            browser_guard: true,
            hop: b"cafe0000",
        };
        check(&parts, seen, &limits)
            .map(|a| a.map(|a| a.text().to_owned()))
            .map_err(|refusal| refusal.reason)
    }

    fn get(uri: &str) -> request::Builder {
        Request::get(uri)
    }

    #[test]
    fn authority_rules() {
        assert_eq!(
            verdict(get("/").header("host", "a:1")),
            Ok(Some("a:1".into()))
        );
        assert_eq!(verdict(get("/")), Err(Reason::BadRequest));
        assert_eq!(verdict(get("/").version(Version::HTTP_10)), Ok(None));
        assert_eq!(
            verdict(get("/").header("host", "a").header("host", "a")),
            Err(Reason::BadRequest)
        );
        assert_eq!(
            verdict(get("/").header("host", "[::1")),
            Err(Reason::BadRequest)
        );
        assert_eq!(
            verdict(get("http://b/x").header("host", "a")),
            Ok(Some("b".into()))
        );
        let h2 = || get("http://svc/").version(Version::HTTP_2);
        assert_eq!(verdict(h2()), Ok(Some("svc".into())));
        assert_eq!(
            verdict(h2().header("host", "evil")),
            Err(Reason::BadRequest)
        );
    }

    #[test]
    fn a_head_is_measured_as_it_was_written() {
        let head = "GET http://b/x?y HTTP/1.1\r\nhost: a\r\nx: ";
        let room = 400 - head.len() - "\r\n\r\n".len();
        let build = |value: usize| {
            let request = get("http://b/x?y").header("host", "a");
            verdict(request.header("x", "v".repeat(value)))
        };
        assert_eq!(build(room), Ok(Some("b".into())));
        assert_eq!(build(room + 1), Err(Reason::HeaderTooLarge));
    }

    #[test]
    fn what_is_refused_by_name() {
        let ok = || get("/").header("host", "a");
        assert_eq!(verdict(ok().method("CONNECT")), Err(Reason::Connect));
        assert_eq!(
            verdict(get(&"/".repeat(101)).header("host", "a")),
            Err(Reason::TargetTooLong)
        );
        assert_eq!(
            verdict(ok().header("transfer-encoding", "gzip, chunked")),
            Err(Reason::TransferCoding)
        );
        assert_eq!(
            verdict(ok().header("transfer-encoding", "chunked")),
            Ok(Some("a".into()))
        );
        assert_eq!(verdict(ok().header("expect", "magic")), Err(Reason::Expect));
        assert_eq!(
            verdict(ok().header("expect", "100-Continue")),
            Ok(Some("a".into()))
        );
        assert_eq!(
            verdict(ok().header("sec-fetch-site", "cross-site")),
            Err(Reason::BlockedCrossSite)
        );
        assert_eq!(
            verdict(ok().header("x-outrigger-hop", "beef0000, cafe0000")),
            Err(Reason::Loop)
        );
        assert_eq!(
            verdict(ok().header("x-outrigger-hop", "beef0000")),
            Ok(Some("a".into()))
        );
    }
}
