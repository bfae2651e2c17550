//! Which service a request means: the four rules of addressing, in fixed order, over one immutable
//! table. No allocation for a request that finds its route, no lock.
//! Next: `router/table.rs`, `router/authority.rs`; the caller is `listener/http.rs`.

mod authority;
mod rule;
mod table;

pub use authority::{Authority, AuthorityError, is_loopback};
pub use rule::RouteIndex;
pub use table::{Conflict, Route, RouteTable, Settings, TableBuilder, alias};

use std::sync::Arc;

use http::{HeaderName, request};

/// Rule 1's header; stripped before forwarding.
pub const UPSTREAM_HEADER: HeaderName = HeaderName::from_static("x-outrigger-upstream");

/// Which rule found the route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The service's own port.
    Port,
    /// `x-outrigger-upstream`.
    Header,
    /// `:authority`, an absolute target or Host equals a listed host.
    Host,
    /// The same, by the service's name.
    HostName,
    /// The host is one of `passthrough.hosts`.
    Passthrough,
    /// The first path segment under a loopback Host.
    PathPrefix,
}

impl Rule {
    /// What the rule looked for, where it found nothing.
    pub const fn would_be(self) -> &'static str {
        match self {
            Self::Port => "the service's own port",
            Self::Header => "rule 1: header x-outrigger-upstream names the service",
            Self::Host | Self::HostName | Self::Passthrough => "rule 2: the host names the service",
            Self::PathPrefix => "rule 3: the first path segment names the service",
        }
    }

    /// For people.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Port => "the service's own port",
            Self::Header => "rule 1: header x-outrigger-upstream",
            Self::Host => "rule 2: the host is listed under services.*.hosts",
            Self::HostName => "rule 2: the host is the service's name",
            Self::Passthrough => "rule 2: the host is one of passthrough.hosts",
            Self::PathPrefix => "rule 3: loopback host, first path segment is the service",
        }
    }
}

/// A found route.
#[derive(Clone, Debug)]
pub struct Found {
    /// The route.
    pub route: Arc<Route>,
    /// Which rule found it.
    pub rule: Rule,
    /// Bytes to strip from the path: `/orders` of `/orders/x`.
    pub strip: usize,
}

/// No route in the table: the name that was looked for, which a registry may know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The name, as a service name (port and suffix stripped), empty when there is none.
    pub name: String,
    /// The rule that would have applied.
    pub rule: Rule,
    /// As in [`Found::strip`].
    pub strip: usize,
    /// The host that was asked for, with its port, where it could be that of another machine.
    pub host: Option<String>,
}

/// Applies the rules. `authority` is that of the request, checked by the caller.
///
/// # Errors
/// [`Missed`] when the table has no such name.
pub fn route(
    table: &RouteTable,
    parts: &request::Parts,
    authority: Option<&Authority<'_>>,
) -> Result<Found, Missed> {
    if let Some(value) = parts.headers.get(UPSTREAM_HEADER) {
        let name = value.to_str().unwrap_or_default();
        return by_name(table, name, Rule::Header, 0);
    }
    route_unnamed(table, parts, authority)
}

/// [`route`] for a request that is known to have no [`UPSTREAM_HEADER`].
///
/// # Errors
/// [`Missed`] when the table has no such name.
pub fn route_unnamed(
    table: &RouteTable,
    parts: &request::Parts,
    authority: Option<&Authority<'_>>,
) -> Result<Found, Missed> {
    if let Some(authority) = authority.filter(|a| !a.is_loopback()) {
        if let Some(route) = table.by_host(authority) {
            return Ok(Found {
                route,
                rule: Rule::Host,
                strip: 0,
            });
        }
        let name = service_part(authority.host());
        return by_name(table, name, Rule::HostName, 0).map_err(|missed| Missed {
            host: Some(authority.text().to_owned()),
            ..missed
        });
    }
    let path = parts.uri.path();
    let rest = path.strip_prefix('/').unwrap_or_default();
    let segment = rest.split('/').next().unwrap_or_default();
    let strip = if segment.is_empty() {
        0
    } else {
        segment.len() + 1
    };
    by_name(table, segment, Rule::PathPrefix, strip)
}

fn by_name(table: &RouteTable, name: &str, rule: Rule, strip: usize) -> Result<Found, Missed> {
    if let Some(route) = table.by_name(name) {
        return Ok(Found { route, rule, strip });
    }
    let decoded = percent_encoding::percent_decode_str(name).decode_utf8_lossy();
    if decoded != name
        && rule == Rule::PathPrefix
        && let Some(route) = table.by_name(&decoded)
    {
        return Ok(Found { route, rule, strip });
    }
    Err(Missed {
        name: decoded.into_owned(),
        rule,
        strip,
        host: None,
    })
}

/// A host without a trailing `.localhost` or `.outrigger`.
fn service_part(host: &str) -> &str {
    let host = host.strip_suffix('.').unwrap_or(host);
    for suffix in [".localhost", ".outrigger"] {
        if let Some(at) = host.len().checked_sub(suffix.len())
            && let Some((name, tail)) = host.split_at_checked(at)
            && tail.eq_ignore_ascii_case(suffix)
        {
            return name;
        }
    }
    host
}

#[cfg(test)]
mod tests;
