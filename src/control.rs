//! The control plane's thread: discovery, one driver per upstream, health checks, the configuration.
//! Workers see its snapshots; admin asks it through a [`ControlHandle`].
//! Next: `control/plane.rs` (the loop), `control/sources.rs`, `control/lookup.rs`, `control/reload.rs`.

mod answer;
mod events;
mod lookup;
mod orders;
pub mod plane;
mod registrations;
pub mod reload;
mod sources;
mod state;
pub mod watch;

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

pub use self::orders::{BreakerWish, OrderReply, OverrideOrder};
use self::reload::Asker;
use crate::outlier::book::Signed;
use crate::registration::Left;
use crate::registry::overview::Overview;
use crate::status::{
    OverrideDone, OverrideRefused, ProcessStatus, ReloadReport, RouteExplanation, UpstreamStatus,
};

/// Questions and orders to control, from the admin thread.
#[derive(Debug)]
pub enum Question {
    /// The end of an override by its number.
    ClearOverride(u64, Signed, OrderReply),
    /// An order for a circuit breaker.
    Breaker(Box<BreakerWish>, OrderReply),
    /// An override of an instance.
    Order(Box<OverrideOrder>, OrderReply),
    /// Take the app off the lists of its registries, for good.
    Deregister(oneshot::Sender<Left>),
    /// The services that each registry lists.
    Names(oneshot::Sender<Vec<ListedNames>>),
    /// What the embedded registries hold, by name.
    Embedded(oneshot::Sender<Vec<(Arc<str>, Overview)>>),
    /// The process.
    Process(oneshot::Sender<ProcessStatus>),
    /// All upstreams, for metrics; or one by any of its names.
    Upstreams(Option<String>, oneshot::Sender<Vec<UpstreamStatus>>),
    /// Load the files again.
    Reload(Asker, oneshot::Sender<ReloadReport>),
    /// Which rule and upstream a request would find: an absolute or origin-form URL and headers.
    Route {
        /// The URL.
        url: String,
        /// Header lines.
        headers: Vec<(String, String)>,
        /// The answer.
        reply: oneshot::Sender<RouteExplanation>,
    },
}

/// A registry and its services, with their number of instances where that costs nothing to know;
/// or why it could not list them.
pub type ListedNames = (String, Result<Vec<(String, Option<usize>)>, String>);

/// Asks control. Cheap to clone; usable from any thread.
#[derive(Clone, Debug)]
pub struct ControlHandle {
    questions: mpsc::Sender<Question>,
}

/// Control does not answer: it is shutting down, or stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the control plane does not answer")]
pub struct NoAnswer;

impl ControlHandle {
    /// A handle and the questions' other end.
    pub fn channel() -> (Self, mpsc::Receiver<Question>) {
        let (questions, receiver) = mpsc::channel(64);
        (Self { questions }, receiver)
    }

    /// The process.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn process(&self) -> Result<ProcessStatus, NoAnswer> {
        self.ask(Question::Process).await
    }

    /// All upstreams.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn upstreams(&self) -> Result<Vec<UpstreamStatus>, NoAnswer> {
        self.ask(|reply| Question::Upstreams(None, reply)).await
    }

    /// One upstream by any of its names.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn upstream(&self, name: &str) -> Result<Option<UpstreamStatus>, NoAnswer> {
        let name = Some(name.to_owned());
        let found = self.ask(|reply| Question::Upstreams(name, reply)).await?;
        Ok(found.into_iter().next())
    }

    /// What the addressing rules make of a request.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn route(
        &self,
        url: String,
        headers: Vec<(String, String)>,
    ) -> Result<RouteExplanation, NoAnswer> {
        self.ask(|reply| Question::Route {
            url,
            headers,
            reply,
        })
        .await
    }

    /// Orders something for an instance; `None`: there is no such upstream.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn order(
        &self,
        order: OverrideOrder,
    ) -> Result<Option<Result<OverrideDone, OverrideRefused>>, NoAnswer> {
        self.ask(|reply| Question::Order(Box::new(order), reply))
            .await
    }

    /// Orders something for a circuit breaker; `None`: there is no such upstream.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn order_breaker(
        &self,
        wish: BreakerWish,
    ) -> Result<Option<Result<OverrideDone, OverrideRefused>>, NoAnswer> {
        self.ask(|reply| Question::Breaker(Box::new(wish), reply))
            .await
    }

    /// Ends an override by its number; `None`: none of that number is in force.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn clear_override(
        &self,
        id: u64,
        signed: Signed,
    ) -> Result<Option<Result<OverrideDone, OverrideRefused>>, NoAnswer> {
        self.ask(|reply| Question::ClearOverride(id, signed, reply))
            .await
    }

    /// Takes the app off the lists of its registries, for good; answers when that is done.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn deregister(&self) -> Result<Left, NoAnswer> {
        self.ask(Question::Deregister).await
    }

    /// The services that each registry lists.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn names(&self) -> Result<Vec<ListedNames>, NoAnswer> {
        self.ask(Question::Names).await
    }

    /// What the embedded registries hold, by name.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn embedded(&self) -> Result<Vec<(Arc<str>, Overview)>, NoAnswer> {
        self.ask(Question::Embedded).await
    }

    /// Loads the files again.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn reload(&self, asker: Asker) -> Result<ReloadReport, NoAnswer> {
        self.ask(|reply| Question::Reload(asker, reply)).await
    }

    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Question,
    ) -> Result<T, NoAnswer> {
        let (reply, answer) = oneshot::channel();
        self.questions
            .send(question(reply))
            .await
            .map_err(|_| NoAnswer)?;
        answer.await.map_err(|_| NoAnswer)
    }
}

/// What both planes were told at the start; for admin and metrics.
#[derive(Debug)]
pub struct Facts {
    /// Package version.
    pub version: &'static str,
    /// Counters of the workers.
    pub workers: Arc<[crate::metrics::cells::WorkerCells]>,
}
