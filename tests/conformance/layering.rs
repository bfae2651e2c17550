//! The direction of dependencies, and other rules of layout that a compiler does not check. What a
//! crate boundary would enforce, this enforces. `docs/architecture.md` explains the layers.
//! It looks at the code of `src/` without comments and without tests.

#![expect(clippy::expect_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

use outrigger::error::Reason;

/// A source file: its path under `src/`, its module, its code without comments and tests.
struct Source {
    path: String,
    module: Vec<String>,
    code: String,
    lines: usize,
}

/// Modules that decide and do nothing else: no I/O, no clock, no randomness of their own. An entry
/// with a final `/` is a folder. `CORE_EXCEPT` are the shell files inside these folders.
const CORE: &[&str] = &[
    "balancer.rs",
    "balancer/",
    "config.rs",
    "config/",
    "discovery/consul/watch.rs",
    "discovery/consul/wire.rs",
    "discovery/dns/set.rs",
    "discovery/eureka/store.rs",
    "discovery/eureka/wire.rs",
    "discovery/kubernetes/machine.rs",
    "discovery/kubernetes/set.rs",
    "discovery/kubernetes/wire.rs",
    "discovery/merge.rs",
    "discovery/nacos/datagram.rs",
    "discovery/nacos/wire.rs",
    "endpoint.rs",
    "endpoint/",
    "error.rs",
    "health/counter.rs",
    "health/expect.rs",
    "health/schedule.rs",
    "outlier.rs",
    "outlier/",
    "policy/breaker/machine.rs",
    "policy/breaker/machine/",
    "policy/breaker/window.rs",
    "policy/breaker/words.rs",
    "policy/budget.rs",
    "policy/bulkhead/line.rs",
    "policy/bulkhead/places.rs",
    "policy/fallback/cache.rs",
    "policy/fallback/cache/",
    "policy/fallback/condition.rs",
    "policy/fallback/directives.rs",
    "policy/fallback/recent.rs",
    "policy/fallback/storable.rs",
    "policy/limits.rs",
    "policy/quantile.rs",
    "policy/retry.rs",
    "registration/machine.rs",
    "registration/record.rs",
    "registration/rhythm.rs",
    "registration/view.rs",
    "registration/consul/wire.rs",
    "registration/eureka/instance.rs",
    "registration/nacos/wire.rs",
    "registry/lease.rs",
    "registry/lease/",
    "registry/model.rs",
    "registry/overview.rs",
    "registry/service.rs",
    "registry/session.rs",
    "router.rs",
    "router/",
    "protocol.rs",
    "protocol/",
    "policy/backoff.rs",
];
const CORE_EXCEPT: [&str; 5] = [
    // They read files and the environment.
    "config/environment.rs",
    "config/load.rs",
    "config/policy_files.rs",
    // The async task around the detector.
    "outlier/driver.rs",
    "outlier/driver/",
];

/// What core may name of the crate, each with everything below it.
const CORE_MAY_USE: [&str; 28] = [
    "balancer",
    "clock::Timestamp",
    "config",
    "discovery::merge",
    "endpoint",
    "error",
    "health::counter",
    "outlier",
    "policy::breaker::machine",
    "policy::breaker::window",
    "policy::breaker::words",
    "policy::budget",
    "policy::fallback::cache",
    "policy::fallback::condition",
    "policy::fallback::directives",
    "policy::fallback::recent",
    "policy::fallback::storable",
    "policy::limits",
    "policy::quantile",
    "policy::retry",
    "protocol",
    "registration::machine",
    "registration::record",
    "registration::rhythm",
    "registry::lease",
    "registry::model",
    "registry::service",
    "router",
];
/// The shell's modules inside of these.
const SHELL_INSIDE: [&str; 4] = [
    "config::environment::ProcessEnvironment",
    "config::load",
    "config::policy_files",
    "outlier::driver",
];
/// The documented exceptions: (file, what it may use beside that). Each has its reason.
const CORE_MAY_ALSO_USE: [(&str, &str); 7] = [
    // A route holds the live upstream it leads to, so that a request finds both in one look-up.
    // The table only carries the `Arc` and reads its name.
    ("router/table.rs", "upstream::Upstream"),
    ("router/table.rs", "upstream::route_state::RouteState"),
    // Values that pass between the merge rules and the tasks around them.
    ("discovery/merge.rs", "discovery"),
    ("discovery/nacos/wire.rs", "discovery"),
    ("discovery/eureka/store.rs", "discovery"),
    // The pure parts of one source, among themselves.
    ("discovery/kubernetes/machine.rs", "discovery::kubernetes"),
    ("discovery/kubernetes/set.rs", "discovery::kubernetes"),
];

/// Words that no core file may have.
const NOT_IN_CORE: [&str; 18] = [
    "tokio::",
    "hyper::",
    "hyper_util::",
    "h2::",
    "socket2::",
    "rustix::",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "UnixListener",
    "std::fs",
    "std::env",
    "std::thread",
    "Instant::now",
    "SystemTime",
    "thread_local!",
    "wall_now",
];

/// Where a file is longer than [`MAX_LINES`], why, and how long it may be. Nothing new goes in.
const MAX_LINES: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    collect(&root().join("src"), "", &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 50, "src/ is read");
    found
}

fn collect(folder: &Path, prefix: &str, found: &mut Vec<Source>) {
    for entry in std::fs::read_dir(folder).expect("src/ can be read") {
        let entry = entry.expect("an entry").path();
        let name = entry.file_name().expect("a name").to_string_lossy();
        let path = format!("{prefix}{name}");
        if entry.is_dir() {
            collect(&entry, &format!("{path}/"), found);
        } else if name.ends_with(".rs") && name != "tests.rs" && !path.starts_with("testing") {
            let text = std::fs::read_to_string(&entry).expect("a source file is UTF-8");
            found.push(source(path, &text));
        }
    }
}

fn source(path: String, text: &str) -> Source {
    // Tests stand at the end of a file.
    let text = text.split("#[cfg(test)]\nmod tests {").next().expect("one");
    let stem = path.trim_end_matches(".rs");
    let module = match stem {
        "lib" | "main" => Vec::new(),
        _ => stem.split('/').map(str::to_owned).collect(),
    };
    let code: Vec<&str> = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect();
    Source {
        lines: text.lines().count(),
        code: code.join("\n"),
        module,
        path,
    }
}

fn listed(list: &[&str], path: &str) -> bool {
    list.iter().any(|entry| match entry.strip_suffix('/') {
        Some(folder) => path
            .strip_prefix(folder)
            .is_some_and(|r| r.starts_with('/')),
        None => *entry == path,
    })
}

fn is_core(source: &Source) -> bool {
    listed(CORE, &source.path) && !listed(&CORE_EXCEPT, &source.path)
}

/// Every path of the crate that the code names, from its root: `crate::` and `super::` paths, in
/// `use` lines with their groups and anywhere else.
fn uses(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (keyword, base) in [("crate::", &[][..]), ("super::", &source.module[..])] {
        let mut rest = source.code.as_str();
        while let Some(at) = rest.find(keyword) {
            let before = rest.get(..at).expect("a boundary");
            rest = rest.get(at + keyword.len()..).expect("a boundary");
            let inside = before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
            if inside {
                continue;
            }
            let mut base = base.to_vec();
            base.pop();
            while keyword == "super::"
                && let Some(further) = rest.strip_prefix("super::")
            {
                base.pop();
                rest = further;
            }
            expand(&base.join("::"), rest, &mut found);
        }
    }
    found.sort();
    found.dedup();
    found
}

/// One path or a group, put behind `base`.
fn expand(base: &str, text: &str, found: &mut Vec<String>) {
    let join = |name: &str| match base {
        "" => name.to_owned(),
        base => format!("{base}::{name}"),
    };
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        let mut depth = 0_usize;
        let mut item = String::new();
        for c in group.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand(base, &std::mem::take(&mut item), found);
                    continue;
                }
                _ => {}
            }
            item.push(c);
        }
        expand(base, &item, found);
        return;
    }
    let name: String = text
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    if name.is_empty() || name == "self" {
        if !base.is_empty() {
            found.push(base.to_owned());
        }
        return;
    }
    let path = join(&name);
    let tail = text.get(name.len()..).unwrap_or_default();
    match tail.strip_prefix("::") {
        Some(tail) if !tail.starts_with('<') => expand(&path, tail, found),
        Some(_) | None => found.push(path),
    }
}

fn below(path: &str, module: &str) -> bool {
    path == module
        || path
            .strip_prefix(module)
            .is_some_and(|r| r.starts_with("::"))
}

fn assert_none(what: &str, breaches: &[String]) {
    assert!(breaches.is_empty(), "{what}:\n{}", breaches.join("\n"));
}

/// Files that use a module, other than those listed and the module itself.
fn users_of(module: &str, allowed: &[&str]) -> Vec<String> {
    let mut breaches = Vec::new();
    for source in sources() {
        if source.module.first().is_some_and(|m| m == module) || listed(allowed, &source.path) {
            continue;
        }
        for path in uses(&source).iter().filter(|path| below(path, module)) {
            breaches.push(format!("src/{} uses crate::{path}", source.path));
        }
    }
    breaches
}

/// What a module uses, other than what is listed and the module itself.
fn used_by(module: &str, allowed: &[&str]) -> Vec<String> {
    let mut breaches = Vec::new();
    for source in sources() {
        if source.module.first().is_none_or(|m| m != module) {
            continue;
        }
        for path in uses(&source) {
            if !below(&path, module) && !allowed.iter().any(|a| below(&path, a)) {
                breaches.push(format!("src/{} uses crate::{path}", source.path));
            }
        }
    }
    breaches
}

#[test]
fn core_does_no_io_and_reads_no_clock() {
    let mut breaches = Vec::new();
    for source in sources().iter().filter(|s| is_core(s)) {
        for word in NOT_IN_CORE {
            if mentions(&source.code, word) {
                breaches.push(format!("src/{} has `{word}`", source.path));
            }
        }
        // `fastrand::Rng` comes in as an argument; the functions beside it are a global.
        for (at, word) in source.code.match_indices("fastrand::") {
            let next = source.code.get(at + word.len()..).unwrap_or_default();
            if !next.starts_with("Rng") || next.starts_with("Rng::new") {
                breaches.push(format!("src/{} draws its own randomness", source.path));
            }
        }
    }
    assert_none(
        "core (docs/architecture.md, Layers) decides only",
        &breaches,
    );
}

/// `word` at the beginning of a word.
fn mentions(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code.get(..at).unwrap_or_default();
        !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
    })
}

#[test]
fn core_never_uses_the_shell() {
    let mut breaches = Vec::new();
    for source in sources().iter().filter(|s| is_core(s)) {
        for path in uses(source) {
            let also = CORE_MAY_ALSO_USE
                .iter()
                .any(|(file, module)| *file == source.path && below(&path, module));
            let shell = SHELL_INSIDE.iter().any(|module| below(&path, module));
            let core = CORE_MAY_USE.iter().any(|module| below(&path, module));
            if shell || !(core || also) {
                breaches.push(format!("src/{} uses crate::{path}", source.path));
            }
        }
    }
    assert_none("core may use core only", &breaches);
}

#[test]
fn only_the_wiring_knows_admin() {
    let mut breaches = users_of("admin", &["app.rs"]);
    // Commands read the shapes that the admin API writes; those are plain values.
    breaches.retain(|line| !(line.starts_with("src/cli/") && line.contains("crate::admin::views")));
    assert_none("admin is imported by app.rs only", &breaches);
}

#[test]
fn only_commands_and_signals_know_the_app() {
    // The demo is an app of its own, in one process with the proxy.
    let allowed = [
        "main.rs",
        "cli.rs",
        "cli/",
        "signal.rs",
        "demo.rs",
        "demo/stage.rs",
    ];
    assert_none(
        "app knows all, so few may know it",
        &users_of("app", &allowed),
    );
}

#[test]
fn nothing_uses_the_command_line() {
    assert_none(
        "cli is used by main.rs only",
        &users_of("cli", &["main.rs"]),
    );
}

#[test]
fn metrics_is_a_leaf() {
    // Closed label sets (error, classify), live state as values (status), settings of the cap, the
    // time of the scrape and the version that is shown.
    let allowed = [
        "clock::wall_now",
        "config::types",
        "error",
        "outlier::classify",
        "status",
        "version",
    ];
    assert_none("metrics counts and shows", &used_by("metrics", &allowed));
}

#[test]
fn discovery_knows_endpoints_and_registries_only() {
    let allowed = [
        "clock",
        "config::dns_name",
        "config::types",
        "endpoint",
        "http_client",
        "nacos_client",
        "protocol",
        "registry",
        "whole_file",
    ];
    assert_none(
        "discovery brings endpoints",
        &used_by("discovery", &allowed),
    );
}

#[test]
fn the_embedded_registry_knows_nothing_of_the_proxy() {
    let allowed = ["clock", "config::types", "endpoint", "protocol::nacos"];
    assert_none("the registry stands alone", &used_by("registry", &allowed));
}

#[test]
fn only_control_registers_the_app() {
    let allowed = ["control.rs", "control/", "app.rs", "admin/lifecycle.rs"];
    assert_none(
        "the app is registered by the control plane",
        &users_of("registration", &allowed),
    );
}

#[test]
fn connections_are_opened_in_few_places() {
    let allowed = [
        // To services, on behalf of the app.
        "upstream/connect.rs",
        // Active checks.
        "health/checker.rs",
        // Whether a registry can be reached from here, for `check --preflight`.
        "cli/check/preflight.rs",
        // The control plane: registries, the admin listener.
        "http_client.rs",
        // The session of a ZooKeeper.
        "discovery/zookeeper/connection.rs",
        // Whether anybody still listens on the file of a Unix socket.
        "listener/bind.rs",
    ];
    let mut breaches = Vec::new();
    for source in sources() {
        let opens = [
            "TcpStream::connect",
            "UnixStream::connect",
            "TcpSocket::new",
        ];
        // The demo is an app and instances beside the proxy.
        let outside = source.path.starts_with("demo/");
        if !outside
            && !listed(&allowed, &source.path)
            && opens.iter().any(|o| source.code.contains(o))
        {
            breaches.push(format!("src/{}", source.path));
        }
    }
    assert_none("these open connections", &breaches);
}

#[test]
fn one_file_knows_the_yaml_crate() {
    let of = |crate_name: &str| -> Vec<String> {
        let all = sources();
        let using = all.iter().filter(|s| mentions(&s.code, crate_name));
        using.map(|s| s.path.clone()).collect()
    };
    assert_eq!(of("saphyr_parser::"), ["config/document.rs"]);
}

#[test]
fn files_stay_short() {
    let mut breaches = Vec::new();
    for source in sources() {
        if source.lines > MAX_LINES {
            let Source { path, lines, .. } = &source;
            breaches.push(format!("src/{path}: {lines} lines, {MAX_LINES} allowed"));
        }
    }
    assert_none("look for a seam: state, decision, I/O, settings", &breaches);
}

#[test]
fn every_module_says_what_it_is() {
    let mut breaches = Vec::new();
    for source in sources() {
        let text = std::fs::read_to_string(root().join("src").join(&source.path));
        let text = text.expect("it was read before");
        let first = text
            .lines()
            .find(|line| !line.is_empty() && !line.starts_with("#!["));
        if !first.is_some_and(|line| line.starts_with("//!")) {
            breaches.push(format!("src/{}", source.path));
        }
    }
    assert_none("these files do not begin with a `//!` header", &breaches);
}

/// Our own answers link to `docs/operations.md#REASON`.
#[test]
fn operations_has_an_anchor_for_every_reason() {
    let path = root().join("docs/operations.md");
    let text = std::fs::read_to_string(path).expect("docs/operations.md");
    let anchors: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .collect();
    for reason in Reason::ALL {
        let status = reason.status().as_u16();
        let at = anchors.iter().position(|anchor| *anchor == reason.as_str());
        assert!(
            at.is_some(),
            "docs/operations.md has no heading `### {reason}`"
        );
        let said = format!("\n### {reason}\n\n**Status {status}");
        assert!(
            text.contains(&said),
            "`{reason}` has the status {status}: {said:?} is missing"
        );
    }
}

/// The extraction itself: a rule that sees nothing breaks for nothing.
#[test]
fn paths_are_found_in_every_form() {
    let text = "\
        use crate::config::types::{Config, Sink as S};\n\
        use crate::{app, signal::{self, listen}};\n\
        use super::sources::{Key};\n\
        // use crate::admin;\n\
        fn f(x: &crate::clock::Clock) -> super::super::worker::Worker { x.crate_y::z() }\n\
        #[cfg(test)]\nmod tests { use crate::testing::X; }";
    let found = uses(&source("control/plane.rs".to_owned(), text));
    let want = [
        "app",
        "clock::Clock",
        "config::types::Config",
        "config::types::Sink",
        "control::sources::Key",
        "signal",
        "signal::listen",
        "worker::Worker",
    ];
    assert_eq!(found, want);
}
