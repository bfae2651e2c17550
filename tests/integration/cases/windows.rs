//! What of the cases counts against an instance, seen from outside: ten failures in a row eject
//! (never the last one), what the app caused never does.

use super::CHUNKED;
use crate::harness::{Client, Config, Proxy, Stub, closed_port, eventually, pause_ms};

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

/// Does `harm` thirty times; nobody is ejected.
fn harmless(stub: &Stub, top: &str, harm: impl Fn(&mut Client)) {
    let good = Stub::ok();
    let config = Config::svc_with(&[stub.address, good.address], KEYS);
    let proxy = if top.is_empty() {
        config
    } else {
        config.top(top)
    }
    .start();
    for _ in 0..30 {
        harm(&mut Client::connect(proxy.address));
    }
    eventually("all requests have ended", || proxy.access().len() >= 30);
    // The windows are looked at every second.
    pause_ms(1_200);
    assert!(!ejected(&proxy), "{:#?}", proxy.lines());
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
