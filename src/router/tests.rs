use std::sync::Arc;

use http::Request;
use proptest::prelude::*;

use super::{Authority, Route, RouteTable, Rule, Settings, TableBuilder, alias, route};
use crate::config::types::{Config, Service};
use crate::upstream::Upstream;

/// (name, hosts) of each service.
type Services = Vec<(String, Vec<String>)>;

fn table(services: &Services) -> RouteTable {
    let defaults = Config::builtin().defaults;
    let mut builder = TableBuilder::default();
    for (name, hosts) in services {
        let mut service = Service::clone(&defaults);
        service.name = name.as_str().into();
        service.hosts = hosts.iter().map(|h| h.as_str().into()).collect();
        let settings = Settings::new(Arc::new(service), name);
        let upstream = Arc::new(Upstream::new(name.as_str().into(), 1));
        builder.add(Arc::new(Route::new(upstream, settings)));
    }
    builder.build().0
}

fn ask(
    table: &RouteTable,
    target: &str,
    headers: &[(&str, &str)],
) -> Result<(String, Rule, usize), String> {
    let mut request = Request::get(target);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let host = parts.headers.get("host").and_then(|h| h.to_str().ok());
    let text = parts.uri.authority().map_or(host, |a| Some(a.as_str()));
    let authority = text.map(|t| Authority::parse(t).unwrap());
    route(table, &parts, authority.as_ref())
        .map(|found| {
            (
                found.route.upstream.name.to_string(),
                found.rule,
                found.strip,
            )
        })
        .map_err(|missed| missed.name)
}

#[test]
fn the_four_rules_in_their_order() {
    let services = vec![
        (
            "orders".to_owned(),
            vec!["orders.internal".to_owned(), "shop:8080".to_owned()],
        ),
        ("billing".to_owned(), vec!["shop".to_owned()]),
    ];
    let table = table(&services);
    let found = |target: &str, headers: &[(&str, &str)]| ask(&table, target, headers).unwrap();
    let named = |name: &str, rule, strip| (name.to_owned(), rule, strip);
    assert_eq!(
        found(
            "/billing/x",
            &[("host", "shop"), ("x-outrigger-upstream", "Orders")]
        ),
        named("orders", Rule::Header, 0)
    );
    assert_eq!(
        found("/x", &[("host", "SHOP:8080")]),
        named("orders", Rule::Host, 0)
    );
    assert_eq!(
        found("/x", &[("host", "shop:9")]),
        named("billing", Rule::Host, 0)
    );
    assert_eq!(
        found("/x", &[("host", "orders:80")]),
        named("orders", Rule::HostName, 0)
    );
    assert_eq!(
        found("/x", &[("host", "orders.localhost:15001")]),
        named("orders", Rule::HostName, 0)
    );
    assert_eq!(
        found("http://billing/x", &[("host", "orders")]),
        named("billing", Rule::HostName, 0)
    );
    for host in ["localhost:15001", "127.0.0.9", "[::1]:15001"] {
        assert_eq!(
            found("/orders/x", &[("host", host)]),
            named("orders", Rule::PathPrefix, 7)
        );
        assert_eq!(
            found("/orders", &[("host", host)]),
            named("orders", Rule::PathPrefix, 7)
        );
    }
    assert_eq!(
        ask(&table, "/", &[("host", "localhost")]),
        Err(String::new())
    );
    assert_eq!(
        ask(&table, "/orders/x", &[("host", "ordes.outrigger")]),
        Err("ordes".to_owned())
    );
    assert_eq!(table.nearest("ordes").first().map(|n| &**n), Some("orders"));
}

#[test]
fn derived_names_need_to_be_unambiguous() {
    let names = ["DEFAULT_GROUP@@x", "a_b", "a@b", "x_y", "x-y"];
    let services: Services = names
        .iter()
        .map(|n| ((*n).to_owned(), Vec::new()))
        .collect();
    let table = table(&services);
    let by = |name: &str| table.by_name(name).map(|r| r.upstream.name.to_string());
    assert_eq!(by("x").as_deref(), Some("DEFAULT_GROUP@@x"));
    assert_eq!(by("default-group-x").as_deref(), Some("DEFAULT_GROUP@@x"));
    assert_eq!(by("a-b"), None, "two services have this alias");
    assert_eq!(
        by("x-y").as_deref(),
        Some("x-y"),
        "a name wins over an alias"
    );
    assert_eq!(alias("DEFAULT_GROUP@@x"), "default-group-x");
}

/// What the specification says, looked for from the first service to the last.
fn naive(services: &Services, target: &str, header: Option<&str>, host: &str) -> Option<String> {
    let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
    let by_name = |wanted: &str| {
        let derived = |name: &str| {
            let bare = name
                .get(15..)
                .filter(|_| same(name.get(..15).unwrap_or(""), "DEFAULT_GROUP@@"));
            let mut all = vec![alias(name)];
            all.extend(bare.map(str::to_owned));
            all.extend(bare.map(alias));
            all.iter().any(|other| same(other, wanted))
        };
        let exact: Vec<&String> = services
            .iter()
            .map(|(n, _)| n)
            .filter(|n| same(n, wanted))
            .collect();
        let others: Vec<&String> = services
            .iter()
            .map(|(n, _)| n)
            .filter(|n| derived(n))
            .collect();
        match (&exact[..], &others[..]) {
            ([one], _) | ([], [one]) => Some((*one).clone()),
            _ => None,
        }
    };
    if let Some(name) = header {
        return by_name(name);
    }
    let bare = host.split(':').next().unwrap_or(host);
    if !(same(bare, "localhost") || bare.starts_with("127.")) {
        let listed = |text: &str| {
            let mut sorted: Vec<&(String, Vec<String>)> = services.iter().collect();
            sorted.sort();
            sorted
                .into_iter()
                .find(|(_, hosts)| hosts.iter().any(|h| same(h, text)))
        };
        if let Some((name, _)) = listed(host).or_else(|| listed(bare)) {
            return Some(name.clone());
        }
        let cut = bare.len().saturating_sub(10);
        let suffix = bare.get(cut..).unwrap_or("");
        let service = if same(suffix, ".localhost") || same(suffix, ".outrigger") {
            bare.get(..cut).unwrap_or(bare)
        } else {
            bare
        };
        return by_name(service);
    }
    by_name(
        target
            .trim_start_matches('/')
            .split('/')
            .next()
            .unwrap_or(""),
    )
}

fn names() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "orders",
        "Orders",
        "a_b",
        "a-b",
        "a.b",
        "x",
        "DEFAULT_GROUP@@x",
        "default_group@@y",
        "y",
    ])
    .prop_map(str::to_owned)
}

fn hosts() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "shop",
        "shop:80",
        "SHOP:80",
        "orders",
        "orders.localhost",
        "a-b.outrigger:1",
        "x:9",
        "y",
        "localhost:1",
        "127.0.0.1",
        "default-group-x",
    ])
    .prop_map(str::to_owned)
}

proptest! {
    #[test]
    fn the_table_agrees_with_a_naive_scan(
        services in prop::collection::btree_map(names(), prop::collection::vec(hosts(), 0..2), 0..5),
        header in prop::option::of(names()),
        host in hosts(),
        segment in names(),
    ) {
        let services: Services = services.into_iter().collect();
        let target = format!("/{}/p", segment.replace('@', "%40"));
        let mut headers = vec![("host", host.as_str())];
        headers.extend(header.as_deref().map(|h| ("x-outrigger-upstream", h)));
        let got = ask(&table(&services), &target, &headers).ok().map(|(name, ..)| name);
        let want = naive(&services, &format!("/{segment}/p"), header.as_deref(), &host);
        prop_assert_eq!(got, want, "{:?} {} {:?} {}", services, target, header, host);
    }
}
