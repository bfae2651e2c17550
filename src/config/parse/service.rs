//! `defaults` and `services.NAME`. A service is read on top of the defaults: every key that is not
//! written keeps their value, so maps merge deeply and a list replaces.

use std::path::Path;
use std::sync::Arc;

use super::balancing::balancing;
use super::endpoint::{endpoints, list_shape};
use super::fallback::fallback;
use super::health::health_check;
use super::hedge::hedge;
use super::reader::{Context, Field, Map};
use super::record::{HOST, Shape};
use super::resilience::{bulkhead, circuit_breaker};
use super::retry::{pool, retry, timeouts};
use super::route::routes;
use super::value::{Wrong, integer};
use crate::config::diagnostic::{Code, Place, Source};
use crate::config::document::{Node, Value};
use crate::config::environment::Overrides;
use crate::config::suggest;
use crate::config::types::{
    Balancing, Bulkhead, CircuitBreaker, ForwardedHeaders, HostHeader, Pool, Protocol, Retry,
    Service, Shares, Timeouts, Via, WhenAllUnhealthy,
};

/// `defaults`.
pub(crate) fn defaults(map: Map<'_>) -> Service {
    let service = common(&map, &Service::builtin(), false);
    map.finish();
    service
}

/// `services.NAME`.
pub(crate) fn service(name: &str, field: &Field<'_>, defaults: &Service) -> Service {
    if let Err((what, help)) = check_name(name) {
        let message = format!("service name `{name}` {what}");
        field.context.report(Code::NAME, &field.key, message, help);
    }
    let map = field.map();
    map.declare("hosts", || HOST.one_or_more().default(Vec::<String>::new()));
    let hosts = map.field("hosts").and_then(|field| field.one_or_more());
    map.declare("endpoints", || list_shape().optional());
    let static_list = map.field("endpoints").and_then(|field| endpoints(&field));
    map.declare("port", || Shape::Integer(0, 65_535).optional());
    let port = map.field("port").and_then(|field| {
        let port = field.convert(Code::NUMBER, |text| integer(text, &(0..=65_535)))?;
        u16::try_from(port).ok()
    });
    let mut service = Service {
        name: Arc::from(name),
        hosts: hosts.unwrap_or_default().iter().filter_map(host).collect(),
        endpoints: static_list,
        registry_name: map.text("registry_name"),
        port,
        ..common(&map, defaults, true)
    };
    if !service.balancing.load_balancer.hashes() {
        service.balancing.hash = None;
    }
    service.rules = routes(&map, &service);
    map.finish();
    service
}

/// The keys that only a service has.
const OWN: &[&str] = &["hosts", "endpoints", "port", "registry_name", "routes"];

/// Where `key`, found at the top level with the keys `top`, belongs, when it is one of `defaults` or of a service.
pub(crate) fn belongs(key: &str, top: &[&str]) -> Option<String> {
    if OWN.contains(&key) {
        return Some("it belongs under `services.NAME`".to_owned());
    }
    let source = Source {
        name: String::new(),
        text: String::new(),
        is_file: false,
    };
    let nothing = Node {
        value: Value::Null,
        place: Place::whole(&Arc::new(source)),
    };
    let overrides = Overrides::default();
    let context = Context::new(&overrides, Path::new(""));
    let map = Map::root(&context, &nothing, false);
    common(&map, &Service::builtin(), false);
    let (known, later) = map.keys();
    let words = known.iter().chain(&later).chain(OWN).copied();
    if !known.contains(&key) && !later.contains(&key) {
        // A slip of such a key, unless it is nearer to one of the top level.
        let near = suggest::nearest(key, words.chain(top.iter().copied()))?;
        if top.contains(&near) {
            return None;
        }
        let help = format!("did you mean `{near}`? it belongs under `defaults` or `services.NAME`");
        return Some(help);
    }
    if known.contains(&key) {
        Some("it belongs under `defaults` or `services.NAME`".to_owned())
    } else if later.contains(&key) {
        let help = "it belongs under `defaults` or `services.NAME`, and is not supported yet";
        Some(help.to_owned())
    } else {
        None
    }
}

/// The keys that a service and the defaults have in common.
fn common(map: &Map<'_>, base: &Service, in_service: bool) -> Service {
    let protocols = [
        ("auto", Protocol::Auto),
        ("http1", Protocol::Http1),
        ("http2", Protocol::Http2),
        ("grpc", Protocol::Grpc),
    ];
    let unhealthy = [
        ("use_all", WhenAllUnhealthy::UseAll),
        ("refuse", WhenAllUnhealthy::Refuse),
    ];
    let forwarded = [
        ("none", ForwardedHeaders::None),
        ("append", ForwardedHeaders::Append),
    ];
    let via = [
        ("response", Via::Response),
        ("both", Via::Both),
        ("none", Via::None),
    ];
    let inherited = |text: &Option<Arc<str>>| Shape::Text.default(text.as_deref());
    map.declare("namespace", || inherited(&base.namespace));
    map.declare("group", || inherited(&base.group));
    map.declare("clusters", || {
        Shape::Text.list().default(base.clusters.clone())
    });
    map.declare("host_header", || {
        Shape::Text.default(host_header_word(&base.host_header))
    });
    Service {
        name: Arc::clone(&base.name),
        hosts: Vec::new(),
        endpoints: None,
        registries: map
            .registry_field(&base.registries)
            .and_then(|f| registries(&f))
            .unwrap_or_else(|| base.registries.clone()),
        registry_name: None,
        namespace: map.text("namespace").or_else(|| base.namespace.clone()),
        group: map.text("group").or_else(|| base.group.clone()),
        clusters: map.texts("clusters").or_else(|| base.clusters.clone()),
        port: None,
        protocol: map.choice("protocol", base.protocol, &protocols, &["dubbo2"]),
        host_header: map
            .field("host_header")
            .and_then(|f| host_header(&f))
            .unwrap_or_else(|| base.host_header.clone()),
        balancing: balancing(map, &base.balancing, in_service),
        pool: pool(map.child("pool"), &base.pool),
        hedge: hedge(map, base.hedge.as_deref()),
        health_check: health_check(map, base.health_check.as_ref()),
        when_all_unhealthy: map.choice(
            "when_all_unhealthy",
            base.when_all_unhealthy,
            &unhealthy,
            &[],
        ),
        forwarded_headers: map.choice("forwarded_headers", base.forwarded_headers, &forwarded, &[]),
        via: map.choice("via", base.via, &via, &[]),
        ..per_route(map, base)
    }
}

/// The keys that a route may write too; all else is that of `base`.
pub(super) fn per_route(map: &Map<'_>, base: &Service) -> Service {
    Service {
        timeout: timeouts(map.child("timeout"), &base.timeout),
        retry: retry(map.child("retry"), &base.retry),
        circuit_breaker: circuit_breaker(map.child("circuit_breaker"), &base.circuit_breaker),
        bulkhead: bulkhead(map.child("bulkhead"), &base.bulkhead),
        fallback: fallback(map, &base.fallback),
        rules: Vec::new(),
        ..base.clone()
    }
}

impl<'a> Map<'a> {
    /// `registry`.
    pub(crate) fn registry_field(&self, base: &[Arc<str>]) -> Option<Field<'a>> {
        self.declare("registry", || {
            let names: Vec<&str> = base.iter().map(|name| &**name).collect();
            let default = match names[..] {
                [] => serde_json::Value::Null,
                [name] => name.into(),
                _ => names.into(),
            };
            Shape::Text.one_or_more().default(default)
        });
        self.field("registry")
    }
}

/// Names of registries, each once; that they exist is checked when all are known.
fn registries(field: &Field<'_>) -> Option<Vec<Arc<str>>> {
    let mut names: Vec<Arc<str>> = Vec::new();
    for item in field.one_or_more()? {
        let Some(name) = item.text() else { continue };
        if names.iter().any(|known| &**known == name) {
            let what = format!("`{name}` is listed twice");
            item.report(Code::DUPLICATE_KEY, what, "list each registry once");
            continue;
        }
        names.push(Arc::from(name));
    }
    Some(names)
}

fn host_header(field: &Field<'_>) -> Option<HostHeader> {
    const WORDS: [&str; 4] = ["auto", "keep", "service", "instance"];
    match field.text()? {
        "auto" => Some(HostHeader::Auto),
        "keep" => Some(HostHeader::Keep),
        "service" => Some(HostHeader::Service),
        "instance" => Some(HostHeader::Instance),
        text => match suggest::nearest(text, WORDS) {
            Some(near) if !text.contains(['.', ':']) => {
                let what = format!("`{text}` looks like a slip");
                field.wrong(
                    Code::UNKNOWN_VALUE,
                    &what,
                    format!("did you mean `{near}`?"),
                );
                None
            }
            _ => host(field).map(HostHeader::Text),
        },
    }
}

fn host_header_word(header: &HostHeader) -> &str {
    match header {
        HostHeader::Auto => "auto",
        HostHeader::Keep => "keep",
        HostHeader::Service => "service",
        HostHeader::Instance => "instance",
        HostHeader::Text(text) => text,
    }
}

/// `host` or `host:port`, in lower case.
fn host(field: &Field<'_>) -> Option<Arc<str>> {
    field.convert(Code::NAME, |text| {
        let wrong = |help: &str| Err((format!("`{text}` is no host"), help.to_owned()));
        if text.contains("://") || text.contains('/') {
            return wrong("write only `host` or `host:port`, without scheme and path");
        }
        if text.contains('*') {
            return wrong("globs are not possible here; list the hosts");
        }
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) if name.ends_with(']') || !name.contains(':') => (name, Some(port)),
            _ => (text, None),
        };
        if port.is_some_and(|port| {
            port.parse::<u16>().is_ok_and(|n| n == 0) || port.parse::<u16>().is_err()
        }) {
            return wrong("the port is a number from 1 to 65535");
        }
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':');
        if bare.is_empty() || bare.len() > 253 || !bare.bytes().all(good) {
            return wrong("write `host` or `host:port`");
        }
        Ok(Arc::from(text.to_ascii_lowercase()))
    })
}

fn check_name(name: &str) -> Result<(), Wrong> {
    let wrong = |what: &str, help: &str| Err((what.to_owned(), help.to_owned()));
    if name.is_empty() {
        return wrong("is empty", "give it a name");
    }
    if name.len() > 255 {
        return wrong("is too long", "at most 255 bytes");
    }
    if name.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()) {
        return wrong(
            "has a `/` or a space",
            "it is a path segment and a host; see `registry_name`",
        );
    }
    Ok(())
}

impl Service {
    /// What holds where nothing is written.
    pub(crate) fn builtin() -> Self {
        Self {
            name: Arc::from(""),
            hosts: Vec::new(),
            endpoints: None,
            registries: Vec::new(),
            registry_name: None,
            namespace: None,
            group: None,
            clusters: None,
            port: None,
            protocol: Protocol::Auto,
            host_header: HostHeader::Auto,
            balancing: Balancing::builtin(),
            timeout: Timeouts::builtin(),
            retry: Retry::builtin(),
            circuit_breaker: CircuitBreaker::builtin(),
            bulkhead: Bulkhead::builtin(),
            shares: Shares::default(),
            pool: Pool::builtin(),
            health_check: None,
            when_all_unhealthy: WhenAllUnhealthy::UseAll,
            fallback: Arc::from([]),
            hedge: None,
            forwarded_headers: ForwardedHeaders::None,
            via: Via::Response,
            rules: Vec::new(),
        }
    }
}
