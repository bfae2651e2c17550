//! The source against a fake agent in paused time, over in-memory connections.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{Notify, mpsc, watch as channel};

use super::*;
use crate::config::types::{EmptyPolicy, OnEmpty, RegistryKind, RegistryTls};
use crate::discovery::handle::Shared;
use crate::discovery::{Deps, NoEvents, RegistryHandle, ServiceQuery, ServiceView};
use crate::http_client::Target;

/// An agent that blocks as Consul does, unless a scripted answer is due.
#[derive(Clone, Default)]
struct Agent(Arc<(Mutex<State>, Notify)>);

#[derive(Default)]
struct State {
    index: u64,
    body: String,
    headers: String,
    script: VecDeque<(&'static str, Option<u64>, String)>,
    seen: Vec<String>,
}

fn instances(ports: &[u16]) -> String {
    let one = |port: &u16| {
        format!(
            r#"{{"Node":{{"Address":"10.0.0.1"}},"Service":{{"ID":"i{port}","Port":{port}}},"Checks":[{{"CheckID":"c","Status":"passing","Output":"0.{port}"}}]}}"#
        )
    };
    format!("[{}]", ports.iter().map(one).collect::<Vec<_>>().join(","))
}

impl Agent {
    fn set(&self, index: u64, ports: &[u16]) {
        let mut state = self.0.0.lock().unwrap();
        (state.index, state.body) = (index, instances(ports));
        self.0.1.notify_waiters();
    }

    fn script(&self, status: &'static str, index: Option<u64>, body: &str) {
        let mut state = self.0.0.lock().unwrap();
        state.script.push_back((status, index, body.to_owned()));
        self.0.1.notify_waiters();
    }

    fn headers(&self, headers: &str) {
        headers.clone_into(&mut self.0.0.lock().unwrap().headers);
    }

    fn seen(&self) -> Vec<String> {
        self.0.0.lock().unwrap().seen.clone()
    }

    /// The indexes of the queries.
    fn indexes(&self) -> Vec<u64> {
        self.seen()
            .iter()
            .map(|line| parameter(line, "index"))
            .collect()
    }

    async fn serve(self, mut stream: DuplexStream) {
        let mut request = vec![0; 4096];
        let length = stream.read(&mut request).await.unwrap();
        let text = String::from_utf8_lossy(&request[..length]).into_owned();
        let line = text.lines().next().unwrap().to_owned();
        let token = text.lines().find(|line| line.starts_with("x-consul-token"));
        let asked = parameter(&line, "index");
        let seen = format!("{line} {}", token.unwrap_or_default());
        self.0.0.lock().unwrap().seen.push(seen);
        let until = tokio::time::sleep(Duration::from_millis(parameter(&line, "wait")));
        let mut until = std::pin::pin!(until);
        loop {
            let changed = self.0.1.notified();
            let ready = {
                let mut state = self.0.0.lock().unwrap();
                let waits = asked > 0 && asked >= state.index && !until.is_elapsed();
                match state.script.pop_front() {
                    Some(answer) => Some(answer),
                    None if waits => None,
                    None => Some(("200 OK", Some(state.index), state.body.clone())),
                }
            };
            if let Some((status, index, body)) = ready {
                let index = index.map(|index| format!("X-Consul-Index: {index}\r\n"));
                let more = self.0.0.lock().unwrap().headers.clone();
                let answer = format!(
                    "HTTP/1.1 {status}\r\n{}{more}content-length: {}\r\n\r\n{body}",
                    index.unwrap_or_default(),
                    body.len()
                );
                drop(stream.write_all(answer.as_bytes()).await);
                return;
            }
            tokio::select! {
                () = changed => {}
                () = until.as_mut() => {}
            }
        }
    }
}

fn parameter(line: &str, name: &str) -> u64 {
    let query = line.split_once('?').map_or("", |(_, query)| query);
    let pair = query
        .split(['&', ' '])
        .find_map(|pair| pair.strip_prefix(&format!("{name}=")));
    let digits = pair.unwrap_or_default().trim_end_matches("ms");
    digits.parse().unwrap_or_default()
}

struct Setup {
    agent: Agent,
    handle: RegistryHandle,
    clock: Clock,
}

fn consul() -> Consul {
    Consul {
        address: "http://127.0.0.1:8500".to_owned(),
        token_file: None,
        datacenter: None,
        tags: Vec::new(),
        filter: None,
        consistency: Consistency::Stale,
        tagged_address: None,
        wait: Duration::from_secs(300),
    }
}

fn setup(consul: &Consul) -> Setup {
    let config = Registry {
        name: "c".into(),
        kind: RegistryKind::Consul(consul.clone()),
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
        cache: crate::discovery::Cache::default(),
        parser: |_, _| Ok(std::collections::BTreeMap::new()),
        clock,
        events: Arc::new(NoEvents),
        seed: 7,
    };
    let (sender, mut connections) = mpsc::unbounded_channel();
    let agent = Agent::default();
    let server = agent.clone();
    tokio::spawn(async move {
        while let Some(stream) = connections.recv().await {
            tokio::spawn(server.clone().serve(stream));
        }
    });
    let mut source = ConsulSource::new(consul, &config, clock, 7);
    let server = Server {
        target: Target::Memory(sender),
        prefix: String::new(),
    };
    source.servers = source.servers.with_list(vec![server]);
    let handle = RegistryHandle::new(Shared::new(&config, &deps), Arc::new(source));
    Setup {
        agent,
        handle,
        clock,
    }
}

fn ports(view: &ServiceView) -> Vec<String> {
    let endpoints = view.set.iter().flat_map(|set| set.endpoints.iter());
    endpoints
        .map(|e| e.address.as_str().replace("10.0.0.1:", ""))
        .collect()
}

async fn until(
    view: &mut channel::Receiver<ServiceView>,
    wanted: impl FnMut(&ServiceView) -> bool,
) -> ServiceView {
    let found = tokio::time::timeout(Duration::from_secs(900), view.wait_for(wanted)).await;
    found.expect("in time").expect("still followed").clone()
}

#[tokio::test(start_paused = true)]
async fn a_change_is_seen_at_once_and_silence_for_a_whole_wait_is_no_failure() {
    let mut config = consul();
    config.tags = vec!["a b".to_owned(), "c".to_owned()];
    config.filter = Some("Service.Meta.zone == \"a\"".to_owned());
    config.datacenter = Some("dc2".to_owned());
    let setup = setup(&config);
    setup.agent.set(5, &[1, 2]);
    let mut view = setup.handle.subscribe(ServiceQuery::named("odd/näme"));
    assert_eq!(
        ports(&until(&mut view, |v| v.set.is_some()).await),
        ["1", "2"]
    );
    let line = &setup.agent.seen()[0];
    let want = "GET /v1/health/service/odd%2Fn%C3%A4me?stale=&dc=dc2&tag=a+b&tag=c&\
                filter=Service.Meta.zone+%3D%3D+%22a%22 HTTP/1.1";
    assert!(line.starts_with(want), "{line}");
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert_eq!(setup.agent.indexes(), [0, 5, 5, 5, 5]);
    assert_eq!((view.borrow().version, view.borrow().stale), (1, false));
    let before = setup.clock.now();
    setup.agent.set(9, &[1, 2, 3]);
    until(&mut view, |v| v.version == 2).await;
    assert!(setup.clock.now().since(before) < Duration::from_millis(50));
    assert_eq!(setup.handle.stats().updates.failed, 0);
}

#[tokio::test(start_paused = true)]
async fn row_20_indexes_that_fall_or_lack_are_asked_anew_and_no_event() {
    let setup = setup(&consul());
    setup.agent.set(10, &[1, 2]);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    // 10 -> 3, with a list of a server that is behind: not an event.
    setup.agent.script("200 OK", Some(3), &instances(&[1]));
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(setup.agent.indexes(), [0, 10, 0, 10]);
    // None, and 0: asked with 1, which would block.
    for odd in [None, Some(0)] {
        setup.agent.script("200 OK", odd, &instances(&[1, 2]));
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    assert_eq!(ports(&view.borrow()), ["1", "2"]);
    assert_eq!(view.borrow().version, 1);
    let indexes = setup.agent.indexes();
    assert!(indexes.len() < 12, "{indexes:?}");
}

#[tokio::test(start_paused = true)]
async fn row_05_an_index_without_news_is_no_event() {
    let setup = setup(&consul());
    setup.agent.set(10, &[1, 2]);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    for index in 11..20 {
        {
            let mut state = setup.agent.0.0.lock().unwrap();
            // Another order and another output of the check.
            let text = format!("\"Output\":\"{index}.");
            state.body = instances(&[2, 1]).replace("\"Output\":\"0.", &text);
            state.index = index;
        }
        setup.agent.0.1.notify_waiters();
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(view.borrow().version, 1);
    assert_eq!(*setup.agent.indexes().last().unwrap(), 19);
}

#[tokio::test(start_paused = true)]
async fn row_01_errors_keep_the_set_back_off_and_forget_the_index() {
    let setup = setup(&consul());
    setup.agent.set(100, &[1, 2]);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    for _ in 0..8 {
        setup
            .agent
            .script("500 Internal Server Error", None, "No cluster leader");
    }
    until(&mut view, |v| v.error.is_some()).await;
    let start = setup.clock.now();
    let stale = until(&mut view, |v| v.stale).await;
    assert_eq!(
        (ports(&stale), stale.version),
        (vec!["1".to_owned(), "2".to_owned()], 1)
    );
    assert!(setup.handle.stats().stale && !setup.handle.stats().up);
    // Data was lost meanwhile: an old index would be deaf.
    setup.agent.set(4, &[1, 3]);
    until(&mut view, |v| v.version == 2 && v.error.is_none()).await;
    assert!(setup.clock.now().since(start) > Duration::from_secs(10));
    let indexes = setup.agent.indexes();
    assert_eq!(indexes[..2], [0, 100]);
    assert!(
        indexes[2..].iter().all(|index| *index == 0 || *index == 4),
        "{indexes:?}"
    );
    assert_eq!(setup.handle.stats().updates.failed, 8);
    assert!(setup.handle.stats().up && !setup.handle.stats().stale);
}

#[tokio::test(start_paused = true)]
async fn row_21_what_is_hidden_by_acls_is_no_empty_service() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "secret-1\n").unwrap();
    let mut config = consul();
    config.token_file = Some(file.clone());
    let setup = setup(&config);
    setup.agent.set(10, &[1, 2]);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    assert!(setup.agent.seen()[0].ends_with("x-consul-token: secret-1"));
    setup
        .agent
        .headers("X-Consul-Results-Filtered-By-Acls: true\r\n");
    setup.agent.set(11, &[]);
    let refused = until(&mut view, |v| v.error.is_some()).await;
    assert!(refused.error.unwrap().contains("`service:read`"));
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(ports(&view.borrow()), ["1", "2"]);
    assert!(setup.handle.stats().up, "it answers");
    // 403: the token is read again and the query made once more.
    setup.agent.headers("");
    setup.agent.set(12, &[1, 2, 3]);
    until(&mut view, |v| v.version == 2).await;
    std::fs::write(&file, "secret-2\n").unwrap();
    setup.agent.script("403 Forbidden", None, "ACL not found");
    setup.agent.set(13, &[1, 2, 3, 4]);
    until(&mut view, |v| v.version == 3).await;
    let seen = setup.agent.seen();
    assert!(seen.iter().any(|line| line.ends_with("secret-2")));
}

#[tokio::test(start_paused = true)]
async fn row_21_nobody_without_a_token_sees_an_empty_service_where_all_is_denied() {
    let setup = setup(&consul());
    setup.agent.headers("X-Consul-Default-Acl-Policy: deny\r\n");
    setup.agent.set(10, &[]);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    let refused = until(&mut view, |v| v.error.is_some()).await;
    assert!(refused.set.is_none() && refused.error.unwrap().contains("`token_file`"));
    setup
        .agent
        .headers("X-Consul-Default-Acl-Policy: allow\r\n");
    let known = until(&mut view, |v| v.set.is_some()).await;
    assert!(ports(&known).is_empty() && known.error.is_none());
}

#[tokio::test(start_paused = true)]
async fn row_23_a_service_that_never_rests_is_asked_once_a_second_at_most() {
    let setup = setup(&consul());
    setup.agent.set(1, &[1, 2]);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    for index in 2..3002 {
        setup
            .agent
            .set(index, if index % 2 == 0 { &[1, 2] } else { &[1, 2, 3] });
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let asked = setup.agent.seen().len();
    assert!((25..=33).contains(&asked), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn an_empty_answer_is_held_and_read_again_without_blocking() {
    let setup = setup(&consul());
    setup.agent.set(10, &[1, 2]);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.set.is_some()).await;
    setup.agent.set(11, &[]);
    until(&mut view, |v| v.held.is_some()).await;
    let start = setup.clock.now();
    let empty = until(&mut view, |v| v.version == 2).await;
    assert!(ports(&empty).is_empty());
    assert_eq!(setup.clock.now().since(start).as_secs(), 30);
    assert_eq!(
        setup.agent.indexes(),
        [0, 10, 0, 0, 0, 11][..setup.agent.seen().len()]
    );
}

#[tokio::test(start_paused = true)]
async fn more_than_a_hundred_services_are_watched_in_part_and_polled_for_the_rest() {
    let setup = setup(&consul());
    setup.agent.set(10, &[1]);
    let mut views: Vec<_> = (0..120)
        .map(|n| {
            setup
                .handle
                .subscribe(ServiceQuery::named(&format!("s{n}")))
        })
        .collect();
    for view in &mut views {
        until(view, |v| v.set.is_some()).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let blocking = setup
        .agent
        .indexes()
        .iter()
        .filter(|index| **index > 0)
        .count();
    assert_eq!(blocking, 100);
    let polls = setup.agent.seen().len() - 100 - 120;
    assert!((20 * 5..=20 * 7).contains(&polls), "{polls}");
    setup.agent.set(11, &[1, 2]);
    let start = setup.clock.now();
    for view in &mut views {
        until(view, |v| v.version == 2).await;
    }
    assert!(setup.clock.now().since(start) <= Duration::from_secs(12));
}

#[tokio::test(start_paused = true)]
async fn names_and_a_filter_that_cannot_be_read() {
    let mut config = consul();
    config.tags = vec!["web".to_owned()];
    let setup = setup(&config);
    setup.agent.script(
        "200 OK",
        Some(1),
        r#"{"consul":[],"a":["web","x"],"b":["x"]}"#,
    );
    let mut names = setup.handle.names();
    let seen = names.wait_for(|v| v.names.is_some()).await.unwrap().clone();
    assert_eq!(*seen.names.unwrap(), ["a".into()]);
    assert!(setup.agent.seen()[0].starts_with("GET /v1/catalog/services?stale= "));
    let bad = "Failed to create boolean expression evaluator: 1:1 (0): no match found";
    setup.agent.script("500 Internal Server Error", None, bad);
    let mut view = setup.handle.subscribe(ServiceQuery::named("a"));
    until(&mut view, |v| v.error.is_some()).await;
    assert!(
        setup.handle.stats().up,
        "the configuration is wrong, not the agent away"
    );
}
