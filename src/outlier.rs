//! Outlier ejection: which instances of an upstream are taken out on evidence, when they are probed
//! and when they return. `docs/architecture.md` has the life of an endpoint; the semantics are
//! pure: `detector` decides, only `driver` has tokio.
//! Next: `outlier/policy.rs`, then `outlier/detector.rs`.

pub mod book;
pub mod cap;
pub mod classify;
pub mod detector;
pub mod driver;
pub mod lanes;
pub mod policy;
pub mod replay;

pub mod schedule;
pub mod times;
pub mod window;

pub use classify::{ErrorKind, OutcomeClass};
pub use detector::{Detector, Effect, Input, LeaseId, RoutableEndpoint, UpstreamFacts};
pub use schedule::Jitter;
