//! The registrar with its driver against scripted servers.

use std::time::Duration;

use super::*;
use crate::clock::Clock;
use crate::config::types::NacosProtocol;
use crate::registration::tests::{Fake, Reply, Seen, Setup, pass, record, servers};

const INSTANCE: &str = "POST /nacos/v1/ns/instance";
const BEAT: &str = "PUT /nacos/v1/ns/instance/beat";
const DELETE: &str = "DELETE /nacos/v1/ns/instance";
const LOOK: &str = "GET /nacos/v1/ns/instance";
const GOOD_BEAT: &str = r#"{"clientBeatInterval":5000,"code":10200,"lightBeatEnabled":true}"#;
const UNKNOWN: &str = r#"{"clientBeatInterval":5000,"code":20404,"lightBeatEnabled":true}"#;

fn good(seen: &Seen) -> Reply {
    match seen.call.as_str() {
        BEAT => Reply::Status(200, GOOD_BEAT),
        LOOK => Reply::Status(200, "{}"),
        _ => Reply::Status(200, "ok"),
    }
}

pub(super) fn config() -> Nacos {
    Nacos {
        servers: Vec::new(),
        endpoint: None,
        protocol: NacosProtocol::Http,
        udp_push: false,
        namespace: "public".into(),
        group: "DEFAULT_GROUP".into(),
        clusters: Vec::new(),
        username: None,
        password_file: None,
        password: None,
    }
}

fn registrar(list: Vec<servers::Server>) -> Arc<NacosRegistrar> {
    let all = servers(list, Duration::from_secs(3));
    Arc::new(NacosRegistrar::new(all, &config(), record()))
}

/// One server, one registration that is up.
async fn up() -> (Fake, Setup) {
    let clock = Clock::new();
    let (fake, server) = Fake::new(clock, "/nacos", good);
    let mut setup = Setup::start(clock, registrar(vec![server]), Standing::Up);
    setup.until(|view| view.beats > 0).await;
    (fake, setup)
}

#[tokio::test(start_paused = true)]
async fn registers_and_beats_as_stock_clients_do() {
    let (fake, _setup) = up().await;
    pass(14).await;
    let seen = fake.seen();
    let register = &seen[0];
    assert_eq!(register.call, INSTANCE);
    for (key, value) in [
        ("ip", "10.0.0.1"),
        ("port", "8080"),
        ("serviceName", "orders"),
        ("groupName", "DEFAULT_GROUP"),
        ("namespaceId", "public"),
        ("clusterName", "DEFAULT"),
        ("weight", "1"),
        ("enabled", "true"),
        ("healthy", "true"),
        ("ephemeral", "true"),
        ("metadata", r#"{"zone":"a"}"#),
    ] {
        assert_eq!(
            register.query.get(key).map(String::as_str),
            Some(value),
            "{key}"
        );
    }
    let first = &seen[1];
    assert_eq!(
        (first.call.as_str(), first.at),
        (BEAT, register.at),
        "at once"
    );
    let form: std::collections::BTreeMap<String, String> =
        form_urlencoded::parse(first.body.as_bytes())
            .into_owned()
            .collect();
    let beat: serde_json::Value = serde_json::from_str(&form["beat"]).unwrap();
    assert_eq!(beat["serviceName"], "DEFAULT_GROUP@@orders");
    assert_eq!(beat["cluster"], "DEFAULT");
    assert_eq!(beat["period"], 5000);
    let light = &seen[2];
    assert!(light.body.is_empty(), "a light beat");
    assert_eq!(light.query["ip"], "10.0.0.1");
    let gap = light.at.since(first.at);
    assert!(
        gap >= Duration::from_secs(4) && gap <= Duration::from_secs(5),
        "{gap:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn row_08_an_unknown_beat_is_followed_by_a_register_within_a_second_and_a_full_beat() {
    let (fake, mut setup) = up().await;
    fake.forget();
    let mut forgotten = true;
    fake.script(move |seen| match seen.call.as_str() {
        INSTANCE => {
            forgotten = false;
            Reply::Status(200, "ok")
        }
        // A full beat would make the instance, a light one does not.
        BEAT if forgotten && seen.body.is_empty() => Reply::Status(200, UNKNOWN),
        _ => good(seen),
    });
    setup.until(|view| !view.up).await;
    setup.up().await;
    pass(6).await;
    let seen = fake.seen();
    let calls: Vec<&str> = seen.iter().take(3).map(|seen| seen.call.as_str()).collect();
    assert_eq!(calls, [BEAT, INSTANCE, BEAT]);
    assert!(seen[1].at.since(seen[0].at) <= Duration::from_secs(1));
    assert!(!seen[2].body.is_empty(), "the beat after it is a full one");
    assert_eq!(setup.events(), ["registered", "registered"]);
}

#[tokio::test(start_paused = true)]
async fn row_09_the_next_server_gets_the_beat_in_the_same_period() {
    let clock = Clock::new();
    let (first, one) = Fake::new(clock, "/nacos", good);
    let (second, two) = Fake::new(clock, "/nacos", good);
    let mut setup = Setup::start(clock, registrar(vec![one, two]), Standing::Up);
    setup.until(|view| view.beats > 0).await;
    assert!(second.calls().is_empty());
    first.script(|_| Reply::Hang);
    first.forget();
    pass(9).await;
    let (refused, taken) = (first.seen(), second.seen());
    assert_eq!(refused[0].call, BEAT);
    assert_eq!(taken[0].call, BEAT);
    assert!(taken[0].at.since(refused[0].at) <= Duration::from_secs(3));
    assert_eq!(setup.view.borrow().failed_beats, 0);
    assert_eq!(first.calls().len(), 1, "the one that works is kept");
}

#[tokio::test(start_paused = true)]
async fn row_10_no_beat_follows_the_deregister() {
    let (fake, mut setup) = up().await;
    // The beat that is under way when the end comes is waited for.
    fake.script(|seen| match seen.call.as_str() {
        BEAT => Reply::Hang,
        _ => good(seen),
    });
    fake.forget();
    while !fake.calls().iter().any(|call| call == BEAT) {
        pass(1).await;
    }
    setup.leave().await;
    pass(60).await;
    assert_eq!(fake.calls(), [BEAT, INSTANCE, DELETE]);
    let seen = fake.seen();
    assert_eq!(seen[1].query["enabled"], "false", "marked first");
    assert!(
        seen[1].at.since(seen[0].at) >= Duration::from_secs(2),
        "after the beat"
    );
    assert_eq!(seen[2].query["ephemeral"], "true");
    assert!(setup.events().ends_with(&["deregistered"]));
}

#[tokio::test(start_paused = true)]
async fn an_app_that_is_down_is_disabled_and_comes_back_enabled() {
    let (fake, mut setup) = up().await;
    fake.forget();
    setup.app(Standing::Down);
    setup.until(|view| !view.up).await;
    pass(60).await;
    assert_eq!(fake.calls(), [INSTANCE], "no beats");
    assert_eq!(fake.seen()[0].query["enabled"], "false");
    setup.app(Standing::Up);
    setup.up().await;
    assert_eq!(fake.seen()[1].query["enabled"], "true");
}

#[tokio::test(start_paused = true)]
async fn a_failed_beat_is_told_once_and_the_next_one_is_full() {
    let (fake, mut setup) = up().await;
    fake.script(|_| Reply::Status(500, "caused: server is DOWN now;"));
    setup.until(|view| view.failed_beats >= 3).await;
    assert_eq!(setup.events(), ["registered", "heartbeat_failed"]);
    let error = setup.view.borrow().error.clone().unwrap();
    assert!(error.contains("500") && error.contains("DOWN"), "{error}");
    fake.forget();
    fake.script(good);
    setup.up().await;
    assert!(!fake.seen()[0].body.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_look_finds_an_instance_that_is_gone() {
    for (status, text) in [(404, ""), (500, "caused: no matched ip found!;")] {
        let (fake, mut setup) = up().await;
        fake.script(move |seen| match seen.call.as_str() {
            LOOK => Reply::Status(status, text),
            _ => good(seen),
        });
        fake.forget();
        let registered = |fake: &Fake| fake.calls().iter().any(|call| call == INSTANCE);
        for _ in 0..80 {
            pass(1).await;
        }
        assert!(registered(&fake), "{status}: {:?}", fake.calls());
        setup.up().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_own_interval_tells_the_server_how_long_to_wait() {
    let clock = Clock::new();
    let (fake, server) = Fake::new(clock, "/nacos", good);
    let mut own = record();
    own.heartbeat_interval = Some(Duration::from_secs(2));
    let all = servers(vec![server], Duration::from_secs(3));
    let registrar = Arc::new(NacosRegistrar::new(all, &config(), own));
    let mut setup = Setup::start(clock, registrar, Standing::Up);
    setup.until(|view| view.beats > 3).await;
    assert!(clock.now().as_millis() <= 6000);
    let metadata = &fake.seen()[0].query["metadata"];
    assert!(
        metadata.contains(r#""preserved.heart.beat.timeout":"6000""#),
        "{metadata}"
    );
}

#[test]
fn answers_to_a_beat() {
    let terms = |interval, light| {
        Outcome::Accepted(Terms {
            interval,
            light: Some(light),
        })
    };
    let five = Some(Duration::from_secs(5));
    assert_eq!(wire::beaten(GOOD_BEAT.as_bytes()), terms(five, true));
    assert_eq!(wire::beaten(UNKNOWN.as_bytes()), Outcome::Missing);
    let old = br#"{"clientBeatInterval":5000}"#;
    assert_eq!(wire::beaten(old), terms(five, false));
    assert_eq!(
        wire::beaten(br#"{"clientBeatInterval":0}"#),
        terms(None, false)
    );
    for bad in [&b"ok"[..], br#"{"code":20500}"#] {
        assert!(matches!(wire::beaten(bad), Outcome::Failed(_)), "{bad:?}");
    }
}
