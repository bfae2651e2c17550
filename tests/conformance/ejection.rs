//! The semantics of outlier ejection: the worked examples by number, golden traces, corners.

mod corners;
mod examples_cap;
mod examples_probe;
mod examples_streak;
mod examples_window;
mod golden;
mod world;
