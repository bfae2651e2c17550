//! Conformance tests.

mod config_golden;
mod ejection;
mod metrics_doc;
