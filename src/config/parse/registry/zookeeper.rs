//! `kind: zookeeper`.

use std::time::Duration;

use super::servers;
use crate::config::parse::reader::{Field, Map};
use crate::config::parse::record::{HOST, Shape};
use crate::config::parse::value::Span;
use crate::config::types::{Zookeeper, ZookeeperLayout};

/// The port of a server that names none.
const PORT: u16 = 2181;

pub(super) fn zookeeper(name: &str, field: &Field<'_>, map: &Map<'_>) -> Zookeeper {
    let layouts = [
        ("interface", ZookeeperLayout::Interface),
        ("application", ZookeeperLayout::Application),
        ("both", ZookeeperLayout::Both),
    ];
    map.declare("servers", || HOST.one_or_more().required());
    map.declare("root", || Shape::Text.default("dubbo"));
    let root = map.text("root");
    let example = "write `servers: [\"zookeeper-1:2181\"]`, say";
    Zookeeper {
        servers: servers(name, field, map, PORT, example),
        root: root.map_or_else(|| "dubbo".to_owned(), |r| r.trim_matches('/').to_owned()),
        layout: map.choice("layout", ZookeeperLayout::Both, &layouts, &[]),
        session_timeout: map.duration("session_timeout", Duration::from_secs(60), Span::POSITIVE),
    }
}
