//! Configuration: YAML in, runtime types out, every problem with its place.
//! Next: `config/document.rs` (a YAML tree with spans), `config/parse`, `config/types.rs`.

pub mod types;
