//! Conformance tests.

mod config_golden;
mod ejection;
