//! `host[:port]` of a request: from an absolute target, `:authority` or Host. Checked once.

use std::net::{IpAddr, Ipv6Addr};

/// A checked authority; borrows from the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority<'a> {
    text: &'a str,
    host: &'a str,
}

/// Not an authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the Host is no host name or address with an optional port")]
pub struct AuthorityError;

impl<'a> Authority<'a> {
    /// Checks a Host value. User information is refused.
    ///
    /// # Errors
    /// [`AuthorityError`] for anything that is not `host`, `host:port`, `[v6]` or `[v6]:port`.
    pub fn parse(text: &'a str) -> Result<Self, AuthorityError> {
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (inside, after) = rest.split_once(']').ok_or(AuthorityError)?;
            inside.parse::<Ipv6Addr>().map_err(|_| AuthorityError)?;
            let port = match after {
                "" => None,
                after => Some(after.strip_prefix(':').ok_or(AuthorityError)?),
            };
            (
                text.split_at_checked(inside.len() + 2)
                    .map_or(text, |(host, _)| host),
                port,
            )
        } else {
            let (host, port) = match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            };
            if host.is_empty() || !host.bytes().all(is_host_byte) {
                return Err(AuthorityError);
            }
            (host, port)
        };
        if port.is_some_and(|p| !p.is_empty() && p.parse::<u16>().is_err())
            || port.is_some_and(|p| !p.bytes().all(|b| b.is_ascii_digit()))
        {
            return Err(AuthorityError);
        }
        Ok(Self { text, host })
    }

    /// As it came, with the port.
    pub const fn text(&self) -> &'a str {
        self.text
    }

    /// Without the port; a v6 literal keeps its brackets.
    pub const fn host(&self) -> &'a str {
        self.host
    }

    /// Whether the host is a loopback name.
    pub fn is_loopback(&self) -> bool {
        is_loopback(self.host)
    }
}

/// `localhost`, 127.0.0.0/8 or `::1`, with or without brackets.
pub fn is_loopback(host: &str) -> bool {
    // Names that begin otherwise need no parsing.
    match host.as_bytes().first() {
        Some(b'l' | b'L') => {
            host.eq_ignore_ascii_case("localhost") || host.eq_ignore_ascii_case("localhost.")
        }
        Some(b'1' | b'[' | b':' | b'0') => {
            let bare = host
                .strip_prefix('[')
                .and_then(|h| h.strip_suffix(']'))
                .unwrap_or(host);
            bare.parse::<IpAddr>()
                .is_ok_and(|ip| ip.to_canonical().is_loopback())
        }
        _ => false,
    }
}

/// Registered names of RFC 3986, without percent-encoding; `@` only so that Nacos' grouped names
/// (`group@@service`) can be addressed is not allowed here: they have an alias.
fn is_host_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric()
        || matches!(
            b,
            b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')'
        )
        || matches!(b, b'*' | b'+' | b',' | b';' | b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        for (text, host) in [
            ("orders", "orders"),
            ("SVC.Local:8080", "SVC.Local"),
            ("[::1]:15001", "[::1]"),
            ("[::1]", "[::1]"),
            ("127.0.0.1:", "127.0.0.1"),
        ] {
            assert_eq!(Authority::parse(text).unwrap().host(), host);
        }
        for bad in [
            "", ":80", "[::1", "a b", "a:b", "a:99999", "u@h", "a/b", "[::1]x", "a:+1",
        ] {
            assert!(Authority::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn loopback_names() {
        for yes in [
            "localhost",
            "LOCALHOST",
            "127.0.0.1",
            "127.9.9.9",
            "[::1]",
            "::1",
        ] {
            assert!(is_loopback(yes), "{yes}");
        }
        for no in [
            "orders.localhost",
            "128.0.0.1",
            "local",
            "1orders",
            "[::2]",
            "10.0.0.1",
        ] {
            assert!(!is_loopback(no), "{no}");
        }
    }
}
