//! What `registry_name` means to a DNS registry: `host:port`, or `_service._proto.name` for SRV
//! records. Pure.

use std::fmt;
use std::sync::Arc;

/// A name to be resolved; without the dot at its end, lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsName {
    /// A and AAAA records of a host; the port is ours.
    Host {
        /// A name or an IP literal without brackets.
        host: Arc<str>,
        /// Of every address.
        port: u16,
    },
    /// SRV records, which carry ports and weights.
    Service {
        /// With its underscores.
        name: Arc<str>,
    },
}

/// Why a text is neither.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {help}")]
pub struct DnsNameError {
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub help: String,
}

impl DnsName {
    /// Reads a `registry_name`.
    ///
    /// # Errors
    /// [`DnsNameError`] tells what is missing.
    pub fn parse(text: &str) -> Result<Self, DnsNameError> {
        if let Some(name) = service(text) {
            return Ok(Self::Service { name });
        }
        let wrong = |what: String, host: &str| DnsNameError {
            what,
            help: format!(
                "write `registry_name: \"{host}:8080\"`, or `registry_name: _http._tcp.{host}` \
                 where there are SRV records"
            ),
        };
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.starts_with('[') => (host, port),
            Some(_) | None => {
                let what = format!("DNS does not tell the port of `{text}`");
                return Err(wrong(what, text.trim_end_matches('.')));
            }
        };
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        match port.parse() {
            Ok(port) if port > 0 && (is_name(bare) || bare.parse::<std::net::IpAddr>().is_ok()) => {
                Ok(Self::Host {
                    host: bare.into(),
                    port,
                })
            }
            Ok(_) | Err(_) => {
                let what = format!("`{text}` is neither `host:port` nor the name of SRV records");
                Err(wrong(what, "orders.internal"))
            }
        }
    }
}

impl fmt::Display for DnsName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { host, port } => write!(out, "{host}:{port}"),
            Self::Service { name } => out.write_str(name),
        }
    }
}

/// `_service._proto.name`.
fn service(text: &str) -> Option<Arc<str>> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let mut labels = name.splitn(3, '.');
    let (service, proto, rest) = (labels.next()?, labels.next()?, labels.next()?);
    let marked = |label: &str| label.len() > 1 && label.starts_with('_');
    (marked(service) && marked(proto) && is_name(name) && !rest.is_empty())
        .then(|| name.to_ascii_lowercase().into())
}

/// Labels of 1 to 63 letters, digits, `-` and `_`.
fn is_name(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_services() {
        let parse = |text: &str| DnsName::parse(text).map(|name| name.to_string());
        for (text, want) in [
            ("orders.internal:8080", "orders.internal:8080"),
            ("Orders.Internal.:80", "orders.internal:80"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[::1]:80", "::1:80"),
            ("_http._tcp.orders.internal.", "_http._tcp.orders.internal"),
            ("_grpc._TCP.x", "_grpc._tcp.x"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(want), "{text}");
        }
        for bad in [
            "orders",
            "orders:",
            "orders:0",
            "a b:80",
            "_http._tcp",
            "_http.orders",
            "a..b:80",
            "::1",
            ":80",
            "orders:http",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let error = DnsName::parse("orders").unwrap_err().to_string();
        assert!(
            error.contains("does not tell the port of `orders`"),
            "{error}"
        );
        assert!(
            error.contains("`registry_name: \"orders:8080\"`"),
            "{error}"
        );
    }
}
