//! Commands to the running process: reload, drain, quit, wait, what it logs.

use std::fs;
use std::process::{Command, Output};

use crate::harness::{Client, Config, Peer, Proxy, Stub, eventually};

/// Runs the binary's command against the proxy's admin listener.
fn outrigger(proxy: &Proxy, line: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(line)
        .env_clear()
        .env("OUTRIGGER_ADMIN", proxy.listener("admin").to_string())
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn reload_tells_what_changed_and_what_is_wrong() {
    let stub = Stub::ok();
    let proxy = Config::svc(&[stub.address]).start();
    let done = outrigger(&proxy, &["reload", "--note", "why not"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(said(&done), "nothing changed\n");
    let event = proxy.wait_for_event("config_reloaded");
    assert_eq!(
        (&event["actor"], &event["note"]),
        (&"operator".into(), &"why not".into())
    );
    let good = proxy.config_text();
    fs::write(proxy.config_path(), format!("{good}limts: {{}}\n")).unwrap();
    let done = outrigger(&proxy, &["reload"]);
    assert_eq!(done.status.code(), Some(3), "{done:?}");
    let text = said(&done);
    assert!(text.contains("did you mean `limits`?"), "{text}");
    assert!(text.contains("the old configuration stays"), "{text}");
    let text = good.replace("workers: 1", "workers: 3") + "limits: {max_headers: 100}\n";
    fs::write(proxy.config_path(), text).unwrap();
    let done = outrigger(&proxy, &["reload", "-ojson"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(report["changed"], serde_json::json!(["limits"]));
    assert_eq!(report["restart_required"], serde_json::json!(["workers"]));
}

#[test]
fn drain_finishes_what_is_in_flight_and_stays_until_quit() {
    let gate = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let open = std::sync::Arc::clone(&gate);
    let stub = Stub::script(move |peer: &mut Peer| {
        while peer.request().is_some() {
            eventually("the gate", || {
                open.load(std::sync::atomic::Ordering::SeqCst)
            });
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let mut proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    stub.wait_for_requests(1);
    let done = outrigger(&proxy, &["drain", "--deregister-only"]);
    assert!(said(&done).contains("nothing to deregister"), "{done:?}");
    assert_eq!(proxy.admin("/api/v1/drain")["stage"], "serving");
    let done = outrigger(&proxy, &["drain", "--note", "maintenance"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let event = proxy.wait_for_event("drain_started");
    assert_eq!(event["note"], "maintenance", "{event}");
    eventually("no new connections", || {
        std::net::TcpStream::connect(proxy.address).is_err()
    });
    let ready = outrigger(&proxy, &["wait", "--timeout", "100ms", "--admin"]);
    assert_eq!(ready.status.code(), Some(2), "an address is missing");
    let admin = proxy.listener("admin").to_string();
    let ready = outrigger(&proxy, &["wait", "--timeout", "100ms", "--admin", &admin]);
    assert_eq!(ready.status.code(), Some(5), "{ready:?}");
    gate.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(client.response().status(), 200);
    let done = outrigger(&proxy, &["drain", "--wait"]);
    assert_eq!(said(&done), "drained; 0 connections are open\n");
    assert!(proxy.is_running());
    // A reload and the metrics work on.
    assert_eq!(outrigger(&proxy, &["reload"]).status.code(), Some(0));
    let done = outrigger(&proxy, &["quit"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(proxy.ended().code(), Some(0));
    proxy.wait_for_event("stopped");
    assert_eq!(outrigger(&proxy, &["drain"]).status.code(), Some(6));
}

#[test]
fn wait_returns_when_the_process_is_ready() {
    let proxy = Config::default().start();
    let telemetry = proxy.listener("telemetry").to_string();
    let done = outrigger(&proxy, &["wait", "--telemetry", &telemetry]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    drop(proxy);
    let done = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["wait", "--timeout", "10ms", "--telemetry", &telemetry])
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(6), "{done:?}");
}

#[test]
fn the_log_filter_changes_for_a_time_and_with_the_configuration() {
    let stub = Stub::ok();
    let proxy = Config::svc(&[stub.address])
        .top("log: {level: error}")
        .start();
    proxy.signal("HUP");
    proxy.wait_for_event("config_reloaded");
    assert!(!proxy.errors().contains("nothing changed"));
    let done = outrigger(
        &proxy,
        &["log-level", "outrigger::control=info", "--for", "1h"],
    );
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(said(&done).ends_with(", then error\n"), "{done:?}");
    proxy.signal("HUP");
    eventually("the line", || proxy.errors().contains("nothing changed"));
    let done = outrigger(&proxy, &["log-level", "warn", "--for", "1s"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    proxy.wait_for_line(|l| l["event"] == "log_level_changed" && l["actor"] == "auto");
    assert_eq!(said(&outrigger(&proxy, &["log-level"])), "error\n");
    assert_eq!(
        outrigger(&proxy, &["log-level", "loud"]).status.code(),
        Some(2)
    );
    let text = proxy.config_text().replace("level: error", "level: info");
    fs::write(proxy.config_path(), text).unwrap();
    eventually("the new level", || {
        said(&outrigger(&proxy, &["log-level"])) == "info\n"
    });
}
