//! K. Connection reuse and retries.

use std::time::Duration;

use bytes::Bytes;

use crate::harness::{
    Client, Config, H2Client, Message, Proxy, RawH2, Stopwatch, Stub, closed_port, eventually,
    kind, request,
};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const RETRY_ONCE: &str = "retry: {max_attempts: 1}";

/// Its first connection serves one request and closes when the second one comes.
fn stale() -> Stub {
    Stub::script(|peer| {
        while let Some(request) = peer.request() {
            if peer.index == 0 && request.target() != "/first" {
                return;
            }
            peer.note(format!("served {}", request.target()));
            peer.send(OK);
        }
    })
}

fn post(client: &mut Client, path: &str, body: &[u8]) -> Message {
    let length = body.len();
    client.send(format!(
        "POST {path} HTTP/1.1\r\nHost: svc\r\nContent-Length: {length}\r\n\r\n"
    ));
    client.send(body);
    client.response()
}

#[test]
fn px_066_stale_pooled_connection_get() {
    let stub = stale();
    let proxy = Config::svc_with(&[stub.address], RETRY_ONCE).start();
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/first").status(), 200);
    let answer = client.get("/second");
    assert_eq!(answer.status(), 200, "{answer:?}");
    assert_eq!(stub.notes(), ["served /first", "served /second"]);
    // Outside of the attempts: one was made.
    assert_eq!(proxy.access_line(1)["outrigger.attempts"], 1);
}

#[test]
fn px_066_idle_connection_closed_by_the_instance_is_never_used() {
    let stub = Stub::script(|peer| {
        peer.request();
        peer.send(OK);
    });
    let proxy = Config::svc_with(&[stub.address], RETRY_ONCE).start();
    let mut client = Client::connect(proxy.address);
    for _ in 0..50 {
        assert_eq!(post(&mut client, "/", b"x").status(), 200);
        eventually("its close", || stub.open() == 0);
    }
}

#[test]
fn bytes_after_a_response_are_no_answer_to_the_next_request() {
    let stub = Stub::script(|peer| {
        while peer.request().is_some() {
            peer.send(format!(
                "{OK}HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
            ));
        }
    });
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    for _ in 0..20 {
        assert_eq!(client.get("/").text(), "ok");
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let stub = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            let target = request.target().to_owned();
            peer.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{target}",
                target.len()
            ));
        }
    });
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    let all: String = (0..20)
        .map(|n| format!("GET /{n} HTTP/1.1\r\nHost: svc\r\n\r\n"))
        .collect();
    client.send(all);
    for n in 0..20 {
        assert_eq!(client.response().text(), format!("/{n}"));
    }
}

#[test]
fn px_067_stale_pooled_connection_post() {
    let stub = stale();
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/first").status(), 200);
    let answer = post(&mut client, "/second", b"body");
    assert_eq!(
        (answer.status(), answer.reason()),
        (502, Some("upstream_reset"))
    );
    assert_eq!(stub.notes(), ["served /first"]);

    let stub = stale();
    let keys = "retry: {methods: [all]}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/first").status(), 200);
    assert_eq!(post(&mut client, "/second", b"body").status(), 200);
    assert_eq!(stub.requests().pop().unwrap().text(), "body");
}

#[test]
fn px_068_refused_connect_and_a_large_post() {
    let (_kept, closed) = closed_port();
    let stub = Stub::ok();
    let keys = "load_balancer: round_robin";
    let proxy = Config::svc_with(&[closed, stub.address], keys).start();
    let body: Vec<u8> = (0..=255).cycle().take(10 << 20).collect();
    let mut client = Client::connect(proxy.address);
    for n in 0..2 {
        let answer = post(&mut client, "/", &body);
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert!(stub.requests()[n].body == body);
    }
    let attempts: Vec<_> = (0..2)
        .map(|n| proxy.access_line(n)["outrigger.attempts"].clone())
        .collect();
    assert!(attempts.contains(&2.into()), "{attempts:?}");
}

#[test]
fn px_069_retries_0() {
    let stub = Stub::script(|peer| {
        peer.request();
        peer.reset();
    });
    let proxy = Config::svc_with(&[stub.address], RETRY_ONCE).start();
    let answer = Client::connect(proxy.address).get("/");
    assert_eq!(
        (answer.status(), answer.reason()),
        (502, Some("upstream_reset"))
    );
    assert_eq!(stub.connections(), 1);
    assert_eq!(proxy.access_line(0)["outrigger.attempts"], 1);
}

#[test]
fn px_070_body_outgrew_the_buffer() {
    let stubs: Vec<Stub> = (0..2)
        .map(|_| {
            Stub::script(|peer| {
                peer.head();
                while peer.wire.buffer.len() < 5 << 20 && peer.wire.fill() {}
                peer.reset();
            })
        })
        .collect();
    let keys = "retry: {methods: [all]}";
    let proxy = Config::svc_with(&[stubs[0].address, stubs[1].address], keys).start();
    let answer = post(
        &mut Client::connect(proxy.address),
        "/",
        &vec![b'x'; 10 << 20],
    );
    assert_eq!(
        (answer.status(), answer.reason()),
        (502, Some("upstream_reset"))
    );
    assert_eq!(stubs[0].connections() + stubs[1].connections(), 1);
}

#[test]
fn px_070_body_within_the_buffer_is_sent_again() {
    let script = |peer: &mut crate::harness::Peer| {
        let Some(request) = peer.request() else {
            return;
        };
        peer.note(request.text());
        peer.reset();
    };
    let (one, two) = (Stub::script(script), Stub::script(script));
    let keys = "retry: {methods: [all]}";
    let proxy = Config::svc_with(&[one.address, two.address], keys).start();
    let answer = post(&mut Client::connect(proxy.address), "/", b"whole body");
    assert_eq!(answer.status(), 502);
    assert_eq!([one.notes(), two.notes()], [["whole body"], ["whole body"]]);
}

/// An HTTP/2 instance frame by frame.
fn h2_stub(serve: impl Fn(&mut RawH2, usize) + Send + Sync + 'static) -> Stub {
    Stub::script(move |peer| {
        let wire = peer.take_wire();
        if let Some(mut raw) = RawH2::accept(wire, &[]) {
            serve(&mut raw, peer.index);
        }
    })
}

fn over_h2(stub: &Stub) -> Proxy {
    Config::svc_with(&[stub.address], "protocol: http2").start()
}

fn answer(raw: &mut RawH2, stream: u32) {
    raw.headers(stream, false, &[(":status", "200")]);
    raw.send(kind::DATA, 1, stream, b"ok");
}

#[test]
fn px_071_graceful_goaway_with_an_open_stream() {
    let stub = h2_stub(|raw, index| {
        let Some(first) = raw.next_of(kind::HEADERS) else {
            return;
        };
        raw.headers(first.stream, false, &[(":status", "200")]);
        if index == 0 {
            raw.send(kind::DATA, 0, first.stream, b"o");
            raw.goaway(first.stream, 0);
            crate::harness::pause_ms(300);
            raw.send(kind::DATA, 1, first.stream, b"k");
        } else {
            raw.send(kind::DATA, 1, first.stream, b"ok");
        }
        while raw.next().is_some() {}
    });
    let proxy = over_h2(&stub);
    let address = proxy.address;
    let running = std::thread::spawn(move || Client::connect(address).get("/"));
    eventually("the first connection", || stub.connections() == 1);
    crate::harness::pause_ms(100);
    let next = Client::connect(proxy.address).get("/");
    assert_eq!(
        (next.status(), next.text().as_str()),
        (200, "ok"),
        "{next:?}"
    );
    let first = running.join().unwrap();
    assert_eq!(
        (first.status(), first.text().as_str(), first.complete),
        (200, "ok", true)
    );
    assert_eq!(stub.connections(), 2);
}

#[test]
fn px_071_request_above_the_last_stream_of_a_goaway_is_repeated() {
    repeated_after_goaway(0);
    // ENHANCE_YOUR_CALM, as servers of gRPC say that were pinged too often.
    repeated_after_goaway(11);
}

fn repeated_after_goaway(code: u32) {
    let stub = h2_stub(move |raw, index| {
        let Some(first) = raw.next_of(kind::HEADERS) else {
            return;
        };
        answer(raw, first.stream);
        let Some(second) = raw.next_of(kind::HEADERS) else {
            return;
        };
        if index == 0 {
            // It did not process the second one.
            raw.goaway(first.stream, code);
            while raw.next().is_some() {}
            return;
        }
        answer(raw, second.stream);
    });
    let proxy = over_h2(&stub);
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/").status(), 200);
    let answer = post(&mut client, "/", b"body");
    assert_eq!(answer.status(), 200, "{answer:?}");
    assert_eq!(proxy.access_line(1)["outrigger.attempts"], 1);
    assert_eq!(stub.connections(), 2);
}

#[test]
fn px_072_refused_stream() {
    let stub = h2_stub(|raw, index| {
        while let Some(head) = raw.next_of(kind::HEADERS) {
            if index == 0 {
                raw.rst(head.stream, 7);
            } else {
                answer(raw, head.stream);
            }
        }
    });
    let proxy = over_h2(&stub);
    let answer = post(&mut Client::connect(proxy.address), "/", b"body");
    assert_eq!(
        (answer.status(), answer.text().as_str()),
        (200, "ok"),
        "{answer:?}"
    );
    assert_eq!(proxy.access_line(0)["outrigger.attempts"], 1);
    assert_eq!(stub.connections(), 2);
}

#[test]
fn px_072_refused_after_more_than_is_kept_of_the_body() {
    let stub = h2_stub(|raw, index| {
        let Some(head) = raw.next_of(kind::HEADERS) else {
            return;
        };
        if index > 0 {
            answer(raw, head.stream);
            while raw.next().is_some() {}
            return;
        }
        let mut read = 0;
        while read < 128 << 10 {
            let Some(data) = raw.next_of(kind::DATA) else {
                return;
            };
            read += data.payload.len();
            let n = u32::try_from(data.payload.len()).unwrap().to_be_bytes();
            raw.send(kind::WINDOW_UPDATE, 0, 0, &n);
            raw.send(kind::WINDOW_UPDATE, 0, head.stream, &n);
        }
        raw.rst(head.stream, 7);
        while raw.next().is_some() {}
    });
    let proxy = over_h2(&stub);
    let answer = post(
        &mut Client::connect(proxy.address),
        "/",
        &vec![b'x'; 1 << 20],
    );
    assert_eq!(
        (answer.status(), answer.reason()),
        (502, Some("upstream_reset")),
        "{answer:?}"
    );
    assert_eq!(
        stub.connections(),
        1,
        "a second instance never gets a part of a body"
    );
}

#[test]
fn px_073_retry_budget_and_total_time() {
    const REQUESTS: usize = 300;
    const BUSY: &str = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n";
    let stubs: Vec<Stub> = (0..3).map(|_| Stub::answering(BUSY)).collect();
    let addresses: Vec<_> = stubs.iter().map(|s| s.address).collect();
    let keys = "retry: {max_attempts: 3, budget: {percent: 20, min_per_second: 10}}\n\
        timeout: {request: 2s}";
    let proxy = Config::svc_with(&addresses, keys).start();
    let watch = Stopwatch::start();
    let mut client = Client::connect(proxy.address);
    for _ in 0..REQUESTS {
        let one = Stopwatch::start();
        assert_eq!(client.get("/").status(), 503);
        assert!(one.elapsed() < Duration::from_secs(5));
    }
    let attempts: usize = stubs.iter().map(|s| s.requests().len()).sum();
    let seconds = usize::try_from(watch.elapsed().as_secs()).unwrap() + 2;
    let most = REQUESTS + REQUESTS / 5 + 10 * seconds;
    assert!(
        attempts > REQUESTS && attempts <= most,
        "{attempts} of at most {most}"
    );
}

#[test]
fn h2_stream_reset_without_error_is_no_whole_body() {
    // Towards the app.
    let stub = h2_stub(|raw, _| {
        while let Some(head) = raw.next_of(kind::HEADERS) {
            raw.headers(head.stream, false, &[(":status", "200")]);
            raw.send(kind::DATA, 0, head.stream, b"half");
            // The head and the half go out before the end is seen.
            crate::harness::pause_ms(100);
            raw.rst(head.stream, 0);
        }
    });
    let proxy = over_h2(&stub);
    let answer = Client::connect(proxy.address).get("/");
    assert_eq!((answer.text().as_str(), answer.complete), ("half", false));

    // Towards the instance.
    let stub = Stub::script(|peer| {
        let request = peer.request().unwrap();
        peer.note(format!("complete: {}", request.complete));
    });
    let proxy = Config::svc(&[stub.address]).start();
    let h2 = H2Client::connect(proxy.address);
    crate::harness::block_on(async {
        let mut send = h2.send.clone().ready().await.unwrap();
        let (_response, mut stream) = send.send_request(request("POST", &[]), false).unwrap();
        stream
            .send_data(Bytes::from_static(b"half"), false)
            .unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.send_reset(h2::Reason::NO_ERROR);
        tokio::time::sleep(Duration::from_millis(100)).await;
    });
    stub.wait_for_note("complete: false");
}
