//! C. Host, authority, request target.

use super::{refused, with_ok};
use crate::harness::{Client, Config, H2Client, RawH2, Stub, kind};

#[test]
fn px_017_host_missing_or_doubled() {
    let (stub, proxy) = with_ok();
    refused(&proxy, &stub, "GET / HTTP/1.1\r\n\r\n", 400);
    refused(
        &proxy,
        &stub,
        "GET / HTTP/1.1\r\nHost: svc\r\nHost: svc\r\n\r\n",
        400,
    );
    refused(
        &proxy,
        &stub,
        "GET / HTTP/1.1\r\nHost: svc\r\nHost: other\r\n\r\n",
        400,
    );
}

#[test]
fn px_018_absolute_form_beats_host() {
    let (a, b) = (Stub::ok(), Stub::ok());
    let proxy = Config::default()
        .service("svc-a", &[a.address], "")
        .service("svc-b", &[b.address], "")
        .start();
    let mut client = Client::connect(proxy.address);
    client.send("GET http://svc-b/x?y HTTP/1.1\r\nHost: svc-a\r\n\r\n");
    assert_eq!(client.response().status(), 200);
    let request = b.request();
    assert_eq!(request.first, "GET /x?y HTTP/1.1");
    assert_eq!(request.headers.all("host"), ["svc-b"]);
    assert!(a.requests().is_empty());

    // Without a path the target is the root.
    client.send("GET http://svc-b HTTP/1.1\r\nHost: svc-a\r\n\r\n");
    assert_eq!(client.response().status(), 200);
    client.send("GET http://svc-b?q HTTP/1.1\r\nHost: svc-a\r\n\r\n");
    assert_eq!(client.response().status(), 200);
    let targets: Vec<_> = b.requests().iter().map(|r| r.target().to_owned()).collect();
    assert_eq!(targets, ["/x?y", "/", "/?q"]);
}

#[test]
fn px_019_h2_authority_reaches_an_h1_upstream() {
    let stub = Stub::ok();
    let keys = "hosts: [svc.local]";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let request = http::Request::get("http://svc.local:8080/")
        .body(())
        .unwrap();
    let answer = H2Client::connect(proxy.address)
        .call(request, None)
        .unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(stub.request().headers.all("host"), ["svc.local:8080"]);
}

#[test]
fn px_020_authority_and_host_disagree() {
    let (stub, proxy) = with_ok();
    let mut raw = RawH2::connect(proxy.address);
    raw.request(1, true, "GET", &[("host", "evil")]);
    let frame = raw.next().unwrap();
    assert!(
        frame.kind == kind::HEADERS || (frame.kind == kind::RST_STREAM && frame.code() == 1),
        "{frame:?}"
    );
    assert_eq!(
        proxy.logged("bad_request")["http.response.status_code"],
        400
    );
    assert!(stub.requests().is_empty());
}

#[test]
fn px_021_host_kept_byte_for_byte() {
    let stub = Stub::ok();
    let proxy = Config::svc_with(&[stub.address], "hosts: [svc.local]").start();
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: SVC.Local:8080\r\n\r\n");
    assert_eq!(client.response().status(), 200);
    assert_eq!(stub.request().headers.all("host"), ["SVC.Local:8080"]);
}

#[test]
fn px_022_options_asterisk() {
    let (stub, proxy) = with_ok();
    let mut client = Client::connect(proxy.address);
    client.send("OPTIONS * HTTP/1.1\r\nHost: svc\r\n\r\n");
    assert_eq!(client.response().status(), 200);
    assert_eq!(stub.request().first, "OPTIONS * HTTP/1.1");
    // An absolute target without a path is read as `/` before we see it: see `docs/testing.md`.
    for (request, want) in [
        ("OPTIONS http://svc/", "OPTIONS / HTTP/1.1"),
        ("OPTIONS http://svc?a", "OPTIONS /?a HTTP/1.1"),
        ("GET http://svc", "GET / HTTP/1.1"),
        ("GET http://svc?a", "GET /?a HTTP/1.1"),
    ] {
        client.send(format!("{request} HTTP/1.1\r\nHost: svc\r\n\r\n"));
        assert_eq!(client.response().status(), 200, "{request}");
        assert_eq!(stub.requests().pop().unwrap().first, want, "{request}");
    }
}

#[test]
fn px_023_path_is_opaque() {
    let (stub, proxy) = with_ok();
    let target = "/a/../%2e%2e/%2F//b;c=..?q=%zz+%20";
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get(target).status(), 200);
    assert_eq!(stub.request().target(), target);

    // Under a loopback Host only the first segment goes.
    client.send(format!(
        "GET /svc{target} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ));
    assert_eq!(client.response().status(), 200);
    let request = stub.requests().pop().unwrap();
    assert_eq!(request.target(), target);
    assert_eq!(request.header("x-forwarded-prefix"), Some("/svc"));
    assert_eq!(request.headers.all("host"), ["svc"]);
}

#[test]
fn px_024_unusual_but_common_bytes() {
    let (stub, proxy) = with_ok();
    let mut client = Client::connect(proxy.address);
    for target in ["/a|b{c}\"d", "/a[b]?x[y]=1", "/ä€"] {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: svc\r\n\r\n"));
        assert_eq!(client.response().status(), 200, "{target}");
        let seen = stub.requests().pop().unwrap();
        assert_eq!(
            seen.first,
            crate::harness::latin1(format!("GET {target} HTTP/1.1").as_bytes())
        );
    }
    refused(
        &proxy,
        &stub,
        b"GET /\xe9 HTTP/1.1\r\nHost: svc\r\n\r\n",
        400,
    );
}

#[test]
fn px_092_ipv6_literals() {
    let Ok(listener) = std::net::TcpListener::bind("[::1]:0") else {
        eprintln!("SKIPPED: this machine has no IPv6 loopback");
        return;
    };
    let stub = Stub::on(listener, |peer| {
        while peer.request().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    for request in [
        "GET / HTTP/1.1\r\nHost: svc".to_owned(),
        // The proxy's own address, so the first segment is the service.
        format!("GET /svc HTTP/1.1\r\nHost: [::1]:{}", proxy.address.port()),
        "GET /svc HTTP/1.1\r\nHost: [::1]".to_owned(),
    ] {
        client.send(format!("{request}\r\n\r\n"));
        assert_eq!(client.response().status(), 200, "{request}");
    }
    let label = format!("instance=\"{}\"", stub.address);
    assert!(label.starts_with("instance=\"[::1]:"));
    let attempts = ["outcome=\"success\"", &*label];
    assert_eq!(proxy.metric("outrigger_attempts_total", &attempts), 3);
    for host in ["[::1", "[::1]x", "::1", "[]", "[::1]:99999"] {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        refused(&proxy, &stub, request, 400);
    }
}
