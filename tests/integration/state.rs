//! The state file: what a restart of the built binary remembers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Client, Config, Proxy, Stub, eventually};

const POLICY: &str = "version: 1\npolicies:\n  - name: quick\n    consecutive_errors: 3\n\
                      \x20   recovery_detection_unit_time: 10m\n";

struct Setup {
    place: tempfile::TempDir,
    good: Stub,
    bad: Stub,
}

impl Setup {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let good = Stub::ok();
        let bad = Stub::answering("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n");
        fs::create_dir(place.path().join("policies")).unwrap();
        fs::write(place.path().join("policies/quick.yaml"), POLICY).unwrap();
        let config = Config::svc(&[good.address, bad.address]).top("state_file: ./state.json");
        fs::write(place.path().join("outrigger.yaml"), config.text()).unwrap();
        Self { place, good, bad }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn start(&self) -> Proxy {
        Proxy::start_at(&self.path("outrigger.yaml"))
    }

    /// One that has ejected the bad instance and written it down.
    fn ejecting(&self) -> Proxy {
        let proxy = self.start();
        let mut client = Client::connect(proxy.address);
        eventually("the ejection", || {
            assert_eq!(client.get("/").status(), 200);
            let lines = proxy.lines();
            lines.iter().any(|l| l["event"] == "instance_ejected")
        });
        eventually("the state file", || {
            holds(&self.path("state.json"), "next_probe")
        });
        proxy
    }

    fn instance(&self, proxy: &Proxy) -> Value {
        let answer = proxy.admin("/api/v1/upstreams/svc/instances");
        let bad = self.bad.address.to_string();
        let all = answer["instances"].as_array().unwrap();
        all.iter().find(|i| i["instance"] == bad).unwrap().clone()
    }
}

fn holds(path: &Path, what: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.contains(what))
}

#[test]
fn an_ejection_survives_a_restart_and_gets_no_request_before_its_probe() {
    let setup = Setup::new();
    for signal in ["TERM", "KILL"] {
        let mut proxy = setup.ejecting();
        let before = setup.instance(&proxy);
        if signal == "TERM" {
            proxy.signal("TERM");
            assert_eq!(proxy.ended().code(), Some(0));
        }
        drop(proxy);
        let seen = setup.bad.requests().len();
        let proxy = setup.start();
        let recalled = proxy.wait_for_event("ejection_recalled");
        assert_eq!(recalled["instance"], setup.bad.address.to_string());
        let mut client = Client::connect(proxy.address);
        let asked = setup.good.requests().len();
        for _ in 0..50 {
            assert_eq!(client.get("/").status(), 200);
        }
        assert_eq!(setup.good.requests().len(), asked + 50);
        assert_eq!(
            setup.bad.requests().len(),
            seen,
            "no request before its probe"
        );
        let after = setup.instance(&proxy);
        for key in ["state", "k", "times_ejected"] {
            assert_eq!(after[key], before[key], "{key} after {signal}");
        }
        let next = |view: &Value| view["next_probe_unix_s"].as_f64().unwrap();
        // Clamped to k x unit: what jitter had added, at most a tenth, is gone.
        let earlier = next(&before) - next(&after);
        assert!((-2.0..62.0).contains(&earlier), "{before} {after}");
        assert!(after["ejected_for_s"].as_f64().unwrap() > 0.0);
        let mode = fs::metadata(setup.path("state.json"))
            .unwrap()
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        drop(proxy);
        fs::remove_file(setup.path("state.json")).unwrap();
    }
}

#[test]
fn the_story_of_a_recalled_ejection_begins_before_the_restart() {
    let setup = Setup::new();
    drop(setup.ejecting());
    let text = fs::read_to_string(setup.path("state.json")).unwrap();
    let key = "\"since_unix_ms\":";
    let (head, tail) = text.split_once(key).unwrap();
    let rest = tail.trim_start_matches(|c: char| c.is_ascii_digit());
    let since: u64 = tail.strip_suffix(rest).unwrap().parse().unwrap();
    let text = format!("{head}{key}{}{rest}", since - 2 * 3_600_000);
    fs::write(setup.path("state.json"), text).unwrap();
    let proxy = setup.start();
    proxy.wait_for_event("ejection_recalled");
    let view = setup.instance(&proxy);
    assert!(
        view["why"].as_str().unwrap().starts_with("ejected 2h"),
        "{view}"
    );
}

#[test]
fn a_policy_that_is_gone_meanwhile_pardons() {
    let setup = Setup::new();
    drop(setup.ejecting());
    fs::remove_file(setup.path("policies/quick.yaml")).unwrap();
    let proxy = setup.start();
    proxy.wait_for_event("state_loaded");
    assert_eq!(setup.instance(&proxy)["state"], "healthy");
}

#[test]
fn a_file_that_cannot_be_used_is_set_aside_and_stops_nothing() {
    let setup = Setup::new();
    for text in [
        "{\"version\":1,\"upstreams\":{\"svc\"",
        "{\"version\":2}",
        "\u{0}\u{1}",
    ] {
        fs::write(setup.path("state.json"), text).unwrap();
        let proxy = setup.start();
        let event = proxy.wait_for_event("state_rejected");
        let aside = PathBuf::from(event["kept_at"].as_str().unwrap());
        assert!(aside.to_str().unwrap().contains("state.json.corrupt-"));
        assert_eq!(fs::read_to_string(&aside).unwrap(), text);
        fs::remove_file(aside).unwrap();
        assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    }
}

#[test]
fn another_state_file_needs_a_restart() {
    let setup = Setup::new();
    let proxy = setup.start();
    proxy.reload(&proxy.config_text().replace("state.json", "other.json"));
    let event = proxy.wait_for_event("config_reloaded");
    assert_eq!(
        event["restart_required"],
        serde_json::json!(["state_file"]),
        "{event}"
    );
    assert!(!setup.path("other.json").exists());
}

#[test]
fn a_state_file_in_a_folder_that_is_not_there_is_told_at_the_start() {
    let setup = Setup::new();
    let main = setup.path("outrigger.yaml");
    let text = fs::read_to_string(&main).unwrap();
    fs::write(&main, text.replace("./state.json", "./none/state.json")).unwrap();
    let proxy = setup.start();
    let event = proxy.wait_for_event("state_rejected");
    let why = event["why"].as_str().unwrap();
    assert!(why.contains("none does not exist"), "{event}");
}

/// One instance of three answers 503 under `/pay`, and two routes judge for themselves.
struct ByRoute {
    place: tempfile::TempDir,
    bad: Stub,
    _good: [Stub; 2],
}

impl ByRoute {
    fn new() -> Self {
        let bad = Stub::script(|peer| {
            while let Some(request) = peer.request() {
                let status = match request.target() {
                    "/pay" => "503 No",
                    _ => "200 OK",
                };
                peer.send(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n"));
            }
        });
        let good = [Stub::ok(), Stub::ok()];
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("policies")).unwrap();
        let all = [good[0].address, good[1].address, bad.address];
        let routes = "load_balancer: round_robin\n\
            routes: [{name: pay, match: {path: /pay}}, {name: list, match: {path: /list}}]";
        let config = Config::svc_with(&all, routes).top("state_file: ./state.json");
        fs::write(place.path().join("outrigger.yaml"), config.text()).unwrap();
        let setup = Self {
            place,
            bad,
            _good: good,
        };
        setup.judge("route");
        setup
    }

    fn judge(&self, scope: &str) {
        let policy = format!("{POLICY}    scope: {scope}\n");
        fs::write(self.place.path().join("policies/quick.yaml"), policy).unwrap();
    }

    fn start(&self) -> Proxy {
        Proxy::start_at(&self.place.path().join("outrigger.yaml"))
    }

    fn seen(&self, path: &str) -> usize {
        let all = self.bad.requests();
        all.iter().filter(|r| r.target() == path).count()
    }

    /// Has lost the bad instance for `/pay`, and it is written down.
    fn ejecting(&self) -> Proxy {
        let proxy = self.start();
        let mut client = Client::connect(proxy.address);
        eventually("the ejection", || {
            assert_eq!(client.get("/pay").status(), 200);
            assert_eq!(client.get("/list").status(), 200);
            let lines = proxy.lines();
            lines
                .iter()
                .any(|l| l["event"] == "instance_ejected" && l["route"] == "pay")
        });
        let file = self.place.path().join("state.json");
        eventually("the state file", || holds(&file, "next_probe"));
        proxy
    }
}

#[test]
fn what_a_route_ejected_survives_a_restart_and_the_other_routes_keep_it() {
    let setup = ByRoute::new();
    for signal in ["TERM", "KILL"] {
        let mut proxy = setup.ejecting();
        if signal == "TERM" {
            proxy.signal("TERM");
            assert_eq!(proxy.ended().code(), Some(0));
        }
        drop(proxy);
        let (pays, lists) = (setup.seen("/pay"), setup.seen("/list"));
        let proxy = setup.start();
        let recalled = proxy.wait_for_event("ejection_recalled");
        assert_eq!(recalled["instance"], setup.bad.address.to_string());
        assert_eq!(
            (&recalled["route"], &recalled["ejected"]),
            (&"pay".into(), &true.into())
        );
        let message = recalled["msg"].as_str().unwrap();
        assert!(message.contains(" of svc/pay stays ejected"), "{message}");
        let mut client = Client::connect(proxy.address);
        for _ in 0..12 {
            assert_eq!(client.get("/pay").status(), 200);
            assert_eq!(client.get("/list").status(), 200);
        }
        assert_eq!(
            setup.seen("/pay"),
            pays,
            "{signal}: no request before its probe"
        );
        assert!(
            setup.seen("/list") >= lists + 2,
            "{signal}: as a whole it is in"
        );
        drop(proxy);
        fs::remove_file(setup.place.path().join("state.json")).unwrap();
    }
}

#[test]
fn what_routes_ejected_ends_where_routes_are_no_longer_judged() {
    let setup = ByRoute::new();
    drop(setup.ejecting());
    setup.judge("upstream");
    let pays = setup.seen("/pay");
    let proxy = setup.start();
    proxy.wait_for_event("state_loaded");
    let mut client = Client::connect(proxy.address);
    for _ in 0..3 {
        assert_eq!(client.get("/pay").status(), 200, "retried elsewhere");
    }
    assert!(setup.seen("/pay") > pays);
    let told = proxy
        .lines()
        .iter()
        .any(|l| l["event"] == "ejection_recalled");
    assert!(!told);
}
