//! Simulation tests.

mod detector;
#[cfg(test)]
mod polling;
#[cfg(test)]
mod registration;
