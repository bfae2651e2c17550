use std::collections::BTreeMap;

use super::*;

fn check(files: &[(&str, &str)], paths: &[&str], strict: bool) -> (u8, String, String) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let paths = paths.iter().map(|path| folder.path().join(path)).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run(
        &CheckArgs {
            paths,
            strict,
            ..CheckArgs::default()
        },
        &BTreeMap::new(),
        &mut out,
        &mut err,
    );
    let clean = |bytes: Vec<u8>| {
        String::from_utf8(bytes)
            .unwrap()
            .replace(&format!("{}/", folder.path().display()), "")
    };
    (code, clean(out), clean(err))
}

const MAIN: &str = "services:\n  a: {endpoints: [\"10.0.0.1:1\", \"10.0.0.2:1\"]}\n";

#[test]
fn shows_the_policy_of_every_upstream_and_its_budget() {
    let policy =
        "policies:\n  - {name: strict, apply_to: {upstreams: [a]}, error_rate_threshold: 30}\n";
    let (code, out, err) = check(
        &[("m.yaml", MAIN), ("policies/p.yaml", policy)],
        &["m.yaml"],
        true,
    );
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(
        out.starts_with("m.yaml: good, 1 service, 1 policy\n"),
        "{out}"
    );
    assert!(
        out.contains("a             strict   policies/p.yaml:2  enforce  > 30 %"),
        "{out}"
    );
    assert!(out.contains("(discovered)  builtin  built in"), "{out}");
    assert!(
        out.contains("builtin             0    1    1    2    2    3    5     10"),
        "{out}"
    );
}

#[test]
fn a_bad_policy_file_is_told_apart_from_the_others() {
    let good = "policies: [{name: a}]\n";
    let files = [
        ("m.yaml", MAIN),
        ("policies/a.yaml", good),
        ("policies/b.yaml", "policies: 3\n"),
    ];
    let (code, out, err) = check(&files, &["m.yaml"], false);
    assert_eq!(code, 3);
    assert!(
        err.contains("policies/b.yaml:1:11") && err.ends_with("1 error, 0 warnings\n"),
        "{err}"
    );
    assert!(
        out.contains("policies/b.yaml rejected; 1 other file loaded"),
        "{out}"
    );
}

#[test]
fn warnings_fail_only_when_strict() {
    let files = [("m.yaml", "policies: ./none/*.yaml\n")];
    assert_eq!(check(&files, &["m.yaml"], false).0, 0);
    assert_eq!(check(&files, &["m.yaml"], true).0, 4);
    let none = "policies: [{name: p, instance_removal_rate_threshold: 10}]\n";
    let (code, _, err) = check(
        &[("m.yaml", MAIN), ("policies/p.yaml", none)],
        &["m.yaml"],
        true,
    );
    assert!(
        code == 4 && err.contains("may eject none of the 2 instances of `a`"),
        "{err}"
    );
}

#[test]
fn policy_and_endpoints_files_are_known_by_their_shape() {
    let policies = "policies: [{name: p}]\n";
    let files = [
        ("p.yaml", policies),
        ("e.yaml", "services: {a: [\"10.0.0.1:1\"]}\n"),
        ("x/outrigger.yaml", MAIN),
    ];
    let (code, out, err) = check(&files, &["p.yaml", "e.yaml", "x"], true);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(
        out.contains("p.yaml: good, 1 policy") && out.contains("e.yaml: good, 1 service"),
        "{out}"
    );
    assert_eq!(check(&files, &["gone.yaml"], false).0, 3);
}

#[test]
fn a_preflight_with_errors_calls_nothing_good() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let path = folder.path().join("m.yaml");
    let elsewhere = "admin: {listen: \"127.0.0.1:0\"}\ntelemetry: {listen: \"127.0.0.1:0\"}\n\
                     limits: {max_connections: 1}\n";
    let preflight = |listen: &str| {
        std::fs::write(&path, format!("listen: {listen}\n{elsewhere}")).unwrap();
        let args = CheckArgs {
            paths: vec![path.clone()],
            preflight: true,
            ..CheckArgs::default()
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(&args, &BTreeMap::new(), &mut out, &mut err);
        (code, String::from_utf8(out).unwrap())
    };
    let (code, out) = preflight(&taken.local_addr().unwrap().to_string());
    assert_eq!(code, 3, "{out}");
    assert!(
        out.contains("m.yaml: loads, but cannot start on this machine"),
        "{out}"
    );
    assert!(!out.contains("good"), "{out}");
    let (code, out) = preflight("127.0.0.1:0");
    assert!(code == 0 && out.contains("m.yaml: good"), "{out}");
}
