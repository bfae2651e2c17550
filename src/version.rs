//! What this binary is.

/// Package version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit it was built from, where the build was told.
pub const COMMIT: &str = match option_env!("OUTRIGGER_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};
