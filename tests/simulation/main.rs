//! Simulation tests.

#[cfg(test)]
mod breaker;
#[cfg(test)]
mod bulkhead;
mod detector;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod polling;
#[cfg(test)]
mod registration;
#[cfg(test)]
mod routes;
