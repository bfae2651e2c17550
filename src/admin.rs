//! Stub until merge.
#![allow(missing_docs, reason = "stub")]
use std::sync::Arc;
#[derive(Debug)]
pub struct Start {
    pub admin: crate::listener::bind::Bound,
    pub telemetry: crate::listener::bind::Bound,
    pub config: Arc<crate::config::types::Config>,
    pub control: crate::control::ControlHandle,
    pub journal: crate::journal::Journal,
    pub workers: Arc<[crate::metrics::cells::WorkerCells]>,
    pub lines: crate::sink::Lines,
    pub shutdown: tokio::sync::watch::Receiver<bool>,
}
#[derive(Debug)]
pub struct Handle;
pub fn spawn(start: Start) -> anyhow::Result<(Handle, Start)> {
    Ok((Handle, start))
}
