//! `services.NAME.routes`: some requests of a service with settings of their own. What a route does
//! not write is the service's.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method};

use super::balancing::route_hash;
use super::reader::{Field, Map};
use super::record::Shape;
use super::service::per_route;
use crate::config::diagnostic::Code;
use crate::config::types::{HeaderMatch, PathMatch, RouteMatch, RouteRule, Service, Shares};

/// The list; an item that could not be read is left out.
pub(super) fn routes(parent: &Map<'_>, service: &Service) -> Vec<RouteRule> {
    parent.declare("routes", || Shape::Map.list().default(Vec::<String>::new()));
    let items = parent.field("routes").and_then(|field| field.items());
    let mut rules: Vec<RouteRule> = Vec::new();
    for item in items.unwrap_or_default() {
        if rules.len() == Service::MAX_ROUTES {
            let what = format!("more than {} routes", Service::MAX_ROUTES);
            let help = "each has series of its own; join some by `path_prefix`";
            item.report(Code::NUMBER, what, help);
            break;
        }
        let Some(rule) = one(&item, service) else {
            continue;
        };
        if rules.iter().any(|known| known.name == rule.name) {
            let what = format!("a route `{}` exists already", rule.name);
            item.report(Code::DUPLICATE_KEY, what, "give each route its own name");
            continue;
        }
        if let Some(first) = rules.iter().find(|before| takes_all(before, &rule)) {
            let what = format!(
                "route `{}` never gets a request: `{}` before it takes them",
                rule.name, first.name
            );
            let help = "the first that matches holds: put the narrower one first";
            item.report(Code::ROUTE_SHADOWED, what, help);
        }
        rules.push(rule);
    }
    rules
}

/// Whether `before` surely matches whatever `later` does.
fn takes_all(before: &RouteRule, later: &RouteRule) -> bool {
    let (before, later) = (&before.matching, &later.matching);
    let path = match (&before.path, &later.path) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(PathMatch::Exact(a)), Some(PathMatch::Exact(b))) => a == b,
        (Some(PathMatch::Exact(_)), Some(PathMatch::Prefix(_))) => false,
        (Some(PathMatch::Prefix(a)), Some(PathMatch::Exact(b) | PathMatch::Prefix(b))) => {
            PathMatch::is_under(b, a)
        }
    };
    let methods = before.methods.is_empty()
        || (!later.methods.is_empty() && later.methods.iter().all(|m| before.methods.contains(m)));
    path && methods && before.headers.iter().all(|h| later.headers.contains(h))
}

fn one(item: &Field<'_>, service: &Service) -> Option<RouteRule> {
    let map = item.map();
    map.declare("name", || {
        Shape::Pattern("^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$").required()
    });
    let name = map.field("name");
    if name.is_none() {
        let message = format!("`{}` has no `name`", item.path);
        let help = "metrics, events and `UPSTREAM/ROUTE` on the command line need one";
        item.report(Code::MISSING, message, help);
    }
    let name = name.and_then(|field| field.convert(Code::NAME, route_name));
    map.declare("match", || Shape::Map.required());
    if map.field("match").is_none() {
        let message = format!("`{}` has no `match`", item.path);
        let help = "write `match: {path_prefix: /articles}`, say; `match: {}` takes every request";
        item.report(Code::MISSING, message, help);
    }
    let matching = matching(map.child("match"));
    let mut service = per_route(&map, service);
    service.balancing.hash = route_hash(&map, &service.balancing);
    service.shares = Shares {
        breaker: map.field("circuit_breaker").is_none(),
        bulkhead: map.field("bulkhead").is_none(),
    };
    map.finish();
    Some(RouteRule {
        name: name?,
        matching: matching?,
        service: Arc::new(service),
    })
}

fn route_name(text: &str) -> Result<Arc<str>, (String, String)> {
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let first = text
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric());
    if first && text.len() <= 63 && text.bytes().all(good) {
        return Ok(Arc::from(text));
    }
    let help = "letters, digits, `.`, `_` and `-`, at most 63, a letter or digit first";
    Err((format!("`{text}` is no name of a route"), help.to_owned()))
}

fn matching(map: Map<'_>) -> Option<RouteMatch> {
    let path_shape = || Shape::Pattern("^/[!-\"$->@-~]*$").optional();
    map.declare("path", path_shape);
    map.declare("path_prefix", path_shape);
    let exact = map.field("path");
    let prefix = map.field("path_prefix");
    if let (Some(_), Some(field)) = (&exact, &prefix) {
        let message = format!("`{}` has both `path` and `path_prefix`", map.path);
        field.report(Code::CHOOSE_ONE, message, "keep one of them");
    }
    let mut good = true;
    let mut read = |field: Option<Field<'_>>| {
        let path = field.as_ref().map(path);
        good &= path.as_ref().is_none_or(Option::is_some);
        path.flatten()
    };
    let path = read(exact)
        .map(PathMatch::Exact)
        .or_else(|| read(prefix).map(PathMatch::prefix));
    map.declare("methods", || {
        let method = Shape::Pattern("^[A-Z!#$%&'*+.^_`|~0-9-]+$");
        method.list().default(Vec::<String>::new())
    });
    let methods = map.field("methods").and_then(|field| field.items());
    let methods = methods.unwrap_or_default();
    let methods = methods.iter().filter_map(method).collect();
    let headers = map.named("headers", || Shape::Text);
    let headers = headers.map(|field| headers_of(&field)).unwrap_or_default();
    map.finish();
    good.then_some(RouteMatch {
        path,
        methods,
        headers,
    })
}

fn path(field: &Field<'_>) -> Option<Arc<str>> {
    field.convert(Code::NAME, |text| {
        let good = |b: u8| b.is_ascii_graphic() && !matches!(b, b'#' | b'?');
        if text.starts_with('/') && text.bytes().all(good) {
            return Ok(Arc::from(text));
        }
        let help = "a path as the instance sees it, as in `/articles`, without a query";
        Err((format!("`{text}` is no path"), help.to_owned()))
    })
}

fn method(item: &Field<'_>) -> Option<Method> {
    item.convert(Code::UNKNOWN_VALUE, |text| {
        let upper = text.to_ascii_uppercase();
        match Method::from_bytes(text.as_bytes()) {
            Ok(method) if upper == text => Ok(method),
            _ => Err((
                format!("`{text}` is no method"),
                format!("methods stand in capitals: `{upper}`"),
            )),
        }
    })
}

/// `NAME: value`; the value `*` means that the field is there.
fn headers_of(field: &Field<'_>) -> Vec<HeaderMatch> {
    let map = field.map();
    let one = |(name, value): (&str, Field<'_>)| {
        let Ok(header) = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes()) else {
            let what = format!("`{name}` is no name of a header");
            value.report(Code::NAME, what, "as in `x-tier: gold`");
            return None;
        };
        let value = value.convert(Code::NAME, |text| match HeaderValue::from_str(text) {
            Ok(_) if text == "*" => Ok(None),
            Ok(value) => Ok(Some(value)),
            Err(_) => Err((
                "the value cannot stand in a header".to_owned(),
                "printable ASCII, or `*` for any value".to_owned(),
            )),
        })?;
        Some(HeaderMatch {
            name: header,
            value,
        })
    };
    map.entries().filter_map(one).collect()
}
