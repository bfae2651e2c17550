//! Live commands against a running admin listener with a fake control plane.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::mpsc;

use clap::Parser as _;
use serde_json::Value;

use super::*;
use crate::admin::tests::Admin;
use crate::config::types::Listen;
use crate::testing::control::FakeControl;
use crate::testing::status;

#[derive(clap::Parser)]
struct Cli {
    #[command(subcommand)]
    command: LiveCommand,
}

fn outrigger(admin: &str, line: &[&str]) -> (u8, String, String) {
    let args = ["outrigger"].iter().chain(line);
    let cli = Cli::try_parse_from(args).unwrap();
    let env = BTreeMap::from([("OUTRIGGER_ADMIN".to_owned(), admin.to_owned())]);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = cli.command.run(&env, &mut out, &mut err);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (code, text(out), text(err))
}

#[test]
fn tables_show_the_worst_first_and_say_why() {
    let admin = Admin::start();
    let at = admin.at.to_string();
    let (code, out, err) = outrigger(&at, &["upstreams"]);
    assert_eq!((code, &*err), (0, ""));
    let rows: Vec<Vec<&str>> = out
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(rows[1][..4], ["orders", "ejecting", "1/2", "1/1"], "{out}");
    let (code, out, _) = outrigger(&at, &["instances", "orders"]);
    let lines: Vec<&str> = out.lines().collect();
    assert!(code == 0 && lines[1].starts_with("[::1]:8080"), "{out}");
    assert!(
        lines[1].ends_with("65.0% errors > 50% in 10s (52 of 80, 8.0 qps)"),
        "{out}"
    );
    let (code, out, _) = outrigger(&at, &["instances", "a/b c"]);
    assert!(code == 0 && out.contains("10.0.0.3:80"), "{out}");
    let (code, out, _) = outrigger(&at, &["explain", "orders"]);
    assert!(
        code == 0 && out.contains("1 of 2 instances can be picked, 1 ejected"),
        "{out}"
    );
    let (code, out, _) = outrigger(&at, &["explain", "orders/[::1]:8080"]);
    assert!(
        code == 0 && out.contains("52 connect_refused") && out.contains("k=1"),
        "{out}"
    );
    let (code, short, _) = outrigger(&at, &["explain", "orders/[::1]"]);
    assert!(code == 0 && short.contains("52 connect_refused"), "{short}");
    let (code, _, err) = outrigger(&at, &["explain", "orders/26182"]);
    assert!(
        code == 1 && err.contains("orders: no instance is called `26182`"),
        "{err}"
    );
    let (code, out, _) = outrigger(&at, &["explain", "a/b c"]);
    assert!(code == 0 && out.starts_with("a/b c is "), "{out}");
    let (_, out, _) = outrigger(&at, &["registries"]);
    assert!(
        out.contains("local") && out.contains("3 applied, 7 unchanged"),
        "{out}"
    );
    let (_, out, _) = outrigger(&at, &["explain-route", "http://orders/v1", "-H", "a: b"]);
    assert!(out.contains("upstream  orders"), "{out}");
    let (code, out, _) = outrigger(&at, &["status"]);
    assert!(
        code == 0 && out.contains("serving, ready (pid 42, up 1h 2m)"),
        "{out}"
    );
    assert!(
        out.contains("1 not wholly healthy") && !out.contains("a/b c"),
        "{out}"
    );
    admin.stop();
}

#[test]
fn json_is_what_the_api_says() {
    let admin = Admin::start();
    let at = admin.at.to_string();
    for (line, pointer) in [
        (["status", "-ojson"].as_slice(), "/version"),
        (&["upstreams", "-o", "json"], "/upstreams/0/name"),
        (&["services", "-ojson"], "/services/0/name"),
        (&["hosts", "orders", "-ojson"], "/hosts/0/ip"),
        (&["overrides", "-ojson"], "/overrides"),
        (&["bundle", "-"], "/events"),
        (&["instances", "orders", "-ojson"], "/instances/1/why"),
        (&["explain", "orders", "-ojson"], "/decisions"),
        (&["explain", "E-CFG-012", "-ojson"], "/text"),
        (&["registries", "-ojson"], "/registries/0/kind"),
        (&["explain-route", "/orders", "-ojson"], "/rule"),
        (&["version", "--json"], "/commit"),
    ] {
        let (code, out, _) = outrigger(&at, line);
        let value: Value = serde_json::from_str(&out).unwrap();
        assert!(
            code == 0 && value.pointer(pointer).is_some(),
            "{line:?} {out}"
        );
    }
    admin.stop();
}

#[test]
fn failures_have_codes_and_one_clear_line() {
    let admin = Admin::start();
    let at = admin.at.to_string();
    let (code, out, err) = outrigger(&at, &["instances", "order"]);
    assert_eq!((code, &*out), (1, ""));
    assert_eq!(
        err,
        "outrigger: no upstream is called `order`; did you mean `orders`?\n"
    );
    assert_eq!(outrigger(&at, &["explain", "E-CFG-999"]).0, 2);
    assert_eq!(outrigger(&at, &["explain-route", "/", "-H", "x"]).0, 2);
    assert_eq!(outrigger("nonsense", &["status"]).0, 2);
    // The telemetry listener is another program to this command.
    let (code, _, err) = outrigger(&admin.telemetry.to_string(), &["upstreams"]);
    assert!(code == 1 && err.lines().count() == 1, "{err}");
    admin.stop();
    let (code, _, err) = outrigger(&at, &["status"]);
    assert_eq!((code, err.lines().count()), (6, 1), "{err}");
    assert!(
        err.contains(&at) && err.contains("OUTRIGGER_ADMIN") && err.contains("--admin"),
        "{err}"
    );
}

#[test]
fn a_health_check_tells_ready_from_not_ready_from_nobody() {
    let admin = Admin::start();
    let (at, telemetry) = (admin.at.to_string(), admin.telemetry.to_string());
    let by_telemetry = || outrigger("", &["healthcheck", "--telemetry", &telemetry]).0;
    let by_admin = || outrigger("", &["healthcheck", "--admin", &at]).0;
    assert_eq!((by_telemetry(), by_admin()), (0, 0));
    admin.control.answers().process.ready = false;
    assert_eq!((by_telemetry(), by_admin()), (5, 5));
    admin.stop();
    assert_eq!((by_telemetry(), by_admin()), (6, 6));
}

#[test]
fn a_unix_socket_and_the_configuration_file_lead_there_too() {
    let folder = tempfile::tempdir().unwrap();
    let (control, handle, work) = FakeControl::new(vec![status::upstream("x", Vec::new())]);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(work);
    });
    let path = folder.path().join("admin.sock");
    let admin = Admin::with(control, handle, &Listen::Unix(path.clone()));
    assert_eq!(admin.unix.as_deref(), Some(&*path));
    let (code, out, err) = outrigger(&format!("unix:{}", path.display()), &["instances", "x"]);
    assert_eq!((code, &*out), (0, "x has no instances\n"), "{err}");
    let file = folder.path().join("o.yaml");
    std::fs::write(&file, "admin: {listen: \"unix:admin.sock\"}\n").unwrap();
    let file = file.to_str().unwrap();
    let (code, out, err) = outrigger("", &["upstreams", "-c", file]);
    assert!(code == 0 && out.contains('x'), "{err}");
    admin.stop();
    assert!(!path.exists());
    let (code, _, err) = outrigger("", &["upstreams", "-c", file]);
    assert!(code == 6 && err.contains(&format!("from {file}")), "{err}");
}

#[test]
fn events_are_listed_filtered_and_followed() {
    let admin = Admin::start();
    let at = admin.at.to_string();
    for name in ["orders", "users", "orders"] {
        admin.event("instance_ejected", name);
    }
    let (code, out, _) = outrigger(&at, &["events", "--upstream", "orders"]);
    assert_eq!((code, out.lines().count()), (0, 2), "{out}");
    assert!(
        out.contains("instance_ejected     instance_ejected of orders"),
        "{out}"
    );
    let (_, out, _) = outrigger(&at, &["events", "-n1", "-ojson"]);
    let event: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(event["id"], "000003");
    let (lines, seen) = mpsc::channel();
    let follower = std::thread::spawn({
        let at = at.clone();
        move || {
            let cli = Cli::try_parse_from(["outrigger", "events", "-f", "-n0", "--admin", &at]);
            let mut out = Until(lines);
            cli.unwrap()
                .command
                .run(&BTreeMap::new(), &mut out, &mut Vec::new())
        }
    });
    // Whatever comes after it began is shown, sooner or later; a line may come in pieces.
    let mut shown = String::new();
    while !shown.contains("restored of orders") {
        assert!(!follower.is_finished(), "{:?}", follower.join());
        admin.event("instance_restored", "orders");
        let wait = std::time::Duration::from_millis(50);
        shown.extend(seen.recv_timeout(wait));
        shown.extend(seen.try_iter());
    }
    drop(seen);
    admin.event("instance_left", "orders");
    assert_eq!(follower.join().unwrap(), 0);
    admin.stop();
}

#[test]
fn a_follower_waits_for_a_process_that_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let start = || {
        let (control, handle, work) = FakeControl::new(vec![status::upstream("x", Vec::new())]);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            runtime.unwrap().block_on(work);
        });
        Admin::with(control, handle, &Listen::Unix(path.clone()))
    };
    let at = format!("unix:{}", path.display());
    let admin = start();
    admin.event("stopped", "first");
    let (lines, seen) = mpsc::channel();
    let follower = std::thread::spawn(move || {
        let line = ["outrigger", "events", "-f", "--admin", &at];
        let cli = Cli::try_parse_from(line).unwrap();
        let mut err = Vec::new();
        let code = cli
            .command
            .run(&BTreeMap::new(), &mut Until(lines), &mut err);
        (code, String::from_utf8(err).unwrap())
    });
    let mut shown = String::new();
    while !shown.contains("stopped of first") {
        shown.push_str(&seen.recv().unwrap());
    }
    admin.stop();
    let admin = start();
    admin.event("stopped", "second");
    while !shown.contains("stopped of second") {
        admin.event("stopped", "second");
        shown.push_str(&seen.recv().unwrap());
    }
    drop(seen);
    admin.event("stopped", "third");
    let (code, err) = follower.join().unwrap();
    assert_eq!(code, 0);
    assert!(err.is_empty() || err.contains("trying again"), "{err}");
    admin.stop();
}

#[test]
fn a_file_with_errors_still_leads_to_the_process() {
    let admin = Admin::start();
    let at = admin.at.to_string();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("outrigger.yaml");
    let file = file.to_str().unwrap();
    for rest in [
        "nonsense: 1",
        "workers: many",
        "services: {orders: [",
        "services:\n\torders: {}",
    ] {
        std::fs::write(
            file,
            format!("version: 1\nadmin:\n  listen: {at}\n{rest}\n"),
        )
        .unwrap();
        let (code, out, err) = outrigger("", &["status", "-c", file]);
        assert_eq!((code, &*err), (0, ""), "{rest}");
        assert!(out.contains("pid 42"), "{out}");
    }
    admin.stop();
    let (code, _, err) = outrigger("", &["status", "-c", file]);
    assert_eq!(code, 6);
    assert!(
        err.contains(&at) && err.contains("which has errors"),
        "{err}"
    );
}

#[test]
fn a_bundle_is_for_its_owner_and_replaces_nothing() {
    use std::os::unix::fs::PermissionsExt as _;
    let admin = Admin::start();
    let at = admin.at.to_string();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bundle.json");
    let path = file.to_str().unwrap();
    assert_eq!(outrigger(&at, &["bundle", path]).0, 0);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (code, _, err) = outrigger(&at, &["bundle", path]);
    assert!(code == 1 && err.contains("name another file"), "{err}");
    admin.stop();
}

#[test]
fn services_hosts_and_wide_tables() {
    let admin = Admin::start();
    let at = admin.at.to_string();
    admin.control.answers().names = vec![
        (
            "local".to_owned(),
            Ok(vec![
                ("orders".to_owned(), Some(2)),
                ("users".to_owned(), Some(4)),
            ]),
        ),
        ("far".to_owned(), Err("no answer in time".to_owned())),
    ];
    let (code, out, err) = outrigger(&at, &["services"]);
    let rows: Vec<Vec<&str>> = out
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(code, 0, "{err}");
    assert!(rows.contains(&vec!["orders", "local", "yes", "2"]), "{out}");
    assert!(
        rows.contains(&vec!["users", "local", "not", "yet", "4"]),
        "{out}"
    );
    assert!(out.contains("registry far: no answer in time"), "{out}");
    let (_, out, _) = outrigger(&at, &["services", "US*R"]);
    assert!(out.contains("users") && !out.contains("orders"), "{out}");
    let (_, out, _) = outrigger(&at, &["hosts", "orders"]);
    assert!(
        out.contains("10.0.0.1:80") && !out.contains("8080"),
        "{out}"
    );
    let (_, out, _) = outrigger(&at, &["hosts", "orders", "--all"]);
    assert!(out.contains("[::1]:8080"), "{out}");
    let (_, out, _) = outrigger(&at, &["instances", "orders", "-owide"]);
    assert!(
        out.contains("NEXT PROBE") && out.contains("1 times"),
        "{out}"
    );
    let (_, out, _) = outrigger(&at, &["upstreams", "-o", "wide"]);
    assert!(
        out.contains("policies/default.yaml:4") && out.contains("1 ejected"),
        "{out}"
    );
    admin.control.answers().route.refusal = Some("404 no_route: no".to_owned());
    assert_eq!(outrigger(&at, &["explain-route", "http://x/"]).0, 1);
    let (code, _, err) = outrigger(&at, &["events", "--type", "eject"]);
    assert!(code == 2 && err.contains("no event is called"), "{err}");
    admin.stop();
}

/// Output that ends like a pipe whose reader is gone.
struct Until(mpsc::Sender<String>);

impl Write for Until {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let sent = self.0.send(text);
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
