//! Integration tests.

#[cfg(test)]
mod demo;
#[cfg(test)]
mod discovery;
#[cfg(test)]
mod registry;
