//! Settings of the configuration, seen on the wire.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::harness::{Client, Config, H2Client, Stopwatch, Stub, eventually, pause_ms};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const BUSY: &str = "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy";

#[test]
fn half_close_may_be_allowed() {
    let stub = Stub::script(|peer| {
        while peer.request().is_some() {
            pause_ms(100);
            peer.send(OK);
        }
    });
    let proxy = Config::svc(&[stub.address])
        .top("limits: {half_close: allow}")
        .start();
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    client.finish_writing();
    assert_eq!(client.response().text(), "ok");
    assert!(client.closed());
}

#[test]
fn a_service_has_a_port_of_its_own() {
    let stub = Stub::ok();
    let proxy = Config::svc_with(&[stub.address], "port: 0").start();
    let mut client = Client::connect(proxy.listener("service:svc"));
    client.send("GET /a HTTP/1.1\r\nHost: anything\r\n\r\n");
    assert_eq!(client.response().status(), 200);
    let seen = stub.request();
    assert_eq!(
        (seen.target(), seen.header("host")),
        ("/a", Some("anything"))
    );
}

#[test]
fn apps_may_come_over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.sock");
    let stub = Stub::ok();
    let config = Config::svc(&[stub.address]);
    let proxy = config
        .listen(&format!("[\"127.0.0.1:0\", \"unix:{}\"]", path.display()))
        .start();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: svc\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok"),
        "{answer}"
    );
    proxy.signal("TERM");
    eventually("the socket file is removed", || !path.exists());
}

#[test]
fn connections_above_the_limit_wait() {
    // Each thread accepts by itself; the limit is of all together.
    for workers in [1, 4] {
        let stub = Stub::ok();
        let proxy = Config::svc(&[stub.address])
            .top("limits: {max_connections: 2}")
            .workers(workers)
            .start();
        let mut kept: Vec<Client> = (0..2).map(|_| Client::connect(proxy.address)).collect();
        for client in &mut kept {
            assert_eq!(client.get("/").status(), 200);
        }
        let mut third = Client::connect(proxy.address);
        third.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
        assert!(third.is_quiet(), "{workers} workers");
        kept.pop();
        assert_eq!(third.response().status(), 200);
    }
}

#[test]
fn idle_and_old_connections_to_instances_are_closed() {
    for pool in ["pool: {idle_timeout: 300ms}", "pool: {max_age: 300ms}"] {
        let stub = Stub::ok();
        let proxy = Config::svc_with(&[stub.address], pool).start();
        assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
        let watch = Stopwatch::start();
        // Its script ends with the connection.
        eventually("the close", || stub.open() == 0);
        assert!(
            watch.elapsed() < Duration::from_secs(15),
            "{pool}: {} ms",
            watch.ms()
        );
    }
}

#[test]
fn a_retry_goes_to_an_instance_not_tried_yet() {
    let (busy, fine) = (Stub::answering(BUSY), Stub::ok());
    let proxy =
        Config::svc_with(&[busy.address, fine.address], "load_balancer: round_robin").start();
    let mut client = Client::connect(proxy.address);
    for _ in 0..6 {
        assert_eq!(client.get("/").text(), "ok");
    }
    assert!(!busy.requests().is_empty());
    // POST is not repeated, and their answer passes unmarked.
    let statuses: Vec<u16> = (0..4)
        .map(|_| {
            client.send("POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: 1\r\n\r\nx");
            let answer = client.response();
            assert!(answer.reason().is_none());
            answer.status()
        })
        .collect();
    assert!(
        statuses.contains(&503) && statuses.contains(&200),
        "{statuses:?}"
    );
}

#[test]
fn the_last_answer_of_an_instance_is_passed_on_unmarked() {
    let stubs = [Stub::answering(BUSY), Stub::answering(BUSY)];
    let proxy = Config::svc_with(&[stubs[0].address, stubs[1].address], "").start();
    let answer = Client::connect(proxy.address).get("/");
    assert_eq!(
        (answer.status(), answer.reason(), answer.text().as_str()),
        (503, None, "busy")
    );
    assert_eq!(proxy.access_line(0)["outrigger.attempts"], 2);
}

#[test]
fn request_time_does_not_run_while_the_body_is_sent() {
    let stub = Stub::ok();
    let keys = "timeout: {request: 300ms}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let mut client = Client::connect(proxy.address);
    client.send("POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: 10\r\n\r\n");
    for _ in 0..10 {
        pause_ms(80);
        client.send("x");
    }
    assert_eq!(client.response().status(), 200);
    assert_eq!(stub.request().text(), "xxxxxxxxxx");
}

#[test]
fn debug_and_own_headers_of_the_app_do_not_go_upstream() {
    let stub = Stub::ok();
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    client.send(
        "GET / HTTP/1.1\r\nHost: other\r\nX-Outrigger-Upstream: svc\r\nX-Outrigger-Debug: 1\r\n\
         X-Outrigger-Hop: 00000000\r\nX-Outrigger-Reason: x\r\n\r\n",
    );
    let answer = client.response();
    assert_eq!(answer.status(), 200);
    let seen = stub.request();
    let own: Vec<_> = seen
        .headers
        .0
        .iter()
        .filter(|(n, _)| n.starts_with("x-outrigger-"))
        .collect();
    assert_eq!(own.len(), 1, "{own:?}");
    assert_eq!(own[0].0, "x-outrigger-hop");
    assert!(
        own[0].1.starts_with("00000000, "),
        "ours is added to what came: {own:?}"
    );
    assert_eq!(answer.header("x-request-id"), seen.header("x-request-id"));
    let mut again = Client::connect(proxy.address);
    again.send("GET / HTTP/1.1\r\nHost: svc\r\nX-Request-Id: mine\r\n\r\n");
    assert_eq!(again.response().header("x-request-id"), Some("mine"));
}

#[test]
fn a_loopback_host_means_the_first_segment() {
    let stub = Stub::ok();
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    for (target, want) in [
        ("/svc", "/"),
        ("/svc/", "/"),
        ("/svc?q", "/?q"),
        ("/SVC/a//b?c", "/a//b?c"),
    ] {
        client.send(format!(
            "GET {target} HTTP/1.1\r\nHost: 127.0.0.1:15001\r\n\r\n"
        ));
        assert_eq!(client.response().status(), 200, "{target}");
        let seen = stub.requests().pop().unwrap();
        assert_eq!(
            (seen.target(), seen.header("host")),
            (want, Some("svc")),
            "{target}"
        );
    }
    let request = http::Request::get("http://[::1]:15001/svc/x")
        .body(())
        .unwrap();
    assert_eq!(
        H2Client::connect(proxy.address)
            .call(request, None)
            .unwrap()
            .status,
        200
    );
    assert_eq!(stub.requests().pop().unwrap().target(), "/x");
}
