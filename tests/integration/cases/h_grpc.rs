//! H. Trailers and gRPC.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};

use super::CHUNKED;
use crate::harness::{
    Call, Client, Config, H2Client, H2Stub, RawH2, Stopwatch, Stub, closed_port, eventually, flag,
    kind, pause_ms,
};

fn head(content_type: &str) -> Response<()> {
    Response::builder()
        .header("content-type", content_type)
        .body(())
        .unwrap()
}

fn trailers(status: &'static str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(status));
    trailers.insert("x-custom", HeaderValue::from_static("v"));
    trailers
}

async fn echo(mut call: Call) {
    let body = call.body().await;
    let te = call.header("te").unwrap_or_default();
    let mut response = head("application/grpc");
    response.headers_mut().insert("x-te", te.parse().unwrap());
    let mut stream = call.respond.send_response(response, false).unwrap();
    stream.send_data(Bytes::from(body), false).unwrap();
    stream.send_trailers(trailers("0")).unwrap();
}

#[test]
fn px_049_unary_grpc() {
    let stub = H2Stub::start(echo);
    let proxy = Config::svc(&[stub.address]).start();
    let h2 = H2Client::connect(proxy.address);
    for _ in 0..3 {
        let answer = h2.grpc(&[]).unwrap();
        assert_eq!(
            (answer.status, answer.header("x-te")),
            (200, Some("trailers"))
        );
        assert_eq!(answer.body, b"\0\0\0\0\x01x");
        assert_eq!(answer.trailer("grpc-status").as_deref(), Some("0"));
        assert_eq!(answer.trailer("x-custom").as_deref(), Some("v"));
    }
    assert_eq!((stub.connections(), stub.calls()), (1, 3));
    // END_STREAM is on the trailers: no empty DATA frame follows them.
    let mut raw = RawH2::connect(proxy.address);
    let fields = [("content-type", "application/grpc"), ("te", "trailers")];
    raw.request(1, false, "POST", &fields);
    raw.send(kind::DATA, flag::END_STREAM, 1, b"\0\0\0\0\x01x");
    let mut kinds = Vec::new();
    loop {
        let frame = raw.next().unwrap();
        kinds.push(frame.kind);
        if frame.ends() {
            break;
        }
    }
    assert_eq!(kinds, [kind::HEADERS, kind::DATA, kind::HEADERS]);
}

#[test]
fn px_050_h1_response_trailers() {
    let stub = Stub::answering(format!(
        "HTTP/1.1 200 OK\r\nTrailer: X-T\r\n{CHUNKED}\r\n\r\n2\r\nok\r\n0\r\nX-T: v\r\n\r\n"
    ));
    let proxy = Config::svc(&[stub.address]).workers(1).start();
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: svc\r\nTE: trailers\r\n\r\n");
    let answer = client.response();
    assert!(answer.complete, "{answer:?}");
    assert_eq!(answer.trailers.all("x-t"), ["v"]);
    let answer = client.get("/");
    assert!(
        answer.complete && answer.trailers.0.is_empty(),
        "{answer:?}"
    );
    assert_eq!(
        H2Client::connect(proxy.address)
            .get()
            .trailer("x-t")
            .as_deref(),
        Some("v")
    );
    assert_eq!(stub.connections(), 1);
}

#[test]
fn px_051_trailers_only_and_reset_without_error() {
    let stub = Stub::script(|peer| {
        let wire = peer.take_wire();
        let Some(mut raw) = RawH2::accept(wire, &[]) else {
            return;
        };
        let request = raw.next_of(kind::HEADERS).unwrap();
        let fields = [
            (":status", "200"),
            ("content-type", "application/grpc"),
            ("grpc-status", "5"),
        ];
        raw.headers(request.stream, true, &fields);
        raw.rst(request.stream, 0);
        while raw.next().is_some() {}
    });
    let proxy = Config::svc(&[stub.address]).start();
    let mut raw = RawH2::connect(proxy.address);
    raw.request(
        1,
        false,
        "POST",
        &[("content-type", "application/grpc"), ("te", "trailers")],
    );
    raw.send(kind::DATA, 0, 1, b"\0\0\0\0\x01x");
    let frame = raw.next().unwrap();
    assert_eq!((frame.kind, frame.ends()), (kind::HEADERS, true));
    raw.wire
        .stream
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    while let Some(frame) = raw.next() {
        assert_eq!(
            (frame.kind, frame.code()),
            (kind::RST_STREAM, 0),
            "{frame:?}"
        );
    }
    let line = proxy.access_line(0);
    assert_eq!(line["rpc.grpc.status_code"], 5, "{line}");
}

#[test]
fn px_052_our_own_failure_of_a_grpc_call() {
    let (_kept, closed) = closed_port();
    let silent = Stub::script(|peer| {
        peer.closed();
    });
    let proxy = Config::svc(&[])
        .service("closed", &[closed], "")
        .service("silent", &[silent.address], "timeout: {request: 300ms}")
        .start();
    let h2 = H2Client::connect(proxy.address);
    for (service, status, reason) in [
        ("svc", "14", "no_instances"),
        ("closed", "14", "connect_failed"),
        ("silent", "4", "request_timeout"),
        ("unknown", "12", "no_route"),
    ] {
        let answer = h2.grpc(&[("x-outrigger-upstream", service)]).unwrap();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("application/grpc"));
        assert_eq!(
            (answer.header("grpc-status"), answer.reason()),
            (Some(status), Some(reason))
        );
        assert!(answer.body.is_empty() && answer.header("grpc-message").is_some());
        proxy.logged(reason);
    }
}

#[test]
fn px_053_upstream_lost_in_a_server_stream() {
    let stub = Stub::script(|peer| {
        let wire = peer.take_wire();
        let Some(mut raw) = RawH2::accept(wire, &[]) else {
            return;
        };
        let request = raw.next_of(kind::HEADERS).unwrap();
        raw.headers(
            request.stream,
            false,
            &[(":status", "200"), ("content-type", "application/grpc")],
        );
        for _ in 0..3 {
            raw.send(kind::DATA, 0, request.stream, b"\0\0\0\0\x01x");
        }
        // The connection dies once they are through.
        pause_ms(50);
    });
    let proxy = Config::svc(&[stub.address]).start();
    let answer = H2Client::connect(proxy.address).grpc(&[]).unwrap();
    assert_eq!(answer.body, b"\0\0\0\0\x01x".repeat(3));
    match &answer.end {
        Ok(_) => assert_eq!(answer.grpc_status().as_deref(), Some("14")),
        Err(error) => assert_ne!(error.reason(), Some(h2::Reason::NO_ERROR), "{error:?}"),
    }
    assert_eq!(proxy.access_line(0)["outrigger.reason"], "upstream_reset");
}

#[test]
fn px_054_grpc_timeout_covers_all_attempts() {
    let stubs: Vec<H2Stub> = (0..3)
        .map(|_| {
            H2Stub::start(|mut call| async move {
                let left = call.header("grpc-timeout").unwrap();
                tokio::time::sleep(Duration::from_millis(800)).await;
                let mut response = head("application/grpc");
                response
                    .headers_mut()
                    .insert("grpc-status", HeaderValue::from_static("14"));
                response
                    .headers_mut()
                    .insert("x-left", left.parse().unwrap());
                let _gone = call.respond.send_response(response, true);
            })
        })
        .collect();
    let addresses: Vec<_> = stubs.iter().map(|s| s.address).collect();
    let keys = "retry: {max_attempts: 3, methods: [grpc], retry_on: [grpc_unavailable]}";
    let proxy = Config::svc_with(&addresses, keys).start();
    let h2 = H2Client::connect(proxy.address);
    // Three tries would take 2.4 s and end with their own status.
    let answer = h2.grpc(&[("grpc-timeout", "2S")]).unwrap();
    assert_eq!(
        (answer.header("grpc-status"), answer.reason()),
        (Some("4"), Some("request_timeout"))
    );
    eventually("three attempts", || {
        stubs.iter().map(H2Stub::calls).sum::<usize>() == 3
    });
    // Each try carries what is left.
    let watch = Stopwatch::start();
    let answer = h2.grpc(&[("grpc-timeout", "10S")]).unwrap();
    let took = u64::try_from(watch.ms()).unwrap();
    let left = answer.header("x-left").unwrap();
    let ms: u64 = left.strip_suffix('m').unwrap().parse().unwrap();
    assert!(ms <= 8_400, "third try after 1.6 s: {left}");
    assert!(ms + took >= 10_000, "{left} after {took} ms");
}

/// A gateway in front of the instance answers with a page.
#[test]
fn a_call_that_is_answered_with_plain_http_gets_the_code_of_its_status() {
    for (status, code) in [(503, "14"), (404, "12"), (200, "13"), (418, "2")] {
        let stub = H2Stub::start(move |mut call| async move {
            let mut response = head("text/html");
            *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
            let mut body = call.respond.send_response(response, false).unwrap();
            let _gone = body.send_data("<html>".into(), true);
        });
        let keys = "protocol: grpc\nretry: {max_attempts: 1}";
        let proxy = Config::svc_with(&[stub.address], keys).start();
        let answer = H2Client::connect(proxy.address).grpc(&[]).unwrap();
        assert_eq!(answer.status, status);
        assert_eq!(answer.trailer("grpc-status").as_deref(), Some(code));
    }
}
