//! How an instance of a service is picked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The settings of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancing {
    /// The algorithm.
    pub load_balancer: LoadBalancer,
    /// What `ring_hash` and `maglev` go by; there where they balance.
    pub hash: Option<HashOn>,
    /// Only instances with this metadata.
    pub subset: Option<Subset>,
    /// Near ones first.
    pub locality: Locality,
    /// How long a new instance ramps; zero: not at all.
    pub slow_start: Duration,
}

/// `load_balancer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadBalancer {
    /// Least requests in flight per weight, of two random ones.
    P2cLeastRequest,
    /// The sooner expected answer, of two random ones.
    PeakEwma,
    /// Smooth weighted round robin.
    RoundRobin,
    /// Weighted random.
    Random,
    /// The next point on a ring of hashes.
    RingHash,
    /// Maglev's look-up table.
    Maglev,
}

impl LoadBalancer {
    /// Whether it goes by `hash`.
    pub const fn hashes(self) -> bool {
        match self {
            Self::RingHash | Self::Maglev => true,
            Self::P2cLeastRequest | Self::PeakEwma | Self::RoundRobin | Self::Random => false,
        }
    }
}

/// `hash`: what of a request decides where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashOn {
    /// The value of a header.
    Header(http::HeaderName),
    /// The value of a cookie.
    Cookie(Arc<str>),
    /// The path, without the service's prefix and the query.
    Path,
    /// The app's IP address.
    Source,
}

/// `subset`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subset {
    /// All of it, and it is not empty.
    pub metadata: BTreeMap<String, String>,
    /// When none can be used.
    pub fallback: SubsetFallback,
}

/// `subset.fallback`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubsetFallback {
    /// The others stand in.
    Any,
    /// The others are no instances of this service here.
    None,
}

/// `locality`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locality {
    /// What near means.
    pub prefer: Prefer,
    /// A level whose usable capacity is below this part of its own hands some of its traffic on.
    pub min_percent: u32,
    /// The app's own zone or cluster, where it is known and `prefer` asks for it.
    pub home: Option<Arc<str>>,
}

/// `locality.prefer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefer {
    /// All are equally near.
    None,
    /// The app's zone.
    Zone,
    /// The app's cluster.
    Cluster,
}
