//! Integration tests.

#[cfg(test)]
mod cases;
mod demo;
#[cfg(test)]
mod discovery;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod registry;
