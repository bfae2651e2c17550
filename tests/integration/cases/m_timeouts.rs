//! M. Time-outs and slow peers. Scaled down: the table's seconds are tenths here.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::CHUNKED;
use crate::harness::{
    Client, Config, Stopwatch, Stub, black_hole, eventually, pause_ms, run, tool,
};

#[test]
fn px_080_slow_head_silence_and_idle_keep_alive() {
    let stub = Stub::ok();
    let proxy = Config::svc(&[stub.address])
        .top("limits: {header_timeout: 600ms, keep_alive_timeout: 900ms}")
        .start();
    let address = proxy.address;
    let slow = std::thread::spawn(move || {
        let mut client = Client::connect(address);
        let watch = Stopwatch::start();
        for byte in b"GET / HTTP/1.1\r\nHost: svc\r\n\r\n" {
            client.send([*byte]);
            if client.closed_within(Duration::from_millis(100)) {
                break;
            }
        }
        (
            watch.elapsed(),
            client.wire.ended,
            crate::harness::latin1(&client.wire.buffer),
        )
    });
    let watch = Stopwatch::start();
    let mut silent = Client::connect(proxy.address);
    assert!(silent.closed());
    assert!(
        (550..8_000).contains(&watch.ms()),
        "silent: {} ms",
        watch.ms()
    );
    let mut idle = Client::connect(proxy.address);
    assert_eq!(idle.get("/").status(), 200);
    let watch = Stopwatch::start();
    assert!(idle.closed());
    assert!(
        (850..8_000).contains(&watch.ms()),
        "idle: {} ms",
        watch.ms()
    );
    let (took, ended, said) = slow.join().unwrap();
    assert!(
        ended && took < Duration::from_millis(1_400),
        "slow head: {took:?}"
    );
    assert!(said.is_empty() || said.contains(" 408 "), "{said}");
}

#[test]
fn px_080_slow_body() {
    let (_stub, proxy) = {
        let stub = Stub::script(|peer| {
            peer.request();
        });
        let proxy = Config::svc(&[stub.address])
            .top("limits: {body_idle_timeout: 300ms}")
            .start();
        (stub, proxy)
    };
    let mut client = Client::connect(proxy.address);
    client.send("POST / HTTP/1.1\r\nHost: svc\r\nContent-Length: 9\r\n\r\nabc");
    let answer = client.response();
    assert_eq!(
        (answer.status(), answer.reason()),
        (408, Some("client_timeout"))
    );
    assert!(answer.says_close() && client.closed());
    proxy.logged("client_timeout");
}

#[test]
fn px_081_no_head_from_the_instance() {
    let stub = Stub::script(|peer| {
        peer.request();
        let closed = peer.closed();
        peer.note(format!("closed: {closed}"));
    });
    let keys = "timeout: {request: 800ms}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let watch = Stopwatch::start();
    let answer = Client::connect(proxy.address).get("/");
    assert_eq!(
        (answer.status(), answer.reason()),
        (504, Some("request_timeout"))
    );
    assert!((780..8_000).contains(&watch.ms()), "{} ms", watch.ms());
    stub.wait_for_note("closed: true");

    let keys = "timeout: {attempt: 300ms}\nretry: {max_attempts: 1}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let answer = Client::connect(proxy.address).get("/");
    assert_eq!(
        (answer.status(), answer.reason()),
        (504, Some("attempt_timeout"))
    );
}

#[test]
fn px_082_long_but_active_download() {
    let keys = "timeout: {request: 300ms, idle: 600ms}";
    let stub = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
            for _ in 0..10 {
                peer.send([b'x'; 100]);
                pause_ms(if request.target() == "/stall" {
                    900
                } else {
                    150
                });
            }
        }
    });
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let answer = Client::connect(proxy.address).get("/");
    assert!(answer.complete && answer.body.len() == 1_000);
    let answer = Client::connect(proxy.address).get("/stall");
    assert!(
        !answer.complete && answer.body.len() == 100,
        "{}",
        answer.body.len()
    );
    proxy.logged("upstream_idle");

    // A slow app is no idle instance.
    const SIZE: usize = 16 << 20;
    let stub = Stub::answering(
        [
            format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n").into_bytes(),
            vec![b'x'; SIZE],
        ]
        .concat(),
    );
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let mut client = Client::connect(proxy.address);
    client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
    pause_ms(1_500);
    let answer = client.response();
    assert!(
        answer.complete && answer.body.len() == SIZE,
        "{}",
        answer.body.len()
    );
    assert!(proxy.access_line(0)["outrigger.reason"].is_null());
}

#[test]
fn px_083_black_hole_address() {
    let (_kept, hole) = black_hole();
    let stub = Stub::ok();
    let keys = "timeout: {connect: 400ms}\nload_balancer: round_robin";
    let proxy = Config::svc_with(&[hole, stub.address], keys).start();
    let mut slow = 0;
    for _ in 0..4 {
        let watch = Stopwatch::start();
        assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
        assert!(watch.ms() < 2_500, "{} ms", watch.ms());
        slow += u32::from(watch.ms() >= 400);
    }
    assert!(slow > 0, "the hole was never tried");
    let proxy = Config::svc_with(&[hole], keys).start();
    let answer = Client::connect(proxy.address).get("/");
    assert_eq!(
        (answer.status(), answer.reason()),
        (504, Some("connect_timeout"))
    );
}

#[test]
fn an_instance_that_takes_no_more_of_the_body() {
    let stub = Stub::script(|peer| {
        peer.head();
        pause_ms(3_000);
    });
    let keys = "timeout: {idle: 400ms}";
    let proxy = Config::svc_with(&[stub.address], keys).start();
    let mut client = Client::connect(proxy.address);
    client.send(format!("POST / HTTP/1.1\r\nHost: svc\r\n{CHUNKED}\r\n\r\n"));
    client
        .wire
        .stream
        .set_write_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let chunk = [b"100000\r\n".as_slice(), &vec![b'x'; 1 << 20], b"\r\n"].concat();
    let mut stuck = false;
    eventually("the pipe is full", || {
        stuck = !client.wire.write(&chunk);
        stuck
    });
    let answer = client.response();
    assert_eq!(
        (answer.status(), answer.reason()),
        (504, Some("upstream_idle"))
    );
}

/// Where the library is that `faketime` loads into a process.
fn faketime() -> Option<String> {
    let program = tool("faketime")?;
    let (_, said) = run(Command::new(program).args(["-f", "+0", "sh", "-c", "echo $LD_PRELOAD"]));
    Some(said.trim().to_owned())
}

#[test]
fn px_084_wall_clock_jumps() {
    let Some(library) = faketime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let clock = folder.path().join("clock");
    let set = |offset: &str| {
        let fresh = folder.path().join("fresh");
        std::fs::write(&fresh, format!("{offset}\n")).unwrap();
        std::fs::rename(&fresh, &clock).unwrap();
    };
    set("+0");
    let bad = Stub::script(|peer| {
        peer.request();
    });
    let good = Stub::ok();
    let slow = Stub::script(|peer| {
        peer.request();
        peer.closed();
    });
    let keys = "load_balancer: round_robin\nretry: {max_attempts: 1}";
    // As when somebody sets the clock: what is counted since the start of the machine stays.
    let proxy = Config::svc_with(&[bad.address, good.address], keys)
        .service("slow", &[slow.address], "timeout: {request: 4s}")
        .top("limits: {header_timeout: 4s}")
        .environment("LD_PRELOAD", &library)
        .environment("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap())
        .environment("FAKETIME_NO_CACHE", "1")
        .environment("DONT_FAKE_MONOTONIC", "1")
        .start();
    eventually("an ejection", || {
        Client::connect(proxy.address).get("/");
        proxy
            .lines()
            .iter()
            .any(|l| l["event"] == "instance_ejected")
    });
    let tried = bad.requests().len();
    let mut client = Client::connect(proxy.address);
    let stamp = |line: &Value| humantime::parse_rfc3339(line["ts"].as_str().unwrap()).unwrap();
    let before = stamp(&proxy.access_line(0));
    let hour = Duration::from_secs(3600);
    for jump in ["+2h", "-2h", "+0"] {
        set(jump);
        let mut waiting = Client::connect(proxy.address);
        let mut silent = Client::connect(proxy.address);
        let watch = Stopwatch::start();
        waiting.send("GET / HTTP/1.1\r\nHost: slow\r\n\r\n");
        silent.send("GET / HT");
        // Nothing ends early ...
        for _ in 0..50 {
            assert_eq!(
                client.get("/").text(),
                "ok",
                "{jump}: the ejected one came back"
            );
        }
        assert!(waiting.is_quiet() && silent.is_quiet(), "{jump}");
        // ... and nothing late.
        let answer = waiting.response();
        assert_eq!(answer.reason(), Some("request_timeout"), "{jump}");
        assert!(silent.closed_within(Duration::from_secs(20)), "{jump}");
        assert!(watch.ms() >= 3_900, "{jump}: {} ms", watch.ms());
        // The jump was there: the stamps show it.
        eventually("lines of that time", || {
            let last = stamp(proxy.access().last().unwrap());
            match jump {
                "+2h" => last > before + hour,
                "-2h" => last < before - hour,
                _ => last > before && last < before + hour,
            }
        });
    }
    assert_eq!(bad.requests().len(), tried, "no probe is due yet");
    let early = ["instance_restored", "probe_failed"];
    let events = proxy.lines();
    assert!(
        events
            .iter()
            .all(|l| !early.iter().any(|e| l["event"] == *e))
    );
}
