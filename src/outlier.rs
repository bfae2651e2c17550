//! Outlier ejection: which instances of an upstream are taken out on evidence, when they are probed
//! and when they return. `docs/architecture.md` has the life of an endpoint; the semantics are
//! pure: `detector` decides, only `driver` has tokio.
//! Next: `outlier/policy.rs`, then `outlier/detector.rs`.

pub mod classify;
pub mod policy;
