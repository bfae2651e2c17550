//! From a document to runtime types. One reader per part of the file; every reader returns a value
//! whatever it finds, and reports into the shared [`reader::Context`]. Defaults stand beside the keys.
//! Next: `parse/reader.rs`, then `parse/main_file.rs`.

pub(crate) mod address;
pub(crate) mod app;
mod balancing;
pub(crate) mod code_set;
pub(crate) mod endpoint;
pub(crate) mod fallback;
pub(crate) mod health;
pub(crate) mod hedge;
pub(crate) mod limits;
pub(crate) mod main_file;
pub(crate) mod policy;
pub(crate) mod reader;
pub(crate) mod record;
pub(crate) mod register;
pub(crate) mod registry;
pub(crate) mod resilience;
pub(crate) mod retry;
mod route;
pub(crate) mod service;
pub(crate) mod telemetry;
pub(crate) mod value;
