//! The commands for people that look at a configuration: the built binary on files of its own, and
//! against a running process.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use outrigger::config::diagnostic::Code;
use outrigger::config::schema::Kind;
use serde_json::{Value, json};

use crate::harness::{Config, Proxy, closed_port, eventually};

/// What a run of the binary came to.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}{}", self.out, self.err))
    }

    #[track_caller]
    fn good(self) -> Self {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self
    }
}

fn outrigger_with(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_outrigger"))
        .args(args)
        .current_dir(folder)
        .env_clear()
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn outrigger(folder: &Path, args: &[&str]) -> Ran {
    outrigger_with(folder, args, &[])
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

const MAIN: &str = "version: 1\napp: {name: web, namespace: prod}\nservices:\n  orders: \
                    {endpoints: [\"10.0.0.1:1\", \"10.0.0.2:1\"], timeout: {request: 2s}}\ndefaults: \
                    {timeout: {connect: 1s}}\n";
const POLICIES: &str = "policies:\n  - {name: all}\n  - name: strict\n    apply_to: {upstreams: \
                        [orders]}\n    error_rate_threshold: 30\n  - {name: pay, apply_to: \
                        {upstreams: [payments]}}\n";

#[test]
fn schemas_and_reference_come_from_the_binary() {
    let here = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kinds = [
        ("outrigger", Kind::Outrigger),
        ("policy", Kind::Policy),
        ("endpoints", Kind::Endpoints),
    ];
    for (word, kind) in kinds {
        let printed = outrigger(here.path(), &["schema", word]).good().out;
        let file = std::fs::read_to_string(root.join("config/schema").join(kind.file())).unwrap();
        assert_eq!(printed, file, "{word}");
    }
    for (topic, word) in [
        ("metrics", "outrigger_requests_total"),
        ("events", "config_reloaded"),
        ("errors", "E-CFG-012 (error)"),
        ("config", "services.*.timeout.connect"),
    ] {
        let printed = outrigger(here.path(), &["docs", topic]).good().out;
        assert!(printed.contains(word), "{topic}: {printed}");
    }
}

#[test]
fn every_code_is_explained() {
    let here = tempfile::tempdir().unwrap();
    for code in [Code::ALL.first(), Code::ALL.last()].into_iter().flatten() {
        let told = outrigger(here.path(), &["explain", &code.to_string()])
            .good()
            .out;
        assert!(told.starts_with(&code.to_string()) && told.contains(code.explain()));
    }
    for code in Code::ALL {
        // A sentence that says more than the name of the code.
        assert!(
            code.explain().split(' ').count() >= 5 && code.explain().ends_with('.'),
            "{code}"
        );
    }
    assert_eq!(outrigger(here.path(), &["explain", "E-CFG-999"]).code, 2);
}

#[test]
fn check_tells_programs_what_it_tells_people() {
    let bad =
        "version: 1\nservices: {orders: {tiemout: {request: 2s}, endpoints: []}}\nworkers: many\n";
    let here = folder(&[
        ("outrigger.yaml", bad),
        ("policies/a.yaml", "policies: [{name: a, mode: off}]\n"),
    ]);
    let check = |args: &[&str]| {
        let all: Vec<&str> = ["check"].iter().chain(args).copied().collect();
        outrigger(here.path(), &all)
    };
    let human = check(&[]);
    assert_eq!(human.code, 3);
    assert!(
        human.err.contains("outrigger.yaml:2:21") && human.err.contains("did you mean `timeout`?")
    );
    assert!(human.err.contains("policies/a.yaml:1:28"), "{}", human.err);

    let told = check(&["--format", "json"]);
    assert_eq!((told.code, told.err.as_str()), (3, ""));
    let report = told.json();
    assert_eq!(
        (&report["valid"], &report["errors"]),
        (&json!(false), &json!(3))
    );
    let first = &report["diagnostics"][0];
    assert_eq!(first["code"], "E-CFG-012");
    assert_eq!((&first["line"], &first["column"]), (&json!(2), &json!(21)));

    let told = check(&["--format", "github"]);
    assert_eq!(told.code, 3);
    let lines: Vec<&str> = told.out.lines().collect();
    assert_eq!(lines.len(), 3, "{}", told.out);
    assert!(
        lines[0].starts_with("::error file=outrigger.yaml,line=2,endLine=2,col=21,endColumn=28,title=E-CFG-012::unknown field"),
        "{}",
        lines[0]
    );

    let told = check(&["--format", "sarif"]).json();
    assert_eq!(told["version"], "2.1.0");
    let results = told["runs"][0]["results"].as_array().unwrap();
    assert_eq!(results.len(), 3);
    let place = &results[2]["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "policies/a.yaml");
    assert_eq!(place["region"]["startLine"], 1);
}

#[test]
fn a_policy_that_can_never_eject_is_a_warning_at_its_line() {
    let none = "policies:\n  - {name: none, instance_removal_rate_threshold: 10}\n";
    let here = folder(&[("x/outrigger.yaml", MAIN), ("x/policies/p.yaml", none)]);
    let told = outrigger(here.path(), &["check", "x", "--strict", "--format", "json"]);
    assert_eq!(told.code, 4, "{}", told.out);
    let report = told.json();
    let warning = &report["diagnostics"][0];
    assert_eq!(
        (&warning["code"], &warning["level"]),
        (&json!("E-CFG-107"), &json!("warning"))
    );
    assert_eq!(
        (&warning["file"], &warning["line"]),
        (&json!("x/policies/p.yaml"), &json!(2))
    );
    assert_eq!(report["upstreams"][0]["winner"]["name"], "none");
    assert_eq!(
        report["upstreams"][0]["budget"][1],
        json!({"instances": 2, "limit": 0})
    );
    let calm = outrigger(here.path(), &["check", "x"]);
    assert_eq!(calm.code, 0);
    assert!(
        calm.out.contains("may be out at once") && calm.out.contains("n=10"),
        "{}",
        calm.out
    );
}

#[test]
fn preflight_looks_at_this_machine_and_leaves_it_alone() {
    let (_kept, dead) = closed_port();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let main = format!(
        "version: 1\nlisten: \"{}\"\nadmin: {{listen: \"127.0.0.1:0\"}}\ntelemetry: {{listen: \
         \"127.0.0.1:0\"}}\nregistries:\n  n: {{kind: nacos, servers: [\"{}\"]}}\n  e: {{kind: \
         embedded, listen: \"127.0.0.1:0\", data: ./data}}\ndefaults: {{registry: n}}\n",
        taken.local_addr().unwrap(),
        dead,
    );
    let here = folder(&[("outrigger.yaml", &main)]);
    let told = outrigger(here.path(), &["check", "--preflight"]);
    assert_eq!(told.code, 3, "{}", told.err);
    for word in [
        "error[E-CFG-035]: `listen`",
        "warning[E-CFG-113]",
        "warning[E-CFG-115]",
    ] {
        assert!(told.err.contains(word), "{word}: {}", told.err);
    }
    assert!(
        told.out
            .contains("terminationGracePeriodSeconds: at least 25 s"),
        "{}",
        told.out
    );
    let left: Vec<_> = std::fs::read_dir(here.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    drop(taken);
    let told = outrigger(here.path(), &["check", "--preflight", "--strict"]);
    assert_eq!(told.code, 4, "{}", told.err);
    assert_eq!(outrigger(here.path(), &["check", "--strict"]).code, 0);
}

#[test]
fn every_value_is_shown_with_its_origin_and_no_secret() {
    let main = format!(
        "{MAIN}registries: {{n: {{kind: nacos, servers: [\"a:1\"], password: \"${{PW}}\"}}}}\n"
    );
    let here = folder(&[("outrigger.yaml", &main)]);
    let env = [
        ("PW", "hunter2"),
        ("OUTRIGGER_ADMIN__LISTEN", "127.0.0.1:4"),
        ("OUTRIGGER_PORT", "tcp://10.0.0.1:80"),
    ];
    let show = |args: &[&str]| {
        let all: Vec<&str> = ["config", "show"].iter().chain(args).copied().collect();
        outrigger_with(here.path(), &all, &env).good().out
    };
    let written = show(&["--origin"]);
    for line in [
        "app.name = web  # outrigger.yaml:2:7",
        "admin.listen = 127.0.0.1:4  # env OUTRIGGER_ADMIN__LISTEN",
        "services.orders.timeout.request = 2s  # outrigger.yaml:4:",
        // Not written by the service: it comes from where the defaults have it.
        "services.orders.timeout.connect = 1s  # outrigger.yaml:5:",
        "registries.n.password = ***  # outrigger.yaml:6:",
        "# variables that name no key: OUTRIGGER_PORT",
    ] {
        assert!(written.contains(line), "{line}: {written}");
    }
    assert!(
        !written.contains("hunter2") && !written.contains("# default"),
        "{written}"
    );
    let all = show(&["--origin", "--effective"]);
    assert!(
        all.contains("services.orders.retry.max_attempts = 2  # default"),
        "{all}"
    );
    assert!(
        all.contains("limits.max_header_bytes = 64KiB  # default"),
        "{all}"
    );
    let report: Value = serde_json::from_str(&show(&["-o", "json"])).unwrap();
    let first = &report["settings"].as_array().unwrap()[0];
    assert!(
        first["key"].is_string() && first["origin"]["file"].is_string(),
        "{first}"
    );
}

#[test]
fn policies_are_listed_and_explained() {
    let here = folder(&[("outrigger.yaml", MAIN), ("policies/p.yaml", POLICIES)]);
    let list = outrigger(here.path(), &["policies", "list"]).good().out;
    assert!(list.contains("strict  enforce  orders"), "{list}");
    let told = outrigger(here.path(), &["policies", "explain", "orders"])
        .good()
        .out;
    for text in [
        "orders: policy strict (policies/p.yaml:3) holds",
        "policies/p.yaml:5:5",
        "all (policies/p.yaml:2): matches, but upstreams: `orders` is more exact than `*`",
        "pay (policies/p.yaml:6): no match, upstreams [payments] does not match `orders`",
        "       10  5",
    ] {
        assert!(told.contains(text), "{text}: {told}");
    }
    let builtin = outrigger(here.path(), &["policies", "explain", "other", "-o", "json"]).good();
    assert_eq!(builtin.json()["winner"]["name"], "all");
}

#[test]
fn starter_files_are_good_and_overwrite_nothing() {
    for kind in [None, Some("--k8s"), Some("--systemd"), Some("--compose")] {
        let here = tempfile::tempdir().unwrap();
        let args: Vec<&str> = ["init", "x"].into_iter().chain(kind).collect();
        let told = outrigger(here.path(), &args).good().out;
        assert!(told.contains("wrote x/outrigger.yaml") && told.contains("next: outrigger check"));
        let checked = outrigger(here.path(), &["check", "x", "--strict"]).good();
        assert!(
            checked
                .out
                .contains("x/outrigger.yaml: good, 0 services, 1 policy"),
            "{}",
            checked.out
        );
        let path = here.path().join("x/outrigger.yaml");
        std::fs::write(&path, "version: 1\n").unwrap();
        let again = outrigger(here.path(), &args);
        assert_eq!(again.code, 1);
        assert!(
            again.err.contains("x/outrigger.yaml exists"),
            "{}",
            again.err
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "version: 1\n");
    }
    let here = tempfile::tempdir().unwrap();
    let env = [
        ("NACOS_SERVER_ADDR", "nacos:8848"),
        ("NACOS_PASSWORD", "hunter2"),
        ("SPRING_APPLICATION_NAME", "web"),
    ];
    let told = outrigger_with(here.path(), &["init", "--from-env"], &env)
        .good()
        .out;
    assert!(
        told.contains("Nacos was found in $NACOS_SERVER_ADDR"),
        "{told}"
    );
    let text = std::fs::read_to_string(here.path().join("outrigger.yaml")).unwrap();
    assert!(!text.contains("hunter2"), "{text}");
    let shown = outrigger_with(here.path(), &["config", "show"], &env)
        .good()
        .out;
    assert!(
        shown.contains("registries.nacos.servers = nacos:8848"),
        "{shown}"
    );
    assert!(
        shown.contains("app.name = web") && !shown.contains("hunter2"),
        "{shown}"
    );
    outrigger_with(here.path(), &["check", "--strict"], &env).good();
}

fn against(proxy: &Proxy, args: &[&str]) -> Ran {
    let admin = proxy.listener("admin").to_string();
    let path = proxy.config_path();
    let all: Vec<&str> = args
        .iter()
        .copied()
        .chain(["--admin", &admin, "-c", path.to_str().unwrap()])
        .collect();
    outrigger(path.parent().unwrap(), &all)
}

#[test]
fn the_running_configuration_is_compared_with_the_files() {
    let (_kept, dead) = closed_port();
    let config = Config::svc(&[dead]).top("log: {level: warn}");
    let text = config.text();
    let proxy = config.start();
    let same = against(&proxy, &["config", "diff", "--exit-code"])
        .good()
        .out;
    assert_eq!(same, "the running process has what the files say\n");
    let changed = text
        .replace("level: warn", "level: error")
        .replace("workers: 1", "workers: 2");
    std::fs::write(proxy.config_path(), &changed).unwrap();
    let policies = proxy.config_path().parent().unwrap().join("policies");
    std::fs::create_dir(&policies).unwrap();
    std::fs::write(policies.join("p.yaml"), "policies: [{name: p}]\n").unwrap();
    let told = against(&proxy, &["config", "diff", "--exit-code", "-o", "json"]);
    assert_eq!(told.code, 1, "{}", told.err);
    let report = told.json();
    let found = |key: &str| {
        let all = report["differences"].as_array().unwrap();
        all.iter()
            .find(|d| d["key"] == key)
            .cloned()
            .unwrap_or_default()
    };
    assert_eq!(found("log.level")["running"]["value"], "warn");
    assert_eq!(found("log.level")["restart_required"], false);
    assert_eq!(found("workers")["restart_required"], true);
    assert_eq!(found("policies.p.mode")["running"], Value::Null);
    // What needs a restart stays in force after a reload, and is shown so.
    proxy.reload(&changed);
    let mut told = String::new();
    eventually("the reload shows", || {
        told = against(&proxy, &["config", "diff"]).good().out;
        !told.contains("log.level")
    });
    assert!(
        told.starts_with("workers  [needs a restart]\n  running: 1 ("),
        "{told}"
    );
    assert!(
        !told.contains("log.level") && !told.contains("policies.p"),
        "{told}"
    );
    let shown = against(&proxy, &["config", "show", "--running", "--origin"])
        .good()
        .out;
    assert!(shown.contains("log.level = error  # "), "{shown}");
    let told = against(&proxy, &["policies", "explain", "svc", "--running"])
        .good()
        .out;
    assert!(told.starts_with("svc: policy p ("), "{told}");
}
