//! `kind: dns`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::kubernetes::ip_family;
use crate::config::diagnostic::Code;
use crate::config::parse::reader::{Field, Map};
use crate::config::parse::record::HOST;
use crate::config::parse::value::Span;
use crate::config::types::{Dns, IpFamily};

/// The port of a server that names none.
const PORT: u16 = 53;
const MIN_TTL: Duration = Duration::from_secs(5);
const MAX_TTL: Duration = Duration::from_secs(300);

pub(super) fn dns(map: &Map<'_>) -> Dns {
    map.declare("servers", || {
        HOST.one_or_more().default(Vec::<String>::new())
    });
    let servers = map.field("servers").and_then(|f| f.one_or_more());
    let servers = servers.unwrap_or_default();
    let min_ttl = map.duration("min_ttl", MIN_TTL, Span::POSITIVE);
    let max_ttl = map.duration("max_ttl", MAX_TTL, Span::POSITIVE);
    if min_ttl > max_ttl
        && let Some(field) = map.field("max_ttl").or_else(|| map.field("min_ttl"))
    {
        let what = "`min_ttl` is longer than `max_ttl`";
        field.report(Code::DURATION, what, "make `max_ttl` at least `min_ttl`");
    }
    Dns {
        servers: servers.iter().filter_map(server).collect(),
        ip_family: ip_family(map),
        search: map.boolean("search", false),
        tcp: map.boolean("tcp", false),
        min_ttl,
        max_ttl: max_ttl.max(min_ttl),
    }
}

/// The system's DNS, as where nothing is written.
pub(super) fn builtin() -> Dns {
    Dns {
        servers: Vec::new(),
        ip_family: IpFamily::Auto,
        search: false,
        tcp: false,
        min_ttl: MIN_TTL,
        max_ttl: MAX_TTL,
    }
}

/// `ip:port`: a name could not be resolved yet.
fn server(field: &Field<'_>) -> Option<String> {
    field.convert(Code::ADDRESS, |text| {
        let help = "write `ip:port`, as in `10.0.0.2:53`".to_owned();
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        match (text.parse::<SocketAddr>(), bare.parse::<IpAddr>()) {
            (Ok(address), _) => Ok(address.to_string()),
            (Err(_), Ok(ip)) => Ok(SocketAddr::from((ip, PORT)).to_string()),
            (Err(_), Err(_)) => Err((format!("`{text}` is no address of a DNS server"), help)),
        }
    })
}
