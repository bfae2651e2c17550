//! `kind: nacos`.

use std::sync::Arc;

use super::{missing, secret, server, text, texts};
use crate::config::diagnostic::Code;
use crate::config::parse::reader::{Field, Map};
use crate::config::parse::record::{HOST, Shape};
use crate::config::types::{Nacos, NacosProtocol};

/// The port of a server that names none.
const PORT: u16 = 8848;

pub(super) fn nacos(name: &str, field: &Field<'_>, map: &Map<'_>) -> Nacos {
    let protocols = [
        ("auto", NacosProtocol::Auto),
        ("http", NacosProtocol::Http),
        ("grpc", NacosProtocol::Grpc),
    ];
    map.declare("servers", || HOST.one_or_more().optional());
    map.declare("namespace", || Shape::Text.default("public"));
    map.declare("group", || Shape::Text.default("DEFAULT_GROUP"));
    map.declare("endpoint", || Shape::Text.optional());
    let endpoint = map.field("endpoint");
    let endpoint = endpoint.and_then(|field| {
        field.convert(Code::ADDRESS, |text| match text.parse::<http::Uri>() {
            Ok(uri) if uri.scheme_str() == Some("http") && uri.host().is_some() => {
                Ok(text.to_owned())
            }
            Ok(_) | Err(_) => Err((
                format!("`{text}` is no http URL"),
                "write `http://host:8080/nacos/serverlist`, say".to_owned(),
            )),
        })
    });
    let servers = map.field("servers").and_then(|f| f.one_or_more());
    if servers.as_ref().is_none_or(Vec::is_empty) && map.field("endpoint").is_none() {
        let help = "write `servers: [\"nacos-1:8848\"]`, say";
        missing(field, name, "servers", help);
    }
    let servers = servers.unwrap_or_default();
    Nacos {
        servers: servers.iter().filter_map(|f| server(f, PORT)).collect(),
        endpoint,
        protocol: map.choice("protocol", NacosProtocol::Auto, &protocols, &[]),
        udp_push: map.boolean("udp_push", false),
        namespace: map.text("namespace").unwrap_or_else(|| Arc::from("public")),
        group: map
            .text("group")
            .unwrap_or_else(|| Arc::from("DEFAULT_GROUP")),
        clusters: texts(map, "clusters"),
        username: text(map, "username"),
        password_file: map.path("password_file"),
        password: secret(
            map,
            "password",
            "use `password_file`, or a variable such as `${NACOS_PASSWORD}`",
        ),
    }
}
