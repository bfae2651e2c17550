//! Active checks of all kinds, on the built proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use http::{HeaderMap, Response};
use serde_json::Value;
use tokio::sync::watch;

use crate::harness::{Call, Client, Config, H2Stub, Proxy, Stub, closed_port, eventually};

const SERVING: u8 = 1;
const NOT_SERVING: u8 = 2;

fn instance(proxy: &Proxy, number: usize) -> Value {
    let answer = proxy.admin("/api/v1/upstreams/svc/instances");
    answer["instances"][number].clone()
}

/// Waits until the check of an instance says so; what it says.
#[track_caller]
fn until(proxy: &Proxy, passes: bool) -> String {
    let mut message = String::new();
    eventually("the verdict", || {
        let seen = instance(proxy, 0);
        message = seen["check_message"].as_str().unwrap().to_owned();
        seen["check_passes"] == passes && message != "not checked yet"
    });
    message
}

/// An instance whose health service says what it is told to; how often it was asked to be watched.
fn health(status: &watch::Sender<u8>, can_watch: bool) -> (H2Stub, Arc<AtomicUsize>) {
    let (status, watches) = (status.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&watches);
    let stub = H2Stub::start(move |call| {
        let (status, watches) = (status.subscribe(), Arc::clone(&counted));
        async move {
            if call.request.uri().path().ends_with("Watch") {
                watches.fetch_add(1, SeqCst);
                watched(call, status, can_watch).await;
            } else {
                checked(call, status).await;
            }
        }
    });
    (stub, watches)
}

fn head(status: Option<&str>) -> Response<()> {
    let mut head = Response::builder().header("content-type", "application/grpc");
    if let Some(status) = status {
        head = head.header("grpc-status", status);
    }
    head.body(()).unwrap()
}

async fn checked(mut call: Call, status: watch::Receiver<u8>) {
    assert_eq!(call.body().await, b"\0\0\0\0\x0a\x0a\x08shop.Svc");
    let mut stream = call.respond.send_response(head(None), false).unwrap();
    let message = vec![0, 0, 0, 0, 2, 8, *status.borrow()];
    stream.send_data(Bytes::from(message), false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    stream.send_trailers(trailers).unwrap();
}

async fn watched(mut call: Call, mut status: watch::Receiver<u8>, can: bool) {
    if !can {
        call.respond.send_response(head(Some("12")), true).unwrap();
        return;
    }
    let mut stream = call.respond.send_response(head(None), false).unwrap();
    loop {
        let message = vec![0, 0, 0, 0, 2, 8, *status.borrow_and_update()];
        if stream.send_data(Bytes::from(message), false).is_err() {
            return;
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}

#[test]
fn a_watched_grpc_service_turns_at_once() {
    let (status, _kept) = watch::channel(SERVING);
    let (stub, watches) = health(&status, true);
    // After the first check nothing but the watch can tell.
    let keys = "protocol: grpc\nhealth_check: {grpc: shop.Svc, interval: 24h}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    eventually("the watch", || watches.load(SeqCst) == 1);
    until(&proxy, true);
    status.send_replace(NOT_SERVING);
    assert_eq!(until(&proxy, false), "NOT_SERVING (watched)");
    status.send_replace(SERVING);
    assert_eq!(until(&proxy, true), "SERVING (watched)");
    assert_eq!(watches.load(SeqCst), 1);
}

#[test]
fn without_watch_the_periodic_check_tells() {
    let (status, _kept) = watch::channel(SERVING);
    let (stub, watches) = health(&status, false);
    let keys = "protocol: grpc\nhealth_check: {grpc: shop.Svc, interval: 20ms, rise: 1, fall: 2}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    until(&proxy, true);
    status.send_replace(NOT_SERVING);
    let message = until(&proxy, false);
    assert!(message.ends_with("not serving: NOT_SERVING"), "{message}");
    status.send_replace(SERVING);
    until(&proxy, true);
    assert_eq!(watches.load(SeqCst), 1, "UNIMPLEMENTED is not asked again");
}

#[test]
fn a_watch_that_breaks_off_begins_again_after_a_check() {
    let (status, kept) = watch::channel(SERVING);
    let stopped = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&stopped);
    let stub = H2Stub::start(move |mut call| {
        let (status, counted) = (kept.clone(), Arc::clone(&counted));
        async move {
            if !call.request.uri().path().ends_with("Watch") {
                checked(call, status).await;
            } else if counted.fetch_add(1, SeqCst) == 0 {
                call.respond.send_reset(h2::Reason::INTERNAL_ERROR);
            } else {
                watched(call, status, true).await;
            }
        }
    });
    let keys = "protocol: grpc\nhealth_check: {grpc: shop.Svc, interval: 24h}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    eventually("the second watch", || stopped.load(SeqCst) == 2);
    status.send_replace(NOT_SERVING);
    until(&proxy, false);
}

/// An instance whose every answer is this body at the moment.
fn saying(body: &watch::Sender<&'static str>) -> Stub {
    let body = body.subscribe();
    Stub::script(move |peer| {
        while peer.request().is_some() {
            let body = *body.borrow();
            let length = body.len();
            peer.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"
            ));
        }
    })
}

#[test]
fn the_body_of_an_answer_decides() {
    let up = r#"{"status":"UP","components":{}}"#;
    let (body, _kept) = watch::channel(up);
    let stub = saying(&body);
    for (look, good, bad, says) in [
        (
            "json_pointer: /status",
            up,
            r#"{"status":"OUT_OF_SERVICE"}"#,
            "/status is OUT_OF_SERVICE, not UP",
        ),
        (
            "json_pointer: /status",
            up,
            r#"{"status":"DOWN"}"#,
            "/status is DOWN, not UP",
        ),
        (
            "body: ready",
            "all ready",
            "starting",
            "answered 200, without `ready` in its body",
        ),
    ] {
        body.send_replace(good);
        let keys = format!("health_check: {{http: /h, {look}, interval: 20ms, rise: 1, fall: 1}}");
        let proxy = Config::svc_with(&[stub.address], &keys).start();
        until(&proxy, true);
        body.send_replace(bad);
        assert_eq!(until(&proxy, false), says);
        let view = instance(&proxy, 0);
        assert_eq!(view["state"], "unhealthy");
        assert!(view["why"].as_str().unwrap().contains(says), "{view}");
        body.send_replace(good);
        until(&proxy, true);
    }
}

#[test]
fn a_program_decides_and_is_told_which_instance() {
    let (one, other) = (Stub::ok(), Stub::ok());
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "test -e {}/$CHECK_PORT && {{ echo $CHECK_ADDRESS is broken; exit 1; }}; echo $CHECK_SERVICE is fine",
        folder.path().display()
    );
    let keys = format!(
        "health_check: {{exec: [/bin/sh, -c, '{script}'], interval: 30ms, timeout: 10s, rise: 1, fall: 1}}"
    );
    let proxy = Config::svc_with(&[one.address, other.address], &keys).start();
    assert_eq!(until(&proxy, true), "svc is fine");
    let mark = folder.path().join(one.address.port().to_string());
    std::fs::write(&mark, "").unwrap();
    let message = until(&proxy, false);
    assert!(
        message.ends_with(&format!(": {} is broken", one.address)),
        "{message}"
    );
    assert_eq!(instance(&proxy, 1)["check_passes"], true);
    std::fs::remove_file(mark).unwrap();
    until(&proxy, true);
}

#[test]
fn when_all_fail_their_checks_all_serve_or_none_whatever_the_kind() {
    let stub = Stub::ok();
    let (_kept, closed) = closed_port();
    let kinds = [
        format!("tcp: true, port: {}", closed.port()),
        "http: /health, expect: 204".to_owned(),
        "http: /health, json_pointer: /status".to_owned(),
        "grpc: shop.Svc".to_owned(),
        "exec: [/bin/false]".to_owned(),
    ];
    for kind in kinds {
        let keys = |word: &str| {
            format!(
                "when_all_unhealthy: {word}\nhealth_check: {{{kind}, interval: 50ms, timeout: 10s}}"
            )
        };
        let proxy = Config::svc_with(&[stub.address], &keys("use_all")).start();
        until(&proxy, false);
        assert_eq!(
            Client::connect(proxy.address).get("/").status(),
            200,
            "{kind}"
        );
        let proxy = Config::svc_with(&[stub.address], &keys("refuse")).start();
        until(&proxy, false);
        let answer = Client::connect(proxy.address).get("/");
        let told = (answer.status(), answer.reason());
        assert_eq!(told, (503, Some("no_healthy_instances")), "{kind}");
    }
}

#[test]
fn a_reload_changes_the_check_and_clears_its_verdict() {
    let stub = Stub::ok();
    let proxy = Config::svc_with(
        &[stub.address],
        "health_check: {http: /health, expect: 204, interval: 24h}",
    )
    .start();
    until(&proxy, false);
    proxy.reload(&proxy.config_text().replace("expect: 204", "expect: 200"));
    assert_eq!(until(&proxy, true), "answered 200");
    let event = proxy.wait_for_event("instance_healthy");
    assert_eq!(event["check"], "answered 200", "{event}");
    proxy.reload(&proxy.config_text().replace("expect: 200", "expect: 204"));
    until(&proxy, false);
    let without = proxy.config_text();
    let of_check = |line: &&str| line.contains("health_check");
    let line = without.lines().find(of_check).unwrap();
    proxy.reload(&without.replace(line, ""));
    eventually("it is no longer checked", || {
        let lines = proxy.lines();
        let cleared = |l: &Value| l["check"] == "it is no longer checked";
        lines
            .iter()
            .any(|l| l["event"] == "instance_healthy" && cleared(l))
    });
    assert_eq!(instance(&proxy, 0)["check_passes"], Value::Null);
}

#[test]
fn who_failed_the_check_before_a_reload_gets_no_request_until_the_new_one_passes() {
    let (open, held) = watch::channel(false);
    let bad = Stub::script(move |peer| {
        while let Some(request) = peer.request() {
            match request.target() {
                "/new" => {
                    while !*held.borrow() {
                        std::thread::yield_now();
                    }
                    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                }
                _ => peer.send("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"),
            }
        }
    });
    let good = Stub::ok();
    let keys = "load_balancer: round_robin\n\
                health_check: {http: /old, interval: 24h, timeout: 60s}";
    let proxy = Config::svc_with(&[bad.address, good.address], keys).start();
    until(&proxy, false);
    proxy.reload(&proxy.config_text().replace("/old", "/new"));
    proxy.wait_for_event("config_reloaded");
    let asked = |target: &str| {
        let all = bad.requests();
        all.iter().filter(|r| r.target() == target).count()
    };
    eventually("the new check", || asked("/new") == 1);
    let mut client = Client::connect(proxy.address);
    for _ in 0..6 {
        assert_eq!(client.get("/").status(), 200);
    }
    assert_eq!(
        (asked("/"), until(&proxy, false)),
        (0, "answered 503, which is not expected".to_owned())
    );
    open.send_replace(true);
    assert_eq!(until(&proxy, true), "answered 200");
}

#[test]
fn a_watch_that_cannot_be_had_does_not_drive_the_checks() {
    let (_kept, closed) = closed_port();
    let other = Stub::ok();
    let keys = "health_check: {grpc: shop.Svc, interval: 24h}";
    let proxy = Config::svc_with(&[closed, other.address], keys).start();
    let checks = || proxy.metric("outrigger_health_checks_total", &["result=\"failed\""]);
    // Each one twice: a watch that breaks off is a reason to look, once.
    eventually("the checks", || checks() == 4);
    let mut client = Client::connect(proxy.address);
    for _ in 0..200 {
        assert_eq!(client.get("/").status(), 200);
    }
    assert_eq!(checks(), 4);
}

#[test]
fn a_watch_that_is_never_answered_begins_again() {
    let (status, kept) = watch::channel(SERVING);
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let stub = H2Stub::start(move |call| {
        let (status, counted) = (kept.clone(), Arc::clone(&counted));
        async move {
            if !call.request.uri().path().ends_with("Watch") {
                checked(call, status).await;
            } else if counted.fetch_add(1, SeqCst) == 0 {
                std::future::pending::<()>().await;
            } else {
                watched(call, status, true).await;
            }
        }
    });
    let keys = "protocol: grpc\nhealth_check: {grpc: shop.Svc, interval: 24h, timeout: 2s}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    eventually("the second watch", || asked.load(SeqCst) == 2);
    status.send_replace(NOT_SERVING);
    assert_eq!(until(&proxy, false), "NOT_SERVING (watched)");
}

#[test]
fn a_reload_that_changes_the_protocol_changes_how_checks_speak() {
    let stub = H2Stub::start(|mut call| async move {
        let answer = Response::builder().status(200).body(()).unwrap();
        call.respond.send_response(answer, true).unwrap();
    });
    let keys = "protocol: http1\nhealth_check: {http: /health, interval: 24h}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    until(&proxy, false);
    proxy.reload(
        &proxy
            .config_text()
            .replace("protocol: http1", "protocol: http2"),
    );
    assert_eq!(until(&proxy, true), "answered 200");
}

#[test]
fn a_turn_of_a_check_is_an_event_that_says_why() {
    let up = r#"{"status":"UP"}"#;
    let (body, _kept) = watch::channel(up);
    let (stub, other) = (saying(&body), Stub::ok());
    let (_closed, gone) = closed_port();
    let all = [stub.address, other.address, gone];
    let look = "http: /h, json_pointer: /status, interval: 20ms, timeout: 10s, rise: 1, fall: 2";
    let proxy = Config::svc_with(&all, &format!("health_check: {{{look}}}")).start();
    let event_of = |event: &str, address: std::net::SocketAddr| {
        let mut found = Value::Null;
        eventually(event, || {
            let lines = proxy.lines();
            let mut lines = lines.into_iter();
            let of_it = |l: &Value| l["event"] == event && l["instance"] == address.to_string();
            found = lines.find(of_it).unwrap_or_default();
            !found.is_null()
        });
        found
    };
    let of_other = event_of("instance_unhealthy", other.address);
    let said = of_other["check"].as_str().unwrap();
    assert!(said.starts_with("the answer is no JSON"), "{of_other}");
    let of_gone = event_of("instance_unhealthy", gone);
    let said = of_gone["check"].as_str().unwrap();
    assert!(said.starts_with("no connection: "), "{of_gone}");
    assert_eq!(
        (&of_gone["upstream"], &of_gone["checked"]),
        (&"svc".into(), &3.into())
    );

    body.send_replace(r#"{"status":"DOWN"}"#);
    let down = event_of("instance_unhealthy", stub.address);
    assert_eq!(down["check"], "/status is DOWN, not UP");
    assert_eq!(down["passing"], 0, "{down}");
    let message = down["msg"].as_str().unwrap();
    let says = "fails its checks: /status is DOWN, not UP; 0 of 3 pass, so all are used";
    assert!(message.ends_with(says), "{message}");
    body.send_replace(up);
    let back = event_of("instance_healthy", stub.address);
    assert_eq!(
        (&back["check"], &back["passing"]),
        (&"/status is UP".into(), &1.into())
    );
    assert!(back["unhealthy_for_s"].as_f64() > Some(0.0), "{back}");

    let now = |state: &str| {
        let label = format!("state=\"{state}\"");
        proxy.metric("outrigger_checked_instances", &[&label])
    };
    assert_eq!((now("passing"), now("failing")), (1, 2));
    let counted = |result: &str| {
        let label = format!("result=\"{result}\"");
        proxy.metric("outrigger_health_checks_total", &[&label])
    };
    assert!(counted("good") >= 1 && counted("failed") >= 4);
    assert_eq!(counted("ignored"), 0);
}

#[test]
fn turns_of_many_checks_are_told_together() {
    let (_kept, closed) = closed_port();
    let all: Vec<_> = (0..300_u16)
        .map(|n| {
            let [high, low] = n.to_be_bytes();
            std::net::SocketAddr::from(([127, 1, high, low], closed.port()))
        })
        .collect();
    let keys = "health_check: {tcp: true, interval: 24h, timeout: 10s}";
    let proxy = Config::svc_with(&all, keys).start();
    let turned = || -> Vec<Value> {
        let mut lines = proxy.lines();
        lines.retain(|l| l["event"] == "instance_unhealthy");
        lines
    };
    let stands_for = |line: &Value| line["count"].as_u64().unwrap_or(1);
    eventually("all are told", || {
        turned().iter().map(stands_for).sum::<u64>() == 300
    });
    let (one_by_one, together): (Vec<Value>, Vec<Value>) =
        turned().into_iter().partition(|l| l["count"].is_null());
    assert!(
        !together.is_empty() && one_by_one.len() < 300,
        "{}",
        one_by_one.len()
    );
    assert!(together.iter().all(|l| l["instance"].is_null()));
    assert!(one_by_one.iter().all(|l| l["check"].is_string()));
    let failing = proxy.metric("outrigger_checked_instances", &["state=\"failing\""]);
    assert_eq!(failing, 300);
}
