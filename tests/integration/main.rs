//! Integration tests.

#[cfg(test)]
mod discovery;
#[cfg(test)]
mod registry;
