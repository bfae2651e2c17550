//! `kind: consul`.

use std::time::Duration;

use super::{text, texts, url};
use crate::config::parse::reader::Map;
use crate::config::parse::record::Shape;
use crate::config::parse::value::Span;
use crate::config::types::{Consistency, Consul};

/// Consul allows no longer wait.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

pub(super) fn consul(map: &Map<'_>) -> Consul {
    let modes = [
        ("stale", Consistency::Stale),
        ("default", Consistency::Default),
        ("consistent", Consistency::Consistent),
    ];
    map.declare("address", || Shape::Text.default("127.0.0.1:8500"));
    let scheme = if map.field("tls").is_some() {
        "https"
    } else {
        "http"
    };
    let wait = Span {
        most: LONGEST_WAIT,
        ..Span::POSITIVE
    };
    Consul {
        address: map
            .field("address")
            .and_then(|field| url(&field, scheme))
            .unwrap_or_else(|| format!("{scheme}://127.0.0.1:8500")),
        token_file: map.path("token_file"),
        datacenter: text(map, "datacenter"),
        tags: texts(map, "tags"),
        filter: text(map, "filter"),
        consistency: map.choice("consistency", Consistency::Stale, &modes, &[]),
        tagged_address: text(map, "tagged_address"),
        wait: map.duration("wait", Duration::from_secs(300), wait),
    }
}
