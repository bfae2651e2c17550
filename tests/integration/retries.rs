//! Retries as the servers ask for them, and time limits that give everything back.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderValue;

use crate::admin::write;
use crate::harness::{Client, Config, H2Client, H2Stub, Stopwatch, Stub, eventually, pause_ms};

#[test]
fn retry_after_is_waited_for_where_it_fits() {
    let busy = |wait: &str| {
        format!("HTTP/1.1 503 Busy\r\nRetry-After: {wait}\r\nContent-Length: 4\r\n\r\nbusy")
    };
    // (what it says, at least this long, at most)
    for (wait, least, most) in [("1", 1_000, 20_000), ("3600", 0, 3_000)] {
        let (busy, fine) = (Stub::answering(busy(wait)), Stub::ok());
        let keys = "load_balancer: round_robin";
        let proxy = Config::svc_with(&[busy.address, fine.address], keys).start();
        let mut client = Client::connect(proxy.address);
        let watch = Stopwatch::start();
        assert_eq!(client.get("/").text(), "ok");
        assert!(
            (least..most).contains(&watch.ms()),
            "{wait}: {} ms",
            watch.ms()
        );
        assert_eq!(busy.requests().len(), 1);
    }
}

#[test]
fn a_grpc_server_says_when_and_whether_to_try_again() {
    let first = |pushback: &'static str| {
        H2Stub::start(move |mut call| async move {
            let mut response = http::Response::new(());
            let headers = response.headers_mut();
            headers.insert("content-type", HeaderValue::from_static("application/grpc"));
            headers.insert("grpc-status", HeaderValue::from_static("14"));
            headers.insert("grpc-retry-pushback-ms", HeaderValue::from_static(pushback));
            let _gone = call.respond.send_response(response, true);
        })
    };
    let seen: &'static Mutex<Vec<Option<String>>> = Box::leak(Box::default());
    let second = || {
        H2Stub::start(move |mut call| async move {
            let said = call.header("grpc-previous-rpc-attempts");
            seen.lock().unwrap().push(said);
            let mut response = http::Response::new(());
            let headers = response.headers_mut();
            headers.insert("content-type", HeaderValue::from_static("application/grpc"));
            headers.insert("grpc-status", HeaderValue::from_static("0"));
            let _gone = call.respond.send_response(response, true);
        })
    };
    let keys = "load_balancer: round_robin\nretry: {methods: [grpc]}";
    let (pushes, fine) = (first("700"), second());
    let proxy = Config::svc_with(&[pushes.address, fine.address], keys).start();
    let h2 = H2Client::connect(proxy.address);
    let watch = Stopwatch::start();
    let answer = h2.grpc(&[("grpc-previous-rpc-attempts", "2")]).unwrap();
    assert_eq!(answer.header("grpc-status"), Some("0"));
    assert!(watch.ms() >= 700, "{} ms", watch.ms());
    assert_eq!(*seen.lock().unwrap(), [Some("3".to_owned())]);
    // A negative number: not again.
    let (never, fine) = (first("-1"), second());
    let proxy = Config::svc_with(&[never.address, fine.address], keys).start();
    let h2 = H2Client::connect(proxy.address);
    let answer = h2.grpc(&[]).unwrap();
    assert_eq!(answer.header("grpc-status"), Some("14"));
    assert_eq!((never.calls(), fine.calls()), (1, 0));
}

#[test]
fn a_hang_is_answered_at_the_limit_and_gives_everything_back() {
    let stub = Stub::script(|peer| while peer.request().is_some() && !peer.closed() {});
    let keys = "timeout: {request: 800ms}\nretry: {max_attempts: 1}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    assert_eq!(Client::connect(proxy.address).get("/").status(), 504);
    eventually("the first is over", || stub.open() == 0);
    // Scrapes and files that are opened once are there from here on.
    assert_eq!(proxy.metric("outrigger_requests_in_flight", &[]), 0);
    let before = proxy.open_files();
    let clients: Vec<_> = (0..40)
        .map(|_| {
            let address = proxy.address;
            std::thread::spawn(move || {
                let mut client = Client::connect(address);
                let watch = Stopwatch::start();
                let answer = client.get("/");
                (
                    answer.status(),
                    answer.reason().map(str::to_owned),
                    watch.elapsed(),
                )
            })
        })
        .collect();
    for client in clients {
        let (status, reason, took) = client.join().unwrap();
        assert_eq!((status, reason.as_deref()), (504, Some("request_timeout")));
        assert!(took >= Duration::from_millis(790), "{took:?}");
    }
    eventually("its connections are closed", || stub.open() == 0);
    // A scrape may be open at that moment; a leak would be forty.
    eventually("the files are given back", || {
        proxy.open_files() <= before + 1
    });
    assert_eq!(proxy.metric("outrigger_requests_in_flight", &[]), 0);
    assert_eq!(
        proxy.metric("outrigger_open_connections", &["side=\"upstream\""]),
        0
    );
}

/// Wants to be asked again in a second.
const BUSY: &str = "HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy";

#[test]
fn the_answer_is_passed_on_when_no_other_try_can_begin() {
    let forced = r#"{"order": "force_open", "ttl": "10m"}"#;
    let breaker = ("POST /api/v1/upstreams/svc/breaker".to_owned(), forced);
    for closes in [true, false] {
        let (busy, fine) = (Stub::answering(BUSY), Stub::ok());
        let keys = "load_balancer: round_robin\ncircuit_breaker: {mode: enforce}";
        let proxy = Config::svc_with(&[busy.address, fine.address], keys).start();
        let mut client = Client::connect(proxy.address);
        client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
        busy.wait_for_requests(1);
        let disabled = (
            format!(
                "POST /api/v1/upstreams/svc/instances/{}:disable",
                fine.address
            ),
            r#"{"ttl": "10m"}"#,
        );
        let (post, body) = if closes { &breaker } else { &disabled };
        assert_eq!(write(&proxy, post, body).0, 200, "{post}");
        let answer = client.response();
        assert_eq!((answer.status(), answer.text().as_str()), (503, "busy"));
        assert_eq!(answer.reason(), None, "{post}");
        let line = proxy.access_line(0);
        assert_eq!(line["outrigger.attempts"], 1, "{line}");
        assert_eq!(line["outrigger.instance"], busy.address.to_string());
        assert_eq!(proxy.attempts("network_error"), 1);
        assert_eq!(fine.requests().len(), 0);
        assert_eq!(proxy.metric("outrigger_retries_total", &[]), 0);
        assert_eq!(proxy.metric("outrigger_requests_in_flight", &[]), 0);
        // Whoever comes later is told what is the matter.
        let later = closes.then_some("circuit_open");
        assert_eq!(client.get("/").reason(), later);
    }
}

#[test]
fn the_last_answer_is_passed_on_when_the_time_is_over_before_the_next_try() {
    let stubs = [(), (), ()]
        .map(|()| Stub::answering("HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"));
    let addresses = stubs.each_ref().map(|stub| stub.address);
    let keys = "retry: {max_attempts: 3, backoff: {base: 1m, max: 1m}}\ntimeout: {request: 500ms}";
    let proxy = Config::svc_with(&addresses, keys).start();
    let answer = Client::connect(proxy.address).get("/");
    assert_eq!((answer.status(), answer.text().as_str()), (503, "busy"));
    assert_eq!(answer.reason(), None);
    assert_eq!(proxy.attempts("network_error"), 2);
}

#[test]
fn a_body_that_goes_on_during_the_back_off_reaches_the_next_instance_whole() {
    // Answers from the head alone, and reads on.
    let busy = Stub::script(|peer| {
        if peer.head().is_some() {
            peer.send(BUSY);
            peer.note("answered");
            peer.closed();
        }
    });
    let fine = Stub::ok();
    let keys = "load_balancer: round_robin";
    let proxy = Config::svc_with(&[busy.address, fine.address], keys).start();
    let mut client = Client::connect(proxy.address);
    let body = "x".repeat(200_000);
    let (first, rest) = body.split_at(1_000);
    client.send("PUT / HTTP/1.1\r\nHost: svc\r\nContent-Length: 200000\r\n\r\n");
    client.send(first);
    busy.wait_for_note("answered");
    // More than is kept, before the second try.
    client.send(rest);
    assert_eq!(client.response().text(), "ok");
    assert_eq!(fine.request().body.len(), body.len());
}

#[test]
fn an_attempt_is_not_cut_short_for_another_that_the_breaker_would_refuse() {
    let go = Arc::new(AtomicBool::new(false));
    let stubs = [(), ()].map(|()| {
        let go = Arc::clone(&go);
        Stub::script(move |peer| {
            while peer.request().is_some() {
                while !go.load(SeqCst) {
                    pause_ms(5);
                }
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            }
        })
    });
    let addresses = stubs.each_ref().map(|stub| stub.address);
    let keys = "circuit_breaker: {mode: enforce}\ntimeout: {request: 2s}";
    let proxy = Config::svc_with(&addresses, keys).start();
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    eventually("the attempt", || {
        stubs.iter().any(|stub| stub.requests().len() == 1)
    });
    let forced = r#"{"order": "force_open", "ttl": "10m"}"#;
    let post = "POST /api/v1/upstreams/svc/breaker";
    assert_eq!(write(&proxy, post, forced).0, 200);
    // Half of the request's time is the attempt's while another may follow.
    assert!(!client.closed_within(Duration::from_millis(1_200)));
    go.store(true, SeqCst);
    let answer = client.response();
    assert_eq!((answer.status(), answer.reason()), (200, None));
}
