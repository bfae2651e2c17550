//! Conformance tests.

mod ejection;
mod config_golden;
