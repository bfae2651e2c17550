//! The link to one namespace of a Nacos registry: keeps one connection up, whichever server it is to.
//! Pushes are handed to who follows that service; a lost connection is told to all, and each asks
//! again on the next one. What is registered here is registered again before anything else.
//!
//! | state | ends by |
//! |---|---|
//! | `Starting` | the first connection, or each server having failed once |
//! | `Up` | end of the connection or stream, three failed health checks, the server's wish |
//! | `Down` | a connection; tried after a pause that grows to `MOST_PAUSE` |

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{debug, info};

use super::channel::Channel;
use super::live::{Common, Live, Stream};
use crate::clock::Clock;
use crate::http_client::auth::Auth;
use crate::http_client::jitter::Jitter;
use crate::http_client::servers::{CallError, Server, Servers};
use crate::http_client::{HttpClient, Target, connect};
use crate::protocol::nacos::Payload;
use crate::protocol::nacos::message::{Naming, kind, request_id};

/// Silence until the server is asked whether it is there.
const IDLE: Duration = Duration::from_secs(5);
/// Health checks in a row that may fail.
const CHECKS: u32 = 3;
/// Before a connection is tried again; grows by two, with full jitter.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const MOST_PAUSE: Duration = Duration::from_secs(30);
/// The same where gRPC has never been answered and HTTP is in use.
const MOST_PAUSE_UNSEEN: Duration = Duration::from_secs(300);
/// A connection that lived as long as this was good: the next try is not put off.
const GOOD_LIFE: Duration = Duration::from_secs(10);
/// Between the answer to a server that sends us elsewhere and the end of the connection.
const RESET_PAUSE: Duration = Duration::from_millis(100);
/// Pushes that wait for their follower. It only needs the last one.
const PUSH_QUEUE: usize = 16;

/// What a link needs.
#[derive(Debug)]
pub struct LinkSettings {
    /// Namespace id.
    pub namespace: Arc<str>,
    /// The HTTP servers; gRPC is at their port + 1000.
    pub servers: Arc<Servers>,
    /// For logins.
    pub http: HttpClient,
    /// The token.
    pub auth: Option<Arc<dyn Auth>>,
    /// Calls at once.
    pub max_in_flight: usize,
    /// Time.
    pub clock: Clock,
    /// Of all jitter.
    pub random: fastrand::Rng,
    /// Where gRPC is not answered something else is in use meanwhile.
    pub optional: bool,
}

/// How it stands.
#[derive(Clone, Debug)]
pub enum State {
    /// Not connected yet, and not failed.
    Starting,
    /// Connected.
    Up(Arc<Live>),
    /// Not connected: why.
    Down(Arc<str>),
}

/// The link; it ends when it is dropped.
#[derive(Debug)]
pub struct Link {
    inner: Arc<Inner>,
    _task: JoinSet<()>,
}

#[derive(Debug)]
struct Inner {
    common: Arc<Common>,
    servers: Arc<Servers>,
    jitter: Jitter,
    optional: bool,
    state: watch::Sender<State>,
    losses: watch::Sender<u64>,
    followers: Mutex<Followers>,
    /// What is registered over this link, by who registered it: the truth for every connection.
    registrations: Mutex<BTreeMap<u64, (&'static str, Naming)>>,
}

#[derive(Debug, Default)]
struct Followers {
    next: u64,
    /// By group and bare name.
    topics: HashMap<(String, String), HashMap<u64, mpsc::Sender<Value>>>,
}

/// Pushes of one service; it ends with this.
#[derive(Debug)]
pub struct Pushes {
    inner: Arc<Inner>,
    topic: (String, String),
    number: u64,
    receiver: mpsc::Receiver<Value>,
}

impl Link {
    /// Starts it on the current runtime.
    pub fn start(settings: LinkSettings) -> Self {
        let inner = Arc::new(Inner {
            common: Arc::new(Common {
                namespace: settings.namespace,
                http: settings.http,
                auth: settings.auth,
                in_flight: Semaphore::new(settings.max_in_flight.max(1)),
                clock: settings.clock,
            }),
            servers: settings.servers,
            jitter: Jitter::new(settings.random),
            optional: settings.optional,
            state: watch::Sender::new(State::Starting),
            losses: watch::Sender::default(),
            followers: Mutex::default(),
            registrations: Mutex::default(),
        });
        let mut task = JoinSet::new();
        task.spawn(inner.clone().run());
        Self { inner, _task: task }
    }

    /// How it stands, and every change of that.
    pub fn state(&self) -> watch::Receiver<State> {
        self.inner.state.subscribe()
    }

    /// Counts the connections that were lost.
    pub fn losses(&self) -> watch::Receiver<u64> {
        self.inner.losses.subscribe()
    }

    /// Pushes of a service from now on; the server sends them once it has been asked to.
    pub fn pushes(&self, group: &str, name: &str) -> Pushes {
        let (sender, receiver) = mpsc::channel(PUSH_QUEUE);
        let topic = (group.to_owned(), name.to_owned());
        let mut followers = self.inner.followers();
        followers.next = followers.next.wrapping_add(1);
        let number = followers.next;
        let of_topic = followers.topics.entry(topic.clone()).or_default();
        of_topic.insert(number, sender);
        drop(followers);
        Pushes {
            inner: self.inner.clone(),
            topic,
            number,
            receiver,
        }
    }

    /// Registers, and again on every later connection, before anything else. The same `number` replaces
    /// what it registered before.
    ///
    /// # Errors
    /// Of the call now; it stays wanted whatever comes.
    pub async fn register(
        &self,
        number: u64,
        kind: &'static str,
        wish: Naming,
    ) -> Result<Value, CallError> {
        let wanted = (kind, wish.clone());
        self.inner.registrations().insert(number, wanted);
        self.call(kind, &wish).await
    }

    /// It is no longer to be registered on later connections.
    pub fn forget(&self, number: u64) {
        self.inner.registrations().remove(&number);
    }

    /// A call on the connection there is; at the start it is waited for.
    ///
    /// # Errors
    /// [`CallError`]; also when there is none.
    pub async fn call(&self, kind: &str, wish: &Naming) -> Result<Value, CallError> {
        let mut state = self.state();
        let within = self.inner.common.http.timeout;
        let known = state.wait_for(|state| !matches!(state, State::Starting));
        let known = tokio::time::timeout(within, known).await;
        let known = known.ok().and_then(Result::ok).map(|state| state.clone());
        match known {
            Some(State::Up(live)) => live.call(kind, wish).await,
            Some(State::Down(why)) => Err(CallError::Unanswered(why.to_string())),
            Some(State::Starting) | None => Err(CallError::Unanswered(format!(
                "no connection within {within:?}"
            ))),
        }
    }
}

impl Pushes {
    /// The newest push that has not been taken.
    pub async fn next(&mut self) -> Value {
        let Some(mut value) = self.receiver.recv().await else {
            return std::future::pending().await;
        };
        while let Ok(newer) = self.receiver.try_recv() {
            value = newer;
        }
        value
    }

    /// Whether somebody else follows the same service.
    pub fn is_shared(&self) -> bool {
        let followers = self.inner.followers();
        followers
            .topics
            .get(&self.topic)
            .is_some_and(|all| all.len() > 1)
    }
}

impl Drop for Pushes {
    fn drop(&mut self) {
        let mut followers = self.inner.followers();
        if let Some(of_topic) = followers.topics.get_mut(&self.topic) {
            of_topic.remove(&self.number);
            if of_topic.is_empty() {
                followers.topics.remove(&self.topic);
            }
        }
    }
}

/// How a connection ended.
struct End {
    why: Arc<str>,
    /// Where the server wants us to go.
    elsewhere: Option<String>,
}

impl Inner {
    async fn run(self: Arc<Self>) {
        let mut index = self.jitter.index(self.servers.list().len());
        let mut failures = 0;
        let mut seen = false;
        loop {
            let list = self.servers.list();
            match self.connect(&list, &mut index).await {
                Ok((live, stream)) => {
                    seen = true;
                    let opened = self.common.clock.now();
                    let live = Arc::new(live);
                    let end = self.use_up(&live, stream).await;
                    debug!(namespace = %self.common.namespace, why = %end.why, "nacos link down");
                    self.state.send_replace(State::Down(end.why));
                    self.losses
                        .send_modify(|losses| *losses = losses.saturating_add(1));
                    let good = self.common.clock.now().since(opened) >= GOOD_LIFE;
                    failures = if good { 0 } else { failures + 1 };
                    let named = end.elsewhere.and_then(|address| position(&list, &address));
                    let moved = named.is_some();
                    index = named.unwrap_or_else(|| index.wrapping_add(1));
                    // One free move: servers that send us to each other would have us for ever.
                    if moved && failures <= 1 {
                        continue;
                    }
                }
                Err(error) => {
                    failures += 1;
                    self.state
                        .send_replace(State::Down(error.to_string().into()));
                }
            }
            let most = match self.optional && !seen {
                true => MOST_PAUSE_UNSEEN,
                false => MOST_PAUSE,
            };
            tokio::time::sleep(self.jitter.back_off(LEAST_PAUSE, failures, most)).await;
        }
    }

    /// A connection to the server of that number, else to the next one that works.
    async fn connect(
        &self,
        list: &[Server],
        index: &mut usize,
    ) -> Result<(Live, Stream), CallError> {
        let mut last = CallError::Unanswered("no servers are known".to_owned());
        let start = *index;
        for turn in 0..list.len() {
            let at = start.wrapping_add(turn) % list.len().max(1);
            let Some(server) = list.get(at) else { continue };
            match self.connect_one(server).await {
                Ok(opened) => {
                    *index = at;
                    return Ok(opened);
                }
                Err(error) => {
                    debug!(%error, "nacos server does not answer by gRPC");
                    last = error;
                }
            }
        }
        Err(last)
    }

    async fn connect_one(&self, server: &Server) -> Result<(Live, Stream), CallError> {
        let within = self.common.http.timeout;
        let Some(target) = grpc_target(&server.target) else {
            let what = format!("{}: no gRPC port beside this one", server.target);
            return Err(CallError::Unanswered(what));
        };
        let fail = |what: String| CallError::Unanswered(format!("{target} (gRPC): {what}"));
        let opening = async {
            let stream = connect(&target).await.map_err(|e| fail(e.to_string()))?;
            let channel = Channel::open(stream, &target.to_string()).await;
            channel.map_err(|error| fail(error.to_string()))
        };
        let opened = tokio::time::timeout(within, Box::pin(opening)).await;
        let channel =
            opened.unwrap_or_else(|_| Err(fail(format!("no connection within {within:?}"))))?;
        Live::set_up(channel, server.clone(), self.common.clone()).await
    }

    /// Registers what is wanted, lets all use the connection, and serves it until it ends.
    async fn use_up(&self, live: &Arc<Live>, mut stream: Stream) -> End {
        let work = async {
            let wanted: Vec<_> = self.registrations().values().cloned().collect();
            for (kind, wish) in wanted {
                if let Err(error) = live.call(kind, &wish).await {
                    // Its owner observes that it is missing.
                    info!(%error, "registration was not repeated on the new connection");
                }
            }
            self.state.send_replace(State::Up(live.clone()));
            self.watch_health(live).await
        };
        let end = tokio::select! {
            why = work => End { why, elsewhere: None },
            end = self.read(live, &mut stream) => end,
            why = live.lost() => End { why, elsewhere: None },
        };
        live.lose(&end.why);
        end
    }

    /// Asks a silent server whether it is there; ends when it is not.
    async fn watch_health(&self, live: &Live) -> Arc<str> {
        let clock = self.common.clock;
        let mut failed = 0;
        loop {
            let due = live.heard_at() + IDLE;
            if failed == 0 && clock.now() < due {
                tokio::time::sleep_until(clock.instant(due)).await;
                continue;
            }
            match live.check().await {
                Ok(()) => failed = 0,
                Err(error) => {
                    failed += 1;
                    if failed >= CHECKS {
                        return format!("{CHECKS} health checks failed: {error}").into();
                    }
                }
            }
        }
    }

    /// Reads the stream until it ends or the server wants us elsewhere.
    async fn read(&self, live: &Live, stream: &mut Stream) -> End {
        loop {
            let message = match stream.reader.next().await {
                Ok(Some(message)) => message,
                Ok(None) => return end("the server ended the stream"),
                Err(error) => return end(&error.to_string()),
            };
            live.heard();
            let elsewhere = self.take(&message);
            if message.kind != kind::SETUP_ACK && !stream.sender.send(&answer(&message)).await {
                return end("the stream of the connection ended");
            }
            if message.kind == kind::RESET {
                // The answer is to leave before the connection does.
                tokio::time::sleep(RESET_PAUSE).await;
                let why = Arc::from("the server asked to connect to another one");
                return End { why, elsewhere };
            }
        }
    }

    /// Takes a message of the server; where it wants us to go, if it does.
    fn take(&self, message: &Payload) -> Option<String> {
        let body: Value = serde_json::from_slice(&message.body).unwrap_or_default();
        let text =
            |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        match message.kind.as_str() {
            kind::NOTIFY => {
                let info = body.get("serviceInfo")?.clone();
                let name = text(&info, "name").or_else(|| text(&body, "serviceName"))?;
                let topic = match name.split_once("@@") {
                    Some((group, name)) => (group.to_owned(), name.to_owned()),
                    None => {
                        let group = text(&info, "groupName").or_else(|| text(&body, "groupName"));
                        (group?, name)
                    }
                };
                let followers = self.followers();
                for follower in followers.topics.get(&topic)?.values() {
                    // A full queue has newer ones than its follower has seen; it asks again soon.
                    let _full = follower.try_send(info.clone());
                }
                None
            }
            kind::RESET => {
                let (ip, port) = (text(&body, "serverIp")?, body.get("serverPort")?);
                let port = port.as_u64().or_else(|| port.as_str()?.parse().ok())?;
                Some(format!("{ip}:{port}"))
            }
            _ => None,
        }
    }

    fn followers(&self) -> MutexGuard<'_, Followers> {
        self.followers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn registrations(&self) -> MutexGuard<'_, BTreeMap<u64, (&'static str, Naming)>> {
        self.registrations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(why: &str) -> End {
    End {
        why: why.into(),
        elsewhere: None,
    }
}

/// What a message of the server is answered with: its own number.
fn answer(message: &Payload) -> Payload {
    let id = request_id(&message.body).unwrap_or_default();
    let body = json!({"resultCode": 200, "errorCode": 0, "success": true, "requestId": id});
    Payload::new(kind::response(&message.kind), body.to_string())
}

/// Which server is at this address, of its HTTP or its gRPC port.
fn position(list: &[Server], address: &str) -> Option<usize> {
    list.iter().position(|server| {
        let grpc = grpc_target(&server.target);
        server.target.to_string() == address || grpc.is_some_and(|t| t.to_string() == address)
    })
}

/// Where a server's gRPC is.
fn grpc_target(target: &Target) -> Option<Target> {
    let beside = |address: &str| {
        let (host, port) = address.rsplit_once(':')?;
        let port = crate::config::types::grpc_port(port.parse().ok()?)?;
        Some(format!("{host}:{port}"))
    };
    match target {
        Target::Tcp(address) => beside(address).map(Target::Tcp),
        Target::Tls(address, tls) => {
            beside(address).map(|address| Target::Tls(address, tls.speaking_http2()))
        }
        Target::Unix(_) => None,
        #[cfg(test)]
        Target::Memory(server) => Some(Target::Memory(server.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_a_thousand_ports_further() {
        let shown = |address: &str| {
            let target = grpc_target(&Target::Tcp(address.to_owned()))?;
            Some(target.to_string())
        };
        assert_eq!(shown("nacos:8848").as_deref(), Some("nacos:9848"));
        assert_eq!(shown("[::1]:1").as_deref(), Some("[::1]:1001"));
        assert_eq!(shown("nacos:65000"), None);
    }

    #[test]
    fn row_13_a_server_is_found_by_either_of_its_ports() {
        let server = |address: &str| Server {
            target: Target::Tcp(address.to_owned()),
            prefix: String::new(),
        };
        let list = ["10.0.0.1:8848", "10.0.0.2:8848", "10.0.0.3:8848"].map(server);
        for (named, want) in [
            ("10.0.0.3:9848", Some(2)),
            ("10.0.0.2:8848", Some(1)),
            ("10.0.0.2:8849", None),
            ("10.0.0.9:9848", None),
        ] {
            assert_eq!(position(&list, named), want, "{named}");
        }
    }
}
