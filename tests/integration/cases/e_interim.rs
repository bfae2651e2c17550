//! E. Interim responses and Expect.

use std::time::Duration;

use crate::harness::{Client, Config, H2Client, Stopwatch, Stub};

#[test]
fn px_034_one_100_only() {
    let stub = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            peer.note(format!("{:?}", request.header("expect")));
            peer.send(
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            );
        }
    });
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    client
        .send("POST / HTTP/1.1\r\nHost: svc\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    assert_eq!(client.head().status(), 100);
    assert!(client.is_quiet());
    client.send("abc");
    assert_eq!(client.response().status(), 200);
    assert!(client.is_quiet());
    assert_eq!(stub.request().text(), "abc");
    assert_eq!(stub.notes(), ["None"], "we do the handshake, nobody else");

    client.send("POST / HTTP/1.1\r\nHost: svc\r\nExpect: magic\r\nContent-Length: 3\r\n\r\n");
    let answer = client.response();
    assert_eq!((answer.status(), answer.reason()), (417, Some("expect")));
}

#[test]
fn px_035_final_status_instead_of_100() {
    let stub = Stub::script(|peer| {
        while let Some(head) = peer.head() {
            if head.first.starts_with("GET") {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
                continue;
            }
            peer.send("HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno");
            let closed = peer.closed();
            peer.note(format!("closed: {closed}"));
            return;
        }
    });
    let proxy = Config::svc(&[stub.address]).workers(1).start();
    let mut client = Client::connect(proxy.address);
    let watch = Stopwatch::start();
    client
        .send("POST / HTTP/1.1\r\nHost: svc\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n");
    let mut answer = client.response();
    if answer.status() == 100 {
        answer = client.response();
    }
    assert_eq!(answer.status(), 413);
    assert!(
        watch.elapsed() < Duration::from_secs(10),
        "{} ms",
        watch.ms()
    );
    drop(client);
    stub.wait_for_note("closed: true");
    assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    assert_eq!(stub.connections(), 2);
}

#[test]
fn px_036_103_then_200() {
    let stub = Stub::answering(
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    );
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    for _ in 0..2 {
        let mut answer = client.get("/");
        if answer.status() == 103 {
            answer = client.response();
        }
        assert_eq!((answer.status(), answer.text().as_str()), (200, "ok"));
    }
    assert_eq!(stub.connections(), 1);
}

#[test]
fn px_037_unsolicited_101() {
    let stub = Stub::script(|peer| {
        peer.request();
        peer.send(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: foo\r\nConnection: upgrade\r\n\r\nfoo",
        );
        let closed = peer.closed();
        peer.note(format!("closed: {closed}"));
    });
    let proxy = Config::svc(&[stub.address]).start();
    let answer = Client::connect(proxy.address).get("/");
    assert_eq!(
        (answer.status(), answer.reason()),
        (502, Some("upstream_protocol"))
    );
    stub.wait_for_note("closed: true");
    let answer = H2Client::connect(proxy.address).get();
    assert_eq!(
        (answer.status, answer.reason()),
        (502, Some("upstream_protocol"))
    );
}
