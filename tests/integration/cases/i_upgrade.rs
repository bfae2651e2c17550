//! I. Upgrade, WebSocket, CONNECT.

use std::time::Duration;

use super::{refused, with_ok};
use crate::harness::{Client, Config, H2Client, Peer, Proxy, Stopwatch, Stub, block_on, pause_ms};

const ASK: &str = "GET /chat HTTP/1.1\r\nHost: svc\r\nConnection: Upgrade, X-Foo\r\n\
    Upgrade: websocket\r\nX-Foo: 1\r\nSec-WebSocket-Key: k\r\nSec-WebSocket-Version: 13\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Accept: a\r\n\r\n";

/// An instance that switches and then runs `talk`.
fn switching(talk: impl Fn(&mut Peer) + Send + Sync + 'static) -> Stub {
    Stub::script(move |peer| {
        let request = peer.request().unwrap();
        if request.header("upgrade").is_some() {
            peer.send(SWITCH);
            talk(peer);
        } else {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    })
}

/// A client with an open tunnel.
pub(super) fn tunnel(proxy: &Proxy) -> Client {
    let mut client = Client::connect(proxy.address);
    client.send(ASK);
    let head = client.head();
    assert_eq!(head.status(), 101, "{head:?}");
    client
}

/// Sends back what comes, until the other side ends.
pub(super) fn echo(peer: &mut Peer) {
    loop {
        let bytes = std::mem::take(&mut peer.wire.buffer);
        peer.send(bytes);
        if !peer.wire.fill() {
            return;
        }
    }
}

#[test]
fn px_055_websocket_round_trip() {
    let stub = Stub::script(|peer| {
        peer.request();
        peer.send(format!("{SWITCH}early"));
        echo(peer);
    });
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    client.send(format!("{ASK}hello"));
    let head = client.head();
    assert_eq!(
        (head.status(), head.header("sec-websocket-accept")),
        (101, Some("a"))
    );
    assert_eq!(head.header("upgrade"), Some("websocket"));
    assert_eq!(client.exactly(10), b"earlyhello");
    let blob: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let half = blob.len() / 2;
    for part in [&blob[..half], &blob[half..]] {
        client.send(part);
        assert_eq!(client.exactly(part.len()), part);
    }
    let seen = stub.request();
    assert!(!seen.headers.has("x-foo"));
    assert_eq!(seen.header("upgrade"), Some("websocket"));
    assert_eq!(
        seen.header("connection")
            .map(str::to_ascii_lowercase)
            .as_deref(),
        Some("upgrade")
    );
    drop(client);
    assert_eq!(proxy.access_line(0)["http.response.status_code"], 101);
}

#[test]
fn px_056_no_tunnel_before_101() {
    let stub = Stub::ok();
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    client.send(format!("{ASK}GET /evil HTTP/1.1\r\nHost: unknown\r\n\r\n"));
    assert_eq!(client.response().status(), 200);
    if client.wire.fill() {
        assert_eq!(client.response().status(), 404);
    }
    assert_eq!(stub.request().target(), "/chat");
}

#[test]
fn px_057_half_close() {
    const MIB: usize = 1 << 20;
    let stub = switching(|peer| {
        if !peer.wire.fill() {
            // The app ended first: all of ours still gets there.
            peer.send(vec![b'u'; MIB]);
            return;
        }
        // We end first; the app's bytes still come.
        peer.finish_writing();
        let mut read = peer.wire.buffer.len();
        while peer.wire.fill() {
            read = peer.wire.buffer.len();
        }
        peer.note(format!("read {read}"));
    });
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = tunnel(&proxy);
    client.finish_writing();
    assert_eq!(client.exactly(MIB), vec![b'u'; MIB]);
    assert!(client.closed());
    proxy.access_line(0);

    let mut client = tunnel(&proxy);
    client.send("go");
    assert!(client.closed_within(Duration::from_secs(5)));
    client.send(vec![b'c'; MIB]);
    client.finish_writing();
    stub.wait_for_note(&format!("read {}", MIB + 2));
    proxy.access_line(1);
}

#[test]
fn px_058_idle_tunnel_and_request_timeouts() {
    let stub = switching(echo);
    let proxy = Config::svc_with(&[stub.address], "timeout: {request: 300ms}").start();
    let mut client = tunnel(&proxy);
    pause_ms(1_500);
    client.send("still here");
    assert_eq!(client.exactly(10), b"still here");

    let stub = Stub::script(|peer| {
        peer.request();
        peer.closed();
    });
    let keys = "timeout: {request: 1s}\nretry: {max_attempts: 1}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let mut client = Client::connect(proxy.address);
    let watch = Stopwatch::start();
    client.send(ASK);
    let answer = client.response();
    assert_eq!(
        (answer.status(), answer.reason()),
        (504, Some("request_timeout"))
    );
    assert!((950..10_000).contains(&watch.ms()), "{} ms", watch.ms());

    // An explicit idle limit ends a silent tunnel.
    let stub = switching(echo);
    let proxy = Config::svc_with(&[stub.address], "timeout: {idle: 300ms}").start();
    let mut client = tunnel(&proxy);
    assert!(client.closed());
    assert_eq!(proxy.access_line(0)["outrigger.reason"], "upstream_idle");
}

#[test]
fn px_059_connect() {
    let (stub, proxy) = with_ok();
    refused(
        &proxy,
        &stub,
        "CONNECT svc:80 HTTP/1.1\r\nHost: svc:80\r\n\r\n",
        405,
    );
    proxy.logged("connect");
    let h2 = H2Client::connect(proxy.address);
    let request = http::Request::connect("svc:80").body(()).unwrap();
    let answer = block_on(async {
        let mut send = h2.send.clone().ready().await.unwrap();
        let (response, _stream) = send.send_request(request, false).unwrap();
        response.await
    });
    let answer = answer.unwrap();
    assert_eq!(answer.status(), 405);
    assert_eq!(answer.headers()["x-outrigger-reason"], "connect");
    assert!(stub.requests().is_empty());
}
