use serde_json::json;

use super::switchable;
use crate::admin::{cli, get, write};
use crate::harness::{Client, Config, eventually};

#[test]
fn a_breaker_is_forced_open_for_a_time_listed_and_undone() {
    let (stub, _) = switchable(200);
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/").status(), 200);
    let line = [
        "breaker",
        "force-open",
        "svc",
        "--for",
        "10m",
        "--note",
        "deploy",
    ];
    let (code, out, err) = cli(&proxy, &line);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("forced open") && out.contains("(ov-1)"),
        "{out}"
    );
    let refused = client.get("/");
    assert_eq!(
        (refused.status(), refused.reason()),
        (503, Some("circuit_open"))
    );
    assert!(
        refused.text().contains("`outrigger breaker auto svc`"),
        "{}",
        refused.text()
    );
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((500..=600).contains(&wait), "{wait}");
    let set = proxy.wait_for_event("override_set");
    assert_eq!(
        (&set["kind"], &set["actor"], &set["note"], &set["ttl_s"]),
        (
            &json!("breaker_force_open"),
            &json!("ann"),
            &json!("deploy"),
            &json!(600.0)
        )
    );
    let kind = "kind=\"breaker_force_open\"";
    assert_eq!(proxy.metric("outrigger_overrides", &[kind]), 1);
    assert_eq!(super::state(&proxy, "forced"), 1);
    let (_, out, _) = cli(&proxy, &["overrides"]);
    assert!(
        out.contains("breaker_force_open") && out.contains("deploy"),
        "{out}"
    );
    let (_, out, _) = cli(&proxy, &["explain", "svc"]);
    assert!(
        out.contains("forced_open") && out.contains("by ann (deploy)"),
        "{out}"
    );
    let (code, body) = write(&proxy, "DELETE /api/v1/overrides/ov-1", "");
    assert_eq!(code, 200, "{body}");
    // It is disabled by its configuration.
    assert_eq!(client.get("/").status(), 200);
    let cleared = proxy.wait_for_event("override_cleared");
    assert_eq!(
        (&cleared["override"], &cleared["cause"]),
        (&json!("ov-1"), &json!("operator"))
    );
    assert_eq!(proxy.metric("outrigger_overrides", &[kind]), 0);
    let (code, _, err) = cli(&proxy, &["breaker", "auto", "svc"]);
    assert!(code == 1 && err.contains("nothing is ordered"), "{err}");
}

#[test]
fn an_order_ends_at_its_time_and_one_forced_open_comes_back_through_trials() {
    let (stub, _) = switchable(200);
    let keys = "circuit_breaker: {mode: enforce, permitted_number_of_calls_in_half_open_state: 2}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let post = "POST /api/v1/upstreams/svc/breaker";
    let (code, body) = write(&proxy, post, r#"{"order": "force_open", "ttl": "50ms"}"#);
    assert_eq!(code, 200, "{body}");
    assert_eq!(body["override"]["kind"], "breaker_force_open");
    let expired = proxy.wait_for_event("override_expired");
    assert_eq!(expired["kind"], "breaker_force_open");
    proxy.wait_for_event("breaker_half_open");
    let mut client = Client::connect(proxy.address);
    for _ in 0..2 {
        assert_eq!(client.get("/").status(), 200);
    }
    proxy.wait_for_event("breaker_closed");
    assert_eq!(get(&proxy, "/api/v1/overrides")["overrides"], json!([]));
}

#[test]
fn one_that_is_forced_closed_or_switched_off_refuses_nothing() {
    let (stub, _) = switchable(503);
    let keys = "circuit_breaker: {mode: enforce, minimum_number_of_calls: 5}\n\
                retry: {max_attempts: 1}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let mut client = Client::connect(proxy.address);
    for (word, state) in [("force-closed", "forced_closed"), ("disable", "off")] {
        let (code, _, err) = cli(&proxy, &["breaker", word, "svc", "--for", "1h"]);
        assert_eq!(code, 0, "{err}");
        for _ in 0..20 {
            assert_eq!(client.get("/").reason(), None);
        }
        let view = get(&proxy, "/api/v1/upstreams/svc");
        assert_eq!(view["breaker"]["state"], state, "{view}");
    }
    let (code, out, err) = cli(&proxy, &["breaker", "auto", "svc"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("the rules decide"), "{out}");
    eventually("the breaker open by its rules", || {
        client.get("/").reason() == Some("circuit_open")
    });
}

#[test]
fn a_route_is_named_behind_its_upstream_and_orders_are_checked() {
    let (stub, _) = switchable(200);
    let keys = "routes: [\
         {name: gold, match: {path_prefix: /gold}, circuit_breaker: {mode: enforce}}, \
         {name: plain, match: {path_prefix: /plain}}]";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let mut client = Client::connect(proxy.address);
    let (code, out, err) = cli(
        &proxy,
        &["breaker", "force-open", "svc/gold", "--for", "1h"],
    );
    assert!(code == 0 && out.contains("svc/gold"), "{out}{err}");
    assert_eq!(client.get("/gold/1").reason(), Some("circuit_open"));
    assert_eq!(client.get("/plain").status(), 200);
    assert_eq!(client.get("/").status(), 200);
    let label = ["route=\"gold\"", "state=\"forced\""];
    assert_eq!(proxy.metric("outrigger_circuit_breaker_state", &label), 1);
    let (_, out, _) = cli(&proxy, &["overrides"]);
    assert!(out.contains("route gold"), "{out}");
    let post = "POST /api/v1/upstreams/svc/breaker";
    for (body, status, error) in [
        (r#"{"order": "force_open"}"#, 400, "bad_ttl"),
        (r#"{"order": "force_open", "ttl": "25h"}"#, 400, "bad_ttl"),
        (r#"{"order": "auto", "ttl": "1h"}"#, 400, "bad_ttl"),
        (r#"{"order": "open", "ttl": "1h"}"#, 400, "bad_body"),
        (r#"{"ttl": "1h"}"#, 400, "bad_body"),
        (r#"{"order": "auto", "force": true}"#, 400, "bad_body"),
        (
            r#"{"order": "auto", "route": "plain"}"#,
            409,
            "shared_breaker",
        ),
        (
            r#"{"order": "auto", "route": "gone"}"#,
            404,
            "unknown_route",
        ),
        (r#"{"order": "auto"}"#, 409, "not_ordered"),
    ] {
        let (code, answer) = write(&proxy, post, body);
        assert_eq!(
            (code, &answer["error"]),
            (status, &json!(error)),
            "{body}: {answer}"
        );
    }
    let (code, _, err) = cli(&proxy, &["breaker", "disable", "svx", "--for", "1m"]);
    assert!(code == 1 && err.contains("did you mean `svc`"), "{err}");
    assert_eq!(cli(&proxy, &["breaker", "disable", "svc"]).0, 2);
    // The route goes, and its order with it.
    let text = proxy.config_text();
    proxy.reload(&text.replace(", circuit_breaker: {mode: enforce}", ""));
    let cleared = proxy.wait_for_event("override_cleared");
    assert_eq!(
        (&cleared["cause"], &cleared["route"]),
        (&json!("route_gone"), &json!("gold"))
    );
    eventually("an answer of the instance", || {
        client.get("/gold/1").status() == 200
    });
}
