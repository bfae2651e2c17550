//! A control plane that answers from values a test sets.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use super::status;
use crate::control::{ControlHandle, ListedNames, Question};
use crate::registry::overview::Overview;
use crate::status::{
    OverrideDone, OverrideRefused, ProcessStatus, ReloadReport, RouteExplanation, UpstreamStatus,
};

/// What the fake answers.
#[derive(Clone, Debug)]
pub struct Answers {
    /// The process; its `upstreams` are made from those below.
    pub process: ProcessStatus,
    /// Every upstream.
    pub upstreams: Vec<UpstreamStatus>,
    /// To any route question.
    pub route: RouteExplanation,
    /// What registries list.
    pub names: Vec<ListedNames>,
    /// What embedded registries hold.
    pub embedded: Vec<(Arc<str>, Overview)>,
    /// To any order.
    pub order: Option<Result<OverrideDone, OverrideRefused>>,
    /// To any reload.
    pub reload: ReloadReport,
}

/// The fake; clones are the same one.
#[derive(Clone, Debug)]
pub struct FakeControl {
    // Tests change it while the fake's task reads it.
    answers: Arc<Mutex<Answers>>,
}

impl FakeControl {
    /// A fake with a serving process and these upstreams, and the future that answers; the future
    /// ends when every handle is gone.
    pub fn new(
        upstreams: Vec<UpstreamStatus>,
    ) -> (Self, ControlHandle, impl Future<Output = ()> + Send) {
        let answers = Answers {
            process: status::process(),
            upstreams,
            route: status::route(),
            names: Vec::new(),
            embedded: Vec::new(),
            order: None,
            reload: ReloadReport::default(),
        };
        let fake = Self {
            answers: Arc::new(Mutex::new(answers)),
        };
        let (handle, questions) = ControlHandle::channel();
        let work = fake.clone().answer(questions);
        (fake, handle, work)
    }

    /// What is answered from now on.
    pub fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(self, mut questions: mpsc::Receiver<Question>) {
        while let Some(question) = questions.recv().await {
            let answers = self.answers().clone();
            // Who asked may be gone.
            match question {
                Question::ClearOverride(.., reply) => {
                    let _gone = reply.send(None);
                }
                Question::Breaker(_, reply) | Question::Order(_, reply) => {
                    let _gone = reply.send(answers.order);
                }
                Question::Deregister(reply) => {
                    let registrations = answers.process.registrations.len();
                    let _gone = reply.send(crate::registration::Left {
                        registrations,
                        ..crate::registration::Left::default()
                    });
                }
                Question::Names(reply) => {
                    let _gone = reply.send(answers.names);
                }
                Question::Embedded(reply) => {
                    let _gone = reply.send(answers.embedded);
                }
                Question::Process(reply) => {
                    let mut process = answers.process;
                    process.upstreams = answers.upstreams.into_iter().map(|u| u.summary).collect();
                    let _gone = reply.send(process);
                }
                Question::Upstreams(None, reply) => {
                    let _gone = reply.send(answers.upstreams);
                }
                Question::Upstreams(Some(name), reply) => {
                    let all = answers.upstreams.into_iter();
                    let called = |u: &UpstreamStatus| {
                        u.summary.name == name || u.summary.aliases.contains(&name)
                    };
                    let _gone = reply.send(all.filter(called).collect());
                }
                Question::Reload(_, reply) => {
                    let _gone = reply.send(answers.reload);
                }
                Question::Route { reply, .. } => {
                    let _gone = reply.send(answers.route);
                }
            }
        }
    }
}
