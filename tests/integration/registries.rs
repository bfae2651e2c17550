//! Services of several registries at once, and of registries that are away at the start.

use std::net::SocketAddr;

use crate::harness::{Client, Config, Proxy, Stub, closed_port, eventually};

/// What answers as a registry that knows one service, `svc`, for any question.
fn registry(instances: &[SocketAddr]) -> Stub {
    Stub::answering(list(instances))
}

fn list(instances: &[SocketAddr]) -> String {
    let hosts: Vec<_> = instances
        .iter()
        .map(|at| serde_json::json!({"ip": at.ip().to_string(), "port": at.port()}))
        .collect();
    let body = serde_json::json!({
        "name": "svc", "hosts": hosts, "cacheMillis": 3000, "count": 1, "doms": ["svc"],
    });
    let body = body.to_string();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn nacos(name: &str, at: SocketAddr) -> String {
    format!("  {name}: {{kind: nacos, protocol: http, servers: [\"{at}\"], timeout: 500ms}}")
}

fn body(client: &mut Client) -> (u16, String) {
    let answer = client.get("/svc/");
    (answer.status(), answer.text())
}

fn named(name: &'static str) -> Stub {
    let length = name.len();
    Stub::answering(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{name}"
    ))
}

fn origins(proxy: &Proxy) -> Vec<(String, String)> {
    let answer = proxy.admin("/api/v1/hosts/svc");
    let hosts = answer["hosts"].as_array().cloned().unwrap_or_default();
    let told = hosts.iter().map(|host| {
        let registry = &host["metadata"]["outrigger.registry"];
        (
            host["instance"].as_str().unwrap_or_default().to_owned(),
            registry.as_str().unwrap_or_default().to_owned(),
        )
    });
    let mut told: Vec<_> = told.collect();
    told.sort();
    told
}

#[test]
fn two_registries_are_merged_and_the_first_wins() {
    let (both, only_new) = (named("both"), named("new"));
    let old = registry(&[both.address]);
    let new = registry(&[both.address, only_new.address]);
    let proxy = Config::default()
        .top("registries:")
        .top(&nacos("old", old.address))
        .top(&nacos("new", new.address))
        .top("defaults: {registry: [old, new]}")
        .start();
    let mut client = Client::connect(proxy.address);
    let mut expected = vec![
        (both.address.to_string(), "old".to_owned()),
        (only_new.address.to_string(), "new".to_owned()),
    ];
    expected.sort();
    // The name is discovered by its first request.
    eventually("both registries' instances", || {
        assert_eq!(body(&mut client).0, 200);
        origins(&proxy) == expected
    });
}

#[test]
fn a_registry_that_is_away_takes_nothing_from_the_other() {
    let instance = named("here");
    let new = registry(&[instance.address]);
    let (_nobody, away) = closed_port();
    let proxy = Config::default()
        .top("registries:")
        .top(&nacos("old", away))
        .top(&nacos("new", new.address))
        .top("defaults: {registry: [old, new]}")
        .start();
    let mut client = Client::connect(proxy.address);
    eventually("an answer", || body(&mut client).0 == 200);
    assert_eq!(body(&mut client), (200, "here".to_owned()));
    let status = proxy.admin("/api/v1/upstreams/svc");
    assert!(
        status["error"].as_str().unwrap().starts_with("old: "),
        "{status}"
    );
}

#[test]
fn a_cold_start_without_the_registry_uses_the_cache() {
    let instance = named("here");
    let cache = tempfile::tempdir().unwrap();
    let config = |registry: SocketAddr| {
        Config::default()
            .top("registries:")
            .top(&nacos("r", registry))
            .top(&format!("cache_dir: {}", cache.path().display()))
    };
    let registry_there = registry(&[instance.address]);
    let proxy = config(registry_there.address).start();
    let mut client = Client::connect(proxy.address);
    assert_eq!(body(&mut client), (200, "here".to_owned()));
    let kept = cache.path().join("r/svc.json");
    let names = cache.path().join("r/,names.json");
    eventually("the cache", || kept.exists() && names.exists());
    drop(proxy);

    let (socket, away) = closed_port();
    let proxy = config(away).start();
    let mut client = Client::connect(proxy.address);
    assert_eq!(body(&mut client), (200, "here".to_owned()));
    let status = proxy.admin("/api/v1/upstreams/svc");
    assert_eq!(status["stale"], true, "{status}");
    assert!(status["cached_unix_s"].as_f64().unwrap() > 0.0, "{status}");
    assert_eq!(
        proxy.metric("outrigger_registry_stale", &["registry=\"r\""]),
        1
    );
    assert_eq!(
        proxy.metric("outrigger_registry_up", &["registry=\"r\""]),
        0
    );
    let registries = proxy.admin("/api/v1/registries");
    assert_eq!(registries["registries"][0]["cached"], 1, "{registries}");
    let mut telemetry = Client::connect(proxy.listener("telemetry"));
    assert_eq!(telemetry.get("/readyz").status(), 200);

    // The registry comes back: nothing is from the cache any more.
    let instance_new = named("there");
    socket.listen(64).unwrap();
    let answer = list(&[instance.address, instance_new.address]);
    let _back = Stub::on(socket.into(), move |peer| {
        while peer.request().is_some() {
            peer.send(&answer);
        }
    });
    eventually("the registry's own answer", || {
        let status = proxy.admin("/api/v1/upstreams/svc");
        status["cached_unix_s"].is_null() && status["stale"] == false && status["listed"] == 2
    });
}
