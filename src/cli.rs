//! The commands of the binary, one file each.

pub mod check;
pub mod demo;
pub mod run;
