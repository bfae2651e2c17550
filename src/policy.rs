//! What happens to a request between its route and its answer: attempts, their limits, retries.
//! The order lives in `policy/stack.rs` alone.

pub mod admission;
pub mod attempt;
pub mod breaker;
pub mod budget;
pub mod bulkhead;
pub mod fallback;
mod follow_up;
pub mod hedge;
pub mod limits;
pub mod outcome;
mod pick;
pub mod quantile;
pub mod retry;
pub mod stack;
mod verdict;
mod watch;
mod wire_error;
