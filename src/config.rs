//! Configuration: YAML in, runtime types out, every problem with its place. `load` reads the files;
//! all else is pure. One way: `document` (a YAML tree with spans), `substitute`, `parse`, `types`.
//! Next: `config/load.rs`, `config/document.rs`, `config/parse.rs`, `config/types.rs`.

pub mod changes;
pub mod codes;
mod cross;
mod describe;
pub mod diagnostic;
pub mod digest;
pub mod dns_name;
pub mod document;
pub mod effective;
pub mod endpoints;
pub mod environment;
pub mod load;
mod parse;
pub mod passthrough;
mod policy_files;
pub mod policy_select;
pub mod policy_set;
pub mod restart;
pub mod schema;
pub mod settings;
pub mod settle;
pub mod substitute;
pub mod suggest;
pub mod types;

pub use changes::changes;
pub use cross::host_alias;
pub use load::{LoadRequest, Loaded, load, parse_str, policy_paths, read_digests};
pub use restart::restart_required;

/// A duration above zero, written as in the files: `250ms`, `10m`, `1h30m`; at most `24h`.
///
/// # Errors
/// What is wrong, and what would be right.
pub fn duration(text: &str) -> Result<std::time::Duration, (String, String)> {
    parse::value::duration(text, parse::value::Span::POSITIVE)
}
