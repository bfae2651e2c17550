//! Endpoint sources over real sockets and files.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outrigger::clock::Clock;
use outrigger::config::types::{
    EmptyPolicy, Nacos, NacosProtocol, OnEmpty, Registry, RegistryKind, RegistryTls,
};
use outrigger::discovery::{
    self, Cache, Deps, NoEvents, RegistryHandle, ServiceQuery, ServiceView,
};
use outrigger::endpoint::{Address, Endpoint, EndpointSet};
use outrigger::registry::{InstanceKey, Registration, ServiceKey};
use outrigger::testing::nacos::FakeNacos;
use tokio::sync::watch;

use super::registry::Running;

fn registry(kind: RegistryKind, on_empty: OnEmpty) -> Registry {
    let grace = Duration::from_secs(30);
    Registry {
        name: "r".into(),
        kind,
        empty: EmptyPolicy {
            on_empty,
            grace,
            answers: 3,
            shrink_percent: 50,
        },
        max_in_flight: 8,
        timeout: Duration::from_secs(2),
        tls: RegistryTls::default(),
    }
}

fn nacos(servers: &[SocketAddr]) -> RegistryKind {
    RegistryKind::Nacos(Nacos {
        endpoint: None,
        protocol: NacosProtocol::Http,
        udp_push: false,
        servers: servers.iter().map(ToString::to_string).collect(),
        namespace: "public".into(),
        group: "DEFAULT_GROUP".into(),
        clusters: Vec::new(),
        username: None,
        password_file: None,
        password: None,
    })
}

fn deps() -> Deps {
    Deps {
        embedded: None,
        cache: Cache::default(),
        parser: parse,
        clock: Clock::new(),
        events: Arc::new(NoEvents),
        seed: 1,
    }
}

/// `name address...` a line.
fn parse(text: &str, path: &Path) -> Result<BTreeMap<Arc<str>, EndpointSet>, String> {
    let mut sets = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let endpoints = words.map(|word| Address::parse(word).map(Endpoint::new));
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>();
        let endpoints = endpoints.map_err(|e| format!("{}:{}: {e}", path.display(), number + 1))?;
        sets.insert(
            name.into(),
            EndpointSet {
                endpoints: endpoints.into(),
                health_unknown: false,
            },
        );
    }
    Ok(sets)
}

fn addresses(view: &ServiceView) -> Option<Vec<String>> {
    let set = view.set.as_ref()?;
    Some(
        set.endpoints
            .iter()
            .map(|endpoint| endpoint.address.to_string())
            .collect(),
    )
}

async fn until(view: &mut watch::Receiver<ServiceView>, wanted: &[&str]) {
    let same = |view: &ServiceView| addresses(view).is_some_and(|set| set == wanted);
    let found = tokio::time::timeout(Duration::from_secs(10), view.wait_for(same))
        .await
        .is_ok();
    assert!(found, "wanted {wanted:?}, have {:?}", view.borrow());
}

fn in_file(path: PathBuf) -> RegistryHandle {
    discovery::start(
        &registry(RegistryKind::File { path }, OnEmpty::Obey),
        deps(),
    )
}

#[tokio::test]
async fn a_file_is_followed_through_edits_renames_and_mistakes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("endpoints");
    std::fs::write(&path, "a 10.0.0.1:80 10.0.0.2:80\n").unwrap();
    let handle = in_file(path.clone());
    let mut view = handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, &["10.0.0.1:80", "10.0.0.2:80"]).await;

    std::fs::write(&path, "a 10.0.0.1:80\nb 10.0.0.9:1:2\n").unwrap();
    let wrong = view.wait_for(|v| v.error.is_some()).await.unwrap().clone();
    assert!(
        wrong.error.as_ref().unwrap().contains("endpoints:2: "),
        "{wrong:?}"
    );
    assert_eq!(addresses(&wrong).unwrap().len(), 2);
    assert!(!handle.refresh_names().await);

    std::fs::remove_file(&path).unwrap();
    view.wait_for(|v| v.error.as_ref().is_some_and(|e| !e.contains(":2:")))
        .await
        .unwrap();
    assert_eq!(addresses(&view.borrow()).unwrap().len(), 2);

    // A pipe in its place is not waited for.
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    view.wait_for(|v| {
        v.error
            .as_ref()
            .is_some_and(|e| e.contains("not a regular"))
    })
    .await
    .unwrap();
    assert_eq!(addresses(&view.borrow()).unwrap().len(), 2);

    let fresh = folder.path().join("fresh");
    std::fs::write(&fresh, "b 10.0.0.3:80\n").unwrap();
    std::fs::rename(&fresh, &path).unwrap();
    until(&mut view, &[]).await;
    assert!(view.borrow().error.is_none());
    let mut names = handle.names();
    let names = names
        .wait_for(|v| v.names.is_some())
        .await
        .unwrap()
        .names
        .clone()
        .unwrap();
    assert_eq!(*names, ["b".into()]);
}

#[tokio::test]
async fn the_embedded_registry_is_followed_at_once() {
    let run = Running::fresh().await;
    let kind = RegistryKind::Embedded(super::registry::config());
    let deps = Deps {
        embedded: Some(run.registry.clone()),
        cache: Cache::default(),
        ..deps()
    };
    let handle = discovery::start(&registry(kind, OnEmpty::Obey), deps);
    let mut view = handle.subscribe(ServiceQuery::named("a"));
    let mut names = handle.names();
    names.wait_for(|v| v.names.is_some()).await.unwrap();
    until(&mut view, &[]).await;
    let key = ServiceKey::new(None, None, "a").unwrap();
    for port in [2, 1] {
        let instance = InstanceKey::new("10.0.0.1", port, None).unwrap();
        run.registry
            .register(&key, Registration::new(instance))
            .unwrap();
    }
    let start = Clock::new();
    until(&mut view, &["10.0.0.1:2", "10.0.0.1:1"]).await;
    let seen = names.wait_for(|v| v.names.as_ref().is_some_and(|n| n.len() == 1));
    seen.await.unwrap();
    assert!(start.now().as_millis() < 500);
    assert!(handle.heartbeat() && handle.can_list() && handle.kind() == "embedded");
    run.stop().await;
}

#[tokio::test]
async fn the_nacos_source_follows_the_embedded_registry_and_survives_its_end() {
    let run = Running::fresh().await;
    run.call(
        "POST",
        "/ns/instance?serviceName=a&ip=10.0.0.1&port=80&weight=3",
    )
    .await;
    let handle = discovery::start(&registry(nacos(&[run.address]), OnEmpty::Hold), deps());
    let mut view = handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, &["10.0.0.1:80"]).await;
    let weight = view.borrow().set.as_ref().unwrap().endpoints[0].weight;
    assert_eq!(weight.thousandths(), 3000);
    assert!(handle.refresh_names().await);
    run.call("POST", "/ns/instance?serviceName=a&ip=10.0.0.2&port=80")
        .await;
    until(&mut view, &["10.0.0.1:80", "10.0.0.2:80"]).await;
    run.stop().await;
    let lost = view.wait_for(|v| v.error.is_some()).await.unwrap().clone();
    assert_eq!(addresses(&lost).unwrap().len(), 2);
    assert!(!lost.stale && handle.stats().last_error.is_some());
}

#[tokio::test]
async fn row_32_dubbo_providers_under_both_names_are_one_set() {
    let fake = FakeNacos::new();
    let host = |ip: &str, weight: &str| {
        serde_json::json!({"ip": ip, "port": 50051, "metadata":
            {"category": "providers", "protocol": "tri", "weight": weight}})
    };
    let current = vec![host("10.0.0.1", "100"), host("10.0.0.2", "50")];
    fake.set_hosts("DEFAULT_GROUP@@providers:X::", current);
    let legacy = vec![host("10.0.0.2", "50"), host("10.0.0.3", "200")];
    fake.set_hosts("DEFAULT_GROUP@@providers:X", legacy);
    let servers = [fake.listen().await.unwrap()];
    let handle = discovery::start(&registry(nacos(&servers), OnEmpty::Hold), deps());
    for name in ["providers:X::", "providers:X"] {
        let mut view = handle.subscribe(ServiceQuery::named(name));
        until(
            &mut view,
            &["10.0.0.1:50051", "10.0.0.2:50051", "10.0.0.3:50051"],
        )
        .await;
        let set = view.borrow().set.clone().unwrap();
        let weights: Vec<u32> = set
            .endpoints
            .iter()
            .map(|e| e.weight.thousandths())
            .collect();
        assert_eq!(weights, [1000, 500, 2000]);
        assert!(
            set.endpoints
                .iter()
                .all(|e| e.metadata["protocol"] == "grpc")
        );
    }
}

#[tokio::test]
async fn a_refused_port_sends_the_poll_to_the_other_server() {
    let dead = FakeNacos::new();
    let address = dead.listen().await.unwrap();
    dead.stop();
    let fake = FakeNacos::new();
    fake.set("DEFAULT_GROUP@@a", &["10.0.0.1:80"]);
    let servers = [address, fake.listen().await.unwrap()];
    for seed in 0..4 {
        let deps = Deps { seed, ..deps() };
        let handle = discovery::start(&registry(nacos(&servers), OnEmpty::Hold), deps);
        let mut view = handle.subscribe(ServiceQuery::named("a"));
        until(&mut view, &["10.0.0.1:80"]).await;
        assert_eq!(handle.stats().updates.failed, 0);
    }
}
