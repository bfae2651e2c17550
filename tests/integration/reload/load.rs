//! Many reloads under load, with streams open: nothing fails, nothing is cut, nothing is forgotten,
//! nothing piles up.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use serde_json::Value;

use crate::harness::{
    Client, Config, H2Client, H2Stub, Proxy, Stub, block_on, eventually, pause_ms, request,
};

const POLICY: &str = "version: 1\npolicies:\n  - name: quick\n    consecutive_errors: 3\n\
                      \x20   recovery_detection_unit_time: 10m\n";
const UPGRADE: &str =
    "GET /ws HTTP/1.1\r\nHost: ws\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";

/// Sends requests until told to stop; what was not 200.
fn load(
    address: SocketAddr,
    stop: &Arc<AtomicBool>,
    sent: &Arc<AtomicUsize>,
) -> JoinHandle<Vec<u16>> {
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
            pause_ms(4);
        }
        bad
    })
}

/// A gRPC call whose messages the test sends one by one.
fn streaming(next: &Arc<tokio::sync::Notify>) -> H2Stub {
    let next = Arc::clone(next);
    H2Stub::start(move |mut call| {
        let next = Arc::clone(&next);
        async move {
            let response = Response::builder().header("content-type", "application/grpc");
            let head = response.body(()).unwrap();
            let mut stream = call.respond.send_response(head, false).unwrap();
            for _ in 0..3 {
                next.notified().await;
                let message = Bytes::from_static(b"\0\0\0\0\x01x");
                stream.send_data(message, false).unwrap();
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            stream.send_trailers(trailers).unwrap();
        }
    })
}

/// The instance of `svc` that is out: k, next probe, times ejected.
fn out(proxy: &Proxy) -> (Value, Value, Value) {
    let answer = proxy.admin("/api/v1/upstreams/svc/instances");
    let all = answer["instances"].as_array().unwrap().clone();
    let one = all.into_iter().find(|i| i["state"] == "ejected").unwrap();
    // The next probe is told by the wall clock: to the second it stands still.
    let next = one["next_probe_unix_s"].as_f64().unwrap().round();
    (
        one["k"].clone(),
        Value::from(next),
        one["times_ejected"].clone(),
    )
}

#[test]
fn twenty_reloads_three_of_them_broken() {
    let (good, other) = (Stub::ok(), Stub::ok());
    let bad = Stub::answering("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n");
    let talking = Stub::script(|peer| {
        peer.request();
        peer.send(SWITCHED);
        let mut wire = peer.take_wire();
        while wire.buffer.len() < 5 && wire.fill() {}
        let said = wire.take(wire.buffer.len());
        let _gone = wire.write(&said);
        let _closed = peer.closed();
    });
    let next = Arc::new(tokio::sync::Notify::new());
    let grpc = streaming(&next);
    let config = |n: usize| {
        let via = ["via: none", "via: response"][n % 2];
        let config = Config::svc_with(&[good.address, other.address, bad.address], via)
            .service("ws", &[talking.address], "")
            .service("grpc", &[grpc.address], "protocol: grpc");
        // Never twice the same, so that none is unchanged.
        format!("# {n}\n{}", config.workers(2).text())
    };
    let place = tempfile::tempdir().unwrap();
    let policy = place.path().join("policies/quick.yaml");
    fs::create_dir(place.path().join("policies")).unwrap();
    fs::write(&policy, POLICY).unwrap();
    let main = place.path().join("outrigger.yaml");
    fs::write(&main, config(0)).unwrap();
    let proxy = Proxy::start_at(&main);

    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let loads: Vec<_> = (0..3).map(|_| load(proxy.address, &stop, &sent)).collect();
    proxy.wait_for_event("instance_ejected");
    let before = out(&proxy);
    let mut socket = Client::connect(proxy.address);
    socket.send(UPGRADE);
    assert_eq!(socket.head().status(), 101);
    let h2 = H2Client::connect(proxy.address);
    let asked = [
        ("x-outrigger-upstream", "grpc"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut stream = block_on(async {
        let mut send = h2.send.clone().ready().await.unwrap();
        let (response, mut body) = send.send_request(request("POST", &asked), false).unwrap();
        body.send_data(Bytes::from_static(b"\0\0\0\0\x01x"), true)
            .unwrap();
        response.await.unwrap().into_body()
    });
    let mut message = || {
        next.notify_one();
        let data = block_on(async { stream.data().await }).unwrap().unwrap();
        let _released = stream.flow_control().release_capacity(data.len());
        assert_eq!(data, &b"\0\0\0\0\x01x"[..]);
    };
    message();

    for n in 1..=20 {
        let seen = sent.load(SeqCst);
        let ended = |result: &str| proxy.reloads(result);
        match n {
            5 => {
                let counted = ended("rejected");
                proxy.reload("version: 1\nservices: {svc: [\n");
                eventually("a syntax error", || ended("rejected") == counted + 1);
            }
            10 => {
                let counted = ended("rejected");
                proxy.reload(&format!("{}limts: {{}}\n", config(n)));
                eventually("an unknown key", || ended("rejected") == counted + 1);
            }
            15 => {
                fs::write(&policy, POLICY.replace("10m", "soon")).unwrap();
                proxy.signal("HUP");
                eventually("a bad policy file", || ended("partial") == 1);
                fs::write(&policy, POLICY).unwrap();
            }
            _ => {
                let counted = ended("applied");
                proxy.reload(&config(n));
                eventually("a reload", || ended("applied") == counted + 1);
            }
        }
        eventually("requests in between", || sent.load(SeqCst) > seen + 5);
    }
    assert_eq!(
        (proxy.reloads("applied"), proxy.reloads("rejected")),
        (17, 2)
    );
    message();
    message();
    let trailers = block_on(async {
        assert!(stream.data().await.is_none());
        stream.trailers().await
    });
    assert_eq!(trailers.unwrap().unwrap()["grpc-status"], "0");
    socket.send("still");
    assert_eq!(socket.exactly(5), b"still");
    assert_eq!(
        out(&proxy),
        before,
        "k, next probe and count of the ejection"
    );
    stop.store(true, SeqCst);
    for one in loads {
        assert_eq!(one.join().unwrap(), [0_u16; 0]);
    }
}

#[test]
fn two_hundred_reloads_leave_no_open_file_behind() {
    let stub = Stub::ok();
    let config = |n: usize| {
        let via = ["via: none", "via: response"][n % 2];
        Config::svc_with(&[stub.address], via).text()
    };
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    let mut files = Vec::new();
    for n in 1..=200 {
        let counted = proxy.reloads("applied");
        proxy.reload(&config(n));
        eventually("the reload", || proxy.reloads("applied") > counted);
        assert_eq!(client.get("/").status(), 200);
        if n % 20 == 0 {
            files.push(proxy.open_files());
        }
    }
    let (first, last) = (files.first().unwrap(), files.last().unwrap());
    // A scrape's connection may be open at the moment of counting.
    assert!(last <= &(first + 4), "{files:?}");
    assert_eq!(stub.connections(), 1, "one connection served them all");
}
