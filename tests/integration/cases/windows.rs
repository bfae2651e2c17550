//! What of the cases counts against an instance, seen from outside: ten failures in a row eject
//! (never the last one), what the app caused never does.

use super::CHUNKED;
use crate::harness::{Client, Config, H2Client, Proxy, Stub, closed_port, eventually, pause_ms};

const KEYS: &str = "load_balancer: round_robin\nretry: {max_attempts: 1}";

fn ejected(proxy: &Proxy) -> bool {
    proxy
        .lines()
        .iter()
        .any(|l| l["event"] == "instance_ejected")
}

/// A service of one instance that misbehaves and one that is fine.
fn pair(bad: std::net::SocketAddr, more: &str) -> (Stub, Proxy) {
    let good = Stub::ok();
    let keys = format!("{KEYS}\n{more}");
    let proxy = Config::svc_with(&[bad, good.address], &keys).start();
    (good, proxy)
}

/// Sends until the bad instance is out, which must happen.
#[track_caller]
fn ejects(proxy: &Proxy, bad: std::net::SocketAddr) {
    let mut sent = 0;
    eventually("an ejection", || {
        for _ in 0..5 {
            let mut client = Client::connect(proxy.address);
            client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
            let _answer = client.wire.head();
            sent += 1;
        }
        ejected(proxy)
    });
    assert!(sent <= 100, "{sent} requests");
    let event = proxy.wait_for_event("instance_ejected");
    assert_eq!(event["instance"], bad.to_string());
}

#[test]
fn failures_of_the_instance_count() {
    let (_kept, closed) = closed_port();
    let (_good, proxy) = pair(closed, "");
    ejects(&proxy, closed);

    let heads: [&'static str; 4] = [
        // Reset before a head, a head that breaks rules, a cut body, an unsolicited 101.
        "HTTP/1.1 200 O",
        "HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ];
    for head in heads {
        let stub = Stub::script(move |peer| {
            peer.request();
            peer.send(head);
        });
        let (_good, proxy) = pair(stub.address, "");
        ejects(&proxy, stub.address);
    }

    let silent = Stub::script(|peer| {
        peer.request();
        peer.closed();
    });
    let (_good, proxy) = pair(silent.address, "timeout: {request: 100ms}");
    ejects(&proxy, silent.address);
}

/// Does `harm` ten times; nothing is charged to an instance.
fn harmless(stub: &Stub, top: &str, harm: impl Fn(&mut Client)) {
    let config = Config::svc_with(&[stub.address], KEYS);
    let proxy = if top.is_empty() {
        config
    } else {
        config.top(top)
    }
    .start();
    for _ in 0..10 {
        harm(&mut Client::connect(proxy.address));
    }
    eventually("all requests have ended", || proxy.access().len() == 10);
    // A request's line may be there a moment before its outcome is.
    let ended = || proxy.attempts("ignored") + proxy.attempts("success");
    // One that left at once was sent to nobody.
    let lines = proxy.access();
    let tries = lines.iter().map(|l| l["outrigger.attempts"].as_u64());
    let tries: u64 = tries.map(Option::unwrap).sum();
    eventually("an outcome of each try", || ended() >= tries);
    assert_eq!(ended(), tries, "one outcome each");
    assert_eq!(proxy.attempts("network_error"), 0, "{:#?}", proxy.access());
    assert_eq!(proxy.attempts("business_error"), 0);
    assert_eq!(proxy.metric("outrigger_requests_in_flight", &[]), 0);
    eventually("no connection is left behind", || {
        proxy.metric("outrigger_open_connections", &["side=\"upstream\""]) <= 1
    });
}

#[test]
fn every_whole_answer_counts_once_and_gives_its_connection_back() {
    let stub = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            peer.send(match request.target() {
                "/204" => "HTTP/1.1 204 No Content\r\n\r\n",
                "/304" => "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
                "/empty" => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                _ if request.first.starts_with("HEAD") => {
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                }
                "/chunked" => {
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n"
                }
                "/none" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                _ => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            });
        }
    });
    let proxy = Config::svc_with(&[stub.address], KEYS).workers(1).start();
    let mut client = Client::connect(proxy.address);
    let h2 = H2Client::connect(proxy.address);
    let mut sent = 0;
    for target in ["/", "/204", "/304", "/empty", "/chunked", "/none"] {
        for method in ["GET", "HEAD", "POST"] {
            for line in ["", "TE: trailers\r\n", "Content-Length: 0\r\n"] {
                client.send(format!(
                    "{method} {target} HTTP/1.1\r\nHost: svc\r\n{line}\r\n"
                ));
                if method == "HEAD" {
                    client.head();
                } else {
                    assert!(client.response().complete);
                }
                sent += 1;
            }
            let uri = format!("http://svc{target}");
            let request = http::Request::builder()
                .method(method)
                .uri(uri)
                .body(())
                .unwrap();
            let body = (method == "POST").then_some(&b"body"[..]);
            assert!(h2.call(request, body).unwrap().end.is_ok());
            sent += 1;
        }
    }
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: svc\r\n{CHUNKED}\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    ));
    client.response();
    sent += 1;
    assert_eq!(
        stub.connections(),
        1,
        "each gave it back before the next one"
    );
    eventually("all are counted", || proxy.attempts("success") >= sent);
    assert_eq!(proxy.attempts("success"), sent);
    assert_eq!(proxy.metric("outrigger_attempts_total", &[]), sent);
    assert_eq!(proxy.metric("outrigger_requests_total", &[]), sent);
    assert_eq!(proxy.metric("outrigger_requests_in_flight", &[]), 0);
}

#[test]
fn a_transparent_repeat_counts_nowhere() {
    let stub = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            if peer.index == 0 && request.target() != "/first" {
                return;
            }
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let proxy = Config::svc_with(&[stub.address], KEYS).start();
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/first").status(), 200);
    assert_eq!(client.get("/second").status(), 200);
    eventually("both are counted", || proxy.attempts("success") >= 2);
    assert_eq!(proxy.metric("outrigger_attempts_total", &[]), 2);
    assert_eq!(proxy.attempts("network_error"), 0);
}

fn reading() -> Stub {
    Stub::script(|peer| while peer.request().is_some_and(|r| r.complete) {})
}

#[test]
fn what_the_app_causes_does_not_count() {
    // Broken chunks.
    harmless(&reading(), "", |client| {
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: svc\r\n{CHUNKED}\r\n\r\n1\r\nx\r\nZZ\r\n"
        ));
        let _answer = client.wire.head();
    });
    // An end inside of the body.
    harmless(&reading(), "", |client| {
        client.send("POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: 9\r\n\r\nabc");
        client.finish_writing();
        client.closed();
    });
    // A body that stops.
    harmless(&reading(), "limits: {body_idle_timeout: 30ms}", |client| {
        client.send("POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: 9\r\n\r\nabc");
        client.response();
    });
    // Too large a body.
    harmless(&reading(), "limits: {max_body_bytes: 1KiB}", |client| {
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: svc\r\n{CHUNKED}\r\n\r\n800\r\n"
        ));
        client.send([b'x'; 0x800]);
        client.response();
    });
    // Leaving soon.
    harmless(&reading(), "", |client| {
        client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
        pause_ms(10);
        client.finish_writing();
        client.closed();
    });
    // Leaving in mid-download.
    let large = Stub::script(|peer| {
        while peer.request().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
            let chunk = [b'x'; 1 << 16];
            for _ in 0..1_000 {
                if !peer.wire.write(&chunk) {
                    return;
                }
            }
        }
    });
    harmless(&large, "", |client| {
        client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
        client.head();
    });
    // A close-delimited body.
    let closing = Stub::script(|peer| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\n\r\nabc");
    });
    harmless(&closing, "", |client| {
        client.get("/");
    });
}
