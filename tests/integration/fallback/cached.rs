use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use bytes::Bytes;

use super::{Breakable, ONCE, fallbacks, proxy};
use crate::harness::{Client, Config, H2Client, Message, Stub, eventually};

const CACHE: &str = "[{cache: {max_age: 1h, max_bytes: 1MiB}}]";

fn get(client: &mut Client, path: &str, fields: &str) -> Message {
    client.send(format!("GET {path} HTTP/1.1\r\nHost: svc\r\n{fields}\r\n"));
    client.response()
}

/// Asks while the instance works, and again when it is broken.
fn then_broken(head: &'static str, first: &str, second: &str) -> Message {
    let instance = Breakable::new(head, |_| "good".to_owned());
    let proxy = proxy(&instance.stub, CACHE);
    let mut client = Client::connect(proxy.address);
    assert_eq!(get(&mut client, "/", first).text(), "good");
    instance.set_broken(true);
    get(&mut client, "/", second)
}

#[test]
fn the_last_good_answer_is_given_while_the_instance_is_broken() {
    let head = "Content-Type: text/plain\r\nETag: \"1\"\r\nX-Request-Id: theirs\r\nAge: 3\r\n";
    let instance = Breakable::new(head, |request| format!("of {}", request.target()));
    let proxy = proxy(&instance.stub, CACHE);
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/a?b").text(), "of /a?b");
    instance.set_broken(true);
    let answer = client.get("/a?b");
    assert_eq!((answer.status(), answer.text().as_str()), (200, "of /a?b"));
    assert_eq!(answer.reason(), Some("fallback"));
    assert_eq!(answer.header("etag"), Some("\"1\""));
    assert_eq!(answer.header("content-type"), Some("text/plain"));
    assert_eq!(
        answer.header("warning"),
        Some("110 - \"Response is Stale\"")
    );
    let age: u64 = answer.header("age").unwrap().parse().unwrap();
    assert!((3..20).contains(&age), "{age}");
    assert_ne!(answer.header("x-request-id"), Some("theirs"));
    assert!(answer.headers.has("via"));
    // The head alone comes from the same answer.
    client.send("HEAD /a?b HTTP/1.1\r\nHost: svc\r\n\r\n");
    let head = client.head();
    assert_eq!((head.status(), head.reason()), (200, Some("fallback")));
    assert_eq!(head.header("content-length"), Some("7"));
    // An app of HTTP/2 gets it too.
    let h2 = H2Client::connect(proxy.address);
    let request = http::Request::builder().uri("http://svc/a?b").body(());
    let answer = h2.call(request.unwrap(), None).unwrap();
    assert_eq!(answer.body, b"of /a?b");
    assert_eq!(answer.reason(), Some("fallback"));
    // Other targets, hosts and methods have none.
    assert_eq!(client.get("/a?c").reason(), Some("upstream_reset"));
    client.send("GET /svc/a?b HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.response().status(), 200, "the same host and target");
    client.send("POST /a?b HTTP/1.1\r\nHost: svc\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(client.response().reason(), Some("upstream_reset"));

    assert_eq!(fallbacks(&proxy, "cache"), 4);
    let rejected = proxy.metric("outrigger_rejected_total", &["reason=\"fallback\""]);
    assert_eq!(rejected, 4);
    assert!(proxy.metric("outrigger_fallback_cache_bytes", &["svc"]) > 7);
    // What the instance failed is its own, what it did not do is nobody's.
    assert_eq!(proxy.attempts("network_error"), 6);
    assert_eq!(proxy.attempts("success"), 1);
    let line = proxy.logged("fallback");
    assert_eq!(line["outrigger.fallback"], "cache", "{line}");
    assert_eq!(line["outrigger.fallback_for"], "reset", "{line}");
    assert_eq!(line["http.response.status_code"], 200, "{line}");

    instance.set_broken(false);
    let answer = client.get("/a?b");
    assert_eq!((answer.reason(), answer.header("warning")), (None, None));
}

#[test]
fn what_may_not_be_kept_is_not() {
    for head in [
        "Cache-Control: no-store\r\n",
        "Cache-Control: max-age=9, private\r\n",
        "Cache-Control: no-cache\r\n",
        "Set-Cookie: a=b\r\n",
        "Vary: *\r\n",
    ] {
        assert_eq!(
            then_broken(head, "", "").reason(),
            Some("upstream_reset"),
            "{head}"
        );
    }
    for request in [
        "Cache-Control: no-store\r\n",
        "Range: bytes=0-9\r\n",
        "Authorization: Basic x\r\n",
        "Cookie: a=b\r\n",
    ] {
        let answer = then_broken("", request, "");
        assert_eq!(answer.reason(), Some("upstream_reset"), "{request}");
    }
    let shared = then_broken(
        "Cache-Control: public\r\n",
        "Authorization: Basic x\r\n",
        "",
    );
    assert_eq!((shared.reason(), shared.status()), (Some("fallback"), 200));
    let asked = then_broken("", "", "Cache-Control: no-cache\r\n");
    assert_eq!(asked.reason(), Some("upstream_reset"));
}

#[test]
fn what_is_still_fresh_says_so() {
    let answer = then_broken("Cache-Control: max-age=600, must-revalidate\r\n", "", "");
    assert_eq!(answer.reason(), Some("fallback"));
    assert_eq!(
        answer.header("warning"),
        Some("111 - \"Revalidation Failed\"")
    );
}

#[test]
fn variants_are_kept_apart() {
    let by_language = |request: &Message| request.header("accept-language").unwrap().to_owned();
    let instance = Breakable::new("Vary: Accept-Language\r\n", by_language);
    let proxy = proxy(&instance.stub, CACHE);
    let mut client = Client::connect(proxy.address);
    for language in ["en", "de"] {
        let field = format!("Accept-Language: {language}\r\n");
        assert_eq!(get(&mut client, "/", &field).text(), language);
    }
    instance.set_broken(true);
    for language in ["en", "de"] {
        let answer = get(
            &mut client,
            "/",
            &format!("Accept-Language: {language}\r\n"),
        );
        assert_eq!(answer.text(), language);
        assert_eq!(answer.reason(), Some("fallback"));
    }
    let answer = get(&mut client, "/", "Accept-Language: fr\r\n");
    assert_eq!(answer.reason(), Some("upstream_reset"));
}

#[test]
fn a_change_and_a_404_end_what_was_kept() {
    let stub = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            match (request.first.split(' ').next(), request.target()) {
                (_, "/broken") => return,
                (Some("GET"), _) if peer.index == 0 => {
                    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
                }
                (Some("PUT"), _) => peer.send("HTTP/1.1 204 No Content\r\n\r\n"),
                _ => return,
            }
        }
    });
    let proxy = proxy(&stub, CACHE);
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/a").status(), 200);
    assert_eq!(client.get("/b").status(), 200);
    client.send("PUT /a HTTP/1.1\r\nHost: svc\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(client.response().status(), 204);
    assert_eq!(client.get("/broken").reason(), Some("upstream_reset"));
    assert_eq!(client.get("/a").reason(), Some("upstream_reset"));
    assert_eq!(client.get("/b").reason(), Some("fallback"));
}

#[test]
fn an_answer_that_is_too_large_or_broken_off_passes_and_is_not_kept() {
    let large = vec![b'x'; 100_000];
    let stub = Stub::script(move |peer| {
        while let Some(request) = peer.request() {
            match request.target() {
                "/large" if peer.index == 0 => {
                    peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                    for piece in large.chunks(10_000) {
                        peer.send(format!("{:x}\r\n", piece.len()));
                        peer.send(piece);
                        peer.send("\r\n");
                    }
                    peer.send("0\r\n\r\n");
                }
                "/half" if peer.index == 0 => {
                    peer.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
                    return;
                }
                _ => return,
            }
        }
    });
    let proxy = proxy(&stub, "[{cache: {max_bytes: 64KiB}}]");
    let answer = Client::connect(proxy.address).get("/large");
    assert_eq!(answer.body.len(), 100_000);
    let mut client = Client::connect(proxy.address);
    client.send("GET /half HTTP/1.1\r\nHost: svc\r\n\r\n");
    assert_eq!(client.head().status(), 200);
    assert!(client.closed_within(std::time::Duration::from_secs(5)));
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/large").reason(), Some("upstream_reset"));
    assert_eq!(client.get("/half").reason(), Some("upstream_reset"));
    assert_eq!(proxy.metric("outrigger_fallback_cache_bytes", &["svc"]), 0);
}

#[test]
fn the_sum_of_all_answers_stays_within_the_bound() {
    let instance = Breakable::new("", |request| request.target().repeat(500));
    let proxy = proxy(&instance.stub, "[{cache: {max_bytes: 64KiB}}]");
    let mut client = Client::connect(proxy.address);
    for n in 0..100 {
        client.get(&format!("/{n:07}"));
        let bytes = proxy.metric("outrigger_fallback_cache_bytes", &["svc"]);
        assert!(bytes <= 64 * 1024, "{bytes} after {n}");
    }
    instance.set_broken(true);
    assert_eq!(client.get("/0000099").reason(), Some("fallback"));
    assert_eq!(client.get("/0000000").reason(), Some("upstream_reset"));
}

#[test]
fn a_reload_keeps_what_is_kept_within_the_new_bound() {
    let instance = Breakable::new("", |_| "good".to_owned());
    let config = |fallback: &str| {
        let keys = format!("{ONCE}\nfallback: {fallback}");
        Config::svc_with(&[instance.stub.address], &keys)
    };
    let proxy = config(CACHE).start();
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/").text(), "good");
    instance.set_broken(true);
    proxy.reload(&config("[{cache: {max_bytes: 2MiB}}]").text());
    eventually("the reload", || proxy.reloads("applied") == 1);
    assert_eq!(client.get("/").reason(), Some("fallback"));
    proxy.reload(&config("[]").text());
    eventually("the reload", || proxy.reloads("applied") == 2);
    assert_eq!(client.get("/").reason(), Some("upstream_reset"));
    proxy.reload(&config(CACHE).text());
    eventually("the reload", || proxy.reloads("applied") == 3);
    let answer = client.get("/");
    assert_eq!(
        answer.reason(),
        Some("upstream_reset"),
        "it was given up in between"
    );
}

#[test]
fn an_answer_of_an_instance_of_http2_is_kept_too() {
    use crate::harness::H2Stub;
    let broken = Arc::new(AtomicBool::new(false));
    let kept = Arc::clone(&broken);
    let stub = H2Stub::start(move |mut call| {
        let broken = kept.load(SeqCst);
        async move {
            if broken {
                call.respond.send_reset(h2::Reason::INTERNAL_ERROR);
                return;
            }
            let response = http::Response::new(());
            let mut stream = call.respond.send_response(response, false).unwrap();
            stream.send_data(Bytes::from_static(b"in "), false).unwrap();
            stream
                .send_data(Bytes::from_static(b"pieces"), true)
                .unwrap();
        }
    });
    let keys = format!("protocol: http2\n{ONCE}\nfallback: {CACHE}");
    let proxy = Config::svc_with(&[stub.address], &keys).start();
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/").text(), "in pieces");
    broken.store(true, SeqCst);
    let answer = client.get("/");
    assert_eq!(
        (answer.text().as_str(), answer.reason()),
        ("in pieces", Some("fallback"))
    );
}

#[test]
fn a_change_ends_what_was_kept_whichever_way_it_goes() {
    let broken = Arc::new(AtomicBool::new(false));
    let kept = Arc::clone(&broken);
    let stub = Stub::script(move |peer| {
        while let Some(request) = peer.request() {
            let fails = kept.load(SeqCst) || request.header("x-elsewhere").is_some();
            if fails {
                return;
            }
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let backup = Stub::ok();
    // Only reads have a cache; what goes to the backup comes from it.
    let keys = format!(
        "{ONCE}\nfallback: [{{conditions: [reset], upstream: backup}}]\n\
         routes: [{{name: reads, match: {{methods: [GET]}}, fallback: {CACHE}}}]"
    );
    let proxy = Config::svc_with(&[stub.address], &keys)
        .service("backup", &[backup.address], ONCE)
        .start();
    let mut client = Client::connect(proxy.address);
    for path in ["/put", "/elsewhere", "/kept"] {
        assert_eq!(client.get(path).status(), 200);
    }
    for (path, field) in [("/put", ""), ("/elsewhere", "X-Elsewhere: 1\r\n")] {
        client.send(format!(
            "PUT {path} HTTP/1.1\r\nHost: svc\r\n{field}Content-Length: 0\r\n\r\n"
        ));
        assert_eq!(client.response().status(), 200);
    }
    assert_eq!(fallbacks(&proxy, "upstream"), 1);
    broken.store(true, SeqCst);
    assert_eq!(client.get("/kept").reason(), Some("fallback"));
    for path in ["/put", "/elsewhere"] {
        assert_eq!(client.get(path).reason(), Some("upstream_reset"), "{path}");
    }
}
