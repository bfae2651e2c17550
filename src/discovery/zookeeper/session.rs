//! One session of a registry, shared by all its subscriptions. It is kept over connections: the next
//! server is asked with the same id, and watches are set again there; when the server says that the
//! session is over, a new one begins and everybody reads anew.
//!
//! Next: `zookeeper/live.rs` (one connection), `zookeeper/interest.rs` (who hears of what).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};

use super::connection::{self, Incoming, Stream, Target};
use super::interest::Interests;
use super::live::{End, Live};
use crate::clock::Clock;
use crate::config::types::{Registry, Zookeeper};
use crate::discovery::subscription::Failure;
use crate::http_client::jitter::Jitter;
use crate::protocol::zookeeper::{self, Read, SessionId, Watch};

/// Requests that wait for the session's task.
const QUEUE: usize = 64;
/// The first pause after all servers failed is below twice this.
const RETRY: Duration = Duration::from_secs(1);
/// And none is longer: a session lives for less than a minute without a connection.
const MOST_RETRY: Duration = Duration::from_secs(10);
/// A connection that lived for less is one of a server that does not hold sessions.
const SHORT_LIFE: Duration = Duration::from_secs(10);

/// What was read; `None`: there is no such node.
pub(super) type Found = Result<Option<Vec<u8>>, Failure>;

/// A request to the session's task.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) read: Read,
    pub(super) path: Arc<str>,
    pub(super) reply: oneshot::Sender<Found>,
}

/// What subscriptions hold of it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) interests: Arc<Interests>,
    commands: mpsc::Sender<Command>,
    permits: Semaphore,
    timeout: Duration,
    /// Until the first subscription.
    keeper: Mutex<Option<Keeper>>,
}

impl Session {
    pub(super) fn new(
        config: &Zookeeper,
        registry: &Registry,
        targets: Vec<Target>,
        clock: Clock,
        seed: u64,
    ) -> Self {
        let (commands, queue) = mpsc::channel(QUEUE);
        let interests = Arc::<Interests>::default();
        let first = fastrand::Rng::with_seed(seed).usize(..targets.len().max(1));
        let keeper = Keeper {
            targets,
            next: first,
            timeout: registry.timeout,
            session_timeout: config.session_timeout,
            jitter: Jitter::new(fastrand::Rng::with_seed(seed)),
            queue,
            state: State {
                clock,
                interests: Arc::clone(&interests),
                session: SessionId::default(),
                last_zxid: 0,
                watches: BTreeSet::new(),
            },
        };
        Self {
            interests,
            commands,
            permits: Semaphore::new(registry.max_in_flight),
            timeout: registry.timeout,
            keeper: Mutex::new(Some(keeper)),
        }
    }

    /// Starts the session's task, once. It ends when this is dropped.
    pub(super) fn start(&self) {
        let keeper = self
            .keeper
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(keeper) = keeper {
            drop(tokio::spawn(keeper.run()));
        }
    }

    /// Reads a node and watches it.
    pub(super) async fn read(&self, read: Read, path: &Arc<str>) -> Found {
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await.ok();
        let (reply, answer) = oneshot::channel();
        let command = Command {
            read,
            path: path.clone(),
            reply,
        };
        let ended = || Failure::Unanswered("the session has ended".to_owned());
        let asked = async {
            self.commands.send(command).await.map_err(|_| ended())?;
            answer.await.map_err(|_| ended())?
        };
        match tokio::time::timeout(self.timeout, asked).await {
            Ok(found) => found,
            Err(_) => Err(Failure::Unanswered(format!(
                "no answer within {:?}",
                self.timeout
            ))),
        }
    }

    /// The names below a node. Where it is missing, its coming is watched.
    pub(super) async fn children(&self, path: &Arc<str>) -> Result<Option<Vec<Arc<str>>>, Failure> {
        for _ in 0..3 {
            if let Some(body) = self.read(Read::Children, path).await? {
                let names = zookeeper::children(&body);
                return names
                    .map(Some)
                    .map_err(|e| Failure::Unanswered(format!("{path}: {e}")));
            }
            if self.read(Read::Exists, path).await?.is_none() {
                return Ok(None);
            }
            // It came between the two questions.
        }
        Ok(None)
    }

    /// What a node holds.
    pub(super) async fn data(&self, path: &Arc<str>) -> Found {
        match self.read(Read::Data, path).await? {
            Some(body) => zookeeper::data(&body)
                .map(Some)
                .map_err(|e| Failure::Unanswered(format!("{path}: {e}"))),
            None => Ok(None),
        }
    }
}

/// What outlives a connection.
#[derive(Debug)]
pub(super) struct State {
    pub(super) clock: Clock,
    pub(super) interests: Arc<Interests>,
    pub(super) session: SessionId,
    pub(super) last_zxid: i64,
    pub(super) watches: BTreeSet<Watch>,
}

/// The task of a session.
#[derive(Debug)]
struct Keeper {
    targets: Vec<Target>,
    next: usize,
    timeout: Duration,
    session_timeout: Duration,
    jitter: Jitter,
    queue: mpsc::Receiver<Command>,
    state: State,
}

impl Keeper {
    async fn run(mut self) {
        let (mut failed, mut silent) = (0usize, 0usize);
        // Connections in a row that were soon lost.
        let mut short = 0u32;
        loop {
            let why = match self.open().await {
                Ok((live, granted)) => {
                    (failed, silent) = (0, 0);
                    let opened = self.state.clock.now();
                    match live.serve(&mut self.state, &mut self.queue, granted).await {
                        End::Closed => return,
                        End::Lost(why) => {
                            let life = self.state.clock.now().since(opened);
                            short = if life < SHORT_LIFE {
                                short.saturating_add(1)
                            } else {
                                0
                            };
                            if short < 2 {
                                self.state.interests.wake_all(false);
                            }
                            why
                        }
                    }
                }
                Err(OpenError { why, unanswered }) => {
                    failed += 1;
                    silent += usize::from(unanswered);
                    if silent > 2 * self.targets.len() {
                        // A server that came back with older data answers nobody who has seen more.
                        self.state.last_zxid = 0;
                    }
                    why
                }
            };
            self.next = self.next.wrapping_add(1);
            let rounds = failed / self.targets.len().max(1);
            let pause = if failed % self.targets.len().max(1) == 0 && failed > 0 {
                self.jitter
                    .back_off(RETRY, u32::try_from(rounds).unwrap_or(u32::MAX), MOST_RETRY)
            } else if failed == 0 && short > 1 {
                self.jitter.back_off(RETRY, short, MOST_RETRY)
            } else {
                Duration::ZERO
            };
            if !self.refuse(pause, &why).await {
                return;
            }
        }
    }

    /// Answers everybody with the last error for a while; false when nobody can ask any more.
    async fn refuse(&mut self, pause: Duration, why: &str) -> bool {
        let over = tokio::time::sleep(pause);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return true,
                command = self.queue.recv() => match command {
                    // Whoever asked may have given up.
                    Some(command) => {
                        let _gone = command.reply.send(Err(Failure::Unanswered(why.to_owned())));
                    }
                    None => return false,
                },
            }
        }
    }

    /// Connects to the next server and opens the session there, or a new one.
    async fn open(&mut self) -> Result<(Live, Duration), OpenError> {
        let count = self.targets.len().max(1);
        let Some(target) = self.targets.get(self.next % count).cloned() else {
            return Err(OpenError::new("no server".to_owned(), false));
        };
        let opened = tokio::time::timeout(self.timeout, self.greet(&target)).await;
        opened.unwrap_or_else(|_| {
            let why = format!("{target}: no answer within {:?}", self.timeout);
            Err(OpenError::new(why, false))
        })
    }

    async fn greet(&mut self, target: &Target) -> Result<(Live, Duration), OpenError> {
        let failed = |e: std::io::Error| OpenError::new(format!("{target}: {e}"), false);
        let mut stream: Box<dyn Stream> = target.open().await.map_err(failed)?;
        let asked = i32::try_from(self.session_timeout.as_millis()).unwrap_or(i32::MAX);
        let hello = zookeeper::connect(self.state.last_zxid, asked, &self.state.session);
        connection::send(&mut stream, &hello)
            .await
            .map_err(failed)?;
        let silent = |_| OpenError::new(format!("{target}: closed without an answer"), true);
        let answer = connection::frame(&mut stream).await.map_err(silent)?;
        let malformed = || OpenError::new(format!("{target}: not a ZooKeeper server"), false);
        let Incoming::Frame(body) = answer else {
            return Err(malformed());
        };
        let connected = zookeeper::connected(&body).map_err(|_| malformed())?;
        let Some(granted) = u64::try_from(connected.timeout).ok().filter(|ms| *ms > 0) else {
            // The session is over. The next connection asks for a new one.
            tracing::info!(%target, "the session of ZooKeeper is over");
            self.state.session = SessionId::default();
            self.state.last_zxid = 0;
            self.state.watches.clear();
            self.state.interests.wake_all(true);
            self.next = self.next.wrapping_sub(1);
            return Err(OpenError::new(
                format!("{target}: the session is over"),
                false,
            ));
        };
        self.state.session = connected.session;
        let watches = &mut self.state.watches;
        watches.retain(|watch| self.state.interests.wants(&watch.path));
        for frame in zookeeper::set_watches(self.state.last_zxid, &*watches) {
            connection::send(&mut stream, &frame)
                .await
                .map_err(failed)?;
        }
        self.state.interests.wake_all(false);
        let label = target.to_string();
        Ok((Live::new(stream, label), Duration::from_millis(granted)))
    }
}

struct OpenError {
    why: String,
    /// It took the connection and closed it without a word.
    unanswered: bool,
}

impl OpenError {
    fn new(why: String, unanswered: bool) -> Self {
        Self { why, unanswered }
    }
}
