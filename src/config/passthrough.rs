//! `passthrough.hosts`: hosts outside any registry that the app may reach. Pure.

use std::sync::Arc;

use super::policy_select::glob_matches;

/// The registry that resolves them: one called so, when it is written, else the system's DNS.
pub const PASSTHROUGH_REGISTRY: &str = "passthrough";

/// The port of a host without one.
const PORT: u16 = 80;

/// Globs of hosts, lower case, with or without a port. Everything else stays out of reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passthrough {
    /// In the order of the file.
    pub hosts: Vec<Arc<str>>,
}

impl Passthrough {
    /// `host:port` of a request's authority, when it may be reached. It is also the upstream's name.
    pub fn target(&self, authority: &str) -> Option<Arc<str>> {
        if self.hosts.is_empty() {
            return None;
        }
        let text = authority.to_ascii_lowercase();
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port),
            Some(_) | None => (text.as_str(), ""),
        };
        let host = host.strip_suffix('.').unwrap_or(host);
        let port = if port.is_empty() {
            PORT
        } else {
            port.parse().ok().filter(|port| *port > 0)?
        };
        let target = format!("{host}:{port}");
        let admitted = |glob: &Arc<str>| {
            let with_port = glob.rsplit_once(':').is_some_and(|(_, p)| !p.contains(']'));
            glob_matches(glob, if with_port { &target } else { host })
        };
        self.hosts
            .iter()
            .any(admitted)
            .then(|| Arc::from(target.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed() {
        let hosts = [
            "api.example.com",
            "*.internal",
            "pay.example.com:8443",
            "[fd00::1]",
        ];
        let list = Passthrough {
            hosts: hosts.into_iter().map(Arc::from).collect(),
        };
        for (authority, want) in [
            ("api.example.com", Some("api.example.com:80")),
            ("API.example.com.", Some("api.example.com:80")),
            ("api.example.com:9090", Some("api.example.com:9090")),
            ("api.example.com:", Some("api.example.com:80")),
            ("a.b.internal:81", Some("a.b.internal:81")),
            ("pay.example.com:8443", Some("pay.example.com:8443")),
            ("[fd00::1]", Some("[fd00::1]:80")),
            ("[fd00::1]:81", Some("[fd00::1]:81")),
            ("pay.example.com", None),
            ("pay.example.com:80", None),
            ("internal", None),
            ("example.com", None),
            ("xapi.example.com", None),
            ("api.example.com.evil.example", None),
            ("api.example.com:0", None),
            ("api.example.com:99999", None),
        ] {
            assert_eq!(list.target(authority).as_deref(), want, "{authority}");
        }
        assert_eq!(Passthrough::default().target("api.example.com"), None);
    }
}
