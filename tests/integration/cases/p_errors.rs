//! P. Error surface, logs, local security.

use serde_json::Value;

use super::with_ok;
use crate::harness::{
    Client, Config, H2Client, Proxy, Stub, closed_port, eventually, latin1, request,
};

/// The answer for `service`, over h1 and h2, is ours with this token, and so is the log line.
#[track_caller]
fn ours(proxy: &Proxy, service: &str, status: u16, reason: &str) {
    let lines = proxy.access().len();
    let mut client = Client::connect(proxy.address);
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: svc\r\nX-Outrigger-Upstream: {service}\r\n\r\n"
    ));
    let answer = client.response();
    assert_eq!(
        (answer.status(), answer.reason()),
        (status, Some(reason)),
        "{service}"
    );
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["reason"], reason);
    assert!(body["message"].as_str().unwrap().len() > 10, "{body}");
    assert_eq!(body["request_id"].as_str(), answer.header("x-request-id"));
    let request = request("GET", &[("x-outrigger-upstream", service)]);
    let answer = H2Client::connect(proxy.address)
        .call(request, None)
        .unwrap();
    assert_eq!(
        (answer.status, answer.reason()),
        (status, Some(reason)),
        "{service} over h2"
    );
    for n in 0..2 {
        let line = proxy.access_line(lines + n);
        assert_eq!(line["outrigger.reason"], reason, "{line}");
        assert_eq!(line["http.response.status_code"], status, "{line}");
    }
}

#[test]
fn px_094_theirs() {
    for status in [502, 503, 504] {
        let stub = Stub::answering(format!(
            "HTTP/1.1 {status} Theirs\r\nX-Outrigger-Reason: upstream_reset\r\nX-Outrigger-Foo: 1\r\n\
             Content-Length: 2\r\n\r\nno"
        ));
        let proxy = Config::svc(&[stub.address]).start();
        let answer = Client::connect(proxy.address).get("/");
        assert_eq!((answer.status(), answer.text().as_str()), (status, "no"));
        assert!(answer.reason().is_none() && !answer.headers.has("x-outrigger-foo"));
        let answer = H2Client::connect(proxy.address).get();
        assert_eq!((answer.status, answer.reason()), (status, None));
        assert!(proxy.access_line(0)["outrigger.reason"].is_null());
    }
}

#[test]
fn px_094_ours() {
    let (_kept, closed) = closed_port();
    let resetting = Stub::script(|peer| {
        peer.request();
        peer.reset();
    });
    let ending = Stub::script(|peer| {
        peer.request();
        peer.send("HTTP/1.1 200 OK\r\nContent-");
    });
    let silent = Stub::script(|peer| {
        peer.request();
        peer.closed();
    });
    let babbling = Stub::script(|peer| {
        peer.request();
        peer.send("SSH-2.0-OpenSSH_9.6\r\n\r\n");
        peer.closed();
    });
    let once = "retry: {max_attempts: 1}";
    let proxy = Config::default()
        .service("none", &[], "")
        .service("closed", &[closed], once)
        .service("resetting", &[resetting.address], once)
        .service("ending", &[ending.address], once)
        .service("babbling", &[babbling.address], once)
        .service("slow", &[silent.address], "timeout: {request: 200ms}")
        .service(
            "slow-try",
            &[silent.address],
            &format!("{once}\ntimeout: {{attempt: 200ms}}"),
        )
        .start();
    ours(&proxy, "unknown", 404, "no_route");
    ours(&proxy, "none", 503, "no_instances");
    ours(&proxy, "closed", 502, "connect_failed");
    ours(&proxy, "resetting", 502, "upstream_reset");
    ours(&proxy, "ending", 502, "upstream_reset");
    ours(&proxy, "babbling", 502, "upstream_protocol");
    ours(&proxy, "slow", 504, "request_timeout");
    ours(&proxy, "slow-try", 504, "attempt_timeout");
}

/// `protocol: http2` towards an instance that speaks HTTP/1.1 only.
#[test]
fn an_instance_of_the_wrong_protocol_is_told_as_such() {
    let refusal = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let stub = Stub::script(move |peer| {
        peer.request();
        peer.send(refusal);
        // To end with unread frames would reset the connection, perhaps before the answer is read.
        peer.closed();
    });
    let keys = "protocol: http2\nretry: {max_attempts: 1}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let answer = Client::connect(proxy.address).get("/");
    assert_eq!(
        (answer.status(), answer.reason()),
        (502, Some("upstream_protocol"))
    );
    let said = String::from_utf8_lossy(&answer.body);
    assert!(said.contains("frame with invalid size"), "{said}");
}

/// The limit is one of all workers; an idle connection of one of them must not be in the way of another.
#[test]
fn an_idle_connection_makes_room_for_another_worker() {
    let stub = Stub::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let keys = "retry: {max_attempts: 1}\n\
                pool: {max_connections_per_instance: 1, max_wait: 10s}";
    let proxy = Config::svc_with(&[stub.address], keys).workers(2).start();
    // A connection of the app's goes to either worker.
    for number in 0..10 {
        let answer = Client::connect(proxy.address).get("/");
        assert_eq!((answer.status(), answer.reason()), (200, None), "{number}");
    }
    // Once for each request that waits, not for each look.
    let waits = ["limit=\"pool_connections\""];
    assert!(proxy.metric("outrigger_limit_hits_total", &waits) < 10);
}

#[test]
fn px_094_overflow_and_body_limit() {
    let stub = Stub::script(|peer| {
        peer.request();
        peer.closed();
    });
    let keys = "pool: {max_connections_per_instance: 1, max_wait: 100ms}";
    let proxy = Config::svc_with(&[stub.address], keys)
        .top("limits: {max_body_bytes: 1KiB}")
        .start();
    let mut first = Client::connect(proxy.address);
    first.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    stub.wait_for_requests(1);
    let answer = Client::connect(proxy.address).get("/");
    assert_eq!((answer.status(), answer.reason()), (503, Some("overflow")));
    assert!(answer.headers.has("retry-after"));
    drop(first);
    eventually("its place is free", || stub.open() == 0);

    let mut client = Client::connect(proxy.address);
    client.send("POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: 2000\r\n\r\n");
    let answer = client.response();
    assert_eq!(
        (answer.status(), answer.reason()),
        (413, Some("body_too_large"))
    );
    let mut client = Client::connect(proxy.address);
    client.send("POST / HTTP/1.1\r\nHost: svc\r\nTransfer-Encoding: chunked\r\n\r\n800\r\n");
    client.send([b'x'; 0x800]);
    let answer = client.response();
    assert_eq!(
        (answer.status(), answer.reason()),
        (413, Some("body_too_large"))
    );
}

#[test]
fn px_095_log_injection() {
    let (_stub, proxy) = with_ok();
    let mut client = Client::connect(proxy.address);
    client.send(
        [
            b"GET /%0d%0aFAKE HTTP/1.1\r\nHost: svc\r\nUser-Agent: a\"b\\c\xff\r\n".as_slice(),
            b"X-Request-Id: \"\\\xff{}\r\n\r\n",
        ]
        .concat(),
    );
    assert_eq!(client.response().status(), 200);
    let line = proxy.access_line(0);
    assert_eq!(line["url.path"], "/%0d%0aFAKE");
    assert!(
        proxy.lines().iter().all(Value::is_object),
        "{:?}",
        proxy.lines()
    );
    assert_eq!(proxy.access().len(), 1);
}

#[test]
fn px_096_proxy_loop() {
    let (stub, proxy) = with_ok();
    proxy.reload(&Config::svc(&[proxy.address]).text());
    proxy.wait_for_event("config_reloaded");
    let mut client = Client::connect(proxy.address);
    eventually("the new instance", || {
        let answer = client.get("/");
        answer.status() != 200 && {
            assert_eq!((answer.status(), answer.reason()), (508, None));
            true
        }
    });
    let files = proxy.open_files();
    for _ in 0..20 {
        assert_eq!(client.get("/").status(), 508);
    }
    assert!(proxy.open_files() <= files + 2);
    // The outer request passed the answer on; the inner one is ours.
    assert_eq!(proxy.logged("loop")["http.response.status_code"], 508);
    drop(stub);
}

#[test]
fn px_096_loop_over_two_proxies() {
    let (_stub, one) = with_ok();
    let two = Config::svc(&[one.address]).start();
    one.reload(&Config::svc(&[two.address]).text());
    one.wait_for_event("config_reloaded");
    let mut client = Client::connect(one.address);
    eventually("the loop", || client.get("/").status() != 200);
    assert_eq!(client.get("/").status(), 508);
    let hops = one.logged("loop");
    assert_eq!(hops["outrigger.attempts"], 0, "seen on the way in");
    assert!(two.access().len() < 20, "{} rounds", two.access().len());
}

#[test]
fn px_097_no_default_route() {
    let (stub, proxy) = with_ok();
    let mut client = Client::connect(proxy.address);
    for host in [
        "evil.example",
        "localhost",
        "127.0.0.1:80",
        "svc.evil.example",
    ] {
        client.send(format!(
            "GET / HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\r\n"
        ));
        let answer = client.response();
        assert_eq!(
            (answer.status(), answer.reason()),
            (404, Some("no_route")),
            "{host}"
        );
    }
    client.send("GET / HTTP/1.1\r\nHost: svc\r\nSec-Fetch-Site: cross-site\r\n\r\n");
    let answer = client.response();
    assert_eq!(
        (answer.status(), answer.reason()),
        (403, Some("blocked_cross_site"))
    );
    assert!(stub.requests().is_empty());
}

#[test]
fn px_097_dns_rebinding() {
    let (_stub, proxy) = with_ok();
    let ask = |listener: &str, path: &str, host: &str| {
        let mut client = Client::connect(proxy.listener(listener));
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nConnection: close\r\n\r\n"
        ));
        client.response()
    };
    let port = proxy.listener("admin").port();
    for host in [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        format!("127.0.0.1.evil.example:{port}"),
        format!("localhost.evil.example:{port}"),
    ] {
        let answer = ask("admin", "/api/v1/status", &host);
        assert_eq!(answer.status(), 421, "{host}");
        assert!(!answer.text().contains("upstreams"), "{host}");
    }
    for host in [format!("localhost:{port}"), format!("127.0.0.1:{port}")] {
        assert_eq!(ask("admin", "/api/v1/status", &host).status(), 200);
    }
    // A scraper may call it anything; there is nothing to change and no configuration to see.
    assert_eq!(ask("telemetry", "/metrics", "evil.example").status(), 200);
    assert_eq!(
        ask("telemetry", "/api/v1/status", "evil.example").status(),
        404
    );
}

#[test]
fn px_098_content_coding_untouched() {
    let head = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n";
    let stub = Stub::answering([head.as_bytes(), b"\x1f\x8b\x00"].concat());
    let proxy = Config::svc(&[stub.address]).start();
    let answer = Client::connect(proxy.address).get("/");
    assert_eq!(answer.body, b"\x1f\x8b\x00", "{}", latin1(&answer.body));
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    assert_eq!(answer.header("content-length"), Some("3"));
    assert!(!stub.request().headers.has("accept-encoding"));
}

#[test]
fn an_app_that_writes_all_before_it_reads_gets_our_answer() {
    let (stub, proxy) = with_ok();
    for (host, status) in [("unknown", 404), ("svc", 413)] {
        let proxy = if status == 413 {
            &Config::svc(&[stub.address])
                .top("limits: {max_body_bytes: 1KiB}")
                .start()
        } else {
            &proxy
        };
        for framing in [
            "Content-Length: 2097152\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n200000\r\n",
        ] {
            let mut client = Client::connect(proxy.address);
            client.send(format!("POST / HTTP/1.1\r\nHost: {host}\r\n{framing}"));
            client.send(vec![b'x'; 2 << 20]);
            client.send("\r\n0\r\n\r\n");
            let answer = client.response();
            assert_eq!(answer.status(), status, "{framing}");
        }
    }
}

#[test]
fn a_body_that_stops_over_h2_is_answered_408() {
    let stub = Stub::script(|peer| {
        peer.request();
    });
    let proxy = Config::svc(&[stub.address])
        .top("limits: {body_idle_timeout: 300ms}")
        .start();
    let h2 = H2Client::connect(proxy.address);
    let answer = crate::harness::block_on(async {
        let mut send = h2.send.clone().ready().await.unwrap();
        let (response, mut stream) = send.send_request(request("POST", &[]), false).unwrap();
        stream
            .send_data(bytes::Bytes::from_static(b"half"), false)
            .unwrap();
        crate::harness::collect(response.await.unwrap())
            .await
            .unwrap()
    });
    assert_eq!(
        (answer.status, answer.reason()),
        (408, Some("client_timeout"))
    );
}
