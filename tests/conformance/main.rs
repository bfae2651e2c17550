//! Conformance tests.

mod ejection;
