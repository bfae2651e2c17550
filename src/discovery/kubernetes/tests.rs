//! The source against a fake API server in paused time, over in-memory connections.

use std::collections::VecDeque;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{broadcast, mpsc};

use super::*;
use crate::config::types::{EmptyPolicy, IpFamily, OnEmpty, RegistryKind, RegistryTls};
use crate::discovery::handle::Shared;
use crate::discovery::{Cache, Deps, NoEvents, RegistryHandle, ServiceView};
use crate::http_client::Target;

/// What open watches get.
#[derive(Clone, Debug)]
enum Push {
    Line(String),
    End,
    Cut,
}

/// An API server: lists answer what is scripted, else all slices; watches stream what is pushed.
#[derive(Clone)]
struct Server(Arc<Mutex<State>>, broadcast::Sender<Push>);

#[derive(Default)]
struct State {
    version: u64,
    slices: Vec<String>,
    lists: VecDeque<(&'static str, String)>,
    watches: VecDeque<(&'static str, String)>,
    seen: Vec<String>,
    token: Option<&'static str>,
}

const GONE: &str =
    r#"{"kind":"Status","reason":"Expired","message":"too old resource version","code":410}"#;

fn slice(name: &str, service: &str, version: u64, ips: &[&str]) -> String {
    let endpoint = |ip: &&str| format!(r#"{{"addresses":["{ip}"],"conditions":{{}}}}"#);
    let endpoints: Vec<String> = ips.iter().map(endpoint).collect();
    format!(
        r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}","labels":{{"kubernetes.io/service-name":"{service}"}}}},"addressType":"IPv4","endpoints":[{}],"ports":[{{"name":"http","port":80}}]}}"#,
        endpoints.join(",")
    )
}

fn list(version: u64, more: &str, slices: &[String]) -> String {
    let items = slices.join(",");
    format!(
        r#"{{"metadata":{{"resourceVersion":"{version}","continue":"{more}"}},"items":[{items}]}}"#
    )
}

fn event(kind: &str, object: &str) -> Push {
    Push::Line(format!(r#"{{"type":"{kind}","object":{object}}}"#))
}

fn bookmark(version: u64) -> Push {
    let object = format!(r#"{{"metadata":{{"resourceVersion":"{version}"}},"endpoints":null}}"#);
    event("BOOKMARK", &object)
}

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn push(&self, push: Push) {
        self.1.send(push).expect("a watch is open");
    }

    /// The requests: `list`, `list TOKEN`, `watch VERSION`.
    fn seen(&self) -> Vec<String> {
        let seen = self.state().seen.clone();
        seen.iter()
            .map(|line| {
                let value = |name: &str| {
                    let query = line.split_once('?').map_or("", |(_, query)| query);
                    let mut pairs = query.split(['&', ' ']);
                    pairs
                        .find_map(|pair| pair.strip_prefix(name))
                        .map(str::to_owned)
                };
                match value("resourceVersion=") {
                    Some(version) => format!("watch {version}"),
                    None => format!("list {}", value("continue=").unwrap_or_default()),
                }
            })
            .map(|text| text.trim().to_owned())
            .collect()
    }

    async fn serve(self, mut stream: DuplexStream) {
        let mut request = vec![0; 4096];
        let length = stream.read(&mut request).await.unwrap();
        let text = String::from_utf8_lossy(&request[..length]).into_owned();
        let line = text.lines().next().unwrap().to_owned();
        let mut pushed = self.1.subscribe();
        let answer = {
            let mut state = self.state();
            state.seen.push(line.clone());
            let known = state
                .token
                .is_none_or(|token| text.contains(&format!("Bearer {token}\r\n")));
            if !known {
                Some((
                    "401 Unauthorized",
                    r#"{"message":"Unauthorized"}"#.to_owned(),
                ))
            } else if line.contains("watch=1") {
                state.watches.pop_front()
            } else {
                let all = list(state.version, "", &state.slices);
                Some(state.lists.pop_front().unwrap_or(("200 OK", all)))
            }
        };
        if let Some((status, body)) = answer {
            let length = body.len();
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
            drop(stream.write_all(answer.as_bytes()).await);
            return;
        }
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        drop(stream.write_all(head.as_bytes()).await);
        while let Ok(push) = pushed.recv().await {
            let chunk = match push {
                Push::Line(line) => format!("{:x}\r\n{line}\n\r\n", line.len() + 1),
                Push::End => "0\r\n\r\n".to_owned(),
                Push::Cut => return,
            };
            if stream.write_all(chunk.as_bytes()).await.is_err() || chunk.starts_with("0\r") {
                return;
            }
        }
    }
}

struct Setup {
    server: Server,
    handle: RegistryHandle,
    clock: Clock,
    folder: tempfile::TempDir,
}

fn setup() -> Setup {
    setup_with(OnEmpty::Obey)
}

fn setup_with(on_empty: OnEmpty) -> Setup {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "first").unwrap();
    let kubernetes = Kubernetes {
        api: None,
        token_file: None,
        ca_file: None,
        namespaces: vec!["shop".to_owned(), "other".to_owned()],
        port_name: None,
        ip_family: IpFamily::Auto,
        panic_on_unready: false,
    };
    let config = Registry {
        name: "k".into(),
        kind: RegistryKind::Kubernetes(kubernetes.clone()),
        empty: EmptyPolicy {
            on_empty,
            grace: Duration::from_secs(30),
            answers: 3,
            shrink_percent: 50,
        },
        max_in_flight: 8,
        timeout: Duration::from_secs(5),
        tls: RegistryTls::default(),
    };
    let around = Surroundings {
        mount: folder.path().to_owned(),
        host: Some("10.0.0.1".to_owned()),
        port: None,
        own_ip: None,
        own_namespace: None,
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
    let (sender, mut connections) = mpsc::unbounded_channel();
    let server = Server(Arc::default(), broadcast::channel(1000).0);
    server.state().version = 10;
    let accepting = server.clone();
    tokio::spawn(async move {
        while let Some(stream) = connections.recv().await {
            tokio::spawn(accepting.clone().serve(stream));
        }
    });
    let source = KubernetesSource::within(&kubernetes, &config, clock, 7, &around);
    source
        .api
        .servers
        .replace(vec![crate::http_client::servers::Server {
            target: Target::Memory(sender),
            prefix: String::new(),
        }]);
    let handle = RegistryHandle::new(Shared::new(&config, &deps), Arc::new(source));
    Setup {
        server,
        handle,
        clock,
        folder,
    }
}

impl Setup {
    fn put(&self, version: u64, slices: &[String]) {
        let mut state = self.server.state();
        (state.version, state.slices) = (version, slices.to_vec());
    }

    async fn following(&self, name: &str) -> watch::Receiver<ServiceView> {
        let mut view = self.handle.subscribe(ServiceQuery::named(name));
        until(&mut view, |v| v.set.is_some()).await;
        // The watch is open.
        tokio::time::sleep(Duration::from_secs(1)).await;
        view
    }
}

fn ips(view: &ServiceView) -> Vec<String> {
    let endpoints = view.set.iter().flat_map(|set| set.endpoints.iter());
    endpoints
        .map(|e| e.address.as_str().replace(":80", ""))
        .collect()
}

async fn until(
    view: &mut watch::Receiver<ServiceView>,
    wanted: impl FnMut(&ServiceView) -> bool,
) -> ServiceView {
    let found = tokio::time::timeout(Duration::from_secs(2000), view.wait_for(wanted)).await;
    found.expect("in time").expect("still followed").clone()
}

#[tokio::test(start_paused = true)]
async fn pages_then_events_and_a_proper_end_goes_on_where_it_was() {
    let setup = setup();
    for (more, name, ip) in [("t", "a-1", "10.0.0.1"), ("", "a-2", "10.0.0.2")] {
        let page = list(10, more, &[slice(name, "a", 5, &[ip])]);
        setup.server.state().lists.push_back(("200 OK", page));
    }
    let mut view = setup.following("a").await;
    assert_eq!(ips(&view.borrow()), ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(setup.server.seen(), ["list", "list t", "watch 10"]);
    let line = setup.server.state().seen[0].clone();
    let want = "GET /apis/discovery.k8s.io/v1/namespaces/shop/endpointslices?\
                labelSelector=kubernetes.io%2Fservice-name&limit=";
    assert!(line.starts_with(want), "{line}");
    // A rolling update of many slices is one set.
    for n in 11..40 {
        let changed = slice("a-2", "a", n, &["10.0.0.2", "10.0.0.3"]);
        setup.server.push(event("MODIFIED", &changed));
    }
    setup
        .server
        .push(event("ADDED", &slice("b-1", "b", 41, &["10.9.0.1"])));
    until(&mut view, |v| v.version == 2).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(view.borrow().version, 2);
    setup
        .server
        .push(event("DELETED", &slice("a-1", "a", 42, &[])));
    setup.server.push(bookmark(50));
    let left = until(&mut view, |v| v.version == 3).await;
    assert_eq!(ips(&left), ["10.0.0.2", "10.0.0.3"]);
    let mut other = setup.handle.subscribe(ServiceQuery::named("b.shop.svc"));
    until(&mut other, |v| v.set.is_some()).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    setup.server.push(Push::End);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(
        setup.server.seen()[3..],
        ["watch 50"],
        "one watch for all, on at once"
    );
    assert_eq!(setup.handle.stats().updates.failed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_held_answer_is_told_again_in_time_whatever_happens_beside_it() {
    let setup = setup_with(OnEmpty::Hold);
    let four = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"];
    setup.put(10, &[slice("a-1", "a", 5, &four)]);
    let mut view = setup.following("a").await;
    setup
        .server
        .push(event("MODIFIED", &slice("a-1", "a", 11, &four[..1])));
    until(&mut view, |v| v.held.is_some()).await;
    let start = setup.clock.now();
    let server = setup.server.clone();
    let busy = tokio::spawn(async move {
        for version in 12.. {
            tokio::time::sleep(Duration::from_secs(4)).await;
            server.push(event("MODIFIED", &slice("b-1", "b", version, &four)));
        }
    });
    until(&mut view, |v| v.version == 2).await;
    busy.abort();
    let took = setup.clock.now().since(start).as_secs();
    assert!((29..=32).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn row_25_a_version_that_is_too_old_leads_to_one_list_and_no_gap() {
    for form in ["status", "event", "continue"] {
        let setup = setup();
        setup.put(10, &[slice("a-1", "a", 5, &["10.0.0.1"])]);
        let mut view = setup.following("a").await;
        setup.put(90, &[slice("a-9", "a", 80, &["10.0.0.1", "10.0.0.9"])]);
        match form {
            "status" => {
                setup
                    .server
                    .state()
                    .watches
                    .push_back(("410 Gone", GONE.to_owned()));
                setup.server.push(Push::Cut);
            }
            "event" => setup.server.push(event("ERROR", GONE)),
            _ => {
                let half = list(90, "t", &[slice("a-7", "a", 70, &["10.0.0.7"])]);
                let mut state = setup.server.state();
                state.lists.push_back(("200 OK", half));
                state.lists.push_back(("410 Gone", GONE.to_owned()));
                drop(state);
                setup.server.push(event("ERROR", GONE));
            }
        }
        let swapped = until(&mut view, |v| v.version == 2).await;
        assert_eq!(ips(&swapped), ["10.0.0.1", "10.0.0.9"], "{form}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(view.borrow().version, 2, "one swap");
        let want: &[&str] = match form {
            "status" => &["list", "watch 10", "watch 10", "list", "watch 90"],
            "event" => &["list", "watch 10", "list", "watch 90"],
            _ => &["list", "watch 10", "list", "list t", "list", "watch 90"],
        };
        assert_eq!(setup.server.seen(), want, "{form}");
        assert_eq!(
            setup.handle.stats().updates.failed,
            0,
            "no failure of the registry"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn row_26_a_new_token_is_used_within_a_minute_and_at_once_when_the_old_is_refused() {
    let setup = setup();
    setup.put(10, &[slice("a-1", "a", 5, &["10.0.0.1"])]);
    setup.server.state().token = Some("first");
    let mut view = setup.following("a").await;
    // Refused before its minute: read, and asked once more.
    std::fs::write(setup.folder.path().join("token"), "second\n").unwrap();
    setup.server.state().token = Some("second");
    setup.server.push(Push::Cut);
    tokio::time::sleep(Duration::from_secs(5)).await;
    setup
        .server
        .push(event("MODIFIED", &slice("a-1", "a", 11, &["10.0.0.2"])));
    until(&mut view, |v| v.version == 2).await;
    assert_eq!(
        setup.server.seen(),
        ["list", "watch 10", "watch 10", "watch 10"]
    );
    assert_eq!(setup.handle.stats().updates.failed, 0);
    // Replaced while the old one still holds: used after a minute.
    std::fs::write(setup.folder.path().join("token"), "third").unwrap();
    tokio::time::sleep(Duration::from_secs(61)).await;
    setup.server.state().token = Some("third");
    setup.server.push(Push::Cut);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(setup.server.seen()[4..], ["watch 11"]);
    // Nothing better to be had: the set stays, and the server is not stormed.
    setup.server.state().token = Some("fourth");
    setup.server.push(Push::Cut);
    let refused = until(&mut view, |v| v.error.is_some()).await;
    assert_eq!(ips(&refused), ["10.0.0.2"]);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(
        setup.server.seen().len() < 120,
        "{}",
        setup.server.seen().len()
    );
}

#[tokio::test(start_paused = true)]
async fn row_27_a_dead_watch_goes_on_from_the_last_version() {
    let setup = setup();
    setup.put(10, &[slice("a-1", "a", 5, &["10.0.0.1"])]);
    let view = setup.following("a").await;
    setup
        .server
        .push(event("MODIFIED", &slice("a-1", "a", 12, &["10.0.0.1"])));
    tokio::time::sleep(Duration::from_secs(240)).await;
    assert_eq!(setup.server.seen(), ["list", "watch 10"]);
    tokio::time::sleep(Duration::from_secs(57)).await;
    assert_eq!(setup.server.seen(), ["list", "watch 10", "watch 12"]);
    assert_eq!(view.borrow().version, 1);
    assert!(!view.borrow().stale);
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_its_bookmarks_may_be_blind_and_is_listed_again() {
    let setup = setup();
    setup.put(10, &[slice("a-1", "a", 5, &["10.0.0.1"])]);
    let mut view = setup.following("a").await;
    setup.server.push(bookmark(20));
    tokio::time::sleep(Duration::from_secs(60)).await;
    // The data of the server was restored: the watch says nothing any more.
    setup.put(7, &[slice("a-1", "a", 6, &["10.0.0.2"])]);
    until(&mut view, |v| v.version == 2).await;
    let seconds = setup.clock.now().as_millis() / 1000;
    assert!((150..=153).contains(&seconds), "{seconds}");
    assert_eq!(setup.server.seen(), ["list", "watch 10", "list", "watch 7"]);
    // And now and then in any case.
    for _ in 0..13 {
        tokio::time::sleep(Duration::from_secs(59)).await;
        if setup.server.1.receiver_count() > 0 {
            setup.server.push(bookmark(30));
        }
    }
    assert_eq!(
        setup.server.seen().iter().filter(|s| *s == "list").count(),
        3
    );
}

#[tokio::test(start_paused = true)]
async fn refusals_failures_and_lines_that_cannot_be_read_keep_the_set() {
    let setup = setup();
    setup.put(10, &[slice("a-1", "a", 5, &["10.0.0.1"])]);
    let mut view = setup.following("a").await;
    let forbidden = r#"{"kind":"Status","message":"cannot watch","reason":"Forbidden","code":403}"#;
    setup
        .server
        .state()
        .watches
        .push_back(("403 Forbidden", forbidden.to_owned()));
    // A 403 is tried twice: another token may be allowed.
    setup
        .server
        .state()
        .watches
        .push_back(("403 Forbidden", forbidden.to_owned()));
    setup.server.push(Push::Cut);
    let refused = until(&mut view, |v| v.error.is_some()).await;
    assert!(
        refused
            .error
            .unwrap()
            .contains("namespace `shop`: 403 cannot watch; a Role must allow")
    );
    assert!(setup.handle.stats().up);
    until(&mut view, |v| v.error.is_none()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Rubbish: all is read anew.
    let before = setup.server.seen().len();
    setup.put(20, &[slice("a-1", "a", 15, &["10.0.0.2"])]);
    setup.server.push(Push::Line("rubbish".to_owned()));
    until(&mut view, |v| v.version == 2).await;
    assert_eq!(setup.server.seen()[before..before + 1], ["list"]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Away: the third failure leads to a list, and the set gets old.
    let busy = ("503 Busy", r#"{"message":"busy"}"#.to_owned());
    for _ in 0..2 {
        setup.server.state().watches.push_back(busy.clone());
    }
    for _ in 0..6 {
        setup.server.state().lists.push_back(busy.clone());
    }
    setup.server.push(Push::Cut);
    let stale = until(&mut view, |v| v.stale).await;
    assert_eq!(ips(&stale), ["10.0.0.2"]);
    assert!(!setup.handle.stats().up);
    until(&mut view, |v| v.error.is_none() && !v.stale).await;
    assert!(setup.handle.stats().up);
}

#[tokio::test(start_paused = true)]
async fn names_in_every_form_of_every_namespace() {
    let setup = setup();
    setup.put(10, &[slice("a-1", "a", 5, &["10.0.0.1"])]);
    let mut names = setup.handle.names();
    let seen = names.wait_for(|v| v.names.is_some()).await.unwrap().clone();
    let names: Vec<String> = seen
        .names
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    let want = [
        "a",
        "a.other",
        "a.other.svc",
        "a.other.svc.cluster.local",
        "a.shop",
        "a.shop.svc",
        "a.shop.svc.cluster.local",
    ];
    assert_eq!(names, want);
    let mut elsewhere = setup
        .handle
        .subscribe(ServiceQuery::named("a.Third.svc.corp.example"));
    until(&mut elsewhere, |v| v.set.is_some()).await;
    let line = setup.server.state().seen.clone();
    assert!(
        line.iter().any(|line| line.contains("/namespaces/third/")),
        "{line:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_port_that_cannot_be_chosen_is_told_and_the_watch_ends_with_its_last_receiver() {
    let setup = setup();
    let odd = slice("a-1", "a", 5, &["10.0.0.1"]).replace(
        "[{\"name\":\"http\"",
        "[{\"name\":\"x\",\"port\":7},{\"name\":\"y\"",
    );
    setup.put(10, &[odd]);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    let told = until(&mut view, |v| v.error.is_some()).await;
    let error = told.error.unwrap();
    assert!(
        error.contains("service `a` in namespace `shop`") && error.contains("`port_name`"),
        "{error}"
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(setup.server.1.receiver_count(), 1);
    drop(view);
    tokio::time::sleep(Duration::from_secs(1)).await;
    setup.server.1.send(bookmark(11)).ok();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        setup.server.1.receiver_count(),
        0,
        "the connection is closed"
    );
    // And begins anew for the next.
    setup.put(20, &[slice("a-1", "a", 15, &["10.0.0.2"])]);
    let mut again = setup.handle.subscribe(ServiceQuery::named("a"));
    assert_eq!(
        ips(&until(&mut again, |v| v.set.is_some()).await),
        ["10.0.0.2"]
    );
}
