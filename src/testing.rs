//! Fakes and builders for tests, ours and those under tests/ (feature `testing`).

pub mod control;
pub mod status;
