//! Conformance tests.

mod config_golden;
mod docs_words;
mod docs_yaml;
mod ejection;
mod layering;
mod metrics_doc;
mod schema;
