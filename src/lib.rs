//! Outrigger: a local L7 sidecar proxy that finds the instances of a service in a registry, balances
//! over them, ejects the outliers and says why. `docs/architecture.md` tells how the parts fit.

pub mod access_log;
pub mod admin;
pub mod app;
pub mod balancer;
pub mod cli;
pub mod clock;
pub mod config;
pub mod control;
pub mod demo;
pub mod discovery;
pub mod drain;
pub mod endpoint;
pub mod error;
pub mod health;
pub mod http_client;
pub mod journal;
pub mod listener;
pub mod log;
pub mod metrics;
pub mod nacos_client;
pub mod outlier;
pub mod policy;
pub mod protocol;
pub mod registration;
pub mod registry;
pub mod router;
pub mod signal;
pub mod sink;
pub mod state_file;
pub mod status;
pub mod timer;
pub mod upstream;
pub mod version;
pub mod whole_file;
pub mod worker;
mod write_through;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
