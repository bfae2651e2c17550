//! Active health checks: pure are the counter of good and bad ones in a row, the schedule and what an
//! answer must be; the checks themselves are I/O. The loop is the upstream's driver
//! (`outlier/driver/checks.rs`). Separate from ejection: an instance is selectable only when both agree.
//! Next: `health/counter.rs`, `health/schedule.rs`, `health/checker.rs`.

pub mod checker;
pub mod counter;
pub mod exec;
pub mod expect;
pub mod grpc;
mod http;
pub mod schedule;
