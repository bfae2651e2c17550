//! The built proxy and a real Prometheus: its `promtool` judges a scrape and the shipped alerts, its
//! server scrapes under load.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::Value;

use crate::harness::{Client, Config, Message, Proxy, Stub, eventually, pause_ms, run, tool};

/// A server with a data folder of its own that scrapes these targets; killed when dropped.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(program: &Path, target: SocketAddr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yaml");
        let text = format!(
            "global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}\n\
             scrape_configs:\n  - job_name: outrigger\n    static_configs: [{{targets: [\"{target}\"]}}]\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut child = Command::new(program)
            .arg("--config.file")
            .arg(&config)
            .arg("--storage.tsdb.path")
            .arg(folder.path().join("data"))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let address = loop {
            let line = lines.next().and_then(Result::ok);
            let line = line.unwrap_or_else(|| panic!("it ended: {said}"));
            // The first such line has the port it was asked for, 0.
            if let Some((_, rest)) = line.split_once("msg=\"Listening on\" address=") {
                break rest.trim().parse().unwrap();
            }
            writeln!(said, "{line}").unwrap();
        };
        // Its pipe must not fill.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            address,
            _folder: folder,
        }
    }

    fn ask(&self, path: &str) -> Value {
        let mut client = Client::connect(self.address);
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        ));
        // It says in words that it is not ready yet.
        serde_json::from_slice(&client.response().body).unwrap_or_default()
    }

    /// The series of an instant query, each with its labels and value.
    fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let query: String = query.bytes().fold(String::new(), |mut out, b| {
            write!(out, "%{b:02X}").unwrap();
            out
        });
        let answer = self.ask(&format!("/api/v1/query?query={query}"));
        let series = answer["data"]["result"].as_array().cloned();
        let series = series.unwrap_or_default().into_iter();
        series
            .map(|s| {
                let value = s["value"][1].as_str().unwrap().parse().unwrap();
                (s["metric"].clone(), value)
            })
            .collect()
    }

    fn value(&self, query: &str) -> Option<f64> {
        self.query(query).first().map(|(_, value)| *value)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn scrape(proxy: &Proxy) -> Message {
    let mut client = Client::connect(proxy.listener("telemetry"));
    client.send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    client.response()
}

#[test]
fn a_real_prometheus_scrapes_the_proxy_under_load() {
    let Some(program) = tool("prometheus") else {
        return;
    };
    let stubs = [Stub::ok(), Stub::ok()];
    let addresses = [stubs[0].address, stubs[1].address];
    let proxy = Config::svc(&addresses).start();
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, address) = (Arc::clone(&stop), proxy.address);
    let load = std::thread::spawn(move || {
        let mut client = Client::connect(address);
        while !stopped.load(SeqCst) {
            assert_eq!(client.get("/").status(), 200);
            pause_ms(1);
        }
    });
    let prometheus = Prometheus::start(&program, proxy.listener("telemetry"));
    eventually("a scrape", || prometheus.value("up") == Some(1.0));
    let name = "outrigger_requests_total{upstream=\"svc\",protocol=\"http1\",code=\"2xx\"}";
    let first = prometheus.value(name);
    eventually("growing counts", || prometheus.value(name) > first);
    eventually("a rate", || {
        let rate = format!("rate({name}[10s])");
        prometheus.value(&rate) > Some(0.0)
    });
    let p99 = "histogram_quantile(0.99, sum by (le) \
               (outrigger_request_duration_seconds_bucket{upstream=\"svc\"}))";
    assert!(prometheus.value(p99) > Some(0.0));
    // All families that a scrape has arrived, and nothing else under these names.
    let shown = scrape(&proxy).text();
    let types = shown.lines().filter_map(|l| l.strip_prefix("# TYPE "));
    for (name, kind) in types.filter_map(|l| l.split_once(' ')) {
        let series = if kind == "histogram" { "_count" } else { "" };
        let found = prometheus.query(&format!("{name}{series}"));
        assert!(!found.is_empty(), "{name} did not arrive");
    }
    // Units are only in OpenMetrics: it was asked for and understood.
    let family = "outrigger_request_duration_seconds";
    let known = prometheus.ask(&format!("/api/v1/metadata?metric={family}"));
    let known = &known["data"][family][0];
    assert_eq!(
        (&known["type"], &known["unit"]),
        (&"histogram".into(), &"seconds".into()),
        "{known}"
    );

    // An instance that leaves: its series end with the next scrape, not five minutes later.
    let weights = || prometheus.query("outrigger_instance_weight");
    assert_eq!(weights().len(), 2);
    proxy.reload(&Config::svc(&addresses[..1]).text());
    eventually("the end of its series", || weights().len() == 1);
    assert_eq!(
        weights()[0].0["exported_instance"],
        addresses[0].to_string()
    );
    let gone = format!(
        "last_over_time(outrigger_attempts_total{{exported_instance=\"{}\"}}[1h])",
        addresses[1]
    );
    assert!(!prometheus.query(&gone).is_empty(), "it was there");
    assert_eq!(prometheus.value("min_over_time(up[1h])"), Some(1.0));
    stop.store(true, SeqCst);
    load.join().unwrap();
}

#[test]
fn promtool_finds_no_fault_in_a_scrape() {
    let Some(promtool) = tool("promtool") else {
        return;
    };
    let stub = Stub::ok();
    let proxy = Config::svc(&[stub.address]).start();
    let mut client = Client::connect(proxy.address);
    for host in ["svc", "nobody"] {
        client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        client.response();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scrape");
    std::fs::write(&file, scrape(&proxy).body).unwrap();
    let scrape = std::fs::File::open(&file).unwrap();
    let (good, said) = run(Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(scrape));
    assert!(good && said.is_empty(), "{said}");
}

#[test]
fn shipped_alerts_are_valid_and_fire_when_they_should() {
    let Some(promtool) = tool("promtool") else {
        return;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (command, file) in [
        ("check", "config/prometheus/outrigger.rules.yaml"),
        ("test", "tests/conformance/prometheus/outrigger.test.yaml"),
    ] {
        let (good, said) = run(Command::new(&promtool)
            .args([command, "rules"])
            .arg(root.join(file)));
        assert!(good, "{said}");
        assert!(said.contains("SUCCESS"), "{said}");
    }
}
