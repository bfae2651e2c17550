//! The semantics of outlier ejection: the worked examples by number, golden traces, corners.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests may fail like tests"
)]

mod corners;
mod examples_cap;
mod examples_probe;
mod examples_routes;
mod examples_slow;
mod examples_streak;
mod examples_window;
mod golden;
mod properties;
mod restart;
mod world;
