//! Addresses to listen on.

use std::net::SocketAddr;

use super::reader::{Field, Map};
use super::record::{LISTEN, Shape};
use super::value::{Wrong, is_off};
use crate::config::diagnostic::Code;
use crate::config::types::Listen;

/// `IP:PORT`, `localhost:PORT` or `unix:PATH`.
fn listen(text: &str) -> Result<Listen, Wrong> {
    let wrong = |what: &str, help: String| Err((format!("`{text}` {what}"), help));
    if let Some(path) = text.strip_prefix("unix:") {
        return match path.strip_prefix("//").unwrap_or(path) {
            "" => wrong(
                "has no path",
                "write it like `unix:/run/outrigger/data.sock`".to_owned(),
            ),
            path => Ok(Listen::Unix(path.into())),
        };
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(Listen::Tcp(address));
    }
    if text.parse::<u16>().is_ok() {
        return wrong("is only a port", format!("write `localhost:{text}`"));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return wrong("has no port", format!("write it with one: `{text}:PORT`"));
    };
    let Ok(number) = port.parse::<u16>() else {
        return wrong("has no usable port", "a number from 0 to 65535".to_owned());
    };
    match host {
        "localhost" => Ok(Listen::Localhost(number)),
        "" | "*" => wrong(
            "has no host",
            format!("write `localhost:{port}`, or `0.0.0.0:{port}` for all"),
        ),
        _ if host.contains(':') => wrong(
            "is no address",
            format!("IPv6 goes in brackets: `[{host}]:{port}`"),
        ),
        _ => wrong(
            "is no address to listen on",
            "an IP address with port, `localhost:PORT` or `unix:PATH`".to_owned(),
        ),
    }
}

impl Field<'_> {
    /// An address to listen on.
    pub(crate) fn listen(&self) -> Option<Listen> {
        let listen = self.convert(Code::ADDRESS, listen)?;
        Some(match listen {
            Listen::Unix(path) => Listen::Unix(self.context.folder.join(path)),
            Listen::Tcp(_) | Listen::Localhost(_) => listen,
        })
    }
}

impl Map<'_> {
    /// An address, or the word `word` for `None`.
    pub(crate) fn listen_or(
        &self,
        key: &'static str,
        word: &'static str,
        default: Option<Listen>,
    ) -> Option<Listen> {
        self.declare(key, || {
            let default = default
                .as_ref()
                .map_or_else(|| word.to_owned(), ToString::to_string);
            Shape::word(word).or(LISTEN).default(default)
        });
        let Some(field) = self.field(key) else {
            return default;
        };
        match field.text() {
            Some(text) if text == word => None,
            Some(text) if word == "none" && is_off(text) => {
                let what = format!("`{text}` is no address");
                field.wrong(Code::ADDRESS, &what, format!("did you mean `{word}`?"));
                default
            }
            Some(_) => field.listen().or(default),
            None => default,
        }
    }
}

/// Whether only this machine can connect.
pub(crate) fn is_local(listen: &Listen) -> bool {
    match listen {
        Listen::Tcp(address) => address.ip().to_canonical().is_loopback(),
        Listen::Localhost(_) | Listen::Unix(_) => true,
    }
}

/// Whether both cannot be bound. Port 0 never collides.
pub(crate) fn collide(a: &Listen, b: &Listen) -> bool {
    match (a, b) {
        (Listen::Unix(a), Listen::Unix(b)) => a == b,
        (Listen::Unix(_), Listen::Tcp(_) | Listen::Localhost(_))
        | (Listen::Tcp(_) | Listen::Localhost(_), Listen::Unix(_)) => false,
        (Listen::Localhost(a), Listen::Localhost(b)) => a == b && *a != 0,
        (Listen::Localhost(port), Listen::Tcp(tcp))
        | (Listen::Tcp(tcp), Listen::Localhost(port)) => {
            *port != 0
                && *port == tcp.port()
                && (tcp.ip().is_unspecified() || is_v4_or_v6_loopback(tcp))
        }
        (Listen::Tcp(a), Listen::Tcp(b)) => {
            let same = a.ip() == b.ip();
            let all = (a.ip().is_unspecified() || b.ip().is_unspecified())
                && (a.is_ipv4() == b.is_ipv4()
                    || a.is_ipv6() && a.ip().is_unspecified()
                    || b.is_ipv6() && b.ip().is_unspecified());
            a.port() == b.port() && a.port() != 0 && (same || all)
        }
    }
}

/// The two addresses that `localhost` stands for; 127.0.0.2 is another one.
fn is_v4_or_v6_loopback(address: &SocketAddr) -> bool {
    let ip = address.ip();
    ip == std::net::Ipv4Addr::LOCALHOST || ip == std::net::Ipv6Addr::LOCALHOST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for text in [
            "127.0.0.1:0",
            "[::]:15003",
            "localhost:15001",
            "unix:/run/x.sock",
        ] {
            assert_eq!(listen(text).unwrap().to_string(), text);
        }
        for (text, part) in [
            ("15001", "`localhost:15001`"),
            (":15001", "0.0.0.0:15001"),
            ("::1:15001", "brackets"),
            ("example.org:80", "unix:PATH"),
            ("localhost", "localhost:PORT"),
            ("localhost:70000", "65535"),
            ("unix:", "unix:/run"),
        ] {
            assert!(listen(text).unwrap_err().1.contains(part), "{text}");
        }
    }

    #[test]
    fn collisions() {
        let at = |text: &str| listen(text).unwrap();
        for (a, b, want) in [
            ("localhost:1", "127.0.0.1:1", true),
            ("localhost:1", "127.0.0.2:1", false),
            ("0.0.0.0:1", "127.0.0.1:1", true),
            ("[::]:1", "127.0.0.1:1", true),
            ("0.0.0.0:1", "[::1]:1", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("unix:a", "unix:a", true),
        ] {
            assert_eq!(collide(&at(a), &at(b)), want, "{a} {b}");
        }
    }
}
