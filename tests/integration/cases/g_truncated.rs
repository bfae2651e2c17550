//! G. Truncated and aborted messages.

use crate::harness::{Client, Config, H2Client, Proxy, Stub, eventually};

use super::CHUNKED;

fn sending(bytes: String) -> (Stub, Proxy) {
    let stub = Stub::script(move |peer| {
        peer.request();
        peer.send(&bytes);
    });
    let proxy = Config::svc(&[stub.address]).start();
    (stub, proxy)
}

/// The answer's body is cut and holds `body`, over h1 and h2.
fn cut(proxy: &Proxy, body: &[u8]) {
    let mut client = Client::connect(proxy.address);
    let answer = client.get("/");
    assert_eq!(answer.status(), 200);
    assert!(!answer.complete, "{answer:?}");
    assert_eq!(answer.body, body);
    assert!(client.closed());
    let line = proxy.access_line(0);
    assert_eq!(line["outrigger.reason"], "upstream_reset", "{line}");
    let answer = H2Client::connect(proxy.address).get();
    assert_eq!(answer.body, body);
    let error = answer.end.unwrap_err();
    assert_ne!(error.reason(), Some(h2::Reason::NO_ERROR), "{error:?}");
    assert_eq!(proxy.access_line(1)["outrigger.reason"], "upstream_reset");
}

#[test]
fn px_045_short_cl_response() {
    let (_stub, proxy) = sending("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc".to_owned());
    cut(&proxy, b"abc");
}

#[test]
fn px_046_client_stops_in_mid_upload() {
    for framing in [
        "Content-Length: 10\r\n\r\nabc".to_owned(),
        format!("{CHUNKED}\r\n\r\n3\r\nabc\r\n"),
    ] {
        let stub = Stub::script(|peer| {
            let request = peer.request().unwrap();
            peer.note(format!(
                "complete: {}, ended: {}",
                request.complete, peer.wire.ended
            ));
        });
        let proxy = Config::svc(&[stub.address]).start();
        let mut client = Client::connect(proxy.address);
        client.send(format!("POST / HTTP/1.1\r\nHost: svc\r\n{framing}"));
        eventually("the upstream connection", || stub.connections() == 1);
        client.finish_writing();
        stub.wait_for_note("complete: false, ended: true");
        assert_eq!(stub.request().text(), "abc");
        let line = proxy.access_line(0);
        assert_eq!(line["outrigger.reason"], "client_closed", "{line}");
        assert_eq!(stub.connections(), 1);
    }
}

#[test]
fn px_047_chunked_response_without_terminator() {
    let (_stub, proxy) = sending(format!("HTTP/1.1 200 OK\r\n{CHUNKED}\r\n\r\n3\r\nabc\r\n"));
    cut(&proxy, b"abc");
}

#[test]
fn px_048_nothing_is_added_to_a_started_body() {
    let (_stub, proxy) = sending("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234".to_owned());
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    client.head();
    assert_eq!(client.exactly(5), b"01234");
    assert!(client.closed());
    assert_eq!(proxy.access_line(0)["http.response.status_code"], 200);
}

#[test]
fn responses_that_break_the_rules_are_not_passed_on() {
    for head in [
        "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "Content-Length: 3, 4\r\n\r\nabcd",
        "Content-Length: +3\r\n\r\nabc",
        "Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "Transfer-Encoding: xchunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "Transfer-Encoding: gzip\r\n\r\nabc",
        "Transfer-Encoding: chunked, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "X: a\0b\r\n\r\n",
        "X : a\r\n\r\n",
        "X: a\r\n b\r\n\r\n",
    ] {
        let (_stub, proxy) = sending(format!("HTTP/1.1 200 OK\r\n{head}"));
        let answer = Client::connect(proxy.address).get("/");
        assert_eq!(
            (answer.status(), answer.reason()),
            (502, Some("upstream_protocol")),
            "{head:?}"
        );
        let answer = H2Client::connect(proxy.address).get();
        assert_eq!(
            (answer.status, answer.reason()),
            (502, Some("upstream_protocol")),
            "{head:?}"
        );
    }
    let (_stub, proxy) =
        sending("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned());
    assert_eq!(Client::connect(proxy.address).get("/").status(), 502);
}

#[test]
fn broken_chunks_of_an_instance_cut_the_body() {
    let (_stub, proxy) = sending(format!(
        "HTTP/1.1 200 OK\r\n{CHUNKED}\r\n\r\n3\r\nabc\r\nZZ\r\n"
    ));
    cut(&proxy, b"abc");
}
