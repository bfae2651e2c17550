//! `host:port`, the identity of an endpoint inside a service. The host is an IP literal (almost
//! always) or a name that is resolved when a connection is opened.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// An endpoint's address: normalised text (`10.0.0.1:80`, `[::1]:80`, `host.internal:80`), compared
/// and ordered by its bytes. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(Arc<str>);

/// Why a text is no address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AddressError {
    /// No `:port`, or one that is not 1-65535.
    #[error("`{0}` needs a port from 1 to 65535, as in `10.0.0.1:8080` or `[::1]:8080`")]
    Port(String),
    /// The host is empty or has a character that neither a name nor an IP address can have.
    #[error("`{0}` has no usable host name or IP address before the port")]
    Host(String),
}

impl Address {
    /// From `host:port`, `ip:port` or `[ipv6]:port`.
    ///
    /// # Errors
    /// [`AddressError`] tells which part is wrong.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if let Ok(socket) = text.parse::<SocketAddr>() {
            if socket.port() == 0 {
                return Err(AddressError::Port(text.to_owned()));
            }
            return Ok(Self::from(socket));
        }
        let (host, port) =
            text.rsplit_once(':').ok_or_else(|| AddressError::Port(text.to_owned()))?;
        let port: u16 = port.parse().map_err(|_| AddressError::Port(text.to_owned()))?;
        Self::from_parts(host, port)
    }

    /// From a host (IP literal with or without brackets, or a name) and a port.
    ///
    /// # Errors
    /// [`AddressError`] tells which part is wrong.
    pub fn from_parts(host: &str, port: u16) -> Result<Self, AddressError> {
        if port == 0 {
            return Err(AddressError::Port(format!("{host}:{port}")));
        }
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Ok(Self::from(SocketAddr::new(ip, port)));
        }
        let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if host.is_empty() || host.len() > 253 || !host.bytes().all(good) {
            return Err(AddressError::Host(format!("{host}:{port}")));
        }
        Ok(Self(format!("{}:{port}", host.to_ascii_lowercase()).into()))
    }

    /// The normalised text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The socket address, when the host is an IP literal.
    pub fn socket(&self) -> Option<SocketAddr> {
        self.0.parse().ok()
    }
}

impl From<SocketAddr> for Address {
    fn from(socket: SocketAddr) -> Self {
        Self(socket.to_string().into())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_normalises() {
        for (input, want) in [
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[::1]:8080", "[::1]:8080"),
            ("Orders.Internal:80", "orders.internal:80"),
        ] {
            assert_eq!(Address::parse(input).unwrap().as_str(), want);
        }
        assert_eq!(Address::from_parts("::1", 9).unwrap().as_str(), "[::1]:9");
        for bad in ["", "a", "a:", ":80", "a:0", "a:70000", "a b:80", "::1:x"] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }
}
