//! Conformance tests.

mod config_golden;
