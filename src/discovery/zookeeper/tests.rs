//! The source against a fake server in paused time, over in-memory connections.

mod fake;

use std::collections::BTreeMap;

use tokio::sync::{mpsc, watch};

use self::fake::FakeZookeeper;
use super::interest::Interests;
use super::*;
use crate::config::types::{EmptyPolicy, OnEmpty, RegistryKind, RegistryTls};
use crate::discovery::handle::Shared;
use crate::discovery::{Cache, Deps, NoEvents, RegistryHandle, ServiceQuery, ServiceView};

type View = watch::Receiver<ServiceView>;

fn start_all(layout: ZookeeperLayout) -> (FakeZookeeper, RegistryHandle, Arc<Interests>) {
    let zookeeper = Zookeeper {
        servers: Vec::new(),
        root: "dubbo".to_owned(),
        layout,
        session_timeout: Duration::from_secs(30),
    };
    let config = Registry {
        name: "z".into(),
        kind: RegistryKind::Zookeeper(zookeeper.clone()),
        empty: EmptyPolicy {
            on_empty: OnEmpty::Hold,
            grace: Duration::from_secs(30),
            answers: 3,
            shrink_percent: 50,
        },
        max_in_flight: 8,
        timeout: Duration::from_secs(5),
        tls: RegistryTls::default(),
    };
    let clock = Clock::new();
    let deps = Deps {
        embedded: None,
        cache: Cache::default(),
        parser: |_, _| Ok(BTreeMap::new()),
        clock,
        events: Arc::new(NoEvents),
        seed: 7,
    };
    let (sender, mut connections) = mpsc::unbounded_channel();
    let fake = FakeZookeeper::default();
    let server = fake.clone();
    tokio::spawn(async move {
        while let Some(stream) = connections.recv().await {
            server.serve(stream);
        }
    });
    let targets = vec![Target::Memory(sender)];
    let source = ZookeeperSource::with_targets(&zookeeper, &config, clock, 7, targets);
    let interests = Arc::clone(&source.session.interests);
    let handle = RegistryHandle::new(Shared::new(&config, &deps), Arc::new(source));
    (fake, handle, interests)
}

fn start(layout: ZookeeperLayout) -> (FakeZookeeper, RegistryHandle) {
    let (fake, handle, _) = start_all(layout);
    (fake, handle)
}

fn provider(interface: &str, host: &str) -> String {
    let url =
        format!("tri://{host}:50051/{interface}?interface={interface}&timestamp=1600000000000");
    let node: String = form_urlencoded::byte_serialize(url.as_bytes()).collect();
    format!("/dubbo/{interface}/providers/{node}")
}

fn instance(host: &str) -> String {
    format!(
        r#"{{"id":"{host}:20880","address":"{host}","port":20880,"payload":{{"metadata":
        {{"dubbo.endpoints":"[{{\"port\":50051,\"protocol\":\"tri\"}}]"}}}}}}"#
    )
}

fn told(view: &ServiceView) -> Vec<String> {
    let set = view.set.as_ref();
    set.iter()
        .flat_map(|set| set.endpoints.iter())
        .map(|e| e.address.to_string())
        .collect()
}

async fn until(view: &mut View, want: &[&str]) {
    let seen = view.wait_for(|view| view.set.is_some() && told(view) == want);
    let seen = tokio::time::timeout(Duration::from_secs(600), seen)
        .await
        .is_ok();
    assert!(seen, "{:?}", *view.borrow());
}

#[tokio::test(start_paused = true)]
async fn row_31_a_missing_path_is_watched_until_it_comes() {
    let (fake, handle) = start(ZookeeperLayout::Interface);
    let mut view = handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, &[]).await;
    let reads = fake.reads();
    // The path comes, with one provider: told by the watch, not by the next reading.
    fake.create(&provider("a", "10.0.0.1"), "10.0.0.1");
    let begun = Clock::new();
    let from = begun.now();
    until(&mut view, &["10.0.0.1:50051"]).await;
    assert!(begun.now().since(from) < Duration::from_secs(1));
    assert!(fake.reads() > reads);
    fake.create(&provider("a", "10.0.0.2"), "");
    until(&mut view, &["10.0.0.1:50051", "10.0.0.2:50051"]).await;
    fake.delete(&provider("a", "10.0.0.1"));
    until(&mut view, &["10.0.0.2:50051"]).await;
    assert!(begun.now().since(from) < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn row_31_after_an_expired_session_all_is_read_and_watched_again() {
    let (fake, handle) = start(ZookeeperLayout::Both);
    fake.create(&provider("a", "10.0.0.1"), "");
    fake.create("/services/a/10.0.0.9:20880", &instance("10.0.0.9"));
    let mut view = handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, &["10.0.0.9:50051", "10.0.0.1:50051"]).await;
    assert_eq!(fake.sessions(), 1);
    fake.expire();
    // What changes while nobody is connected is seen by the new session.
    fake.set("/services/a/10.0.0.9:20880", &instance("10.0.0.8"));
    until(&mut view, &["10.0.0.8:50051", "10.0.0.1:50051"]).await;
    assert_eq!(fake.sessions(), 2);
    // And its watches work.
    fake.set("/services/a/10.0.0.9:20880", &instance("10.0.0.7"));
    let clock = Clock::new();
    let from = clock.now();
    until(&mut view, &["10.0.0.7:50051", "10.0.0.1:50051"]).await;
    assert!(clock.now().since(from) < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_keeps_session_and_watches() {
    let (fake, handle) = start(ZookeeperLayout::Both);
    fake.create("/services/a/one", &instance("10.0.0.1"));
    let mut view = handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, &["10.0.0.1:50051"]).await;
    fake.refuse(true);
    fake.cut();
    view.wait_for(|view| view.error.is_some()).await.unwrap();
    assert_eq!(told(&view.borrow()), ["10.0.0.1:50051"]);
    // Changed while we are away: setWatches brings the event.
    fake.set("/services/a/one", &instance("10.0.0.2"));
    fake.refuse(false);
    until(&mut view, &["10.0.0.2:50051"]).await;
    assert_eq!(fake.sessions(), 1);
    assert!(view.borrow().error.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_drops_each_session_is_not_asked_without_a_pause() {
    let (fake, handle) = start(ZookeeperLayout::Both);
    fake.create(&provider("a", "10.0.0.1"), "");
    let mut view = handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, &["10.0.0.1:50051"]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    // A good connection that is lost is replaced at once.
    let clock = Clock::new();
    let from = clock.now();
    fake.cut();
    while fake.connections() < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(clock.now().since(from) < Duration::from_millis(100));
    fake.drop_sessions(true);
    fake.cut();
    tokio::time::sleep(Duration::from_secs(120)).await;
    let connections = fake.connections();
    assert!((10..60).contains(&connections), "{connections}");
    assert!(view.borrow().error.is_some());
    fake.create(&provider("a", "10.0.0.2"), "");
    fake.drop_sessions(false);
    let from = clock.now();
    until(&mut view, &["10.0.0.1:50051", "10.0.0.2:50051"]).await;
    assert!(clock.now().since(from) < Duration::from_secs(15));
}

#[tokio::test(start_paused = true)]
async fn one_session_for_all_and_it_stays_alive() {
    let (fake, handle) = start(ZookeeperLayout::Both);
    fake.create(&provider("a", "10.0.0.1"), "");
    let views: Vec<View> = (0..50)
        .map(|n| handle.subscribe(ServiceQuery::named(if n == 0 { "a" } else { "other" })))
        .collect();
    let mut first = views[0].clone();
    until(&mut first, &["10.0.0.1:50051"]).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((fake.sessions(), fake.connections()), (1, 1));
    assert!(fake.most_pending() <= 8, "{}", fake.most_pending());
    drop((views, first, handle));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(fake.closed(), "the session was not ended");
}

#[tokio::test(start_paused = true)]
async fn instances_that_are_gone_are_of_no_interest() {
    let (fake, handle, interests) = start_all(ZookeeperLayout::Application);
    fake.create("/services/a/stays", &instance("10.0.0.1"));
    let mut view = handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, &["10.0.0.1:50051"]).await;
    let count = interests.count();
    for number in 0..20 {
        let path = format!("/services/a/{number}");
        fake.create(&path, &instance("10.0.0.9"));
        until(&mut view, &["10.0.0.9:50051", "10.0.0.1:50051"]).await;
        fake.delete(&path);
        until(&mut view, &["10.0.0.1:50051"]).await;
    }
    fake.create("/services/a/goes", &instance("10.0.0.9"));
    until(&mut view, &["10.0.0.9:50051", "10.0.0.1:50051"]).await;
    fake.expire();
    fake.delete("/services/a/goes");
    until(&mut view, &["10.0.0.1:50051"]).await;
    assert_eq!(interests.count(), count);
    // Changes of the one that stayed are still told.
    fake.set("/services/a/stays", &instance("10.0.0.2"));
    until(&mut view, &["10.0.0.2:50051"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_interface_is_found_through_its_mapping() {
    let (fake, handle) = start(ZookeeperLayout::Application);
    let mut view = handle.subscribe(ServiceQuery::named("com.acme.Orders"));
    until(&mut view, &[]).await;
    fake.create("/services/orders/one", &instance("10.0.0.1"));
    fake.create("/services/more/two", &instance("10.0.0.2"));
    fake.create("/dubbo/mapping/com.acme.Orders", "orders");
    until(&mut view, &["10.0.0.1:50051"]).await;
    fake.set("/dubbo/mapping/com.acme.Orders", "orders,more");
    until(&mut view, &["10.0.0.2:50051", "10.0.0.1:50051"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_giant_answer_is_an_error_and_the_others_go_on() {
    let (fake, handle) = start(ZookeeperLayout::Interface);
    fake.create(&provider("a", "10.0.0.1"), "");
    fake.create(&provider("b", "10.0.0.2"), "");
    let mut a = handle.subscribe(ServiceQuery::named("a"));
    let mut b = handle.subscribe(ServiceQuery::named("b"));
    until(&mut a, &["10.0.0.1:50051"]).await;
    until(&mut b, &["10.0.0.2:50051"]).await;
    fake.bloat("/dubbo/a/providers");
    fake.create(&provider("a", "10.0.0.3"), "");
    a.wait_for(|view| view.error.is_some()).await.unwrap();
    let error = a.borrow().error.clone().unwrap();
    assert!(error.contains("is above 16777216"), "{error}");
    assert_eq!(told(&a.borrow()), ["10.0.0.1:50051"]);
    fake.create(&provider("b", "10.0.0.4"), "");
    until(&mut b, &["10.0.0.2:50051", "10.0.0.4:50051"]).await;
    assert_eq!(fake.connections(), 1);
}

#[tokio::test(start_paused = true)]
async fn configurators_count_and_other_versions_are_told() {
    let (fake, handle) = start(ZookeeperLayout::Interface);
    fake.create(&provider("a", "10.0.0.1"), "");
    let off = "override%3A%2F%2F10.0.0.1%2Fa%3Fcategory%3Dconfigurators%26disabled%3Dtrue";
    let mut view = handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, &["10.0.0.1:50051"]).await;
    fake.create(&format!("/dubbo/a/configurators/{off}"), "");
    view.wait_for(|view| !view.set.as_ref().unwrap().endpoints[0].enabled)
        .await
        .unwrap();
    let mut view = handle.subscribe(ServiceQuery::named("g/a:2.0.0"));
    view.wait_for(|view| view.error.is_some()).await.unwrap();
    let error = view.borrow().error.clone().unwrap();
    assert!(error.contains("group - version - protocol tri"), "{error}");
}
