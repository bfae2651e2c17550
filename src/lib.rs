//! Outrigger: a local L7 sidecar proxy that finds the instances of a service in a registry, balances
//! over them, ejects the outliers and says why. `docs/architecture.md` tells how the parts fit.

pub mod clock;
pub mod config;
pub mod discovery;
pub mod endpoint;
pub mod http_client;
pub mod outlier;
pub mod registry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
