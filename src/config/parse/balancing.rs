//! How an instance is picked: `load_balancer`, `hash`, `subset`, `locality`, `slow_start`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::reader::{Field, Map};
use super::record::Shape;
use super::value::Span;
use crate::config::diagnostic::Code;
use crate::config::types::{
    Balancing, HashOn, LoadBalancer, Locality, Prefer, Subset, SubsetFallback,
};

/// The keys of a service or of the defaults; what is not written comes from `base`.
pub(super) fn balancing(map: &Map<'_>, base: &Balancing, in_service: bool) -> Balancing {
    let balancers = [
        ("p2c_least_request", LoadBalancer::P2cLeastRequest),
        ("peak_ewma", LoadBalancer::PeakEwma),
        ("round_robin", LoadBalancer::RoundRobin),
        ("random", LoadBalancer::Random),
        ("ring_hash", LoadBalancer::RingHash),
        ("maglev", LoadBalancer::Maglev),
    ];
    let load_balancer = map.choice("load_balancer", base.load_balancer, &balancers, &[]);
    let hash = hash(map, base.hash.as_ref());
    match map.field("hash") {
        Some(field) if in_service && !load_balancer.hashes() => useless(&field),
        None if load_balancer.hashes() && hash.is_none() => {
            let place = map
                .field("load_balancer")
                .map_or_else(|| map.place.clone(), |field| field.node.place.clone());
            let message = format!("`{}` does not say what is hashed", map.path);
            let help = "write `hash: {header: x-user-id}`, `{cookie: NAME}`, `{path: true}` or \
                        `{source: true}`";
            map.context.report(Code::CHOOSE_ONE, &place, message, help);
        }
        Some(_) | None => {}
    }
    Balancing {
        load_balancer,
        hash,
        subset: subset(map, base.subset.as_ref()),
        locality: locality(map, &base.locality),
        slow_start: map.duration("slow_start", base.slow_start, Span::ZERO_OR_MORE),
    }
}

/// `hash` of a route; its service's where it writes none.
pub(super) fn route_hash(map: &Map<'_>, service: &Balancing) -> Option<HashOn> {
    let hash = hash(map, service.hash.as_ref());
    if let Some(field) = map.field("hash")
        && !service.load_balancer.hashes()
    {
        useless(&field);
    }
    hash
}

fn useless(field: &Field<'_>) {
    let what = "only `ring_hash` and `maglev` hash";
    let help = "write `load_balancer: maglev` for the service, or remove it";
    field.wrong(Code::CHOOSE_ONE, what, help);
}

/// `hash`: exactly one; a written one replaces that of `base`.
fn hash(parent: &Map<'_>, base: Option<&HashOn>) -> Option<HashOn> {
    parent.declare("hash", || Shape::Map.optional());
    let written = parent.field("hash").is_some();
    let map = parent.child("hash");
    map.declare("header", || {
        Shape::Pattern("^[!#-'*+.^_`|~0-9A-Za-z-]+$").default(match base {
            Some(HashOn::Header(name)) => Some(name.as_str()),
            Some(HashOn::Cookie(_) | HashOn::Path | HashOn::Source) | None => None,
        })
    });
    map.declare("cookie", || {
        Shape::Pattern("^[!#-'*+.^_`|~0-9A-Za-z-]+$").default(match base {
            Some(HashOn::Cookie(name)) => Some(&**name),
            Some(HashOn::Header(_) | HashOn::Path | HashOn::Source) | None => None,
        })
    });
    let header = map.field("header");
    let cookie = map.field("cookie");
    let mut chosen = Vec::new();
    chosen.extend(header.map(|field| header_name(&field).map(HashOn::Header)));
    chosen.extend(
        cookie.map(|field| header_name(&field).and(Some(HashOn::Cookie(Arc::from(field.text()?))))),
    );
    for (key, on) in [("path", HashOn::Path), ("source", HashOn::Source)] {
        if map.boolean(key, base == Some(&on)) && map.field(key).is_some() {
            chosen.push(Some(on));
        }
    }
    let message = format!(
        "`{}` needs one of `header`, `cookie`, `path`, `source`",
        map.path
    );
    let place = map.place.clone();
    let context = map.context;
    map.finish();
    if !written {
        return base.cloned();
    }
    if chosen.len() != 1 {
        let help = "write `hash: {header: x-user-id}`, say";
        context.report(Code::CHOOSE_ONE, &place, message, help);
        return None;
    }
    chosen.pop()?
}

/// The name of a header or a cookie: a token.
fn header_name(field: &Field<'_>) -> Option<HeaderName> {
    field.convert(Code::NAME, |text| {
        HeaderName::try_from(text).map_err(|_| {
            let help = "write only its name, as in `x-user-id`".to_owned();
            (format!("`{text}` is no name"), help)
        })
    })
}

fn subset(parent: &Map<'_>, base: Option<&Subset>) -> Option<Subset> {
    let map = parent.child("subset");
    let mut metadata = base.map(|base| base.metadata.clone()).unwrap_or_default();
    if let Some(field) = map.named("metadata", || Shape::Text) {
        let entries = field.map();
        let read: BTreeMap<String, String> = entries
            .entries()
            .filter_map(|(key, value)| Some((key.to_owned(), value.text()?.to_owned())))
            .collect();
        if read.is_empty() {
            // Written empty: not even that of the defaults.
            metadata.clear();
        }
        metadata.extend(read);
    }
    let words = [("any", SubsetFallback::Any), ("none", SubsetFallback::None)];
    let fallback = base.map_or(SubsetFallback::Any, |base| base.fallback);
    let fallback = map.choice("fallback", fallback, &words, &[]);
    map.finish();
    (!metadata.is_empty()).then_some(Subset { metadata, fallback })
}

fn locality(parent: &Map<'_>, base: &Locality) -> Locality {
    let map = parent.child("locality");
    let words = [
        ("none", Prefer::None),
        ("zone", Prefer::Zone),
        ("cluster", Prefer::Cluster),
    ];
    let locality = Locality {
        prefer: map.choice("prefer", base.prefer, &words, &[]),
        min_percent: map.integer("min_percent", base.min_percent, &(1..=100)),
        home: None,
    };
    map.finish();
    locality
}

impl Balancing {
    /// What holds where nothing is written.
    pub(crate) fn builtin() -> Self {
        Self {
            load_balancer: LoadBalancer::P2cLeastRequest,
            hash: None,
            subset: None,
            locality: Locality {
                prefer: Prefer::None,
                min_percent: 70,
                home: None,
            },
            slow_start: Duration::ZERO,
        }
    }
}
