//! The source against scripted answers in paused time.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::sync::watch;

use super::lookup::Asked;
use super::set::Srv;
use super::*;
use crate::clock::Clock;
use crate::config::types::{EmptyPolicy, IpFamily, OnEmpty, RegistryKind, RegistryTls};
use crate::discovery::handle::Shared;
use crate::discovery::{Cache, Deps, NoEvents, RegistryHandle, ServiceQuery, ServiceView};

/// What the DNS says: the last answer of a name stays.
#[derive(Clone, Debug, Default)]
struct Script(Arc<Mutex<Zone>>);

#[derive(Debug, Default)]
struct Zone {
    answers: BTreeMap<(String, Kind), VecDeque<Result<Reply, String>>>,
    /// When each question came.
    asked: Vec<(Duration, String, Kind)>,
    begun: Option<tokio::time::Instant>,
    /// Questions that are never answered.
    silent: bool,
    open: usize,
    most_open: usize,
}

impl Script {
    fn set(&self, name: &str, kind: Kind, answers: &[Result<Reply, &str>]) -> &Self {
        let answers = answers.iter().cloned();
        let answers = answers.map(|a| a.map_err(str::to_owned)).collect();
        let mut zone = self.0.lock().unwrap();
        zone.answers.insert((name.to_owned(), kind), answers);
        drop(zone);
        self
    }

    /// Seconds at which a name was asked for.
    fn times(&self, name: &str) -> Vec<f64> {
        let zone = self.0.lock().unwrap();
        let of_name = zone.asked.iter().filter(|(_, asked, _)| asked == name);
        of_name.map(|(at, ..)| at.as_secs_f64()).collect()
    }
}

impl Lookup for Script {
    #[expect(clippy::disallowed_methods, reason = "paused time of a test")]
    fn ask(&self, name: &str, kind: Kind) -> Asked {
        let (script, key) = (self.clone(), (name.to_owned(), kind));
        Box::pin(async move {
            let (answer, silent) = {
                let mut zone = script.0.lock().unwrap();
                let begun = *zone.begun.get_or_insert_with(tokio::time::Instant::now);
                zone.asked.push((begun.elapsed(), key.0.clone(), kind));
                zone.open += 1;
                zone.most_open = zone.most_open.max(zone.open);
                let answers = zone.answers.entry(key).or_default();
                let next = match answers.len() {
                    0 => Ok(Reply::default()),
                    1 => answers[0].clone(),
                    _ => answers.pop_front().unwrap(),
                };
                (next, zone.silent)
            };
            if silent {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            script.0.lock().unwrap().open -= 1;
            answer
        })
    }
}

const A: Kind = Kind::Addresses(Family::V4);
const AAAA: Kind = Kind::Addresses(Family::V6);

fn ips(ttl: u64, ips: &[&str]) -> Reply {
    Reply {
        ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        ttl: Some(Duration::from_secs(ttl)),
        ..Reply::default()
    }
}

fn none() -> Reply {
    Reply {
        ttl: Some(Duration::from_secs(2)),
        ..Reply::default()
    }
}

fn services(ttl: u64, records: &[(u16, u16, u16, &str)]) -> Reply {
    let srv = |(priority, weight, port, target): &(u16, u16, u16, &str)| Srv {
        priority: *priority,
        weight: *weight,
        port: *port,
        target: (*target).into(),
    };
    Reply {
        services: records.iter().map(srv).collect(),
        ttl: Some(Duration::from_secs(ttl)),
        ..Reply::default()
    }
}

fn start(script: &Script, family: IpFamily) -> RegistryHandle {
    let dns = Dns {
        servers: Vec::new(),
        ip_family: family,
        search: false,
        tcp: false,
        min_ttl: Duration::from_secs(5),
        max_ttl: Duration::from_secs(300),
    };
    let config = Registry {
        name: "d".into(),
        kind: RegistryKind::Dns(dns.clone()),
        empty: EmptyPolicy {
            on_empty: OnEmpty::Hold,
            grace: Duration::from_secs(30),
            answers: 3,
            shrink_percent: 50,
        },
        max_in_flight: 8,
        timeout: Duration::from_secs(5),
        tls: RegistryTls::default(),
    };
    let deps = Deps {
        embedded: None,
        cache: Cache::default(),
        parser: |_, _| Ok(BTreeMap::new()),
        clock: Clock::new(),
        events: Arc::new(NoEvents),
        seed: 7,
    };
    let lookup = Box::new(script.clone());
    let source = DnsSource::with_lookup(&dns, &config, 7, None, lookup);
    RegistryHandle::new(Shared::new(&config, &deps), Arc::new(source))
}

type View = watch::Receiver<ServiceView>;

async fn first(view: &mut View) -> Vec<String> {
    view.wait_for(|view| view.set.is_some()).await.unwrap();
    now(view)
}

fn now(view: &View) -> Vec<String> {
    let view = view.borrow();
    let set = view.set.as_ref().unwrap();
    let told = |e: &Endpoint| format!("{} {}", e.address, e.weight.thousandths() / 1000);
    set.endpoints.iter().map(told).collect()
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn row_30_servfail_keeps_the_set_and_makes_it_stale() {
    let script = Script::default();
    let good = Ok(ips(5, &["10.0.0.1"]));
    let bad = Err("server failure");
    script.set("a", A, &[good.clone(), bad]);
    let mut view = start(&script, IpFamily::PreferV4).subscribe(ServiceQuery::named("a:80"));
    assert_eq!(first(&mut view).await, ["10.0.0.1:80 1"]);
    view.wait_for(|view| view.stale && view.error.is_some())
        .await
        .unwrap();
    assert_eq!(now(&view), ["10.0.0.1:80 1"]);
    script.set("a", A, &[Ok(ips(5, &["10.0.0.2"]))]);
    view.wait_for(|view| view.version == 2).await.unwrap();
    assert!(!view.borrow().stale);
    assert_eq!(now(&view), ["10.0.0.2:80 1"]);
}

#[tokio::test(start_paused = true)]
async fn row_30_nxdomain_once_is_held_and_three_times_obeyed() {
    let script = Script::default();
    let good = Ok(ips(60, &["10.0.0.1"]));
    script.set("a", A, &[good.clone(), Ok(none()), good.clone()]);
    let mut view = start(&script, IpFamily::V4).subscribe(ServiceQuery::named("a:80"));
    first(&mut view).await;
    view.wait_for(|view| view.held.is_some()).await.unwrap();
    assert_eq!(now(&view), ["10.0.0.1:80 1"]);
    view.wait_for(|view| view.held.is_none()).await.unwrap();
    assert_eq!((now(&view).len(), view.borrow().version), (1, 1));
    // The negative answer was not trusted for longer than it said.
    let times = script.times("a");
    let again = times[2] - times[1];
    assert!((1.8..=2.2).contains(&again), "{times:?}");
    script.set("a", A, &[Ok(none())]);
    view.wait_for(|view| view.version == 2).await.unwrap();
    assert!(now(&view).is_empty());
}

#[tokio::test(start_paused = true)]
async fn row_30_a_ttl_of_zero_and_that_of_an_alias_are_five_seconds() {
    let script = Script::default();
    for (name, ttl) in [("zero", 0), ("alias", 1), ("long", 60)] {
        script.set(name, A, &[Ok(ips(ttl, &["10.0.0.1"]))]);
        let query = ServiceQuery::named(&format!("{name}:80"));
        let view = start(&script, IpFamily::V4).subscribe(query);
        seconds(200).await;
        drop(view);
        let times = script.times(name);
        let want = if ttl == 60 { 54.0..=66.1 } else { 4.5..=5.6 };
        for pair in times.windows(2) {
            assert!(want.contains(&(pair[1] - pair[0])), "{name}: {times:?}");
        }
        assert!(times.len() > 2, "{name}: {times:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn row_30_srv_of_the_root_is_empty_and_tiers_keep_their_priority() {
    let script = Script::default();
    script.set(
        "_h._tcp.gone",
        Kind::Services,
        &[Ok(services(5, &[(0, 0, 0, "")]))],
    );
    let records = [
        (10, 20, 8080, "one"),
        (10, 0, 8081, "two"),
        (20, 5, 80, "three"),
    ];
    script.set("_h._tcp.x", Kind::Services, &[Ok(services(5, &records))]);
    script.set("one", A, &[Ok(ips(60, &["10.0.0.1"]))]);
    script.set("two", A, &[Ok(ips(60, &["10.0.0.2"]))]);
    script.set("three", A, &[Ok(ips(60, &["10.0.0.3"]))]);
    let handle = start(&script, IpFamily::V4);
    let mut gone = handle.subscribe(ServiceQuery::named("_h._tcp.gone"));
    assert!(first(&mut gone).await.is_empty());
    let mut view = handle.subscribe(ServiceQuery::named("_h._tcp.x"));
    let want = ["10.0.0.1:8080 20", "10.0.0.2:8081 1", "10.0.0.3:80 5"];
    assert_eq!(first(&mut view).await, want);
    let tiers = |view: &watch::Receiver<ServiceView>| -> Vec<u16> {
        let view = view.borrow();
        let endpoints = view.set.as_ref().unwrap().endpoints.iter();
        endpoints.map(|e| e.priority).collect()
    };
    assert_eq!(tiers(&view), [10, 10, 20]);
    // A first tier without addresses leaves the next one.
    script
        .set("one", A, &[Ok(none())])
        .set("two", A, &[Ok(none())]);
    view.wait_for(|view| view.version == 2).await.unwrap();
    assert_eq!(now(&view), ["10.0.0.3:80 5"]);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_cannot_be_asked_for_keeps_its_addresses() {
    let script = Script::default();
    let records = [(1, 1, 80, "one"), (1, 1, 80, "two")];
    script.set("_h._tcp.x", Kind::Services, &[Ok(services(5, &records))]);
    let good = Ok(ips(5, &["10.0.0.1"]));
    script.set("one", A, &[good, Err("timeout")]);
    script.set(
        "two",
        A,
        &[Ok(ips(5, &["10.0.0.2"])), Ok(ips(5, &["10.0.0.4"]))],
    );
    let handle = start(&script, IpFamily::V4);
    let mut view = handle.subscribe(ServiceQuery::named("_h._tcp.x"));
    assert_eq!(first(&mut view).await, ["10.0.0.1:80 1", "10.0.0.2:80 1"]);
    view.wait_for(|view| view.version == 2).await.unwrap();
    assert_eq!(now(&view), ["10.0.0.1:80 1", "10.0.0.4:80 1"]);
}

#[tokio::test(start_paused = true)]
async fn addresses_that_came_along_are_not_asked_for() {
    let script = Script::default();
    let mut reply = services(60, &[(1, 1, 80, "one")]);
    reply.additional = vec![("one".into(), "10.0.0.1".parse().unwrap())];
    script.set("_h._tcp.x", Kind::Services, &[Ok(reply)]);
    let handle = start(&script, IpFamily::PreferV4);
    let mut view = handle.subscribe(ServiceQuery::named("_h._tcp.x"));
    assert_eq!(first(&mut view).await, ["10.0.0.1:80 1"]);
    assert!(script.times("one").is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_family_at_a_time() {
    let script = Script::default();
    script.set("both", A, &[Ok(ips(60, &["10.0.0.1"]))]);
    script.set("both", AAAA, &[Ok(ips(60, &["fd00::1"]))]);
    script.set("six", A, &[Ok(none())]);
    script.set("six", AAAA, &[Ok(ips(60, &["fd00::2"]))]);
    script.set("broken", A, &[Err("server failure")]);
    script.set("broken", AAAA, &[Ok(ips(60, &["fd00::3"]))]);
    script.set("half", A, &[Ok(ips(5, &["10.0.0.4"])), Err("timeout")]);
    script.set("half", AAAA, &[Ok(ips(5, &["fd00::4"]))]);
    script.set("unsure", A, &[Ok(none())]);
    script.set("unsure", AAAA, &[Err("timeout")]);
    let handle = start(&script, IpFamily::PreferV4);
    let follow = |name: &str| handle.subscribe(ServiceQuery::named(&format!("{name}:80")));
    assert_eq!(first(&mut follow("both")).await, ["10.0.0.1:80 1"]);
    assert_eq!(first(&mut follow("six")).await, ["[fd00::2]:80 1"]);
    assert_eq!(first(&mut follow("broken")).await, ["[fd00::3]:80 1"]);
    // A time-out of the family in use does not change all addresses.
    let mut half = follow("half");
    first(&mut half).await;
    half.wait_for(|view| view.error.is_some()).await.unwrap();
    assert_eq!(now(&half), ["10.0.0.4:80 1"]);
    // Nothing of one family and no word of the other is no answer.
    let mut unsure = follow("unsure");
    unsure.wait_for(|view| view.error.is_some()).await.unwrap();
    assert!(unsure.borrow().set.is_none());
}

#[tokio::test(start_paused = true)]
async fn no_answer_ends_in_time_and_few_questions_are_open() {
    let script = Script::default();
    script.0.lock().unwrap().silent = true;
    let handle = start(&script, IpFamily::V4);
    let mut views: Vec<View> = (0..40)
        .map(|n| handle.subscribe(ServiceQuery::named(&format!("n{n}:80"))))
        .collect();
    views[0]
        .wait_for(|view| view.error.is_some())
        .await
        .unwrap();
    let error = views[0].borrow().error.clone().unwrap();
    assert!(error.contains("no answer within 5s"), "{error}");
    seconds(60).await;
    assert!(script.times("n39").len() > 1 || views[39].borrow().error.is_some());
}

#[tokio::test(start_paused = true)]
async fn at_most_eight_questions_at_once_and_no_burst_afterwards() {
    let script = Script::default();
    for n in 0..100 {
        script.set(&format!("n{n}"), A, &[Ok(ips(60, &["10.0.0.1"]))]);
    }
    let handle = start(&script, IpFamily::V4);
    let views: Vec<View> = (0..100)
        .map(|n| handle.subscribe(ServiceQuery::named(&format!("n{n}:80"))))
        .collect();
    seconds(70).await;
    assert_eq!(script.0.lock().unwrap().most_open, 8);
    let second: Vec<f64> = (0..100)
        .map(|n| script.times(&format!("n{n}"))[1])
        .collect();
    let (early, late) = second
        .iter()
        .fold((f64::MAX, 0.0_f64), |(least, most), at| {
            (least.min(*at), most.max(*at))
        });
    assert!(late - early > 8.0, "{early} {late}");
    drop(views);
}

#[tokio::test(start_paused = true)]
async fn a_name_without_a_port_is_refused() {
    let handle = start(&Script::default(), IpFamily::V4);
    let mut view = handle.subscribe(ServiceQuery::named("orders"));
    view.wait_for(|view| view.error.is_some()).await.unwrap();
    let error = view.borrow().error.clone().unwrap();
    assert!(
        error.contains("does not tell the port of `orders`"),
        "{error}"
    );
}
