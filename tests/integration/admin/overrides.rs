//! Orders of operators: what they do to traffic, what refuses them, how they end, who is told.

use std::net::SocketAddr;

use serde_json::json;

use super::{ask, cli, get, write};
use crate::harness::{Client, Config, Proxy, Stub, eventually};

fn stubs(n: usize) -> (Vec<Stub>, Vec<SocketAddr>) {
    let stubs: Vec<Stub> = (0..n).map(|_| Stub::ok()).collect();
    let addresses = stubs.iter().map(|stub| stub.address).collect();
    (stubs, addresses)
}

fn send(proxy: &Proxy, n: usize) {
    let mut client = Client::connect(proxy.address);
    for _ in 0..n {
        assert_eq!(client.get("/").status(), 200);
    }
}

fn order(proxy: &Proxy, at: &str, word: &str, body: &str) -> (u16, serde_json::Value) {
    let line = format!("POST /api/v1/upstreams/svc/instances/{at}:{word}");
    write(proxy, &line, body)
}

#[test]
fn an_ejected_instance_gets_no_request_until_it_is_restored() {
    let (stubs, at) = stubs(2);
    let proxy = Config::svc(&at).start();
    send(&proxy, 20);
    assert!(stubs.iter().all(|stub| !stub.requests().is_empty()));
    let first = at[0].to_string();
    let (code, out, err) = cli(
        &proxy,
        &["eject", "svc", &first, "--for", "10m", "--note", "deploy"],
    );
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("1 of max 1 of 2") && out.contains("(ov-1)"),
        "{out}"
    );
    let before = stubs[0].requests().len();
    send(&proxy, 50);
    assert_eq!(stubs[0].requests().len(), before);
    let one = get(&proxy, &format!("/api/v1/upstreams/svc/instances/{first}"));
    assert_eq!(
        (&one["state"], &one["overrides"][0]["id"]),
        (&json!("ejected"), &json!("ov-1"))
    );
    let why = one["why"].as_str().unwrap();
    assert!(
        why.contains("by ann (deploy)") && why.contains(" left"),
        "{why}"
    );
    let set = proxy.wait_for_event("override_set");
    assert_eq!(
        (&set["actor"], &set["note"], &set["kind"], &set["instance"]),
        (
            &json!("ann"),
            &json!("deploy"),
            &json!("eject"),
            &json!(first)
        )
    );
    assert_eq!(proxy.wait_for_event("instance_ejected")["actor"], "ann");
    assert_eq!(proxy.metric("outrigger_overrides", &["kind=\"eject\""]), 1);
    let (_, out, _) = cli(&proxy, &["overrides"]);
    assert!(out.contains("ov-1") && out.contains("deploy"), "{out}");
    let (code, out, err) = cli(&proxy, &["restore", "svc", &first]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("is back in svc"), "{out}");
    eventually("requests at the restored instance", || {
        send(&proxy, 4);
        stubs[0].requests().len() > before
    });
    let ended = proxy.wait_for_event("override_cleared");
    assert_eq!(
        (&ended["override"], &ended["cause"]),
        (&json!("ov-1"), &json!("operator"))
    );
    assert_eq!(get(&proxy, "/api/v1/overrides")["overrides"], json!([]));
    assert_eq!(proxy.metric("outrigger_overrides", &["kind=\"eject\""]), 0);
    assert_eq!(cli(&proxy, &["restore", "svc", &first]).0, 1);
}

#[test]
fn a_held_instance_fails_and_stays() {
    let good = Stub::ok();
    let bad = Stub::answering("HTTP/1.1 503 no\r\nContent-Length: 0\r\n\r\n");
    let proxy = Config::svc_with(&[good.address, bad.address], "retry: {max_attempts: 1}").start();
    let at = bad.address.to_string();
    let (code, done) = order(&proxy, &at, "hold", r#"{"ttl": "1h", "actor": "bo"}"#);
    assert_eq!(
        (code, &done["override"]["kind"]),
        (200, &json!("hold")),
        "{done}"
    );
    let mut client = Client::connect(proxy.address);
    eventually("a suppressed ejection", || {
        client.get("/");
        let lines = proxy.lines();
        lines.iter().any(|l| l["event"] == "ejection_suppressed")
    });
    let event = proxy.wait_for_event("ejection_suppressed");
    assert_eq!(event["suppressed_by"], "hold");
    assert!(
        proxy
            .lines()
            .iter()
            .all(|l| l["event"] != "instance_ejected")
    );
    let one = get(&proxy, &format!("/api/v1/upstreams/svc/instances/{at}"));
    assert!(
        one["why"].as_str().unwrap().contains("held in by bo"),
        "{one}"
    );
    // Its end gives it to the rules.
    let id = done["override"]["id"].as_str().unwrap();
    let (code, out, err) = cli(&proxy, &["overrides", "clear", id, "--note", "seen enough"]);
    assert_eq!(code, 0, "{out}{err}");
    eventually("its ejection", || {
        client.get("/");
        proxy
            .lines()
            .iter()
            .any(|l| l["event"] == "instance_ejected")
    });
    let ended = proxy.wait_for_event("override_cleared");
    assert_eq!(
        (&ended["kind"], &ended["note"]),
        (&json!("hold"), &json!("seen enough"))
    );
    assert_eq!(
        write(&proxy, &format!("DELETE /api/v1/overrides/{id}"), "").0,
        404
    );
}

#[test]
fn an_order_ends_at_its_time() {
    let (_stubs, at) = stubs(3);
    let proxy = Config::svc(&at).start();
    for (n, word) in ["eject", "hold", "disable"].into_iter().enumerate() {
        let (code, body) = order(&proxy, &at[n].to_string(), word, r#"{"ttl": "40ms"}"#);
        assert_eq!(code, 200, "{body}");
    }
    for kind in ["eject", "hold", "disable"] {
        let ended = proxy.wait_for_line(|l| l["event"] == "override_expired" && l["kind"] == kind);
        assert_eq!(ended["actor"], "operator");
    }
    assert_eq!(get(&proxy, "/api/v1/overrides")["overrides"], json!([]));
    let restored = proxy.wait_for_event("instance_restored");
    assert_eq!(restored["restored_by"], "override_expired");
    let states = &get(&proxy, "/api/v1/upstreams/svc")["states"];
    assert_eq!(states["healthy"], 3, "{states}");
}

#[test]
fn the_cap_can_be_forced_and_the_last_one_cannot() {
    let (_stubs, at) = stubs(3);
    let proxy = Config::svc(&at).start();
    let name = |n: usize| at[n].to_string();
    let ten = r#"{"ttl": "10m"}"#;
    assert_eq!(order(&proxy, &name(0), "eject", ten).0, 200);
    let (code, full) = order(&proxy, &name(1), "eject", ten);
    assert_eq!((code, &full["error"]), (409, &json!("cap_full")));
    assert_eq!(
        full["message"],
        "1 of max 1 of 3 instances of svc are ejected"
    );
    assert!(full["hint"].as_str().unwrap().contains("force"));
    let (code, _, err) = cli(&proxy, &["eject", "svc", &name(1), "--for", "10m"]);
    assert!(
        code == 1 && err.contains("1 of max 1") && err.contains("--force"),
        "{err}"
    );
    let (code, done) = order(
        &proxy,
        &name(1),
        "eject",
        r#"{"ttl": "10m", "force": true}"#,
    );
    assert_eq!(
        (code, &done["override"]["forced"]),
        (200, &json!(true)),
        "{done}"
    );
    // A forced one takes no place of the cap.
    assert_eq!(done["ejected_now"], 1);
    let (code, last) = order(
        &proxy,
        &name(2),
        "eject",
        r#"{"ttl": "10m", "force": true}"#,
    );
    assert_eq!(
        (code, &last["error"]),
        (409, &json!("last_instance")),
        "{last}"
    );
    send(&proxy, 3);
}

#[test]
fn a_disabled_instance_is_not_counted_and_the_last_needs_force() {
    let (stubs, at) = stubs(2);
    let proxy = Config::svc(&at).start();
    let name = |n: usize| at[n].to_string();
    let ten = r#"{"ttl": "10m"}"#;
    let (code, done) = order(&proxy, &name(0), "disable", ten);
    assert_eq!((code, &done["instances"]), (200, &json!(1)), "{done}");
    send(&proxy, 20);
    assert_eq!(stubs[0].requests().len(), 0);
    let (code, last) = order(&proxy, &name(1), "disable", ten);
    assert_eq!(
        (code, &last["error"]),
        (409, &json!("last_instance")),
        "{last}"
    );
    let (code, _) = order(
        &proxy,
        &name(1),
        "disable",
        r#"{"ttl": "10m", "force": true}"#,
    );
    assert_eq!(code, 200);
    let mut client = Client::connect(proxy.address);
    let refused = client.get("/");
    assert_eq!(
        (refused.status(), refused.header("x-outrigger-reason")),
        (503, Some("no_instances"))
    );
    for n in 0..2 {
        assert_eq!(order(&proxy, &name(n), "enable", "").0, 200);
    }
    send(&proxy, 2);
    assert_eq!(
        order(&proxy, &name(0), "enable", "").1["error"],
        "not_disabled"
    );
}

#[test]
fn an_instance_may_be_named_in_short_and_orders_are_checked() {
    let (_stubs, at) = stubs(2);
    let proxy = Config::svc(&at).start();
    let port = at[0].port().to_string();
    let (code, out, err) = cli(&proxy, &["hold", "svc", &port, "--for", "10m"]);
    assert!(code == 0 && out.contains(&at[0].to_string()), "{out}{err}");
    let (code, body) = order(&proxy, "127.0.0.1", "hold", r#"{"ttl": "10m"}"#);
    assert_eq!((code, &body["error"]), (404, &json!("ambiguous_instance")));
    assert!(
        body["message"]
            .as_str()
            .unwrap()
            .contains(&at[1].to_string()),
        "{body}"
    );
    let first = at[0].to_string();
    for (word, body, error) in [
        ("eject", "", "bad_ttl"),
        ("eject", r#"{"ttl": "25h"}"#, "bad_ttl"),
        ("eject", r#"{"ttl": "10"}"#, "bad_ttl"),
        ("restore", r#"{"ttl": "10m"}"#, "bad_ttl"),
        ("eject", r#"{"ttl": "10m", "forced": true}"#, "bad_body"),
        ("eject", "{", "bad_body"),
        ("hold", r#"{"ttl": "10m", "force": true}"#, "bad_body"),
        (
            "eject",
            r#"{"ttl": "10m", "note": "two\nlines"}"#,
            "bad_body",
        ),
        ("restore", "", "not_ejected"),
    ] {
        let (code, answer) = order(&proxy, &first, word, body);
        assert!(code == 400 || code == 409, "{word} {body}: {code} {answer}");
        assert_eq!(answer["error"], error, "{word} {body}: {answer}");
    }
    // Nobody writes without the header, from another site, or as anything but JSON.
    let line = format!("POST /api/v1/upstreams/svc/instances/{first}:eject");
    assert_eq!(ask(&proxy, &line, r#"{"ttl": "10m"}"#).0, 403);
    let with = |more: &str| ask(&proxy, &format!("{line}\n{more}"), "").0;
    assert_eq!(
        with("x-outrigger-admin: 1\norigin: http://localhost:3000"),
        403
    );
    assert_eq!(with("x-outrigger-admin: 1\nhost: evil.example"), 421);
    let text = "x-outrigger-admin: 1\ncontent-type: text/plain\ncontent-length: 2";
    let mut client = Client::connect(proxy.listener("admin"));
    client.send(format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\n{}\r\n\r\n{{}}",
        text.replace('\n', "\r\n")
    ));
    assert_eq!(client.response().status(), 415);
    let (code, _, err) = cli(&proxy, &["eject", "svc", &first]);
    assert!(code == 2 && err.contains("--for"), "{err}");
    let (code, _, err) = cli(&proxy, &["eject", "svx", &first, "--for", "1m"]);
    assert!(code == 1 && err.contains("did you mean `svc`"), "{err}");
    assert!(
        proxy
            .lines()
            .iter()
            .all(|l| l["event"] != "instance_ejected")
    );
}
