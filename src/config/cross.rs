//! Checks over the whole main file: references, addresses, hosts and aliases that collide.

mod idle;
mod register;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::diagnostic::{Code, Place};
use super::dns_name::{DnsName, DnsNameError};
use super::document::{Node, Value};
use super::parse::address::collide;
use super::parse::reader::{Context, Field, list};
use super::passthrough::PASSTHROUGH_REGISTRY;
use super::suggest;
use super::types::{Config, Listen, Prefer, Register, RegistryKind, Service, grpc_port};

/// Where things stand.
pub(crate) struct Places<'p, 'a> {
    pub(crate) context: &'p Context<'a>,
    pub(crate) root: &'p Node,
    pub(crate) default_registry: Option<&'p Field<'a>>,
    /// All that are written, also those that could not be read.
    pub(crate) registries: &'p BTreeMap<Arc<str>, Field<'a>>,
    pub(crate) services: &'p BTreeMap<Arc<str>, Field<'a>>,
    pub(crate) register: &'p [(Register, Field<'a>)],
}

impl Places<'_, '_> {
    /// Of a fixed key, by path.
    fn fixed(&self, path: &str) -> Place {
        if let Some(node) = self.context.overrides.get(path) {
            return node.place.clone();
        }
        let found = path
            .split('.')
            .try_fold(self.root, |node, key| node.get(key));
        found.map_or_else(|| self.root.place.clone(), |node| node.place.clone())
    }

    /// Of `keys` under a service, the value where written, else the service.
    fn service(&self, name: &str, key: &str) -> Place {
        let field = self.services.get(name);
        let value = field
            .and_then(|field| field.node.get(key))
            .map(|node| node.place.clone());
        value
            .or_else(|| field.map(|f| f.key.clone()))
            .unwrap_or_else(|| self.root.place.clone())
    }
}

/// Reports everything that does not fit together.
pub(crate) fn check(config: &Config, places: &Places<'_, '_>) {
    registries(config, places);
    dns_names(config, places);
    passthrough(config, places);
    addresses(config, places);
    hosts(config, places);
    aliases(config, places);
    homes(config, places);
    fallbacks(config, places);
    idle::check(config, places);
    register::check(places.register, &config.registries, places.registries);
}

fn registries(config: &Config, places: &Places<'_, '_>) {
    let context = places.context;
    let known: Vec<&str> = places.registries.keys().map(|name| &**name).collect();
    let unknown = |name: &str, place: &Place| {
        let help = match suggest::nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => "no registry is defined under `registries`".to_owned(),
            None => format!("defined are {}", list(&known)),
        };
        let message = format!("registry `{name}` is not defined");
        context.report(Code::UNKNOWN_REGISTRY, place, message, help);
    };
    let defined = |name: &str| places.registries.contains_key(name);
    if let Some(field) = places.default_registry {
        let names = config.defaults.registries.iter();
        for name in names.filter(|name| !defined(name)) {
            unknown(name, &field.node.place);
        }
    }
    for service in config.services.values() {
        let own = service.registries != config.defaults.registries;
        match &service.registries[..] {
            [] if service.endpoints.is_some() || known.len() == 1 => {}
            names @ [_, ..] => {
                for name in names.iter().filter(|name| own && !defined(name)) {
                    unknown(name, &places.service(&service.name, "registry"));
                }
            }
            [] => {
                let message = format!(
                    "service `{}` has no endpoints and no registry",
                    service.name
                );
                let help = if known.is_empty() {
                    "list `endpoints`, or define a registry under `registries`".to_owned()
                } else {
                    format!(
                        "write `registry:` here or in `defaults`; defined are {}",
                        list(&known)
                    )
                };
                let place = places.service(&service.name, "");
                context.report(Code::NO_SOURCE, &place, message, help);
            }
        }
    }
    if known.len() > 1 && config.auto_discover && config.defaults.registries.is_empty() {
        let message = "`auto_discover` has no registry to look in";
        let help = "write `defaults.registry`, or `auto_discover: false`";
        context.report(
            Code::NO_DEFAULT_REGISTRY,
            &places.fixed("auto_discover"),
            message,
            help,
        );
    }
}

/// What a DNS registry is asked for needs a port, or is the name of SRV records.
fn dns_names(config: &Config, places: &Places<'_, '_>) {
    for service in config.services.values() {
        let names = match &service.registries[..] {
            [] => &config.default_registries,
            own => own,
        };
        let dns = names.iter().any(|name| {
            let registry = config.registries.get(name);
            registry.is_some_and(|r| matches!(r.kind, RegistryKind::Dns(_)))
        });
        if service.endpoints.is_some() || !dns {
            continue;
        }
        let name = service.registry_name.as_ref().unwrap_or(&service.name);
        if let Err(DnsNameError { what, help }) = DnsName::parse(name) {
            let place = places.service(&service.name, "registry_name");
            let message = format!("service `{}`: {what}", service.name);
            places.context.report(Code::ADDRESS, &place, message, help);
        }
    }
}

/// Who prefers what is near must know where the app is.
fn homes(config: &Config, places: &Places<'_, '_>) {
    let services = config.services.values().filter(|service| {
        let locality = &service.balancing.locality;
        locality.prefer != Prefer::None && locality.home.is_none()
    });
    for service in services {
        let message = format!(
            "service `{}` prefers what is near, and nothing says where the app is",
            service.name
        );
        let help = "set `app.zone`";
        let place = places.service(&service.name, "locality");
        places.context.report(Code::NO_HOME, &place, message, help);
    }
}

/// Only a DNS registry can resolve hosts.
fn passthrough(config: &Config, places: &Places<'_, '_>) {
    if let Some(registry) = config.registries.get(PASSTHROUGH_REGISTRY)
        && !config.passthrough.hosts.is_empty()
        && !matches!(registry.kind, RegistryKind::Dns(_))
    {
        let message = format!(
            "registry `{PASSTHROUGH_REGISTRY}` resolves `passthrough.hosts`, but is of kind `{}`",
            registry.kind.word()
        );
        let help = "make it `kind: dns`, or give it another name";
        let place = places.fixed("passthrough.hosts");
        places.context.report(Code::ADDRESS, &place, message, help);
    }
}

/// The upstreams that a service's own fallbacks name.
fn fallbacks(config: &Config, places: &Places<'_, '_>) {
    let discovers = config.auto_discover && !config.default_registries.is_empty();
    for (name, field) in places.services {
        let routes = items(field.node, "routes").iter();
        let all = routes.flat_map(|route| items(route, "fallback"));
        let all = items(field.node, "fallback").iter().chain(all);
        for node in all.filter_map(|item| item.get("upstream")) {
            let Value::Scalar(scalar) = &node.value else {
                continue;
            };
            let other = &*scalar.text;
            let (message, help) = if *other == **name {
                let message = format!("service `{name}` is its own fallback");
                (message, "name another service".to_owned())
            } else if discovers || config.services.contains_key(other) {
                continue;
            } else {
                let known = config.services.keys().map(|name| &**name);
                let near = suggest::nearest(other, known.filter(|known| *known != &**name));
                let help = near.map_or_else(
                    || "list it under `services`".to_owned(),
                    |near| format!("did you mean `{near}`?"),
                );
                (format!("service `{other}` is not defined"), help)
            };
            let place = &node.place;
            places
                .context
                .report(Code::NO_FALLBACK, place, message, help);
        }
    }
}

fn items<'n>(node: &'n Node, key: &str) -> &'n [Node] {
    match node.get(key).map(|node| &node.value) {
        Some(Value::Sequence(items)) => items,
        Some(Value::Null | Value::Scalar(_) | Value::Mapping(_)) | None => &[],
    }
}

fn addresses(config: &Config, places: &Places<'_, '_>) {
    let fixed = |key: &str| (key.to_owned(), places.fixed(key));
    let mut all: Vec<(Listen, (String, Place))> = Vec::new();
    let mut add = |listen: &Listen, owner: (String, Place)| {
        if let Some((other, (name, _))) = all.iter().find(|(other, _)| collide(other, listen)) {
            let (what, place) = &owner;
            let message = format!("`{what}` is {listen}, which `{name}` has ({other})");
            let help = match listen {
                Listen::Unix(_) => "give each listener its own path",
                Listen::Tcp(_) | Listen::Localhost(_) => {
                    "give each listener its own port; 0 picks a free one"
                }
            };
            places
                .context
                .report(Code::SAME_ADDRESS, place, message, help);
        }
        all.push((listen.clone(), owner));
    };
    for listen in &config.listen {
        add(listen, fixed("listen"));
    }
    add(&config.admin.listen, fixed("admin.listen"));
    let loopback = |port: u16| Listen::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let telemetry = config
        .telemetry
        .listen
        .clone()
        .unwrap_or_else(|| loopback(15003));
    add(&telemetry, fixed("telemetry.listen"));
    for (name, registry) in &config.registries {
        if let RegistryKind::Embedded(embedded) = &registry.kind
            && let Some(listen) = &embedded.listen
        {
            let field = places.registries.get(name);
            let place = field.map_or_else(
                || places.root.place.clone(),
                |field| {
                    field
                        .node
                        .get("listen")
                        .map_or_else(|| field.key.clone(), |n| n.place.clone())
                },
            );
            let grpc = match listen {
                Listen::Tcp(address) if address.port() != 0 => grpc_port(address.port())
                    .map(|port| Listen::Tcp(SocketAddr::new(address.ip(), port))),
                Listen::Localhost(port) if *port != 0 => grpc_port(*port).map(Listen::Localhost),
                Listen::Tcp(_) | Listen::Localhost(_) | Listen::Unix(_) => None,
            };
            add(listen, (format!("registries.{name}.listen"), place.clone()));
            if let Some(grpc) = grpc {
                let what = format!("registries.{name}.listen (gRPC, port + 1000)");
                add(&grpc, (what, place));
            }
        }
    }
    for (name, service) in &config.services {
        if let Some(port) = service.port {
            let place = places.service(name, "port");
            add(&loopback(port), (format!("services.{name}.port"), place));
        }
    }
}

fn hosts(config: &Config, places: &Places<'_, '_>) {
    let mut owners: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in config.services.values() {
        let place = places.service(&service.name, "hosts");
        for host in &service.hosts {
            if let Some(owner) = owners.insert(host, service) {
                let message = if owner.name == service.name {
                    format!("host `{host}` stands twice in service `{}`", service.name)
                } else {
                    format!(
                        "host `{host}` belongs to `{}` and to `{}`",
                        owner.name, service.name
                    )
                };
                places
                    .context
                    .report(Code::SAME_HOST, &place, message, "keep it in one place");
            }
            let shadowed = |message: String, help: &str| {
                places
                    .context
                    .report(Code::HOST_SHADOWED, &place, message, help);
            };
            if is_loopback_name(host) {
                let message = format!("host `{host}` is a loopback name and never matched");
                shadowed(message, "requests to it name the service in the path");
            }
            if **host != *service.name && config.services.contains_key(&**host) {
                let message = format!(
                    "host `{host}` of `{}` hides the service `{host}`",
                    service.name
                );
                shadowed(message, "hosts are looked up before names");
            }
        }
    }
}

/// `localhost`, 127.0.0.0/8 and `[::1]`, with or without a port.
fn is_loopback_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, _)) if !name.contains(':') || name.ends_with(']') => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost"
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
}

fn aliases(config: &Config, places: &Places<'_, '_>) {
    let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for name in config.services.keys() {
        groups.entry(host_alias(name)).or_default().push(name);
    }
    for (alias, names) in groups.iter().filter(|(_, names)| names.len() > 1) {
        let place = places.service(names.last().copied().unwrap_or_default(), "");
        let message = format!("services {} have the same alias `{alias}`", list(names));
        let help = match names.iter().find(|name| **name == *alias) {
            Some(_) => "it means the service of that name; address the others by their full names",
            None => "neither has it; address them by their full names",
        };
        places
            .context
            .report(Code::SAME_ALIAS, &place, message, help);
    }
}

/// The name under which a service is reachable as a host: lower case, every character outside
/// `a-z0-9.-` becomes `-`, runs of it one. Most names are their own alias.
pub fn host_alias(name: &str) -> String {
    let mut alias = String::with_capacity(name.len());
    let mut replaced = false;
    for c in name.chars() {
        let c = c.to_ascii_lowercase();
        if matches!(c, 'a'..='z' | '0'..='9' | '.' | '-') {
            alias.push(c);
            replaced = false;
        } else if !replaced {
            if !alias.ends_with('-') {
                alias.push('-');
            }
            replaced = true;
        }
    }
    alias
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_are_legal_hosts() {
        for (name, want) in [
            ("DEFAULT_GROUP@@x", "default-group-x"),
            ("orders", "orders"),
            ("a__b", "a-b"),
            ("a--b", "a--b"),
        ] {
            assert_eq!(host_alias(name), want);
        }
    }
}
