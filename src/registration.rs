//! The local app's registrations (`app.register`): one loop towards a desired state for each (G11),
//! beats only while the app passes its check, the ordered way out (G12).
//!
//! Next: `registration/keeper.rs` (all of them), `registration/machine.rs` (what is done when; pure), `registration/registrar.rs` (what a
//! registry is to it), then one file per registry.

mod advertise;
mod app_check;
mod client;
mod consul;
mod driver;
mod embedded;
mod eureka;
mod hooks;
mod keeper;
pub mod machine;
mod nacos;
mod record;
mod registrar;
pub mod rhythm;
mod view;

#[cfg(test)]
mod tests;

pub use keeper::{Left, Registrations, Shown};
pub use record::Record;
pub use registrar::{Call, Registrar};
pub use view::{Told, View};
