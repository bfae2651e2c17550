//! Simulation tests.

mod detector;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod polling;
#[cfg(test)]
mod registration;
#[cfg(test)]
mod routes;
