use super::*;
use std::time::Duration;

fn config(data: Option<std::path::PathBuf>) -> Embedded {
    Embedded {
        listen: None,
        data,
        unhealthy_after: Duration::from_secs(15),
        remove_after: Duration::from_secs(30),
        beat_interval: Duration::from_secs(5),
        max_services: 100,
        max_instances: 1000,
        max_metadata_bytes: 4096,
        max_connections: 100,
        users_file: None,
    }
}

fn key(name: &str) -> ServiceKey {
    ServiceKey::new(None, None, name).unwrap()
}

fn instance(port: u16) -> Registration {
    Registration::new(InstanceKey::new("10.0.0.1", port, None).unwrap())
}

fn ports(registry: &EmbeddedRegistry, name: &str) -> Vec<(u16, bool)> {
    let endpoints = registry.endpoints(&key(name), &[]);
    endpoints
        .iter()
        .map(|e| (e.address.socket().unwrap().port(), e.healthy))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn watchers_hear_of_expiry_when_it_is_due() {
    let clock = Clock::new();
    let registry = EmbeddedRegistry::new(&config(None), clock);
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(registry.clone().maintain(stopped));
    let mut changes = registry.watch(&key("a"));
    registry.register(&key("a"), instance(1)).unwrap();
    changes.changed().await.unwrap();
    changes.changed().await.unwrap();
    assert_eq!(clock.now().as_millis() / 1000, 15);
    assert_eq!(ports(&registry, "a"), [(1, false)]);
    changes.changed().await.unwrap();
    assert_eq!(clock.now().as_millis() / 1000, 30);
    assert_eq!(ports(&registry, "a"), []);
    stop.send(true).unwrap();
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reads_do_not_depend_on_the_maintenance_task() {
    let registry = EmbeddedRegistry::new(&config(None), Clock::new());
    registry.register(&key("a"), instance(1)).unwrap();
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(ports(&registry, "a"), []);
}

#[tokio::test]
async fn a_restart_keeps_order_and_operator_changes_and_starts_leases_afresh() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(Some(folder.path().join("data")));
    let (stop, stopped) = watch::channel(false);
    let registry = EmbeddedRegistry::new(&config, Clock::new());
    let task = tokio::spawn(registry.clone().maintain(stopped));
    for port in [9, 3, 7] {
        registry.register(&key("a"), instance(port)).unwrap();
    }
    let disable = Patch {
        enabled: Some(false),
        ..Patch::default()
    };
    registry
        .patch(&key("a"), instance(3).key.target(), &disable)
        .unwrap();
    stop.send(true).unwrap();
    task.await.unwrap();

    let registry = EmbeddedRegistry::new(&config, Clock::new());
    assert_eq!(ports(&registry, "a"), [(9, true), (3, true), (7, true)]);
    registry.register(&key("a"), instance(3)).unwrap();
    assert!(!registry.endpoints(&key("a"), &[])[1].enabled);
    assert!(registry.beat(&key("a"), instance(7).key.target()).is_some());
}

#[tokio::test]
async fn a_bad_snapshot_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    for bad in [
        "{\"version\":1,\"inst",
        "{\"version\":99,\"instances\":[]}",
        "",
    ] {
        std::fs::write(folder.path().join("registry.json"), bad).unwrap();
        let config = config(Some(folder.path().to_owned()));
        let registry = EmbeddedRegistry::new(&config, Clock::new());
        assert_eq!(registry.counts(), (0, 0));
        let aside = std::fs::read_to_string(folder.path().join("registry.json.bad")).unwrap();
        assert_eq!(aside, bad);
        assert!(!folder.path().join("registry.json").exists());
    }
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_written_is_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::write(&data, "no folder").unwrap();
    let registry = EmbeddedRegistry::new(&config(Some(data.clone())), Clock::new());
    registry.save().await;
    assert!(registry.0.unsaved.load(Ordering::Relaxed));
    registry.save().await;
    assert!(registry.0.unsaved.load(Ordering::Relaxed));
    std::fs::remove_file(&data).unwrap();
    registry.save().await;
    assert!(!registry.0.unsaved.load(Ordering::Relaxed) && data.join("registry.json").exists());
}
