//! The registrar with its driver against a scripted agent.

use super::*;
use crate::clock::Clock;
use crate::registration::tests::{Fake, Reply, Seen, Setup, pass, record, servers};

const REGISTER: &str = "PUT /v1/agent/service/register";
const PASS: &str = "PUT /v1/agent/check/pass/service:orders-10.0.0.1-8080";
const FAIL: &str = "PUT /v1/agent/check/fail/service:orders-10.0.0.1-8080";
const TIDY: &str = "GET /v1/agent/health/service/name/orders";
const DEREGISTER: &str = "PUT /v1/agent/service/deregister/orders-10.0.0.1-8080";

fn good(seen: &Seen) -> Reply {
    match seen.call.as_str() {
        TIDY => Reply::Status(404, "[]"),
        _ => Reply::Status(200, ""),
    }
}

fn start(clock: Clock) -> (Fake, Setup) {
    let (fake, server) = Fake::new(clock, "", good);
    let all = servers(vec![server], TIMEOUT);
    let registrar = ConsulRegistrar::new(all, record(), "outrigger/shop".into());
    (fake, Setup::start(clock, Arc::new(registrar), Standing::Up))
}

#[tokio::test(start_paused = true)]
async fn registers_with_a_check_that_is_beaten_at_a_third() {
    let (fake, mut setup) = start(Clock::new());
    setup.until(|view| view.beats >= 4).await;
    let seen = fake.seen();
    let calls: Vec<&str> = seen.iter().map(|seen| seen.call.as_str()).collect();
    assert_eq!(calls, [TIDY, REGISTER, PASS, PASS, PASS, PASS, PASS]);
    let body: serde_json::Value = serde_json::from_str(&seen[1].body).unwrap();
    let want = serde_json::json!({
        "ID": "orders-10.0.0.1-8080", "Name": "orders", "Address": "10.0.0.1", "Port": 8080,
        "Meta": {"owner": "outrigger/shop", "zone": "a"},
        "Weights": {"Passing": 1, "Warning": 1},
        "Check": {"CheckID": "service:orders-10.0.0.1-8080", "Name": "heartbeat of the sidecar",
            "TTL": "15s", "Status": "passing", "DeregisterCriticalServiceAfter": "60s"},
    });
    assert_eq!(body, want);
    assert_eq!(seen[2].at, seen[1].at, "passing at once");
    let gap = seen[5].at.since(seen[4].at);
    assert!(
        gap <= Duration::from_secs(5) && gap >= Duration::from_millis(4500),
        "{gap:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn row_22_an_agent_that_forgot_the_check_is_registered_with_again() {
    for (status, text) in [
        (404, r#"Unknown check ID "service:orders-10.0.0.1-8080"."#),
        (
            500,
            "CheckID \"service:orders-10.0.0.1-8080\" does not have associated TTL",
        ),
    ] {
        let (fake, mut setup) = start(Clock::new());
        setup.until(|view| view.beats > 0).await;
        fake.forget();
        let mut known = false;
        fake.script(move |seen| match seen.call.as_str() {
            REGISTER => {
                known = true;
                Reply::Status(200, "")
            }
            PASS if !known => Reply::Status(status, text),
            _ => good(seen),
        });
        setup.until(|view| !view.up).await;
        setup.up().await;
        pass(5).await;
        let seen = fake.seen();
        let calls: Vec<&str> = seen.iter().take(3).map(|seen| seen.call.as_str()).collect();
        assert_eq!(calls, [PASS, REGISTER, PASS], "{status}");
        assert!(seen[1].body.contains(r#""Status":"passing""#));
        assert!(seen[1].at.since(seen[0].at) <= Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_beat_that_hangs_does_not_hold_up_the_next() {
    let (fake, mut setup) = start(Clock::new());
    setup.until(|view| view.beats > 0).await;
    fake.script(|_| Reply::Hang);
    fake.forget();
    pass(16).await;
    assert!(fake.calls().len() >= 3, "{:?}", fake.calls());
    assert!(setup.view.borrow().up, "none has failed yet");
}

#[tokio::test(start_paused = true)]
async fn after_a_beat_that_failed_it_is_registered_again() {
    let (fake, mut setup) = start(Clock::new());
    setup.until(|view| view.beats > 0).await;
    fake.forget();
    fake.script(|_| Reply::Close);
    setup.until(|view| view.failed_beats == 1).await;
    fake.script(good);
    setup.up().await;
    assert_eq!(fake.calls()[..2], [PASS, REGISTER]);
}

#[tokio::test(start_paused = true)]
async fn down_fails_the_check_and_the_end_deregisters() {
    let (fake, mut setup) = start(Clock::new());
    setup.until(|view| view.beats > 0).await;
    fake.forget();
    setup.app(Standing::Down);
    setup.until(|view| !view.up).await;
    pass(60).await;
    assert_eq!(fake.calls(), [FAIL]);
    // The agent keeps the state of a check that it has: up again means to pass it.
    setup.app(Standing::Up);
    setup.up().await;
    assert_eq!(fake.calls()[..3], [FAIL, REGISTER, PASS]);
    fake.forget();
    setup.leave().await;
    assert_eq!(fake.calls(), [FAIL, DEREGISTER]);
}

#[tokio::test(start_paused = true)]
async fn leftovers_of_ours_are_removed_once_and_nobody_elses() {
    let body = r#"[
      {"AggregatedStatus":"critical","Service":{"ID":"orders-10.0.0.1-9090","Address":"10.0.0.1","Meta":{"owner":"outrigger/shop"}}},
      {"AggregatedStatus":"passing","Service":{"ID":"orders-10.0.0.1-9091","Address":"10.0.0.1","Meta":{"owner":"outrigger/shop"}}},
      {"AggregatedStatus":"critical","Service":{"ID":"orders-10.0.0.1-9092","Address":"10.0.0.1","Meta":{"owner":"outrigger/other"}}},
      {"AggregatedStatus":"critical","Service":{"ID":"orders-10.0.0.2-9093","Address":"10.0.0.2","Meta":{"owner":"outrigger/shop"}}},
      {"AggregatedStatus":"critical","Service":{"ID":"orders-10.0.0.1-9094","Address":"10.0.0.1","Meta":null}},
      {"AggregatedStatus":"critical","Service":{"ID":"orders-10.0.0.1-8080","Address":"10.0.0.1","Meta":{"owner":"outrigger/shop"}}},
      {"rubbish":1}]"#;
    let clock = Clock::new();
    let (fake, server) = Fake::new(clock, "", move |seen| match seen.call.as_str() {
        TIDY => Reply::Status(503, body),
        _ => Reply::Status(200, ""),
    });
    let all = servers(vec![server], TIMEOUT);
    let registrar = ConsulRegistrar::new(all, record(), "outrigger/shop".into());
    let mut setup = Setup::start(clock, Arc::new(registrar), Standing::Up);
    setup.up().await;
    let gone = "PUT /v1/agent/service/deregister/orders-10.0.0.1-9090";
    assert_eq!(fake.calls()[..3], [TIDY, gone, REGISTER]);
    setup.app(Standing::Down);
    setup.until(|view| !view.up).await;
    setup.app(Standing::Up);
    setup.up().await;
    assert_eq!(fake.calls().iter().filter(|call| *call == TIDY).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_a_right_it_is_tried_slowly_and_told() {
    let clock = Clock::new();
    let (fake, server) = Fake::new(clock, "", |_| Reply::Status(403, "Permission denied"));
    let all = servers(vec![server], TIMEOUT);
    let registrar = ConsulRegistrar::new(all, record(), "o".into());
    let mut setup = Setup::start(clock, Arc::new(registrar), Standing::Up);
    setup.until(|view| view.error.is_some()).await;
    pass(29).await;
    let registers = fake.calls().iter().filter(|call| *call == REGISTER).count();
    assert_eq!(registers, 1);
    assert_eq!(setup.events(), ["heartbeat_failed"]);
}
