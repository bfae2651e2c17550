//! The source by gRPC against a scripted server, in paused time, over in-memory connections.

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, watch};

use super::super::{CONTEXT, NacosSource};
use super::*;
use crate::config::types::{
    EmptyPolicy, Nacos, NacosProtocol, OnEmpty, Registry, RegistryKind, RegistryTls, Secret,
};
use crate::discovery::handle::Shared;
use crate::discovery::{
    Cache, Deps, HoldCause, NoEvents, RegistryHandle, ServiceQuery, ServiceView,
};
use crate::http_client::Target;
use crate::http_client::servers::Server;
use crate::nacos_client::link::{Link, State};
use crate::protocol::nacos::message::{Instance, REGISTER};
use crate::testing::nacos::FakeNacos;
use crate::testing::nacos_grpc::FakeGrpc;

const TWO: &[&str] = &["10.0.0.1:80", "10.0.0.2:80"];
const THREE: &[&str] = &["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"];

struct Setup {
    grpc: Vec<FakeGrpc>,
    http: FakeNacos,
    source: Arc<NacosSource>,
    handle: RegistryHandle,
    clock: Clock,
}

fn nacos(protocol: NacosProtocol) -> Nacos {
    Nacos {
        endpoint: None,
        protocol,
        udp_push: false,
        servers: Vec::new(),
        namespace: "public".into(),
        group: "g".into(),
        clusters: Vec::new(),
        username: None,
        password_file: None,
        password: None,
    }
}

fn setup(servers: usize, nacos: &Nacos) -> Setup {
    let config = Registry {
        name: "n".into(),
        kind: RegistryKind::Nacos(nacos.clone()),
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
        parser: |_, _| Ok(std::collections::BTreeMap::new()),
        clock,
        events: Arc::new(NoEvents),
        seed: 7,
    };
    let http = FakeNacos::new();
    let (mut grpc, mut list) = (Vec::new(), Vec::new());
    for _ in 0..servers {
        let fake = FakeGrpc::new();
        let (sender, mut connections) = mpsc::unbounded_channel::<tokio::io::DuplexStream>();
        let (ours, http) = (fake.clone(), http.clone());
        tokio::spawn(async move {
            // One channel for both ports: HTTP/2 is told by its first bytes.
            while let Some(mut stream) = connections.recv().await {
                let mut first = [0; 3];
                if stream.read_exact(&mut first).await.is_err() {
                    continue;
                }
                let (read, write) = tokio::io::split(stream);
                let whole = std::io::Cursor::new(first).chain(read);
                let stream = tokio::io::join(Box::pin(whole), write);
                match &first {
                    b"PRI" => ours.serve(stream),
                    _ => http.serve(stream),
                }
            }
        });
        grpc.push(fake);
        let prefix = CONTEXT.to_owned();
        let target = Target::Memory(sender);
        list.push(Server { target, prefix });
    }
    let source = NacosSource::new(nacos, &config, clock, 7).with_list(list);
    let source = Arc::new(source);
    let handle = RegistryHandle::new(Shared::new(&config, &deps), source.clone());
    Setup {
        grpc,
        http,
        source,
        handle,
        clock,
    }
}

fn grpc(servers: usize) -> Setup {
    setup(servers, &nacos(NacosProtocol::Grpc))
}

fn addresses(view: &ServiceView) -> Vec<String> {
    let set = view.set.iter().flat_map(|set| set.endpoints.iter());
    set.map(|endpoint| endpoint.address.to_string()).collect()
}

async fn until(
    view: &mut watch::Receiver<ServiceView>,
    wanted: impl FnMut(&ServiceView) -> bool,
) -> ServiceView {
    let found = tokio::time::timeout(Duration::from_secs(600), view.wait_for(wanted)).await;
    found.expect("in time").expect("still followed").clone()
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn pushes_come_at_once_and_a_lost_one_within_a_minute() {
    let setup = grpc(1);
    let fake = &setup.grpc[0];
    fake.set("g@@a", TWO);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    assert_eq!(addresses(&until(&mut view, |v| v.set.is_some()).await), TWO);
    let start = setup.clock.now();
    fake.set("g@@a", THREE);
    until(&mut view, |v| v.version == 2).await;
    assert!(setup.clock.now().since(start) < Duration::from_millis(100));
    fake.set_silently("g@@a", TWO);
    until(&mut view, |v| v.version == 3).await;
    let lost_for = setup.clock.now().since(start).as_secs();
    assert!((53..=66).contains(&lost_for), "{lost_for}");
    seconds(5).await;
    assert!(
        fake.answers()
            .iter()
            .any(|(kind, _)| kind == "NotifySubscriberResponse")
    );
    assert_eq!(fake.connections(), (1, 1), "one connection for everything");
    // Nobody listens: pushes are no longer wanted.
    drop(view);
    seconds(1).await;
    let calls = fake.calls();
    assert_eq!(calls.last().unwrap().1, "SubscribeServiceRequest");
    assert_eq!(setup.handle.stats().subscriptions, 0);
}

#[tokio::test(start_paused = true)]
async fn two_services_share_the_connection_and_names_are_listed_on_it() {
    let setup = grpc(1);
    let fake = &setup.grpc[0];
    fake.negotiate(false);
    fake.set("g@@a", TWO);
    fake.set("other@@b", THREE);
    let mut a = setup.handle.subscribe(ServiceQuery::named("a"));
    let mut b = setup.handle.subscribe(ServiceQuery::named("other@@b"));
    until(&mut a, |v| v.set.is_some()).await;
    assert_eq!(addresses(&until(&mut b, |v| v.set.is_some()).await), THREE);
    let mut names = setup.handle.names();
    let names = names.wait_for(|v| v.names.is_some()).await.unwrap().clone();
    assert_eq!(names.names.unwrap().len(), 2);
    assert_eq!(fake.connections(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn row_01_a_dead_server_leaves_the_set_and_is_told() {
    let setup = grpc(1);
    let fake = &setup.grpc[0];
    fake.set("g@@a", TWO);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    fake.refuse(true);
    until(&mut view, |v| v.error.is_some()).await;
    let start = setup.clock.now();
    let stale = until(&mut view, |v| v.stale).await;
    assert_eq!(setup.clock.now().since(start).as_secs(), 30);
    assert_eq!((addresses(&stale), stale.version), (TWO.map_strings(), 1));
    seconds(3600).await;
    let stats = setup.handle.stats();
    assert!(stats.stale && !stats.up && stats.updates.failed > 100);
    assert!(stats.updates.failed < 3600 / 5, "pauses grow");
    fake.refuse(false);
    let back = until(&mut view, |v| v.error.is_none()).await;
    assert!(!back.stale && back.version == 1, "the same set is no news");
}

#[tokio::test(start_paused = true)]
async fn row_11_forged_health_is_told() {
    let setup = grpc(1);
    let fake = &setup.grpc[0];
    fake.protect(true);
    fake.set("g@@a", TWO);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    let first = until(&mut view, |v| v.set.is_some()).await;
    assert!(first.set.unwrap().health_unknown && setup.handle.stats().protected);
    fake.protect(false);
    fake.set("g@@a", TWO);
    until(&mut view, |v| v.version == 2).await;
    assert!(!setup.handle.stats().protected);
}

#[tokio::test(start_paused = true)]
async fn row_12_a_void_token_is_renewed_once_and_a_wrong_password_is_no_storm() {
    let mut config = nacos(NacosProtocol::Grpc);
    config.username = Some("u".to_owned());
    config.password = Some(Secret("p".to_owned()));
    let setup = setup(1, &config);
    let fake = &setup.grpc[0];
    setup.http.require("p");
    // The first login gives token-1, the second token-2.
    fake.require("token-2");
    fake.set("g@@a", TWO);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    assert_eq!(
        (setup.http.logins(), setup.handle.stats().updates.failed),
        (2, 0)
    );
    fake.require("another");
    fake.set_silently("g@@a", THREE);
    let refused = until(&mut view, |v| v.error.is_some()).await;
    assert!(refused.error.unwrap().contains("403"));
    let logins = setup.http.logins();
    seconds(600).await;
    let more = setup.http.logins() - logins;
    assert!(more <= 11, "{more} logins in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn row_13_calls_before_the_set_up_are_repeated_and_a_forgotten_one_is_made_again() {
    let setup = grpc(1);
    let fake = &setup.grpc[0];
    fake.set("g@@a", TWO);
    fake.forget(3);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    assert_eq!(
        (fake.connections().0, setup.handle.stats().updates.failed),
        (1, 0)
    );
    fake.set_silently("g@@a", THREE);
    fake.forget(11);
    until(&mut view, |v| v.version == 2).await;
    assert_eq!(fake.connections(), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn row_13_the_server_may_ask_and_send_us_elsewhere() {
    let setup = grpc(2);
    for fake in &setup.grpc {
        fake.set("g@@a", TWO);
    }
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    let used = usize::from(setup.grpc[0].connections().1 == 0);
    let (first, second) = (&setup.grpc[used], &setup.grpc[1 - used]);
    let start = setup.clock.now();
    first.say("ClientDetectionRequest", &json!({}));
    while first.answers().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(setup.clock.now().since(start) < Duration::from_secs(1));
    let (kind, id) = first.answers()[0].clone();
    assert_eq!(
        (kind.as_str(), id.is_string()),
        ("ClientDetectionResponse", true)
    );
    first.say(
        "ConnectResetRequest",
        &json!({"serverIp": "unknown", "serverPort": "1"}),
    );
    second.set("g@@a", THREE);
    until(&mut view, |v| v.version == 2).await;
    assert_eq!((first.connections().1, second.connections()), (0, (1, 1)));
    assert_eq!(first.answers()[1].0, "ConnectResetResponse");
}

#[tokio::test(start_paused = true)]
async fn row_13_after_a_cut_registrations_come_first_and_subscriptions_after_them() {
    let setup = grpc(1);
    let fake = &setup.grpc[0];
    fake.set("g@@a", TWO);
    fake.set("g@@b", TWO);
    let mut a = setup.handle.subscribe(ServiceQuery::named("a"));
    let mut b = setup.handle.subscribe(ServiceQuery::named("b"));
    until(&mut a, |v| v.set.is_some()).await;
    until(&mut b, |v| v.set.is_some()).await;
    let link: Arc<Link> = setup.source.link("public");
    let wish = Naming {
        namespace: Some("public".to_owned()),
        service_name: Some("app".to_owned()),
        action: Some(REGISTER.to_owned()),
        instance: Some(Instance::default()),
        ..Naming::default()
    };
    link.register(1, kind::INSTANCE, wish).await.unwrap();
    fake.cut();
    fake.set_silently("g@@a", THREE);
    fake.set_silently("g@@b", THREE);
    until(&mut a, |v| v.version == 2).await;
    until(&mut b, |v| v.version == 2).await;
    let kinds = |number: usize| -> Vec<String> {
        let calls = fake.calls().into_iter().filter(|(n, _)| *n == number);
        calls.map(|(_, kind)| kind).collect()
    };
    assert_eq!(
        kinds(2),
        [
            "ServerCheckRequest",
            "InstanceRequest",
            "SubscribeServiceRequest",
            "SubscribeServiceRequest"
        ]
    );
    link.forget(1);
    fake.cut();
    let mut state = link.state();
    state
        .wait_for(|state| matches!(state, State::Down(_)))
        .await
        .unwrap();
    state
        .wait_for(|state| matches!(state, State::Up(_)))
        .await
        .unwrap();
    seconds(1).await;
    assert!(
        !kinds(3).contains(&"InstanceRequest".to_owned()),
        "{:?}",
        kinds(3)
    );
}

#[tokio::test(start_paused = true)]
async fn row_14_an_empty_push_is_held_and_asked_again() {
    let setup = grpc(1);
    let fake = &setup.grpc[0];
    fake.set("g@@a", THREE);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    fake.set("g@@a", &[]);
    let held = until(&mut view, |v| v.held.is_some()).await;
    assert_eq!(held.held.unwrap().cause, HoldCause::Empty);
    assert_eq!(addresses(&held), THREE);
    let start = setup.clock.now();
    until(&mut view, |v| v.version == 2).await;
    assert_eq!(setup.clock.now().since(start).as_secs(), 30);
    // Back before it is believed: no event at all.
    fake.set("g@@a", THREE);
    until(&mut view, |v| v.version == 3).await;
    fake.set("g@@a", &[]);
    until(&mut view, |v| v.held.is_some()).await;
    fake.set("g@@a", THREE);
    let back = until(&mut view, |v| v.held.is_none()).await;
    assert_eq!((back.version, addresses(&back)), (3, THREE.map_strings()));
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_checked_and_a_hanging_server_left() {
    let setup = grpc(2);
    for fake in &setup.grpc {
        fake.set("g@@a", TWO);
    }
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    let used = usize::from(setup.grpc[0].connections().1 == 0);
    let (first, second) = (&setup.grpc[used], &setup.grpc[1 - used]);
    let before = first.checks();
    seconds(31).await;
    let checks = first.checks() - before;
    assert!((5..=7).contains(&checks), "{checks}");
    first.hang(true);
    second.set_silently("g@@a", THREE);
    let start = setup.clock.now();
    until(&mut view, |v| v.version == 2).await;
    let took = setup.clock.now().since(start).as_secs();
    assert!((9..=20).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn auto_does_not_wait_for_a_port_that_swallows_everything() {
    let setup = setup(2, &nacos(NacosProtocol::Auto));
    for fake in &setup.grpc {
        fake.set("g@@a", THREE);
        fake.hang(true);
    }
    setup.http.set("g@@a", TWO);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    assert_eq!(addresses(&until(&mut view, |v| v.set.is_some()).await), TWO);
    assert!(setup.clock.now().as_millis() < 2000);
    for fake in &setup.grpc {
        fake.hang(false);
    }
    assert_eq!(
        addresses(&until(&mut view, |v| v.version == 2).await),
        THREE
    );
}

#[tokio::test(start_paused = true)]
async fn pushes_that_were_switched_off_by_another_are_back_within_a_minute() {
    let setup = grpc(1);
    let fake = &setup.grpc[0];
    fake.set("g@@a", TWO);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    // As the late unsubscription of one that followed it before.
    let link: Arc<Link> = setup.source.link("public");
    let off = Naming {
        namespace: Some("public".to_owned()),
        service_name: Some("a".to_owned()),
        group_name: Some("g".to_owned()),
        clusters: Some(String::new()),
        subscribe: Some(false),
        ..Naming::default()
    };
    link.call(kind::SUBSCRIBE, &off).await.unwrap();
    seconds(70).await;
    let start = setup.clock.now();
    fake.set("g@@a", THREE);
    until(&mut view, |v| v.version == 2).await;
    assert!(setup.clock.now().since(start) < Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn auto_takes_http_while_grpc_is_not_answered_and_comes_back() {
    let setup = setup(1, &nacos(NacosProtocol::Auto));
    let fake = &setup.grpc[0];
    setup.http.set("g@@a", TWO);
    fake.set("g@@a", THREE);
    fake.refuse(true);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    assert_eq!(addresses(&until(&mut view, |v| v.set.is_some()).await), TWO);
    assert!(setup.clock.now().as_millis() < 1000);
    seconds(60).await;
    assert!(setup.http.calls().len() >= 5);
    assert_eq!(setup.handle.stats().updates.failed, 0);
    fake.refuse(false);
    assert_eq!(
        addresses(&until(&mut view, |v| v.version == 2).await),
        THREE
    );
    seconds(10).await;
    let calls = setup.http.calls().len();
    seconds(600).await;
    assert_eq!(
        setup.http.calls().len(),
        calls,
        "no polls beside the pushes"
    );
    // Lost again: HTTP after a short wait.
    fake.refuse(true);
    assert_eq!(addresses(&until(&mut view, |v| v.version == 3).await), TWO);
}

#[tokio::test(start_paused = true)]
async fn clusters_are_chosen_here() {
    let mut config = nacos(NacosProtocol::Grpc);
    config.clusters = vec!["c".to_owned()];
    let setup = setup(1, &config);
    setup.grpc[0].set("g@@a", TWO);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    let none = until(&mut view, |v| v.set.is_some()).await;
    assert!(
        addresses(&none).is_empty(),
        "they are in the cluster DEFAULT"
    );
}

trait MapStrings {
    fn map_strings(&self) -> Vec<String>;
}

impl MapStrings for [&str] {
    fn map_strings(&self) -> Vec<String> {
        self.iter().map(|text| (*text).to_owned()).collect()
    }
}
