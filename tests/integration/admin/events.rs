//! The journal as a stream.

use serde_json::Value;

use super::{cli, write};
use crate::harness::{Client, Config, Proxy, Stub, latin1};

/// An open stream; what came so far is in its buffer.
fn stream(proxy: &Proxy, query: &str, more: &str) -> Client {
    let mut client = Client::connect(proxy.listener("admin"));
    client.send(format!(
        "GET /api/v1/events/stream{query} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n"
    ));
    let head = client.head();
    assert_eq!(head.status(), 200);
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    client
}

/// Reads on until `text` was sent; everything so far.
#[track_caller]
fn until(client: &mut Client, text: &str) -> String {
    loop {
        let seen = latin1(&client.wire.buffer);
        if seen.contains(text) {
            return seen;
        }
        assert!(
            client.wire.fill(),
            "the stream ended without {text}: {seen}"
        );
    }
}

fn eject(proxy: &Proxy, at: &str) {
    let line = format!("POST /api/v1/upstreams/svc/instances/{at}:eject");
    let (code, body) = write(proxy, &line, r#"{"ttl": "10m"}"#);
    assert_eq!(code, 200, "{body}");
}

#[test]
fn a_stream_tells_an_ejection_and_resumes_after_it() {
    let stubs = [Stub::ok(), Stub::ok()];
    let proxy = Config::svc(&[stubs[0].address, stubs[1].address]).start();
    let mut all = stream(&proxy, "", "");
    let mut some = stream(&proxy, "?type=override_set&upstream=svc", "");
    until(&mut all, "retry: ");
    until(&mut some, "retry: ");
    let at = stubs[0].address.to_string();
    eject(&proxy, &at);
    let seen = until(&mut all, "event: override_set");
    let event = seen
        .split("event: instance_ejected\ndata: ")
        .nth(1)
        .unwrap();
    let event: Value = serde_json::from_str(event.lines().next().unwrap()).unwrap();
    assert_eq!(event["instance"], at);
    assert!(
        !seen.contains("event: listening"),
        "only what is new: {seen}"
    );
    let id = event["id"].as_str().unwrap();
    assert!(
        seen.contains(&format!("id: {id}\nevent: instance_ejected")),
        "{seen}"
    );
    let filtered = until(&mut some, "event: override_set");
    assert!(!filtered.contains("instance_ejected\n"), "{filtered}");
    let mut resumed = stream(&proxy, "", &format!("Last-Event-ID: {id}\r\n"));
    let seen = until(&mut resumed, "event: override_set");
    assert!(!seen.contains("event: instance_ejected"), "{seen}");
    let mut anew = stream(&proxy, "", "Last-Event-ID: ffffff\r\n");
    let seen = until(&mut anew, "event: override_set");
    assert!(
        seen.contains("event: gap\ndata: {\"restarted\":true}"),
        "{seen}"
    );
    assert!(seen.contains("event: listening"), "{seen}");
    let mut kept = stream(&proxy, "?since=1h", "");
    until(&mut kept, "event: listening");
}

#[test]
fn streams_end_wholly_with_the_process_and_are_bounded() {
    let stub = Stub::ok();
    let mut proxy = Config::svc(&[stub.address]).start();
    let mut open: Vec<Client> = (0..16).map(|_| stream(&proxy, "", "")).collect();
    let (code, body) = super::ask(&proxy, "GET /api/v1/events/stream", "");
    assert_eq!(
        (code, &body["error"]),
        (503, &"too_many_streams".into()),
        "{body}"
    );
    // The others are served as ever.
    assert_eq!(cli(&proxy, &["upstreams"]).0, 0);
    proxy.signal("TERM");
    for client in &mut open {
        let seen = until(client, "\r\n0\r\n\r\n");
        assert!(seen.contains("event: drain_finished"), "{seen}");
    }
    assert!(proxy.ended().success());
}
