//! A Nacos server that speaks gRPC and does what a test tells it: refuses, forgets set-ups, pushes, asks,
//! sends clients elsewhere, cuts connections.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::protocol::nacos::frame::{Frames, frame};
use crate::protocol::nacos::message::{self, Denied, Naming, code, kind, request_id};
use crate::protocol::nacos::{Payload, UNARY_PATH};

/// The server; clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct FakeGrpc(Arc<Mutex<State>>);

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a fake")]
struct State {
    services: BTreeMap<String, Vec<Value>>,
    connections: BTreeMap<usize, Connection>,
    opened: usize,
    /// Number of the connection and what it asked.
    calls: Vec<(usize, String)>,
    /// What clients answered on their streams: kind and number.
    answers: Vec<(String, Value)>,
    refusing: bool,
    hanging: bool,
    negotiates: bool,
    protected: bool,
    forget: usize,
    token: Option<String>,
    next_id: u64,
}

#[derive(Debug)]
struct Connection {
    stream: Option<mpsc::Sender<Bytes>>,
    subscribed: BTreeSet<String>,
    task: JoinSet<()>,
}

impl FakeGrpc {
    /// One that knows no service and negotiates abilities, as 2.3 and later.
    pub fn new() -> Self {
        let fake = Self::default();
        fake.state().negotiates = true;
        fake
    }

    /// Answers on a connection.
    pub fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, stream: S) {
        let mut state = self.state();
        if state.refusing {
            return;
        }
        state.opened += 1;
        let number = state.opened;
        let fake = self.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let ours = fake.clone();
            let service = service_fn(move |request| {
                let fake = fake.clone();
                async move { Ok::<_, Infallible>(fake.respond(number, request).await) }
            });
            let connection = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service);
            drop(connection.await);
            ours.state().connections.remove(&number);
        });
        let connection = Connection {
            stream: None,
            subscribed: BTreeSet::new(),
            task,
        };
        state.connections.insert(number, connection);
    }

    /// The healthy instances of a service (`group@@name`), `ip:port` each; subscribers are told.
    pub fn set(&self, service: &str, addresses: &[&str]) {
        self.set_silently(service, addresses);
        self.push(service);
    }

    /// The same, and the push is lost.
    pub fn set_silently(&self, service: &str, addresses: &[&str]) {
        let hosts = addresses.iter().filter_map(|address| {
            let (ip, port) = address.rsplit_once(':')?;
            let port: u16 = port.parse().ok()?;
            Some(json!({"ip": ip, "port": port, "healthy": true, "enabled": true, "weight": 1.0}))
        });
        let hosts = hosts.collect();
        self.state().services.insert(service.to_owned(), hosts);
    }

    fn push(&self, service: &str) {
        let mut state = self.state();
        let info = state.info(service);
        let body = json!({"serviceInfo": info});
        let subscribed = |c: &&Connection| c.subscribed.contains(service);
        let streams: Vec<_> = state.connections.values().filter(subscribed).collect();
        let streams: Vec<_> = streams.iter().filter_map(|c| c.stream.clone()).collect();
        for stream in streams {
            state.send(&stream, kind::NOTIFY, body.clone());
        }
    }

    /// Sends a message to every client.
    pub fn say(&self, kind: &str, body: &Value) {
        let mut state = self.state();
        let streams = state.connections.values().filter_map(|c| c.stream.clone());
        for stream in streams.collect::<Vec<_>>() {
            state.send(&stream, kind, body.clone());
        }
    }

    /// From now on connections are refused, and those there are cut.
    pub fn refuse(&self, refuse: bool) {
        self.state().refusing = refuse;
        if refuse {
            self.cut();
        }
    }

    /// From now on nothing is answered.
    pub fn hang(&self, hang: bool) {
        self.state().hanging = hang;
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        let connections = std::mem::take(&mut self.state().connections);
        for (_, mut connection) in connections {
            connection.task.abort_all();
        }
    }

    /// The next calls about services are told that there was no set-up.
    pub fn forget(&self, calls: usize) {
        self.state().forget = calls;
    }

    /// As servers before 2.3: no acknowledgement of a set-up.
    pub fn negotiate(&self, negotiate: bool) {
        self.state().negotiates = negotiate;
    }

    /// Whether health flags are forged.
    pub fn protect(&self, protected: bool) {
        self.state().protected = protected;
    }

    /// The only token that is let in.
    pub fn require(&self, token: &str) {
        self.state().token = Some(token.to_owned());
    }

    /// What was asked: the number of the connection and the kind, without health checks.
    pub fn calls(&self) -> Vec<(usize, String)> {
        let state = self.state();
        let calls = state
            .calls
            .iter()
            .filter(|(_, kind)| kind != kind::HEALTH_CHECK);
        calls.cloned().collect()
    }

    /// Health checks so far.
    pub fn checks(&self) -> usize {
        let state = self.state();
        let checks = state
            .calls
            .iter()
            .filter(|(_, kind)| kind == kind::HEALTH_CHECK);
        checks.count()
    }

    /// What clients answered on their streams.
    pub fn answers(&self) -> Vec<(String, Value)> {
        self.state().answers.clone()
    }

    /// Connections that were opened, and those that are open.
    pub fn connections(&self) -> (usize, usize) {
        let state = self.state();
        (state.opened, state.connections.len())
    }

    async fn respond(&self, number: usize, request: Request<Incoming>) -> Response<Sent> {
        let path = request.uri().path().to_owned();
        let mut body = request.into_body();
        let answer = if path == UNARY_PATH {
            let whole = body.collect().await;
            let whole = whole
                .map(http_body_util::Collected::to_bytes)
                .unwrap_or_default();
            let mut frames = Frames::new(1 << 20);
            frames.push(&whole);
            let call = frames.next().ok().flatten().unwrap_or_default();
            if self.state().hanging {
                std::future::pending::<()>().await;
            }
            let answer = self.state().answer(number, &call);
            Sent::One(frame(&answer))
        } else {
            let (sender, receiver) = mpsc::channel(16);
            let fake = self.clone();
            if let Some(connection) = self.state().connections.get_mut(&number) {
                connection.task.spawn(async move {
                    let mut frames = Frames::new(1 << 20);
                    while let Some(Ok(piece)) = body.frame().await {
                        frames.push(&piece.into_data().unwrap_or_default());
                        while let Ok(Some(said)) = frames.next() {
                            fake.state().take(number, &said, &sender);
                        }
                    }
                });
            }
            Sent::Many(receiver)
        };
        let mut response = Response::new(answer);
        let grpc = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(header::CONTENT_TYPE, grpc);
        response
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn answer(&mut self, number: usize, call: &Payload) -> Payload {
        self.calls.push((number, call.kind.clone()));
        if call.kind == kind::SERVER_CHECK {
            let negotiates = json!({"supportAbilityNegotiation": self.negotiates});
            return done(call, negotiates);
        }
        let set_up = self
            .connections
            .get(&number)
            .is_some_and(|c| c.stream.is_some());
        let forgotten = call.kind != kind::HEALTH_CHECK && self.forget > 0;
        if forgotten {
            self.forget -= 1;
        }
        if !set_up || forgotten {
            let denied = Denied::new(code::UNREGISTERED, "Connection is unregistered.");
            return message::denied(kind::ERROR, &denied);
        }
        if call.kind == kind::HEALTH_CHECK {
            return done(call, json!({}));
        }
        if self
            .token
            .as_deref()
            .is_some_and(|token| call.header("accessToken") != Some(token))
        {
            let denied = Denied::new(code::NO_RIGHT, "user not found!");
            return message::denied(kind::response(&call.kind), &denied);
        }
        let naming: Naming = serde_json::from_slice(&call.body).unwrap_or_default();
        let name = naming.service_name.clone().unwrap_or_default();
        let service = format!("{}@@{name}", naming.group_name.clone().unwrap_or_default());
        match call.kind.as_str() {
            kind::SUBSCRIBE => {
                if let Some(connection) = self.connections.get_mut(&number) {
                    match naming.subscribe {
                        Some(true) => connection.subscribed.insert(service.clone()),
                        Some(false) | None => connection.subscribed.remove(&service),
                    };
                }
                done(call, json!({"serviceInfo": self.info(&service)}))
            }
            kind::QUERY => done(call, json!({"serviceInfo": self.info(&service)})),
            kind::LIST => {
                let names: Vec<_> = self
                    .services
                    .keys()
                    .filter_map(|n| n.split_once("@@"))
                    .collect();
                let names: Vec<_> = names.iter().map(|(_, name)| *name).collect();
                done(call, json!({"count": names.len(), "serviceNames": names}))
            }
            _ => done(call, json!({})),
        }
    }

    fn take(&mut self, number: usize, said: &Payload, sender: &mpsc::Sender<Bytes>) {
        if said.kind != kind::SETUP {
            let id = request_id(&said.body).unwrap_or_default();
            self.answers.push((said.kind.clone(), id));
            return;
        }
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.stream = Some(sender.clone());
        }
        if self.negotiates {
            self.send(sender, kind::SETUP_ACK, json!({"abilityTable": {}}));
        }
    }

    fn send(&mut self, stream: &mpsc::Sender<Bytes>, kind: &str, mut body: Value) {
        self.next_id += 1;
        if let Some(body) = body.as_object_mut() {
            body.insert("requestId".to_owned(), self.next_id.to_string().into());
        }
        let message = Payload::new(kind, body.to_string());
        drop(stream.try_send(frame(&message)));
    }

    fn info(&self, service: &str) -> Value {
        let (group, name) = service.split_once("@@").unwrap_or_default();
        let hosts = self.services.get(service).cloned().unwrap_or_default();
        json!({"name": name, "groupName": group, "clusters": "", "hosts": hosts,
            "reachProtectionThreshold": self.protected})
    }
}

fn done(call: &Payload, fields: Value) -> Payload {
    let fields: Map<String, Value> = serde_json::from_value(fields).unwrap_or_default();
    message::done(&call.kind, None, fields)
}

/// What is sent.
#[derive(Debug)]
enum Sent {
    One(Bytes),
    Many(mpsc::Receiver<Bytes>),
    Trailers,
    End,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let (frame, next) = match &mut *self {
            Self::One(message) => (Frame::data(std::mem::take(message)), Self::Trailers),
            Self::Many(messages) => match ready!(messages.poll_recv(context)) {
                Some(message) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                None => return Poll::Ready(None),
            },
            Self::Trailers => {
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                (Frame::trailers(trailers), Self::End)
            }
            Self::End => return Poll::Ready(None),
        };
        *self = next;
        Poll::Ready(Some(Ok(frame)))
    }
}
