//! From records to endpoints. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::config::types::{Dns, IpFamily};
use crate::endpoint::{Address, Endpoint, Weight};

/// After an answer without an address the name is asked again within this time.
const EMPTY_RETRY: Duration = Duration::from_secs(5);
/// And not before this, whatever the server says.
const LEAST_EMPTY_RETRY: Duration = Duration::from_secs(1);
/// The largest weight of an endpoint; SRV goes to 65,535.
const MAX_WEIGHT: u16 = 10_000;

/// A or AAAA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn of(ip: &IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }
}

/// The family to ask for first, and the one that stands in where that has no address. `own` is our
/// own address, where it is known.
pub(super) fn families(family: IpFamily, own: Option<IpAddr>) -> (Family, Option<Family>) {
    match (family, own) {
        (IpFamily::V4, _) => (Family::V4, None),
        (IpFamily::V6, _) => (Family::V6, None),
        (IpFamily::Auto, Some(own)) => {
            let first = Family::of(&own);
            (first, Some(first.other()))
        }
        (IpFamily::Auto, None) | (IpFamily::PreferV4, _) => (Family::V4, Some(Family::V6)),
    }
}

/// One SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Srv {
    pub(super) priority: u16,
    pub(super) weight: u16,
    pub(super) port: u16,
    /// Without the dot at its end, lower case; empty: the service is not there.
    pub(super) target: Arc<str>,
}

/// Endpoints of a host, in the order of their addresses (the order of answers changes, G9).
pub(super) fn of_host(ips: &[IpAddr], port: u16) -> Vec<Endpoint> {
    let mut ips = ips.to_vec();
    ips.sort_unstable();
    ips.dedup();
    ips.into_iter()
        .map(|ip| Endpoint::new(SocketAddr::new(ip, port).into()))
        .collect()
}

/// Endpoints of a service, each with the priority of its record: the tiers of RFC 2782. A record whose
/// port is 0 or whose target is the root or has no address is none. Of an address that has several
/// records that of the lowest priority counts, of those the heaviest (G10).
pub(super) fn of_service(records: &[Srv], ips: &BTreeMap<Arc<str>, Vec<IpAddr>>) -> Vec<Endpoint> {
    let known = |srv: &&Srv| ips.get(&srv.target).is_some_and(|ips| !ips.is_empty());
    let usable = records.iter().filter(|srv| srv.port > 0).filter(known);
    let mut heaviest: BTreeMap<u16, u16> = BTreeMap::new();
    for srv in usable.clone() {
        let most = heaviest.entry(srv.priority).or_default();
        *most = srv.weight.max(*most);
    }
    let mut found: BTreeMap<SocketAddr, &Srv> = BTreeMap::new();
    for srv in usable {
        let rank = |srv: &Srv| (Reverse(srv.priority), srv.weight, Arc::clone(&srv.target));
        for ip in ips.get(&srv.target).into_iter().flatten() {
            let slot = found.entry(SocketAddr::new(*ip, srv.port)).or_insert(srv);
            if rank(srv) > rank(slot) {
                *slot = srv;
            }
        }
    }
    let endpoint = |(socket, srv): (SocketAddr, &Srv)| {
        let most = heaviest.get(&srv.priority).copied().unwrap_or(0);
        let scale = f64::from(MAX_WEIGHT) / f64::from(most.max(MAX_WEIGHT));
        // 0 is a small chance, not none (RFC 2782).
        let weight = f64::from(srv.weight.max(1)) * scale;
        Endpoint {
            weight: Weight::from_number(weight).0,
            priority: srv.priority,
            metadata: Arc::new(BTreeMap::from([
                ("priority".to_owned(), srv.priority.to_string()),
                ("target".to_owned(), srv.target.to_string()),
            ])),
            ..Endpoint::new(Address::from(socket))
        }
    };
    found.into_iter().map(endpoint).collect()
}

/// When to ask again, before jitter: `ttl` is the least one of all records that were used, also of
/// aliases on the way.
pub(super) fn next_question(config: &Dns, empty: bool, ttl: Option<Duration>) -> Duration {
    if empty {
        let most = EMPTY_RETRY.min(config.max_ttl);
        let least = LEAST_EMPTY_RETRY.min(config.min_ttl);
        return ttl.unwrap_or(most).clamp(least.min(most), most);
    }
    ttl.unwrap_or_default()
        .clamp(config.min_ttl, config.max_ttl)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn srv(priority: u16, weight: u16, port: u16, target: &str) -> Srv {
        Srv {
            priority,
            weight,
            port,
            target: target.into(),
        }
    }

    fn ips(of: &[(&str, &[&str])]) -> BTreeMap<Arc<str>, Vec<IpAddr>> {
        of.iter()
            .map(|(name, ips)| {
                let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
                (Arc::from(*name), ips)
            })
            .collect()
    }

    fn told(endpoints: &[Endpoint]) -> Vec<String> {
        endpoints
            .iter()
            .map(|e| format!("{} {}", e.address, e.weight.thousandths()))
            .collect()
    }

    #[test]
    fn every_tier_keeps_its_priority() {
        let records = [
            srv(10, 5, 80, "a"),
            srv(20, 5, 80, "b"),
            srv(30, 9, 80, "a"),
            srv(5, 1, 80, "gone"),
        ];
        let known = ips(&[("a", &["10.0.0.1"]), ("b", &["10.0.0.2"]), ("gone", &[])]);
        let found = of_service(&records, &known);
        assert_eq!(told(&found), ["10.0.0.1:80 5000", "10.0.0.2:80 5000"]);
        let tiers: Vec<u16> = found.iter().map(|e| e.priority).collect();
        assert_eq!(tiers, [10, 20]);
        assert!(of_service(&[srv(0, 0, 80, "")], &known).is_empty());
        assert!(of_service(&[srv(0, 0, 0, "a")], &known).is_empty());
    }

    #[test]
    fn weights_of_all_sizes() {
        let known = ips(&[("a", &["10.0.0.1"]), ("b", &["10.0.0.2"])]);
        let weights =
            |a: u16, b: u16| told(&of_service(&[srv(1, a, 1, "a"), srv(1, b, 1, "b")], &known));
        assert_eq!(weights(0, 0), ["10.0.0.1:1 1000", "10.0.0.2:1 1000"]);
        assert_eq!(weights(0, 20), ["10.0.0.1:1 1000", "10.0.0.2:1 20000"]);
        assert_eq!(
            weights(65_535, 0),
            ["10.0.0.1:1 10000000", "10.0.0.2:1 153"]
        );
    }

    #[test]
    fn one_address_is_one_instance() {
        let known = ips(&[("a", &["10.0.0.1"]), ("b", &["10.0.0.1"])]);
        let records = [srv(1, 2, 80, "b"), srv(1, 7, 80, "a"), srv(1, 7, 81, "a")];
        let found = of_service(&records, &known);
        assert_eq!(told(&found), ["10.0.0.1:80 7000", "10.0.0.1:81 7000"]);
        let reversed: Vec<Srv> = records.iter().rev().cloned().collect();
        assert_eq!(of_service(&reversed, &known), found);
    }

    #[test]
    fn hosts_are_sorted() {
        let addresses: Vec<IpAddr> = ["10.0.0.9", "10.0.0.1", "10.0.0.9"]
            .iter()
            .map(|ip| ip.parse().unwrap())
            .collect();
        assert_eq!(
            told(&of_host(&addresses, 80)),
            ["10.0.0.1:80 1000", "10.0.0.9:80 1000"]
        );
    }

    #[test]
    fn times_are_bounded() {
        let config = Dns {
            servers: Vec::new(),
            ip_family: IpFamily::Auto,
            search: false,
            tcp: false,
            min_ttl: Duration::from_secs(5),
            max_ttl: Duration::from_secs(300),
        };
        let seconds = |empty, ttl: Option<u64>| {
            next_question(&config, empty, ttl.map(Duration::from_secs)).as_secs()
        };
        assert_eq!(seconds(false, Some(0)), 5);
        assert_eq!(seconds(false, Some(60)), 60);
        assert_eq!(seconds(false, Some(100_000)), 300);
        assert_eq!(seconds(true, Some(0)), 1);
        assert_eq!(seconds(true, Some(2)), 2);
        assert_eq!(seconds(true, Some(900)), 5);
        assert_eq!(seconds(true, None), 5);
    }

    #[test]
    fn families_never_mix() {
        let own = Some("fd00::1".parse().unwrap());
        assert_eq!(
            families(IpFamily::Auto, own),
            (Family::V6, Some(Family::V4))
        );
        assert_eq!(
            families(IpFamily::Auto, None),
            (Family::V4, Some(Family::V6))
        );
        assert_eq!(
            families(IpFamily::PreferV4, own),
            (Family::V4, Some(Family::V6))
        );
        assert_eq!(families(IpFamily::V6, None), (Family::V6, None));
    }
}
