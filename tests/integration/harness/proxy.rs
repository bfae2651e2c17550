//! The built proxy as a process with a configuration of its own.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::{LONG, Stopwatch, eventually, pause_ms};

/// A main file in the making.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    top: String,
    services: String,
    nofile: Option<u64>,
    workers: Option<u8>,
    listen: Option<String>,
    environment: Vec<(String, String)>,
}

impl Config {
    /// One service called `svc` with these instances.
    pub(crate) fn svc(instances: &[SocketAddr]) -> Self {
        Self::default().service("svc", instances, "")
    }

    /// One service `svc`; `keys` are further keys as YAML flow, e.g. `retry: {max_attempts: 1}`.
    pub(crate) fn svc_with(instances: &[SocketAddr], keys: &str) -> Self {
        Self::default().service("svc", instances, keys)
    }

    pub(crate) fn service(mut self, name: &str, instances: &[SocketAddr], keys: &str) -> Self {
        let list: Vec<String> = instances.iter().map(|a| format!("\"{a}\"")).collect();
        writeln!(
            self.services,
            "  {name}:\n    endpoints: [{}]",
            list.join(", ")
        )
        .unwrap();
        for key in keys.lines().map(str::trim).filter(|k| !k.is_empty()) {
            writeln!(self.services, "    {key}").unwrap();
        }
        self
    }

    /// A service of the only registry, under this name there.
    pub(crate) fn registry_service(self, name: &str, there: &str, keys: &str) -> Self {
        self.any_service(name, &format!("registry_name: \"{there}\"\n{keys}"))
    }

    /// A service with these keys, one a line.
    pub(crate) fn any_service(mut self, name: &str, keys: &str) -> Self {
        writeln!(self.services, "  {name}:").unwrap();
        for key in keys.lines().map(str::trim).filter(|k| !k.is_empty()) {
            writeln!(self.services, "    {key}").unwrap();
        }
        self
    }

    /// A top-level line, e.g. `limits: {header_timeout: 1s}`.
    pub(crate) fn top(mut self, line: &str) -> Self {
        writeln!(self.top, "{line}").unwrap();
        self
    }

    /// This many data plane threads. For cases that count connections to an instance, since each
    /// thread has a pool of its own; all others take [`default_workers`].
    pub(crate) const fn workers(mut self, workers: u8) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Other addresses of the app's side, as YAML.
    pub(crate) fn listen(mut self, addresses: &str) -> Self {
        self.listen = Some(addresses.to_owned());
        self
    }

    /// The most files the process may open.
    pub(crate) const fn open_files(mut self, most: u64) -> Self {
        self.nofile = Some(most);
        self
    }

    /// A variable of the process's environment, which is empty otherwise.
    pub(crate) fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn text(&self) -> String {
        let Self { top, services, .. } = self;
        // For a run of all cases under other defaults: with every policy switched on, say.
        let defaults = std::env::var("OUTRIGGER_TEST_DEFAULTS").unwrap_or_default();
        let defaults = match defaults.as_str() {
            "" => String::new(),
            _ if top.contains("defaults:") => String::new(),
            text => format!("defaults: {text}\n"),
        };
        format!(
            "version: 1\nlisten: {}\nworkers: {}\nadmin: {{listen: \"127.0.0.1:0\"}}\n\
             telemetry:\n  listen: \"127.0.0.1:0\"\n  access_log: {{mode: all, log_paths: true}}\n\
             {top}{defaults}services:\n{services}",
            self.listen.as_deref().unwrap_or("127.0.0.1:0"),
            self.workers.unwrap_or_else(default_workers)
        )
    }

    pub(crate) fn start(self) -> Proxy {
        Proxy::start(&self)
    }
}

/// `OUTRIGGER_TEST_WORKERS`: the whole suite with another number of data plane threads than 1.
fn default_workers() -> u8 {
    let text = std::env::var("OUTRIGGER_TEST_WORKERS");
    text.map_or(1, |text| {
        text.parse().expect("OUTRIGGER_TEST_WORKERS is a number")
    })
}

/// A running proxy; killed when dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    child: Child,
    path: PathBuf,
    _folder: tempfile::TempDir,
    lines: Arc<Mutex<Vec<Value>>>,
    errors: Arc<Mutex<String>>,
    deaf: Arc<AtomicBool>,
}

impl Proxy {
    fn start(config: &Config) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("outrigger.yaml");
        std::fs::write(&path, config.text()).unwrap();
        Self::launch(path, folder, config)
    }

    /// With a main file that is there already.
    pub(crate) fn start_at(path: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::launch(path.to_owned(), folder, &Config::default())
    }

    fn launch(path: PathBuf, folder: tempfile::TempDir, config: &Config) -> Self {
        let binary = env!("CARGO_BIN_EXE_outrigger");
        let mut command = match config.nofile {
            None => Command::new(binary),
            Some(most) => {
                let mut shell = Command::new("sh");
                let script = format!("ulimit -n {most}; exec \"$0\" \"$@\"");
                shell.arg("-c").arg(script).arg(binary);
                shell
            }
        };
        let mut child = command
            .args(["run", "-c"])
            .arg(&path)
            .current_dir(folder.path())
            .env_clear()
            .envs(config.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let errors = Arc::new(Mutex::new(String::new()));
        let stdout = child.stdout.take().unwrap();
        let kept = Arc::clone(&lines);
        let deaf = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&deaf);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n') {
                while stops.load(SeqCst) {
                    // Its end of the pipe stays open and unread.
                    std::thread::park();
                }
                let Ok(line) = line else { return };
                // Every line is JSON and UTF-8, whatever a peer sent.
                let value = serde_json::from_slice(&line)
                    .unwrap_or_else(|e| Value::String(format!("BROKEN LINE: {e}: {line:?}")));
                kept.lock().unwrap().push(value);
            }
        });
        let stderr = child.stderr.take().unwrap();
        let kept = Arc::clone(&errors);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stderr);
            let mut chunk = [0_u8; 4096];
            while let Ok(n @ 1..) = reader.read(&mut chunk) {
                kept.lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&chunk[..n]));
            }
        });
        let mut proxy = Self {
            address: SocketAddr::from(([0, 0, 0, 0], 0)),
            child,
            path,
            _folder: folder,
            lines,
            errors,
            deaf,
        };
        proxy.address = proxy.listener("data");
        proxy
    }

    /// The address of a listener.
    pub(crate) fn listener(&self, name: &str) -> SocketAddr {
        let event = self.wait_for_line(|l| l["event"] == "listening" && l["listener"] == name);
        event["address"].as_str().unwrap().parse().unwrap()
    }

    /// Standard output is read no more from now on.
    pub(crate) fn stop_reading(&self) {
        self.deaf.store(true, SeqCst);
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        self.lines.lock().unwrap().clone()
    }

    /// The first line on standard output that `wanted` is true for.
    #[track_caller]
    pub(crate) fn wait_for_line(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let watch = Stopwatch::start();
        loop {
            if let Some(line) = self.lines().into_iter().find(&wanted) {
                return line;
            }
            assert!(
                watch.elapsed() < LONG,
                "no such line; stdout: {:#?}\nstderr: {}",
                self.lines(),
                self.errors()
            );
            pause_ms(5);
        }
    }

    #[track_caller]
    pub(crate) fn wait_for_event(&self, event: &str) -> Value {
        self.wait_for_line(|l| l["event"] == event)
    }

    /// Access-log lines so far.
    pub(crate) fn access(&self) -> Vec<Value> {
        let lines = self.lines();
        lines.into_iter().filter(|l| l["log"] == "access").collect()
    }

    /// The access-log line number `n` from 0.
    #[track_caller]
    pub(crate) fn access_line(&self, n: usize) -> Value {
        eventually("an access-log line", || self.access().len() > n);
        self.access().remove(n)
    }

    /// Waits for a line with this reason.
    #[track_caller]
    pub(crate) fn logged(&self, reason: &str) -> Value {
        self.wait_for_line(|l| l["outrigger.reason"] == reason)
    }

    /// The sum of a family's samples whose labels hold all of `labels`.
    pub(crate) fn metric(&self, family: &str, labels: &[&str]) -> u64 {
        let mut client = super::Client::connect(self.listener("telemetry"));
        client.send("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let text = client.response().text();
        let ours = |line: &&str| {
            line.strip_prefix(family)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        };
        let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
        text.lines().filter(ours).map(value).sum()
    }

    /// Attempts that ended so, of all instances.
    pub(crate) fn attempts(&self, outcome: &str) -> u64 {
        let outcome = format!("outcome=\"{outcome}\"");
        self.metric("outrigger_attempts_total", &[&outcome])
    }

    pub(crate) fn errors(&self) -> String {
        self.errors.lock().unwrap().clone()
    }

    pub(crate) fn config_path(&self) -> PathBuf {
        self.path.clone()
    }

    /// The main file as it stands.
    pub(crate) fn config_text(&self) -> String {
        std::fs::read_to_string(&self.path).unwrap()
    }

    /// Reloads so far that came to this.
    pub(crate) fn reloads(&self, result: &str) -> u64 {
        let label = format!("result=\"{result}\"");
        self.metric("outrigger_config_reloads_total", &[&label])
    }

    /// The admin API's answer to a GET.
    #[track_caller]
    pub(crate) fn admin(&self, path: &str) -> Value {
        let mut client = super::Client::connect(self.listener("admin"));
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ));
        serde_json::from_str(&client.response().text()).unwrap()
    }

    /// Judged calls in the windows of an upstream's instances.
    pub(crate) fn window_requests(&self, upstream: &str) -> u64 {
        let answer = self.admin(&format!("/api/v1/upstreams/{upstream}/instances"));
        let instances = answer["instances"].as_array().unwrap();
        instances
            .iter()
            .map(|i| i["requests"].as_u64().unwrap())
            .sum()
    }

    /// Writes a new main file and asks for a reload.
    pub(crate) fn reload(&self, text: &str) {
        let fresh = self.path.with_extension("fresh");
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(&fresh, &self.path).unwrap();
        self.signal("HUP");
    }

    pub(crate) fn signal(&self, name: &str) {
        use rustix::process::{Pid, Signal, kill_process};
        let signal = match name {
            "HUP" => Signal::HUP,
            "TERM" => Signal::TERM,
            other => panic!("signal {other}"),
        };
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for the end of the process.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the end of the process", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Resident memory in KiB.
    pub(crate) fn rss_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Open files.
    pub(crate) fn open_files(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(folder).unwrap().count()
    }

    /// User and system time so far, in clock ticks (1/100 s).
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let rest = stat.rsplit(')').next().unwrap();
        let mut fields = rest.split_whitespace().skip(11);
        let mut next = || fields.next().unwrap().parse::<u64>().unwrap();
        next() + next()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _ended = self.child.wait();
        if std::thread::panicking() {
            eprintln!("stdout: {:#?}\nstderr: {}", self.lines(), self.errors());
        }
    }
}
