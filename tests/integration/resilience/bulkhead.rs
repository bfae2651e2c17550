use std::time::Duration;

use super::{OK, held, holding};
use crate::admin::{get, write};
use crate::harness::{Client, Config, H2Client, H2Stub, Proxy, Stopwatch, Stub, eventually};

const ROUTES: &str = "routes: [\
     {name: articles, match: {path_prefix: /hold/articles}, bulkhead: {max_concurrent_calls: 3}}, \
     {name: subscribers, match: {path_prefix: /subscribers}, bulkhead: {max_concurrent_calls: 2}}, \
     {name: rest, match: {path_prefix: /hold/rest}, timeout: {request: 30s}}]\n\
     bulkhead: {max_concurrent_calls: 2}";

fn in_use(proxy: &Proxy, labels: &[&str]) -> u64 {
    proxy.metric("outrigger_bulkhead_in_use", labels)
}

#[test]
fn a_route_with_its_own_is_not_touched_by_another_and_the_rest_share_the_upstreams() {
    let stub = holding();
    let proxy = Config::svc_with(&[stub.address], ROUTES).start();
    let mut client = Client::connect(proxy.address);
    let _articles = held(&proxy, &stub, 3, "/hold/articles/1");
    let refused = client.get("/hold/articles/2");
    assert_eq!(
        (
            refused.status(),
            refused.reason(),
            refused.header("retry-after")
        ),
        (503, Some("overflow"), Some("1"))
    );
    let text = refused.text();
    assert!(
        text.contains("3 of 3 requests to svc/articles are in flight"),
        "{text}"
    );
    for _ in 0..5 {
        assert_eq!(client.get("/subscribers/1").status(), 200);
    }
    // The route without one and requests of no route have the upstream's two places together.
    let _rest = held(&proxy, &stub, 1, "/hold/rest");
    let _none = held(&proxy, &stub, 1, "/hold");
    for path in ["/hold/rest", "/"] {
        let refused = client.get(path);
        assert_eq!(refused.reason(), Some("overflow"), "{path}");
        assert!(refused.text().contains("2 of 2 requests to svc are"));
    }
    assert_eq!(client.get("/subscribers/1").status(), 200);
    assert_eq!(in_use(&proxy, &["route=\"articles\""]), 3);
    assert_eq!(in_use(&proxy, &["route=\"subscribers\""]), 0);
    assert_eq!(in_use(&proxy, &["{upstream=\"svc\"}"]), 2);
    assert_eq!(
        proxy.metric("outrigger_bulkhead_limit", &["route=\"articles\""]),
        3
    );
    let view = get(&proxy, "/api/v1/upstreams/svc");
    assert_eq!(view["bulkhead"]["in_use"], 2);
    assert_eq!(view["routes"][0]["bulkhead"]["limit"], 3);
    assert!(view["routes"][2].get("bulkhead").is_none(), "{view}");
}

#[test]
fn the_queue_is_bounded_and_a_place_that_comes_back_goes_to_the_first() {
    let stub = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no");
            if request.target() == "/hold" {
                peer.closed();
                return;
            }
            peer.send("k");
        }
    });
    let keys = "bulkhead: {max_concurrent_calls: 1, max_queue: 2, max_wait_duration: 20s}";
    // Those who wait live on other threads than the one that gives back.
    let proxy = Config::svc_with(&[stub.address], keys).workers(2).start();
    for _ in 0..4 {
        let mut holder = Client::connect(proxy.address);
        holder.send("GET /hold HTTP/1.1\r\nHost: svc\r\n\r\n");
        // The head alone gives nothing back.
        assert_eq!(holder.head().status(), 200);
        let waiting: Vec<Client> = (0..2)
            .map(|n| {
                let mut client = Client::connect(proxy.address);
                client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
                eventually("it waits", || {
                    let view = get(&proxy, "/api/v1/upstreams/svc");
                    view["bulkhead"]["waiting"] == n + 1
                });
                client
            })
            .collect();
        let refused = Client::connect(proxy.address).get("/");
        assert_eq!(refused.reason(), Some("overflow"));
        assert!(refused.text().contains("2 of 2 wait (bulkhead.max_queue)"));
        drop(holder);
        for mut client in waiting {
            assert_eq!(client.response().status(), 200);
        }
    }
    eventually("all places back", || in_use(&proxy, &[]) == 0);
}

#[test]
fn a_wait_ends_at_its_limit_and_is_no_part_of_the_requests_time() {
    let stub = holding();
    let keys = "bulkhead: {max_concurrent_calls: 1, max_queue: 9, max_wait_duration: 600ms}\n\
                timeout: {request: 500ms}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let mut first = Client::connect(proxy.address);
    first.send("GET /hold HTTP/1.1\r\nHost: svc\r\n\r\n");
    stub.wait_for_requests(1);
    let watch = Stopwatch::start();
    // It gets its place when the first one's 500 ms are over, and has 500 ms of its own then.
    let second = Client::connect(proxy.address).get("/hold");
    assert_eq!(second.reason(), Some("request_timeout"));
    assert!(
        watch.elapsed() >= Duration::from_millis(500),
        "{:?}",
        watch.elapsed()
    );
    assert_eq!(first.response().reason(), Some("request_timeout"));
    let keys = keys.replace("request: 500ms", "request: 60s");
    let proxy = Config::svc_with(&[stub.address], &keys).start();
    let _held = held(&proxy, &stub, 1, "/hold");
    let refused = Client::connect(proxy.address).get("/");
    assert_eq!(
        (refused.status(), refused.reason()),
        (503, Some("overflow"))
    );
    assert!(
        refused.text().contains("no place came free within 600ms"),
        "{}",
        refused.text()
    );
    // One that leaves while it waits takes nothing with it.
    let mut impatient = Client::connect(proxy.address);
    impatient.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    let waiting = || get(&proxy, "/api/v1/upstreams/svc")["bulkhead"]["waiting"].clone();
    eventually("it waits or was refused", || {
        waiting() == 1 || !proxy.access().is_empty()
    });
    drop(impatient);
    eventually("nobody waits", || waiting() == 0);
}

#[test]
fn a_tunnel_gives_its_place_back_at_once() {
    let stub = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            if request.target() == "/tunnel" {
                peer.send("HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
                peer.closed();
                return;
            }
            peer.send(OK);
        }
    });
    let keys = "bulkhead: {max_concurrent_calls: 1}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let mut tunnel = Client::connect(proxy.address);
    tunnel.send("GET /tunnel HTTP/1.1\r\nHost: svc\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
    assert_eq!(tunnel.head().status(), 101);
    for _ in 0..3 {
        assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    }
    drop(tunnel);
    eventually("all places back", || in_use(&proxy, &[]) == 0);
}

#[test]
fn its_size_changes_with_a_reload_while_it_is_in_use() {
    let stub = holding();
    let keys = "bulkhead: {max_concurrent_calls: 2, max_queue: 4, max_wait_duration: 20s}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let _first = held(&proxy, &stub, 2, "/hold");
    let mut waiting = Client::connect(proxy.address);
    waiting.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    let bulkhead = || get(&proxy, "/api/v1/upstreams/svc")["bulkhead"].clone();
    eventually("it waits", || bulkhead()["waiting"] == 1);
    let text = proxy.config_text();
    proxy.reload(&text.replace("max_concurrent_calls: 2", "max_concurrent_calls: 3"));
    assert_eq!(waiting.response().status(), 200);
    proxy.reload(&text.replace(
        "max_concurrent_calls: 2, max_queue: 4",
        "max_concurrent_calls: 1",
    ));
    eventually("the new limit", || bulkhead()["limit"] == 1);
    assert_eq!(bulkhead()["in_use"], 2, "those in flight keep their places");
    let refused = Client::connect(proxy.address).get("/");
    assert!(
        refused.text().contains("2 of 1 requests"),
        "{}",
        refused.text()
    );
}

#[test]
fn a_request_that_can_be_a_breakers_trial_goes_to_the_head_of_the_queue() {
    let stub = holding();
    let keys = "bulkhead: {max_concurrent_calls: 1, max_queue: 9, max_wait_duration: 20s}\n\
                routes: [{name: a, match: {path_prefix: /a}, circuit_breaker: {mode: enforce}}]";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let post = "POST /api/v1/upstreams/svc/breaker";
    let order = r#"{"order": "force_open", "ttl": "20ms", "route": "a"}"#;
    assert_eq!(write(&proxy, post, order).0, 200);
    proxy.wait_for_event("breaker_half_open");
    let holder = held(&proxy, &stub, 1, "/hold");
    let mut waiting = Vec::new();
    for (n, path) in ["/first", "/second", "/a"].into_iter().enumerate() {
        let mut client = Client::connect(proxy.address);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: svc\r\n\r\n"));
        eventually("it waits", || {
            get(&proxy, "/api/v1/upstreams/svc")["bulkhead"]["waiting"] == n + 1
        });
        waiting.push(client);
    }
    drop(holder);
    for mut client in waiting {
        assert_eq!(client.response().status(), 200);
    }
    let requests = stub.requests();
    let order: Vec<&str> = requests.iter().map(|r| r.target()).collect();
    assert_eq!(order, ["/hold", "/a", "/first", "/second"]);
}

#[test]
fn a_calls_own_deadline_ends_its_wait_and_is_told_as_that() {
    let stub = H2Stub::start(|call| async move {
        let _held = call;
        std::future::pending::<()>().await;
    });
    let keys = "protocol: grpc\n\
                bulkhead: {max_concurrent_calls: 1, max_queue: 9, max_wait_duration: 1m}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let mut holder = Client::connect(proxy.address);
    holder.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    eventually("the place is taken", || stub.calls() == 1);
    let answer = H2Client::connect(proxy.address).grpc(&[("grpc-timeout", "300m")]);
    let answer = answer.unwrap();
    assert_eq!(answer.grpc_status().as_deref(), Some("4"));
    assert_eq!(answer.reason(), Some("request_timeout"));
}
