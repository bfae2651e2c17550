//! A second attempt at another instance when the first is slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::harness::{Client, Config, Proxy, Stub, eventually, pause_ms};

/// A pair of instances. Of all requests the first one, wherever it goes, gets no answer; `then` is what
/// the later ones get.
fn pair(then: &'static str) -> [Stub; 2] {
    let requests = Arc::new(AtomicUsize::new(0));
    [(), ()].map(|()| {
        let requests = Arc::clone(&requests);
        Stub::script(move |peer| {
            while peer.request().is_some() {
                if requests.fetch_add(1, SeqCst) == 0 {
                    peer.closed();
                    peer.note("given up");
                    return;
                }
                peer.send(then);
            }
        })
    })
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn proxy(stubs: &[Stub; 2], keys: &str) -> Proxy {
    let [a, b] = stubs;
    Config::svc_with(&[a.address, b.address], keys).start()
}

fn hedges(proxy: &Proxy) -> u64 {
    proxy.metric("outrigger_hedges_total", &["svc"])
}

fn given_up(stubs: &[Stub; 2]) -> usize {
    stubs.iter().map(|stub| stub.notes().len()).sum()
}

#[test]
fn the_faster_one_answers_and_the_slower_one_is_nothing() {
    let stubs = pair(OK);
    let proxy = proxy(
        &stubs,
        "hedge: {after: 50ms}\ntimeout: {attempt: 10s, request: 20s}",
    );
    let mut client = Client::connect(proxy.address);
    let answer = client.get("/");
    assert_eq!((answer.status(), answer.reason()), (200, None));
    eventually("the end of the loser", || given_up(&stubs) == 1);
    let loser = ["cause=\"hedge_loser\""];
    let ignored = || proxy.metric("outrigger_ignored_outcomes_total", &loser);
    eventually("its count", || ignored() == 1);
    assert_eq!((hedges(&proxy), proxy.attempts("ignored")), (1, 1));
    assert_eq!(proxy.attempts("success"), 1);
    assert_eq!(proxy.attempts("network_error"), 0);
    let line = proxy.access_line(0);
    assert_eq!(line["outrigger.attempts"], 2, "{line}");
    let answered = stubs.iter().find(|stub| stub.notes().is_empty()).unwrap();
    assert_eq!(
        line["outrigger.instance"],
        answered.address.to_string(),
        "{line}"
    );
    // The next one is fast and stays alone.
    assert_eq!(client.get("/").status(), 200);
    assert_eq!(hedges(&proxy), 1);
    assert_eq!(proxy.metric("outrigger_requests_in_flight", &["svc"]), 0);
}

#[test]
fn a_bad_answer_waits_for_the_other_attempt() {
    let requests = Arc::new(AtomicUsize::new(0));
    let stubs = [(), ()].map(|()| {
        let requests = Arc::clone(&requests);
        Stub::script(move |peer| {
            while peer.request().is_some() {
                if requests.fetch_add(1, SeqCst) == 0 {
                    // Until the second one has its answer, and a little longer.
                    while requests.load(SeqCst) < 2 {
                        pause_ms(1);
                    }
                    pause_ms(100);
                    peer.send(OK);
                } else {
                    peer.send("HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n");
                }
            }
        })
    });
    let proxy = proxy(&stubs, "hedge: {after: 20ms}");
    assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    assert_eq!(hedges(&proxy), 1);
    eventually("both outcomes", || {
        proxy.attempts("network_error") == 1 && proxy.attempts("success") == 1
    });
}

#[test]
fn what_may_not_be_repeated_is_not_hedged() {
    for (keys, request) in [
        (
            "hedge: {after: 20ms}",
            "POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: 0\r\n\r\n",
        ),
        (
            "hedge: {after: 20ms, methods: [PUT]}",
            "GET / HTTP/1.1\r\nHost: svc\r\n\r\n",
        ),
        (
            "hedge: {after: 20ms}\nretry: {budget: {percent: 1, min_per_second: 0}}",
            "GET / HTTP/1.1\r\nHost: svc\r\n\r\n",
        ),
        (
            "hedge: {after: 20ms}\nretry: {max_attempts: 1}",
            "GET / HTTP/1.1\r\nHost: svc\r\n\r\n",
        ),
    ] {
        let stubs = pair(OK);
        let keys = format!("{keys}\ntimeout: {{attempt: 10s, request: 300ms}}");
        let proxy = proxy(&stubs, &keys);
        let mut client = Client::connect(proxy.address);
        client.send(request);
        assert_eq!(
            client.response().reason(),
            Some("request_timeout"),
            "{keys}"
        );
        assert_eq!(hedges(&proxy), 0, "{keys}");
    }
}

#[test]
fn a_body_that_is_kept_is_sent_twice() {
    let stubs = pair(OK);
    let proxy = proxy(&stubs, "hedge: {after: 50ms, methods: [POST]}");
    let mut client = Client::connect(proxy.address);
    client.send("POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!(client.response().status(), 200);
    for stub in &stubs {
        assert_eq!(stub.request().text(), "body");
    }
}

#[test]
fn the_estimate_starts_a_hedge_once_it_is_known() {
    let requests = Arc::new(AtomicUsize::new(0));
    let stubs = [(), ()].map(|()| {
        let requests = Arc::clone(&requests);
        Stub::script(move |peer| {
            while let Some(request) = peer.request() {
                let hangs = request.target() == "/slow" && requests.fetch_add(1, SeqCst) == 0;
                if hangs {
                    peer.closed();
                    return;
                }
                peer.send(OK);
            }
        })
    });
    let proxy = proxy(&stubs, "hedge: {after: p95}\ntimeout: {attempt: 15s}");
    let mut client = Client::connect(proxy.address);
    for _ in 0..100 {
        assert_eq!(client.get("/").status(), 200);
    }
    assert_eq!(client.get("/slow").status(), 200);
    assert!(hedges(&proxy) >= 1);
}
