//! The registrar with its driver against a scripted server.

use super::*;
use crate::clock::Clock;
use crate::registration::tests::{Fake, Reply, Seen, Setup, pass, record, servers};

const POST: &str = "POST /eureka/apps/ORDERS";
const RENEW: &str = "PUT /eureka/apps/ORDERS/10.0.0.1:orders:8080";
const LOOK: &str = "GET /eureka/apps/ORDERS/10.0.0.1:orders:8080";
const CANCEL: &str = "DELETE /eureka/apps/ORDERS/10.0.0.1:orders:8080";

fn good(seen: &Seen) -> Reply {
    match seen.call.as_str() {
        POST => Reply::Status(204, ""),
        RENEW | LOOK | CANCEL => Reply::Status(200, ""),
        _ => Reply::Status(406, "not asked for in a test"),
    }
}

fn start(clock: Clock, standing: Standing) -> (Fake, Setup) {
    let (fake, server) = Fake::new(clock, "/eureka", good);
    let all = servers(vec![server], Duration::from_secs(3));
    let registrar = EurekaRegistrar::new(all, record(), Arc::default());
    (fake, Setup::start(clock, Arc::new(registrar), standing))
}

fn stamp(seen: &Seen) -> u64 {
    let body: serde_json::Value = serde_json::from_str(&seen.body).unwrap();
    body["instance"]["lastDirtyTimestamp"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

fn status(seen: &Seen) -> String {
    let body: serde_json::Value = serde_json::from_str(&seen.body).unwrap();
    body["instance"]["status"].as_str().unwrap().to_owned()
}

#[test]
fn row_16_our_post_byte_for_byte() {
    let body = instance::json(&record(), "UP", Duration::from_secs(30), 1_700_000_000_000);
    let want = concat!(
        r#"{"instance":{"instanceId":"10.0.0.1:orders:8080","hostName":"10.0.0.1","#,
        r#""app":"ORDERS","ipAddr":"10.0.0.1","vipAddress":"orders","#,
        r#""secureVipAddress":"orders","status":"UP","overriddenstatus":"UNKNOWN","#,
        r#""port":{"$":8080,"@enabled":"true"},"securePort":{"$":443,"@enabled":"false"},"#,
        r#""countryId":1,"dataCenterInfo":{"#,
        r#""@class":"com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo","name":"MyOwn"},"#,
        r#""leaseInfo":{"renewalIntervalInSecs":30,"durationInSecs":90},"#,
        r#""metadata":{"zone":"a"},"lastUpdatedTimestamp":"1700000000000","#,
        r#""lastDirtyTimestamp":"1700000000000"}}"#,
    );
    assert_eq!(String::from_utf8(body).unwrap(), want);
}

#[test]
fn a_weight_stands_in_the_metadata_unless_it_is_written_there() {
    let text = |record: &Record| {
        let body = instance::json(record, "UP", Duration::from_secs(30), 1);
        String::from_utf8(body).unwrap()
    };
    let mut heavy = record();
    heavy.weight = crate::endpoint::Weight::from_number(2.5).0;
    assert!(text(&heavy).contains(r#""weight":"2.5""#));
    heavy.metadata.insert("weight".to_owned(), "7".to_owned());
    assert!(text(&heavy).contains(r#""weight":"7""#));
}

#[tokio::test(start_paused = true)]
async fn the_life_of_an_instance() {
    let clock = Clock::new();
    let (fake, mut setup) = start(clock, Standing::Starting);
    setup.until(|view| view.last_success.is_some()).await;
    pass(100).await;
    assert_eq!(fake.calls(), [POST], "no renewals while it starts");
    setup.app(Standing::Up);
    setup.up().await;
    pass(31).await;
    setup.app(Standing::Down);
    setup.until(|view| !view.up).await;
    setup.app(Standing::Up);
    setup.up().await;
    setup.leave().await;
    let seen = fake.seen();
    let posts: Vec<&Seen> = seen.iter().filter(|seen| seen.call == POST).collect();
    let states: Vec<String> = posts.iter().map(|seen| status(seen)).collect();
    assert_eq!(states, ["STARTING", "UP", "DOWN", "UP", "DOWN"]);
    assert!(
        posts.windows(2).all(|pair| stamp(pair[0]) < stamp(pair[1])),
        "stamps grow"
    );
    let renewal = seen.iter().find(|seen| seen.call == RENEW).unwrap();
    assert_eq!(
        renewal.query["lastDirtyTimestamp"],
        stamp(posts[1]).to_string()
    );
    assert!(renewal.headers["accept"] == "application/json");
    assert_eq!(seen.last().unwrap().call, CANCEL);
}

#[tokio::test(start_paused = true)]
async fn row_17_a_renewal_that_is_404_is_followed_by_a_post_with_a_later_stamp() {
    let spring =
        r#"{"timestamp":"2026-01-01T00:00:00.000+00:00","status":404,"error":"Not Found"}"#;
    for body in ["<html><body>404</body></html>", spring, ""] {
        let clock = Clock::new();
        let (fake, mut setup) = start(clock, Standing::Up);
        setup.until(|view| view.beats > 0).await;
        let first = stamp(&fake.seen()[0]);
        fake.forget();
        let mut known = false;
        fake.script(move |seen| match seen.call.as_str() {
            POST => {
                known = true;
                Reply::Status(204, "")
            }
            RENEW if !known => Reply::Status(404, body),
            _ => good(seen),
        });
        setup.until(|view| !view.up).await;
        setup.up().await;
        let seen = fake.seen();
        assert_eq!(
            (seen[0].call.as_str(), seen[1].call.as_str()),
            (RENEW, POST),
            "{body}"
        );
        assert!(stamp(&seen[1]) > first);
        assert_eq!(status(&seen[1]), "UP");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_cancelled_already_is_gone() {
    let clock = Clock::new();
    let (fake, mut setup) = start(clock, Standing::Up);
    setup.up().await;
    fake.script(|seen| match seen.call.as_str() {
        CANCEL => Reply::Status(404, ""),
        _ => good(seen),
    });
    setup.leave().await;
    assert!(setup.events().ends_with(&["deregistered"]));
}
