//! How instances are picked, on the built proxy: keys that stay where they are, near instances first,
//! tiers of the DNS, new instances that start slowly.

use std::collections::BTreeMap;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::Value;

use crate::harness::{Client, Config, DnsStub, Proxy, Says, Stub, closed_port, eventually};

/// An instance that says its name, and passes its check while it is well.
struct Named {
    stub: Stub,
    well: Arc<AtomicBool>,
}

impl Named {
    fn start(name: &str) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), name)
    }

    fn on(listener: TcpListener, name: &str) -> Self {
        let well = Arc::new(AtomicBool::new(true));
        let (name, seen) = (name.to_owned(), Arc::clone(&well));
        let stub = Stub::on(listener, move |peer| {
            while let Some(request) = peer.request() {
                let length = name.len();
                let answer = if request.target() != "/health" || seen.load(SeqCst) {
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{name}")
                } else {
                    "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".to_owned()
                };
                peer.send(answer);
            }
        });
        Self { stub, well }
    }

    fn set(&self, well: bool) {
        self.well.store(well, SeqCst);
    }
}

const CHECK: &str = "health_check: {http: /health, interval: 50ms, rise: 1, fall: 1}";

/// Who answers how many of `n` requests.
fn counts(proxy: &Proxy, n: usize) -> BTreeMap<String, usize> {
    let mut client = Client::connect(proxy.address);
    let mut counts = BTreeMap::new();
    for _ in 0..n {
        let answer = client.get("/");
        assert_eq!(answer.status(), 200);
        *counts.entry(answer.text()).or_default() += 1;
    }
    counts
}

fn names(counts: &BTreeMap<String, usize>) -> Vec<&str> {
    counts.keys().map(String::as_str).collect()
}

/// The answer of each user's request on one new connection of the app.
fn by_user(proxy: &Proxy) -> Vec<String> {
    let mut client = Client::connect(proxy.address);
    let one = |user| {
        client.send(format!(
            "GET /?{user} HTTP/1.1\r\nHost: svc\r\nX-User: user-{user}\r\n\r\n"
        ));
        client.response().text()
    };
    (0..60).map(one).collect()
}

fn instances(proxy: &Proxy) -> Vec<Value> {
    let answer = proxy.admin("/api/v1/upstreams/svc/instances");
    answer["instances"].as_array().unwrap().clone()
}

#[test]
fn keys_stay_where_they_are_across_connections_reloads_and_processes() {
    for balancer in ["ring_hash", "maglev"] {
        let all: Vec<Named> = (0..5).map(|n| Named::start(&n.to_string())).collect();
        let mut addresses: Vec<_> = all.iter().map(|one| one.stub.address).collect();
        let keys = format!("load_balancer: {balancer}\nhash: {{header: x-user}}\n{CHECK}");
        let proxy = Config::svc_with(&addresses, &keys).workers(2).start();
        let first = by_user(&proxy);
        let mut used = first.clone();
        used.sort();
        used.dedup();
        assert!(used.len() >= 4, "{balancer}: {first:?}");
        assert_eq!(by_user(&proxy), first, "{balancer}: another connection");

        let text = format!("{}    retry: {{max_attempts: 3}}\n", proxy.config_text());
        proxy.reload(&text);
        eventually("the reload", || proxy.reloads("applied") == 1);
        assert_eq!(by_user(&proxy), first, "{balancer}: after a reload");

        addresses.reverse();
        let other = Config::svc_with(&addresses, &keys).start();
        assert_eq!(
            by_user(&other),
            first,
            "{balancer}: another process, another order"
        );

        // One goes: its users go elsewhere, the others stay; it comes back, and they with it.
        let gone = &first[0];
        let number: usize = gone.parse().unwrap();
        all[number].set(false);
        eventually("its users go", || !by_user(&proxy).contains(gone));
        for (before, now) in first.iter().zip(by_user(&proxy)) {
            assert!(
                *before == now || before == gone,
                "{balancer}: {before} moved to {now}"
            );
        }
        all[number].set(true);
        eventually("they are back", || by_user(&proxy) == first);
        // Without the header any instance is as good.
        assert!(counts(&proxy, 60).len() >= 4, "{balancer}");
    }
}

#[test]
fn near_instances_come_first_and_the_rest_helps_when_they_fail() {
    let near: Vec<Named> = (0..3).map(|n| Named::start(&format!("near-{n}"))).collect();
    let far: Vec<Named> = (0..2).map(|n| Named::start(&format!("far-{n}"))).collect();
    let item =
        |one: &Named, zone: &str| format!("{{address: \"{}\", zone: {zone}}}", one.stub.address);
    let list: Vec<String> = near
        .iter()
        .map(|one| item(one, "a"))
        .chain(far.iter().map(|one| item(one, "b")))
        .collect();
    let proxy = Config::default()
        .top("app: {zone: a}")
        .any_service(
            "svc",
            &format!(
                "endpoints: [{}]\nlocality: {{prefer: zone}}\nload_balancer: random\n{CHECK}",
                list.join(", ")
            ),
        )
        .start();
    let is_far = |name: &&str| name.starts_with("far");
    let to_far = |n: usize| -> usize {
        let counts = counts(&proxy, n);
        counts
            .iter()
            .filter(|(name, _)| name.starts_with("far"))
            .map(|(_, n)| n)
            .sum()
    };
    assert_eq!(to_far(60), 0);
    let preferred: Vec<bool> = instances(&proxy)
        .iter()
        .map(|i| i["preferred"].as_bool().unwrap())
        .collect();
    assert_eq!(preferred, [true, true, true, false, false]);
    assert_eq!(instances(&proxy)[3]["zone"], "b");

    // A third of three: 33 of 70, so about half of the traffic goes on.
    near[0].set(false);
    near[1].set(false);
    eventually("about half helps", || (60..140).contains(&to_far(200)));
    assert!(names(&counts(&proxy, 100)).contains(&"near-2"));

    near[2].set(false);
    eventually("all of it goes on", || to_far(40) == 40);
    // Nobody passes: everybody counts as passing, and near ones come first again.
    far[0].set(false);
    far[1].set(false);
    eventually("near ones first", || to_far(40) == 0);
    for one in near.iter().chain(&far) {
        one.set(true);
    }
    eventually("as before", || {
        counts(&proxy, 60)
            .keys()
            .map(String::as_str)
            .filter(is_far)
            .count()
            == 0
            && instances(&proxy).iter().all(|i| i["check_passes"] == true)
    });
}

#[test]
fn a_retry_goes_on_with_the_next_level() {
    let (_kept, closed) = closed_port();
    let far = Named::start("far");
    let list = format!(
        "endpoints: [\"{closed}\", {{address: \"{}\", priority: 1}}]",
        far.stub.address
    );
    // A single failure ejects nobody: it is the retry that saves the request.
    let proxy = Config::default().any_service("svc", &list).start();
    assert_eq!(names(&counts(&proxy, 1)), ["far"]);
    assert_eq!(instances(&proxy)[0]["state"], "healthy");
}

#[test]
fn tiers_of_srv_records_fail_over_and_back() {
    let (first, second) = loop {
        let (Ok(a), Ok(b)) = (
            TcpListener::bind("127.0.0.2:0"),
            TcpListener::bind("127.0.0.3:0"),
        ) else {
            continue;
        };
        break (Named::on(a, "first"), Named::on(b, "second"));
    };
    let dns = DnsStub::start();
    let ip = |text: &str| -> Vec<IpAddr> { vec![text.parse().unwrap()] };
    dns.set("one.test", Says::Ips(60, ip("127.0.0.2")));
    dns.set("two.test", Says::Ips(60, ip("127.0.0.3")));
    let records = vec![
        (20, 5, second.stub.address.port(), "two.test".to_owned()),
        (10, 5, first.stub.address.port(), "one.test".to_owned()),
    ];
    dns.set("_http._tcp.svc.test", Says::Services(60, records));
    let proxy = Config::default()
        .top(&format!("registries: {{d: {}}}", dns.registry("")))
        .registry_service("svc", "_http._tcp.svc.test", CHECK)
        .start();
    assert_eq!(names(&counts(&proxy, 20)), ["first"]);
    let tiers: Vec<u64> = instances(&proxy)
        .iter()
        .map(|i| i["priority"].as_u64().unwrap())
        .collect();
    assert_eq!(tiers, [10, 20]);
    first.set(false);
    eventually("the next tier", || names(&counts(&proxy, 20)) == ["second"]);
    first.set(true);
    eventually("the first tier again", || {
        names(&counts(&proxy, 20)) == ["first"]
    });
}

#[test]
fn a_new_instance_starts_with_a_small_share() {
    let (old, new) = (Named::start("old"), Named::start("new"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("endpoints.yaml");
    let list = |all: &[&Named]| {
        let all: Vec<String> = all
            .iter()
            .map(|one| format!("\"{}\"", one.stub.address))
            .collect();
        let text = format!("version: 1\nservices:\n  svc: [{}]\n", all.join(", "));
        let fresh = path.with_extension("fresh");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(&fresh, &path).unwrap();
    };
    list(&[&old]);
    let proxy = Config::default()
        .top(&format!(
            "registries: {{f: {{kind: file, path: {}}}}}",
            path.display()
        ))
        .any_service("svc", "load_balancer: random\nslow_start: 24h")
        .start();
    // Those of the first set are not new.
    assert_eq!(names(&counts(&proxy, 5)), ["old"]);
    assert_eq!(instances(&proxy)[0]["share"], 1.0);
    list(&[&old, &new]);
    eventually("the new one", || instances(&proxy).len() == 2);
    let view = &instances(&proxy)[1];
    assert!(
        (0.125..0.13).contains(&view["share"].as_f64().unwrap()),
        "{view}"
    );
    assert!(
        view["why"].as_str().unwrap().starts_with("new, 1"),
        "{view}"
    );
    // An eighth of a half, against a half: a ninth of 900.
    let share = counts(&proxy, 900)["new"];
    assert!((50..160).contains(&share), "{share} of 900");
}

#[test]
fn a_subset_serves_alone_and_is_replaced_only_where_that_is_allowed() {
    let (one, two) = (Named::start("v1"), Named::start("v2"));
    let list = format!(
        "endpoints: [{{address: \"{}\", metadata: {{version: \"1\"}}}}, {{address: \"{}\", metadata: {{version: \"2\"}}}}]",
        one.stub.address, two.stub.address
    );
    for (fallback, status) in [("any", 200), ("none", 503)] {
        let subset = |version: u32| {
            format!(
                "{list}\nsubset: {{metadata: {{version: \"{version}\"}}, fallback: {fallback}}}"
            )
        };
        let proxy = Config::default()
            .any_service("svc", &subset(2))
            .any_service("other", &subset(3))
            .start();
        assert_eq!(names(&counts(&proxy, 20)), ["v2"]);
        let mut client = Client::connect(proxy.address);
        client.send("GET / HTTP/1.1\r\nHost: other\r\n\r\n");
        let answer = client.response();
        assert_eq!(answer.status(), status, "{fallback}");
        if status == 503 {
            assert_eq!(answer.reason(), Some("no_instances"));
            assert!(answer.text().contains("subset"), "{}", answer.text());
            let view = &instances(&proxy)[0];
            assert_eq!(view["state"], "disabled");
            assert!(view["why"].as_str().unwrap().contains("subset"), "{view}");
        }
        // A reload lets the other version in.
        proxy.reload(
            &proxy
                .config_text()
                .replace("version: \"2\"}, fallback", "version: \"1\"}, fallback"),
        );
        eventually("the other version", || names(&counts(&proxy, 5)) == ["v1"]);
    }
}

#[test]
fn near_ones_that_the_registry_calls_unhealthy_are_capacity_that_is_missing() {
    let near: Vec<Named> = (0..3).map(|n| Named::start(&format!("near-{n}"))).collect();
    let far: Vec<Named> = (0..2).map(|n| Named::start(&format!("far-{n}"))).collect();
    let host = |one: &Named, zone: &str, healthy: bool| {
        let at = one.stub.address;
        let ip = at.ip().to_string();
        serde_json::json!({"ip": ip, "port": at.port(), "healthy": healthy, "metadata": {"zone": zone}})
    };
    let near = near.iter().zip([true, false, false]);
    let near = near.map(|(one, healthy)| host(one, "a", healthy));
    let hosts: Vec<Value> = near
        .chain(far.iter().map(|one| host(one, "b", true)))
        .collect();
    let list = serde_json::json!({"name": "svc", "hosts": hosts, "cacheMillis": 3000}).to_string();
    let registry = Stub::answering(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{list}",
        list.len()
    ));
    let at = registry.address;
    let proxy = Config::default()
        .top("app: {zone: a}")
        .top(&format!(
            "registries: {{n: {{kind: nacos, protocol: http, servers: [\"{at}\"]}}}}"
        ))
        .any_service(
            "svc",
            "registry: n\nlocality: {prefer: zone}\nload_balancer: random",
        )
        .start();
    let all = counts(&proxy, 200);
    assert!(
        all.keys()
            .all(|name| name == "near-0" || name.starts_with("far")),
        "{all:?}"
    );
    // A third of three: 33 of 70, so about half of the traffic goes on.
    let to_far: usize = all
        .iter()
        .filter(|(name, _)| name.starts_with("far"))
        .map(|(_, n)| n)
        .sum();
    assert!((60..140).contains(&to_far), "{all:?}");
}
