//! A. Request framing and smuggling.

use super::{CHUNKED, refused, with_ok};
use crate::harness::{Client, Config, Framing, H2Client, Stub, eventually};

#[test]
fn px_001_cl_and_te_in_one_request() {
    for framing in [
        format!("Content-Length: 4\r\n{CHUNKED}"),
        format!("{CHUNKED}\r\nContent-Length: 4"),
    ] {
        let (stub, proxy) = with_ok();
        let mut client = Client::connect(proxy.address);
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: svc\r\n{framing}\r\n\r\n1\r\nx\r\n0\r\n\r\n\
             GET /evil HTTP/1.1\r\nHost: svc\r\n\r\n"
        ));
        let answer = client.response();
        assert!(matches!(answer.status(), 200 | 400), "{answer:?}");
        assert!(client.closed(), "{framing}");
        for request in stub.requests() {
            assert!(!request.first.contains("/evil"));
            assert_eq!(
                (request.framing, request.text().as_str()),
                (Framing::Chunked, "x")
            );
            assert!(!request.headers.has("content-length"));
        }
        assert_eq!(answer.status(), 200);
    }
}

#[test]
fn px_002_coding_before_chunked() {
    let (stub, proxy) = with_ok();
    let head = "POST / HTTP/1.1\r\nHost: svc\r\nTransfer-Encoding: gzip, chunked\r\n\r\n";
    refused(&proxy, &stub, format!("{head}1\r\nx\r\n0\r\n\r\n"), 501);
    proxy.logged("transfer_coding");
}

#[test]
fn px_003_near_miss_codings() {
    let (stub, proxy) = with_ok();
    for coding in [
        "xchunked",
        "chunked,",
        "\x0bchunked",
        "identity",
        "chunked, identity",
    ] {
        let head = format!("POST / HTTP/1.1\r\nHost: svc\r\nTransfer-Encoding: {coding}\r\n\r\n");
        refused(&proxy, &stub, format!("{head}1\r\nx\r\n0\r\n\r\n"), 400);
    }
    let old = format!("POST / HTTP/1.0\r\nHost: svc\r\n{CHUNKED}\r\n\r\n1\r\nx\r\n0\r\n\r\n");
    refused(&proxy, &stub, &old, 400);
}

#[test]
fn px_004_conflicting_or_list_cl() {
    let (stub, proxy) = with_ok();
    for lines in [
        "Content-Length: 3\r\nContent-Length: 4",
        "Content-Length: 3, 3",
    ] {
        refused(
            &proxy,
            &stub,
            format!("POST / HTTP/1.1\r\nHost: svc\r\n{lines}\r\n\r\nabcd"),
            400,
        );
    }
    let mut client = Client::connect(proxy.address);
    client
        .send("POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(client.response().status(), 200);
    let request = stub.request();
    assert_eq!(request.headers.all("content-length"), ["3"]);
    assert_eq!(request.text(), "abc");
}

#[test]
fn px_005_cl_that_is_no_number() {
    let (stub, proxy) = with_ok();
    for value in ["", "+3", "-1", "0x3", "1_0", "18446744073709551616"] {
        let head = format!("POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: {value}\r\n\r\n");
        refused(&proxy, &stub, format!("{head}abc"), 400);
    }
}

#[test]
fn px_006_bare_lf_in_a_chunk_size_and_extensions() {
    let (stub, proxy) = with_ok();
    let mut client = Client::connect(proxy.address);
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: svc\r\n{CHUNKED}\r\n\r\n1\nx\r\n0\r\n\r\n"
    ));
    let answer = client.response();
    assert_eq!(
        (answer.status(), answer.reason()),
        (400, Some("bad_request"))
    );
    assert!(client.closed());
    eventually("the upstream connection is dropped", || stub.open() == 0);
    assert!(stub.requests().iter().all(|r| !r.complete));

    let mut client = Client::connect(proxy.address);
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: svc\r\n{CHUNKED}\r\n\r\n1;a=b\r\nx\r\n0\r\n\r\n"
    ));
    assert_eq!(client.response().status(), 200);
    let request = stub.requests().pop().unwrap();
    assert_eq!((request.complete, request.text().as_str()), (true, "x"));
}

#[test]
fn px_007_framing_and_routing_fields_in_request_trailers() {
    let (stub, proxy) = with_ok();
    let mut client = Client::connect(proxy.address);
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: svc\r\n{CHUNKED}\r\nTrailer: X-T\r\n\r\n1\r\nx\r\n0\r\n\
         Content-Length: 99\r\nHost: evil\r\nAuthorization: x\r\nX-T: v\r\n\r\n"
    ));
    assert_eq!(client.response().status(), 200);
    let request = stub.request();
    assert_eq!(request.headers.all("host"), ["svc"]);
    for name in ["content-length", "authorization", "x-t"] {
        assert!(!request.headers.has(name), "{name}");
    }
    let names: Vec<_> = request.trailers.0.iter().map(|(n, _)| n.as_str()).collect();
    assert!(
        names.iter().all(|n| n.eq_ignore_ascii_case("x-t")),
        "{names:?}"
    );
}

#[test]
fn px_008_body_length_above_four_gib() {
    let stub = Stub::script(|peer| {
        let head = peer.head().unwrap();
        peer.note(head.header("content-length").unwrap());
        let mut read = peer.wire.buffer.len();
        peer.wire.buffer.clear();
        while peer.wire.fill() {
            read += peer.wire.buffer.len();
            peer.wire.buffer.clear();
        }
        peer.note(format!("read {} MiB", read >> 20));
    });
    let proxy = Config::svc(&[stub.address]).start();
    let baseline = proxy.rss_kib();
    let mut client = Client::connect(proxy.address);
    client.send("POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: 5368709120\r\n\r\n");
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..64 {
        client.send(&chunk);
    }
    let grown = proxy.rss_kib().saturating_sub(baseline);
    drop(client);
    stub.wait_for_note("5368709120");
    stub.wait_for_note("read 64 MiB");
    assert!(grown < 16 * 1024, "{grown} KiB");
    let line = proxy.access_line(0);
    assert!(
        ["client_closed", "bad_request"].contains(&line["outrigger.reason"].as_str().unwrap()),
        "{line}"
    );
}

#[test]
fn px_009_response_with_cl_and_te() {
    for framing in [
        format!("Content-Length: 10\r\n{CHUNKED}"),
        format!("{CHUNKED}\r\nContent-Length: 10"),
    ] {
        let stub = Stub::answering(format!(
            "HTTP/1.1 200 OK\r\n{framing}\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        ));
        let proxy = Config::svc(&[stub.address]).workers(1).start();
        let mut client = Client::connect(proxy.address);
        let answer = client.get("/");
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert!(answer.complete && answer.text() == "abc", "{answer:?}");
        assert!(!answer.headers.has("content-length"));
        let answer = H2Client::connect(proxy.address).get();
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"abc"[..]));
        assert!(answer.header("content-length").is_none());
        assert!(answer.end.is_ok());
        assert_eq!(stub.connections(), 2, "the connection must not be reused");
        eventually("both closed", || stub.open() == 0);
    }
}
