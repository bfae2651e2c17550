//! O. Names: dual stack, changing records, a resolver that fails; and hosts outside any registry.

use std::net::{IpAddr, TcpListener};

use serde_json::Value;

use crate::harness::{Client, Config, DnsStub, Peer, Proxy, Says, Stub, eventually};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn says(text: &'static str) -> impl Fn(&mut Peer) + Send + Sync + 'static {
    move |peer| {
        while peer.request().is_some() {
            peer.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{text}"
            ));
        }
    }
}

/// Two instances on one port of two loopback addresses.
fn two() -> (Stub, Stub, u16) {
    loop {
        let a = TcpListener::bind("127.0.0.2:0").unwrap();
        let port = a.local_addr().unwrap().port();
        if let Ok(b) = TcpListener::bind(("127.0.0.3", port)) {
            return (Stub::on(a, says("a")), Stub::on(b, says("b")), port);
        }
    }
}

fn get(proxy: &Proxy, host: &str) -> crate::harness::Message {
    let mut client = Client::connect(proxy.address);
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    ));
    client.response()
}

/// Of the only registry, as `outrigger registries` shows it.
fn registry(proxy: &Proxy, name: &str) -> Value {
    let answer = proxy.admin("/api/v1/registries");
    let all = answer["registries"].as_array().unwrap();
    let found = all.iter().find(|r| r["name"] == name);
    found
        .cloned()
        .unwrap_or_else(|| panic!("no {name}: {answer}"))
}

#[test]
fn px_091_dual_stack_name() {
    // 127.0.0.1 is open, the same port of ::1 is not.
    let stub = Stub::on(TcpListener::bind("127.0.0.1:0").unwrap(), says("a"));
    let port = stub.address.port();
    let dns = DnsStub::start();
    dns.set(
        "both_1.test",
        Says::Ips(60, vec![ip("::1"), ip("127.0.0.1")]),
    );
    let once = "retry: {max_attempts: 1}";
    let proxy = Config::default()
        .top(&format!("registries: {{d: {}}}", dns.registry("")))
        .any_service(
            "static",
            &format!("endpoints: [\"localhost:{port}\"]\n{once}"),
        )
        .registry_service("dns", &format!("both_1.test:{port}"), once)
        .registry_service("host", &format!("localhost:{port}"), once)
        .start();
    for n in 0..40 {
        for service in ["static", "dns", "host"] {
            assert_eq!(get(&proxy, service).status(), 200, "{service} {n}");
        }
    }
    assert_eq!(proxy.attempts("success"), 120);
    let errors = proxy.metric("outrigger_attempts_total", &[]) - proxy.attempts("success");
    assert_eq!(errors, 0, "an address that nobody listens on was tried");
}

#[test]
fn px_093_record_changes_and_the_resolver_fails() {
    let (_a, _b, port) = two();
    let dns = DnsStub::start();
    dns.set("svc.test", Says::Ips(1, vec![ip("127.0.0.2")]));
    let proxy = Config::default()
        .top(&format!("registries: {{d: {}}}", dns.registry("")))
        .registry_service("svc", &format!("svc.test:{port}"), "")
        .registry_service("late", &format!("late.test:{port}"), "")
        .start();
    assert_eq!(get(&proxy, "svc").text(), "a");
    // B is there within the TTL of a second and a little.
    dns.set("svc.test", Says::Ips(1, vec![ip("127.0.0.3")]));
    eventually("the other address", || get(&proxy, "svc").text() == "b");

    // The resolver fails: the last good set stays, and it is told.
    dns.set("svc.test", Says::Fails);
    let asked = dns.count("svc.test");
    eventually("failures", || dns.count("svc.test") > asked + 2);
    eventually("the set is stale", || {
        registry(&proxy, "d")["stale"] == true
    });
    assert_eq!(get(&proxy, "svc").text(), "b");
    assert!(
        registry(&proxy, "d")["last_error"]
            .as_str()
            .unwrap()
            .contains("svc.test"),
        "{}",
        registry(&proxy, "d")
    );

    // Another service has no name at the start, and heals by itself.
    let answer = get(&proxy, "late");
    assert_eq!(
        (answer.status(), answer.reason()),
        (503, Some("no_instances"))
    );
    dns.set("late.test", Says::Ips(1, vec![ip("127.0.0.2")]));
    eventually("it heals", || get(&proxy, "late").status() == 200);
    dns.set("svc.test", Says::Ips(1, vec![ip("127.0.0.2")]));
    eventually("it heals too", || get(&proxy, "svc").text() == "a");
}

#[test]
fn a_service_without_a_port_is_told_at_load() {
    let proxy = Config::default()
        .top("registries: {d: {kind: dns}}")
        .registry_service("orders", "orders.internal", "");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("outrigger.yaml");
    std::fs::write(&file, proxy.text()).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_outrigger"));
    let (good, text) = crate::harness::run(command.arg("check").arg(&file));
    assert!(!good, "{text}");
    assert!(
        text.contains("DNS does not tell the port of `orders.internal`"),
        "{text}"
    );
    assert!(
        text.contains("registry_name: \"orders.internal:8080\""),
        "{text}"
    );
}

#[test]
fn passthrough_hosts_and_nothing_else() {
    let (a, b, port) = two();
    let dns = DnsStub::start();
    let both = Says::Ips(60, vec![ip("127.0.0.2"), ip("127.0.0.3")]);
    dns.set("api.example.com", both.clone());
    dns.set("x.internal", both.clone());
    dns.set("evil.example.com", both);
    let proxy = Config::default()
        .top("passthrough: {hosts: [api.example.com, \"*.internal\"]}")
        .top(&format!(
            "registries: {{passthrough: {}}}",
            dns.registry("")
        ))
        .start();
    let hosts = [
        format!("api.example.com:{port}"),
        format!("X.internal:{port}"),
    ];
    for host in &hosts {
        for _ in 0..10 {
            let answer = get(&proxy, host);
            assert_eq!(answer.status(), 200, "{host}: {answer:?}");
        }
    }
    // Both addresses are instances of one upstream, and the host is that of the request.
    assert!(!a.requests().is_empty() && !b.requests().is_empty());
    let first = a.requests().remove(0);
    assert_eq!(first.headers.all("host"), [hosts[0].as_str()]);
    let upstreams = proxy.admin("/api/v1/upstreams");
    let names: Vec<&str> = upstreams["upstreams"]
        .as_array()
        .unwrap()
        .iter()
        .map(|u| u["name"].as_str().unwrap())
        .collect();
    let want = [hosts[0].as_str(), &format!("x.internal:{port}")];
    assert_eq!(names, want);
    // Other ports are other upstreams, and other hosts do not exist.
    for host in [
        "evil.example.com",
        "example.com",
        "api.example.com.evil.test",
    ] {
        let answer = get(&proxy, &format!("{host}:{port}"));
        assert_eq!(
            (answer.status(), answer.reason()),
            (404, Some("no_route")),
            "{host}"
        );
        assert_eq!(dns.count(host), 0, "{host} was resolved");
    }
    // The list is closed by a reload; the upstreams end.
    let text = proxy.config_text().replace("api.example.com, ", "");
    proxy.reload(&text);
    eventually("the host is gone", || {
        get(&proxy, &hosts[0]).status() == 404
    });
    assert_eq!(get(&proxy, &hosts[1]).status(), 200);
}

#[test]
fn a_passthrough_instance_that_dies_is_ejected() {
    let (_a, b, port) = two();
    let dns = DnsStub::start();
    dns.set(
        "api.test",
        Says::Ips(60, vec![ip("127.0.0.3"), ip("127.0.0.4")]),
    );
    let proxy = Config::default()
        .top("passthrough: {hosts: [api.test]}")
        .top(&format!(
            "registries: {{passthrough: {}}}",
            dns.registry("")
        ))
        .start();
    // 127.0.0.4 refuses: what is sent there is tried elsewhere, until it is ejected.
    eventually("an ejection", || {
        assert_eq!(get(&proxy, &format!("api.test:{port}")).status(), 200);
        proxy
            .lines()
            .iter()
            .any(|l| l["event"] == "instance_ejected")
    });
    assert!(b.requests().len() > 1);
}
