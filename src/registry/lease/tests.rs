use super::*;
use crate::endpoint::Weight;
use crate::registry::model::InstanceKey;
use proptest::prelude::*;

const BOUNDS: Bounds = Bounds {
    services: 10,
    instances: 20,
    metadata_bytes: 64,
};
const TIMING: Timing = Timing {
    beat_interval: Duration::from_secs(5),
    unhealthy_after: Duration::from_secs(15),
    remove_after: Duration::from_secs(30),
};

fn table() -> Table {
    Table::new(BOUNDS, TIMING)
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

fn service(name: &str) -> ServiceKey {
    ServiceKey::new(None, None, name).unwrap()
}

fn key(port: u16) -> InstanceKey {
    InstanceKey::new("10.0.0.1", port, None).unwrap()
}

fn any(port: u16) -> Target<'static> {
    Target {
        ip: "10.0.0.1",
        port,
        cluster: None,
    }
}

fn registration(port: u16) -> Registration {
    Registration::new(key(port))
}

fn with_metadata(port: u16, pairs: &[(&str, &str)]) -> Registration {
    let metadata = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    Registration {
        metadata: Arc::new(metadata),
        ..registration(port)
    }
}

/// Ports with health, in order.
fn listed(table: &mut Table, name: &str, now: Timestamp) -> Vec<(u16, bool)> {
    let all = table.list(&service(name), now).into_iter().flatten();
    all.map(|one| (one.key().port, one.healthy())).collect()
}

#[test]
fn silence_makes_unhealthy_at_15_s_and_removes_at_30_s() {
    let mut table = table();
    table
        .register(&service("a"), registration(1), at(0))
        .unwrap();
    let just_before = |s| at(s) - Duration::from_nanos(1);
    assert_eq!(listed(&mut table, "a", just_before(15)), [(1, true)]);
    assert_eq!(listed(&mut table, "a", at(15)), [(1, false)]);
    assert_eq!(listed(&mut table, "a", just_before(30)), [(1, false)]);
    assert_eq!(listed(&mut table, "a", at(30)), []);
    assert_eq!(table.beat(&service("a"), any(1), at(31)), None);
}

#[test]
fn a_beat_renews_and_heals_at_once() {
    let mut table = table();
    table
        .register(&service("a"), registration(1), at(0))
        .unwrap();
    assert_eq!(listed(&mut table, "a", at(20)), [(1, false)]);
    let interval = table.beat(&service("a"), any(1), at(20));
    assert_eq!(interval, Some(Duration::from_secs(5)));
    assert_eq!(listed(&mut table, "a", at(34)), [(1, true)]);
    assert_eq!(listed(&mut table, "a", at(35)), [(1, false)]);
    assert_eq!(listed(&mut table, "a", at(50)), []);
}

#[test]
fn the_list_is_in_the_order_of_registration_and_renewals_keep_it() {
    let mut table = table();
    for (second, port) in [(0, 9), (1, 3), (2, 7), (3, 9)] {
        table
            .register(&service("a"), registration(port), at(second))
            .unwrap();
    }
    assert_eq!(
        listed(&mut table, "a", at(4)),
        [(9, true), (3, true), (7, true)]
    );
    assert!(table.deregister(&service("a"), key(9).target(), true, at(5)));
    table
        .register(&service("a"), registration(9), at(6))
        .unwrap();
    assert_eq!(
        listed(&mut table, "a", at(6)),
        [(3, true), (7, true), (9, true)]
    );
}

#[test]
fn an_unnamed_cluster_is_any_cluster() {
    let mut table = table();
    for cluster in ["None", "other"] {
        let key = InstanceKey::new("10.0.0.1", 1, Some(cluster)).unwrap();
        table
            .register(&service("a"), Registration::new(key), at(0))
            .unwrap();
    }
    let named = |cluster| Target {
        cluster: Some(cluster),
        ..any(1)
    };
    assert!(!table.deregister(&service("a"), named("DEFAULT"), true, at(1)));
    assert_eq!(table.beat(&service("a"), named("DEFAULT"), at(1)), None);
    assert!(table.beat(&service("a"), any(1), at(10)).is_some());
    assert_eq!(listed(&mut table, "a", at(24)), [(1, true), (1, true)]);
    assert!(table.deregister(&service("a"), named("other"), true, at(24)));
    assert!(table.deregister(&service("a"), any(1), true, at(24)));
    assert_eq!(listed(&mut table, "a", at(24)), []);
}

#[test]
fn an_instance_has_intervals_of_its_own() {
    let mut table = table();
    let quick = with_metadata(
        1,
        &[
            ("preserved.heart.beat.interval", "1000"),
            ("preserved.heart.beat.timeout", "3000"),
        ],
    );
    let mut bounds = BOUNDS;
    bounds.metadata_bytes = 4096;
    table.bounds = bounds;
    table.register(&service("a"), quick, at(0)).unwrap();
    assert_eq!(listed(&mut table, "a", at(3)), [(1, false)]);
    let interval = table.beat(&service("a"), any(1), at(3));
    assert_eq!(interval, Some(Duration::from_secs(1)));
    table
        .register(&service("a"), registration(1), at(4))
        .unwrap();
    assert_eq!(
        listed(&mut table, "a", at(18)),
        [(1, true)],
        "registered again without them"
    );
}

#[test]
fn shorter_intervals_move_the_deadline_forward() {
    let mut table = table();
    table.bounds.metadata_bytes = 4096;
    table
        .register(&service("a"), registration(1), at(0))
        .unwrap();
    let quick = with_metadata(
        1,
        &[
            ("preserved.heart.beat.interval", "1000"),
            ("preserved.heart.beat.timeout", "2000"),
            ("preserved.ip.delete.timeout", "3000"),
        ],
    );
    table.register(&service("a"), quick, at(1)).unwrap();
    assert_eq!(table.next_deadline(), Some(at(3)));
    assert_eq!(listed(&mut table, "a", at(4)), []);
}

#[test]
fn persistent_instances_never_expire_and_need_their_flag_to_leave() {
    let mut table = table();
    let lasting = Registration {
        ephemeral: false,
        ..registration(1)
    };
    table.register(&service("a"), lasting, at(0)).unwrap();
    assert_eq!(table.next_deadline(), None);
    assert_eq!(listed(&mut table, "a", at(1_000_000)), [(1, true)]);
    assert!(!table.deregister(&service("a"), key(1).target(), true, at(1_000_000)));
    assert!(table.deregister(&service("a"), key(1).target(), false, at(1_000_000)));
}

#[test]
fn what_an_operator_sets_outlives_a_registration_and_a_restart() {
    let mut table = table();
    let seven = Weight::from_number(7.0).0;
    let patch = Patch {
        weight: Some(seven),
        enabled: Some(false),
        ..Patch::default()
    };
    table
        .register(&service("a"), registration(1), at(0))
        .unwrap();
    table
        .patch(&service("a"), key(1).target(), &patch, at(1))
        .unwrap();
    table
        .register(&service("a"), registration(1), at(2))
        .unwrap();
    let weight = |table: &mut Table, now| {
        let one = table.get(&service("a"), key(1).target(), now).unwrap();
        (one.weight(), one.enabled())
    };
    assert_eq!(weight(&mut table, at(3)), (seven, false));
    table.deregister(&service("a"), key(1).target(), true, at(4));
    table
        .register(&service("a"), registration(1), at(63))
        .unwrap();
    assert_eq!(weight(&mut table, at(63)), (seven, false));
    table.deregister(&service("a"), key(1).target(), true, at(64));
    table
        .register(&service("a"), registration(1), at(124))
        .unwrap();
    assert_eq!(weight(&mut table, at(124)), (Weight::ONE, true));
}

#[test]
fn patches_need_their_service_and_instance() {
    let mut table = table();
    let missing = table.patch(&service("a"), key(1).target(), &Patch::default(), at(0));
    assert!(matches!(missing, Err(Refusal::NoService { .. })));
    table
        .register(&service("a"), registration(1), at(0))
        .unwrap();
    let missing = table.patch(&service("a"), key(2).target(), &Patch::default(), at(0));
    assert_eq!(missing, Err(Refusal::NoInstance));
}

#[test]
fn an_empty_service_is_known_for_a_minute() {
    let mut table = table();
    table
        .register(&service("a"), registration(1), at(0))
        .unwrap();
    table.deregister(&service("a"), key(1).target(), true, at(10));
    let names = |table: &mut Table, now| table.names("public", "DEFAULT_GROUP", now).len();
    assert_eq!(names(&mut table, at(69)), 1);
    table
        .register(&service("a"), registration(1), at(69))
        .unwrap();
    table.deregister(&service("a"), key(1).target(), true, at(69));
    assert_eq!(names(&mut table, at(128)), 1);
    assert_eq!(names(&mut table, at(129)), 0);
    assert_eq!(table.counts(), (0, 0));
}

#[test]
fn namespaces_and_groups_are_apart() {
    let mut table = table();
    for (namespace, group) in [("public", "g"), ("dev", "g"), ("public", "h")] {
        let key = ServiceKey::new(Some(namespace), Some(group), "a").unwrap();
        table.register(&key, registration(1), at(0)).unwrap();
    }
    assert_eq!(table.names("public", "g", at(1)).len(), 1);
    let dev = ServiceKey::new(Some("dev"), Some("g"), "a").unwrap();
    assert!(table.deregister(&dev, key(1).target(), true, at(1)));
    assert_eq!(table.counts(), (3, 2));
}

#[test]
fn the_table_is_bounded() {
    let mut table = table();
    for n in 0..10 {
        table
            .register(&service(&format!("s{n}")), registration(1), at(0))
            .unwrap();
    }
    let one_more = table.register(&service("more"), registration(1), at(0));
    assert_eq!(one_more, Err(Refusal::TooManyServices(10)));
    for port in 2..=11 {
        table
            .register(&service("s0"), registration(port), at(0))
            .unwrap();
    }
    let one_more = table.register(&service("s0"), registration(12), at(0));
    assert_eq!(one_more, Err(Refusal::TooManyInstances(20)));
    table
        .register(&service("s0"), registration(11), at(0))
        .expect("a renewal is no new one");
    let fat = with_metadata(1, &[("key", &"x".repeat(62))]);
    let refused = table.register(&service("s0"), fat, at(0));
    assert_eq!(
        refused,
        Err(Refusal::Metadata {
            bytes: 65,
            limit: 64
        })
    );
}

#[test]
fn only_what_is_visible_is_a_change() {
    let mut table = table();
    table
        .register(&service("a"), registration(1), at(0))
        .unwrap();
    let changes = table.take_changes();
    assert!(changes.names && changes.services.contains(&service("a")));
    table
        .register(&service("a"), registration(1), at(1))
        .unwrap();
    table.beat(&service("a"), key(1).target(), at(2));
    assert!(table.take_changes().is_empty());
    table.expire(at(17));
    assert!(!table.take_changes().is_empty(), "unhealthy");
    table.beat(&service("a"), any(1), at(18));
    assert!(!table.take_changes().is_empty(), "healthy again");
}

#[derive(Clone, Debug)]
enum Step {
    Register(u8, u16),
    Beat(u8, u16),
    Deregister(u8, u16),
    Publish(u8, u64, Vec<u16>),
    Withdraw(u8, u64),
    Read(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let id = (0u8..3, 1u16..5);
    prop_oneof![
        id.clone().prop_map(|(s, p)| Step::Register(s, p)),
        id.clone().prop_map(|(s, p)| Step::Beat(s, p)),
        id.prop_map(|(s, p)| Step::Deregister(s, p)),
        (0u8..3, 0u64..2, prop::collection::vec(1u16..5, 0..3)).prop_map(
            |(s, holder, mut ports)| {
                ports.sort_unstable();
                ports.dedup();
                Step::Publish(s, holder, ports)
            }
        ),
        (0u8..3, 0u64..2).prop_map(|(s, holder)| Step::Withdraw(s, holder)),
        (0u8..3).prop_map(Step::Read),
    ]
}

#[test]
fn what_a_connection_holds_needs_no_beats_and_goes_with_it() {
    let mut table = table();
    let s = service("s");
    table
        .publish(&s, 7, vec![registration(1), registration(2)], at(0))
        .unwrap();
    table.register(&s, registration(3), at(0)).unwrap();
    assert_eq!(listed(&mut table, "s", at(100)), [(1, true), (2, true)]);
    assert_eq!(table.next_deadline(), None);
    // Its next set replaces the one before, a known one keeps its place.
    table
        .publish(&s, 7, vec![registration(4), registration(2)], at(100))
        .unwrap();
    assert_eq!(listed(&mut table, "s", at(100)), [(2, true), (4, true)]);
    // Another connection takes one over; so does a register by beats.
    table
        .publish(&s, 8, vec![registration(2)], at(100))
        .unwrap();
    table.register(&s, registration(4), at(100)).unwrap();
    assert!(!table.withdraw(&s, 7, at(101)));
    assert_eq!(listed(&mut table, "s", at(116)), [(2, true), (4, false)]);
    assert_eq!(listed(&mut table, "s", at(130)), [(2, true)]);
    assert!(table.withdraw(&s, 8, at(130)) && table.counts().1 == 0);
}

#[test]
fn taking_over_an_address_is_no_change_for_others() {
    let mut table = table();
    let s = service("s");
    table.register(&s, registration(1), at(0)).unwrap();
    table.take_changes();
    table.publish(&s, 7, vec![registration(1)], at(1)).unwrap();
    assert!(table.take_changes().is_empty());
}

#[test]
fn a_set_is_taken_whole_or_not_at_all() {
    let mut table = table();
    let s = service("s");
    let many = |ports: std::ops::Range<u16>| ports.map(registration).collect::<Vec<_>>();
    table.publish(&s, 7, many(0..18), at(0)).unwrap();
    let over = table.publish(&service("t"), 7, many(0..3), at(0));
    assert_eq!(over, Err(Refusal::TooManyInstances(20)));
    let odd = vec![registration(1), with_metadata(2, &[("k", &"x".repeat(65))])];
    assert!(matches!(
        table.publish(&s, 7, odd, at(0)),
        Err(Refusal::Metadata { .. })
    ));
    assert_eq!(table.counts(), (1, 18));
    table.publish(&s, 7, many(100..120), at(0)).unwrap();
    assert_eq!(table.counts(), (1, 20));
    table.publish(&s, 7, Vec::new(), at(0)).unwrap();
    assert_eq!(table.counts(), (1, 0));
}

proptest! {
    /// The table agrees with a list that is scanned, whatever the order and the pauses, and whether
    /// anybody called `expire` in between.
    #[test]
    fn agrees_with_a_naive_model(
        steps in prop::collection::vec((step(), 0u64..12, prop::bool::ANY), 1..80),
    ) {
        let mut table = table();
        // Service, port, last heard of, connection; in the order of registration.
        let mut model: Vec<(u8, u16, u64, Option<u64>)> = Vec::new();
        let mut now = 0;
        for (step, pause, purge) in steps {
            now += pause;
            model.retain(|one| one.3.is_some() || now - one.2 < 30);
            if purge {
                table.expire(at(now));
            }
            let name = |s: u8| service(&format!("s{s}"));
            let find = |model: &[(u8, u16, u64, Option<u64>)], s, p| {
                model.iter().position(|one| one.0 == s && one.1 == p)
            };
            match step {
                Step::Register(s, p) => {
                    table.register(&name(s), registration(p), at(now)).unwrap();
                    match find(&model, s, p) {
                        Some(index) => (model[index].2, model[index].3) = (now, None),
                        None => model.push((s, p, now, None)),
                    }
                }
                Step::Publish(s, holder, ports) => {
                    let all = ports.iter().map(|port| registration(*port)).collect();
                    table.publish(&name(s), holder, all, at(now)).unwrap();
                    model.retain(|one| {
                        one.0 != s || one.3 != Some(holder) || ports.contains(&one.1)
                    });
                    for port in ports {
                        match find(&model, s, port) {
                            Some(index) => (model[index].2, model[index].3) = (now, Some(holder)),
                            None => model.push((s, port, now, Some(holder))),
                        }
                    }
                }
                Step::Withdraw(s, holder) => {
                    let before = model.len();
                    model.retain(|one| one.0 != s || one.3 != Some(holder));
                    let some = table.withdraw(&name(s), holder, at(now));
                    prop_assert_eq!(some, model.len() < before);
                }
                Step::Beat(s, p) => {
                    let known = table.beat(&name(s), any(p), at(now)).is_some();
                    let found = find(&model, s, p);
                    prop_assert_eq!(known, found.is_some());
                    if let Some(index) = found {
                        model[index].2 = now;
                    }
                }
                Step::Deregister(s, p) => {
                    let known = table.deregister(&name(s), key(p).target(), true, at(now));
                    let found = find(&model, s, p);
                    prop_assert_eq!(known, found.is_some());
                    if let Some(index) = found {
                        model.remove(index);
                    }
                }
                Step::Read(s) => {
                    let got = listed(&mut table, &format!("s{s}"), at(now));
                    let wanted: Vec<_> = model
                        .iter()
                        .filter(|one| one.0 == s)
                        .map(|one| (one.1, one.3.is_some() || now - one.2 < 15))
                        .collect();
                    prop_assert_eq!(got, wanted);
                }
            }
            table.expire(at(now));
            prop_assert_eq!(table.counts().1, model.len());
            prop_assert!(table.next_deadline().is_none_or(|next| next > at(now)));
            // One deadline per instance, one per empty service.
            prop_assert!(table.deadlines.len() <= model.len() + 3);
        }
    }
}
