//! The app and its registrations, as values.

use serde::{Deserialize, Serialize};

/// The local app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppStatus {
    /// `up`, `down`, `starting` (not checked yet) or `unchecked` (no check is configured).
    pub state: String,
    /// What each check said last.
    pub checks: Vec<String>,
}

impl Default for AppStatus {
    fn default() -> Self {
        Self {
            state: "unchecked".to_owned(),
            checks: Vec::new(),
        }
    }
}

impl AppStatus {
    /// Whether it takes traffic, as far as is known.
    pub fn is_up(&self) -> bool {
        matches!(&*self.state, "up" | "unchecked")
    }
}

/// One registration of the app.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegistrationStatus {
    /// With which registry.
    pub registry: String,
    /// The kind of that registry.
    pub kind: String,
    /// Under this name.
    pub service: String,
    /// At this address.
    pub address: String,
    /// What the registry was told last: `up`, `down`, `starting`, or `absent` where it was told
    /// nothing, forgot, or nobody knows.
    pub state: String,
    /// It is listed as up, and the registry took the last heartbeat.
    pub up: bool,
    /// Seconds since the registry last took a call.
    pub age_s: Option<f64>,
    /// Between two heartbeats; none where the registry needs none.
    pub heartbeat_interval_s: Option<f64>,
    /// Heartbeats that were taken.
    pub heartbeats: u64,
    /// Heartbeats that were not.
    pub failed_heartbeats: u64,
    /// Of the last call, when it was not taken.
    pub last_error: Option<String>,
}

/// Heartbeats to one registry since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeats {
    /// Taken.
    pub ok: u64,
    /// Not taken.
    pub failed: u64,
}
