use std::time::Duration;

use super::*;
use crate::config::types::{AttemptTimeout, Listen, RegistryKind};

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn write(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

const BENCH: &str = r#"version: 1
listen: 127.0.0.1:0
workers: 2
admin: {listen: 127.0.0.1:0}
telemetry: {listen: 127.0.0.1:0, access_log: {mode: errors, format: json, sink: stdout}}
app: {name: bench}
policies: ./policies/*.yaml
services:
  bench:
    hosts: [bench.local]
    protocol: http1
    timeout: {attempt: 1s, request: 3s}
    retry: {max_attempts: 3, retry_on: [connect_failure, refused_stream, reset, attempt_timeout, http_5xx]}
    endpoints: ["127.0.0.2:9001", "127.0.0.2:9002"]
"#;
const BENCH_POLICY: &str =
    "version: 1\npolicies:\n  - name: bench\n    exception_type: network_and_business\n";

#[test]
fn loads_a_main_file_with_a_policy() {
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        &[
            ("outrigger.yaml", BENCH),
            ("policies/bench.yaml", BENCH_POLICY),
        ],
    );
    let env = env(&[]);
    let loaded = load(LoadRequest::new(
        Some(folder.path().join("outrigger.yaml")),
        &env,
    ));
    assert!(loaded.diagnostics.is_empty(), "{}", loaded.diagnostics);
    let config = loaded.config.unwrap();
    let bench = &config.services["bench"];
    assert_eq!(
        bench.timeout.attempt,
        AttemptTimeout::After(Duration::from_secs(1))
    );
    assert_eq!(bench.retry.retry_on.http_5xx.count_ones(), 100);
    assert_eq!(bench.endpoints.as_ref().map(|e| e.len()), Some(2));
    let policy = &config.policies.entries[0].policy;
    assert_eq!(
        (&*policy.name, &*policy.origin),
        ("bench", "policies/bench.yaml:3")
    );
    assert_eq!(loaded.files_read.len(), 2);
}

#[test]
fn without_a_file_the_embedded_registry_is_discovered_in() {
    let folder = tempfile::tempdir().unwrap();
    let env = env(&[("OUTRIGGER_LISTEN", "127.0.0.1:0"), ("HOSTNAME", "box")]);
    let loaded = load(LoadRequest {
        folder: folder.path().to_owned(),
        ..LoadRequest::new(None, &env)
    });
    let config = loaded.config.unwrap();
    assert!(config.auto_discover && loaded.main_file.is_none());
    assert!(matches!(
        config.registries["embedded"].kind,
        RegistryKind::Embedded(_)
    ));
    assert_eq!(config.listen, [Listen::Tcp("127.0.0.1:0".parse().unwrap())]);
    assert_eq!(&*config.app.name, "box");
    assert_eq!(Config::builtin().listen, [Listen::Localhost(15001)]);
}

#[test]
fn a_flag_outranks_a_variable_and_that_the_file() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[("outrigger.yaml", BENCH)]);
    let env = env(&[
        ("OUTRIGGER_WORKERS", "3"),
        ("OUTRIGGER_LISTEN", "[127.0.0.1:1, 'localhost:2']"),
        ("OUTRIGGER_TELEMETRY__LISTEN", "[::]:0"),
        ("OUTRIGGER_ADMIN__LISTEN", "127.0.0.1:3"),
        ("OUTRIGGER_DEFAULTS__TIMEOUT__IDLE", "5s"),
        ("OUTRIGGER_ADMIN", "127.0.0.1:9"),
        ("OUTRIGGER_PORT", "tcp://10.0.0.1:80"),
        ("OUTRIGGER_SERVICES__BENCH__PORT", "7"),
        ("OUTRIGGER_LOG__LEVEL", ""),
    ]);
    let mut flags = Overrides::default();
    flags.flag("--admin", "admin.listen", &["unix:/run/a.sock".to_owned()]);
    let path = Some(folder.path().join("outrigger.yaml"));
    let loaded = load(LoadRequest {
        flags,
        ..LoadRequest::new(path, &env)
    });
    let config = loaded.config.unwrap();
    assert_eq!(config.workers, Some(3));
    assert_eq!(config.listen.len(), 2);
    assert_eq!(
        config.telemetry.listen,
        Some(Listen::Tcp("[::]:0".parse().unwrap()))
    );
    assert_eq!(config.admin.listen, Listen::Unix("/run/a.sock".into()));
    assert_eq!(
        config.services["bench"].timeout.idle,
        Some(Duration::from_secs(5))
    );
    assert_eq!(config.services["bench"].port, None);
    assert_eq!(
        loaded.ignored_variables,
        ["OUTRIGGER_PORT", "OUTRIGGER_SERVICES__BENCH__PORT"]
    );
}

#[test]
fn a_bad_variable_is_named() {
    let env = env(&[
        ("OUTRIGGER_WORKERS", "many"),
        ("OUTRIGGER_DEBUG_HEADERS", "x"),
    ]);
    let loaded = parse_str("", "m.yaml", &env, None);
    let text = loaded.diagnostics.to_string();
    assert!(loaded.config.is_none());
    assert!(
        text.contains("--> OUTRIGGER_WORKERS") && text.contains("`debug_headers` is not sup"),
        "{text}"
    );
}

#[test]
fn the_main_file_is_looked_up_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let none = env(&[]);
    let find = |env: &BTreeMap<String, String>| {
        let request = LoadRequest {
            folder: folder.path().to_owned(),
            ..LoadRequest::new(None, env)
        };
        let loaded = load(request);
        let found = loaded
            .main_file
            .map(|path| path.strip_prefix(folder.path()).unwrap().to_owned());
        (found, loaded.config.is_some())
    };
    write(
        folder.path(),
        &[
            ("config/outrigger.yaml", "version: 1"),
            ("other.yaml", "version: 1"),
        ],
    );
    assert_eq!(find(&none), (Some("config/outrigger.yaml".into()), true));
    write(folder.path(), &[("outrigger.yaml", "version: 1")]);
    assert_eq!(find(&none), (Some("outrigger.yaml".into()), true));
    assert_eq!(
        find(&env(&[("OUTRIGGER_CONFIG", "other.yaml")])),
        (Some("other.yaml".into()), true)
    );
    // A file that was asked for and is not there is an error, never the next one.
    assert_eq!(
        find(&env(&[("OUTRIGGER_CONFIG", "gone.yaml")])),
        (Some("gone.yaml".into()), false)
    );
}

#[test]
fn paths_start_at_the_folder_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let main = "registries: {f: {kind: file, path: ./e.yaml}}\nadmin: {token_file: /run/t}\n";
    write(folder.path(), &[("outrigger.yaml", main)]);
    let env = env(&[]);
    let config = load(LoadRequest::new(
        Some(folder.path().join("outrigger.yaml")),
        &env,
    ))
    .config
    .unwrap();
    let want = RegistryKind::File {
        path: folder.path().join("./e.yaml"),
    };
    assert_eq!(config.registries["f"].kind, want);
    assert_eq!(config.admin.token_file, Some("/run/t".into()));
}

#[test]
fn at_a_reload_the_last_good_version_of_a_policy_file_stays() {
    let folder = tempfile::tempdir().unwrap();
    let names = |config: &Config| -> Vec<String> {
        config
            .policies
            .entries
            .iter()
            .map(|e| e.policy.name.to_string())
            .collect()
    };
    write(
        folder.path(),
        &[
            ("outrigger.yaml", "version: 1"),
            ("policies/a.yaml", "policies: [{name: a}]\n"),
            (
                "policies/b.yaml",
                "policies: [{name: b, apply_to: {upstreams: b}}]\n",
            ),
            ("policies/..data.yaml", "policies: 3\n"),
        ],
    );
    let env = env(&[]);
    let path = Some(folder.path().join("outrigger.yaml"));
    let first = load(LoadRequest::new(path.clone(), &env)).config.unwrap();
    assert_eq!(names(&first), ["a", "b"]);
    write(
        folder.path(),
        &[("policies/a.yaml", "policies: [{name: a, mode: x}]\n")],
    );
    let previous = Some(Arc::clone(&first.policies));
    let second = load(LoadRequest {
        previous,
        ..LoadRequest::new(path.clone(), &env)
    });
    let config = second.config.unwrap();
    assert_eq!(
        (names(&config), config.policies.rejected.len()),
        (vec!["a".into(), "b".into()], 1)
    );
    assert_eq!(
        names(&load(LoadRequest::new(path, &env)).config.unwrap()),
        ["b"]
    );
}

/// Nothing grows with the square of a large file so that a load would seem to hang.
#[test]
fn large_files_load_soon() {
    let lines = |f: &dyn Fn(usize) -> String| (0..3_000).map(f).collect::<String>();
    let folder = tempfile::tempdir().unwrap();
    let policies = lines(&|n| format!("  - {{name: p{n}, apply_to: {{upstreams: u{n}}}}}\n"));
    write(
        folder.path(),
        &[("p.yaml", &format!("policies:\n{policies}"))],
    );
    let services = lines(&|n| {
        format!(
            "  s{n}: {{port: {}, endpoints: [\"h{n}:1\"]}}\n",
            n + 20_000
        )
    });
    let unknown = lines(&|n| format!("unknown_key_{n}: 1\nunknown_key_{n}: 2\n"));
    let main = format!("policies: p.yaml\nservices:\n{services}{unknown}");
    let loaded = parse_str(&main, "m.yaml", &env(&[]), Some(folder.path()));
    assert!(loaded.diagnostics.len() >= 6_000);
}

#[test]
fn an_empty_main_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let env = env(&[]);
    for text in ["", "# all of it\n", "---\n", "~\n"] {
        write(folder.path(), &[("m.yaml", text)]);
        let loaded = load(LoadRequest::new(Some(folder.path().join("m.yaml")), &env));
        assert!(loaded.config.is_none(), "{text:?}");
        let shown = loaded.diagnostics.to_string();
        assert!(shown.contains("E-CFG-015"), "{shown}");
    }
}

fn pipe(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

#[test]
fn only_regular_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let env = env(&[]);
    let main = folder.path().join("m.yaml");
    pipe(&main);
    let loaded = load(LoadRequest::new(Some(main.clone()), &env));
    let shown = loaded.diagnostics.to_string();
    assert!(
        loaded.config.is_none() && shown.contains("not a regular file"),
        "{shown}"
    );
    std::fs::remove_file(&main).unwrap();

    write(
        folder.path(),
        &[("m.yaml", BENCH), ("policies/a.yaml", BENCH_POLICY)],
    );
    pipe(&folder.path().join("policies/pipe.yaml"));
    std::os::unix::fs::symlink("nowhere", folder.path().join("policies/z.yaml")).unwrap();
    let loaded = load(LoadRequest::new(Some(main.clone()), &env));
    let policies = loaded.config.unwrap().policies;
    assert_eq!((policies.entries.len(), policies.rejected.len()), (1, 2));
    let reasons = format!("{:?}", policies.rejected);
    assert!(
        reasons.contains("not a regular file") && reasons.contains("link to nowhere leads nowhere"),
        "{reasons}"
    );

    std::fs::write(&main, vec![b'#'; 3_000_000]).unwrap();
    let shown = load(LoadRequest::new(Some(main), &env))
        .diagnostics
        .to_string();
    assert!(
        shown.contains("E-CFG-003") && shown.contains("3000000 bytes"),
        "{shown}"
    );
}

#[test]
fn at_a_reload_a_file_in_force_keeps_its_place_before_a_newcomer() {
    let orders = "policies: [{name: orders, apply_to: {upstreams: orders}}]\n";
    let other_name = "policies: [{name: backup, apply_to: {upstreams: orders}}]\n";
    let other_target = "policies: [{name: orders, apply_to: {upstreams: other}}]\n";
    let other = "policies: [{name: other, apply_to: {upstreams: other}}]\n";
    // Before, after: files by name, and what the reload is to reject. `a` sorts before `orders`.
    type Files<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Files<'_>, Files<'_>, &[&str]); 6] = [
        (&[("orders", orders)], &[("a", other_name)], &["a"]),
        (&[("orders", orders)], &[("a", other_target)], &["a"]),
        // The newcomer stays out also while the file in force is being mended.
        (
            &[("orders", orders)],
            &[("a", other_name), ("orders", "policies: 3\n")],
            &["a", "orders"],
        ),
        // A file in force that changes cannot push out another either.
        (
            &[("a", other), ("orders", orders)],
            &[("a", other_name)],
            &["a"],
        ),
        (
            &[("a", other), ("orders", orders)],
            &[("a", other_name), ("orders", "policies: 3\n")],
            &["a", "orders"],
        ),
        // Policies may change places, though.
        (
            &[("a", other), ("orders", orders)],
            &[("a", orders), ("orders", other)],
            &[],
        ),
    ];
    for (before, after, want) in cases {
        let folder = tempfile::tempdir().unwrap();
        let env = env(&[]);
        write(folder.path(), &[("m.yaml", "version: 1")]);
        let put = |files: Files<'_>| {
            for (name, text) in files {
                write(folder.path(), &[(&*format!("policies/{name}.yaml"), *text)]);
            }
        };
        let request = |previous| LoadRequest {
            previous,
            ..LoadRequest::new(Some(folder.path().join("m.yaml")), &env)
        };
        put(before);
        let first = load(request(None)).config.unwrap().policies;
        assert!(first.rejected.is_empty(), "{:?}", first.rejected);
        put(after);
        let second = load(request(Some(Arc::clone(&first)))).config.unwrap();
        let stem = |path: &Path| path.file_stem().unwrap().to_str().unwrap().to_owned();
        let rejected: Vec<String> = second
            .policies
            .rejected
            .iter()
            .map(|f| stem(&f.path))
            .collect();
        assert_eq!(rejected, want, "{after:?}");
        if !want.is_empty() {
            assert_eq!(second.policies.entries, first.entries, "{after:?}");
            assert_eq!(second.policies.versions, first.versions, "{after:?}");
        }
        // Told the same again while nothing changes.
        let third = load(request(Some(Arc::clone(&second.policies))))
            .config
            .unwrap();
        assert_eq!(third.policies.entries, second.policies.entries, "{after:?}");
        assert_eq!(
            third.policies.rejected, second.policies.rejected,
            "{after:?}"
        );
    }
}

#[test]
fn keys_known_here_are_listed_once() {
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        &[("p.yaml", "policies: [{name: p, qqqqqq: 1}]\n")],
    );
    let (_, problems) = policies(vec![folder.path().join("p.yaml")], &env(&[]));
    let shown = problems.to_string();
    assert_eq!(shown.matches("`statistics_window`").count(), 1, "{shown}");
}

#[test]
fn policy_files_that_are_gone_at_a_reload_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let env = env(&[]);
    write(
        folder.path(),
        &[
            ("m.yaml", "version: 1"),
            ("policies/a.yaml", "policies: [{name: a}]\n"),
            (
                "policies/b.yaml",
                "policies: [{name: b, apply_to: {upstreams: b}}]\n",
            ),
        ],
    );
    let path = Some(folder.path().join("m.yaml"));
    let request = |previous| LoadRequest {
        previous,
        ..LoadRequest::new(path.clone(), &env)
    };
    let first = load(request(None)).config.unwrap().policies;
    let again = load(request(Some(Arc::clone(&first))));
    assert!(again.diagnostics.is_empty(), "{}", again.diagnostics);
    std::fs::remove_file(folder.path().join("policies/b.yaml")).unwrap();
    let loaded = load(request(Some(first)));
    let warnings: Vec<String> = loaded
        .diagnostics
        .warnings()
        .map(Diagnostic::line)
        .collect();
    assert!(
        warnings.len() == 1 && warnings[0].contains("`policies/b.yaml`"),
        "{warnings:?}"
    );
    assert_eq!(loaded.config.unwrap().policies.entries.len(), 1);
}

#[test]
fn a_token_file_that_lets_nobody_in_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let env = env(&[]);
    write(folder.path(), &[("m.yaml", "admin:\n  token_file: t\n")]);
    let warnings = || {
        let loaded = load(LoadRequest::new(Some(folder.path().join("m.yaml")), &env));
        assert!(loaded.config.is_some());
        loaded.diagnostics.to_string()
    };
    let missing = warnings();
    assert!(
        missing.contains("E-CFG-112") && missing.contains("m.yaml:2:15"),
        "{missing}"
    );
    write(folder.path(), &[("t", " \n")]);
    assert!(warnings().contains("is empty"));
    write(folder.path(), &[("t", "secret\n")]);
    assert_eq!(warnings(), "");
}
