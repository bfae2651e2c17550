//! What an instance may do to the codec towards it: answer early, switch early, never come to the
//! point, break off.

use crate::harness::{Client, Config, Stub, eventually};

const BODY: usize = 1_000_000;

#[test]
fn a_whole_early_answer_does_not_cut_the_rest_of_the_upload() {
    let stub = Stub::script(|peer| {
        if peer.head().is_none() {
            return;
        }
        peer.send("HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\nok");
        while peer.wire.buffer.len() < BODY && peer.wire.fill() {}
        peer.note(format!("read {}", peer.wire.buffer.len()));
    });
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    // Many clients write all of it before they read anything.
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: {BODY}\r\n\r\n"
    ));
    client.send(vec![b'x'; BODY]);
    let answer = client.response();
    assert_eq!((answer.status(), answer.text().as_str()), (202, "ok"));
    stub.wait_for_note(&format!("read {BODY}"));
    assert_eq!(client.get("/next").status(), 202, "the app goes on");
}

#[test]
fn a_switch_before_the_request_was_complete_is_no_tunnel() {
    let stub = Stub::script(|peer| {
        peer.head();
        peer.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
        while peer.wire.fill() {}
    });
    let proxy = Config::svc_with(&[stub.address], "retry: {max_attempts: 1}").start();
    let mut client = Client::connect(proxy.address);
    client.send(
        "POST / HTTP/1.1\r\nHost: svc\r\nConnection: upgrade\r\nUpgrade: x\r\n\
         Content-Length: 100000\r\n\r\nthe beginning",
    );
    let answer = client.response();
    assert_eq!(
        (answer.status(), answer.reason()),
        (502, Some("upstream_protocol"))
    );
    eventually("the instance's connection is closed", || stub.open() == 0);
}

#[test]
fn interim_answers_without_an_end_are_refused() {
    let stub = Stub::script(|peer| {
        peer.request();
        for _ in 0..1000 {
            peer.send("HTTP/1.1 102 Processing\r\n\r\n");
        }
        while peer.wire.fill() {}
    });
    let proxy = Config::svc_with(&[stub.address], "retry: {max_attempts: 1}").start();
    let mut client = Client::connect(proxy.address);
    let answer = client.get("/");
    assert_eq!(
        (answer.status(), answer.reason()),
        (502, Some("upstream_protocol"))
    );
}

#[test]
fn an_app_that_breaks_its_body_behind_the_answers_head_ends_the_answer() {
    let stub = Stub::script(|peer| {
        peer.head();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab");
        while peer.wire.fill() {}
        peer.send("cd");
        peer.note("ended");
    });
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    client.send("POST / HTTP/1.1\r\nHost: svc\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
    assert_eq!(client.head().status(), 200);
    assert_eq!(client.exactly(2), b"ab");
    client.send("zz\r\n");
    stub.wait_for_note("ended");
    assert!(client.closed());
    let line = proxy.access_line(0);
    assert_eq!(line["outrigger.reason"], "bad_request", "{line}");
}

#[test]
fn an_instance_that_breaks_off_inside_a_head_is_charged() {
    let stub = Stub::script(|peer| {
        let mut served = 0;
        while peer.request().is_some() {
            served += 1;
            if served > 1 {
                peer.send("HTTP/1.1 200 OK\r\nContent-Le");
                return;
            }
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let proxy = Config::svc_with(&[stub.address], "retry: {max_attempts: 1}").start();
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/").status(), 200);
    // On a connection that was used before: no silent repeat, something was said.
    let answer = client.get("/");
    assert_eq!(
        (answer.status(), answer.reason()),
        (502, Some("upstream_reset"))
    );
    assert_eq!(stub.connections(), 1);
}
