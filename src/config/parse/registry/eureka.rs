//! `kind: eureka`.

use super::{missing, secret, text, url};
use crate::config::parse::reader::{Field, Map};
use crate::config::parse::record::Shape;
use crate::config::types::{Eureka, EurekaMode};

pub(super) fn eureka(name: &str, field: &Field<'_>, map: &Map<'_>) -> Eureka {
    let modes = [
        ("auto", EurekaMode::Auto),
        ("per_app", EurekaMode::PerApp),
        ("delta", EurekaMode::Delta),
    ];
    map.declare("servers", || Shape::Text.one_or_more().required());
    let servers = map.field("servers").and_then(|f| f.one_or_more());
    if servers.as_ref().is_none_or(Vec::is_empty) {
        let help = "write `servers: [\"http://eureka-1:8761/eureka\"]`, say";
        missing(field, name, "servers", help);
    }
    let servers = servers.unwrap_or_default();
    Eureka {
        servers: servers.iter().filter_map(|f| url(f, "http")).collect(),
        mode: map.choice("mode", EurekaMode::Auto, &modes, &[]),
        prefer_ip: map.boolean("prefer_ip", true),
        secure: map.boolean("secure", false),
        username: text(map, "username"),
        password_file: map.path("password_file"),
        password: secret(
            map,
            "password",
            "use `password_file`, or a variable such as `${EUREKA_PASSWORD}`",
        ),
    }
}
