//! Ejection by rules beyond errors of an instance, seen from outside: the slow trigger, ejection by
//! route.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::harness::{Client, Config, Proxy, Stub, eventually, pause_ms};

/// A running proxy with one service `svc` and one policy file.
struct Bench {
    proxy: Proxy,
    _place: tempfile::TempDir,
}

impl Bench {
    fn start(config: &Config, policy: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("policies")).unwrap();
        let file = place.path().join("policies/p.yaml");
        fs::write(file, format!("version: 1\npolicies:\n  - {policy}\n")).unwrap();
        let main = place.path().join("outrigger.yaml");
        fs::write(&main, config.text()).unwrap();
        Self {
            proxy: Proxy::start_at(&main),
            _place: place,
        }
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Answers after this time.
fn answering_after(ms: u64) -> Stub {
    Stub::script(move |peer| {
        while peer.request().is_some() {
            pause_ms(ms);
            peer.send(OK);
        }
    })
}

fn with_a_slow_one(mode: &str) -> (Vec<Stub>, Stub, Bench) {
    let quick: Vec<Stub> = (0..3).map(|_| Stub::ok()).collect();
    let slow = answering_after(60);
    let mut all: Vec<_> = quick.iter().map(|stub| stub.address).collect();
    all.push(slow.address);
    let policy = format!(
        "{{name: late, statistics_window: 1s, slow: {{factor: 2, floor: 30ms, min_calls: 5{mode}}}}}"
    );
    let config = Config::svc_with(&all, "load_balancer: round_robin");
    let bench = Bench::start(&config, &policy);
    (quick, slow, bench)
}

fn until(bench: &Bench, event: &str) -> serde_json::Value {
    until_for(bench, "/", event)
}

/// Asks for `path` until there is this event.
fn until_for(bench: &Bench, path: &str, event: &str) -> serde_json::Value {
    let mut client = Client::connect(bench.proxy.address);
    eventually(event, || {
        for _ in 0..8 {
            assert_eq!(client.get(path).status(), 200);
        }
        bench.proxy.lines().iter().any(|l| l["event"] == event)
    });
    bench.proxy.wait_for_event(event)
}

#[test]
fn an_instance_much_slower_than_its_peers_is_ejected_where_the_policy_says_enforce() {
    let (_quick, slow, bench) = with_a_slow_one(", mode: enforce");
    let event = until(&bench, "instance_ejected");
    assert_eq!(event["instance"], slow.address.to_string());
    assert_eq!(event["trigger"], "slow");
    assert_eq!(event["errors"], 0);
    assert_eq!(event["measured_peers"], 3);
    let [median, limit] = ["median_ms", "slow_above_ms"].map(|key| event[key].as_f64().unwrap());
    assert!(median > limit && limit >= 30.0, "{event}");
    let labels = ["trigger=\"slow\"", "mode=\"enforced\""];
    let counted = bench.proxy.metric("outrigger_ejections_total", &labels);
    assert_eq!(counted, 1);

    let seen = slow.requests().len();
    let mut client = Client::connect(bench.proxy.address);
    for _ in 0..20 {
        assert_eq!(client.get("/").status(), 200);
    }
    assert_eq!(slow.requests().len(), seen, "it gets no more requests");
    let upstream = bench.proxy.admin("/api/v1/upstreams/svc/instances");
    let instances = upstream["instances"].as_array().unwrap();
    let of_slow = instances
        .iter()
        .find(|i| i["instance"] == slow.address.to_string())
        .unwrap();
    assert_eq!(of_slow["state"], "ejected");
    let because = of_slow["ejected_because"].as_str().unwrap();
    assert!(because.starts_with("half of its "), "{because}");
}

#[test]
fn unwritten_a_slow_instance_is_only_told_of() {
    let (_quick, slow, bench) = with_a_slow_one("");
    let event = until(&bench, "would_eject");
    assert_eq!(event["instance"], slow.address.to_string());
    assert_eq!(event["trigger"], "slow");
    let seen = slow.requests().len();
    let mut client = Client::connect(bench.proxy.address);
    for _ in 0..8 {
        assert_eq!(client.get("/").status(), 200);
    }
    assert!(slow.requests().len() >= seen + 2, "it serves on");
    let labels = ["trigger=\"slow\"", "mode=\"observed\""];
    assert_eq!(bench.proxy.metric("outrigger_ejections_total", &labels), 1);
    let enforced = ["mode=\"enforced\""];
    assert_eq!(
        bench.proxy.metric("outrigger_ejections_total", &enforced),
        0
    );
}

/// Answers 503 under `/pay` while it is bad, and everything else well.
fn bad_for_pay(bad: &Arc<AtomicBool>) -> Stub {
    let bad = Arc::clone(bad);
    Stub::script(move |peer| {
        while let Some(request) = peer.request() {
            let fails = request.target().starts_with("/pay") && bad.load(SeqCst);
            peer.send(if fails { BUSY } else { OK });
        }
    })
}

const BUSY: &str = "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy";
const ROUTES: &str = "load_balancer: round_robin\n\
    routes: [{name: pay, match: {path_prefix: /pay}}, {name: list, match: {path_prefix: /list}}, \
    {name: find, match: {path_prefix: /find}}]";

#[test]
fn a_bad_route_loses_the_instance_and_the_others_keep_it() {
    let bad = Arc::new(AtomicBool::new(true));
    let half_good = bad_for_pay(&bad);
    let good = [Stub::ok(), Stub::ok(), Stub::ok()];
    let mut all: Vec<_> = good.iter().map(|stub| stub.address).collect();
    all.push(half_good.address);
    let policy = "{name: by-route, scope: route, statistics_window: 1s, lower_qps_limit: 5, \
                  recovery_detection_unit_time: 1s}";
    let bench = Bench::start(&Config::svc_with(&all, ROUTES), policy);
    let proxy = &bench.proxy;
    let mut client = Client::connect(proxy.address);
    let mut ask = |path: &str| client.get(path).status();

    eventually("the ejection", || {
        for path in ["/pay", "/pay", "/pay", "/list", "/find", "/other"] {
            for _ in 0..4 {
                assert_eq!(ask(path), 200, "retried elsewhere");
            }
        }
        let lines = proxy.lines();
        lines.iter().any(|l| l["event"] == "instance_ejected")
    });
    let event = proxy.wait_for_event("instance_ejected");
    assert_eq!(event["route"], "pay", "{event}");
    assert_eq!(event["instance"], half_good.address.to_string());
    let message = event["msg"].as_str().unwrap();
    assert!(message.contains(" from svc/pay: "), "{message}");
    let labels = ["route=\"pay\"", "mode=\"enforced\""];
    let counted = proxy.metric("outrigger_route_ejections_total", &labels);
    assert!(counted >= 1);

    let seen = |path: &str| {
        let all = half_good.requests();
        all.iter().filter(|r| r.target().starts_with(path)).count()
    };
    let instances = proxy.admin("/api/v1/upstreams/svc/instances");
    let of_it = |instances: &serde_json::Value| {
        let all = instances["instances"].as_array().unwrap().clone();
        let found = all
            .into_iter()
            .find(|i| i["instance"] == half_good.address.to_string());
        found.unwrap()
    };
    assert_eq!(of_it(&instances)["state"], "healthy", "as a whole it is in");
    let before = seen("/list");
    for _ in 0..8 {
        assert_eq!(ask("/list"), 200);
    }
    assert!(seen("/list") >= before + 2, "the others keep it");

    // It recovers: a request of the route is its trial, and the route has it back.
    bad.store(false, SeqCst);
    eventually("the return", || {
        assert_eq!(ask("/pay"), 200);
        let lines = proxy.lines();
        lines
            .iter()
            .any(|l| l["event"] == "instance_restored" && l["route"] == "pay")
    });
    let probes = "outrigger_recovery_probes_total";
    assert_eq!(proxy.metric(probes, &["result=\"good\""]), 1);
    let lines = proxy.lines();
    let failed = lines
        .iter()
        .filter(|l| l["event"] == "probe_failed")
        .count() as u64;
    let counted = ["failed", "expired"].map(|result| {
        let label = format!("result=\"{result}\"");
        proxy.metric(probes, &[&label])
    });
    assert_eq!(counted.iter().sum::<u64>(), failed, "of routes too");
    let whole = lines
        .iter()
        .any(|l| l["event"] == "instance_ejected" && l["route"].is_null());
    assert!(!whole, "never as a whole");
}

#[test]
fn half_of_the_routes_bad_takes_the_instance_out_whole() {
    let bad = Stub::script(|peer| {
        while let Some(request) = peer.request() {
            let fine = request.target().starts_with("/find");
            peer.send(if fine { OK } else { BUSY });
        }
    });
    let good = [Stub::ok(), Stub::ok(), Stub::ok()];
    let mut all: Vec<_> = good.iter().map(|stub| stub.address).collect();
    all.push(bad.address);
    let policy = "{name: by-route, scope: route, statistics_window: 1s, lower_qps_limit: 5}";
    let bench = Bench::start(&Config::svc_with(&all, ROUTES), policy);
    let proxy = &bench.proxy;
    let mut client = Client::connect(proxy.address);
    eventually("the ejection as a whole", || {
        for path in ["/pay", "/list", "/find"] {
            for _ in 0..4 {
                assert_eq!(client.get(path).status(), 200);
            }
        }
        let lines = proxy.lines();
        lines
            .iter()
            .any(|l| l["event"] == "instance_ejected" && l["trigger"] == "routes")
    });
    let lines = proxy.lines();
    let event = lines.iter().find(|l| l["trigger"] == "routes").unwrap();
    assert!(event["route"].is_null(), "{event}");
    assert!(event["bad_routes"].as_u64() >= Some(2), "{event}");
    let seen = bad.requests().len();
    for _ in 0..12 {
        assert_eq!(client.get("/find").status(), 200);
    }
    assert_eq!(bad.requests().len(), seen, "no route has it");
}

#[test]
fn an_operator_ends_what_routes_have_against_an_instance() {
    let bad = Arc::new(AtomicBool::new(true));
    let half_good = bad_for_pay(&bad);
    let good = [Stub::ok(), Stub::ok(), Stub::ok()];
    let mut all: Vec<_> = good.iter().map(|stub| stub.address).collect();
    all.push(half_good.address);
    let policy = "{name: by-route, scope: route, statistics_window: 1s, lower_qps_limit: 5}";
    let bench = Bench::start(&Config::svc_with(&all, ROUTES), policy);
    let proxy = &bench.proxy;
    until_for(&bench, "/pay", "instance_ejected");
    bad.store(false, SeqCst);
    let address = half_good.address.to_string();
    let instances = proxy.admin("/api/v1/upstreams/svc/instances");
    let all = instances["instances"].as_array().unwrap();
    let one = all.iter().find(|i| i["instance"] == address).unwrap();
    let why = one["why"].as_str().unwrap();
    assert!(why.ends_with("; ejected for route pay"), "{why}");
    let output = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(["restore", "svc", &address])
        .env_clear()
        .env("OUTRIGGER_ADMIN", proxy.listener("admin").to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let event = proxy.wait_for_event("instance_restored");
    assert_eq!(event["route"], "pay", "{event}");
    assert_eq!(event["restored_by"], "operator");
    let before = half_good.requests().len();
    eventually("the route has it again", || {
        let mut client = Client::connect(proxy.address);
        assert_eq!(client.get("/pay").status(), 200);
        half_good.requests().len() > before
    });
}
