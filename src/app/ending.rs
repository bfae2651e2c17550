//! The end of the process: off the lists of the registries, propagation delay while still serving, then no new connections, then the
//! grace for what is in flight. A drain alone stays there, for questions, until it is told to end.

use serde_json::json;
use tokio::sync::{mpsc, watch};

use crate::config::types::Config;
use crate::control::ControlHandle;
use crate::drain::{Asked, Lifecycle, Stage, Stop};
use crate::journal::Journal;
use crate::worker::{DrainPhase, Shared};

/// What the end takes place with.
pub(super) struct Ending<'a> {
    pub(super) lifecycle: &'a Lifecycle,
    pub(super) journal: &'a Journal,
    pub(super) drain: &'a watch::Sender<DrainPhase>,
    pub(super) shared: &'a Shared,
    /// Takes the app off its registries' lists.
    pub(super) control: ControlHandle,
    /// The settings in force when it begins.
    pub(super) config: watch::Receiver<std::sync::Arc<Config>>,
}

/// How it is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// At once.
    Now,
    /// In order; `told`: the end of the drain has its event already.
    InOrder { told: bool },
}

impl Ending<'_> {
    /// Waits for a wish and carries it out, up to the cut.
    pub(super) async fn come(&self, all_gone: &mut mpsc::Receiver<()>) -> End {
        let mut wishes = self.lifecycle.wishes();
        let at_once = |wish: &Stop| *wish == Stop::Now;
        let Ok(first) = wishes.wait_for(|s| *s != Stop::No).await.map(|wish| *wish) else {
            return End::Now;
        };
        if first == Stop::Now {
            return End::Now;
        }
        let config = self.config.borrow().clone();
        let grace = config.app.drain_timeout;
        let asked = self.lifecycle.asked();
        let actor = asked.as_ref().map(|asked| asked.actor.as_str());
        let note = asked.as_ref().and_then(|asked| asked.note.as_deref());
        self.journal.emit(
            "drain_started",
            vec![
                ("drain_timeout_s", json!(grace.as_secs_f64())),
                ("actor", json!(actor)),
                ("note", json!(note)),
            ],
            "draining: no new work soon, what is in flight is finished".to_owned(),
        );
        tokio::select! {
            _now = wishes.wait_for(at_once) => return End::Now,
            () = self.drain_workers(&config, all_gone) => {}
        }
        self.lifecycle.reached(Stage::Drained);
        let told = *self.lifecycle.wishes().borrow() == Stop::Drain;
        if told {
            let left = open_connections(self.shared);
            self.journal.emit(
                "drain_finished",
                vec![("open_connections", json!(left))],
                "drained; the process stays until `outrigger quit` or a signal".to_owned(),
            );
        }
        let mut wishes = self.lifecycle.wishes();
        let ends = wishes.wait_for(|s| *s >= Stop::Quit).await;
        match ends.map(|wish| *wish) {
            Ok(Stop::No | Stop::Drain | Stop::Quit) => End::InOrder { told },
            Ok(Stop::Now) | Err(_) => End::Now,
        }
    }

    /// Propagation delay while serving, then the drain, up to its grace.
    async fn drain_workers(&self, config: &Config, all_gone: &mut mpsc::Receiver<()>) {
        self.lifecycle.reached(Stage::Leaving);
        // Without a registration nobody else routes to us: nothing to wait for.
        let left = self.control.deregister().await.unwrap_or_default();
        let delay = config.app.propagation_delay.unwrap_or(left.wait);
        tokio::time::sleep(delay).await;
        self.lifecycle.reached(Stage::Draining);
        self.drain.send_replace(DrainPhase::Draining);
        let _grace_over = tokio::time::timeout(config.app.drain_timeout, all_gone.recv()).await;
    }
}

pub(super) fn open_connections(shared: &Shared) -> u64 {
    use std::sync::atomic::Ordering::Relaxed;
    shared
        .cells
        .iter()
        .map(|c| c.app_connections.load(Relaxed))
        .sum()
}

/// Ends the process at once when a registration with `fail_fast` fails. What is returned holds why.
pub(super) fn end_when_fatal(
    mut fatal: watch::Receiver<Option<String>>,
    lifecycle: Lifecycle,
) -> watch::Receiver<Option<String>> {
    let problem = fatal.clone();
    tokio::spawn(async move {
        if fatal.wait_for(Option::is_some).await.is_ok() {
            let by = Asked {
                actor: "registration".to_owned(),
                note: None,
            };
            lifecycle.ask(Stop::Now, by);
        }
    });
    problem
}
