//! F. Bodiless and oddly framed responses.

use bytes::Bytes;

use super::{CHUNKED, with_ok};
use crate::harness::{
    Client, Config, Framing, H2Client, Stopwatch, Stub, block_on, collect, request,
};

#[test]
fn px_038_head() {
    for (line, length) in [("Content-Length: 12345", Some("12345")), (CHUNKED, None)] {
        let stub = Stub::answering(format!("HTTP/1.1 200 OK\r\n{line}\r\nX-A: 1\r\n\r\n"));
        let proxy = Config::svc(&[stub.address]).workers(1).start();
        let mut client = Client::connect(proxy.address);
        for _ in 0..3 {
            client.send("HEAD / HTTP/1.1\r\nHost: svc\r\n\r\n");
            let head = client.head();
            assert_eq!((head.status(), head.header("x-a")), (200, Some("1")));
            assert_eq!(head.header("content-length"), length, "{head:?}");
            assert!(client.is_quiet(), "a body follows HEAD");
        }
        let answer = H2Client::connect(proxy.address)
            .call(request("HEAD", &[]), None)
            .unwrap();
        assert_eq!(
            (answer.status, answer.header("content-length")),
            (200, length)
        );
        assert_eq!(stub.connections(), 1, "{line}: reused at once");
    }
}

#[test]
fn px_039_204_with_cl_or_te() {
    for line in ["Content-Length: 3", CHUNKED] {
        let stub = Stub::answering(format!("HTTP/1.1 204 No Content\r\n{line}\r\n\r\n"));
        let proxy = Config::svc(&[stub.address]).workers(1).start();
        let mut client = Client::connect(proxy.address);
        for method in ["GET", "HEAD", "POST"] {
            client.send(format!("{method} / HTTP/1.1\r\nHost: svc\r\n\r\n"));
            let head = client.head();
            assert_eq!(head.status(), 204);
            for name in ["content-length", "transfer-encoding"] {
                assert!(!head.headers.has(name), "{method} {line}: {head:?}");
            }
            assert!(client.is_quiet());
            let answer = H2Client::connect(proxy.address)
                .call(request(method, &[]), None)
                .unwrap();
            assert_eq!(answer.status, 204);
            assert!(
                answer.header("content-length").is_none(),
                "{method} {line}: h2"
            );
        }
        assert_eq!(stub.connections(), 1, "{line}: reused");
    }
}

#[test]
fn px_040_304() {
    for line in ["Content-Length: 123", CHUNKED, "X-A: 1"] {
        let stub = Stub::answering(format!(
            "HTTP/1.1 304 Not Modified\r\nETag: \"e\"\r\n{line}\r\n\r\n"
        ));
        let proxy = Config::svc(&[stub.address]).start();
        let mut client = Client::connect(proxy.address);
        for _ in 0..2 {
            let head = client.get("/");
            assert_eq!((head.status(), head.header("etag")), (304, Some("\"e\"")));
            let length = head.header("content-length");
            assert!(
                length.is_none() || (length == Some("123") && line.ends_with("123")),
                "{head:?}"
            );
            assert!(!head.headers.has("transfer-encoding"), "{head:?}");
            assert!(client.is_quiet());
        }
        let answer = H2Client::connect(proxy.address).get();
        assert_eq!((answer.status, answer.header("etag")), (304, Some("\"e\"")));
        assert_ne!(answer.header("content-length"), Some("0"));
    }
}

fn closing() -> Stub {
    Stub::script(|peer| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\n\r\nabc");
    })
}

#[test]
fn px_041_close_delimited_response() {
    let stub = closing();
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    let answer = client.get("/");
    assert_eq!(
        (answer.framing, answer.text().as_str()),
        (Framing::Chunked, "abc")
    );
    assert!(answer.complete && client.is_quiet());

    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.0\r\nHost: svc\r\n\r\n");
    let answer = client.response();
    assert_eq!(
        (answer.framing, answer.text().as_str()),
        (Framing::Close, "abc")
    );

    let answer = H2Client::connect(proxy.address).get();
    assert_eq!(answer.body, b"abc");
    assert!(answer.end.is_ok());
    for n in 0..3 {
        assert!(proxy.access_line(n)["outrigger.reason"].is_null());
    }
}

#[test]
fn px_042_http_1_0_client() {
    let stub = Stub::answering(format!(
        "HTTP/1.1 200 OK\r\n{CHUNKED}\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    ));
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.0\r\nHost: svc\r\nConnection: keep-alive\r\n\r\n");
    let answer = client.response();
    assert_eq!(
        (answer.framing, answer.text().as_str()),
        (Framing::Close, "abc")
    );
    assert!(!answer.headers.has("transfer-encoding"));
    assert_eq!(stub.request().first, "GET / HTTP/1.1");

    // With a known length the connection may stay.
    let (_stub, proxy) = with_ok();
    let mut client = Client::connect(proxy.address);
    for _ in 0..2 {
        client.send("GET / HTTP/1.0\r\nHost: svc\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!(client.response().text(), "ok");
    }
}

#[test]
fn px_043_get_framing_is_preserved() {
    let (stub, proxy) = with_ok();
    let h2 = H2Client::connect(proxy.address);
    assert_eq!(h2.get().status, 200);
    assert_eq!(h2.call(request("GET", &[]), Some(b"")).unwrap().status, 200);
    let mut client = Client::connect(proxy.address);
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: svc\r\n{CHUNKED}\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    ));
    assert_eq!(client.response().status(), 200);
    let seen = stub.requests();
    assert_eq!(seen[0].framing, Framing::None, "{:?}", seen[0]);
    assert_eq!(seen[1].framing, Framing::None, "{:?}", seen[1]);
    assert_eq!(
        (seen[2].framing, seen[2].text().as_str()),
        (Framing::Chunked, "abc")
    );
}

#[test]
fn px_044_bodiless_post_from_h2() {
    let (stub, proxy) = with_ok();
    let h2 = H2Client::connect(proxy.address);
    assert_eq!(h2.call(request("POST", &[]), None).unwrap().status, 200);
    assert_eq!(stub.request().headers.all("content-length"), ["0"]);
    // A length that is said is kept, and no coding is added to it.
    block_on(async {
        let mut send = h2.send.clone().ready().await.unwrap();
        let head = request("POST", &[("content-length", "3")]);
        let (response, mut stream) = send.send_request(head, false).unwrap();
        stream.send_data(Bytes::from_static(b"abc"), true).unwrap();
        collect(response.await.unwrap()).await.unwrap();
    });
    let seen = stub.requests().pop().unwrap();
    assert_eq!(
        (seen.framing, seen.text().as_str()),
        (Framing::Length(3), "abc")
    );
}

#[test]
fn an_h2_get_that_keeps_its_body_open_is_served_without_a_wait() {
    let stub = Stub::script(|peer| {
        while let Some(head) = peer.head() {
            peer.note(format!("{:?}", head.header("transfer-encoding")));
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            if !peer.closed() {
                return;
            }
        }
    });
    let fast = (0..5).any(|_| {
        let proxy = Config::svc(&[stub.address]).start();
        let h2 = H2Client::connect(proxy.address);
        let watch = Stopwatch::start();
        block_on(async {
            let mut send = h2.send.clone().ready().await.unwrap();
            let (response, _open) = send.send_request(request("GET", &[]), false).unwrap();
            assert_eq!(response.await.unwrap().status(), 200);
        });
        watch.ms() < 300
    });
    assert!(fast, "each of five waited");
    assert!(stub.notes().iter().all(|n| n == "Some(\"chunked\")"));
}
