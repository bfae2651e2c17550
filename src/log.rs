//! The process's own log.

use std::io::IsTerminal;

use crate::config::types::{Config, LogFormat};

/// The process's own log, on standard error.
pub fn init_log(config: &Config) {
    let text = match config.log.format {
        Some(LogFormat::Text) => true,
        Some(LogFormat::Json) => false,
        None => std::io::stderr().is_terminal(),
    };
    let builder = tracing_subscriber::fmt()
        .with_max_level(config.log.level)
        .with_writer(std::io::stderr);
    // In a test process another one may have been set before; then that one holds.
    let _set_before = if text {
        builder
            .with_ansi(std::env::var_os("NO_COLOR").is_none())
            .try_init()
    } else {
        builder.json().flatten_event(true).try_init()
    };
}
