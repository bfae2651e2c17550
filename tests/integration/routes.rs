//! `services.NAME.routes`: settings, series and words of their own.

use std::time::Duration;

use crate::harness::{Client, Config, H2Client, Stopwatch, Stub};

const BUSY: &str = "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy";

#[test]
fn a_route_by_host_hears_it_over_http2_too() {
    let stub = Stub::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let keys = "routes: [{name: mine, match: {headers: {host: svc}}}]";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let answer = H2Client::connect(proxy.address).get();
    assert_eq!(answer.status, 200);
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    assert_eq!(client.response().status(), 200);
    for number in 0..2 {
        assert_eq!(proxy.access_line(number)["outrigger.route"], "mine");
    }
}

#[test]
fn the_first_route_that_matches_gives_the_settings() {
    let (busy, other) = (Stub::answering(BUSY), Stub::answering(BUSY));
    let keys = "retry: {max_attempts: 1}\nroutes: [\
                {name: twice, match: {path_prefix: /twice, methods: [GET]}, retry: {max_attempts: 2}}, \
                {name: gold, match: {headers: {x-tier: gold}}, retry: {max_attempts: 2}}]";
    let proxy = Config::svc_with(&[busy.address, other.address], keys).start();
    let mut client = Client::connect(proxy.address);
    let mut ask = |method: &str, path: &str, header: &str| {
        client.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: svc\r\n{header}\r\n"
        ));
        assert_eq!(client.response().status(), 503);
    };
    ask("GET", "/twice/x?q=1", "");
    ask("PUT", "/twice/x", "");
    ask("GET", "/twicer", "");
    ask("PUT", "/twice", "X-Tier: gold\r\n");
    let lines: Vec<_> = (0..4).map(|n| proxy.access_line(n)).collect();
    let seen: Vec<_> = lines
        .iter()
        .map(|l| {
            (
                l["outrigger.route"].as_str(),
                l["outrigger.attempts"].as_u64(),
            )
        })
        .collect();
    let want = [
        (Some("twice"), Some(2)),
        (None, Some(1)),
        (None, Some(1)),
        (Some("gold"), Some(2)),
    ];
    assert_eq!(seen, want);
    let count = |route: &str| {
        let labels = [&*format!("route=\"{route}\""), "code=\"5xx\""];
        proxy.metric("outrigger_route_requests_total", &labels)
    };
    assert_eq!((count("twice"), count("gold")), (1, 1));
    assert_eq!(proxy.metric("outrigger_requests_total", &[]), 4);
    assert_eq!(proxy.metric("outrigger_route_retries_total", &[]), 2);
    let routes = proxy.admin("/api/v1/upstreams/svc")["routes"].clone();
    assert_eq!(routes[0]["name"], "twice");
    assert_eq!(routes[0]["requests"], 1);
    let found = proxy.admin("/api/v1/route?url=http://svc/twice/1&method=GET");
    assert_eq!(found["route"], "twice");
    let none = proxy.admin("/api/v1/route?url=http://svc/twice/1&method=PUT");
    assert!(none["route"].is_null(), "{none}");
}

#[test]
fn a_route_has_a_time_of_its_own_and_keeps_its_counters_over_a_reload() {
    let stub = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            if request.target() == "/fast" {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            } else {
                peer.closed();
            }
        }
    });
    let keys = "routes: [{name: slow, match: {path: /slow}, timeout: {request: 400ms}}, \
                {name: fast, match: {path_prefix: /fast}}]";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let mut client = Client::connect(proxy.address);
    let watch = Stopwatch::start();
    let answer = client.get("/slow");
    assert_eq!(answer.reason(), Some("request_timeout"));
    // The service has 60 s.
    assert!(watch.elapsed() < Duration::from_secs(20));
    assert_eq!(client.get("/fast").status(), 200);
    let text = proxy
        .config_text()
        .replace("request: 400ms", "request: 300ms");
    proxy.reload(&text);
    assert_eq!(client.get("/slow").reason(), Some("request_timeout"));
    let labels = ["route=\"slow\"", "reason=\"request_timeout\""];
    assert_eq!(proxy.metric("outrigger_route_rejected_total", &labels), 2);
}
