//! Active health checks: a pure counter of good and bad ones in a row, the checks themselves, and
//! the loop per instance. Separate from ejection: an instance is selectable only when both agree.
//! Next: `health/counter.rs`, `health/checker.rs`.

pub mod checker;
pub mod counter;
