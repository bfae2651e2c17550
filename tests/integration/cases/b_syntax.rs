//! B. Header syntax and limits.

use serde_json::Value;

use super::{refused, with_ok};
use crate::harness::{Client, Config, Stub, eventually, latin1, pause_ms};

#[test]
fn px_010_broken_field_lines() {
    let (stub, proxy) = with_ok();
    for line in ["X: a\r\n b", "X : a", ": a", "Xabc"] {
        refused(
            &proxy,
            &stub,
            format!("GET / HTTP/1.1\r\nHost: svc\r\n{line}\r\n\r\n"),
            400,
        );
    }
}

#[test]
fn px_011_control_bytes_in_a_value() {
    let (stub, proxy) = with_ok();
    for byte in ["\0", "\r", "\x7f", "\x01"] {
        refused(
            &proxy,
            &stub,
            format!("GET / HTTP/1.1\r\nHost: svc\r\nX: a{byte}b\r\n\r\n"),
            400,
        );
    }
}

#[test]
fn px_012_obs_text_in_a_value() {
    let stub = Stub::answering(b"HTTP/1.1 200 OK\r\nX: \xe9\xff\r\nContent-Length: 2\r\n\r\nok");
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    client.send(b"GET / HTTP/1.1\r\nHost: svc\r\nX: \xe9\xff\r\nX-Request-Id: \xe9\r\n\r\n");
    let answer = client.response();
    let want = latin1(b"\xe9\xff");
    assert_eq!(answer.header("x"), Some(want.as_str()));
    assert_eq!(stub.request().header("x"), Some(want.as_str()));
    proxy.access_line(0);
    assert!(proxy.lines().iter().all(Value::is_object));
}

#[test]
fn px_013_header_section_over_the_limit_in_two_writes() {
    const LIMIT: usize = 16 * 1024;
    let stub = Stub::ok();
    let proxy = Config::svc(&[stub.address])
        .top("limits: {max_header_bytes: 16KiB}")
        .start();
    let mut client = Client::connect(proxy.address);
    let head = "GET / HTTP/1.1\r\nHost: svc\r\nX: ";
    client.send(head).send("a".repeat(LIMIT - 1000));
    pause_ms(100);
    client.send("a".repeat(5000)).send("\r\n\r\n");
    let answer = client.response();
    assert_eq!(answer.status(), 431, "{answer:?}");
    assert!(client.closed());
    assert!(stub.requests().is_empty());
    let mut client = Client::connect(proxy.address);
    client
        .send(head)
        .send("a".repeat(LIMIT - 1000))
        .send("\r\n\r\n");
    assert_eq!(client.response().status(), 200);
}

#[test]
fn px_013_header_section_at_the_limit_to_the_byte() {
    // The second limit is below what hyper takes in at least.
    for (text, limit) in [("16KiB", 16 * 1024), ("4KiB", 4 * 1024)] {
        let stub = Stub::ok();
        let proxy = Config::svc(&[stub.address])
            .top(&format!("limits: {{max_header_bytes: {text}}}"))
            .start();
        let head = |bytes: usize| {
            let start = "GET / HTTP/1.1\r\nHost: svc\r\nX: ";
            let fill = "a".repeat(bytes - start.len() - "\r\n\r\n".len());
            format!("{start}{fill}\r\n\r\n")
        };
        let mut client = Client::connect(proxy.address);
        // What a body, an earlier head or one sent along with it has is not the head's.
        let body = "b".repeat(limit);
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: {limit}\r\n\r\n{body}"
        ));
        client.send([head(limit), head(limit)].concat());
        for _ in 0..3 {
            assert_eq!(client.response().status(), 200, "{text}");
        }
        let sent = [head(60), head(limit + 1)].concat();
        client.send(sent);
        assert_eq!(client.response().status(), 200);
        let answer = client.response();
        assert_eq!(answer.status(), 431, "{text}: {answer:?}");
        assert!(client.closed());
        assert_eq!(stub.requests().len(), 4);
        // The larger one hyper may have refused by itself, before all of it was there.
        assert!(limit > 8192 || answer.reason() == Some("header_too_large"));
        assert_eq!(
            proxy.metric("outrigger_limit_hits_total", &["\"max_header_bytes\""]),
            1
        );
    }
}

#[test]
fn px_014_request_target_too_long() {
    let (stub, proxy) = with_ok();
    for (length, also) in [(20_000, 414), (70_000, 431), (500_000, 431)] {
        let mut client = Client::connect(proxy.address);
        client.send(format!(
            "GET /{} HTTP/1.1\r\nHost: svc\r\n\r\n",
            "a".repeat(length)
        ));
        let answer = client.response();
        assert!(
            [414, also].contains(&answer.status()),
            "{length}: {answer:?}"
        );
        assert!(client.closed());
    }
    assert!(stub.requests().is_empty());
    proxy.logged("target_too_long");
}

#[test]
fn px_015_header_count_limit() {
    let (stub, proxy) = with_ok();
    let lines = |n: usize| {
        let fields: String = (0..n - 1).map(|i| format!("X-{i}: 1\r\n")).collect();
        format!("GET / HTTP/1.1\r\nHost: svc\r\n{fields}\r\n")
    };
    let mut client = Client::connect(proxy.address);
    client.send(lines(128));
    assert_eq!(client.response().status(), 200);
    let seen = stub.request();
    assert!(
        seen.headers
            .0
            .iter()
            .filter(|(n, _)| n.starts_with("x-"))
            .count()
            >= 127
    );
    let mut client = Client::connect(proxy.address);
    client.send(lines(129));
    assert_eq!(client.response().status(), 431);
    assert!(client.closed());
    let hits = |limit| proxy.metric("outrigger_limit_hits_total", &[limit]);
    // Counted when the connection has ended.
    eventually("the hit", || hits("\"max_headers\"") == 1);
    assert_eq!(hits("\"max_header_bytes\""), 0);
}

#[test]
fn px_016_many_response_headers() {
    let answer = |n: usize| {
        let fields: String = (0..n - 1).map(|i| format!("X-{i}: 1\r\n")).collect();
        format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{fields}\r\nok")
    };
    for n in [150, 256] {
        let stub = Stub::answering(answer(n));
        let proxy = Config::svc(&[stub.address]).start();
        let got = Client::connect(proxy.address).get("/");
        assert_eq!(got.status(), 200, "{n}");
        assert_eq!(
            got.headers
                .0
                .iter()
                .filter(|(k, _)| k.starts_with("x-"))
                .count(),
            n,
            "one is x-request-id"
        );
    }
    let stub = Stub::answering(answer(257));
    let proxy = Config::svc(&[stub.address]).start();
    let got = Client::connect(proxy.address).get("/");
    assert_eq!(
        (got.status(), got.reason()),
        (502, Some("upstream_protocol"))
    );
    assert_eq!(stub.connections(), 1, "not retried");
    assert_eq!(proxy.logged("upstream_protocol")["outrigger.attempts"], 1);
}
