use proptest::prelude::*;

use super::*;

const NOW: u64 = 1_700_000_600_000;
/// Of the documents: a provider node, its warm-up long over.
const NODE: &str = "dubbo%3A%2F%2F10.0.0.5%3A20880%2Fcom.acme.OrderService%3Finterface%3Dcom.acme.\
                    OrderService%26version%3D1.0.0%26group%3Dg1%26weight%3D50%26timestamp%3D1600000000000";

fn provider(url: &str) -> Provider {
    let node: String = form_urlencoded::byte_serialize(url.as_bytes()).collect();
    Provider::from_node(&node).unwrap()
}

fn wanted(name: &str) -> Wanted {
    Wanted::parse(name, None)
}

fn of(wanted: &Wanted, providers: &[Provider], overrides: &[&str]) -> Vec<String> {
    let overrides: Vec<Override> = overrides
        .iter()
        .filter_map(|o| Override::from_node(o))
        .collect();
    told(&map(wanted, providers, &overrides, &[], NOW))
}

fn told(mapped: &Mapped) -> Vec<String> {
    let told = |e: &Endpoint| {
        let on = if e.enabled { "" } else { " off" };
        format!("{} {}{on}", e.address, e.weight.thousandths())
    };
    mapped.endpoints.iter().map(told).collect()
}

#[test]
fn a_provider_node() {
    let provider = Provider::from_node(NODE).unwrap();
    assert_eq!((provider.host.as_str(), provider.port), ("10.0.0.5", 20880));
    let wanted = wanted("g1/com.acme.OrderService:1.0.0");
    assert_eq!(
        of(&wanted, std::slice::from_ref(&provider), &[]),
        ["10.0.0.5:20880 500"]
    );
    let mapped = map(&wanted, &[provider], &[], &[], NOW);
    let endpoint = &mapped.endpoints[0];
    assert_eq!(endpoint.incarnation.as_deref(), Some("1600000000000"));
    assert_eq!(endpoint.metadata["protocol"], "dubbo");
    for bad in [
        "",
        "x",
        "dubbo%3A%2F%2F",
        "dubbo%3A%2F%2Fhost",
        "dubbo%3A%2F%2Fhost%3A99999",
    ] {
        assert_eq!(Provider::from_node(bad), None, "{bad}");
    }
}

#[test]
fn group_and_version_are_exact_or_a_star() {
    let provider = Provider::from_node(NODE).unwrap();
    for (name, fits) in [
        ("com.acme.OrderService", false),
        ("g1/com.acme.OrderService", false),
        ("com.acme.OrderService:1.0.0", false),
        ("*/com.acme.OrderService:*", true),
        ("g2,g1/com.acme.OrderService:1.0.0", true),
        ("g1/com.acme.Other:1.0.0", false),
    ] {
        assert_eq!(wanted(name).matches(&provider), fits, "{name}");
    }
    let with_group = Wanted::parse("com.acme.OrderService:1.0.0", Some("g1"));
    assert!(with_group.matches(&provider));
    let mapped = map(&wanted("com.acme.OrderService"), &[provider], &[], &[], NOW);
    assert_eq!(mapped.others, ["group g1 version 1.0.0 protocol dubbo"]);
}

#[test]
fn row_33_weights_of_a_cold_jvm() {
    let minute_ago = NOW - 60_000;
    let url = format!("dubbo://h:1/a?interface=a&timestamp={minute_ago}&warmup=600000&weight=100");
    assert_eq!(of(&wanted("a"), &[provider(&url)], &[]), ["h:1 100"]);
    assert!(map(&wanted("a"), &[provider(&url)], &[], &[], NOW).warming);
    for (uptime, warmup, weight, want) in [
        (0, 600_000, 100, 1),
        (600_000, 600_000, 100, 100),
        (599_999, 600_000, 100, 99),
        (1, 0, 100, 100),
        (300_000, 600_000, 10, 5),
        (1, 600_000, 0, 0),
    ] {
        let found = effective_weight(weight, Some(NOW - uptime), warmup, NOW);
        assert_eq!(found, want, "{uptime} {warmup} {weight}");
    }
    // A clock behind ours: it has just started.
    assert_eq!(effective_weight(100, Some(NOW + 5), 600_000, NOW), 1);
    assert_eq!(effective_weight(100, None, 600_000, NOW), 100);
}

#[test]
fn overrides_disable_and_weigh() {
    let providers = [
        provider("dubbo://10.0.0.1:1/a?interface=a"),
        provider("dubbo://10.0.0.2:1/a?interface=a&weight=200"),
    ];
    let all = "override%3A%2F%2F0.0.0.0%2Fa%3Fcategory%3Dconfigurators%26weight%3D50";
    let one = "override%3A%2F%2F10.0.0.2%3A1%2Fa%3Fcategory%3Dconfigurators%26disabled%3Dtrue";
    let other = "override%3A%2F%2F10.0.0.2%3A9%2Fa%3Fdisabled%3Dtrue";
    let consumer = "override%3A%2F%2F0.0.0.0%2Fa%3Fapplication%3Dshop%26disabled%3Dtrue";
    let off = "override%3A%2F%2F0.0.0.0%2Fa%3Fdisabled%3Dtrue%26enabled%3Dfalse";
    let wanted = wanted("a");
    let plain = ["10.0.0.1:1 1000", "10.0.0.2:1 2000"];
    assert_eq!(
        of(&wanted, &providers, &[other, consumer, off, "empty"]),
        plain
    );
    assert_eq!(
        of(&wanted, &providers, &[one, all]),
        ["10.0.0.1:1 500", "10.0.0.2:1 500 off"]
    );
}

#[test]
fn one_protocol_of_an_instance() {
    let providers = [
        provider("dubbo://10.0.0.1:20880/a?interface=a"),
        provider("tri://10.0.0.1:50051/a?interface=a"),
        provider("dubbo://10.0.0.2:20880/a?interface=a&ext.protocol=tri"),
        provider("dubbo://10.0.0.3:20880/a?interface=a"),
    ];
    let preferred = [
        "10.0.0.1:50051 1000",
        "10.0.0.2:20880 1000",
        "10.0.0.3:20880 1000",
    ];
    assert_eq!(of(&wanted("a"), &providers, &[]), preferred);
    let only = wanted("a?protocol=tri");
    assert_eq!(of(&only, &providers, &[]), preferred[..2]);
    let mapped = map(&only, &providers, &[], &[], NOW);
    assert_eq!(mapped.endpoints[1].metadata["protocol"], "grpc");
    assert_eq!(mapped.others.len(), 1);
}

#[test]
fn instances_of_applications() {
    let json = br#"{"name":"orders","id":"127.0.0.1:20880","address":"127.0.0.1","port":20880,"sslPort":null,
        "payload":{"@class":"org.apache.dubbo.registry.zookeeper.ZookeeperInstance","id":"127.0.0.1:20880",
        "name":"orders","metadata":{"dubbo.endpoints":"[{\"port\":20880,\"protocol\":\"dubbo\"},{\"port\":50051,\"protocol\":\"tri\"}]",
        "dubbo.metadata.revision":"abc","timestamp":"1600000000000","weight":"50"}},
        "registrationTimeUTC":1,"serviceType":"DYNAMIC","uriSpec":null}"#;
    let instance = Instance::from_node(json).unwrap();
    // The provider URL of the same address is the same instance.
    let same = [provider(
        "tri://127.0.0.1:50051/orders?interface=orders&weight=7",
    )];
    let mapped = map(
        &wanted("orders"),
        &same,
        &[],
        std::slice::from_ref(&instance),
        NOW,
    );
    assert_eq!(told(&mapped), ["127.0.0.1:50051 500"]);
    let dubbo = wanted("orders?protocol=dubbo");
    let mapped = map(&dubbo, &[], &[], &[instance], NOW);
    assert_eq!(told(&mapped), ["127.0.0.1:20880 500"]);

    let early =
        br#"{"address":"h","port":1,"payload":{"@class":"org.apache.dubbo.X","metadata":{}}}"#;
    assert_eq!(Instance::from_node(early), Err(InstanceError::NoEndpoints));
    let spring =
        br#"{"id":"u","address":"10.0.0.9","port":8080,"payload":{"metadata":{"zone":"a"}}}"#;
    let mapped = map(
        &wanted("x"),
        &[],
        &[],
        &[Instance::from_node(spring).unwrap()],
        NOW,
    );
    assert_eq!(told(&mapped), ["10.0.0.9:8080 1000"]);
    assert_eq!(mapped.endpoints[0].zone.as_deref(), Some("a"));
    for bad in [
        &b""[..],
        b"{}",
        b"[]",
        br#"{"address":"h"}"#,
        br#"{"address":"h","port":70000}"#,
    ] {
        assert!(Instance::from_node(bad).is_err());
    }
}

proptest! {
    #[test]
    fn no_text_breaks_it(text in ".{0,200}") {
        let _any = Provider::from_node(&text);
        let _any = Override::from_node(&text);
        let _any = Instance::from_node(text.as_bytes());
        let _any = Wanted::parse(&text, None);
    }
}
