//! Who may use the admin API. A page on any site can make its visitor's browser send requests to a
//! loopback port; a name that was pointed at this machine shows in `Host`, a plain form or image
//! cannot send a header of its own, and what a browser sends for another site says so.

use std::net::IpAddr;
use std::path::Path;

use http::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use http::request::Parts;
use http::{Method, StatusCode};

use super::answer::Fault;
use super::server::Local;

/// The header that every request must have that is not GET or HEAD.
pub(super) const WRITE_HEADER: &str = "x-outrigger-admin";
/// Bytes of a token file.
const MAX_TOKEN: u64 = 4096;

/// Whether a request may pass.
pub(super) fn check(head: &Parts, local: Local, token_file: Option<&Path>) -> Result<(), Fault> {
    own_host(head, local)?;
    if let Some(path) = token_file {
        token(&head.headers, path)?;
    }
    if !is_write(&head.method) {
        return Ok(());
    }
    own_site(&head.headers)?;
    if head.headers.get(WRITE_HEADER).is_none_or(|v| v != "1") {
        return Err(Fault::new(
            StatusCode::FORBIDDEN,
            "header_missing",
            format!("{} needs the header `{WRITE_HEADER}: 1`", head.method),
            "it keeps web pages from writing through a visitor's browser",
        ));
    }
    Ok(())
}

/// Whether a method asks for more than a look.
pub(super) fn is_write(method: &Method) -> bool {
    method != Method::GET && method != Method::HEAD
}

/// A browser's write may come from our own page only: another port of this machine is another site.
fn own_site(headers: &HeaderMap) -> Result<(), Fault> {
    let text = |name: &str| headers.get(name).map(|v| v.to_str().unwrap_or("?"));
    let site = text("sec-fetch-site").is_none_or(|site| matches!(site, "same-origin" | "none"));
    let host = text(HOST.as_str());
    let own = |origin: &str| {
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        authority.is_some_and(|a| host.is_some_and(|host| host.eq_ignore_ascii_case(a)))
    };
    if site && text(ORIGIN.as_str()).is_none_or(own) {
        return Ok(());
    }
    Err(Fault::new(
        StatusCode::FORBIDDEN,
        "cross_site",
        "a web page of another site sent this",
        "writes come from this listener's own page or from no page at all",
    ))
}

fn own_host(head: &Parts, local: Local) -> Result<(), Fault> {
    let Local::Tcp(local) = local else {
        // No browser connects to a Unix socket.
        return Ok(());
    };
    let mut hosts = head.headers.get_all(HOST).iter().peekable();
    let some = hosts.peek().is_some();
    let good = |value: &http::HeaderValue| value.to_str().is_ok_and(|host| is_own(host, local));
    let target = head.uri.authority();
    if some && hosts.all(good) && target.is_none_or(|host| is_own(host.as_str(), local)) {
        return Ok(());
    }
    Err(Fault::new(
        StatusCode::MISDIRECTED_REQUEST,
        "foreign_host",
        "the Host header does not name this listener",
        "use localhost, 127.0.0.1 or the address that is listened on",
    ))
}

/// A loopback name or address, or the address the request came in on.
fn is_own(host: &str, local: Option<IpAddr>) -> bool {
    let bare = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((literal, _)) => literal,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    if let Ok(ip) = bare.parse::<IpAddr>() {
        let ip = ip.to_canonical();
        return ip.is_loopback() || Some(ip) == local.map(|local| local.to_canonical());
    }
    let name = bare.to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

fn token(headers: &HeaderMap, path: &Path) -> Result<(), Fault> {
    let wanted = read(path).map_err(|error| {
        tracing::warn!(%error, path = %path.display(), "admin token file cannot be used");
        Fault::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "token_unreadable",
            "the file of `admin.token_file` cannot be used, so nobody is let in",
            "make it readable and not empty; the log says what is wrong",
        )
    })?;
    let given = headers.get(AUTHORIZATION).map(http::HeaderValue::as_bytes);
    let given = given.and_then(|value| {
        let (scheme, token) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
    });
    if given.is_some_and(|given| same(given.trim_ascii(), wanted.as_bytes())) {
        return Ok(());
    }
    Err(Fault::new(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        "the bearer token is missing or wrong",
        "send `authorization: Bearer TOKEN`; the command line takes --token-file",
    ))
}

fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    file.take(MAX_TOKEN).read_to_string(&mut text)?;
    match text.trim() {
        "" => Err(std::io::Error::other("the file is empty")),
        token => Ok(token.to_owned()),
    }
}

/// Takes as long for a wrong token as for the right one; only its length shows.
fn same(given: &[u8], wanted: &[u8]) -> bool {
    let pairs = given.iter().zip(wanted);
    let differences = pairs.fold(0_u8, |sum, (a, b)| sum | (a ^ b));
    given.len() == wanted.len() && std::hint::black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_names_pass() {
        let local = Some("10.0.0.9".parse().unwrap());
        for good in [
            "localhost",
            "LOCALHOST:15002",
            "app.localhost",
            "127.0.0.1:15002",
            "127.8.9.1",
            "[::1]:15002",
            "10.0.0.9:15002",
            "[::ffff:10.0.0.9]:1",
        ] {
            assert!(is_own(good, local), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:15002",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.8",
            "notlocalhost",
            "",
        ] {
            assert!(!is_own(bad, local), "{bad}");
        }
    }

    #[test]
    fn writes_of_other_sites_are_refused() {
        let passes = |lines: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, "localhost:15002".parse().unwrap());
            for (name, value) in lines {
                headers.insert(*name, value.parse().unwrap());
            }
            own_site(&headers).is_ok()
        };
        assert!(passes(&[]));
        assert!(passes(&[
            ("sec-fetch-site", "same-origin"),
            ("origin", "http://LOCALHOST:15002")
        ]));
        for bad in [
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("origin", "http://localhost:3000"),
            ("origin", "https://evil.example"),
            ("origin", "null"),
        ] {
            assert!(!passes(&[bad]), "{bad:?}");
        }
    }

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same(b"abc", b"abc"));
        assert!(!same(b"ab", b"abc") && !same(b"abd", b"abc") && !same(b"", b"abc"));
    }
}
