//! Simulation tests.

mod detector;
