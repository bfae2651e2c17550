//! L. HTTP/2 protocol and abuse.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use http::Response;

use super::with_ok;
use crate::harness::{
    Client, Config, H2Client, H2Stub, RawH2, Stopwatch, Stub, block_on, eventually, kind, request,
    run, tool,
};

/// The failed cases of an h2spec report, each as SPEC/NUMBER, and how many there were.
fn h2spec_report(report: &str) -> (Vec<String>, usize) {
    let (mut failed, mut all) = (Vec::new(), 0);
    for suite in report.split("<testsuite ").skip(1) {
        let package = suite.split("package=\"").nth(1).unwrap();
        let package = package.split('"').next().unwrap();
        for (index, case) in suite.split("<testcase ").skip(1).enumerate() {
            all += 1;
            if case.contains("<failure") || case.contains("<error") {
                failed.push(format!("{package}/{}", index + 1));
            }
        }
    }
    (failed, all)
}

#[test]
fn px_074_h2spec() {
    let Some(h2spec) = tool("h2spec") else { return };
    // It reads the whole body before it answers: an early answer ends a stream that some cases go on
    // to misuse, and what they look for can no more be told from a late frame then.
    let body = "x".repeat(1024);
    let stub = Stub::answering(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 1024\r\n\r\n{body}"
    ));
    let proxy = Config::svc(&[stub.address]).start();
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.xml");
    let (_, said) = run(Command::new(h2spec)
        .args(["--strict", "--host", "127.0.0.1", "--path", "/svc/"])
        .arg("--port")
        .arg(proxy.address.port().to_string())
        .arg("--junit-report")
        .arg(&report));
    let report = std::fs::read_to_string(&report).unwrap_or_else(|e| panic!("{e}: {said}"));
    let (mut failed, all) = h2spec_report(&report);
    // What is no preface is HTTP/1.1 to this port, and gets its 400 instead of a GOAWAY.
    failed.retain(|case| case != "http2/3.5/2");
    assert!(failed.is_empty(), "{failed:?}: {said}");
    assert!(all >= 146, "only {all} cases: {said}");
    assert!(!stub.requests().is_empty());
}

#[test]
fn px_075_rapid_reset() {
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (Arc::clone(&running), Arc::clone(&most));
    let stub = Stub::script(move |peer| {
        peak.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
        peer.request();
        peer.closed();
        now.fetch_sub(1, SeqCst);
    });
    let proxy = Config::svc(&[stub.address]).start();
    let baseline = proxy.rss_kib();
    let mut raw = RawH2::connect(proxy.address);
    let mut stream = 1;
    for _ in 0..20_000 {
        raw.request(stream, true, "GET", &[]);
        if !raw.rst(stream, 8) {
            break;
        }
        stream += 2;
    }
    raw.next_of(kind::GOAWAY);
    assert!(
        raw.wire.closed_within(Duration::from_secs(5)),
        "20 000 resets and still open"
    );
    assert!(most.load(SeqCst) <= 256, "{}", most.load(SeqCst));
    assert!(proxy.rss_kib() < baseline + 32 * 1024);
    eventually("all are gone", || running.load(SeqCst) == 0);
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: unknown\r\n\r\n");
    assert_eq!(client.response().status(), 404);
}

#[test]
fn px_076_continuation_flood_and_header_bomb() {
    let (_stub, proxy) = with_ok();
    let baseline = proxy.rss_kib();
    let mut raw = RawH2::connect(proxy.address);
    raw.send(kind::HEADERS, 0, 1, &[]);
    let mut open = true;
    for _ in 0..100_000 {
        open = raw.send(kind::CONTINUATION, 0, 1, &[]);
        if !open {
            break;
        }
    }
    assert!(
        !open || raw.wire.closed_within(Duration::from_secs(5)),
        "flood without an end"
    );

    // 4 KiB into the dynamic table, then 16 000 references to it.
    let mut raw = RawH2::connect(proxy.address);
    let mut block = crate::harness::literals(&[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "svc"),
    ]);
    block.push(0x40);
    block.extend_from_slice(&[1, b'x', 127, 0x81, 0x1e]);
    block.extend(std::iter::repeat_n(b'a', 127 + 1 + 30 * 128));
    block.extend(std::iter::repeat_n(0x80 | 62, 12_000));
    assert!(block.len() <= 16_384, "{}", block.len());
    raw.send(kind::HEADERS, 5, 1, &block);
    let refused = raw.next();
    let answered =
        refused.is_none_or(|f| matches!(f.kind, kind::HEADERS | kind::RST_STREAM | kind::GOAWAY));
    assert!(answered);
    assert!(
        proxy.rss_kib() < baseline + 32 * 1024,
        "{} KiB",
        proxy.rss_kib() - baseline
    );
    let ticks = proxy.cpu_ticks();
    crate::harness::pause_ms(500);
    assert!(proxy.cpu_ticks() - ticks < 25);
    assert_eq!(H2Client::connect(proxy.address).get().status, 200);
}

#[test]
fn px_077_honest_tiny_data_frames() {
    const MESSAGES: usize = 10_000;
    let stub = H2Stub::start(|mut call| async move {
        let body = call.body().await;
        let response = Response::builder()
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        let mut stream = call.respond.send_response(response, false).unwrap();
        for piece in body.chunks(45) {
            stream
                .send_data(Bytes::copy_from_slice(piece), false)
                .unwrap();
        }
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        stream.send_trailers(trailers).unwrap();
    });
    let proxy = Config::svc(&[stub.address]).start();
    let h2 = H2Client::connect(proxy.address);
    let answer = block_on(async {
        let mut send = h2.send.clone().ready().await.unwrap();
        let head = request(
            "POST",
            &[("content-type", "application/grpc"), ("te", "trailers")],
        );
        let (response, mut stream) = send.send_request(head, false).unwrap();
        let message = [b"\0\0\0\0\x28".as_slice(), &[b'm'; 40]].concat();
        for n in 0..MESSAGES {
            let data = Bytes::copy_from_slice(&message);
            stream.send_data(data, n + 1 == MESSAGES).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        crate::harness::collect(response.await.unwrap())
            .await
            .unwrap()
    });
    assert_eq!(answer.body.len(), MESSAGES * 45, "{answer:?}");
    assert_eq!(answer.grpc_status().as_deref(), Some("0"));

    // Empty frames without an end are no traffic.
    let mut raw = RawH2::connect(proxy.address);
    raw.request(
        1,
        false,
        "POST",
        &[("content-type", "application/grpc"), ("te", "trailers")],
    );
    let watch = Stopwatch::start();
    let mut open = true;
    while open && watch.elapsed() < Duration::from_secs(10) {
        open = raw.send(kind::DATA, 0, 1, &[]);
    }
    assert!(!open, "empty frames for ever");
}

#[test]
fn px_078_upstream_stream_limit() {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let stub = Stub::script(move |peer| {
        let wire = peer.take_wire();
        let Some(mut raw) = RawH2::accept(wire, &[(3, 1)]) else {
            return;
        };
        let mut open = 0;
        while let Some(head) = raw.next_of(kind::HEADERS) {
            open += 1;
            peer.note(format!("stream on connection {} number {open}", peer.index));
            eventually("the gate", || gate.load(SeqCst));
            raw.headers(head.stream, true, &[(":status", "204")]);
        }
    });
    let keys = "protocol: http2\npool: {max_connections_per_instance: 3, max_wait: 200ms}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let address = proxy.address;
    let calls: Vec<_> = (0..3)
        .map(|_| std::thread::spawn(move || Client::connect(address).get("/").status()))
        .collect();
    eventually("three streams", || stub.notes().len() == 3);
    let fourth = Client::connect(address).get("/");
    assert_eq!((fourth.status(), fourth.reason()), (503, Some("overflow")));
    go.store(true, SeqCst);
    for call in calls {
        assert_eq!(call.join().unwrap(), 204);
    }
    assert_eq!(stub.connections(), 3);
}

#[test]
fn px_079_dead_but_open_h2_upstream_connection() {
    let stub = Stub::script(|peer| {
        let wire = peer.take_wire();
        let Some(mut raw) = RawH2::accept(wire, &[]) else {
            return;
        };
        let mut served = 0;
        while let Some(head) = raw.next_of(kind::HEADERS) {
            if peer.index == 0 && served == 1 {
                // It reads and answers no more, not even pings.
                crate::harness::pause_ms(20_000);
                return;
            }
            served += 1;
            raw.headers(head.stream, true, &[(":status", "204")]);
        }
    });
    let keys = "protocol: http2\ntimeout: {request: 1s}\nretry: {max_attempts: 1}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/").status(), 204);
    let answer = client.get("/");
    assert_eq!(
        (answer.status(), answer.reason()),
        (504, Some("request_timeout"))
    );
    // Nothing at all came while it waited: the next one does not try it again.
    assert_eq!(client.get("/").status(), 204);
    assert_eq!(stub.connections(), 2);
}

/// What a stub over HTTP/2 does with each request: its connection, and the number of the request there.
fn h2_script(does: impl Fn(&mut RawH2, usize, u32, usize) + Send + Sync + 'static) -> Stub {
    Stub::script(move |peer| {
        let wire = peer.take_wire();
        let Some(mut raw) = RawH2::accept(wire, &[]) else {
            return;
        };
        let mut requests = 0;
        while let Some(frame) = raw.next() {
            match frame.kind {
                kind::HEADERS => {
                    peer.note("asked");
                    does(&mut raw, peer.index, frame.stream, requests);
                    requests += 1;
                }
                kind::RST_STREAM => peer.note("given up"),
                _ => {}
            }
        }
    })
}

fn no_content(raw: &mut RawH2, stream: u32) {
    raw.headers(stream, true, &[(":status", "204")]);
}

const ONE_SECOND: &str = "protocol: http2\ntimeout: {request: 1s}\nretry: {max_attempts: 1}";

#[test]
fn px_079_a_slow_call_on_a_connection_that_says_something_leaves_it_in_use() {
    let stub = h2_script(|raw, _, stream, nth| match nth {
        1 => assert!(raw.send(kind::PING, 0, 0, &[0; 8])),
        _ => no_content(raw, stream),
    });
    let proxy = Config::svc_with(&[stub.address], ONE_SECOND).start();
    let mut client = Client::connect(proxy.address);
    let statuses = [(); 3].map(|()| client.get("/").status());
    assert_eq!(statuses, [204, 504, 204]);
    assert_eq!(stub.connections(), 1);
}

#[test]
fn px_079_calls_that_the_app_gives_up_find_a_dead_connection_too() {
    let stub = h2_script(|raw, connection, stream, nth| {
        if connection > 0 || nth == 0 {
            no_content(raw, stream);
        }
    });
    let proxy = Config::svc_with(&[stub.address], "protocol: http2")
        .workers(1)
        .start();
    assert_eq!(Client::connect(proxy.address).get("/").status(), 204);
    for given_up in 1..=3 {
        let mut client = Client::connect(proxy.address);
        client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
        eventually("the call", || stub.notes().len() == 2 * given_up);
        drop(client);
        eventually("its end", || stub.notes().len() == 2 * given_up + 1);
    }
    assert_eq!(Client::connect(proxy.address).get("/").status(), 204);
    assert_eq!(stub.connections(), 2);
}

#[test]
fn px_079_a_silent_connection_is_used_where_no_other_can_be_had() {
    let stub = h2_script(|raw, _, stream, nth| match nth {
        0 => assert!(raw.headers(stream, false, &[(":status", "200")])),
        1 => {}
        _ => no_content(raw, stream),
    });
    let keys = format!("{ONE_SECOND}\npool: {{max_connections_per_instance: 1, max_wait: 100ms}}");
    let proxy = Config::svc_with(&[stub.address], &keys).workers(1).start();
    let mut watching = Client::connect(proxy.address);
    watching.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    assert_eq!(watching.head().status(), 200);
    let mut client = Client::connect(proxy.address);
    let statuses = [(); 3].map(|()| client.get("/").status());
    assert_eq!(statuses, [504, 204, 204]);
    assert_eq!(stub.connections(), 1);
}

#[test]
fn px_079_connection_that_never_says_a_word() {
    let stub = Stub::script(|peer| {
        if peer.index == 0 {
            peer.closed();
            return;
        }
        let wire = peer.take_wire();
        let Some(mut raw) = RawH2::accept(wire, &[]) else {
            return;
        };
        while let Some(head) = raw.next_of(kind::HEADERS) {
            no_content(&mut raw, head.stream);
        }
    });
    let proxy = Config::svc_with(&[stub.address], ONE_SECOND).start();
    let mut client = Client::connect(proxy.address);
    let statuses = [(); 2].map(|()| client.get("/").status());
    assert_eq!(statuses, [504, 204]);
    assert_eq!(stub.connections(), 2);
    eventually("the end of the first", || stub.open() == 1);
}
