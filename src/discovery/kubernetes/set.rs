//! From the slices of a service to one set of endpoints: one family of addresses, one port, and what
//! the conditions mean for traffic. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::machine::Slices;
use super::wire::{Family, Slice, SliceEndpoint, SlicePort};
use crate::config::types::IpFamily;
use crate::endpoint::{Address, Endpoint};

/// Names of a port that is taken where there are several and none is configured.
const USUAL_PORTS: [&str; 3] = ["http", "grpc", "web"];

/// What is chosen of the slices.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) port_name: Option<String>,
    pub(super) family: IpFamily,
    /// Our own address, for `auto`.
    pub(super) own: Option<IpAddr>,
}

/// The endpoints of a service, and how many could not be used.
pub(super) fn endpoints(
    slices: &Slices,
    namespace: &str,
    choice: &Choice,
) -> Result<(Vec<Endpoint>, usize), String> {
    let filled: Vec<&Slice> = slices
        .values()
        .filter(|s| !s.endpoints.is_empty())
        .collect();
    let Some(family) = family(&filled, choice) else {
        return Ok((Vec::new(), 0));
    };
    let chosen = filled.into_iter().filter(|slice| slice.family == family);
    let (mut found, mut skipped, mut trouble) = (Vec::new(), 0_usize, None);
    for slice in chosen {
        let port = match port(&slice.ports, choice.port_name.as_deref()) {
            Ok(port) => port,
            Err(why) => {
                skipped += slice.endpoints.len();
                trouble = Some(why);
                continue;
            }
        };
        for endpoint in &slice.endpoints {
            match Address::from_parts(&endpoint.address, port.port) {
                Ok(address) => found.push((address, endpoint, port)),
                Err(_) => skipped += 1,
            }
        }
    }
    if let (true, Some(why)) = (found.is_empty(), trouble) {
        return Err(why);
    }
    // As kube-proxy does: where none is ready those that stop, but still serve, are used.
    let any_ready = found.iter().any(|(_, e, _)| e.ready && !e.terminating);
    let found = found.into_iter().map(|(address, raw, port)| {
        let mut endpoint = Endpoint::new(address);
        let last_resort = !any_ready && raw.serving && raw.terminating;
        endpoint.healthy = raw.ready || last_resort;
        endpoint.draining = raw.terminating && !last_resort;
        describe(&mut endpoint, raw, port, namespace);
        endpoint
    });
    Ok((found.collect(), skipped))
}

/// The one family that is used: never both addresses of one instance.
fn family(slices: &[&Slice], choice: &Choice) -> Option<Family> {
    let there: BTreeSet<Family> = slices.iter().map(|slice| slice.family).collect();
    let order: &[Family] = match (choice.family, choice.own) {
        (IpFamily::V4, _) => &[Family::V4, Family::Name],
        (IpFamily::V6, _) => &[Family::V6, Family::Name],
        (IpFamily::Auto, Some(IpAddr::V6(_))) => &[Family::V6, Family::V4, Family::Name],
        (IpFamily::Auto | IpFamily::PreferV4, _) => &[Family::V4, Family::V6, Family::Name],
    };
    order.iter().find(|family| there.contains(family)).copied()
}

/// The configured port, else the only one, else the one with a usual name.
fn port<'a>(ports: &'a [SlicePort], name: Option<&str>) -> Result<&'a SlicePort, String> {
    let of_name = |name: &str| ports.iter().find(|port| &*port.name == name);
    let all = || {
        let all: Vec<String> = ports
            .iter()
            .map(|port| format!("`{}` {}", port.name, port.port))
            .collect();
        all.join(", ")
    };
    if let Some(name) = name {
        return of_name(name).ok_or_else(|| match ports.is_empty() {
            true => format!("it has no TCP port, so none named `{name}`"),
            false => format!("it has no TCP port named `{name}`, but {}", all()),
        });
    }
    match ports {
        [] => Err("it has no TCP port".to_owned()),
        [only] => Ok(only),
        _ => USUAL_PORTS
            .iter()
            .find_map(|name| of_name(name))
            .ok_or_else(|| format!("it has several TCP ports ({}): set `port_name`", all())),
    }
}

fn describe(endpoint: &mut Endpoint, raw: &SliceEndpoint, port: &SlicePort, namespace: &str) {
    let mut metadata = BTreeMap::from([("namespace".to_owned(), namespace.to_owned())]);
    if let Some((pod, uid)) = &raw.pod {
        metadata.insert("pod".to_owned(), pod.to_string());
        endpoint.incarnation.clone_from(uid);
    }
    if let Some(node) = &raw.node {
        metadata.insert("node".to_owned(), node.to_string());
    }
    if let Some(protocol) = port.app_protocol.as_deref().and_then(protocol) {
        metadata.insert("protocol".to_owned(), protocol.to_owned());
    }
    endpoint.zone.clone_from(&raw.zone);
    endpoint.metadata = Arc::new(metadata);
}

/// `appProtocol` in the words of the metadata `protocol`. `http` says nothing of the version.
fn protocol(app_protocol: &str) -> Option<&'static str> {
    match app_protocol {
        "kubernetes.io/h2c" | "h2c" | "http2" => Some("h2c"),
        "grpc" => Some("grpc"),
        "http1" | "http/1.1" | "kubernetes.io/ws" => Some("http1"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(family: IpFamily) -> Choice {
        Choice {
            port_name: None,
            family,
            own: None,
        }
    }

    /// `FAMILY PORT=NUMBER,... ADDRESS[-+rst]...`: flags are ready, serving, terminating.
    fn slices(lines: &[&str]) -> Slices {
        let read = lines.iter().enumerate().map(|(n, line)| {
            let mut words = line.split(' ');
            let family = match words.next().unwrap() {
                "v4" => Family::V4,
                "v6" => Family::V6,
                _ => Family::Name,
            };
            let ports = words.next().unwrap().split(',').filter(|p| !p.is_empty());
            let ports = ports.map(|pair| {
                let (name, port) = pair.split_once('=').unwrap();
                SlicePort {
                    name: name.into(),
                    port: port.parse().unwrap(),
                    app_protocol: None,
                }
            });
            let endpoints = words.map(|word| {
                let (address, flags) = word.split_once('/').unwrap_or((word, "rs"));
                SliceEndpoint {
                    address: address.to_owned(),
                    ready: flags.contains('r'),
                    serving: flags.contains('s'),
                    terminating: flags.contains('t'),
                    zone: None,
                    node: None,
                    pod: None,
                }
            });
            let name: Arc<str> = format!("s-{n}").into();
            let slice = Slice {
                name: name.clone(),
                service: Some("s".into()),
                version: "1".to_owned(),
                family,
                ports: ports.collect(),
                endpoints: endpoints.collect(),
            };
            (name, slice)
        });
        Arc::new(read.collect())
    }

    fn seen(lines: &[&str], choice: &Choice) -> Result<String, String> {
        let (endpoints, _) = endpoints(&slices(lines), "ns", choice)?;
        let endpoints = crate::discovery::merge::dedupe(endpoints);
        let shown: Vec<String> = endpoints
            .iter()
            .map(|e| match (e.healthy, e.draining) {
                (true, false) => e.address.to_string(),
                (false, false) => format!("{} unready", e.address),
                (_, true) => format!("{} draining", e.address),
            })
            .collect();
        Ok(shown.join(", "))
    }

    #[test]
    fn row_28_duplicates_families_and_ports_of_each_slice() {
        let any = choice(IpFamily::PreferV4);
        // Twice, with different readiness: ready wins, whatever the order.
        for lines in [
            ["v4 http=80 10.0.0.1/s 10.0.0.2", "v4 http=80 10.0.0.1"],
            ["v4 http=80 10.0.0.1 10.0.0.2", "v4 http=80 10.0.0.1/s"],
        ] {
            assert_eq!(seen(&lines, &any).unwrap(), "10.0.0.1:80, 10.0.0.2:80");
        }
        // Dual stack: one family.
        let dual = ["v6 http=80 fd00::1", "v4 http=80 10.0.0.1"];
        assert_eq!(seen(&dual, &any).unwrap(), "10.0.0.1:80");
        assert_eq!(seen(&dual, &choice(IpFamily::V6)).unwrap(), "[fd00::1]:80");
        let mut own = choice(IpFamily::Auto);
        assert_eq!(seen(&dual, &own).unwrap(), "10.0.0.1:80");
        own.own = Some("fd00::9".parse().unwrap());
        assert_eq!(seen(&dual, &own).unwrap(), "[fd00::1]:80");
        assert_eq!(seen(&dual[..1], &choice(IpFamily::V4)).unwrap(), "");
        assert_eq!(seen(&dual[..1], &any).unwrap(), "[fd00::1]:80");
        // Null endpoints are none, also without ports.
        assert_eq!(seen(&["v4 "], &any).unwrap(), "");
        // One name, two numbers.
        let two = [
            "v4 http=80,admin=9 10.0.0.1",
            "v4 admin=9,http=8080 10.0.0.2",
        ];
        assert_eq!(seen(&two, &any).unwrap(), "10.0.0.1:80, 10.0.0.2:8080");
    }

    #[test]
    fn row_29_those_that_stop_are_used_where_none_is_ready() {
        let any = choice(IpFamily::PreferV4);
        let stopping = ["v4 http=80 10.0.0.1/st 10.0.0.2/t 10.0.0.3/st"];
        let want = "10.0.0.1:80, 10.0.0.2:80 draining, 10.0.0.3:80";
        assert_eq!(seen(&stopping, &any).unwrap(), want);
        let one_ready = ["v4 http=80 10.0.0.1/st 10.0.0.2"];
        assert_eq!(
            seen(&one_ready, &any).unwrap(),
            "10.0.0.1:80 draining, 10.0.0.2:80"
        );
        // `publishNotReadyAddresses` says ready of all; what stops gets nothing new all the same.
        let always_ready = ["v4 http=80 10.0.0.1/rt 10.0.0.2/r"];
        assert_eq!(
            seen(&always_ready, &any).unwrap(),
            "10.0.0.1:80 draining, 10.0.0.2:80"
        );
        let none = ["v4 http=80 10.0.0.1/s 10.0.0.2/"];
        assert_eq!(
            seen(&none, &any).unwrap(),
            "10.0.0.1:80 unready, 10.0.0.2:80 unready"
        );
    }

    #[test]
    fn the_port_is_the_configured_the_only_or_the_usual_one() {
        let mut choice = choice(IpFamily::PreferV4);
        assert_eq!(seen(&["v4 =80 10.0.0.1"], &choice).unwrap(), "10.0.0.1:80");
        let two = ["v4 metrics=9,web=80 10.0.0.1"];
        assert_eq!(seen(&two, &choice).unwrap(), "10.0.0.1:80");
        let odd = ["v4 a=1,b=2 10.0.0.1"];
        let error = seen(&odd, &choice).unwrap_err();
        assert_eq!(
            error,
            "it has several TCP ports (`a` 1, `b` 2): set `port_name`"
        );
        choice.port_name = Some("b".to_owned());
        assert_eq!(seen(&odd, &choice).unwrap(), "10.0.0.1:2");
        assert_eq!(
            seen(&two, &choice).unwrap_err(),
            "it has no TCP port named `b`, but `metrics` 9, `web` 80"
        );
        assert!(
            seen(&["v4  10.0.0.1"], &choice)
                .unwrap_err()
                .contains("no TCP port")
        );
        // Where some slices have it those are used.
        let some = ["v4 a=1 10.0.0.1", "v4 b=2 10.0.0.2"];
        assert_eq!(seen(&some, &choice).unwrap(), "10.0.0.2:2");
    }

    #[test]
    fn hints() {
        assert_eq!(protocol("kubernetes.io/h2c"), Some("h2c"));
        assert_eq!(protocol("grpc"), Some("grpc"));
        assert_eq!(protocol("http"), None);
        assert_eq!(protocol("mysql"), None);
    }
}
