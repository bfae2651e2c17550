//! The route table: hosts, names and aliases of services, built whole and swapped whole.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method};
use rustc_hash::FxHashMap;

use super::{Authority, RouteIndex};
use crate::config::types::Service;
use crate::upstream::Upstream;
use crate::upstream::route_state::RouteState;

/// Names longer than this are no names.
const MAX_NAME: usize = 512;

/// One service as requests meet it: its live upstream and its settings of the day.
#[derive(Debug)]
pub struct Route {
    /// The live part: instances, counters. It survives reloads.
    pub upstream: Arc<Upstream>,
    /// The settings.
    pub settings: Settings,
    /// The live parts of `settings.service.rules`, in the same order.
    states: Vec<Arc<RouteState>>,
    /// The service or one of its routes keeps last good answers.
    pub keeps_answers: bool,
}

impl Route {
    /// Puts both parts together.
    pub fn new(upstream: Arc<Upstream>, settings: Settings) -> Self {
        let names = settings.service.rules.iter().map(|rule| &rule.name);
        let states = upstream.keep_routes(names);
        let service = &settings.service;
        let rules = service.rules.iter().map(|rule| &rule.service);
        let mut services = std::iter::once(service).chain(rules);
        let keeps_answers = services.any(|service| service.kept_answers().is_some());
        Self {
            upstream,
            settings,
            states,
            keeps_answers,
        }
    }

    /// Which of the service's routes a request belongs to. `path`: without the query.
    pub fn rule(&self, method: &Method, path: &str, headers: &HeaderMap) -> RouteIndex {
        let rules = &self.settings.service.rules;
        let found = rules
            .iter()
            .position(|rule| rule.matching.matches(method, path, headers));
        found.map_or(RouteIndex::NONE, RouteIndex::of_item)
    }

    /// The settings that hold for a request of this route.
    pub fn service(&self, index: RouteIndex) -> &Arc<Service> {
        let rule = index
            .item()
            .and_then(|n| self.settings.service.rules.get(n));
        rule.map_or(&self.settings.service, |rule| &rule.service)
    }

    /// Where the last good answers of this route are: it has its own when it writes `fallback`.
    pub fn answers(&self, index: RouteIndex) -> &Arc<RouteState> {
        let (own, common) = (self.service(index), &self.settings.service);
        if Arc::ptr_eq(&own.fallback, &common.fallback) {
            self.upstream.own_state()
        } else {
            self.state(index)
        }
    }

    /// The live parts of the upstream and of all its routes.
    pub fn all_states(&self) -> impl Iterator<Item = &Arc<RouteState>> {
        std::iter::once(self.upstream.own_state()).chain(&self.states)
    }

    /// The live part of this route.
    pub fn state(&self, index: RouteIndex) -> &Arc<RouteState> {
        let state = index.item().and_then(|n| self.states.get(n));
        state.unwrap_or_else(|| self.upstream.own_state())
    }
}

/// Settings of a service in the form the request path needs.
#[derive(Debug)]
pub struct Settings {
    /// As configured, merged with the defaults.
    pub service: Arc<Service>,
    /// The service's name as a Host value (its alias where the name cannot be one).
    pub host: HeaderValue,
}

impl Settings {
    /// For a service called `name`.
    pub fn new(service: Arc<Service>, name: &str) -> Self {
        let host = if Authority::parse(name).is_ok() {
            name.to_owned()
        } else {
            alias(name)
        };
        let host = HeaderValue::from_str(&host)
            .unwrap_or_else(|_| HeaderValue::from_static("unnamed.outrigger"));
        Self { service, host }
    }
}

/// Which service a host or a name means.
#[derive(Debug, Default)]
pub struct RouteTable {
    hosts: FxHashMap<Box<str>, Arc<Route>>,
    names: FxHashMap<Box<str>, Arc<Route>>,
    /// By name, as configured or discovered.
    routes: Vec<Arc<Route>>,
}

impl RouteTable {
    /// All routes, ordered by name.
    pub fn routes(&self) -> &[Arc<Route>] {
        &self.routes
    }

    /// By `services.*.hosts`: the form with the port first.
    pub fn by_host(&self, authority: &Authority<'_>) -> Option<Arc<Route>> {
        if self.hosts.is_empty() {
            return None;
        }
        lowered(authority.text(), |text| self.hosts.get(text).cloned())
            .or_else(|| lowered(authority.host(), |host| self.hosts.get(host).cloned()))
    }

    /// By the service's name, its alias or its bare name; case does not matter.
    pub fn by_name(&self, name: &str) -> Option<Arc<Route>> {
        lowered(name, |name| self.names.get(name).cloned())
    }

    /// Up to three names close to `name`, for a 404.
    pub fn nearest(&self, name: &str) -> Vec<Arc<str>> {
        let name = name.to_ascii_lowercase();
        let mut near: Vec<(usize, &Arc<str>)> = self
            .routes
            .iter()
            .map(|r| {
                (
                    distance(&name, &r.upstream.name.to_ascii_lowercase()),
                    &r.upstream.name,
                )
            })
            .filter(|(d, n)| *d <= 2.max(n.len() / 3))
            .collect();
        near.sort();
        near.into_iter()
            .take(3)
            .map(|(_, n)| Arc::clone(n))
            .collect()
    }
}

/// Calls `f` with the lower-case form of `text`, without an allocation.
fn lowered<T>(text: &str, f: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    if !text.bytes().any(|b| b.is_ascii_uppercase()) {
        return f(text);
    }
    let mut buffer = [0_u8; MAX_NAME];
    let lower = buffer.get_mut(..text.len())?;
    lower.copy_from_slice(text.as_bytes());
    lower.make_ascii_lowercase();
    f(std::str::from_utf8(lower).ok()?)
}

/// Two services want one host or name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The host, alias or bare name.
    pub key: String,
    /// The services; none of them is reachable by `key`.
    pub services: Vec<Arc<str>>,
}

/// Collects routes into a table.
#[derive(Debug, Default)]
pub struct TableBuilder {
    routes: Vec<Arc<Route>>,
}

impl TableBuilder {
    /// Adds a service.
    pub fn add(&mut self, route: Arc<Route>) {
        self.routes.push(route);
    }

    /// The table. Exact names win over derived ones (alias, bare name of a Nacos default group);
    /// of two services with one derived name neither has it.
    pub fn build(mut self) -> (RouteTable, Vec<Conflict>) {
        self.routes
            .sort_by(|a, b| a.upstream.name.cmp(&b.upstream.name));
        let mut hosts: FxHashMap<Box<str>, Arc<Route>> = FxHashMap::default();
        let mut names: FxHashMap<Box<str>, Arc<Route>> = FxHashMap::default();
        let mut exact: FxHashMap<String, Vec<Arc<Route>>> = FxHashMap::default();
        let mut derived: FxHashMap<String, Vec<Arc<Route>>> = FxHashMap::default();
        for route in &self.routes {
            for host in &route.settings.service.hosts {
                hosts
                    .entry(host.to_ascii_lowercase().into())
                    .or_insert_with(|| Arc::clone(route));
            }
            let name = route.upstream.name.to_ascii_lowercase();
            exact
                .entry(name.clone())
                .or_default()
                .push(Arc::clone(route));
            let mut more = vec![alias(&name)];
            if let Some(bare) = name.strip_prefix("default_group@@") {
                more.push(bare.to_owned());
                more.push(alias(bare));
            }
            more.sort();
            more.dedup();
            for other in more
                .into_iter()
                .filter(|other| *other != name && !other.is_empty())
            {
                derived.entry(other).or_default().push(Arc::clone(route));
            }
        }
        let mut conflicts = Vec::new();
        for (name, mut routes) in exact {
            if routes.len() > 1 {
                // Names that differ in case only: each is reachable by its alias or not at all.
                conflicts.push(conflict(&name, &routes));
                continue;
            }
            names.extend(routes.pop().map(|route| (name.into_boxed_str(), route)));
        }
        for (name, mut routes) in derived {
            if names.contains_key(name.as_str()) {
                continue;
            }
            if routes.len() > 1 {
                conflicts.push(conflict(&name, &routes));
                continue;
            }
            names.extend(routes.pop().map(|route| (name.into_boxed_str(), route)));
        }
        conflicts.sort_by(|a, b| a.key.cmp(&b.key));
        (
            RouteTable {
                hosts,
                names,
                routes: self.routes,
            },
            conflicts,
        )
    }
}

fn conflict(key: &str, routes: &[Arc<Route>]) -> Conflict {
    Conflict {
        key: key.to_owned(),
        services: routes
            .iter()
            .map(|r| Arc::clone(&r.upstream.name))
            .collect(),
    }
}

/// The alias of a service name: lower case, every character outside `a-z0-9.-` becomes `-`, runs of
/// it one (`DEFAULT_GROUP@@x` becomes `default-group-x`).
pub fn alias(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars().map(|c| c.to_ascii_lowercase()) {
        let c = if c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' {
            c
        } else {
            '-'
        };
        if c != '-' || !out.ends_with('-') {
            out.push(c);
        }
    }
    out
}

/// Levenshtein distance in bytes, bounded by the caller's use on short names.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate().take(MAX_NAME) {
        let mut diagonal = i;
        let mut left = i + 1;
        for (slot, y) in row.iter_mut().skip(1).zip(b.bytes()) {
            let cost = diagonal + usize::from(x != y);
            diagonal = *slot;
            left = cost.min(diagonal + 1).min(left + 1);
            *slot = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(a.len())
}
