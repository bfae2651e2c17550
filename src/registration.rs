//! The local app's registrations (`app.register`): one loop towards a desired state for each (G11),
//! beats only while the app passes its check, the ordered way out (G12).
//!
//! Next: `registration/machine.rs` (what is done when; pure), `registration/registrar.rs` (what a
//! registry is to it), then one file per registry.

pub mod machine;
mod registrar;
pub mod rhythm;

pub use registrar::{Call, Record, Registrar};
