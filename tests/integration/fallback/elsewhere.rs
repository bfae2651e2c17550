use super::{Breakable, ONCE, fallbacks};
use crate::harness::{Client, Config, H2Client, H2Stub, Proxy, Stub, closed_port, eventually};

const BACKUP: &str = "[{upstream: backup}]";

fn config(main: &Stub, backup: &Stub, more: &str) -> Config {
    let keys = format!("{ONCE}\n{more}\nfallback: {BACKUP}");
    Config::svc_with(&[main.address], &keys).service("backup", &[backup.address], ONCE)
}

fn broken() -> Stub {
    Stub::script(|peer| {
        peer.request();
    })
}

#[test]
fn the_same_request_goes_to_another_upstream() {
    let (main, backup) = (broken(), Stub::ok());
    let proxy = config(&main, &backup, "").start();
    let mut client = Client::connect(proxy.address);
    client.send("POST /x?y HTTP/1.1\r\nHost: svc\r\nX-A: 1\r\nContent-Length: 4\r\n\r\nbody");
    let answer = client.response();
    assert_eq!((answer.status(), answer.text().as_str()), (200, "ok"));
    assert_eq!(answer.reason(), Some("fallback"));
    let request = backup.request();
    assert_eq!(
        (request.target(), request.text().as_str()),
        ("/x?y", "body")
    );
    assert_eq!(request.header("x-a"), Some("1"));
    // The host that the app gave was the service's name.
    assert_eq!(request.header("host"), Some("backup"));
    assert_eq!(fallbacks(&proxy, "upstream"), 1);
    let failed = ["upstream=\"svc\"", "network_error"];
    assert_eq!(proxy.metric("outrigger_attempts_total", &failed), 1);
    let good = ["upstream=\"backup\"", "outcome=\"success\""];
    eventually("its success", || {
        proxy.metric("outrigger_attempts_total", &good) == 1
    });
    let line = proxy.access_line(0);
    assert_eq!(line["outrigger.upstream"], "svc", "{line}");
    assert_eq!(line["outrigger.fallback"], "upstream", "{line}");
    assert_eq!(line["outrigger.attempts"], 2, "{line}");
    assert_eq!(
        line["outrigger.instance"],
        backup.address.to_string(),
        "{line}"
    );
}

#[test]
fn another_host_is_kept() {
    let (main, backup) = (broken(), Stub::ok());
    let proxy = config(&main, &backup, "hosts: [shop.example]").start();
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n");
    assert_eq!(client.response().status(), 200);
    assert_eq!(backup.request().header("host"), Some("shop.example"));
}

#[test]
fn a_body_that_was_not_kept_goes_nowhere_else() {
    let main = Stub::script(|peer| {
        peer.request();
    });
    let backup = Stub::ok();
    let proxy = config(&main, &backup, "").start();
    let mut client = Client::connect(proxy.address);
    let body = "x".repeat(100_000);
    let length = body.len();
    client.send(format!(
        "POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
    let answer = client.response();
    assert_eq!(
        (answer.status(), answer.reason()),
        (502, Some("upstream_reset"))
    );
    assert_eq!(backup.requests().len(), 0);
}

#[test]
fn when_both_fail_the_first_failure_is_told() {
    let main = Stub::answering("HTTP/1.1 503 X\r\nContent-Length: 4\r\n\r\nmain");
    let (_socket, closed) = closed_port();
    let keys = format!("{ONCE}\nfallback: {BACKUP}");
    let proxy = Config::svc_with(&[main.address], &keys)
        .service("backup", &[closed], ONCE)
        .start();
    let mut client = Client::connect(proxy.address);
    for _ in 0..2 {
        let answer = client.get("/");
        assert_eq!((answer.status(), answer.text().as_str()), (503, "main"));
        assert_eq!(answer.reason(), None);
    }
    assert_eq!(fallbacks(&proxy, "upstream"), 0);
    let line = proxy.access_line(0);
    assert_eq!(line["http.response.status_code"], 503, "{line}");
    eventually("both are counted", || proxy.attempts("network_error") == 4);
}

#[test]
fn two_that_name_each_other_make_no_loop() {
    let (first, second) = (broken(), broken());
    let keys = |other: &str| format!("{ONCE}\nfallback: [{{upstream: {other}}}]");
    let proxy = Config::svc_with(&[first.address], &keys("other"))
        .service("other", &[second.address], &keys("svc"))
        .start();
    let answer = Client::connect(proxy.address).get("/");
    assert_eq!(answer.reason(), Some("upstream_reset"));
    assert_eq!((first.requests().len(), second.requests().len()), (1, 1));
}

#[test]
fn the_last_resort_follows_when_the_other_upstream_fails_too() {
    let instance = Breakable::new("", |_| "good".to_owned());
    let (_socket, closed) = closed_port();
    let list = "[{cache: {}}, {upstream: backup}, {status: 299, body: last}]";
    let keys = format!("{ONCE}\nfallback: {list}");
    let proxy = Config::svc_with(&[instance.stub.address], &keys)
        .service("backup", &[closed], ONCE)
        .start();
    let mut client = Client::connect(proxy.address);
    assert_eq!(client.get("/known").text(), "good");
    instance.set_broken(true);
    assert_eq!(client.get("/known").text(), "good");
    let answer = client.get("/unknown");
    assert_eq!((answer.status(), answer.text().as_str()), (299, "last"));
    assert_eq!(fallbacks(&proxy, "cache"), 1);
    assert_eq!(fallbacks(&proxy, "static"), 1);
}

#[test]
fn what_another_upstream_answered_is_not_kept_as_an_own_answer() {
    let instance = Breakable::new("", |_| "good".to_owned());
    instance.set_broken(true);
    let backup = Stub::answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother");
    let keys = format!("{ONCE}\nfallback: [{{cache: {{}}}}, {{upstream: backup}}]");
    let proxy = Config::svc_with(&[instance.stub.address], &keys)
        .service("backup", &[backup.address], ONCE)
        .start();
    let mut client = Client::connect(proxy.address);
    for _ in 0..2 {
        assert_eq!(client.get("/").text(), "other");
    }
    assert_eq!(fallbacks(&proxy, "upstream"), 2);
}

#[test]
fn a_grpc_call_is_answered_by_the_other_upstream() {
    let (_socket, closed) = closed_port();
    let stub = H2Stub::start(|mut call| async move {
        let body = call.body().await;
        let response = http::Response::builder()
            .header("content-type", "application/grpc")
            .body(());
        let mut stream = call
            .respond
            .send_response(response.unwrap(), false)
            .unwrap();
        stream.send_data(bytes::Bytes::from(body), false).unwrap();
        let status = http::HeaderValue::from_static("0");
        let name = http::HeaderName::from_static("grpc-status");
        stream
            .send_trailers(http::HeaderMap::from_iter([(name, status)]))
            .unwrap();
    });
    let keys = format!("{ONCE}\nfallback: {BACKUP}");
    let proxy = Config::svc_with(&[closed], &keys)
        .service("backup", &[stub.address], ONCE)
        .start();
    let answer = H2Client::connect(proxy.address).grpc(&[]).unwrap();
    assert_eq!(answer.body, b"\0\0\0\0\x01x");
    assert_eq!(answer.trailer("grpc-status").as_deref(), Some("0"));
    assert_eq!(answer.reason(), Some("fallback"));
}

/// Places taken, of `svc` and of `backup`.
fn places(proxy: &Proxy) -> (u64, u64) {
    let of = |name: &str| {
        let label = format!("upstream=\"{name}\"");
        proxy.metric("outrigger_bulkhead_in_use", &[&label])
    };
    (of("svc"), of("backup"))
}

/// Both have one place, and `more` may wait at the backup.
fn with_one_place_each(main: &Stub, backup: &Stub, more: &str) -> Proxy {
    let keys = format!("{ONCE}\nbulkhead: {{max_concurrent_calls: 1}}\nfallback: {BACKUP}");
    let backup_keys = format!("{ONCE}\nbulkhead: {{max_concurrent_calls: 1{more}}}");
    Config::svc_with(&[main.address], &keys)
        .service("backup", &[backup.address], &backup_keys)
        .start()
}

/// Answers at once but for `/hold`, which waits for its client's end.
fn holding() -> Stub {
    Stub::script(|peer| {
        while let Some(request) = peer.request() {
            if request.target() == "/hold" {
                peer.closed();
                return;
            }
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    })
}

#[test]
fn a_request_that_went_on_has_one_place_and_gives_it_back() {
    let (main, backup) = (broken(), holding());
    let proxy = with_one_place_each(&main, &backup, ", max_queue: 1, max_wait_duration: 30s");
    assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    eventually("both are free", || places(&proxy) == (0, 0));
    let mut holder = Client::connect(proxy.address);
    holder.send("GET /hold HTTP/1.1\r\nHost: svc\r\n\r\n");
    backup.wait_for_requests(2);
    assert_eq!(places(&proxy), (0, 1));
    // Another one gets the first place, gives it back, and waits for the second.
    let waiting = || proxy.admin("/api/v1/upstreams/backup")["bulkhead"]["waiting"].clone();
    let mut impatient = Client::connect(proxy.address);
    impatient.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    eventually("it waits", || waiting() == 1);
    assert_eq!(places(&proxy), (0, 1));
    // It leaves while it waits, the other one while its answer is awaited.
    drop(impatient);
    eventually("nobody waits", || waiting() == 0);
    drop(holder);
    eventually("both are free", || places(&proxy) == (0, 0));
    for number in 1..3 {
        let line = proxy.access_line(number);
        assert_eq!(line["http.response.status_code"], 499, "{line}");
        assert_eq!(line["outrigger.reason"], "client_closed", "{line}");
    }
    assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
}

#[test]
fn the_other_upstream_keeps_no_place_of_a_request_that_it_failed() {
    // The first one's answer is passed on after all, and its body takes its time.
    let main = Stub::script(|peer| {
        while peer.request().is_some() {
            peer.send("HTTP/1.1 503 X\r\nContent-Length: 4\r\n\r\nma");
            peer.closed();
        }
    });
    let backup = Stub::answering("HTTP/1.1 502 X\r\nContent-Length: 0\r\n\r\n");
    let proxy = with_one_place_each(&main, &backup, "");
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    assert_eq!(client.head().status(), 503);
    assert_eq!(places(&proxy).1, 0);
    drop(client);
    // It is told as what it was: the answer of the first one's instance.
    let line = proxy.access_line(0);
    assert_eq!(line["http.response.status_code"], 503, "{line}");
    assert_eq!(line["outrigger.instance"], main.address.to_string());
    assert_eq!(line["outrigger.attempts"], 2, "{line}");
    eventually("both are free", || places(&proxy) == (0, 0));
}

#[test]
fn the_apps_address_leads_to_the_same_instance_on_both_ways() {
    let main = broken();
    let backups: Vec<Stub> = (0..5).map(|_| Stub::ok()).collect();
    let addresses: Vec<_> = backups.iter().map(|stub| stub.address).collect();
    let keys = format!("{ONCE}\nfallback: {BACKUP}");
    let hashed = format!("{ONCE}\nload_balancer: ring_hash\nhash: {{source: true}}");
    let proxy = Config::svc_with(&[main.address], &keys)
        .service("backup", &addresses, &hashed)
        .start();
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: backup\r\n\r\n");
    assert_eq!(client.response().reason(), None);
    for _ in 0..6 {
        assert_eq!(client.get("/").reason(), Some("fallback"));
    }
    let seen: Vec<usize> = backups.iter().map(|stub| stub.requests().len()).collect();
    assert!(seen.contains(&7), "{seen:?}");
}

#[test]
fn a_body_that_goes_on_meanwhile_reaches_the_other_upstream_whole() {
    // Answers from the head alone, and reads on.
    let main = Stub::script(|peer| {
        if peer.head().is_some() {
            peer.send("HTTP/1.1 503 X\r\nContent-Length: 4\r\n\r\nmain");
            peer.closed();
        }
    });
    let backup = holding();
    let proxy = with_one_place_each(&main, &backup, ", max_queue: 1, max_wait_duration: 30s");
    let mut holder = Client::connect(proxy.address);
    holder.send("GET /hold HTTP/1.1\r\nHost: backup\r\n\r\n");
    backup.wait_for_requests(1);
    let mut client = Client::connect(proxy.address);
    let body = "x".repeat(200_000);
    let (first, rest) = body.split_at(1_000);
    client.send("PUT / HTTP/1.1\r\nHost: svc\r\nContent-Length: 200000\r\n\r\n");
    client.send(first);
    eventually("it waits", || {
        proxy.admin("/api/v1/upstreams/backup")["bulkhead"]["waiting"] == 1
    });
    // More than is kept.
    client.send(rest);
    drop(holder);
    let answer = client.response();
    assert_eq!(
        (answer.text().as_str(), answer.reason()),
        ("ok", Some("fallback"))
    );
    assert_eq!(backup.requests().remove(1).body.len(), body.len());
}
