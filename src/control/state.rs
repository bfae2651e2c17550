//! Keeps the state file: reads it at the start, hands each upstream what is its own, writes after
//! changes, at most about once a second, and at the end. The detector decides what still holds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::{Mutex, Notify, mpsc, oneshot};

use super::plane::Plane;
use crate::clock::{Timestamp, wall_now};
use crate::config::types::{Config, PolicySet};
use crate::journal::Journal;
use crate::outlier::driver::{Command, Recalled};
use crate::outlier::policy::Mode;
use crate::state_file::format::{Kept, KeptUpstream, WallMs};
use crate::state_file::{self, Found};

/// Between two writes.
const PAUSE: Duration = Duration::from_secs(1);
/// A driver that does not answer within it is written as it was before, or not at all.
const PATIENCE: Duration = Duration::from_secs(1);
/// State of an upstream that nobody asks for is kept so long after the start.
const LAPSE: Duration = Duration::from_secs(3600);
/// Name of the policy that stands in no file.
const BUILTIN: &str = "builtin";

/// The keeper; without a state file it remembers nothing.
#[derive(Debug)]
pub(super) struct StateKeeper {
    path: Option<PathBuf>,
    /// Drivers say that something changed.
    pub(super) touched: Arc<Notify>,
    /// Of the earlier process, until its upstream lives.
    unclaimed: BTreeMap<String, KeptUpstream>,
    since: Timestamp,
    /// One write at a time; whether the last one failed.
    failed: Arc<Mutex<bool>>,
}

/// A write is due; answered when it is done.
pub(super) type Due = oneshot::Sender<()>;

impl StateKeeper {
    /// Reads the file, if there is one, and tells what it holds.
    pub(super) fn open(config: &Config, journal: &Journal, now: Timestamp) -> Self {
        let path = config.state_file.clone();
        let unclaimed = path
            .as_ref()
            .map_or_else(BTreeMap::new, |path| load(path, journal));
        Self {
            path,
            touched: Arc::new(Notify::new()),
            unclaimed,
            since: now,
            failed: Arc::default(),
        }
    }

    /// Begins to tell `due` when something is to be written.
    pub(super) fn follow(&self, due: mpsc::Sender<Due>) {
        if self.path.is_none() {
            return;
        }
        let touched = Arc::clone(&self.touched);
        // Ends with the plane, who alone listens.
        drop(tokio::spawn(async move {
            loop {
                touched.notified().await;
                let (done, wait) = oneshot::channel();
                if due.send(done).await.is_err() {
                    return;
                }
                let _written = wait.await;
                tokio::time::sleep(PAUSE).await;
            }
        }));
    }

    /// What an upstream that begins to live takes over. Nothing when the policy that held it is
    /// gone: the next one starts clean.
    pub(super) fn claim(&mut self, name: &str, policies: &PolicySet) -> Recalled {
        let Some(kept) = self.unclaimed.remove(name) else {
            return Recalled::default();
        };
        let lives = kept.policy == BUILTIN
            || policies
                .entries
                .iter()
                .any(|e| *e.policy.name == *kept.policy && e.policy.mode != Mode::Disabled);
        let now = WallMs::from(wall_now());
        let (instances, lanes) = match lives {
            true => (kept.recall(now), kept.recall_lanes(now)),
            false => Default::default(),
        };
        let breakers = kept.breakers.into_iter();
        let breakers = breakers.map(|one| (one.route, one.trials_unix_ms.since(now)));
        Recalled {
            instances,
            lanes,
            breakers: breakers.collect(),
        }
    }
}

fn load(path: &std::path::Path, journal: &Journal) -> BTreeMap<String, KeptUpstream> {
    let file = path.display().to_string();
    match state_file::read(path, wall_now()) {
        Found::Nothing => BTreeMap::new(),
        Found::NoFolder(folder) => {
            let why = format!("the folder {} does not exist", folder.display());
            tracing::warn!(%file, %why, "the state file cannot be written; create the folder");
            journal.emit(
                "state_rejected",
                vec![("file", json!(file)), ("why", json!(why))],
                format!("state file {file} cannot be written: {why}; a restart forgets ejections"),
            );
            BTreeMap::new()
        }
        Found::State(kept) => {
            let upstreams = kept.upstreams.len();
            tracing::info!(%file, upstreams, "state of an earlier process");
            let age = WallMs::from(wall_now()).since(kept.written_unix_ms);
            journal.emit(
                "state_loaded",
                vec![
                    ("file", json!(file)),
                    ("upstreams", json!(upstreams)),
                    ("age_s", json!(age.as_secs())),
                ],
                format!("{file} holds the state of {upstreams} upstreams"),
            );
            kept.upstreams
        }
        Found::SetAside { why, kept_at } => {
            let aside = kept_at.map(|path| path.display().to_string());
            let fate = match &aside {
                Some(aside) => format!("it is kept as {aside}"),
                None => "it cannot be renamed and will be overwritten".to_owned(),
            };
            tracing::warn!(%file, %why, %fate, "state file not used; ejections start clean");
            journal.emit(
                "state_rejected",
                vec![
                    ("file", json!(file)),
                    ("why", json!(why)),
                    ("kept_at", json!(aside)),
                ],
                format!("state file {file} is not used: {why}; {fate}; ejections start clean"),
            );
            BTreeMap::new()
        }
    }
}

impl Plane {
    /// Asks all drivers and writes, beside the loop.
    pub(super) fn save_state(&mut self, done: Due) {
        let save = self.saving();
        drop(tokio::spawn(async move {
            save.await;
            // A keeper that is gone waits for nobody.
            let _gone = done.send(());
        }));
    }

    /// The write of this moment's state; nothing without a state file.
    pub(super) fn saving(&mut self) -> impl Future<Output = ()> + Send + use<> {
        let now = self.clock.now();
        let keeper = &mut self.state;
        if now.since(keeper.since) > LAPSE {
            keeper.unclaimed.clear();
        }
        let (path, failed) = (keeper.path.clone(), Arc::clone(&keeper.failed));
        let mut all = keeper.unclaimed.clone();
        let mut asked = Vec::new();
        if path.is_some() {
            for (name, live) in &self.upstreams {
                let (reply, answer) = oneshot::channel();
                let _gone = live.commands.send(Command::Remember(reply));
                asked.push((name.to_string(), answer));
            }
        }
        async move {
            let Some(path) = path else { return };
            let mut failed = failed.lock().await;
            for (name, answer) in asked {
                if let Ok(Ok(kept)) = tokio::time::timeout(PATIENCE, answer).await
                    && !kept.is_empty()
                {
                    all.insert(name, kept);
                }
            }
            let kept = Kept::new(WallMs::from(wall_now()), all);
            let file = path.display().to_string();
            let write = tokio::task::spawn_blocking(move || state_file::write(&path, &kept));
            match write.await {
                Ok(Ok(())) => *failed = false,
                Ok(Err(error)) if !*failed => {
                    *failed = true;
                    tracing::error!(
                        %file,
                        %error,
                        "the state file cannot be written; a restart forgets ejections since"
                    );
                }
                // Told before; or the runtime ends.
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }
}
