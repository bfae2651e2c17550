//! `registries.NAME`.

use std::sync::Arc;
use std::time::Duration;

use super::reader::{Field, Map};
use super::record::{HOST, Shape};
use super::value::{Span, words};
use crate::config::diagnostic::Code;
use crate::config::types::{
    Embedded, EmptyPolicy, Listen, Nacos, OnEmpty, Registry, RegistryKind, Secret,
};
use crate::endpoint::Address;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Embedded,
    File,
    Nacos,
}

/// One registry; nothing when its kind is missing or unknown.
pub(crate) fn registry(name: &str, field: &Field<'_>) -> Option<Registry> {
    let map = field.map();
    let kinds = [
        ("embedded", Kind::Embedded),
        ("file", Kind::File),
        ("nacos", Kind::Nacos),
    ];
    map.declare("kind", || words(&kinds).required());
    let Some(kind) = map.field("kind") else {
        let message = format!("registry `{name}` has no `kind`");
        let help = "write `kind: embedded`, `kind: file` or `kind: nacos`";
        field
            .context
            .report(Code::MISSING, &field.key, message, help);
        return None;
    };
    let kind = kind.word(
        &kinds,
        &["eureka", "consul", "kubernetes", "dns", "zookeeper"],
    )?;
    map.later(&["tls"]);
    let on_empty = [
        ("hold", OnEmpty::Hold),
        ("obey", OnEmpty::Obey),
        ("never", OnEmpty::Never),
    ];
    let default = if kind == Kind::Nacos {
        OnEmpty::Hold
    } else {
        OnEmpty::Obey
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
        Kind::Nacos => Some(RegistryKind::Nacos(nacos(name, field, &map))),
    };
    map.finish();
    Some(Registry {
        name: Arc::from(name),
        kind: kind?,
        empty,
        max_in_flight,
        timeout,
    })
}

fn missing(field: &Field<'_>, name: &str, key: &str, help: &str) {
    let message = format!("registry `{name}` has no `{key}`");
    field
        .context
        .report(Code::MISSING, &field.key, message, help);
}

/// The embedded registry.
fn embedded(map: &Map<'_>) -> Embedded {
    map.later(&["users_file"]);
    let limits = map.child("limits");
    let (max_services, max_instances, max_metadata_bytes) = (
        limits.integer("max_services", 10_000, &(1..=10_000_000)),
        limits.integer("max_instances", 100_000, &(1..=10_000_000)),
        limits.integer("max_metadata_bytes", 4096, &(0..=1024 * 1024)),
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
    }
}

fn nacos(name: &str, field: &Field<'_>, map: &Map<'_>) -> Nacos {
    map.later(&["endpoint", "udp_push"]);
    map.choice("protocol", (), &[("auto", ()), ("http", ())], &["grpc"]);
    map.declare("servers", || HOST.one_or_more().required());
    map.declare("namespace", || Shape::Text.default("public"));
    map.declare("group", || Shape::Text.default("DEFAULT_GROUP"));
    map.declare("clusters", || {
        Shape::Text.list().default(Vec::<String>::new())
    });
    map.declare("username", || Shape::Text.optional());
    map.declare("password", || Shape::Secret.optional());
    let servers = map
        .field("servers")
        .and_then(|servers| servers.one_or_more());
    if servers.as_ref().is_none_or(Vec::is_empty) {
        missing(
            field,
            name,
            "servers",
            "write `servers: [\"nacos-1:8848\"]`, say",
        );
    }
    let password = map.field("password");
    if let Some(password) = password.as_ref().filter(|password| password.is_inline()) {
        let message = format!("`{}` stands in the file itself", password.path);
        let help = "use `password_file`, or a variable such as `${NACOS_PASSWORD}`";
        password
            .context
            .report(Code::INLINE_SECRET, &password.key, message, help);
    }
    Nacos {
        servers: servers
            .unwrap_or_default()
            .iter()
            .filter_map(server)
            .collect(),
        namespace: map.text("namespace").unwrap_or_else(|| Arc::from("public")),
        group: map
            .text("group")
            .unwrap_or_else(|| Arc::from("DEFAULT_GROUP")),
        clusters: map.texts("clusters").unwrap_or_default(),
        username: map
            .field("username")
            .and_then(|f| f.text())
            .map(str::to_owned),
        password_file: map.path("password_file"),
        password: password
            .and_then(|f| f.text())
            .map(|text| Secret(text.to_owned())),
    }
}

/// `host:port`; the port of Nacos where none is written.
fn server(field: &Field<'_>) -> Option<String> {
    field.convert(Code::ADDRESS, |text| {
        let help = "write `host:port`, as in `nacos-1:8848`".to_owned();
        if text.contains('/') {
            return Err((format!("`{text}` is no `host:port`"), help));
        }
        let with_port = if text.contains(':') {
            text.to_owned()
        } else {
            format!("{text}:8848")
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
        }
    }
}

impl Registry {
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
        }
    }
}
