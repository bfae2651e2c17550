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
