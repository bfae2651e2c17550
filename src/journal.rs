//! The event journal: what was decided and why, one JSON object per event. The same object goes to
//! the sinks, to the ring the admin API reads and to those who follow. Names are stable.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::clock;
use crate::config::types::{Events, Sink};
use crate::sink::Lines;

/// Version of the event format.
const VERSION: u8 = 1;

/// What events are called. The conformance tests hold it up to what is emitted.
pub const EVENTS: [&str; 37] = [
    "listening",
    "stopped",
    "drain_started",
    "drain_finished",
    "config_reloaded",
    "config_rejected",
    "registry_lost",
    "registry_restored",
    "registry_empty_ignored",
    "instance_ejected",
    "would_eject",
    "ejection_suppressed",
    "would_suppress",
    "probe_failed",
    "instance_restored",
    "would_restore",
    "instance_left",
    "instance_unhealthy",
    "instance_healthy",
    "correlated_failure",
    "breaker_opened",
    "breaker_half_open",
    "breaker_closed",
    "would_open",
    "would_close",
    "override_set",
    "override_expired",
    "override_cleared",
    "registered",
    "deregistered",
    "heartbeat_failed",
    "app_up",
    "app_down",
    "ejection_recalled",
    "log_level_changed",
    "state_loaded",
    "state_rejected",
];

/// The journal; clones are the same one.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    lines: Lines,
    state: Mutex<State>,
    latest: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    sinks: Vec<Sink>,
    ring_size: usize,
    next: u64,
    ring: VecDeque<Arc<Entry>>,
}

/// One event.
#[derive(Debug)]
pub struct Entry {
    /// Grows by one with each event.
    pub id: u64,
    /// Its name.
    pub event: &'static str,
    /// The whole object: ts, v, event, id, then the event's own fields, `msg` last.
    pub object: Map<String, Value>,
}

impl Entry {
    /// The upstream it is about.
    pub fn upstream(&self) -> Option<&str> {
        self.object.get("upstream").and_then(Value::as_str)
    }
}

impl Journal {
    /// An empty journal.
    pub fn new(lines: Lines, settings: &Events) -> Self {
        let state = State {
            sinks: settings.sinks.clone(),
            ring_size: settings.ring_size,
            next: 1,
            ring: VecDeque::new(),
        };
        let latest = watch::Sender::new(0);
        Self(Arc::new(Inner {
            lines,
            state: Mutex::new(state),
            latest,
        }))
    }

    /// New settings after a reload.
    pub fn configure(&self, settings: &Events) {
        let mut state = self.lock();
        state.sinks.clone_from(&settings.sinks);
        state.ring_size = settings.ring_size;
    }

    /// Lines that the sinks lost, those of the access log among them.
    pub fn dropped_lines(&self) -> u64 {
        self.0.lines.dropped()
    }

    /// Writes an event down. `fields` in their order; `msg` for people.
    pub fn emit(&self, event: &'static str, fields: Vec<(&'static str, Value)>, msg: String) {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        let mut object = Map::new();
        let ts = humantime::format_rfc3339_millis(clock::wall_now()).to_string();
        object.insert("ts".into(), ts.into());
        object.insert("v".into(), VERSION.into());
        object.insert("event".into(), event.into());
        object.insert("id".into(), format!("{id:06x}").into());
        for (key, value) in fields {
            if !value.is_null() {
                object.insert(key.into(), value);
            }
        }
        object.insert("msg".into(), msg.into());
        if let Ok(mut line) = serde_json::to_vec(&object) {
            line.push(b'\n');
            for sink in &state.sinks {
                self.0.lines.write(sink, line.clone());
            }
        }
        state.ring.push_back(Arc::new(Entry { id, event, object }));
        while state.ring.len() > state.ring_size {
            state.ring.pop_front();
        }
        drop(state);
        self.0.latest.send_replace(id);
    }

    /// Events after `id`, oldest first.
    pub fn after(&self, id: u64) -> Vec<Arc<Entry>> {
        self.lock()
            .ring
            .iter()
            .filter(|entry| entry.id > id)
            .cloned()
            .collect()
    }

    /// Follows the id of the latest event.
    pub fn follow(&self) -> watch::Receiver<u64> {
        self.0.latest.subscribe()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_bounded_and_msg_comes_last() {
        let settings = Events {
            sinks: Vec::new(),
            ring_size: 3,
        };
        let journal = Journal::new(Lines::start().unwrap(), &settings);
        for n in 0..5 {
            journal.emit(
                "listening",
                vec![("n", n.into()), ("none", Value::Null)],
                "text".into(),
            );
        }
        let ids: Vec<u64> = journal.after(0).iter().map(|e| e.id).collect();
        assert_eq!(ids, [3, 4, 5]);
        assert_eq!(*journal.follow().borrow(), 5);
        let last = journal.after(4);
        let keys: Vec<&str> = last[0].object.keys().map(String::as_str).collect();
        assert_eq!(keys, ["ts", "v", "event", "id", "n", "msg"]);
    }
}
