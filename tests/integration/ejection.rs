//! Ejection by rules beyond errors, seen from outside: the slow trigger.

use std::fs;

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
    let mut client = Client::connect(bench.proxy.address);
    eventually(event, || {
        for _ in 0..8 {
            client.send("GET / HTTP/1.1\r\nHost: svc\r\n\r\n");
            assert_eq!(client.response().status(), 200);
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
