//! `kind: kubernetes`.

use super::{text, texts, url};
use crate::config::parse::reader::Map;
use crate::config::parse::record::Shape;
use crate::config::types::{IpFamily, Kubernetes};

pub(super) fn kubernetes(map: &Map<'_>) -> Kubernetes {
    map.declare("api", || Shape::Text.optional());
    Kubernetes {
        api: map.field("api").and_then(|field| url(&field, "https")),
        token_file: map.path("token_file"),
        ca_file: map.path("ca_file"),
        namespaces: texts(map, "namespaces"),
        port_name: text(map, "port_name"),
        ip_family: ip_family(map),
        panic_on_unready: map.boolean("panic_on_unready", false),
    }
}

/// `ip_family`.
pub(super) fn ip_family(map: &Map<'_>) -> IpFamily {
    let families = [
        ("auto", IpFamily::Auto),
        ("v4", IpFamily::V4),
        ("v6", IpFamily::V6),
        ("prefer_v4", IpFamily::PreferV4),
    ];
    map.choice("ip_family", IpFamily::Auto, &families, &[])
}
