//! Both listeners over real sockets, before a fake control plane.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use serde_json::{Value, json};

use super::*;
use crate::config::types::{Events, Listen};
use crate::http_client::{HttpClient, Target};
use crate::listener::bind::bind;
use crate::metrics::cells::WorkerCells;
use crate::sink::Lines;
use crate::status::Condition;
use crate::testing::control::FakeControl;
use crate::testing::status::{ejected, instance, upstream};

/// A running pair of listeners.
pub(crate) struct Admin {
    pub(crate) at: SocketAddr,
    pub(crate) telemetry: SocketAddr,
    pub(crate) unix: Option<PathBuf>,
    pub(crate) control: FakeControl,
    pub(crate) journal: Journal,
    settings: watch::Sender<Settings>,
    shutdown: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl Admin {
    pub(crate) fn start() -> Self {
        let one = upstream(
            "orders",
            vec![instance("10.0.0.1:80"), ejected("[::1]:8080")],
        );
        let odd = upstream("a/b c", vec![instance("10.0.0.3:80")]);
        let (control, handle, work) = FakeControl::new(vec![one, odd]);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            runtime.unwrap().block_on(work);
        });
        Self::with(control, handle, &Listen::Tcp(([127, 0, 0, 1], 0).into()))
    }

    pub(crate) fn with(control: FakeControl, handle: ControlHandle, listen: &Listen) -> Self {
        let events = Events {
            sinks: Vec::new(),
            ring_size: 100,
        };
        let journal = Journal::new(Lines::start().unwrap(), &events);
        let workers = Arc::from([WorkerCells::default()]);
        let facts = Facts {
            version: "0",
            workers,
        };
        let (settings, receiver) = watch::channel(Settings::from(&Arc::new(Config::builtin())));
        let deps = Deps::new(
            handle,
            journal.clone(),
            Arc::new(facts),
            Arc::new(ReloadCounters::new()),
            receiver,
        );
        let local = Listen::Tcp(([127, 0, 0, 1], 0).into());
        let (admin, telemetry) = (bind(listen, 1, "admin"), bind(&local, 1, "telemetry"));
        let (admin, telemetry) = (admin.unwrap(), telemetry.unwrap());
        let first = |bound: &Bound| bound.tcp.first().map(|b| b.address);
        let (shutdown, stop) = watch::channel(false);
        Self {
            at: first(&admin).unwrap_or_else(|| ([127, 0, 0, 1], 1).into()),
            telemetry: first(&telemetry).unwrap(),
            unix: admin.unix.first().map(|(path, _)| path.clone()),
            control,
            journal,
            settings,
            shutdown,
            thread: spawn(admin, telemetry, deps, stop).unwrap(),
        }
    }

    pub(crate) fn stop(self) {
        self.shutdown.send_replace(true);
        self.thread.join().unwrap();
    }

    pub(crate) fn event(&self, event: &'static str, upstream: &str) {
        let fields = vec![("upstream", upstream.into())];
        self.journal
            .emit(event, fields, format!("{event} of {upstream}"));
    }

    fn get(&self, path: &str) -> (u16, Value) {
        let answer = send(self.at, Request::get(path));
        let body = serde_json::from_slice(answer.body()).unwrap_or(Value::Null);
        (answer.status().as_u16(), body)
    }

    fn probe(&self, path: &str) -> (u16, String) {
        let answer = send(self.telemetry, Request::get(path));
        let body = String::from_utf8(answer.body().to_vec()).unwrap();
        (answer.status().as_u16(), body)
    }
}

fn send(to: SocketAddr, request: http::request::Builder) -> Response<Bytes> {
    send_body(to, request, "")
}

fn send_body(to: SocketAddr, request: http::request::Builder, body: &str) -> Response<Bytes> {
    let client = HttpClient {
        timeout: Duration::from_secs(10),
        max_body: 1 << 20,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let request = request.body(Full::from(body.to_owned())).unwrap();
    let target = Target::Tcp(to.to_string());
    runtime.block_on(client.send(&target, request)).unwrap()
}

#[test]
fn the_api_shows_upstreams_instances_and_why() {
    let admin = Admin::start();
    let (code, status) = admin.get("/api/v1/status");
    assert_eq!(
        (code, &status["upstreams"][0]["name"]),
        (200, &json!("orders"))
    );
    let (_, list) = admin.get("/api/v1/upstreams");
    assert_eq!(list["upstreams"][0]["ejected"], 1);
    let (_, one) = admin.get("/api/v1/upstreams/orders");
    assert_eq!(
        (&one["name"], &one["policy"]),
        (&json!("orders"), &json!("default"))
    );
    let (_, instances) = admin.get("/api/v1/upstreams/a%2Fb%20c/instances");
    assert_eq!(instances["instances"][0]["instance"], "10.0.0.3:80");
    let (_, out) = admin.get("/api/v1/upstreams/orders/instances/%5B::1%5D:8080");
    assert!(out["why"].as_str().unwrap().contains("52 of 80"), "{out}");
    let (_, hosts) = admin.get("/api/v1/hosts/orders");
    assert_eq!(hosts["hosts"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&hosts["hosts"][0]["ip"], &hosts["hosts"][0]["port"]),
        (&json!("10.0.0.1"), &json!(80))
    );
    let (_, hosts) = admin.get("/api/v1/hosts/orders?state=any");
    assert_eq!(hosts["hosts"][1]["ip"], "::1");
    let (_, registries) = admin.get("/api/v1/registries");
    assert_eq!(registries["registries"][0]["name"], "local");
    let (_, route) = admin.get("/api/v1/route?url=http://orders/v1&header=x-a:%20b");
    assert_eq!(route["upstream"], "orders");
    let page = send(admin.at, Request::get("/"));
    let text = String::from_utf8(page.body().to_vec()).unwrap();
    assert!(text.contains("<a href=\"/api/v1/status\">") && !text.contains("{rows}"));
    assert!(text.contains("/api/v1/upstreams/{u}/instances"), "{text}");
    assert!(
        page.headers()["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/html")
    );
    admin.stop();
}

#[test]
fn errors_say_what_to_do() {
    let admin = Admin::start();
    let (code, body) = admin.get("/api/v1/upstreams/order");
    assert_eq!((code, &body["error"]), (404, &json!("unknown_upstream")));
    assert_eq!(body["hint"], "did you mean `orders`?");
    let (code, body) = admin.get("/api/v1/upstreams/orders/instances/10.0.0.1:81");
    assert_eq!(
        (code, &body["hint"]),
        (404, &json!("did you mean `10.0.0.1:80`?"))
    );
    for (path, code) in [
        ("/api/v1/route", 400),
        ("/api/v1/route?url=/&header=x", 400),
        ("/api/v1/events?after=x", 400),
        ("/api/v1/events?limit=-1", 400),
        ("/api/v1/events?typ=x", 400),
        ("/api/v1/status?pretty", 400),
        ("/api/v1/hosts/orders?state=all", 400),
        ("/api/v1/upstreams/%ff", 400),
        ("/status", 404),
    ] {
        let (got, body) = admin.get(path);
        assert_eq!(got, code, "{path}");
        assert!(
            body["message"].is_string() && body["hint"].is_string(),
            "{body}"
        );
    }
    admin.stop();
}

#[test]
fn foreign_hosts_and_writes_are_refused() {
    let admin = Admin::start();
    let evil = |b: http::request::Builder| b.header("host", "evil.example");
    assert_eq!(
        send(admin.at, evil(Request::get("/api/v1/status"))).status(),
        421
    );
    let absolute = Request::get(format!("http://evil.example:{}/", admin.at.port()));
    assert_eq!(
        send(admin.at, absolute.header("host", "localhost")).status(),
        421
    );
    assert_eq!(
        send(admin.telemetry, evil(Request::get("/healthz"))).status(),
        200
    );
    let post = Request::post("/api/v1/config:reload");
    assert_eq!(send(admin.at, post).status(), 403);
    let post = Request::post("/api/v1/status").header("x-outrigger-admin", "1");
    let refused = send(admin.at, post);
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["allow"]),
        (405, &"GET, HEAD".parse().unwrap())
    );
    let page = |b: http::request::Builder| b.header("origin", "http://localhost:3000");
    let post = Request::post("/api/v1/status").header("x-outrigger-admin", "1");
    assert_eq!(send(admin.at, page(post)).status(), 403);
    // A look from there is harmless: the page cannot read the answer.
    assert_eq!(send(admin.at, page(Request::get("/"))).status(), 200);
    assert_eq!(
        send(admin.telemetry, Request::post("/metrics")).status(),
        405
    );
    let head = send(admin.at, Request::head("/api/v1/status"));
    assert!(head.status() == 200 && head.body().is_empty());
    admin.stop();
}

#[test]
fn a_token_is_asked_for_and_may_change() {
    let admin = Admin::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    admin
        .settings
        .send_modify(|s| s.token_file = Some(file.clone()));
    assert_eq!(admin.get("/api/v1/status").1["error"], "token_unreadable");
    let with = |token: &str| {
        let request = Request::get("/api/v1/status");
        send(admin.at, request.header("authorization", token))
            .status()
            .as_u16()
    };
    std::fs::write(&file, "s3cret\n").unwrap();
    assert_eq!(admin.get("/api/v1/status").0, 401);
    let codes = [
        "Bearer s3cret",
        "bearer s3cret",
        "Bearer s3cre",
        "s3cret",
        "Basic s3cret",
    ]
    .map(with);
    assert_eq!(codes, [200, 200, 401, 401, 401]);
    std::fs::write(&file, "other").unwrap();
    assert_eq!((with("Bearer s3cret"), with("Bearer other")), (401, 200));
    std::fs::write(&file, " \n").unwrap();
    assert_eq!(with("Bearer "), 503);
    admin.stop();
}

#[test]
fn events_are_paged_by_id() {
    let admin = Admin::start();
    for n in 0..6 {
        admin.event(
            "instance_ejected",
            if n % 2 == 0 { "orders" } else { "users" },
        );
    }
    admin.event("probe_failed", "orders");
    let ids = |query: &str| {
        let (code, body) = admin.get(&format!("/api/v1/events{query}"));
        assert_eq!(code, 200, "{body}");
        let ids = body["events"].as_array().unwrap().iter();
        let ids: Vec<_> = ids.map(|e| e["id"].as_str().unwrap().to_owned()).collect();
        (
            ids.join(" "),
            body["next"].as_str().unwrap().to_owned(),
            body["restarted"] == true,
        )
    };
    let is = |ids: &str, next: &str, restarted| (ids.to_owned(), next.to_owned(), restarted);
    assert_eq!(
        ids("?upstream=users"),
        is("000002 000004 000006", "000007", false)
    );
    assert_eq!(
        ids("?type=probe_failed&upstream=orders"),
        is("000007", "000007", false)
    );
    assert_eq!(ids("?limit=2"), is("000006 000007", "000007", false));
    assert_eq!(
        ids("?after=1&limit=2&upstream=orders"),
        is("000003 000005", "000005", false)
    );
    assert_eq!(ids("?after=000007"), is("", "000007", false));
    assert_eq!(ids("?after=ff&limit=1"), is("000001", "000001", true));
    assert_eq!(ids("?since=1h&limit=1"), is("000007", "000007", false));
    assert_eq!(ids("?since=2999-01-01T00:00:00Z").0, "");
    // A live upstream that no event tells of is no slip, nor is a type that never came.
    assert_eq!(ids("?upstream=a/b%20c&type=stopped").0, "");
    for (query, hint) in [
        ("?upstream=order", "did you mean `orders`?"),
        ("?type=probe_faild", "did you mean `probe_failed`?"),
        ("?since=yesterday", "1h, 90s"),
        ("?upsteam=orders", "did you mean `upstream`?"),
    ] {
        for path in ["/api/v1/events", "/api/v1/events/stream"] {
            let (code, body) = admin.get(&format!("{path}{query}"));
            assert_eq!(
                (code, &body["error"]),
                (400, &json!("bad_query")),
                "{query}"
            );
            assert!(body["hint"].as_str().unwrap().starts_with(hint), "{body}");
        }
    }
    admin.stop();
}

#[test]
fn probes_follow_control() {
    let admin = Admin::start();
    assert_eq!(admin.probe("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(admin.probe("/readyz"), (200, "ready\n".to_owned()));
    let (code, verbose) = admin.probe("/readyz?verbose");
    let names: Vec<&str> = verbose
        .lines()
        .filter_map(|l| l.split(": ").next())
        .collect();
    let want = ["ready", "[+] listeners", "[+] registry:local", "[+] config"];
    assert_eq!((code, &names[..]), (200, &want[..]), "{verbose}");
    {
        let mut answers = admin.control.answers();
        answers.process.ready = false;
        answers.process.conditions.push(Condition {
            name: "draining".to_owned(),
            failing: true,
            message: "shutting down".to_owned(),
        });
    }
    let body = "not ready\n[-] draining: shutting down\n";
    assert_eq!(admin.probe("/readyz"), (503, body.to_owned()));
    let (code, text) = admin.probe("/metrics?family=outrigger_build_info,outrigger_instances");
    assert_eq!(code, 200);
    assert_eq!(
        text.lines().filter(|l| l.starts_with("# TYPE")).count(),
        2,
        "{text}"
    );
    let (_, text) = admin.probe("/metrics");
    assert!(
        text.contains("outrigger_instance_ejected{upstream=\"orders\",instance=\"[::1]:8080\"} 1")
    );
    assert_eq!(admin.probe("/").0, 404);
    admin.stop();
}

#[test]
fn metrics_come_in_the_format_that_is_asked_for() {
    let admin = Admin::start();
    let open = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let get = |method: &str, path: &str, accept: &[&str]| {
        let mut request = Request::builder().method(method).uri(path);
        for value in accept {
            request = request.header("accept", *value);
        }
        let answer = send(admin.telemetry, request);
        let text = String::from_utf8(answer.body().to_vec()).unwrap();
        let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
        (header("content-type"), header("content-length"), text)
    };
    let (kind, _, text) = get("GET", "/metrics", &[]);
    assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
    assert!(text.contains("# TYPE outrigger_requests_in_flight gauge\n"));
    assert!(!text.contains("# EOF"));
    let accept = [
        "application/json",
        "application/openmetrics-text;version=1.0.0",
    ];
    let (kind, length, text) = get("GET", "/metrics", &accept);
    assert_eq!((&*kind, length), (open, text.len().to_string()));
    assert!(text.ends_with("\n# EOF\n"));
    assert!(text.contains("# UNIT outrigger_attempt_duration_seconds seconds\n"));
    // By their names in either format, none of others; HEAD says how long it would be.
    for names in [
        "outrigger_retries,outrigger_build_info",
        "outrigger_retries_total&family=outrigger_build_info",
    ] {
        let path = format!("/metrics?family={names}");
        let (kind, length, text) = get("GET", &path, &accept);
        assert_eq!(text.matches("# TYPE ").count(), 2, "{text}");
        assert!(
            text.contains("# TYPE outrigger_retries counter\n"),
            "{text}"
        );
        assert!(
            text.contains("outrigger_retries_total{upstream=\"orders\"} 0\n"),
            "{text}"
        );
        let head = get("HEAD", &path, &accept);
        assert_eq!(head, (kind, length, String::new()));
    }
    admin.stop();
}

#[test]
fn a_stuck_control_plane_fails_the_heartbeat_and_does_not_hold_up_the_end() {
    let (control, _, _) = FakeControl::new(Vec::new());
    let (handle, questions) = ControlHandle::channel();
    let admin = Admin::with(control, handle, &Listen::Tcp(([127, 0, 0, 1], 0).into()));
    assert_eq!(admin.probe("/healthz").0, 503);
    drop(questions);
    assert_eq!(admin.probe("/readyz").0, 503);
    assert_eq!(
        admin.get("/api/v1/status").1["error"],
        "control_unavailable"
    );
    admin.stop();
}

#[test]
fn policies_are_validated_and_not_applied() {
    let admin = Admin::start();
    let post = |body: &str| {
        let request = Request::post("/api/v1/policies:validate")
            .header("x-outrigger-admin", "1")
            .header("content-type", "application/json");
        let answer = send_body(admin.at, request, body);
        let status = answer.status().as_u16();
        let body: Value = serde_json::from_slice(answer.body()).unwrap();
        (status, body)
    };
    let (code, good) = post(r#"{"content": "policies: [{name: p}]"}"#);
    assert_eq!((code, &good["valid"]), (200, &true.into()), "{good}");
    assert_eq!(good["policies"][0], "p");
    let (_, bad) = post(r#"{"content": "policies:\n  - {name: p, mode: off}", "name": "x.yaml"}"#);
    let problem = &bad["diagnostics"][0];
    assert_eq!(
        (&bad["valid"], &problem["line"]),
        (&false.into(), &2.into())
    );
    assert_eq!(
        (&problem["file"], &problem["code"]),
        (&"x.yaml".into(), &"E-CFG-018".into())
    );
    // A message cannot carry a variable of the process out.
    let (_, secret) = post(r#"{"content": "policies: [{name: p, ramp: \"${PATH}\"}]"}"#);
    assert_eq!(secret["diagnostics"][0]["code"], "E-CFG-010");
    assert_eq!(post(r#"{"contents": ""}"#).0, 400);
    let (_, none) = admin.get("/api/v1/policies");
    assert_eq!(none["policies"], serde_json::json!([]));
    let (_, config) = admin.get("/api/v1/config");
    let workers = config["settings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|s| s["key"] == "workers");
    assert_eq!(workers.unwrap()["value"], "auto");
    let (code, effective) = admin.get("/api/v1/policies/effective/any");
    assert_eq!(
        (code, &effective["winner"]["name"]),
        (200, &"builtin".into())
    );
    assert_eq!(effective["budget"][1]["limit"], 1);
    admin.stop();
}
