//! `registries.NAME`.

use std::sync::Arc;
use std::time::Duration;

use super::reader::{Field, Map};
use super::record::Shape;
use super::value::{Span, words};
use crate::config::diagnostic::Code;
use crate::config::passthrough::PASSTHROUGH_REGISTRY;
use crate::config::types::{
    Embedded, EmptyPolicy, Listen, OnEmpty, Registry, RegistryKind, RegistryTls, Secret,
};
use crate::endpoint::Address;

mod consul;
mod dns;
mod eureka;
mod kubernetes;
mod nacos;
mod zookeeper;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Embedded,
    File,
    Nacos,
    Eureka,
    Consul,
    Kubernetes,
    Dns,
    Zookeeper,
}

const KINDS: [(&str, Kind); 8] = [
    ("embedded", Kind::Embedded),
    ("file", Kind::File),
    ("nacos", Kind::Nacos),
    ("eureka", Kind::Eureka),
    ("consul", Kind::Consul),
    ("kubernetes", Kind::Kubernetes),
    ("dns", Kind::Dns),
    ("zookeeper", Kind::Zookeeper),
];

/// One registry; nothing when its kind is missing or unknown.
pub(crate) fn registry(name: &str, field: &Field<'_>) -> Option<Registry> {
    let map = field.map();
    map.declare("kind", || words(&KINDS).required());
    let Some(kind) = map.field("kind") else {
        let message = format!("registry `{name}` has no `kind`");
        let help = "write `kind: embedded`, `kind: nacos` or `kind: consul`, say";
        field
            .context
            .report(Code::MISSING, &field.key, message, help);
        return None;
    };
    let kind = kind.word(&KINDS, &[])?;
    let on_empty = [
        ("hold", OnEmpty::Hold),
        ("obey", OnEmpty::Obey),
        ("never", OnEmpty::Never),
    ];
    let default = match kind {
        Kind::Nacos | Kind::Eureka | Kind::Consul | Kind::Dns | Kind::Zookeeper => OnEmpty::Hold,
        Kind::Embedded | Kind::File | Kind::Kubernetes => OnEmpty::Obey,
    };
    let empty = EmptyPolicy {
        on_empty: map.choice("on_empty", default, &on_empty, &[]),
        grace: map.duration("empty_grace", Duration::from_secs(30), Span::ZERO_OR_MORE),
        answers: map.integer("empty_answers", 3, &(1..=1000)),
        shrink_percent: map.whole_percent("shrink_percent", 50),
    };
    let max_in_flight = map.integer("max_in_flight", 8, &(1..=1024));
    let timeout = map.duration("timeout", Duration::from_secs(5), Span::POSITIVE);
    let kind = match kind {
        Kind::Embedded => Some(RegistryKind::Embedded(embedded(&map))),
        Kind::File => {
            map.declare("path", || Shape::Path.required());
            let path = map.path("path");
            if map.field("path").is_none() {
                missing(field, name, "path", "write `path: ./endpoints.yaml`, say");
            }
            path.map(|path| RegistryKind::File { path })
        }
        Kind::Nacos => Some(RegistryKind::Nacos(nacos::nacos(name, field, &map))),
        Kind::Eureka => Some(RegistryKind::Eureka(eureka::eureka(name, field, &map))),
        Kind::Consul => Some(RegistryKind::Consul(consul::consul(&map))),
        Kind::Kubernetes => Some(RegistryKind::Kubernetes(kubernetes::kubernetes(&map))),
        Kind::Dns => Some(RegistryKind::Dns(dns::dns(&map))),
        Kind::Zookeeper => Some(RegistryKind::Zookeeper(zookeeper::zookeeper(
            name, field, &map,
        ))),
    };
    let tls = tls(&map);
    let plain = RegistryTls {
        enabled: tls.enabled,
        ..RegistryTls::default()
    };
    if let (Some(RegistryKind::Dns(_) | RegistryKind::Zookeeper(_)), Some(field)) =
        (&kind, map.field("tls"))
        && tls != plain
    {
        let what = format!("registry `{name}` cannot be spoken to by TLS");
        field.report(Code::NOT_YET, what, "remove it for now");
    }
    map.finish();
    Some(Registry {
        name: Arc::from(name),
        kind: kind?,
        empty,
        max_in_flight,
        timeout,
        tls,
    })
}

/// `tls`.
fn tls(parent: &Map<'_>) -> RegistryTls {
    parent.declare("tls", || Shape::Map.optional());
    let enabled = parent.field("tls").is_some();
    let map = parent.child("tls");
    map.declare("server_name", || Shape::Text.optional());
    let tls = RegistryTls {
        enabled,
        ca_file: map.path("ca_file"),
        cert_file: map.path("cert_file"),
        key_file: map.path("key_file"),
        server_name: map.text("server_name").map(|name| name.to_string()),
        insecure: map.boolean("insecure", false),
    };
    if tls.cert_file.is_some() != tls.key_file.is_some()
        && let Some(field) = parent.field("tls")
    {
        let what = "`cert_file` and `key_file` belong together";
        field.report(Code::MISSING, what, "write both, or neither");
    }
    map.finish();
    tls
}

/// The URL of a server without a `/` at its end. `default` is put before what has no scheme.
fn url(field: &Field<'_>, default: &str) -> Option<String> {
    field.convert(Code::ADDRESS, |text| {
        let help = "write `http://host:port` or `https://host:port`".to_owned();
        let authority = text.split_once("://").map_or(text, |(_, rest)| rest);
        if authority.split('/').next().is_some_and(|a| a.contains('@')) {
            let what = "user and password do not belong in the URL".to_owned();
            return Err((what, "use `username` and `password_file`".to_owned()));
        }
        let full = if text.contains("://") {
            text.to_owned()
        } else {
            format!("{default}://{text}")
        };
        let uri: http::Uri = match full.parse() {
            Ok(uri) => uri,
            Err(error) => return Err((format!("`{text}` is no URL: {error}"), help)),
        };
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err((format!("`{text}` is neither http nor https"), help));
        }
        let host = uri.host().unwrap_or_default();
        if host.is_empty() || uri.query().is_some() {
            return Err((format!("`{text}` is not the URL of a server"), help));
        }
        Ok(full.trim_end_matches('/').to_owned())
    })
}

/// A password or token written in the file itself loads with a warning.
fn secret(map: &Map<'_>, key: &'static str, help: &str) -> Option<Secret> {
    map.declare(key, || Shape::Secret.optional());
    let field = map.field(key)?;
    if field.is_inline() {
        let message = format!("`{}` stands in the file itself", field.path);
        field
            .context
            .report(Code::INLINE_SECRET, &field.key, message, help);
    }
    field.text().map(|text| Secret(text.to_owned()))
}

/// A text, where written.
fn text(map: &Map<'_>, key: &'static str) -> Option<String> {
    map.declare(key, || Shape::Text.optional());
    map.text(key).map(|text| text.to_string())
}

/// A list of texts, empty where none is written.
fn texts(map: &Map<'_>, key: &'static str) -> Vec<String> {
    map.declare(key, || Shape::Text.list().default(Vec::<String>::new()));
    map.texts(key).unwrap_or_default()
}

/// `servers` as `host:port`; at least one, or an error.
fn servers(name: &str, field: &Field<'_>, map: &Map<'_>, port: u16, example: &str) -> Vec<String> {
    let written = map
        .field("servers")
        .and_then(|servers| servers.one_or_more());
    if written.as_ref().is_none_or(Vec::is_empty) {
        missing(field, name, "servers", example);
    }
    let written = written.unwrap_or_default();
    written
        .iter()
        .filter_map(|item| server(item, port))
        .collect()
}

fn missing(field: &Field<'_>, name: &str, key: &str, help: &str) {
    let message = format!("registry `{name}` has no `{key}`");
    field
        .context
        .report(Code::MISSING, &field.key, message, help);
}

/// The embedded registry.
fn embedded(map: &Map<'_>) -> Embedded {
    let limits = map.child("limits");
    let (max_services, max_instances, max_metadata_bytes, max_connections) = (
        limits.integer("max_services", 10_000, &(1..=10_000_000)),
        limits.integer("max_instances", 100_000, &(1..=10_000_000)),
        limits.integer("max_metadata_bytes", 4096, &(0..=1024 * 1024)),
        limits.integer("max_connections", 4096, &(1..=1_000_000)),
    );
    limits.finish();
    let base = Embedded::builtin();
    Embedded {
        listen: map.listen_or("listen", "none", base.listen),
        data: map.path("data"),
        unhealthy_after: map.duration("unhealthy_after", base.unhealthy_after, Span::POSITIVE),
        remove_after: map.duration("remove_after", base.remove_after, Span::POSITIVE),
        beat_interval: map.duration("beat_interval", base.beat_interval, Span::POSITIVE),
        max_services,
        max_instances,
        max_metadata_bytes,
        max_connections,
        users_file: map.path("users_file"),
    }
}

/// `host:port`; `port` where none is written.
fn server(field: &Field<'_>, port: u16) -> Option<String> {
    field.convert(Code::ADDRESS, |text| {
        let help = format!("write `host:port`, as in `server-1:{port}`");
        if text.contains('/') {
            return Err((format!("`{text}` is no `host:port`"), help));
        }
        let bare = !text.contains(':') || (text.starts_with('[') && text.ends_with(']'));
        let with_port = if bare {
            format!("{text}:{port}")
        } else {
            text.to_owned()
        };
        match Address::parse(&with_port) {
            Ok(address) => Ok(address.as_str().to_owned()),
            Err(error) => Err((error.to_string(), help)),
        }
    })
}

impl Embedded {
    /// What holds where nothing is written.
    pub(crate) fn builtin() -> Self {
        Self {
            listen: Some(Listen::Tcp(([127, 0, 0, 1], 15005).into())),
            data: None,
            unhealthy_after: Duration::from_secs(15),
            remove_after: Duration::from_secs(30),
            beat_interval: Duration::from_secs(5),
            max_services: 10_000,
            max_instances: 100_000,
            max_metadata_bytes: 4096,
            max_connections: 4096,
            users_file: None,
        }
    }
}

impl Registry {
    /// The system's DNS, for `passthrough.hosts`.
    pub(crate) fn passthrough() -> Self {
        Self {
            name: Arc::from(PASSTHROUGH_REGISTRY),
            kind: RegistryKind::Dns(dns::builtin()),
            empty: EmptyPolicy {
                on_empty: OnEmpty::Hold,
                ..Self::builtin().empty
            },
            ..Self::builtin()
        }
    }

    /// The embedded registry of a start without a file.
    pub(crate) fn builtin() -> Self {
        Self {
            name: Arc::from("embedded"),
            kind: RegistryKind::Embedded(Embedded::builtin()),
            empty: EmptyPolicy {
                on_empty: OnEmpty::Obey,
                grace: Duration::from_secs(30),
                answers: 3,
                shrink_percent: 50,
            },
            max_in_flight: 8,
            timeout: Duration::from_secs(5),
            tls: RegistryTls::default(),
        }
    }
}
