//! How files change, and that it is seen without a signal.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::harness::{Client, Config, Proxy, Stub, eventually, pause_ms};

/// Whether answers of `svc` carry our `via` now.
fn has_via(proxy: &Proxy) -> bool {
    Client::connect(proxy.address).get("/").headers.has("via")
}

fn config(stub: &Stub, via: &str) -> String {
    Config::svc_with(&[stub.address], &format!("via: {via}")).text()
}

#[test]
fn an_editors_rename_and_a_write_in_place_are_seen() {
    let stub = Stub::ok();
    let proxy = Config::svc_with(&[stub.address], "via: none").start();
    assert!(!has_via(&proxy));
    let path = proxy.config_path();
    let fresh = path.with_extension("swp");
    fs::write(&fresh, config(&stub, "response")).unwrap();
    fs::rename(&fresh, &path).unwrap();
    eventually("the renamed file", || has_via(&proxy));
    let event = proxy.wait_for_event("config_reloaded");
    assert_eq!(event["actor"], "watch", "{event}");
    assert_eq!(event["result"], "applied", "{event}");
    assert_eq!(event["changed"], serde_json::json!(["services.svc"]));
    fs::write(&path, config(&stub, "none")).unwrap();
    eventually("the written file", || !has_via(&proxy));
    assert_eq!(proxy.reloads("applied"), 2);
}

#[test]
fn a_kubernetes_mount_is_followed() {
    let stub = Stub::ok();
    let mount = tempfile::tempdir().unwrap();
    let version = |name: &str, via: &str| {
        let folder = mount.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("outrigger.yaml"), config(&stub, via)).unwrap();
        // `..data` is switched by a rename over it, as the kubelet does.
        let link = mount.path().join("..data_tmp");
        symlink(name, &link).unwrap();
        fs::rename(&link, mount.path().join("..data")).unwrap();
    };
    version("..2026_01_01", "none");
    let path = mount.path().join("outrigger.yaml");
    symlink("..data/outrigger.yaml", &path).unwrap();
    let proxy = Proxy::start_at(&path);
    assert!(!has_via(&proxy));
    version("..2026_01_02", "response");
    fs::remove_dir_all(mount.path().join("..2026_01_01")).unwrap();
    eventually("the new version", || has_via(&proxy));
    assert_eq!(proxy.reloads("applied"), 1);
    assert_eq!(proxy.reloads("rejected"), 0);
}

#[test]
fn half_a_file_is_not_taken_for_the_whole() {
    let stub = Stub::ok();
    let proxy = Config::svc_with(&[stub.address], "via: none").start();
    let text = config(&stub, "response");
    // A prefix that is good YAML, and says something else than the whole.
    let (head, tail) = text.split_at(text.find("services:").unwrap());
    let mut file = fs::File::create(proxy.config_path()).unwrap();
    file.write_all(head.as_bytes()).unwrap();
    for piece in tail.as_bytes().chunks(8) {
        pause_ms(100);
        file.write_all(piece).unwrap();
        assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    }
    drop(file);
    eventually("the whole file", || has_via(&proxy));
    let loads = proxy.reloads("applied") + proxy.reloads("rejected");
    assert_eq!(loads, 1, "{:#?}", proxy.lines());
}

#[test]
fn a_folder_that_vanishes_and_returns() {
    let stub = Stub::ok();
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("etc");
    let fill = |via: &str| {
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("outrigger.yaml"), config(&stub, via)).unwrap();
    };
    fill("none");
    let proxy = Proxy::start_at(&folder.join("outrigger.yaml"));
    assert!(!has_via(&proxy));
    fs::remove_dir_all(&folder).unwrap();
    // Away for long: told, and what runs stays.
    let event = proxy.wait_for_event("config_rejected");
    assert_eq!(event["actor"], "watch", "{event}");
    assert_eq!(Client::connect(proxy.address).get("/").status(), 200);
    fill("response");
    eventually("the folder's return", || has_via(&proxy));
    // Only once, though it was away all the time.
    assert_eq!(proxy.reloads("rejected"), 1);
}

#[test]
fn nothing_changed_touches_nothing_and_a_mistake_undone_is_good_again() {
    let stub = Stub::ok();
    let proxy = Config::svc(&[stub.address]).start();
    proxy.signal("HUP");
    let event = proxy.wait_for_event("config_reloaded");
    assert_eq!(
        (&event["result"], &event["actor"]),
        (&"unchanged".into(), &"signal".into())
    );
    assert_eq!(proxy.reloads("unchanged"), 1);
    let good = proxy.config_text();
    write(&proxy.config_path(), "version: 1\nservices: [\n");
    proxy.wait_for_event("config_rejected");
    let successful = || proxy.metric("outrigger_config_last_reload_successful", &[]);
    assert_eq!(successful(), 0);
    write(&proxy.config_path(), &good);
    eventually("good again", || successful() == 1);
    assert_eq!(proxy.reloads("applied"), 0);
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
}
