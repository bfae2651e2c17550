//! Integration tests.

#[cfg(test)]
mod admin;
#[cfg(test)]
mod balancing;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod checks;
#[cfg(test)]
mod config_cli;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod discovery;
#[cfg(test)]
mod ejection;
mod fallback;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod hedge;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod prometheus;
#[cfg(test)]
mod registration;
#[cfg(test)]
mod registries;
#[cfg(test)]
mod registry;
#[cfg(test)]
mod reload;
#[cfg(test)]
mod resilience;
#[cfg(test)]
mod retries;
#[cfg(test)]
mod routes;
#[cfg(test)]
mod state;
