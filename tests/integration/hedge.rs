//! A second attempt at another instance when the first is slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use serde_json::Value;

use crate::admin::{get, write};
use crate::harness::{Client, Config, Proxy, Stub, eventually, pause_ms};

/// A pair of instances. Of all requests the first one, wherever it goes, gets no answer; `then` is what
/// the later ones get.
fn pair(then: &'static str) -> [Stub; 2] {
    silent_pair(1, then)
}

/// The same with more that get no answer.
fn silent_pair(silent: usize, then: &'static str) -> [Stub; 2] {
    let requests = Arc::new(AtomicUsize::new(0));
    [(), ()].map(|()| {
        let requests = Arc::clone(&requests);
        Stub::script(move |peer| {
            while peer.request().is_some() {
                if requests.fetch_add(1, SeqCst) < silent {
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

fn breaker(proxy: &Proxy) -> Value {
    get(proxy, "/api/v1/upstreams/svc")["breaker"].clone()
}

/// A proxy whose breaker is half-open and permits this many trials; each of them would hold its lease
/// for a minute.
fn half_open(stubs: &[Stub; 2], permitted: u32) -> Proxy {
    let keys = format!(
        "circuit_breaker: {{mode: enforce, permitted_number_of_calls_in_half_open_state: {permitted}}}\n\
         hedge: {{after: 50ms}}\ntimeout: {{attempt: 10s, request: 20s}}"
    );
    let proxy = proxy(stubs, &keys);
    let order = r#"{"order": "force_open", "ttl": "20ms"}"#;
    let post = "POST /api/v1/upstreams/svc/breaker";
    assert_eq!(write(&proxy, post, order).0, 200);
    proxy.wait_for_event("breaker_half_open");
    proxy
}

#[test]
fn a_breaker_counts_the_winner_and_the_one_that_failed_and_not_the_loser() {
    let keys = "circuit_breaker: {mode: enforce}\nhedge: {after: 50ms}\ntimeout: {attempt: 10s}";
    let stubs = pair(OK);
    let proxied = proxy(&stubs, keys);
    assert_eq!(Client::connect(proxied.address).get("/").status(), 200);
    eventually("the end of the loser", || proxied.attempts("ignored") == 1);
    let counts = breaker(&proxied);
    assert_eq!(
        (&counts["calls"], &counts["failed"]),
        (&1.into(), &0.into())
    );
    // The hedge fails, then the first one: both are calls that failed.
    let requests = Arc::new(AtomicUsize::new(0));
    let stubs = [(), ()].map(|()| {
        let requests = Arc::clone(&requests);
        Stub::script(move |peer| {
            while peer.request().is_some() {
                requests.fetch_add(1, SeqCst);
                while requests.load(SeqCst) < 2 {
                    pause_ms(1);
                }
                peer.send("HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n");
            }
        })
    });
    let proxied = proxy(&stubs, keys);
    let answer = Client::connect(proxied.address).get("/");
    assert_eq!((answer.status(), answer.reason()), (503, None));
    let counts = breaker(&proxied);
    assert_eq!(
        (&counts["calls"], &counts["failed"]),
        (&2.into(), &2.into())
    );
}

#[test]
fn the_loser_gives_its_trial_of_a_half_open_breaker_back() {
    let stubs = pair(OK);
    let proxy = half_open(&stubs, 2);
    let mut client = Client::connect(proxy.address);
    // Both attempts are trials. The winner's is good, the loser's is free again: else the next request
    // would be refused.
    assert_eq!(client.get("/").status(), 200);
    assert_eq!(hedges(&proxy), 1);
    let half_open = breaker(&proxy);
    assert_eq!(half_open["state"], "half_open", "{half_open}");
    let answer = client.get("/");
    assert_eq!((answer.status(), answer.reason()), (200, None));
    let closed = proxy.wait_for_event("breaker_closed");
    assert_eq!(closed["good_trials"], 2, "{closed}");
}

#[test]
fn an_app_that_leaves_gives_both_trials_back() {
    let stubs = silent_pair(2, OK);
    let proxy = half_open(&stubs, 2);
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    for stub in &stubs {
        stub.wait_for_requests(1);
    }
    let refused = Client::connect(proxy.address).get("/");
    assert_eq!(refused.reason(), Some("circuit_open"), "two are under way");
    drop(client);
    eventually("the end of both", || given_up(&stubs) == 2);
    let mut client = Client::connect(proxy.address);
    for _ in 0..2 {
        assert_eq!(client.get("/").status(), 200);
    }
    proxy.wait_for_event("breaker_closed");
}

#[test]
fn without_a_trial_for_it_there_is_no_hedge() {
    let requests = Arc::new(AtomicUsize::new(0));
    let stubs = [(), ()].map(|()| {
        let requests = Arc::clone(&requests);
        Stub::script(move |peer| {
            while peer.request().is_some() {
                requests.fetch_add(1, SeqCst);
                pause_ms(300);
                peer.send(OK);
            }
        })
    });
    let proxy = half_open(&stubs, 1);
    assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    assert_eq!((requests.load(SeqCst), hedges(&proxy)), (1, 0));
    assert_eq!(proxy.wait_for_event("breaker_closed")["good_trials"], 1);
}

#[test]
fn a_hedge_that_finds_its_instance_full_costs_nothing() {
    let answers = Arc::new(AtomicUsize::new(0));
    let stubs = [(), ()].map(|()| {
        let answers = Arc::clone(&answers);
        Stub::script(move |peer| {
            while let Some(request) = peer.request() {
                match request.target() {
                    "/hold" => {
                        peer.closed();
                        return;
                    }
                    // Answers once it is its turn.
                    "/slow" => {
                        while answers.load(SeqCst) == 0 {
                            pause_ms(5);
                        }
                    }
                    _ => {}
                }
                peer.send(OK);
            }
        })
    });
    // One connection each; the first hundred requests are good for one token.
    let keys = "hedge: {after: 50ms}\npool: {max_connections_per_instance: 1, max_wait: 10s}\n\
                retry: {budget: {percent: 1, min_per_second: 0}}\ntimeout: {attempt: 20s}";
    let proxy = proxy(&stubs, keys);
    let mut client = Client::connect(proxy.address);
    for _ in 0..110 {
        assert_eq!(client.get("/").status(), 200);
    }
    let mut holder = Client::connect(proxy.address);
    holder.send("POST /hold HTTP/1.1\r\nHost: svc\r\nContent-Length: 0\r\n\r\n");
    eventually("one is full", || {
        stubs.iter().any(|stub| {
            let requests = stub.requests();
            requests.last().is_some_and(|r| r.target() == "/hold")
        })
    });
    for n in 1..=2 {
        answers.store(0, SeqCst);
        client.send("GET /slow HTTP/1.1\r\nHost: svc\r\n\r\n");
        eventually("the hedge", || hedges(&proxy) == n);
        answers.store(1, SeqCst);
        assert_eq!(client.response().status(), 200);
    }
    let exhausted = proxy.metric("outrigger_retry_budget_exhausted_total", &[]);
    assert_eq!(exhausted, 0);
}
