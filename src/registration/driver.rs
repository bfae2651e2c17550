//! The task around one registration's machine: makes its calls, tells of them, sleeps until the next
//! one is due. It ends when nothing of the registration is left.
//! Next: `registration/machine.rs`, `registration/keeper.rs` (who starts it).

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::{self, JoinError, JoinSet};
use tracing::{debug, info, warn};

use super::app_check::AppHealth;
use super::hooks;
use super::machine::{Action, Change, Machine, Outcome, Standing, Wish};
use super::registrar::Registrar;
use super::view::{Told, View};
use crate::clock::{Clock, Timestamp};
use crate::config::types::Hook;
use crate::journal::Journal;

/// What a registration is called in events.
#[derive(Clone, Debug)]
pub(super) struct Label {
    pub(super) registry: Arc<str>,
    pub(super) service: Arc<str>,
    /// `host:port`.
    pub(super) address: Arc<str>,
}

/// What a driver starts with.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) label: Label,
    pub(super) registrar: Arc<dyn Registrar>,
    /// How the app stands.
    pub(super) health: watch::Receiver<AppHealth>,
    /// Becomes true when the registration is to end.
    pub(super) leave: watch::Receiver<bool>,
    /// The same instance with other metadata or another check, say.
    pub(super) changes: mpsc::UnboundedReceiver<Renewal>,
    pub(super) pre_register: Option<Hook>,
    pub(super) post_register: Option<Hook>,
    pub(super) view: watch::Sender<View>,
    pub(super) clock: Clock,
    pub(super) journal: Journal,
    pub(super) seed: u64,
}

/// The same instance with other settings; it stays listed meanwhile.
#[derive(Debug)]
pub(super) struct Renewal {
    /// What is to be told to the registry, where that is different.
    pub(super) registrar: Option<Arc<dyn Registrar>>,
    /// How the app stands, by a check that may be new.
    pub(super) health: watch::Receiver<AppHealth>,
    pub(super) pre_register: Option<Hook>,
    pub(super) post_register: Option<Hook>,
}

/// Runs until nothing of the registration is left.
pub(super) async fn run(start: Start) {
    let machine = Machine::new(start.registrar.rhythm(), start.clock.now());
    let driver = Driver {
        machine,
        rng: fastrand::Rng::with_seed(start.seed),
        calls: JoinSet::new(),
        under_way: HashMap::new(),
        previous: None,
        losses: start.registrar.losses(),
        prepared: start.pre_register.is_none(),
        start,
    };
    driver.run().await;
}

struct Driver {
    start: Start,
    machine: Machine,
    rng: fastrand::Rng,
    calls: JoinSet<Outcome>,
    under_way: HashMap<task::Id, Action>,
    losses: Option<watch::Receiver<u64>>,
    /// The one before a change, until the registry took something of the new one: what it registered
    /// may live as long as it.
    previous: Option<Arc<dyn Registrar>>,
    /// The hook before the first registration was run, and succeeded.
    prepared: bool,
}

impl Driver {
    async fn run(mut self) {
        self.wish();
        while !self.machine.is_over() {
            while let Some(action) = self.machine.begin(self.now(), &mut self.rng) {
                self.call(action);
            }
            self.show(None);
            let due = self.machine.due().unwrap_or(Timestamp::MAX);
            let due = self.start.clock.instant(due);
            tokio::select! {
                Some(ended) = self.calls.join_next_with_id(), if !self.calls.is_empty() => {
                    self.ended(ended);
                }
                changed = self.start.health.changed() => match changed {
                    Ok(()) => self.wish(),
                    Err(_) => return,
                },
                changed = self.start.leave.changed() => match changed {
                    Ok(()) => self.wish(),
                    // The process ends without an order: the lease does the rest (G13).
                    Err(_) => return,
                },
                Some(renewal) = self.start.changes.recv() => self.renew(renewal),
                () = lost(&mut self.losses) => {
                    let change = self.machine.lost(self.now(), &mut self.rng);
                    self.tell(change);
                }
                () = tokio::time::sleep_until(due) => {}
            }
        }
        self.start.view.send_modify(|view| view.over = true);
    }

    fn renew(&mut self, renewal: Renewal) {
        let Renewal {
            registrar,
            health,
            pre_register,
            post_register,
        } = renewal;
        self.start.health = health;
        self.start.pre_register = pre_register;
        self.start.post_register = post_register;
        if let Some(registrar) = registrar {
            self.losses = registrar.losses();
            let old = std::mem::replace(&mut self.start.registrar, registrar);
            self.previous.get_or_insert(old);
            self.machine.changed(self.now());
        }
        self.wish();
    }

    fn now(&self) -> Timestamp {
        self.start.clock.now()
    }

    fn wish(&mut self) {
        let wish = match *self.start.leave.borrow_and_update() {
            true => Wish::Gone,
            false => {
                let standing = self.start.health.borrow_and_update().standing;
                // A check that is new says nothing yet: what its predecessor said holds.
                if standing == Standing::Starting && self.machine.is_up() {
                    return;
                }
                Wish::Listed(standing)
            }
        };
        self.machine.wish(wish, self.now());
    }

    fn call(&mut self, action: Action) {
        let registrar = Arc::clone(&self.start.registrar);
        let registers = matches!(action, Action::Register(_)) && !self.prepared;
        let hook = self.start.pre_register.clone().filter(|_| registers);
        let call = self.calls.spawn(async move {
            if let Some(hook) = hook
                && let Err(error) = hooks::run(&hook).await
            {
                return Outcome::Failed(format!("hooks.pre_register: {error}"));
            }
            let call = match action {
                Action::Register(standing) => registrar.register(standing),
                Action::Beat(beat) => registrar.beat(beat),
                Action::Withdraw => registrar.withdraw(),
                Action::Deregister => registrar.deregister(),
                Action::Observe => registrar.observe(),
            };
            call.await
        });
        self.under_way.insert(call.id(), action);
    }

    fn ended(&mut self, ended: Result<(task::Id, Outcome), JoinError>) {
        let (id, outcome) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                warn!(%error, "a call to a registry broke off");
                (error.id(), Outcome::Failed("broke off".to_owned()))
            }
        };
        let Some(action) = self.under_way.remove(&id) else {
            return;
        };
        debug!(registry = %self.start.label.registry, ?action, ?outcome, "registration");
        if let (Action::Register(_), Outcome::Accepted(_)) = (action, &outcome) {
            self.prepared = true;
        }
        let told = matches!(
            action,
            Action::Register(_) | Action::Withdraw | Action::Deregister
        );
        if told && matches!(outcome, Outcome::Accepted(_)) {
            self.previous = None;
        }
        self.show(Some((action, &outcome)));
        let now = self.now();
        let change = self.machine.done(action, outcome, now, &mut self.rng);
        self.tell(change);
    }

    /// Brings the view up to date.
    fn show(&self, ended: Option<(Action, &Outcome)>) {
        let now = self.now();
        let machine = &self.machine;
        self.start.view.send_if_modified(|view| {
            let before = view.clone();
            if let Some((action, outcome)) = ended {
                view.count(action, outcome, now);
            }
            view.up = machine.is_up();
            view.told = machine.told().map_or(Told::Nothing, Told::from);
            view.interval = machine.interval();
            *view != before
        });
    }

    fn tell(&mut self, change: Option<Change>) {
        let Some(change) = change else { return };
        let Label {
            registry,
            service,
            address,
        } = self.start.label.clone();
        let mut fields = vec![
            ("registry", json!(&*registry)),
            ("service", json!(&*service)),
            ("address", json!(&*address)),
        ];
        let journal = self.start.journal.clone();
        match change {
            Change::Registered { again } => {
                fields.push(("again", json!(again)));
                let word = if again {
                    "registered again"
                } else {
                    "registered"
                };
                let msg = format!("{word} {service} at {address} with {registry}");
                journal.emit("registered", fields, msg);
                if let Some(hook) = self.start.post_register.take() {
                    tokio::spawn(async move {
                        if let Err(error) = hooks::run(&hook).await {
                            warn!(%service, %error, "hooks.post_register failed");
                        }
                    });
                }
            }
            Change::Deregistered => {
                let msg = format!("deregistered {service} at {address} from {registry}");
                journal.emit("deregistered", fields, msg);
            }
            Change::Failing { action, why } => {
                let call = match action {
                    Action::Register(_) => "register",
                    Action::Beat(_) => "beat",
                    Action::Withdraw => "withdraw",
                    Action::Deregister => "deregister",
                    Action::Observe => "observe",
                };
                fields.push(("call", json!(call)));
                fields.push(("error", json!(why)));
                let msg = format!("{registry} did not take the {call} of {service}: {why}");
                journal.emit("heartbeat_failed", fields, msg);
            }
            Change::Withdrawn => {
                info!(%registry, %service, %address, "the instance takes no traffic now");
            }
            Change::Forgotten => {
                warn!(%registry, %service, %address, "the registry does not know the instance any more");
            }
            Change::BeatsAgain => {
                info!(%registry, %service, %address, "the registry takes heartbeats again");
            }
        }
    }
}

/// When the registry loses what it was told; never where that cannot be.
async fn lost(losses: &mut Option<watch::Receiver<u64>>) {
    let changed = match losses {
        Some(losses) => losses.changed().await,
        None => std::future::pending().await,
    };
    if changed.is_err() {
        *losses = None;
    }
}

#[cfg(test)]
mod tests;
