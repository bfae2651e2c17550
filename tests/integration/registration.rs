//! The app's registrations by the built proxy: at an embedded registry in another process, and at
//! scripted registries that keep the order of the calls.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::Value;

use crate::harness::{Client, Config, Peer, Proxy, Stub, eventually};

/// An embedded registry in a process of its own.
fn registry(listen: &str) -> Proxy {
    let line = format!(
        "registries: {{e: {{kind: embedded, listen: \"{listen}\", beat_interval: 1s, \
         unhealthy_after: 3s, remove_after: 6s}}}}"
    );
    Config::default().top(&line).start()
}

/// The app with this registration; `keys` are further keys of it.
fn app(registries: &str, registry: &str, port: u16, keys: &str) -> Config {
    Config::default()
        .top(&format!("registries: {{{registries}}}\nauto_discover: false"))
        .top(&format!(
            "app:\n  name: shop\n  shutdown: {{propagation_delay: 1s}}\n  register:\n    \
             - {{registry: {registry}, service: orders, advertise: {{address: 127.0.0.1, port: {port}}}{keys}}}"
        ))
}

fn nacos(address: SocketAddr) -> String {
    format!("n: {{kind: nacos, protocol: http, servers: [\"{address}\"], timeout: 1s}}")
}

/// The instances that a registry lists.
fn listed(registry: SocketAddr) -> Vec<Value> {
    let mut client = Client::connect(registry);
    client.send(
        "GET /nacos/v1/ns/instance/list?serviceName=orders HTTP/1.1\r\nHost: localhost\r\n\
         Connection: close\r\n\r\n",
    );
    let list: Value = serde_json::from_str(&client.response().text()).unwrap();
    list["hosts"].as_array().unwrap().clone()
}

fn outrigger(proxy: &Proxy, line: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(line)
        .env_clear()
        .env("OUTRIGGER_ADMIN", proxy.listener("admin").to_string())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn registrations(proxy: &Proxy) -> Value {
    proxy.admin("/api/v1/registrations")
}

#[test]
fn it_is_listed_beaten_and_listed_again_after_the_registry_lost_everything() {
    let first = registry("127.0.0.1:0");
    let at = first.listener("registry:e");
    let proxy = app(&nacos(at), "n", 8080, ", metadata: {version: \"1\"}").start();
    let event = proxy.wait_for_event("registered");
    assert_eq!(event["address"], "127.0.0.1:8080");
    let hosts = listed(at);
    assert_eq!(hosts.len(), 1);
    assert_eq!(hosts[0]["metadata"]["version"], "1");
    let beats = |n| proxy.metric("outrigger_heartbeats_total", &["result=\"ok\""]) >= n;
    eventually("beats beyond the removal", || beats(8));
    assert_eq!(listed(at).len(), 1);
    assert_eq!(
        proxy.metric("outrigger_registration_up", &["registry=\"n\""]),
        1
    );
    drop(first);
    proxy.wait_for_event("heartbeat_failed");
    let _second = registry(&at.to_string());
    eventually("it is listed again", || listed(at).len() == 1);
    eventually("and up", || {
        registrations(&proxy)["registrations"][0]["up"] == true
    });
    let shown = outrigger(&proxy, &["registries"]);
    assert!(
        shown.contains("orders") && shown.contains("127.0.0.1:8080"),
        "{shown}"
    );
}

#[test]
fn an_app_that_fails_its_check_is_out_and_comes_back() {
    let up = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&up);
    let stub = Stub::script(move |peer: &mut Peer| {
        while peer.request().is_some() {
            let word = if now.load(SeqCst) { "UP" } else { "DOWN" };
            let body = format!("{{\"status\":\"{word}\"}}");
            let length = body.len();
            peer.send(format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"
            ));
        }
    });
    let home = registry("127.0.0.1:0");
    let at = home.listener("registry:e");
    let port = stub.address.port();
    let keys = ", check: {http: /actuator/health, json_pointer: /status, interval: 50ms, rise: 1, fall: 2}";
    let proxy = app(&nacos(at), "n", port, keys).start();
    proxy.wait_for_event("app_down");
    assert!(listed(at).is_empty(), "not listed before the app is up");
    let telemetry = proxy.listener("telemetry");
    let ready = || {
        let mut client = Client::connect(telemetry);
        client.send("GET /readyz/app HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        client.response().status()
    };
    assert_eq!(ready(), 503);
    for _ in 0..2 {
        up.store(true, SeqCst);
        eventually("listed", || listed(at).len() == 1);
        assert_eq!(ready(), 200);
        up.store(false, SeqCst);
        eventually("out of rotation", || listed(at).is_empty());
    }
    assert_eq!(proxy.metric("outrigger_app_healthy", &[]), 0);
}

/// A Eureka that takes everything.
fn eureka() -> Stub {
    Stub::answering("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
}

/// Method and status of each call to it.
fn calls(eureka: &Stub) -> Vec<String> {
    let call = |request: crate::harness::Message| {
        let method = request.first.split(' ').next().unwrap().to_owned();
        let body: Value = serde_json::from_str(&request.text()).unwrap_or_default();
        match body["instance"]["status"].as_str() {
            Some(status) => format!("{method} {status}"),
            None => method,
        }
    };
    eureka.requests().into_iter().map(call).collect()
}

#[test]
fn the_way_out_is_in_order_and_serves_until_callers_have_followed() {
    let home = eureka();
    let stub = Stub::ok();
    let kind = format!(
        "u: {{kind: eureka, servers: [\"http://{}/eureka\"]}}",
        home.address
    );
    let mut proxy = app(&kind, "u", 8080, "")
        .service("svc", &[stub.address], "")
        .start();
    proxy.wait_for_event("registered");
    eventually("the first beat", || {
        calls(&home).contains(&"PUT".to_owned())
    });
    proxy.signal("TERM");
    proxy.wait_for_event("deregistered");
    // Off the list, and still served: for a second.
    assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    assert_eq!(proxy.ended().code(), Some(0));
    let seen = calls(&home);
    assert_eq!(seen, ["POST UP", "PUT", "POST DOWN", "DELETE"]);
    let order: Vec<Value> = proxy.lines().iter().map(|l| l["event"].clone()).collect();
    let at = |event: &str| order.iter().position(|e| e == event).unwrap();
    assert!(at("drain_started") < at("deregistered"));
    assert!(at("deregistered") < at("drain_finished"));
}

#[test]
fn deregister_only_leaves_traffic_alone_and_is_final() {
    let home = registry("127.0.0.1:0");
    let at = home.listener("registry:e");
    let stub = Stub::ok();
    let mut proxy = app(&nacos(at), "n", 8080, "")
        .service("svc", &[stub.address], "")
        .start();
    proxy.wait_for_event("registered");
    let said = outrigger(&proxy, &["drain", "--deregister-only"]);
    assert!(said.contains("off the lists"), "{said}");
    assert!(listed(at).is_empty());
    assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    // A reload does not bring it back.
    let text = proxy.config_text().replace("port: 8080", "port: 8081");
    proxy.reload(&text);
    proxy.wait_for_event("config_reloaded");
    assert!(listed(at).is_empty());
    proxy.signal("TERM");
    assert_eq!(proxy.ended().code(), Some(0));
    let events = proxy.lines();
    let gone = events
        .iter()
        .filter(|l| l["event"] == "deregistered" && l["service"] == "orders");
    assert_eq!(gone.count(), 1);
}

#[test]
fn a_reload_touches_what_changed_and_nothing_else() {
    let home = eureka();
    let kind = format!(
        "u: {{kind: eureka, servers: [\"http://{}/eureka\"]}}",
        home.address
    );
    let proxy = app(&kind, "u", 8080, ", metadata: {version: \"1\"}").start();
    eventually("the first beat", || {
        calls(&home).contains(&"PUT".to_owned())
    });
    let before = calls(&home).len();
    let text = proxy.config_text();
    proxy.reload(&format!("{text}limits: {{max_headers: 77}}\n"));
    eventually("applied", || proxy.reloads("applied") == 1);
    assert_eq!(calls(&home).len(), before, "not touched");
    proxy.reload(&text.replace("version: \"1\"", "version: \"2\""));
    eventually("told in place", || calls(&home).len() == before + 1);
    let told = home.requests().pop().unwrap().text();
    assert!(
        told.contains("\"version\":\"2\"") && told.contains("\"UP\""),
        "{told}"
    );
    proxy.reload(&text.replace("port: 8080", "port: 8081"));
    eventually("moved", || {
        let last = calls(&home).split_off(before + 1);
        let has = |call: &str| last.iter().any(|c| c == call);
        has("POST UP") && has("POST DOWN") && has("DELETE")
    });
    let shown = registrations(&proxy);
    assert_eq!(shown["registrations"][0]["address"], "127.0.0.1:8081");
    assert_eq!(shown["registrations"].as_array().unwrap().len(), 1);
    let before = calls(&home).len();
    let (top, _) = text.split_once("  register:").unwrap();
    proxy.reload(&format!("{top}services:\n"));
    eventually("removed", || {
        let last = calls(&home).split_off(before);
        last.iter().any(|call| call == "DELETE")
    });
    let shown = registrations(&proxy);
    assert!(shown["registrations"].as_array().unwrap().is_empty());
}

#[test]
fn another_check_leaves_the_app_listed() {
    let home = eureka();
    let kind = format!(
        "u: {{kind: eureka, servers: [\"http://{}/eureka\"]}}",
        home.address
    );
    let listening = Stub::ok();
    let proxy = app(
        &kind,
        "u",
        8080,
        ", metadata: {version: \"1\"}, heartbeat_interval: 1s",
    )
    .start();
    eventually("the first beat", || {
        calls(&home).contains(&"PUT".to_owned())
    });
    let check = format!("check: {{tcp: \"{}\", interval: 100ms}}", listening.address);
    let text = proxy.config_text();
    proxy.reload(&text.replace("metadata: {", &format!("{check}, metadata: {{")));
    proxy.wait_for_event("app_up");
    let beats = calls(&home).len();
    eventually("it is beaten on", || calls(&home).len() > beats);
    let told: Vec<_> = calls(&home).into_iter().filter(|c| c != "PUT").collect();
    assert_eq!(told, ["POST UP"]);
}

#[test]
fn fail_fast_ends_the_process_and_says_why() {
    let (_socket, nobody) = crate::harness::closed_port();
    let mut proxy = app(&nacos(nobody), "n", 8080, ", fail_fast: true").start();
    assert_eq!(proxy.ended().code(), Some(1));
    let said = proxy.errors();
    assert!(
        said.contains("orders cannot be registered with n"),
        "{said}"
    );
    assert!(said.contains("fail_fast"), "{said}");
}

#[test]
fn hooks_run_before_and_after() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (before, after) = (file("before"), file("after"));
    let home = eureka();
    let kind = format!(
        "u: {{kind: eureka, servers: [\"http://{}/eureka\"]}}",
        home.address
    );
    let keys = format!(
        ", hooks: {{pre_register: [/bin/sh, -c, \"test -e {before}\"], post_register: [/bin/sh, -c, \"echo x > {after}\"]}}"
    );
    let proxy = app(&kind, "u", 8080, &keys).start();
    let event = proxy.wait_for_event("heartbeat_failed");
    let why = event["error"].as_str().unwrap();
    assert!(why.contains("hooks.pre_register"), "{event}");
    assert!(calls(&home).is_empty(), "not registered before it succeeds");
    std::fs::write(&before, "").unwrap();
    proxy.wait_for_event("registered");
    eventually("the other hook", || std::path::Path::new(&after).exists());
}

#[test]
fn the_registry_of_its_own_process_needs_no_connection() {
    let kind = "e: {kind: embedded, listen: \"127.0.0.1:0\", beat_interval: 1s, unhealthy_after: 2s, remove_after: 3s}";
    let proxy = app(kind, "e", 8080, ", weight: 3").start();
    let at = proxy.listener("registry:e");
    proxy.wait_for_event("registered");
    let beats = |n| proxy.metric("outrigger_heartbeats_total", &["result=\"ok\""]) >= n;
    eventually("beats beyond the removal", || beats(5));
    let hosts = listed(at);
    assert_eq!((hosts.len(), &hosts[0]["weight"]), (1, &3.0.into()));
    let said = outrigger(&proxy, &["drain", "--deregister-only"]);
    assert!(said.contains("off the lists"), "{said}");
    assert!(listed(at).is_empty());
}
