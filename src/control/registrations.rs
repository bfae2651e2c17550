//! What control tells of the app's registrations, and the order to end them.

use std::collections::BTreeMap;

use tokio::sync::{oneshot, watch};

use super::plane::Plane;
use crate::registration::machine::Standing;
use crate::registration::{Left, Shown};
use crate::status::{AppStatus, Heartbeats, RegistrationStatus};

impl Plane {
    /// Becomes `Some` when a registration with `fail_fast` fails.
    pub fn fatal(&self) -> watch::Receiver<Option<String>> {
        self.registrations.fatal()
    }

    /// Takes the app off all lists and answers when that is done.
    pub(super) fn deregister(&mut self, reply: oneshot::Sender<Left>) {
        let leaving = self.registrations.leave();
        tokio::spawn(async move {
            let _gone = reply.send(leaving.await);
        });
    }

    pub(super) fn registration_status(&self) -> Vec<RegistrationStatus> {
        let now = self.clock.now();
        let status = |shown: Shown| {
            let view = shown.view;
            let age = view.last_success.map(|at| now.since(at).as_secs_f64());
            RegistrationStatus {
                registry: shown.registry.to_string(),
                kind: shown.kind.to_owned(),
                service: shown.service.to_string(),
                address: shown.address.to_string(),
                state: view.told.as_str().to_owned(),
                up: view.up,
                age_s: age,
                heartbeat_interval_s: view.interval.map(|interval| interval.as_secs_f64()),
                heartbeats: view.beats,
                failed_heartbeats: view.failed_beats,
                last_error: view.error.as_deref().map(str::to_owned),
            }
        };
        self.registrations.shown().into_iter().map(status).collect()
    }

    pub(super) fn app_status(&self) -> AppStatus {
        let Some((standing, checks)) = self.registrations.app() else {
            return AppStatus::default();
        };
        let state = match standing {
            Standing::Up => "up",
            Standing::Down => "down",
            Standing::Starting => "starting",
        };
        AppStatus {
            state: state.to_owned(),
            checks: checks.iter().map(ToString::to_string).collect(),
        }
    }

    pub(super) fn heartbeats(&self) -> BTreeMap<String, Heartbeats> {
        let counts = self.registrations.heartbeats().into_iter();
        let count = |(name, (ok, failed)): (std::sync::Arc<str>, (u64, u64))| {
            (name.to_string(), Heartbeats { ok, failed })
        };
        counts.map(count).collect()
    }
}
