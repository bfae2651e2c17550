//! The source against a fake server in paused time, over in-memory connections.

use std::sync::Mutex;

use tokio::sync::{mpsc, watch};

use super::*;
use crate::config::types::{
    EmptyPolicy, NacosProtocol, OnEmpty, RegistryKind, RegistryTls, Secret,
};
use crate::discovery::handle::Shared;
use crate::discovery::{
    Cache, Deps, HoldCause, Ignored, RegistryEvents, RegistryHandle, ServiceQuery, ServiceView,
};
use crate::endpoint::EndpointSet;
use crate::http_client::Target;
use crate::testing::nacos::{Behaviour, FakeNacos};

/// Events as text.
#[derive(Debug, Default)]
struct Journal(Mutex<Vec<String>>);

impl RegistryEvents for Journal {
    fn lost(&self, registry: &Arc<str>, _: &str) {
        self.0.lock().unwrap().push(format!("lost {registry}"));
    }
    fn restored(&self, registry: &Arc<str>, _: Duration) {
        self.0.lock().unwrap().push(format!("restored {registry}"));
    }
    fn empty_ignored(&self, _: &Arc<str>, ignored: &Ignored) {
        let Ignored {
            service,
            cause,
            kept,
            offered,
        } = ignored;
        self.0
            .lock()
            .unwrap()
            .push(format!("ignored {service} {cause:?} {kept} {offered}"));
    }
}

struct Setup {
    fakes: Vec<FakeNacos>,
    handle: RegistryHandle,
    journal: Arc<Journal>,
    clock: Clock,
}

fn nacos() -> Nacos {
    Nacos {
        endpoint: None,
        protocol: NacosProtocol::Http,
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
    let (journal, clock) = (Arc::new(Journal::default()), Clock::new());
    let deps = Deps {
        embedded: None,
        cache: Cache::default(),
        parser: |_, _| Ok(BTreeMap::new()),
        clock,
        events: journal.clone(),
        seed: 7,
    };
    let (mut fakes, mut targets) = (Vec::new(), Vec::new());
    for _ in 0..servers {
        let (sender, mut connections) = mpsc::unbounded_channel();
        let fake = FakeNacos::new();
        let server = fake.clone();
        tokio::spawn(async move {
            while let Some(stream) = connections.recv().await {
                server.serve(stream);
            }
        });
        fakes.push(fake);
        targets.push(Target::Memory(sender));
    }
    let source = NacosSource::new(nacos, &config, clock, 7);
    let targets = targets.into_iter().map(|target| Server {
        target,
        prefix: CONTEXT.to_owned(),
    });
    let source = source.with_list(targets.collect());
    let shared = Shared::new(&config, &deps);
    let handle = RegistryHandle::new(shared, Arc::new(source));
    Setup {
        fakes,
        handle,
        journal,
        clock,
    }
}

fn addresses(set: Option<&EndpointSet>) -> Vec<String> {
    let endpoints = set.into_iter().flat_map(|set| set.endpoints.iter());
    endpoints
        .map(|endpoint| endpoint.address.to_string())
        .collect()
}

async fn until(
    view: &mut watch::Receiver<ServiceView>,
    wanted: impl FnMut(&ServiceView) -> bool,
) -> ServiceView {
    let found = tokio::time::timeout(Duration::from_secs(300), view.wait_for(wanted)).await;
    found
        .expect("within five minutes")
        .expect("still followed")
        .clone()
}

const THREE: &[&str] = &["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"];

#[tokio::test(start_paused = true)]
async fn the_first_poll_is_immediate_and_the_next_after_the_servers_delay() {
    let setup = setup(1, &nacos());
    setup.fakes[0].set("g@@a b&c", THREE);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a b&c"));
    let first = until(&mut view, |v| v.set.is_some()).await;
    assert_eq!(addresses(first.set.as_ref()), THREE);
    assert!(setup.clock.now().as_millis() < 100);
    setup.fakes[0].set("g@@a b&c", &["10.0.0.9:80", "10.0.0.1:80", "10.0.0.2:80"]);
    until(&mut view, |v| v.version == 2).await;
    // Somewhere within the first period, so that a fleet does not stay in step.
    let second = setup.clock.now().as_millis();
    assert!((1_000..=10_000).contains(&second), "{second}");
    setup.fakes[0].set("g@@a b&c", &["10.0.0.9:80", "10.0.0.1:80", "10.0.0.3:80"]);
    until(&mut view, |v| v.version == 3).await;
    let later = setup.clock.now().as_millis() - second;
    assert!((9_000..=11_000).contains(&later), "{later}");
    let calls = setup.fakes[0].calls();
    assert!(
        calls[0].contains("serviceName=a+b%26c&groupName=g&namespaceId=public"),
        "{calls:?}"
    );
    assert!(calls[0].contains("healthyOnly=false") && !calls[0].contains("clusters"));
}

#[tokio::test(start_paused = true)]
async fn an_error_is_not_empty_and_the_last_good_set_is_kept_for_ever() {
    let setup = setup(1, &nacos());
    setup.fakes[0].set("g@@a", THREE);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    for behaviour in [
        Behaviour::Status(500, "caused: x;"),
        Behaviour::Status(503, ""),
        Behaviour::Status(403, "{}"),
        Behaviour::Body("<html>"),
        Behaviour::Body("{}"),
        Behaviour::Hang,
    ] {
        setup.fakes[0].behave(behaviour);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let now = view.borrow_and_update().clone();
        assert_eq!(
            (addresses(now.set.as_ref()), now.version),
            (THREE.map_strings(), 1)
        );
        assert!(now.error.is_some() && now.stale && now.held.is_none());
    }
    let stats = setup.handle.stats();
    assert!(stats.stale && !stats.up && stats.age >= Some(Duration::from_secs(6 * 3600)));
    assert!(stats.updates.failed > 100 && stats.last_error.is_some());
    setup.fakes[0].behave(Behaviour::Good);
    let back = until(&mut view, |v| v.error.is_none()).await;
    assert!(!back.stale && setup.handle.stats().up && !setup.handle.stats().stale);
    assert_eq!(*setup.journal.0.lock().unwrap(), ["lost n", "restored n"]);
}

#[tokio::test(start_paused = true)]
async fn an_empty_answer_is_held_for_thirty_seconds_with_rereads_every_ten() {
    let setup = setup(1, &nacos());
    setup.fakes[0].set("g@@a", THREE);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    setup.fakes[0].set("g@@a", &[]);
    let held = until(&mut view, |v| v.held.is_some()).await;
    assert_eq!(held.held.unwrap().cause, HoldCause::Empty);
    assert_eq!(addresses(held.set.as_ref()).len(), 3);
    let start = setup.clock.now();
    let calls = setup.fakes[0].calls().len();
    until(&mut view, |v| v.version == 2).await;
    assert_eq!(setup.clock.now().since(start).as_secs(), 30);
    assert_eq!(setup.fakes[0].calls().len() - calls, 3);
    let updates = setup.handle.stats().updates;
    assert_eq!((updates.applied, updates.ignored_empty), (2, 3));
    assert_eq!(*setup.journal.0.lock().unwrap(), ["ignored a Empty 3 0"]);
}

#[tokio::test(start_paused = true)]
async fn a_mass_shrink_is_held_and_forgotten_when_they_are_back() {
    let setup = setup(1, &nacos());
    let all: Vec<String> = (1..=10).map(|n| format!("10.0.0.{n}:80")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    setup.fakes[0].set("g@@a", &all);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    setup.fakes[0].set("g@@a", &all[..4]);
    let held = until(&mut view, |v| v.held.is_some()).await;
    assert_eq!(
        (held.held.unwrap().cause, held.held.unwrap().count),
        (HoldCause::Shrink, 4)
    );
    setup.fakes[0].set("g@@a", &all);
    let back = until(&mut view, |v| v.held.is_none()).await;
    assert_eq!((back.version, addresses(back.set.as_ref()).len()), (1, 10));
    assert_eq!(setup.handle.stats().updates.ignored_shrink, 1);
}

#[tokio::test(start_paused = true)]
async fn forged_health_flags_are_told() {
    let setup = setup(1, &nacos());
    setup.fakes[0].set("g@@a", THREE);
    setup.fakes[0].protect(true);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    assert!(
        until(&mut view, |v| v.set.is_some())
            .await
            .set
            .unwrap()
            .health_unknown
    );
    assert!(setup.handle.stats().protected);
    setup.fakes[0].protect(false);
    assert!(
        !until(&mut view, |v| v.version == 2)
            .await
            .set
            .unwrap()
            .health_unknown
    );
    assert!(!setup.handle.stats().protected);
}

#[tokio::test(start_paused = true)]
async fn a_failing_server_is_left_in_the_same_poll_and_the_next_one_kept() {
    let setup = setup(2, &nacos());
    for fake in &setup.fakes {
        fake.set("g@@a", THREE);
    }
    setup.fakes[0].behave(Behaviour::Status(500, ""));
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    assert!(setup.clock.now().as_millis() < 100);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(setup.fakes[0].calls().len(), 1);
    assert!(setup.fakes[1].calls().len() >= 5);
    assert_eq!(setup.handle.stats().updates.failed, 0);
    setup.fakes[1].behave(Behaviour::Hang);
    setup.fakes[0].behave(Behaviour::Good);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(setup.fakes[0].calls().len() >= 4);
    assert_eq!(setup.handle.stats().updates.failed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_is_repeated_slowly_and_is_no_loss_of_the_registry() {
    let setup = setup(2, &nacos());
    for fake in &setup.fakes {
        fake.behave(Behaviour::Status(
            400,
            "caused: Param 'serviceName' is illegal;",
        ));
    }
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    let refused = until(&mut view, |v| v.error.is_some()).await;
    assert!(refused.error.unwrap().contains("400"));
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(
        setup.fakes[0].calls().len() + setup.fakes[1].calls().len(),
        2,
        "each server once"
    );
    assert!(setup.journal.0.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_with_its_last_receiver() {
    let setup = setup(1, &nacos());
    let view = setup.handle.subscribe(ServiceQuery::named("a"));
    let clone = view.clone();
    drop(view);
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(setup.handle.stats().subscriptions, 1);
    drop(clone);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(setup.handle.stats().subscriptions, 0);
    let calls = setup.fakes[0].calls().len();
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(setup.fakes[0].calls().len(), calls);
}

#[tokio::test(start_paused = true)]
async fn names_are_listed_in_pages_and_read_again_for_an_unknown_one_once_a_second() {
    let setup = setup(1, &nacos());
    for n in 0..1100 {
        setup.fakes[0].set(&format!("g@@s{n:04}"), &[]);
    }
    setup.fakes[0].set("other@@x", &[]);
    let mut names = setup.handle.names();
    let seen = names.wait_for(|v| v.names.is_some()).await.unwrap().clone();
    assert_eq!(seen.names.unwrap().len(), 1100);
    assert_eq!(setup.fakes[0].calls().len(), 3);
    setup.fakes[0].set("g@@new", &[]);
    let (a, b) = tokio::join!(setup.handle.refresh_names(), setup.handle.refresh_names());
    assert!(a && b && setup.handle.refresh_names().await);
    assert_eq!(
        setup.fakes[0].calls().len(),
        6,
        "one reading for all who ask"
    );
    assert_eq!(names.borrow().names.as_ref().unwrap().len(), 1101);
    setup.fakes[0].behave(Behaviour::Status(500, ""));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!setup.handle.refresh_names().await);
    assert!(names.borrow().error.is_some());
    assert_eq!(names.borrow().names.as_ref().unwrap().len(), 1101);
}

#[tokio::test(start_paused = true)]
async fn logs_in_once_and_again_when_the_token_is_void() {
    let mut config = nacos();
    config.username = Some("u".to_owned());
    config.password = Some(Secret("p&w".to_owned()));
    let setup = setup(1, &config);
    setup.fakes[0].require("p&w");
    setup.fakes[0].set("g@@a", THREE);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    let mut other = setup.handle.subscribe(ServiceQuery::named("b"));
    until(&mut view, |v| v.set.is_some()).await;
    until(&mut other, |v| v.set.is_some()).await;
    assert_eq!(setup.fakes[0].logins(), 1);
    tokio::time::sleep(Duration::from_secs(120)).await;
    setup.fakes[0].set("g@@a", &["10.0.0.1:80", "10.0.0.2:80"]);
    setup.fakes[0].require("p&w");
    until(&mut view, |v| v.version == 2).await;
    assert_eq!(setup.fakes[0].logins(), 2);
    assert_eq!(setup.handle.stats().updates.failed, 0);
    assert!(
        setup.fakes[0]
            .calls()
            .iter()
            .all(|call| !call.contains("p%26w"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_denied_login_is_repeated_once_a_minute() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "wrong\n").unwrap();
    let mut config = nacos();
    config.username = Some("u".to_owned());
    config.password_file = Some(file.clone());
    let setup = setup(1, &config);
    setup.fakes[0].require("right");
    setup.fakes[0].set("g@@a", THREE);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    let denied = until(&mut view, |v| v.error.is_some()).await;
    assert!(denied.error.unwrap().contains("login answered 403"));
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(
        setup.fakes[0].calls().len(),
        1,
        "{:?}",
        setup.fakes[0].calls()
    );
    std::fs::write(&file, "right\n").unwrap();
    until(&mut view, |v| v.set.is_some()).await;
}

trait MapStrings {
    fn map_strings(&self) -> Vec<String>;
}

impl MapStrings for [&str] {
    fn map_strings(&self) -> Vec<String> {
        self.iter().map(|text| (*text).to_owned()).collect()
    }
}
