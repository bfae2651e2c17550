use std::sync::atomic::Ordering::SeqCst;

use serde_json::json;

use super::{OK, state, switchable};
use crate::admin::{cli, get};
use crate::harness::{Call, Client, Config, H2Client, H2Stub, Proxy, Stub, eventually};

const QUICK: &str = "circuit_breaker: {mode: enforce, minimum_number_of_calls: 10, \
                     wait_duration_in_open_state: 400ms, \
                     permitted_number_of_calls_in_half_open_state: 3}\nretry: {max_attempts: 1}";

/// Ten failures: what opens [`QUICK`].
fn fail_ten(proxy: &Proxy) -> Client {
    let mut client = Client::connect(proxy.address);
    for _ in 0..10 {
        let answer = client.get("/");
        assert_eq!((answer.status(), answer.reason()), (503, None));
    }
    client
}

#[test]
fn it_opens_in_an_outage_and_closes_by_itself() {
    let (stub, says) = switchable(200);
    let keys = QUICK.replace("400ms", "3s");
    let proxy = Config::svc_with(&[stub.address], &keys).start();
    let mut client = Client::connect(proxy.address);
    for _ in 0..9 {
        assert_eq!(client.get("/").status(), 200);
    }
    assert_eq!((state(&proxy, "closed"), state(&proxy, "open")), (1, 0));
    says.store(503, SeqCst);
    // 8 of 17 are below one half, 9 of 18 are one half.
    for n in 0..9 {
        let answer = client.get("/");
        assert_eq!((answer.status(), answer.reason()), (503, None), "{n}");
    }
    let opened = proxy.wait_for_event("breaker_opened");
    assert_eq!(
        (&opened["calls"], &opened["failed"], &opened["cause"]),
        (&json!(18), &json!(9), &json!("failure_rate"))
    );
    let seen = stub.requests().len();
    let refused = client.get("/");
    assert_eq!(
        (refused.status(), refused.reason()),
        (503, Some("circuit_open"))
    );
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=3).contains(&wait), "{wait}");
    let text = refused.text();
    assert!(
        text.contains("9 of 18 calls failed") && text.contains("outrigger explain svc"),
        "{text}"
    );
    assert_eq!(stub.requests().len(), seen, "nothing goes out");
    assert_eq!(proxy.logged("circuit_open")["outrigger.attempts"], 0);
    // An instance's window has what it did, and nothing of the refusal.
    assert_eq!(proxy.attempts("network_error"), 9);
    assert_eq!(state(&proxy, "open"), 1);
    let view = get(&proxy, "/api/v1/upstreams/svc");
    assert_eq!(view["breaker"]["state"], "open", "{view}");
    let (_, out, _) = cli(&proxy, &["explain", "svc"]);
    assert!(out.contains("circuit breaker open (mode enforce)"), "{out}");
    let (_, out, _) = cli(&proxy, &["upstreams"]);
    assert!(out.contains("breaker open"), "{out}");
    says.store(200, SeqCst);
    eventually("the breaker closed", || {
        client.get("/");
        state(&proxy, "closed") == 1
    });
    assert_eq!(client.get("/").status(), 200);
    proxy.wait_for_event("breaker_half_open");
    let closed = proxy.wait_for_event("breaker_closed");
    assert_eq!(
        (&closed["closed_by"], &closed["good_trials"]),
        (&json!("trials"), &json!(3))
    );
    for to in ["open", "half_open", "closed"] {
        let label = format!("to=\"{to}\"");
        let family = "outrigger_circuit_breaker_transitions_total";
        assert_eq!(proxy.metric(family, &[&label]), 1, "{to}");
    }
}

#[test]
fn half_open_lets_a_counted_number_through_and_one_bad_opens_it_again() {
    let stub = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            match request.target() {
                "/bad" => peer.send("HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"),
                // Its answer comes when the client sends the rest of its request.
                "/later" => peer.send("HTTP/1.1 200 X\r\nContent-Length: 1\r\n\r\n"),
                _ => peer.send(OK),
            }
        }
    });
    let proxy = Config::svc_with(&[stub.address], QUICK).start();
    let mut client = Client::connect(proxy.address);
    for _ in 0..10 {
        client.get("/bad");
    }
    proxy.wait_for_event("breaker_half_open");
    // Answers whose bodies never end: trials under way.
    let mut trials: Vec<Client> = Vec::new();
    for _ in 0..3 {
        let mut trial = Client::connect(proxy.address);
        trial.send("GET /later HTTP/1.1\r\nHost: svc\r\n\r\n");
        assert_eq!(trial.head().status(), 200);
        trials.push(trial);
    }
    let seen = stub.requests().len();
    for _ in 0..5 {
        let refused = client.get("/");
        assert_eq!(
            (refused.status(), refused.reason()),
            (503, Some("circuit_open"))
        );
        assert!(refused.text().contains("3 trials are under way"));
    }
    assert_eq!(stub.requests().len(), seen);
    // One is given up after its head, which was good; the other two are good as well.
    drop(trials);
    eventually("the breaker closed", || state(&proxy, "closed") == 1);
    for _ in 0..10 {
        client.get("/bad");
    }
    eventually("half-open", || state(&proxy, "half_open") == 1);
    assert_eq!(client.get("/bad").reason(), None);
    assert_eq!(client.get("/").reason(), Some("circuit_open"));
    let again =
        proxy.wait_for_line(|l| l["event"] == "breaker_opened" && l["cause"] != "failure_rate");
    assert_eq!(again["cause"], "failed_trial");
}

#[test]
fn a_slow_instance_opens_it_by_the_rate_of_slow_calls() {
    let stub = Stub::script(|peer| {
        while peer.request().is_some() {
            crate::harness::pause_ms(30);
            peer.send(OK);
        }
    });
    let keys = "circuit_breaker: {mode: enforce, minimum_number_of_calls: 5, \
                slow_call_duration: 10ms, slow_call_rate_threshold: 60}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let mut client = Client::connect(proxy.address);
    for _ in 0..5 {
        assert_eq!(client.get("/").status(), 200);
    }
    assert_eq!(client.get("/").reason(), Some("circuit_open"));
    let opened = proxy.wait_for_event("breaker_opened");
    assert_eq!(
        (&opened["cause"], &opened["slow"], &opened["failed"]),
        (&json!("slow_call_rate"), &json!(5), &json!(0))
    );
}

#[test]
fn observe_says_what_it_would_do_and_refuses_nothing() {
    let (stub, _) = switchable(503);
    let keys = QUICK.replace("enforce", "observe");
    let proxy = Config::svc_with(&[stub.address], &keys).start();
    fail_ten(&proxy);
    fail_ten(&proxy);
    let would = proxy.wait_for_event("would_open");
    assert_eq!(
        (&would["calls"], &would["mode"]),
        (&json!(10), &json!("observe"))
    );
    assert_eq!((state(&proxy, "closed"), state(&proxy, "open")), (1, 0));
    let breaker = get(&proxy, "/api/v1/upstreams/svc")["breaker"].clone();
    assert_eq!(breaker["state"], "closed", "{breaker}");
    assert_eq!(breaker["refused"], 10, "{breaker}");
    assert!(proxy.lines().iter().all(|l| l["event"] != "breaker_opened"));
}

#[test]
fn ignored_outcomes_and_refusals_of_ours_count_nowhere() {
    let stub = super::holding();
    let keys = format!("{QUICK}\nbulkhead: {{max_concurrent_calls: 5}}");
    let proxy = Config::svc_with(&[stub.address], &keys).start();
    for _ in 0..4 {
        let clients = super::held(&proxy, &stub, 5, "/hold");
        let refused = Client::connect(proxy.address).get("/");
        assert_eq!(refused.reason(), Some("overflow"));
        drop(clients);
        eventually("all places back", || {
            proxy.metric("outrigger_bulkhead_in_use", &[]) == 0
        });
    }
    let breaker = get(&proxy, "/api/v1/upstreams/svc")["breaker"].clone();
    assert_eq!(
        (&breaker["calls"], &breaker["state"]),
        (&json!(0), &json!("closed"))
    );
}

#[test]
fn each_try_counts_and_none_follows_once_it_is_open() {
    let (one, _) = switchable(503);
    let (two, _) = switchable(503);
    let keys = QUICK.replace("retry: {max_attempts: 1}", "retry: {max_attempts: 2}");
    let proxy = Config::svc_with(&[one.address, two.address], &keys).start();
    let mut client = Client::connect(proxy.address);
    let mut answers = Vec::new();
    eventually("the breaker open", || {
        answers.push(client.get("/").reason().map(str::to_owned));
        answers.last().unwrap().as_deref() == Some("circuit_open")
    });
    assert_eq!(one.requests().len() + two.requests().len(), 10);
    // Whoever's answer opened it still got that answer.
    answers.pop();
    assert!(answers.iter().all(Option::is_none), "{answers:?}");
}

#[test]
fn it_survives_a_reload_and_a_restart() {
    let (stub, says) = switchable(503);
    let place = tempfile::tempdir().unwrap();
    let keys = QUICK.replace("400ms", "10m");
    let config = Config::svc_with(&[stub.address], &keys).top("state_file: ./state.json");
    let path = place.path().join("outrigger.yaml");
    std::fs::write(&path, config.text()).unwrap();
    let mut proxy = Proxy::start_at(&path);
    let mut client = fail_ten(&proxy);
    assert_eq!(client.get("/").reason(), Some("circuit_open"));
    says.store(200, SeqCst);
    let text = proxy.config_text();
    proxy.reload(&text.replace("minimum_number_of_calls: 10", "minimum_number_of_calls: 11"));
    eventually("the reload", || proxy.reloads("applied") == 1);
    assert_eq!(client.get("/").reason(), Some("circuit_open"));
    proxy.signal("TERM");
    assert_eq!(proxy.ended().code(), Some(0));
    let proxy = Proxy::start_at(&path);
    let refused = Client::connect(proxy.address).get("/");
    assert_eq!(refused.reason(), Some("circuit_open"));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((500..=600).contains(&wait), "{wait}");
    assert_eq!(proxy.wait_for_event("breaker_opened")["cause"], "recalled");
    // Switched off it refuses nothing.
    let text = proxy.config_text();
    proxy.reload(&text.replace("mode: enforce", "mode: disabled"));
    eventually("an answer of the instance", || {
        Client::connect(proxy.address).get("/").status() == 200
    });
}

#[test]
fn failures_in_trailers_count_and_grpc_is_refused_in_its_own_form() {
    let stub = H2Stub::start(|mut call: Call| async move {
        call.body().await;
        let head = http::Response::builder()
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        let mut stream = call.respond.send_response(head, false).unwrap();
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("13"));
        stream.send_trailers(trailers).unwrap();
    });
    let proxy = Config::svc_with(&[stub.address], QUICK).start();
    let client = H2Client::connect(proxy.address);
    for _ in 0..10 {
        let answer = client.grpc(&[]).unwrap();
        assert_eq!(
            (answer.reason(), answer.grpc_status().as_deref()),
            (None, Some("13"))
        );
    }
    let answer = client.grpc(&[]).unwrap();
    assert_eq!(
        (
            answer.status,
            answer.reason(),
            answer.grpc_status().as_deref()
        ),
        (200, Some("circuit_open"), Some("14"))
    );
    assert_eq!(stub.calls(), 10);
    // INTERNAL is a business error: a failure to the breaker, none to the default policy.
    assert_eq!(proxy.attempts("business_error"), 10);
}
