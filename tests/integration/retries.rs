//! Retries as the servers ask for them, and time limits that give everything back.

use std::sync::Mutex;
use std::time::Duration;

use http::HeaderValue;

use crate::harness::{Client, Config, H2Client, H2Stub, Stopwatch, Stub, eventually};

#[test]
fn retry_after_is_waited_for_where_it_fits() {
    let busy = |wait: &str| {
        format!("HTTP/1.1 503 Busy\r\nRetry-After: {wait}\r\nContent-Length: 4\r\n\r\nbusy")
    };
    // (what it says, at least this long, at most)
    for (wait, least, most) in [("1", 1_000, 20_000), ("3600", 0, 3_000)] {
        let (busy, fine) = (Stub::answering(busy(wait)), Stub::ok());
        let keys = "load_balancer: round_robin";
        let proxy = Config::svc_with(&[busy.address, fine.address], keys).start();
        let mut client = Client::connect(proxy.address);
        let watch = Stopwatch::start();
        assert_eq!(client.get("/").text(), "ok");
        assert!(
            (least..most).contains(&watch.ms()),
            "{wait}: {} ms",
            watch.ms()
        );
        assert_eq!(busy.requests().len(), 1);
    }
}

#[test]
fn a_grpc_server_says_when_and_whether_to_try_again() {
    let first = |pushback: &'static str| {
        H2Stub::start(move |mut call| async move {
            let mut response = http::Response::new(());
            let headers = response.headers_mut();
            headers.insert("content-type", HeaderValue::from_static("application/grpc"));
            headers.insert("grpc-status", HeaderValue::from_static("14"));
            headers.insert("grpc-retry-pushback-ms", HeaderValue::from_static(pushback));
            let _gone = call.respond.send_response(response, true);
        })
    };
    let seen: &'static Mutex<Vec<Option<String>>> = Box::leak(Box::default());
    let second = || {
        H2Stub::start(move |mut call| async move {
            let said = call.header("grpc-previous-rpc-attempts");
            seen.lock().unwrap().push(said);
            let mut response = http::Response::new(());
            let headers = response.headers_mut();
            headers.insert("content-type", HeaderValue::from_static("application/grpc"));
            headers.insert("grpc-status", HeaderValue::from_static("0"));
            let _gone = call.respond.send_response(response, true);
        })
    };
    let keys = "load_balancer: round_robin\nretry: {methods: [grpc]}";
    let (pushes, fine) = (first("700"), second());
    let proxy = Config::svc_with(&[pushes.address, fine.address], keys).start();
    let h2 = H2Client::connect(proxy.address);
    let watch = Stopwatch::start();
    let answer = h2.grpc(&[("grpc-previous-rpc-attempts", "2")]).unwrap();
    assert_eq!(answer.header("grpc-status"), Some("0"));
    assert!(watch.ms() >= 700, "{} ms", watch.ms());
    assert_eq!(*seen.lock().unwrap(), [Some("3".to_owned())]);
    // A negative number: not again.
    let (never, fine) = (first("-1"), second());
    let proxy = Config::svc_with(&[never.address, fine.address], keys).start();
    let h2 = H2Client::connect(proxy.address);
    let answer = h2.grpc(&[]).unwrap();
    assert_eq!(answer.header("grpc-status"), Some("14"));
    assert_eq!((never.calls(), fine.calls()), (1, 0));
}

#[test]
fn a_hang_is_answered_at_the_limit_and_gives_everything_back() {
    let stub = Stub::script(|peer| while peer.request().is_some() && !peer.closed() {});
    let keys = "timeout: {request: 800ms}\nretry: {max_attempts: 1}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    assert_eq!(Client::connect(proxy.address).get("/").status(), 504);
    eventually("the first is over", || stub.open() == 0);
    // Scrapes and files that are opened once are there from here on.
    assert_eq!(proxy.metric("outrigger_requests_in_flight", &[]), 0);
    let before = proxy.open_files();
    let clients: Vec<_> = (0..40)
        .map(|_| {
            let address = proxy.address;
            std::thread::spawn(move || {
                let mut client = Client::connect(address);
                let watch = Stopwatch::start();
                let answer = client.get("/");
                (
                    answer.status(),
                    answer.reason().map(str::to_owned),
                    watch.elapsed(),
                )
            })
        })
        .collect();
    for client in clients {
        let (status, reason, took) = client.join().unwrap();
        assert_eq!((status, reason.as_deref()), (504, Some("request_timeout")));
        assert!(took >= Duration::from_millis(790), "{took:?}");
    }
    eventually("its connections are closed", || stub.open() == 0);
    // A scrape may be open at that moment; a leak would be forty.
    eventually("the files are given back", || {
        proxy.open_files() <= before + 1
    });
    assert_eq!(proxy.metric("outrigger_requests_in_flight", &[]), 0);
    assert_eq!(
        proxy.metric("outrigger_open_connections", &["side=\"upstream\""]),
        0
    );
}
