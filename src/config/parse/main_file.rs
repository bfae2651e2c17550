//! The top level of the main file, and what only shows when all of it is read: references to
//! registries, two listeners with one address, two services with one host.
//! Next: `parse/service.rs`, `parse/registry.rs`, `config/cross.rs`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::app::{admin, app};
use super::limits::limits;
use super::reader::{Context, Field, Map};
use super::record::{LISTEN, Shape};
use super::registry::registry;
use super::service::{belongs, defaults, service};
use super::telemetry::{log, telemetry};
use super::value::{Span, integer};
use crate::config::cross;
use crate::config::diagnostic::{Code, Place};
use crate::config::digest::Digest;
use crate::config::document::Node;
use crate::config::passthrough::{PASSTHROUGH_REGISTRY, Passthrough};
use crate::config::types::{App, Config, Listen, PolicySet, Prefer, Registry, Service};

/// What the main file says, and the policy globs with their places.
pub(crate) struct MainFile {
    /// Everything but the policies.
    pub(crate) config: Config,
    /// Globs of policy files, relative to the folder of the main file.
    pub(crate) policies: Vec<(String, Place)>,
    /// Whether the globs are written (the default one may match nothing).
    pub(crate) policies_written: bool,
    /// Files whose contents are values, as they were read.
    pub(crate) contents: Vec<(PathBuf, Option<Digest>)>,
}

/// Reads the main file.
pub(crate) fn main_file(context: &Context<'_>, root: &Node, host_name: &str) -> MainFile {
    let map = Map::root(context, root, true);
    version(&map);
    map.later(&["debug_headers"]);
    let startup = map.child("startup");
    let registry_wait =
        startup.duration("registry_wait", Duration::from_secs(30), Span::ZERO_OR_MORE);
    startup.finish();
    let discovery_wait = Duration::from_secs(2);
    let defaults_map = map.child("defaults");
    let default_registry = defaults_map.registry_field(&[]);
    let mut defaults = Arc::new(defaults(defaults_map));
    let (mut registries, registry_places) = registries(&map);
    let (mut services, service_places) = services(&map, &defaults);
    map.declare("policies", || {
        Shape::Text.one_or_more().default(DEFAULT_POLICIES)
    });
    let policies_field = map.field("policies");
    map.declare("listen", || LISTEN.one_or_more().default("localhost:15001"));
    let listen_field = map.field("listen");
    map.declare("workers", || {
        let number = Shape::integer(&WORKERS);
        Shape::word("auto").or(number).default("auto")
    });
    let (app, register_places) = app(map.child("app"), host_name);
    for service in services.values_mut().chain([&mut defaults]) {
        let home = home_of(service.balancing.locality.prefer, &app);
        if home.is_some() {
            Arc::make_mut(service).balancing.locality.home = home;
        }
    }
    let passthrough = passthrough(map.child("passthrough"));
    let default_registries = match &defaults.registries[..] {
        [] => only(&registries).into_iter().collect(),
        some => some.to_vec(),
    };
    if !passthrough.hosts.is_empty() {
        registries
            .entry(Arc::from(PASSTHROUGH_REGISTRY))
            .or_insert_with(Registry::passthrough);
    }
    let config = Config {
        listen: listen_field
            .as_ref()
            .map_or_else(|| vec![Listen::Localhost(15001)], listen),
        workers: map.field("workers").and_then(|field| workers(&field)),
        self_lag: map.duration("self_lag", Duration::from_millis(100), Span::POSITIVE),
        admin: admin(map.child("admin")),
        telemetry: telemetry(map.child("telemetry")),
        log: log(map.child("log")),
        browser_guard: map.boolean("browser_guard", true),
        registry_wait,
        discovery_wait: map.duration("discovery_wait", discovery_wait, Span::ZERO_OR_MORE),
        auto_discover: map.boolean("auto_discover", true),
        passthrough,
        limits: limits(map.child("limits")),
        app,
        default_registries,
        registries,
        defaults,
        services,
        policies: Arc::new(PolicySet::default()),
        inputs: Arc::default(),
        state_file: map.optional_path("state_file"),
        cache_dir: map.optional_path("cache_dir"),
    };
    cross::check(
        &config,
        &cross::Places {
            context,
            root,
            default_registry: default_registry.as_ref(),
            registries: &registry_places,
            services: &service_places,
            register: &register_places,
        },
    );
    let policies_written = policies_field.is_some();
    let policies = policies_field.and_then(|field| field.one_or_more());
    let policies: Vec<(String, Place)> = match policies {
        None if policies_written => Vec::new(),
        Some(items) => items
            .iter()
            .filter_map(|item| Some((item.text()?.to_owned(), item.node.place.clone())))
            .collect(),
        None => vec![(DEFAULT_POLICIES.to_owned(), root.place.clone())],
    };
    map.finish_with(belongs);
    MainFile {
        config,
        policies,
        policies_written,
        contents: Vec::new(),
    }
}

const WORKERS: std::ops::RangeInclusive<u64> = 1..=64;
const DEFAULT_POLICIES: &str = "./policies/*.yaml";

/// `version`: the only one there is.
pub(crate) fn version(map: &Map<'_>) {
    map.declare("version", || Shape::Integer(1, 1).default(1));
    let Some(field) = map.field("version") else {
        return;
    };
    let Some(text) = field.text() else { return };
    if text != "1" {
        let help = "this version of Outrigger reads `version: 1`";
        field.report(
            Code::VERSION,
            format!("file format `{text}` is not known here"),
            help,
        );
    }
}

fn listen(field: &Field<'_>) -> Vec<Listen> {
    let items = field.one_or_more();
    if items.as_ref().is_some_and(Vec::is_empty) {
        field.wrong(
            Code::EMPTY,
            "no address to listen on",
            "write `localhost:15001`",
        );
    }
    items
        .unwrap_or_default()
        .iter()
        .filter_map(Field::listen)
        .collect()
}

fn workers(field: &Field<'_>) -> Option<u16> {
    let text = field.text()?;
    if text == "auto" {
        return None;
    }
    let number = field.convert(Code::NUMBER, |text| {
        integer(text, &WORKERS).map_err(|(what, help)| (what, format!("`auto`, or {help}")))
    })?;
    u16::try_from(number).ok()
}

type Named<'a, T> = (BTreeMap<Arc<str>, T>, BTreeMap<Arc<str>, Field<'a>>);

fn registries<'a>(map: &Map<'a>) -> Named<'a, Registry> {
    let mut found = BTreeMap::new();
    let mut places = BTreeMap::new();
    let Some(field) = map.named("registries", || Shape::Map) else {
        return (found, places);
    };
    for (name, field) in field.map().entries() {
        if let Some(registry) = registry(name, &field) {
            found.insert(Arc::from(name), registry);
        }
        places.insert(Arc::from(name), field);
    }
    (found, places)
}

fn services<'a>(map: &Map<'a>, defaults: &Service) -> Named<'a, Arc<Service>> {
    let mut found = BTreeMap::new();
    let mut places = BTreeMap::new();
    let Some(field) = map.named("services", || Shape::Map) else {
        return (found, places);
    };
    for (name, field) in field.map().entries() {
        found.insert(Arc::from(name), Arc::new(service(name, &field, defaults)));
        places.insert(Arc::from(name), field);
    }
    (found, places)
}

/// `passthrough`.
fn passthrough(map: Map<'_>) -> Passthrough {
    map.declare("hosts", || {
        Shape::Pattern(r"^[^\s/@]+$")
            .one_or_more()
            .default(Vec::<String>::new())
    });
    let read = |text: &str| {
        let help = "write a host, a host with a port, or a glob such as `*.example.com`".to_owned();
        if text.trim_matches(['*', ':', '.']).is_empty() {
            let what = format!("`{text}` would let everything through");
            return Err((what, help));
        }
        if text.contains(|c: char| c.is_whitespace() || c.is_control() || "/@?#".contains(c)) {
            return Err((format!("`{text}` is no host"), help));
        }
        Ok(Arc::from(text.to_ascii_lowercase()))
    };
    let hosts = map.field("hosts").and_then(|field| field.one_or_more());
    let hosts = hosts.unwrap_or_default();
    let hosts = hosts.iter().filter_map(|h| h.convert(Code::ADDRESS, read));
    let hosts = hosts.collect();
    map.finish();
    Passthrough { hosts }
}

/// Where the app is, in the words of a service's `locality`. Its cluster is the one it registers in.
fn home_of(prefer: Prefer, app: &App) -> Option<Arc<str>> {
    match prefer {
        Prefer::None => None,
        Prefer::Zone => app.zone.clone(),
        Prefer::Cluster => {
            let mut registered = app.register.iter();
            let cluster = registered.find_map(|item| item.cluster.clone());
            cluster.or_else(|| app.zone.clone())
        }
    }
}

/// The only registry there is.
fn only(registries: &BTreeMap<Arc<str>, Registry>) -> Option<Arc<str>> {
    let mut names = registries.keys();
    names.next().filter(|_| names.next().is_none()).cloned()
}
