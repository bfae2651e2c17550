//! The process's own log, and its filter, which may be changed while it runs.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::clock::wall_now;
use crate::config::types::{Config, LogFormat};

/// Changes the filter; clones are the same one.
#[derive(Clone, Debug)]
pub struct LogControl(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// `None` where another log of this process was set before.
    handle: Option<reload::Handle<Targets, Registry>>,
    // Held while the filter is swapped, so that both stay in step.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    level: Level,
    over: Option<Override>,
    /// Of the latest override: an earlier one's end must not end it.
    number: u64,
}

/// A filter that holds instead of the configured level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// As it was given.
    pub filter: String,
    /// Unix time of its end; `None`: until the restart.
    pub until_unix_s: Option<u64>,
}

/// Why a filter is none.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no log filter")]
pub struct BadFilter(String);

impl LogControl {
    /// Of a process whose log is not ours.
    pub fn detached() -> Self {
        Self::new(None, Level::INFO)
    }

    fn new(handle: Option<reload::Handle<Targets, Registry>>, level: Level) -> Self {
        let state = State {
            level,
            over: None,
            number: 0,
        };
        Self(Arc::new(Inner {
            handle,
            state: Mutex::new(state),
        }))
    }

    /// The configured level and what holds instead of it.
    pub fn current(&self) -> (Level, Option<Override>) {
        let state = self.lock();
        (state.level, state.over.clone())
    }

    /// The configured level changed.
    pub fn configure(&self, level: Level) {
        let mut state = self.lock();
        state.level = level;
        if state.over.is_none() {
            self.swap(Targets::new().with_default(level));
        }
    }

    /// A filter such as `debug` or `outrigger::control=trace,warn` holds from now on; what it does not
    /// name keeps the configured level. Returns its number for [`Self::end`].
    ///
    /// # Errors
    /// [`BadFilter`].
    pub fn set(&self, filter: &str, time: Option<Duration>) -> Result<u64, BadFilter> {
        let bad = || BadFilter(filter.to_owned());
        let mut targets: Targets = filter.trim().parse().map_err(|_| bad())?;
        if filter.trim().is_empty() {
            return Err(bad());
        }
        // A lone word is a target to the parser: a level that is misspelt would silence everything.
        let lone = !filter.contains(['=', ',', ':']);
        if lone && filter.trim().parse::<LevelFilter>().is_err() {
            return Err(bad());
        }
        let mut state = self.lock();
        if targets.default_level().is_none() {
            targets = targets.with_default(state.level);
        }
        let until = time.map(|time| unix_s() + time.as_secs());
        state.over = Some(Override {
            filter: filter.trim().to_owned(),
            until_unix_s: until,
        });
        state.number += 1;
        self.swap(targets);
        Ok(state.number)
    }

    /// The override of this number is over.
    pub fn end(&self, number: u64) -> bool {
        let mut state = self.lock();
        let over = state.number == number && state.over.take().is_some();
        if over {
            self.swap(Targets::new().with_default(state.level));
        }
        over
    }

    fn swap(&self, targets: Targets) {
        if let Some(handle) = &self.0.handle {
            // Only where the log is gone.
            let _gone = handle.reload(targets);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process's own log, on standard error.
pub fn init_log(config: &Config) -> LogControl {
    let text = match config.log.format {
        Some(LogFormat::Text) => true,
        Some(LogFormat::Json) => false,
        None => std::io::stderr().is_terminal(),
    };
    let level = config.log.level;
    let (filter, handle) = reload::Layer::new(Targets::new().with_default(level));
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = if text {
        let colours = std::env::var_os("NO_COLOR").is_none();
        lines.with_ansi(colours).boxed()
    } else {
        lines.json().flatten_event(true).boxed()
    };
    let set = Registry::default().with(filter).with(lines).try_init();
    // In a test process another one may have been set before; then that one holds.
    LogControl::new(set.is_ok().then_some(handle), level)
}

fn unix_s() -> u64 {
    let since = wall_now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_holds_until_its_own_end() {
        let log = LogControl::detached();
        let first = log.set("debug", None).unwrap();
        let second = log.set("outrigger::control=trace", Some(Duration::from_secs(60)));
        let second = second.unwrap();
        assert!(!log.end(first), "the later one holds");
        log.configure(Level::WARN);
        let (level, over) = log.current();
        assert_eq!(level, Level::WARN);
        assert_eq!(over.unwrap().filter, "outrigger::control=trace");
        assert!(log.end(second));
        assert_eq!(log.current().1, None);
        for bad in ["", "  ", "debgu", "a=loud"] {
            assert!(log.set(bad, None).is_err(), "{bad}");
        }
    }
}
