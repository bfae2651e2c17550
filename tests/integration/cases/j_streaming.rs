//! J. Streaming, back-pressure, cancellation.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use bytes::Bytes;

use super::CHUNKED;
use crate::harness::{
    Client, Config, H2Client, H2Stub, Stopwatch, Stub, block_on, eventually, pause_ms, request,
};

#[test]
fn px_060_request_streams() {
    let stub = Stub::script(|peer| {
        peer.head();
        while peer.wire.buffer.is_empty() && peer.wire.fill() {}
        peer.note("first bytes");
        peer.closed();
    });
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    client.send("POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: 10485760\r\n\r\n");
    let watch = Stopwatch::start();
    client.send(vec![b'x'; 64 * 1024]);
    stub.wait_for_note("first bytes");
    assert!(watch.ms() < 10_000, "{} ms", watch.ms());
}

#[test]
fn px_061_slow_readers_on_either_side() {
    const STREAMS: usize = 20;
    // docs/operations.md, Memory: the most that one slow stream holds.
    const CAP_KIB: u64 = 5 * 256;
    // The instance reads nothing while the apps offer as much as the sockets take.
    let stub = Stub::script(|peer| {
        peer.head();
        peer.note("head");
        pause_ms(3_000);
    });
    let proxy = Config::svc(&[stub.address]).start();
    let baseline = proxy.rss_kib();
    let mut clients: Vec<Client> = (0..STREAMS)
        .map(|_| Client::connect(proxy.address))
        .collect();
    let chunk = vec![b'x'; 1 << 20];
    for client in &mut clients {
        client.send("POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: 1073741824\r\n\r\n");
        client
            .wire
            .stream
            .set_write_timeout(Some(Duration::from_millis(50)))
            .unwrap();
    }
    eventually("all heads", || stub.notes().len() == STREAMS);
    let mut taken = 0;
    for client in &mut clients {
        for _ in 0..64 {
            if !client.wire.write(&chunk) {
                break;
            }
            taken += 1;
        }
    }
    assert!(taken < STREAMS * 64, "nobody was slowed");
    let grown = proxy.rss_kib().saturating_sub(baseline);
    assert!(
        grown < CAP_KIB * u64::try_from(STREAMS).unwrap(),
        "{grown} KiB for {STREAMS} uploads"
    );
    drop(clients);

    // The apps read nothing while the instance offers as much.
    let stub = Stub::script(|peer| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n");
        peer.wire
            .stream
            .set_write_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let chunk = vec![b'x'; 1 << 20];
        let sent = (0..1024).take_while(|_| peer.wire.write(&chunk)).count();
        peer.note(if sent < 1024 { "slowed" } else { "not slowed" });
    });
    let proxy = Config::svc(&[stub.address]).start();
    let baseline = proxy.rss_kib();
    let mut clients: Vec<Client> = (0..STREAMS)
        .map(|_| Client::connect(proxy.address))
        .collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    }
    eventually("all stalled", || stub.notes().len() == STREAMS);
    assert!(stub.notes().iter().all(|n| n == "slowed"));
    let grown = proxy.rss_kib().saturating_sub(baseline);
    assert!(
        grown < CAP_KIB * u64::try_from(STREAMS).unwrap(),
        "{grown} KiB for {STREAMS} downloads"
    );
}

#[test]
fn px_062_early_response_on_a_kept_connection() {
    let stub = Stub::script(|peer| {
        while let Some(head) = peer.head() {
            if head.first.starts_with("GET") {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
                continue;
            }
            peer.send("HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno");
            while peer.wire.fill() {}
            return;
        }
    });
    let proxy = Config::svc(&[stub.address]).workers(1).start();
    let mut client = Client::connect(proxy.address);
    client.send("POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: 1000000\r\n\r\n");
    client.send(vec![b'x'; 100_000]);
    let answer = client.response();
    assert_eq!((answer.status(), answer.text().as_str()), (413, "no"));
    client.send(vec![b'x'; 900_000]);
    drop(client);
    assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    assert_eq!(stub.connections(), 2, "the connection was reused");
}

#[test]
fn px_063_the_app_leaves_while_waiting() {
    let stub = Stub::script(|peer| {
        peer.request();
        let watch = Stopwatch::start();
        let closed = peer.closed();
        peer.note(format!(
            "closed: {closed}, soon: {}",
            watch.elapsed() < Duration::from_secs(5)
        ));
    });
    let proxy = Config::svc(&[stub.address]).start();
    // A bare FIN counts as leaving.
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    stub.wait_for_requests(1);
    client.finish_writing();
    stub.wait_for_note("closed: true, soon: true");
    let line = proxy.access_line(0);
    assert_eq!(line["outrigger.reason"], "client_closed");
    assert_eq!(
        (
            &line["http.response.status_code"],
            &line["outrigger.attempts"]
        ),
        (&499.into(), &1.into())
    );

    // Over h2 the stream alone is cancelled.
    let h2 = H2Client::connect(proxy.address);
    let leave = |h2: &H2Client| {
        block_on(async {
            let mut send = h2.send.clone().ready().await.unwrap();
            let (response, mut stream) = send.send_request(request("GET", &[]), false).unwrap();
            stream.send_data(Bytes::new(), true).unwrap();
            let waited = tokio::time::timeout(Duration::from_millis(200), response).await;
            assert!(waited.is_err());
            stream.send_reset(h2::Reason::CANCEL);
        });
    };
    leave(&h2);
    eventually("the second close", || stub.notes().len() == 2);
    assert_eq!(proxy.access_line(1)["outrigger.reason"], "client_closed");

    let (gone, resets) = std::sync::mpsc::channel();
    let stub = H2Stub::start(move |mut call| {
        let gone = gone.clone();
        async move {
            let reason = std::future::poll_fn(|cx| call.respond.poll_reset(cx)).await;
            gone.send(reason.unwrap()).unwrap();
        }
    });
    let proxy = Config::svc_with(&[stub.address], "protocol: http2").start();
    let h2 = H2Client::connect(proxy.address);
    leave(&h2);
    let reason = resets.recv_timeout(Duration::from_secs(5)).unwrap();
    assert_eq!(reason, h2::Reason::CANCEL);
    assert_eq!(stub.calls(), 1);
}

#[test]
fn px_064_broken_chunk_in_mid_body() {
    let stub = Stub::script(|peer| {
        let request = peer.request().unwrap();
        peer.note(format!("complete: {}", request.complete));
    });
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: svc\r\n{CHUNKED}\r\n\r\n3\r\nabc\r\n"
    ));
    eventually("the upstream connection", || stub.connections() == 1);
    client.send("ZZ\r\n");
    let answer = client.response();
    assert_eq!(
        (answer.status(), answer.reason()),
        (400, Some("bad_request"))
    );
    assert!(answer.says_close() && client.closed());
    stub.wait_for_note("complete: false");
    assert_eq!(proxy.access_line(0)["outrigger.reason"], "bad_request");

    // After the head only a close is left.
    let stub = Stub::script(|peer| {
        peer.head();
        peer.send(format!("HTTP/1.1 200 OK\r\n{CHUNKED}\r\n\r\n2\r\nok\r\n"));
        peer.closed();
    });
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: svc\r\n{CHUNKED}\r\n\r\n3\r\nabc\r\n"
    ));
    assert_eq!(client.head().status(), 200);
    assert_eq!(client.exactly(7), b"2\r\nok\r\n");
    client.send("ZZ\r\n");
    assert!(client.closed());
}

#[test]
fn px_065_server_sent_events() {
    // Each event is sent only when the client has the one before: none may wait for the next.
    let received = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&received);
    let stub = Stub::script(move |peer| {
        peer.request();
        peer.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{CHUNKED}\r\n\r\n"
        ));
        for n in 0..4 {
            eventually("the event before at the client", || seen.load(SeqCst) == n);
            peer.send(format!("14\r\ndata: {n:012}\n\n\r\n"));
        }
        eventually("the last event at the client", || seen.load(SeqCst) == 4);
        peer.send("0\r\n\r\n");
    });
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: svc\r\nAccept-Encoding: gzip\r\n\r\n");
    let head = client.head();
    assert!(!head.headers.has("content-encoding"));
    for n in 0..4 {
        let event = client.exactly(26);
        assert_eq!(event, format!("14\r\ndata: {n:012}\n\n\r\n").as_bytes());
        received.store(n + 1, SeqCst);
    }
    assert_eq!(client.exactly(5), b"0\r\n\r\n");
}
