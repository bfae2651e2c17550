//! One bad file never affects the others, and what did not change keeps what it has.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::harness::{Client, Config, Proxy, Stub, eventually};

const QUICK: &str = "version: 1\npolicies:\n  - name: quick\n    apply_to: {upstreams: [svc]}\n\
                     \x20   consecutive_errors: 3\n    recovery_detection_unit_time: 10m\n";
const OTHER: &str = "version: 1\npolicies:\n  - name: other\n    apply_to: {upstreams: [b]}\n";

/// Two services with policies in files of their own; `svc` has one instance that answers 503.
struct Setup {
    proxy: Proxy,
    good: [Stub; 2],
    _bad: Stub,
    policies: PathBuf,
}

impl Setup {
    fn start() -> Self {
        let place = tempfile::tempdir().unwrap().keep();
        let policies = place.join("policies");
        fs::create_dir(&policies).unwrap();
        fs::write(policies.join("quick.yaml"), QUICK).unwrap();
        fs::write(policies.join("other.yaml"), OTHER).unwrap();
        let good = [Stub::ok(), Stub::ok()];
        let bad = Stub::answering("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n");
        let config = Config::svc(&[good[0].address, bad.address])
            .service("b", &[good[1].address], "")
            .text();
        let path = place.join("outrigger.yaml");
        fs::write(&path, config).unwrap();
        let proxy = Proxy::start_at(&path);
        let mut client = Client::connect(proxy.address);
        eventually("the ejection", || {
            assert_eq!(client.get("/").status(), 200, "retried on the other");
            proxy
                .lines()
                .iter()
                .any(|l| l["event"] == "instance_ejected")
        });
        Self {
            proxy,
            good,
            _bad: bad,
            policies,
        }
    }

    fn last(&self, event: &str) -> Value {
        self.proxy.wait_for_event(event);
        let lines = self.proxy.lines();
        lines.into_iter().rfind(|l| l["event"] == event).unwrap()
    }

    fn policy_files(&self, state: &str) -> u64 {
        let label = format!("state=\"{state}\"");
        self.proxy.metric("outrigger_policy_files", &[&label])
    }

    fn restored(&self) -> bool {
        let lines = self.proxy.lines();
        lines.iter().any(|l| l["event"] == "instance_restored")
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        if let Some(folder) = self.policies.parent() {
            let _left_behind = fs::remove_dir_all(folder);
        }
    }
}

#[test]
fn a_broken_policy_file_keeps_its_previous_version() {
    let setup = Setup::start();
    let path = setup.policies.join("quick.yaml");
    fs::write(&path, QUICK.replace("consecutive", "consecutve")).unwrap();
    let event = setup.last("config_rejected");
    let msg = event["msg"].as_str().unwrap();
    assert!(
        msg.contains("quick.yaml rejected; its previous version (sha ")
            && msg.contains(") stays active. 1 other file loaded."),
        "{msg}"
    );
    assert_eq!(event["result"], "partial", "{event}");
    let problem = event["diagnostics"][0].as_str().unwrap();
    assert!(problem.contains("quick.yaml:5:"), "{problem}");
    assert_eq!(
        (setup.policy_files("active"), setup.policy_files("rejected")),
        (1, 1)
    );
    // Its policy holds on: nothing came back.
    assert!(!setup.restored());
    assert_eq!(setup.proxy.reloads("partial"), 1);
    // Mended: all is well, and still nothing came back.
    fs::write(&path, QUICK).unwrap();
    eventually("the mended file", || setup.policy_files("rejected") == 0);
    assert!(!setup.restored());
}

#[test]
fn a_removed_policy_file_returns_its_instances() {
    let setup = Setup::start();
    fs::remove_file(setup.policies.join("other.yaml")).unwrap();
    eventually("the removal", || setup.policy_files("active") == 1);
    assert!(!setup.restored(), "of another service");
    fs::remove_file(setup.policies.join("quick.yaml")).unwrap();
    let event = setup.last("instance_restored");
    assert_eq!(event["restored_by"], "policy_disabled", "{event}");
    assert_eq!(event["ramp_s"], 10.0, "{event}");
}

#[test]
fn a_change_of_one_service_leaves_the_others_their_connections_and_both_their_windows() {
    let setup = Setup::start();
    let proxy = &setup.proxy;
    let mut b = Client::connect(proxy.address);
    let mut get_b = || {
        b.send("GET / HTTP/1.1\r\nHost: b\r\n\r\n");
        assert_eq!(b.response().status(), 200);
    };
    for _ in 0..4 {
        get_b();
    }
    let mut svc = Client::connect(proxy.address);
    svc.get("/");
    let window = |upstream: &str| proxy.window_requests(upstream);
    let before = (window("svc"), window("b"));
    assert!(before.0 > 0 && before.1 >= 4, "{before:?}");
    let opened = [setup.good[0].connections(), setup.good[1].connections()];
    // A timeout of `svc` alone changes.
    let text = proxy
        .config_text()
        .replacen("  svc:\n", "  svc:\n    timeout: {request: 55s}\n", 1);
    fs::write(proxy.config_path(), text).unwrap();
    let event = setup.last("config_reloaded");
    assert_eq!(
        event["changed"],
        serde_json::json!(["services.svc"]),
        "{event}"
    );
    let after = (window("svc"), window("b"));
    // They slide on, they are not dropped.
    assert!(after.0 > 0 && after.1 > 0, "{before:?} {after:?}");
    get_b();
    svc.get("/");
    let now = [setup.good[0].connections(), setup.good[1].connections()];
    assert_eq!(now, opened, "connections are kept");
    assert!(!setup.restored());
}
