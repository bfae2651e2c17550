//! D. Hop-by-hop and forwarding headers, cookies.

use super::{CHUNKED, with_ok};
use crate::harness::{Client, Config, H2Client, Message, Proxy, Stub, request};

/// Sends a GET with these header lines; gives the answer and what the instance saw.
fn exchange(proxy: &Proxy, stub: &Stub, lines: &str) -> (Message, Message) {
    let mut client = Client::connect(proxy.address);
    client.send(format!("GET / HTTP/1.1\r\nHost: svc\r\n{lines}\r\n"));
    (client.response(), stub.requests().pop().unwrap())
}

#[test]
fn px_025_fixed_hop_by_hop_set_both_ways() {
    const LINES: &str = "Connection: close\r\nKeep-Alive: timeout=5\r\nProxy-Connection: close\r\n\
        TE: gzip\r\nTrailer: X-T\r\nUpgrade: foo\r\nProxy-Authenticate: a\r\n\
        Proxy-Authorization: b\r\nX-End: 1\r\n";
    const GONE: [&str; 8] = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "upgrade",
        "proxy-authenticate",
        "proxy-authorization",
    ];
    let stub = Stub::script(|peer| {
        // The first connection says close and keeps its word, the second one does not.
        while peer.request().is_some() {
            let lines = if peer.index == 0 {
                LINES
            } else {
                "X-End: 1\r\n"
            };
            peer.send(format!(
                "HTTP/1.1 200 OK\r\n{lines}{CHUNKED}\r\n\r\n2\r\nok\r\n0\r\n\r\n"
            ));
            if peer.index == 0 {
                return;
            }
        }
    });
    let proxy = Config::svc(&[stub.address]).workers(1).start();
    let mut client = Client::connect(proxy.address);
    // An upstream's close is not the app's.
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: svc\r\n{}\r\n",
        LINES.replace("Connection: close\r\nKeep", "Keep")
    ));
    let answer = client.response();
    let seen = stub.requests().pop().unwrap();
    for name in GONE {
        assert!(!answer.headers.has(name), "{name} came back: {answer:?}");
        assert!(!seen.headers.has(name), "{name} went upstream: {seen:?}");
    }
    assert!(answer.headers.has("x-end") && seen.headers.has("x-end"));
    assert_eq!(client.get("/").status(), 200);
    // Nor the app's the pooled connection's.
    let (answer, seen) = exchange(&proxy, &stub, LINES);
    assert!(answer.says_close());
    assert!(!seen.headers.has("connection"));
    assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    assert_eq!(stub.connections(), 2);
}

#[test]
fn px_026_fields_nominated_by_connection() {
    let stub = Stub::answering(
        "HTTP/1.1 200 OK\r\nConnection:\r\nConnection: x-bar, keep-alive\r\nX-Bar: 1\r\n\
         Content-Length: 2\r\n\r\nok",
    );
    let proxy = Config::svc(&[stub.address]).start();
    let lines = "Connection:\r\nConnection: close, X-Foo\r\nx-foo: 1\r\n";
    let (answer, seen) = exchange(&proxy, &stub, lines);
    assert!(
        !seen.headers.has("x-foo") && !seen.headers.has("connection"),
        "{seen:?}"
    );
    assert!(!answer.headers.has("x-bar"), "{answer:?}");
    assert_eq!(answer.headers.all("connection"), ["close"]);
}

#[test]
fn px_027_client_cannot_strip_what_we_add() {
    let stub = Stub::ok();
    let proxy = Config::svc_with(&[stub.address], "forwarded_headers: append\nvia: both").start();
    let lines = "Connection: x-forwarded-for, X-REQUEST-ID, via, x-outrigger-hop, host\r\n";
    let (_, seen) = exchange(&proxy, &stub, lines);
    for name in [
        "x-forwarded-for",
        "x-request-id",
        "via",
        "x-outrigger-hop",
        "host",
    ] {
        assert!(seen.headers.has(name), "{name}: {seen:?}");
    }
}

#[test]
fn px_028_te() {
    let (stub, proxy) = with_ok();
    let with = "TE: gzip, trailers;q=0.5\r\nConnection: TE\r\n";
    assert_eq!(
        exchange(&proxy, &stub, with).1.headers.all("te"),
        ["trailers"]
    );
    let without = "TE: gzip\r\nConnection: TE\r\n";
    assert!(!exchange(&proxy, &stub, without).1.headers.has("te"));
}

#[test]
fn px_029_connection_headers_do_not_reach_h2() {
    let stub = Stub::answering(
        "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n\
         Connection: X-A\r\nX-A: 1\r\nX-B: 1\r\nContent-Length: 2\r\n\r\nok",
    );
    let proxy = Config::svc(&[stub.address]).start();
    let answer = H2Client::connect(proxy.address).get();
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"ok"[..]));
    for name in ["keep-alive", "proxy-connection", "connection", "x-a"] {
        assert!(answer.header(name).is_none(), "{name}");
    }
    assert!(answer.header("x-b").is_some() && answer.end.is_ok());
}

#[test]
fn px_030_x_forwarded_for() {
    let lines = "X-Forwarded-For: a\r\nX-Forwarded-For: b\r\n";
    let stub = Stub::ok();
    let proxy = Config::svc_with(&[stub.address], "forwarded_headers: append").start();
    let (_, seen) = exchange(&proxy, &stub, lines);
    assert_eq!(seen.headers.all("x-forwarded-for"), ["a, b, 127.0.0.1"]);
    let (stub, proxy) = with_ok();
    let (_, seen) = exchange(&proxy, &stub, lines);
    assert_eq!(seen.headers.all("x-forwarded-for"), ["a", "b"]);
}

#[test]
fn px_031_via() {
    for (mode, request_via, response_via) in [
        ("both", "1.0 fred, 1.1 outrigger", "1.1 jane, 1.1 outrigger"),
        ("response", "1.0 fred", "1.1 jane, 1.1 outrigger"),
        ("none", "1.0 fred", "1.1 jane"),
    ] {
        let stub =
            Stub::answering("HTTP/1.1 200 OK\r\nVia: 1.1 jane\r\nContent-Length: 2\r\n\r\nok");
        let proxy = Config::svc_with(&[stub.address], &format!("via: {mode}")).start();
        let (answer, seen) = exchange(&proxy, &stub, "Via: 1.0 fred\r\n");
        assert_eq!(seen.headers.all("via"), [request_via], "{mode}");
        assert_eq!(answer.headers.all("via"), [response_via], "{mode}");
    }
}

#[test]
fn px_032_set_cookie_lines() {
    let stub = Stub::answering(
        "HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT\r\n\
         Set-Cookie: b=2\r\nContent-Length: 2\r\n\r\nok",
    );
    let proxy = Config::svc(&[stub.address]).start();
    let want = ["a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT", "b=2"];
    let (answer, _) = exchange(&proxy, &stub, "");
    assert_eq!(answer.headers.all("set-cookie"), want);
    let answer = H2Client::connect(proxy.address).get();
    let lines: Vec<_> = answer.headers.get_all("set-cookie").iter().collect();
    assert_eq!(lines, want);
}

#[test]
fn px_033_cookie_crumbs() {
    let (stub, proxy) = with_ok();
    let request = request("GET", &[("cookie", "a=1"), ("cookie", "b=2")]);
    let answer = H2Client::connect(proxy.address)
        .call(request, None)
        .unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(stub.request().headers.all("cookie"), ["a=1; b=2"]);
}
