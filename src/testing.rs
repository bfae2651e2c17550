//! Fakes with behaviour and builders, for our own tests: in-crate ones, and those under `tests/` by
//! the feature `testing`. Nothing of the proxy uses them.

pub mod control;
pub mod nacos;
pub mod nacos_grpc;
pub mod status;
