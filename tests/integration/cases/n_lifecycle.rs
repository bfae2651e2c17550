//! N. Exhaustion, drain, shutdown, reload.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use http::Response;

use super::i_upgrade::{echo, tunnel};
use super::with_ok;
use crate::harness::{
    Client, Config, H2Client, H2Stub, Peer, Proxy, RawH2, Stopwatch, Stub, block_on, collect,
    eventually, kind, pause_ms, request,
};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn px_085_out_of_files() {
    let stub = Stub::ok();
    let proxy = Config::svc(&[stub.address])
        .workers(2)
        .open_files(128)
        .start();
    let clients: Vec<Client> = (0..400).map(|_| Client::connect(proxy.address)).collect();
    eventually("the limit", || proxy.errors().contains("accept pauses"));
    let (ticks, lines) = (proxy.cpu_ticks(), proxy.errors().lines().count());
    pause_ms(2_000);
    // 100 ticks are one core for a second.
    let used = proxy.cpu_ticks() - ticks;
    assert!(used < 100, "{used} ticks in 2 s");
    let said = proxy.errors().lines().count() - lines;
    assert!(said <= 20, "{said} lines in 2 s");
    drop(clients);
    eventually("service again", || {
        let mut client = Client::connect(proxy.address);
        client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
        client
            .wire
            .head()
            .is_some_and(|answer| answer.status() == 200)
    });
}

#[test]
fn px_086_bulkhead_full() {
    let stub = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            if request.target() == "/hold" {
                peer.closed();
                return;
            }
            peer.send(OK);
        }
    });
    let keys = "bulkhead: {max_concurrent_calls: 10}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let in_use = || proxy.metric("outrigger_bulkhead_in_use", &[]);
    for round in 1..=3 {
        let mut clients: Vec<Client> = (0..20).map(|_| Client::connect(proxy.address)).collect();
        let (held, refused) = clients.split_at_mut(10);
        for client in held.iter_mut() {
            client.send("GET /hold HTTP/1.1\r\nHost: svc\r\n\r\n");
        }
        stub.wait_for_requests(round * 10);
        assert_eq!(in_use(), 10);
        for client in refused {
            let answer = client.get("/hold");
            assert_eq!((answer.status(), answer.reason()), (503, Some("overflow")));
            assert_eq!(answer.header("retry-after"), Some("1"));
        }
        // The clients cancel.
        drop(clients);
        eventually("all places back", || in_use() == 0);
    }
    assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    assert_eq!(stub.requests().len(), 31, "what was refused went nowhere");
    assert_eq!(
        proxy.attempts("network_error"),
        0,
        "nothing of it is charged"
    );
}

/// Answers at once, `/slow` only after the stub's note `go` can be taken.
fn gated(go: &Arc<AtomicBool>) -> Stub {
    let go = Arc::clone(go);
    Stub::script(move |peer: &mut Peer| {
        while let Some(request) = peer.request() {
            if request.target() == "/slow" {
                eventually("the gate", || go.load(SeqCst));
            }
            peer.send(OK);
        }
        peer.note("closed");
    })
}

#[test]
fn px_087_instance_leaves() {
    let go = Arc::new(AtomicBool::new(false));
    let (leaving, staying) = (gated(&go), Stub::ok());
    let config = Config::svc(&[leaving.address]);
    let proxy = config.start();
    let address = proxy.address;
    // One in flight, three idle.
    let slow: Vec<_> = (0..4)
        .map(|_| std::thread::spawn(move || Client::connect(address).get("/slow").status()))
        .collect();
    leaving.wait_for_requests(4);
    go.store(true, SeqCst);
    for one in slow {
        assert_eq!(one.join().unwrap(), 200);
    }
    go.store(false, SeqCst);
    let flying = std::thread::spawn(move || Client::connect(address).get("/slow"));
    leaving.wait_for_requests(5);
    proxy.reload(&Config::svc(&[staying.address]).text());
    proxy.wait_for_event("config_reloaded");
    eventually("the idle connections are closed", || leaving.open() == 1);
    for _ in 0..10 {
        assert_eq!(Client::connect(address).get("/").status(), 200);
    }
    assert_eq!(leaving.requests().len(), 5, "a new request went to it");
    go.store(true, SeqCst);
    let answer = flying.join().unwrap();
    assert_eq!((answer.status(), answer.complete), (200, true));
    eventually("its last connection is closed", || leaving.open() == 0);
}

#[test]
fn px_088_sigterm() {
    let go = Arc::new(AtomicBool::new(false));
    let stub = gated(&go);
    let open = Arc::new(tokio::sync::Notify::new());
    let kept = Arc::clone(&open);
    let streaming = H2Stub::start(move |mut call| {
        let open = Arc::clone(&kept);
        async move {
            let response = Response::builder().body(()).unwrap();
            let mut stream = call.respond.send_response(response, false).unwrap();
            stream
                .send_data(Bytes::from_static(b"begin"), false)
                .unwrap();
            open.notified().await;
            stream.send_data(Bytes::from_static(b"end"), true).unwrap();
        }
    });
    let talking = Stub::script(|peer| {
        peer.request();
        peer.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        );
        echo(peer);
    });
    let mut proxy = Config::default()
        .service("plain", &[stub.address], "")
        .service("streaming", &[streaming.address], "protocol: http2")
        .service("svc", &[talking.address], "")
        .top("app: {shutdown: {propagation_delay: 700ms, drain_timeout: 10s}}")
        .start();
    let mut silent = Client::connect(proxy.address);
    let mut idle = Client::connect(proxy.address);
    idle.send("GET / HTTP/1.1\r\nHost: plain\r\n\r\n");
    assert_eq!(idle.response().status(), 200);
    let mut flying = Client::connect(proxy.address);
    flying.send("GET /slow HTTP/1.1\r\nHost: plain\r\n\r\n");
    stub.wait_for_requests(2);
    let mut socket = tunnel(&proxy);
    let h2 = H2Client::connect(proxy.address);
    let (response, mut second) = block_on(async {
        let mut send = h2.send.clone().ready().await.unwrap();
        let asked = request("GET", &[("x-outrigger-upstream", "streaming")]);
        let (response, _) = send.send_request(asked, true).unwrap();
        (response.await.unwrap(), send)
    });
    let mut goaway = RawH2::connect(proxy.address);
    goaway.request(1, true, "GET", &[("x-outrigger-upstream", "plain")]);
    goaway.next_of(kind::DATA).unwrap();

    proxy.signal("TERM");
    proxy.wait_for_event("drain_started");
    // Before the propagation delay is over nothing has changed.
    let mut early = Client::connect(proxy.address);
    early.send("GET / HTTP/1.1\r\nHost: plain\r\n\r\n");
    assert_eq!(early.response().status(), 200);
    assert!(silent.is_quiet());

    assert!(silent.closed() && idle.closed() && early.closed());
    let first = goaway.next_of(kind::GOAWAY).unwrap();
    let last = goaway.next_of(kind::GOAWAY).unwrap();
    let ids: Vec<u32> = [&first, &last]
        .iter()
        .map(|f| u32::from_be_bytes(f.payload[..4].try_into().unwrap()))
        .collect();
    assert_eq!(ids, [0x7fff_ffff, 1], "two steps");
    eventually("new connections are refused", || {
        std::net::TcpStream::connect(proxy.address).is_err()
    });
    // What is in flight goes on.
    socket.send("still");
    assert_eq!(socket.exactly(5), b"still");
    go.store(true, SeqCst);
    let answer = flying.response();
    assert!(answer.status() == 200 && answer.says_close(), "{answer:?}");
    assert!(flying.closed());
    open.notify_one();
    let answer = block_on(collect(response)).unwrap();
    assert_eq!(answer.body, b"beginend");
    assert!(answer.end.is_ok());
    block_on(async {
        let _refused = std::future::poll_fn(|cx| second.poll_ready(cx)).await;
    });
    assert!(proxy.is_running(), "the tunnel is open");
    drop(socket);
    assert_eq!(proxy.ended().code(), Some(0));
    proxy.wait_for_event("drain_finished");
    proxy.wait_for_event("stopped");
}

#[test]
fn px_088_no_request_on_a_kept_connection_is_lost() {
    let stub = Stub::ok();
    let mut proxy = Config::svc(&[stub.address]).start();
    let address = proxy.address;
    let answered = Arc::new(AtomicUsize::new(0));
    let apps: Vec<_> = (0..24_u64)
        .map(|index| {
            let answered = Arc::clone(&answered);
            std::thread::spawn(move || {
                let mut client = Client::connect(address);
                loop {
                    // An answer is due to each, and the last one says that it is the last.
                    let answer = client.get("/");
                    assert_eq!(answer.status(), 200);
                    answered.fetch_add(1, SeqCst);
                    if answer.says_close() {
                        return;
                    }
                    pause_ms(index);
                }
            })
        })
        .collect();
    eventually("load", || answered.load(SeqCst) > 200);
    proxy.signal("TERM");
    for app in apps {
        app.join().unwrap();
    }
    assert_eq!(proxy.ended().code(), Some(0));
}

#[test]
fn px_088_a_head_in_parts_is_served_while_draining() {
    let stub = Stub::ok();
    let mut proxy = Config::svc(&[stub.address]).start();
    let mut fresh = Client::connect(proxy.address);
    let mut kept = Client::connect(proxy.address);
    assert_eq!(kept.get("/").status(), 200);
    fresh.send("GET / HTTP/1.1\r\nHo");
    kept.send("GET / HTTP/1.1\r\nHo");
    // Both parts have arrived when a later request was served.
    assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    proxy.signal("TERM");
    eventually("the drain", || {
        std::net::TcpStream::connect(proxy.address).is_err()
    });
    for client in [&mut fresh, &mut kept] {
        client.send("st: svc\r\n\r\n");
        let answer = client.response();
        assert!(answer.status() == 200 && answer.says_close(), "{answer:?}");
        assert!(client.closed());
    }
    assert_eq!(proxy.ended().code(), Some(0));
}

#[test]
fn px_088_grace_is_over() {
    let stub = Stub::script(|peer| {
        peer.request();
        peer.closed();
    });
    let mut proxy = Config::svc(&[stub.address])
        .top("app: {shutdown: {drain_timeout: 500ms}}")
        .start();
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    stub.wait_for_requests(1);
    let watch = Stopwatch::start();
    proxy.signal("TERM");
    assert_eq!(proxy.ended().code(), Some(0));
    assert!((450..10_000).contains(&watch.ms()), "{} ms", watch.ms());
    // A request without an answer gets ours, marked as such, not as the app's fault.
    let answer = client.response();
    assert_eq!((answer.status(), answer.reason()), (503, Some("draining")));
    assert!(client.closed());
    let line = proxy.access_line(0);
    assert_eq!(line["outrigger.reason"], "draining", "{line}");
    let finished = proxy.wait_for_event("drain_finished");
    assert_eq!(finished["open_connections"], 1, "{finished}");

    // A second signal ends at once.
    let mut proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    stub.wait_for_requests(2);
    proxy.signal("TERM");
    proxy.wait_for_event("drain_started");
    let watch = Stopwatch::start();
    proxy.signal("TERM");
    assert_eq!(proxy.ended().code(), Some(1));
    assert!(watch.ms() < 10_000, "{} ms", watch.ms());
}

#[test]
fn output_that_nobody_reads_does_not_keep_the_process() {
    let mut proxy = Config::default().start();
    proxy.stop_reading();
    let mut client = Client::connect(proxy.address);
    // Each is logged; together they fill the pipe.
    for _ in 0..1_000 {
        assert_eq!(client.get("/nobody").status(), 404);
    }
    proxy.signal("TERM");
    assert_eq!(proxy.ended().code(), Some(0));
}

#[test]
fn our_own_want_of_files_is_charged_to_nobody() {
    let stubs = [Stub::ok(), Stub::ok(), Stub::ok()];
    let addresses: Vec<SocketAddr> = stubs.iter().map(|s| s.address).collect();
    let proxy = Config::svc(&addresses).open_files(128).start();
    let mut clients: Vec<Client> = (0..200).map(|_| Client::connect(proxy.address)).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    }
    eventually("the limit", || proxy.errors().contains("accept pauses"));
    let answered = proxy.access();
    assert!(
        answered
            .iter()
            .all(|l| l["http.response.status_code"] == 200),
        "{answered:#?}"
    );
    drop(clients);
    eventually("service again", || {
        Client::connect(proxy.address).get("/").status() == 200
    });
    assert!(
        proxy
            .lines()
            .iter()
            .all(|l| l["event"] != "instance_ejected")
    );
}

#[test]
fn a_port_that_comes_back_needs_no_restart() {
    let stub = Stub::ok();
    let both = Config::svc(&[stub.address]).service("own", &[stub.address], "port: 0");
    let proxy = both.clone().start();
    for (config, want) in [(Config::svc(&[stub.address]), 1), (both, 0)] {
        let before = proxy
            .lines()
            .iter()
            .filter(|l| l["event"] == "config_reloaded")
            .count();
        proxy.reload(&config.text());
        let reloaded = || -> Vec<serde_json::Value> {
            let lines = proxy.lines();
            lines
                .into_iter()
                .filter(|l| l["event"] == "config_reloaded")
                .collect()
        };
        eventually("the reload", || reloaded().len() > before);
        let last = reloaded().pop().unwrap();
        assert_eq!(
            last["restart_required"].as_array().unwrap().len(),
            want,
            "{last}"
        );
    }
}

/// Sends requests until told to stop; how many, and what was not 200.
fn load(
    address: SocketAddr,
    stop: &Arc<AtomicBool>,
    sent: &Arc<AtomicUsize>,
) -> std::thread::JoinHandle<Vec<u16>> {
    let (stop, sent) = (Arc::clone(stop), Arc::clone(sent));
    std::thread::spawn(move || {
        let mut client = Client::connect(address);
        let mut bad = Vec::new();
        while !stop.load(SeqCst) {
            let status = client.get("/").status();
            sent.fetch_add(1, SeqCst);
            if status != 200 {
                bad.push(status);
            }
            pause_ms(2);
        }
        bad
    })
}

#[test]
fn px_089_reload_under_load() {
    let stub = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            if request.header("upgrade").is_some() {
                peer.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
                return echo(peer);
            }
            peer.send(OK);
        }
    });
    let address = stub.address;
    let config = move |n: usize| {
        let config = Config::svc_with(
            &[address],
            if n.is_multiple_of(2) {
                "via: none"
            } else {
                "via: response"
            },
        );
        if n == 5 {
            config
        } else {
            config.service("other", &[address], "")
        }
    };
    let proxy = config(0).workers(2).start();
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let loads: Vec<_> = (0..2).map(|_| load(proxy.address, &stop, &sent)).collect();
    let mut socket = tunnel(&proxy);
    let mut kept = Client::connect(proxy.address);
    assert!(!kept.get("/").headers.has("via"));
    for n in 1..=9 {
        let before = sent.load(SeqCst);
        proxy.reload(&config(n).workers(2).text());
        eventually("the reload", || {
            proxy
                .lines()
                .iter()
                .filter(|l| l["event"] == "config_reloaded")
                .count()
                == n
        });
        // The connection that was open takes the new settings with its next request.
        eventually("the new settings", || {
            kept.get("/").headers.has("via") == (n % 2 == 1)
        });
        eventually("requests in between", || sent.load(SeqCst) > before + 10);
    }
    socket.send("still");
    assert_eq!(socket.exactly(5), b"still");
    stop.store(true, SeqCst);
    for one in loads {
        assert_eq!(one.join().unwrap(), [0_u16; 0]);
    }
}

#[test]
fn px_090_bad_yaml_on_reload() {
    let (stub, proxy) = with_ok();
    let good = Config::svc(&[stub.address]).text();
    let rejected = |proxy: &Proxy, n: usize| {
        eventually("the refusal", || {
            proxy
                .lines()
                .iter()
                .filter(|l| l["event"] == "config_rejected")
                .count()
                == n
        });
        proxy
            .lines()
            .into_iter()
            .rfind(|l| l["event"] == "config_rejected")
            .unwrap()
    };
    proxy.reload("version: 1\nservices: {svc: [\n");
    let event = rejected(&proxy, 1);
    assert!(
        event["diagnostics"][0]
            .as_str()
            .unwrap()
            .contains("outrigger.yaml:"),
        "{event}"
    );
    proxy.reload(&format!("{good}limits: {{max_headers: -1}}\n"));
    let event = rejected(&proxy, 2);
    let place = event["diagnostics"][0].as_str().unwrap();
    assert!(
        place.contains("outrigger.yaml:") && place.contains("max_headers"),
        "{event}"
    );
    assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    let errors = proxy.errors();
    let lines: Vec<_> = errors
        .lines()
        .filter(|l| l.contains("reload refused"))
        .collect();
    assert_eq!(lines.len(), 2, "{errors}");
    assert!(
        lines.iter().all(|l| l.contains("outrigger.yaml:")),
        "{errors}"
    );
    proxy.reload(&good);
    proxy.wait_for_event("config_reloaded");
    assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
}
