//! Endpoints from the DNS: addresses of a host (`registry_name: host:port`), or SRV records with the
//! addresses of their targets. A name is asked again when the least TTL of all records on the way is
//! over, within `min_ttl` and `max_ttl`, never by a request. No such name and no such record are an
//! empty answer, everything else that goes wrong is an error. At most `max_in_flight` questions.
//!
//! Next: `dns/set.rs` (what records mean), `dns/lookup.rs` (one question).

mod lookup;
mod set;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::lookup::{Kind, Lookup, Reply, Resolver};
use self::set::Family;
use super::source::{Listing, Source, Task};
use super::subscription::{Answer, Failure, Subscription};
use crate::config::dns_name::DnsName;
use crate::config::types::{Dns, Registry};
use crate::endpoint::Endpoint;
use crate::http_client::jitter::Jitter;

/// The first back-off is below twice this.
const RETRY: Duration = Duration::from_secs(1);
/// And none is longer.
const MOST_RETRY: Duration = Duration::from_secs(60);

/// The DNS as one registry.
#[derive(Debug)]
pub(super) struct DnsSource {
    config: Dns,
    timeout: Duration,
    /// Asked first, and the one that stands in.
    families: (Family, Option<Family>),
    lookup: Box<dyn Lookup>,
    permits: Semaphore,
    jitter: Jitter,
}

/// What a subscription keeps between two answers.
#[derive(Debug, Default)]
struct Memory {
    /// Last addresses of each target of SRV records, or of the host.
    ips: BTreeMap<Arc<str>, Vec<IpAddr>>,
}

/// A well-formed answer.
#[derive(Debug, Default)]
struct Resolved {
    endpoints: Vec<Endpoint>,
    ttl: Option<Duration>,
    /// Targets that could not be asked for.
    failed: usize,
}

/// Addresses of one name, of one family.
#[derive(Debug, Default)]
struct Addresses {
    ips: Vec<IpAddr>,
    ttl: Option<Duration>,
}

impl DnsSource {
    pub(super) fn new(config: &Dns, registry: &Registry, seed: u64) -> Self {
        let lookup = Resolver::new(config, registry.timeout);
        let own = std::env::var("POD_IP").ok().and_then(|ip| ip.parse().ok());
        Self::with_lookup(config, registry, seed, own, Box::new(lookup))
    }

    fn with_lookup(
        config: &Dns,
        registry: &Registry,
        seed: u64,
        own: Option<IpAddr>,
        lookup: Box<dyn Lookup>,
    ) -> Self {
        Self {
            config: config.clone(),
            timeout: registry.timeout,
            families: set::families(config.ip_family, own),
            lookup,
            permits: Semaphore::new(registry.max_in_flight),
            jitter: Jitter::new(fastrand::Rng::with_seed(seed)),
        }
    }

    async fn watch(self: Arc<Self>, mut subscription: Subscription) {
        let name = match DnsName::parse(&subscription.query.registry_name) {
            Ok(name) => name,
            Err(error) => {
                subscription.failed(&Failure::Refused(error.to_string()));
                return subscription.closed().await;
            }
        };
        let (mut memory, mut failures) = (Memory::default(), 0u32);
        subscription.set_period(self.config.min_ttl);
        loop {
            let result = tokio::select! {
                () = subscription.closed() => return,
                result = self.resolve(&name, &mut memory) => result,
            };
            let pause = match result {
                Ok(resolved) => {
                    failures = 0;
                    let empty = resolved.endpoints.is_empty();
                    let mut usual = set::next_question(&self.config, empty, resolved.ttl);
                    if resolved.failed > 0 {
                        usual = self.config.min_ttl;
                    }
                    subscription.set_period(usual);
                    let held = subscription.answer(Answer {
                        endpoints: resolved.endpoints,
                        skipped: resolved.failed,
                        ..Answer::default()
                    });
                    let pause = self.jitter.around(usual);
                    held.map_or(pause, |recheck| recheck.min(pause))
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    subscription.failed(&Failure::Unanswered(error));
                    self.jitter.back_off(RETRY, failures, MOST_RETRY)
                }
            };
            if !subscription.sleep(pause).await {
                return;
            }
        }
    }

    async fn resolve(
        self: &Arc<Self>,
        name: &DnsName,
        memory: &mut Memory,
    ) -> Result<Resolved, String> {
        match name {
            DnsName::Host { host, port } => {
                let last = memory.ips.get(host).and_then(|ips| ips.first());
                let found = self.addresses(host, last.map(Family::of)).await?;
                let endpoints = set::of_host(&found.ips, *port);
                if !found.ips.is_empty() {
                    memory.ips.insert(host.clone(), found.ips);
                }
                Ok(Resolved {
                    endpoints,
                    ttl: found.ttl,
                    failed: 0,
                })
            }
            DnsName::Service { name } => self.service(name, memory).await,
        }
    }

    /// SRV records, then the addresses of their targets: those that came along, else asked for. A
    /// target that cannot be asked for keeps its last addresses.
    async fn service(
        self: &Arc<Self>,
        name: &Arc<str>,
        memory: &mut Memory,
    ) -> Result<Resolved, String> {
        let reply = self.ask(name, Kind::Services).await?;
        let mut resolved = Resolved {
            ttl: reply.ttl,
            ..Resolved::default()
        };
        let mut last = std::mem::take(&mut memory.ips);
        let mut asked = JoinSet::new();
        for target in targets(&reply) {
            let came = self.along(&reply, &target);
            if !came.is_empty() {
                memory.ips.insert(target, came);
                continue;
            }
            let family = last
                .get(&target)
                .and_then(|ips| ips.first())
                .map(Family::of);
            let source = Arc::clone(self);
            asked.spawn(async move {
                let found = source.addresses(&target, family).await;
                (target, found)
            });
        }
        let mut error = None;
        while let Some(done) = asked.join_next().await {
            // A task that ended without a word is no answer either.
            let Ok((target, found)) = done else { continue };
            match found {
                Ok(found) => {
                    resolved.ttl = least(resolved.ttl, found.ttl);
                    memory.ips.insert(target, found.ips);
                }
                Err(why) => {
                    resolved.failed += 1;
                    error = Some(why);
                    if let Some(ips) = last.remove(&target) {
                        memory.ips.insert(target, ips);
                    }
                }
            }
        }
        resolved.endpoints = set::of_service(&reply.services, &memory.ips);
        match error {
            Some(error) if resolved.endpoints.is_empty() => {
                // Nothing is known of any target that could have addresses.
                memory.ips.append(&mut last);
                Err(error)
            }
            Some(_) | None => Ok(resolved),
        }
    }

    /// Addresses of a target that came with its record, of the family that is wanted first.
    fn along(&self, reply: &Reply, target: &Arc<str>) -> Vec<IpAddr> {
        let of_target = reply.additional.iter().filter(|(name, _)| name == target);
        of_target
            .map(|(_, ip)| *ip)
            .filter(|ip| Family::of(ip) == self.families.0)
            .collect()
    }

    /// The addresses of a host: of the first family, else of the second. Where the first cannot be
    /// asked for, the second stands in unless addresses of the first are in use (`last`).
    async fn addresses(&self, host: &str, last: Option<Family>) -> Result<Addresses, String> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(Addresses {
                ips: vec![ip],
                ttl: Some(self.config.max_ttl),
            });
        }
        let (first, second) = self.families;
        let found = self.ask(host, Kind::Addresses(first)).await;
        let second = match (&found, second) {
            (Ok(reply), _) if !reply.ips.is_empty() => None,
            (Err(_), _) if last == Some(first) => None,
            (Ok(_) | Err(_), second) => second,
        };
        let Some(second) = second else {
            return found.map(Addresses::from);
        };
        let other = self.ask(host, Kind::Addresses(second)).await;
        match (found, other) {
            (_, Ok(other)) if !other.ips.is_empty() => Ok(other.into()),
            // Only both together say that there is nothing.
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
            (Ok(found), Ok(other)) => Ok(Addresses {
                ips: Vec::new(),
                ttl: least(found.ttl, other.ttl),
            }),
        }
    }

    async fn ask(&self, name: &str, kind: Kind) -> Result<Reply, String> {
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await.ok();
        let answer = tokio::time::timeout(self.timeout, self.lookup.ask(name, kind)).await;
        answer.unwrap_or_else(|_| Err(format!("{name}: no answer within {:?}", self.timeout)))
    }
}

impl From<Reply> for Addresses {
    fn from(reply: Reply) -> Self {
        Self {
            ips: reply.ips,
            ttl: reply.ttl,
        }
    }
}

fn targets(reply: &Reply) -> Vec<Arc<str>> {
    let named = reply.services.iter().map(|srv| srv.target.clone());
    let mut targets: Vec<Arc<str>> = named.filter(|target| !target.is_empty()).collect();
    targets.sort_unstable();
    targets.dedup();
    targets
}

fn least(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl Source for DnsSource {
    fn follow(self: Arc<Self>, subscription: Subscription) -> Task {
        Box::pin(self.watch(subscription))
    }

    fn names(self: Arc<Self>) -> Listing {
        Box::pin(async {
            let what = "the DNS cannot list its names".to_owned();
            Err(Failure::Refused(what))
        })
    }
}

#[cfg(test)]
mod tests;
