//! What a registry says of a service: endpoints and whole sets of them. Pure values.
//! Our live objects are instances (`endpoint::instance`), matched to endpoints by identity.
//! Next: `endpoint/address.rs`, `endpoint/instance.rs`, `endpoint/selectable.rs`.

pub mod address;
pub mod failures;
pub mod instance;
pub mod latency;
pub mod ledger;
pub mod selectable;

pub use address::Address;

use std::collections::BTreeMap;
use std::sync::Arc;

/// Relative share of traffic in thousandths (1000 = the usual weight 1, or Dubbo's 100 after
/// normalising). Zero: kept in the set, gets no traffic (rule G14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u32);

impl Weight {
    /// Weight 1.
    pub const ONE: Self = Self(1000);
    /// No traffic.
    pub const ZERO: Self = Self(0);
    /// The largest: 10,000.
    pub const MAX: Self = Self(10_000_000);

    /// From a registry's number: negative and NaN become zero, more than 10,000 (infinity too) is
    /// clamped. The second value tells whether the number had to be changed.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 0..=10_000 before the cast"
    )]
    pub fn from_number(number: f64) -> (Self, bool) {
        if number.is_nan() || number < 0.0 {
            return (Self::ZERO, true);
        }
        if number > 10_000.0 {
            return (Self::MAX, true);
        }
        let thousandths = (number * 1000.0).round() as u32;
        // A positive weight never rounds to "no traffic".
        let floor = u32::from(number > 0.0);
        (Self(thousandths.max(floor)), false)
    }

    /// In thousandths.
    pub const fn thousandths(self) -> u32 {
        self.0
    }

    /// Whether no traffic is to be sent.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

/// One address that offers a service, as the registry reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Identity inside the service (rule G10).
    pub address: Address,
    /// Share of traffic.
    pub weight: Weight,
    /// The registry's health flag: a hint (rule G6).
    pub healthy: bool,
    /// False: an administrator took it out.
    pub enabled: bool,
    /// True: it finishes what it has and takes nothing new.
    pub draining: bool,
    /// Set only where the registry really knows one (pod UID, Dubbo `timestamp`).
    pub incarnation: Option<Arc<str>>,
    /// The registry's own id of the registration; a change is an explicit re-registration.
    pub registration: Option<Arc<str>>,
    /// Cluster of the registry (Nacos) where it has one.
    pub cluster: Option<Arc<str>>,
    /// Zone, for locality.
    pub zone: Option<Arc<str>>,
    /// Its tier: a higher number is used when those of lower ones have too little capacity left.
    pub priority: u16,
    /// Free metadata.
    pub metadata: Arc<BTreeMap<String, String>>,
}

impl Endpoint {
    /// A healthy, enabled endpoint of weight 1 without metadata.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            weight: Weight::ONE,
            healthy: true,
            enabled: true,
            draining: false,
            incarnation: None,
            registration: None,
            cluster: None,
            zone: None,
            priority: 0,
            metadata: Arc::default(),
        }
    }
}

/// A whole set of endpoints of one service. Sources emit nothing smaller (rule G1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointSet {
    /// In the registry's order, one entry per address.
    pub endpoints: Arc<[Endpoint]>,
    /// True when the registry says itself that its health flags mean nothing at the moment
    /// (Nacos protection threshold): health is unknown for all.
    pub health_unknown: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_clamped_and_never_rounded_to_zero() {
        assert_eq!(Weight::from_number(1.0), (Weight::ONE, false));
        assert_eq!(Weight::from_number(0.0), (Weight::ZERO, false));
        assert_eq!(Weight::from_number(-3.0), (Weight::ZERO, true));
        assert_eq!(Weight::from_number(f64::NAN), (Weight::ZERO, true));
        assert_eq!(Weight::from_number(f64::INFINITY), (Weight::MAX, true));
        assert_eq!(Weight::from_number(0.0001).0.thousandths(), 1);
    }
}
