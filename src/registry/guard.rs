//! Keeps browsers from writing: a page on any site can make its visitor's browser send requests to a
//! loopback port. Browsers mark such requests by `Origin` or `Sec-Fetch-Site`, and a name that was
//! pointed at this machine shows in `Host`. No stock registry client sends the first two.

use std::net::IpAddr;

use http::header::{HOST, HeaderMap, ORIGIN};

/// Why a write is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Blocked {
    #[error("writes from a browser are refused (header {0})")]
    Browser(&'static str),
    #[error("writes under a foreign host name are refused on a loopback address")]
    Host,
}

/// Whether a write with these headers may pass; `local` is the address it came in on.
pub(super) fn check(headers: &HeaderMap, local: Option<IpAddr>) -> Result<(), Blocked> {
    if headers.contains_key(ORIGIN) {
        return Err(Blocked::Browser("Origin"));
    }
    if headers.contains_key("sec-fetch-site") {
        return Err(Blocked::Browser("Sec-Fetch-Site"));
    }
    let loopback = local.is_some_and(|ip| ip.to_canonical().is_loopback());
    let good = |value: &http::HeaderValue| value.to_str().is_ok_and(is_own);
    if loopback && !headers.get_all(HOST).iter().all(good) {
        return Err(Blocked::Host);
    }
    Ok(())
}

/// An IP literal cannot be pointed elsewhere; `localhost` is ours by definition.
fn is_own(host: &str) -> bool {
    let bare = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((literal, _)) => literal,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = bare.to_ascii_lowercase();
    name.parse::<IpAddr>().is_ok() || name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_names_pass_on_loopback() {
        for good in [
            "localhost",
            "LOCALHOST:15005",
            "127.0.0.1:15005",
            "[::1]:80",
            "10.0.0.1",
        ] {
            assert!(is_own(good), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:15005",
            "127.0.0.1.evil.example",
            "localhost.evil",
            "",
        ] {
            assert!(!is_own(bad), "{bad}");
        }
        let mut headers = HeaderMap::new();
        let loopback = Some("127.0.0.1".parse().unwrap());
        assert_eq!(check(&headers, loopback), Ok(()));
        headers.insert(HOST, "registry.internal".parse().unwrap());
        assert_eq!(check(&headers, loopback), Err(Blocked::Host));
        assert_eq!(check(&headers, Some("10.0.0.9".parse().unwrap())), Ok(()));
        headers.insert(ORIGIN, "null".parse().unwrap());
        assert!(check(&headers, Some("10.0.0.9".parse().unwrap())).is_err());
    }
}
