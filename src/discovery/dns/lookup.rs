//! One question to the DNS, answered by hickory-resolver. It reads resolv.conf and the hosts file as
//! other programs do, follows aliases, repeats a truncated answer by TCP. Its cache is not used: the
//! source decides when to ask. Everything of that crate is in this file.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};

use super::set::{Family, Srv};
use crate::config::types::Dns;

/// Tries of one question; together they have the registry's `timeout`.
const TRIES: u32 = 2;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Addresses(Family),
    Services,
}

/// A well-formed answer; without a record: the name does not exist or has none of that type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) ips: Vec<IpAddr>,
    pub(super) services: Vec<Srv>,
    /// Addresses that came along with the services.
    pub(super) additional: Vec<(Arc<str>, IpAddr)>,
    /// The least of all records, also of aliases; of a negative answer how long it holds.
    pub(super) ttl: Option<Duration>,
}

pub(super) type Asked = Pin<Box<dyn Future<Output = Result<Reply, String>> + Send>>;

/// Whoever answers questions.
pub(super) trait Lookup: fmt::Debug + Send + Sync {
    /// An error is no answer: SERVFAIL, a refusal, silence. `name` has no dot at its end.
    fn ask(&self, name: &str, kind: Kind) -> Asked;
}

/// The DNS.
pub(super) struct Resolver {
    config: Dns,
    timeout: Duration,
    current: Mutex<Option<(Stamp, Current)>>,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Resolver")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// A resolver, and the domains that names are searched in.
#[derive(Clone)]
struct Current {
    resolver: TokioResolver,
    domains: Vec<Name>,
}

/// When the system's files were last changed: a laptop moves between networks.
type Stamp = [Option<SystemTime>; 2];

impl Resolver {
    pub(super) fn new(config: &Dns, timeout: Duration) -> Self {
        Self {
            config: config.clone(),
            timeout,
            current: Mutex::new(None),
        }
    }

    /// The one for the system's present settings.
    fn resolver(&self) -> Result<Current, String> {
        let changed = |path: &str| std::fs::metadata(Path::new(path)).ok()?.modified().ok();
        let stamp = if self.config.servers.is_empty() {
            [changed("/etc/resolv.conf"), changed("/etc/hosts")]
        } else {
            [None, None]
        };
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some((of, known)) if *of == stamp => Ok(known.clone()),
            Some(_) | None => {
                let built = self.build().map_err(|e| format!("no resolver: {e}"))?;
                *current = Some((stamp, built.clone()));
                Ok(built)
            }
        }
    }

    fn build(&self) -> Result<Current, NetError> {
        let provider = TokioRuntimeProvider::default();
        let mut domains = Vec::new();
        let own = !self.config.servers.is_empty();
        let mut builder = if own && !self.config.search {
            let config = ResolverConfig::from_parts(None, Vec::new(), self.servers());
            TokioResolver::builder_with_config(config, provider)
        } else {
            let (config, options) = hickory_resolver::system_conf::read_system_conf()?;
            let (domain, search, mut servers) = config.into_parts();
            if own {
                servers = self.servers();
            } else if self.config.tcp {
                for server in &mut servers {
                    server
                        .connections
                        .retain(|c| c.protocol.to_protocol().is_stream());
                }
            }
            if self.config.search {
                domains = domain.iter().chain(&search).cloned().collect();
            }
            let config = ResolverConfig::from_parts(domain, search, servers);
            let mut builder = TokioResolver::builder_with_config(config, provider);
            *builder.options_mut() = options;
            builder
        };
        let options = builder.options_mut();
        options.timeout = self.timeout / TRIES;
        options.attempts = usize::try_from(TRIES).unwrap_or(1);
        options.cache_size = 0;
        options.use_hosts_file = if own {
            ResolveHosts::Never
        } else {
            ResolveHosts::Always
        };
        let resolver = builder.build()?;
        Ok(Current { resolver, domains })
    }

    fn servers(&self) -> Vec<NameServerConfig> {
        let server = |text: &String| {
            let socket: std::net::SocketAddr = text.parse().ok()?;
            let mut connections = vec![ConnectionConfig::tcp()];
            if !self.config.tcp {
                connections.insert(0, ConnectionConfig::udp());
            }
            for connection in &mut connections {
                connection.port = socket.port();
            }
            Some(NameServerConfig::new(socket.ip(), true, connections))
        };
        self.config.servers.iter().filter_map(server).collect()
    }
}

impl Lookup for Resolver {
    fn ask(&self, name: &str, kind: Kind) -> Asked {
        let current = self.resolver();
        // As it is: read as an international name, one with an underscore inside would be none.
        let parsed = Name::from_ascii(name).map_err(|error| format!("{name}: {error}"));
        Box::pin(async move {
            let Current { resolver, domains } = current?;
            // A cached alias would hide that it is over.
            resolver.clear_cache();
            let record = match kind {
                Kind::Addresses(Family::V4) => RecordType::A,
                Kind::Addresses(Family::V6) => RecordType::AAAA,
                Kind::Services => RecordType::SRV,
            };
            let names = candidates(&parsed?, &domains, resolver.options().ndots);
            first_answer(names, |name| one(resolver.clone(), name, record)).await
        })
    }
}

/// One absolute name.
async fn one(resolver: TokioResolver, name: Name, record: RecordType) -> Result<Reply, String> {
    match resolver.lookup(name.clone(), record).await {
        Ok(lookup) => Ok(read(lookup.answers(), lookup.additionals())),
        Err(NetError::Dns(DnsError::NoRecordsFound(none))) => Ok(Reply {
            ttl: none.negative_ttl.map(|s| Duration::from_secs(s.into())),
            ..Reply::default()
        }),
        Err(error) => Err(format!("{record} of {name}: {error}")),
    }
}

/// The absolute names that a name may mean, in the order they are asked for: with fewer dots than
/// `ndots` it is itself the last of them. (hickory's own search tells what came of the last one only:
/// a failure of an earlier one would look like an empty answer.)
fn candidates(name: &Name, domains: &[Name], ndots: usize) -> Vec<Name> {
    let mut itself = name.clone();
    itself.set_fqdn(true);
    let mut names: Vec<Name> = Vec::new();
    for domain in domains {
        // What becomes too long is no name.
        let Ok(mut found) = name.clone().append_domain(domain) else {
            continue;
        };
        found.set_fqdn(true);
        if !names.contains(&found) && found != itself {
            names.push(found);
        }
    }
    let first = usize::from(name.num_labels()) > ndots || name.is_localhost();
    names.insert(if first { 0 } else { names.len() }, itself);
    names
}

/// The first reply with a record. Empty only when all are: a name that could not be asked for may
/// have records.
async fn first_answer<F: Future<Output = Result<Reply, String>>>(
    names: Vec<Name>,
    ask: impl Fn(Name) -> F,
) -> Result<Reply, String> {
    let mut failure = None;
    let mut none: Option<Reply> = None;
    for name in names {
        match ask(name).await {
            Ok(reply) if reply.ips.is_empty() && reply.services.is_empty() => {
                let ttl = none.as_ref().and_then(|none| none.ttl);
                let least = reply.ttl.into_iter().chain(ttl).min();
                none = Some(Reply {
                    ttl: least,
                    ..Reply::default()
                });
            }
            Ok(reply) => return Ok(reply),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or_else(|| Ok(none.unwrap_or_default()), Err)
}

fn read(answers: &[Record], additionals: &[Record]) -> Reply {
    let mut reply = Reply::default();
    let mut ttl = None;
    let mut count = |record: &Record| {
        ttl = Some(ttl.map_or(record.ttl, |least: u32| least.min(record.ttl)));
    };
    for record in answers {
        count(record);
        reply.ips.extend(ip(&record.data));
        if let RData::SRV(srv) = &record.data {
            reply.services.push(Srv {
                priority: srv.priority,
                weight: srv.weight,
                port: srv.port,
                target: bare(&srv.target),
            });
        }
    }
    for record in additionals {
        let Some(ip) = ip(&record.data) else { continue };
        let name = bare(&record.name);
        if reply.services.iter().any(|srv| srv.target == name) {
            count(record);
            reply.additional.push((name, ip));
        }
    }
    reply.ttl = ttl.map(|seconds| Duration::from_secs(seconds.into()));
    reply
}

fn ip(data: &RData) -> Option<IpAddr> {
    if let RData::A(ip) = data {
        Some(IpAddr::V4(ip.0))
    } else if let RData::AAAA(ip) = data {
        Some(IpAddr::V6(ip.0))
    } else {
        None
    }
}

/// Lower case, without the dot at the end.
fn bare(name: &Name) -> Arc<str> {
    let text = name.to_ascii().to_ascii_lowercase();
    text.trim_end_matches('.').into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    #[test]
    fn names_are_searched_in_the_order_that_their_dots_say() {
        let domains = [name("ns.svc.local"), name("svc.local."), name("svc.local")];
        let asked = |text: &str, ndots: usize| -> Vec<String> {
            let names = candidates(&name(text), &domains, ndots);
            names.iter().map(Name::to_ascii).collect()
        };
        let searched = ["db.ns.svc.local.", "db.svc.local.", "db."];
        assert_eq!(asked("db", 1), searched);
        assert_eq!(asked("a.db", 1)[0], "a.db.");
        assert_eq!(asked("a.db", 1).len(), 3);
        assert_eq!(asked("a.db", 5)[2], "a.db.");
        assert_eq!(candidates(&name("db"), &[], 1), [name("db.")]);
    }

    #[tokio::test]
    async fn a_failed_candidate_is_no_empty_answer() {
        let domains = [name("one"), name("two")];
        let names = candidates(&name("db"), &domains, 1);
        let found = || Reply {
            ips: vec![IpAddr::from([10, 0, 0, 1])],
            ..Reply::default()
        };
        let empty = |ttl: u64| Reply {
            ttl: Some(Duration::from_secs(ttl)),
            ..Reply::default()
        };
        let failed = || Err("SERVFAIL".to_owned());
        let result = first_answer(names.clone(), |name: Name| async move {
            match name.to_ascii().as_str() {
                "db.one." => failed(),
                _ => Ok(empty(9)),
            }
        });
        assert_eq!(result.await, failed());
        let result = first_answer(names.clone(), |name: Name| async move {
            match name.to_ascii().as_str() {
                "db.one." => failed(),
                "db.two." => Ok(found()),
                other => panic!("{other} was asked for"),
            }
        });
        assert_eq!(result.await, Ok(found()));
        let result = first_answer(names, |name: Name| async move {
            Ok(empty(name.to_ascii().len() as u64))
        });
        assert_eq!(result.await, Ok(empty(3)));
    }
}
