//! The source against a fake server in paused time, over in-memory connections.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Mutex;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;

use super::*;
use crate::config::types::{EmptyPolicy, OnEmpty, RegistryKind, RegistryTls, Secret};
use crate::discovery::handle::Shared;
use crate::discovery::{Cache, Deps, NoEvents, RegistryHandle, ServiceQuery, ServiceView};
use crate::http_client::Target;

/// A Eureka server: instances by application, and what it does wrong.
#[derive(Clone, Debug, Default)]
struct Fake(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Application, id, status.
    apps: BTreeMap<(String, String), String>,
    delta: Vec<String>,
    hash: Option<&'static str>,
    status: BTreeMap<&'static str, u16>,
    /// Paths asked for, with the credential.
    calls: Vec<(String, Option<String>)>,
    wanted: Option<String>,
}

impl Fake {
    fn put(&self, app: &str, id: &str, status: &str) {
        let mut state = self.0.lock().unwrap();
        state
            .apps
            .insert((app.to_owned(), id.to_owned()), status.to_owned());
        state.delta.push(instance(app, id, status, "ADDED"));
    }

    fn remove(&self, app: &str, id: &str) {
        let mut state = self.0.lock().unwrap();
        state.apps.remove(&(app.to_owned(), id.to_owned()));
        state.delta.push(instance(app, id, "UP", "DELETED"));
    }

    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    fn count(&self, path: &str) -> usize {
        self.with(|state| state.calls.iter().filter(|(p, _)| p == path).count())
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let mut state = self.0.lock().unwrap();
        let path = request.uri().path().to_owned();
        let used = request.headers().get(http::header::AUTHORIZATION);
        let used = used.map(|v| v.to_str().unwrap().to_owned());
        state.calls.push((path.clone(), used.clone()));
        assert_eq!(request.headers()["accept"], "application/json");
        let status = |code: u16, body: String| {
            let answer = Response::builder().status(code);
            answer.body(Full::new(Bytes::from(body))).unwrap()
        };
        if state.wanted.is_some() && state.wanted != used {
            return status(401, String::new());
        }
        let name = path.strip_prefix("/eureka/apps").unwrap();
        let app = name.trim_start_matches('/');
        let kind = match name {
            "" => "all",
            "/delta" => "delta",
            _ => "app",
        };
        if let Some(code) = state.status.get(kind) {
            return status(*code, "<html>no</html>".to_owned());
        }
        let apps = state.apps.iter();
        let of =
            |(key, status): (&(String, String), &String)| instance(&key.0, &key.1, status, "ADDED");
        match kind {
            "app" => {
                let found: Vec<String> = apps.filter(|(key, _)| key.0 == app).map(of).collect();
                if found.is_empty() {
                    return status(404, "{\"timestamp\":1,\"status\":404}".to_owned());
                }
                let list = found.join(",");
                status(
                    200,
                    format!(r#"{{"application":{{"name":"{app}","instance":[{list}]}}}}"#),
                )
            }
            "all" => {
                let all: Vec<String> = apps.map(of).collect();
                status(200, applications("", &all))
            }
            _ => {
                let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
                for status in state.apps.values() {
                    *counts.entry(status).or_default() += 1;
                }
                let hash: String = counts.iter().map(|(s, n)| format!("{s}_{n}_")).collect();
                let hash = state.hash.map_or(hash, str::to_owned);
                status(200, applications(&hash, &state.delta))
            }
        }
    }
}

fn instance(app: &str, id: &str, status: &str, action: &str) -> String {
    format!(
        r#"{{"instanceId":"{id}","app":"{app}","ipAddr":"{id}","hostName":"h","status":"{status}",
        "port":{{"$":80,"@enabled":"true"}},"actionType":"{action}","lastDirtyTimestamp":"1"}}"#
    )
}

fn applications(hash: &str, instances: &[String]) -> String {
    let list = instances.join(",");
    format!(
        r#"{{"applications":{{"versions__delta":"1","apps__hashcode":"{hash}",
        "application":[{{"name":"X","instance":[{list}]}}]}}}}"#
    )
}

fn config(mode: EurekaMode) -> Eureka {
    Eureka {
        servers: Vec::new(),
        mode,
        prefer_ip: true,
        secure: false,
        username: None,
        password_file: None,
        password: None,
    }
}

fn start(servers: usize, eureka: &Eureka) -> (Vec<Fake>, RegistryHandle) {
    let config = Registry {
        name: "e".into(),
        kind: RegistryKind::Eureka(eureka.clone()),
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
    let (mut fakes, mut list) = (Vec::new(), Vec::new());
    for _ in 0..servers {
        let (sender, mut connections) = mpsc::unbounded_channel();
        let fake = Fake::default();
        fakes.push(fake.clone());
        tokio::spawn(async move {
            while let Some(stream) = connections.recv().await {
                let fake = fake.clone();
                let service = service_fn(move |request| {
                    let answer = fake.answer(&request);
                    async { Ok::<_, Infallible>(answer) }
                });
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        let target = Target::Memory(sender);
        let prefix = "/eureka".to_owned();
        list.push(Server { target, prefix });
    }
    let source = EurekaSource::with_servers(eureka, &config, clock, 7, list);
    let handle = RegistryHandle::new(Shared::new(&config, &deps), Arc::new(source));
    (fakes, handle)
}

type View = watch::Receiver<ServiceView>;

fn told(view: &ServiceView) -> Vec<String> {
    let endpoints = view.set.iter().flat_map(|set| set.endpoints.iter());
    let mut told: Vec<String> = endpoints
        .filter(|e| e.healthy && e.enabled)
        .map(|e| e.address.to_string())
        .collect();
    told.sort();
    told
}

async fn until(view: &mut View, want: &[&str]) {
    let seen = view.wait_for(|view| view.set.is_some() && told(view) == want);
    let seen = tokio::time::timeout(Duration::from_secs(900), seen)
        .await
        .is_ok();
    assert!(seen, "{:?}", *view.borrow());
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn one_request_per_application_and_the_whole_when_there_are_many() {
    let (fakes, handle) = start(1, &config(EurekaMode::Auto));
    for n in 0..30 {
        fakes[0].put(&format!("APP{n}"), &format!("10.0.0.{n}"), "UP");
    }
    fakes[0].put("APP0", "10.0.1.1", "DOWN");
    let mut first = handle.subscribe(ServiceQuery::named("app0"));
    until(&mut first, &["10.0.0.0:80"]).await;
    assert_eq!(first.borrow().set.as_ref().unwrap().endpoints.len(), 2);
    seconds(300).await;
    let reads = fakes[0].count("/eureka/apps/APP0");
    assert!((9..=13).contains(&reads), "{reads}");
    assert_eq!(fakes[0].count("/eureka/apps"), 0);
    let mut views: Vec<View> = (1..30)
        .map(|n| handle.subscribe(ServiceQuery::named(&format!("app{n}"))))
        .collect();
    for (n, view) in views.iter_mut().enumerate() {
        until(view, &[&*format!("10.0.0.{}:80", n + 1)]).await;
    }
    seconds(60).await;
    let before = fakes[0].with(|state| state.calls.len());
    seconds(300).await;
    let calls = fakes[0].with(|state| state.calls.len()) - before;
    assert!(calls <= 12, "{calls} calls for 30 services in 5 minutes");
    fakes[0].put("APP7", "10.0.2.7", "UP");
    until(&mut views[6], &["10.0.0.7:80", "10.0.2.7:80"]).await;
    fakes[0].remove("APP7", "10.0.0.7");
    until(&mut views[6], &["10.0.2.7:80"]).await;
}

#[tokio::test(start_paused = true)]
async fn row_17a_a_restarted_server_serves_a_part() {
    let (fakes, handle) = start(1, &config(EurekaMode::Delta));
    for n in 0..40 {
        for i in 0..3 {
            fakes[0].put(&format!("APP{n}"), &format!("10.0.{n}.{i}"), "UP");
        }
    }
    let mut views: Vec<View> = (0..40)
        .map(|n| handle.subscribe(ServiceQuery::named(&format!("APP{n}"))))
        .collect();
    for view in &mut views {
        view.wait_for(|view| view.set.is_some()).await.unwrap();
    }
    // It comes back with three applications, and knows nothing of what was before.
    fakes[0].with(|state| {
        state
            .apps
            .retain(|(app, _), _| matches!(app.as_str(), "APP0" | "APP1" | "APP2"));
        state.delta.clear();
    });
    views[9].wait_for(|view| view.held.is_some()).await.unwrap();
    seconds(5).await;
    for view in &views {
        assert_eq!((view.borrow().version, told(&view.borrow()).len()), (1, 3));
    }
    // Its clients come back within the grace: nothing ever changed.
    for n in 3..40 {
        for i in 0..3 {
            fakes[0].put(&format!("APP{n}"), &format!("10.0.{n}.{i}"), "UP");
        }
    }
    views[9].wait_for(|view| view.held.is_none()).await.unwrap();
    seconds(60).await;
    for view in &views {
        assert_eq!(
            (view.borrow().version, view.borrow().held.is_some()),
            (1, false)
        );
    }
    // A part that stays is believed.
    fakes[0].with(|state| {
        state.apps.retain(|(app, _), _| app == "APP0");
        state.delta.clear();
    });
    views[9].wait_for(|view| view.version == 2).await.unwrap();
    assert!(told(&views[9].borrow()).is_empty());
    assert_eq!(views[0].borrow().version, 1);
}

#[tokio::test(start_paused = true)]
async fn row_18_a_hash_that_never_fits() {
    let (fakes, handle) = start(1, &config(EurekaMode::Delta));
    fakes[0].put("A", "10.0.0.1", "UP");
    fakes[0].with(|state| state.hash = Some("UP_77_"));
    let mut view = handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, &["10.0.0.1:80"]).await;
    seconds(1200).await;
    let (full, deltas) = (
        fakes[0].count("/eureka/apps"),
        fakes[0].count("/eureka/apps/delta"),
    );
    // The first one is not forced.
    assert!((10..=21).contains(&full), "{full} full reads in 20 minutes");
    assert!(deltas > 30, "{deltas}");
    // Changes are seen nevertheless.
    fakes[0].put("A", "10.0.0.2", "UP");
    until(&mut view, &["10.0.0.1:80", "10.0.0.2:80"]).await;
}

#[tokio::test(start_paused = true)]
async fn without_deltas_all_is_read() {
    let (fakes, handle) = start(1, &config(EurekaMode::Delta));
    fakes[0].with(|state| state.status.insert("delta", 403));
    fakes[0].put("A", "10.0.0.1", "UP");
    let mut view = handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, &["10.0.0.1:80"]).await;
    fakes[0].put("A", "10.0.0.2", "UP");
    until(&mut view, &["10.0.0.1:80", "10.0.0.2:80"]).await;
    seconds(300).await;
    assert_eq!(fakes[0].count("/eureka/apps/delta"), 1);
    // One refusal is not for ever.
    fakes[0].with(|state| state.status.clear());
    seconds(400).await;
    let all = fakes[0].count("/eureka/apps");
    seconds(300).await;
    assert_eq!(fakes[0].count("/eureka/apps"), all);
    assert!(fakes[0].count("/eureka/apps/delta") > 5);
}

#[tokio::test(start_paused = true)]
async fn another_server_is_read_in_full() {
    let (fakes, handle) = start(2, &config(EurekaMode::Delta));
    for fake in &fakes {
        fake.put("A", "10.0.0.1", "UP");
        fake.with(|state| state.delta.clear());
    }
    let mut view = handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, &["10.0.0.1:80"]).await;
    let first = fakes
        .iter()
        .position(|f| f.count("/eureka/apps") == 1)
        .unwrap();
    let (down, up) = (&fakes[first], &fakes[1 - first]);
    assert_eq!(up.with(|state| state.calls.len()), 0, "both were asked");
    for kind in ["all", "delta", "app"] {
        down.with(|state| state.status.insert(kind, 503));
    }
    up.with(|state| {
        state
            .apps
            .insert(("A".to_owned(), "10.0.0.2".to_owned()), "UP".to_owned())
    });
    until(&mut view, &["10.0.0.1:80", "10.0.0.2:80"]).await;
    assert_eq!(up.count("/eureka/apps"), 1);
    // All are down: an error, and the set stays.
    up.with(|state| state.status.insert("delta", 500));
    view.wait_for(|view| view.stale).await.unwrap();
    assert_eq!(told(&view.borrow()).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn names_are_listed_and_their_changes_told() {
    let (fakes, handle) = start(1, &config(EurekaMode::Auto));
    fakes[0].put("ORDERS", "10.0.0.1", "UP");
    let mut names = handle.names();
    names.wait_for(|view| view.names.is_some()).await.unwrap();
    fakes[0].put("BILLING", "10.0.0.2", "UP");
    let both =
        |view: &crate::discovery::NamesView| view.names.as_ref().is_some_and(|n| n.len() == 2);
    names.wait_for(both).await.unwrap();
    let calls = fakes[0].with(|state| state.calls.len());
    seconds(300).await;
    let calls = fakes[0].with(|state| state.calls.len()) - calls;
    assert!(calls <= 12, "{calls} calls in 5 minutes");
    // An unknown name is looked for at once.
    fakes[0].put("LATE", "10.0.0.3", "UP");
    assert!(handle.refresh_names().await);
    assert_eq!(names.borrow().names.as_ref().unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_new_password_is_read_when_the_old_one_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "one\n").unwrap();
    let mut eureka = config(EurekaMode::PerApp);
    eureka.username = Some("me".to_owned());
    eureka.password_file = Some(file.path().to_owned());
    let (fakes, handle) = start(1, &eureka);
    fakes[0].put("A", "10.0.0.1", "UP");
    let expect = |basic: &str| fakes[0].with(|state| state.wanted = Some(basic.to_owned()));
    expect("Basic bWU6b25l");
    let mut view = handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, &["10.0.0.1:80"]).await;
    expect("Basic bWU6dHdv");
    std::fs::write(file.path(), "two").unwrap();
    fakes[0].put("A", "10.0.0.2", "UP");
    until(&mut view, &["10.0.0.1:80", "10.0.0.2:80"]).await;
    assert!(view.borrow().error.is_none());
    let mut inline = config(EurekaMode::PerApp);
    inline.username = Some("me".to_owned());
    inline.password = Some(Secret("two".to_owned()));
    assert!(!format!("{:?}", Basic::new(&inline)).contains("two"));
}
