//! Simulation tests.

mod detector;
#[cfg(test)]
mod polling;
mod registration;
