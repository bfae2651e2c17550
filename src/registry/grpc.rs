//! gRPC connections of the embedded registry, as Nacos 2.x serves them on the HTTP port + 1000. A
//! client is its connection: unary calls and one stream on the same HTTP/2 connection. What it
//! registers lives as long as that, what it subscribes to is pushed on its stream.
//!
//! One task per connection owns everything of it: hyper's connection, its stream and its machine
//! (`registry/session.rs`). When the registry itself ends, connections are closed but their instances stay in the
//! table, so that the snapshot has them.
//!
//! Next: `grpc/calls.rs` (the calls), `registry/clients.rs` (who is there).

mod body;
mod calls;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::clients::Client;
use super::model::ServiceKey;
use super::server::{ACCEPT_PAUSE, BODY_TIMEOUT, GRACE};
use super::session::Step;
use super::{EmbeddedRegistry, stopped};
use crate::protocol::nacos::frame::{FrameError, Frames, frame};
use crate::protocol::nacos::message::{kind, request_id};
use crate::protocol::nacos::{Payload, STREAM_PATH, UNARY_PATH};
use body::Messages;

/// Bytes of a message. A batch of instances is the longest.
const MAX_MESSAGE: usize = 1024 * 1024;
/// Requests of one connection at the same time.
const MAX_STREAMS: u32 = 32;
/// Bytes of a message of a client that has not made its set-up.
const MAX_FIRST_MESSAGE: usize = 64 * 1024;
/// Bytes of a head.
const MAX_HEAD_BYTES: u32 = 16 * 1024;
/// Messages that wait for a client to read them.
const STREAM_QUEUE: usize = 64;
/// A client that does not read its stream for this long is closed.
const STREAM_TIMEOUT: Duration = Duration::from_secs(5);

/// A client's new stream: what it sends, and where we send.
type NewStream = (Incoming, mpsc::Sender<Bytes>);

impl EmbeddedRegistry {
    /// Serves Nacos's gRPC protocol on a listener; ends when `shutdown` becomes true (or its sender is
    /// dropped).
    pub async fn serve_grpc(self, listener: TcpListener, mut shutdown: watch::Receiver<bool>) {
        let places = Arc::new(Semaphore::new(self.0.max_connections));
        let mut full = false;
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let accepted = tokio::select! {
                () = stopped(&mut shutdown) => break,
                accepted = listener.accept() => accepted,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "registry cannot accept a gRPC connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // These connections stay: who waited for a place would wait for ever.
            let Ok(place) = places.clone().try_acquire_owned() else {
                if !std::mem::replace(&mut full, true) {
                    let limit = self.0.max_connections;
                    warn!(%from, limit, "too many gRPC clients of the registry: refused");
                }
                continue;
            };
            full = false;
            if let Err(error) = stream.set_nodelay(true) {
                debug!(%error, "registry connection without nodelay");
            }
            let (registry, shutdown) = (self.clone(), shutdown.clone());
            connections.spawn(registry.grpc_connection(stream, from, place, shutdown));
        }
        drop(listener);
        let all = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, all).await.is_err() {
            connections.shutdown().await;
        }
    }

    /// One connection; it holds its place until it ends.
    pub(super) async fn grpc_connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self,
        stream: S,
        from: SocketAddr,
        place: OwnedSemaphorePermit,
        mut shutdown: watch::Receiver<bool>,
    ) {
        let present = Present {
            client: self.0.clients.add(from, self.0.clock.now()),
            registry: self.clone(),
            shutdown: shutdown.clone(),
        };
        let client = &present.client;
        let (opened, streams) = mpsc::channel::<NewStream>(4);
        let service = service_fn({
            let (registry, client) = (self.clone(), client.clone());
            move |request| {
                let (registry, client) = (registry.clone(), client.clone());
                let opened = opened.clone();
                async move { Ok::<_, Infallible>(respond(&registry, &client, request, opened).await) }
            }
        });
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEAD_BYTES);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let driven = async {
            tokio::select! {
                () = drive(&self, client, streams) => {}
                () = stopped(&mut shutdown) => {}
            }
        };
        tokio::select! {
            result = connection.as_mut() => log_end(client, result),
            () = driven => {
                connection.as_mut().graceful_shutdown();
                let rest = tokio::time::timeout(GRACE, connection).await;
                log_end(client, rest.unwrap_or(Ok(())));
            }
        }
        drop(present);
        drop(place);
    }

    /// Takes out all that a connection registered.
    fn withdraw_all(&self, client: &Client, services: &BTreeSet<ServiceKey>) {
        for service in services {
            self.with(|table, now| table.withdraw(service, client.number, now));
        }
    }
}

fn log_end(client: &Client, result: hyper::Result<()>) {
    match result {
        Ok(()) => debug!(client = client.id, "registry client left"),
        Err(error) => debug!(client = client.id, %error, "registry client lost"),
    }
}

/// A client that is there; when this is dropped it is not, however that came.
struct Present {
    registry: EmbeddedRegistry,
    client: Arc<Client>,
    shutdown: watch::Receiver<bool>,
}

impl Drop for Present {
    fn drop(&mut self) {
        let clients = &self.registry.0.clients;
        let published = clients.forget(&self.client);
        clients.remove(&self.client);
        let ending = *self.shutdown.borrow() || self.shutdown.has_changed().is_err();
        if !ending {
            self.registry.withdraw_all(&self.client, &published);
        }
    }
}

/// One call.
async fn respond(
    registry: &EmbeddedRegistry,
    client: &Client,
    request: Request<Incoming>,
    opened: mpsc::Sender<NewStream>,
) -> Response<Messages> {
    let grpc = request.headers().get(header::CONTENT_TYPE);
    let grpc = grpc.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    if !grpc {
        let mut response = Response::new(Messages::End);
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return response;
    }
    match request.uri().path() {
        UNARY_PATH => match read_call(request.into_body(), max_message(client)).await {
            Ok(call) => {
                let answer = calls::answer(registry, client, &call);
                good(Messages::One(frame(&answer)))
            }
            Err(problem) => bad("3", &problem),
        },
        STREAM_PATH => {
            let (sender, receiver) = mpsc::channel(STREAM_QUEUE);
            match opened.send((request.into_body(), sender)).await {
                Ok(()) => good(Messages::Stream(receiver)),
                Err(_) => bad("14", "the connection ends"),
            }
        }
        other => bad("12", &format!("no method {other}")),
    }
}

fn max_message(client: &Client) -> usize {
    match client.is_set_up() {
        true => MAX_MESSAGE,
        false => MAX_FIRST_MESSAGE,
    }
}

async fn read_call(body: Incoming, most: usize) -> Result<Payload, String> {
    let whole = Limited::new(body, most + 5).collect();
    let body = match tokio::time::timeout(BODY_TIMEOUT, whole).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err("the request did not come in time".to_owned()),
    };
    let mut frames = Frames::new(most);
    frames.push(&body);
    let call = frames.next().map_err(|error| error.to_string())?;
    call.ok_or_else(|| FrameError::Cut.to_string())
}

fn good(body: Messages) -> Response<Messages> {
    let mut response = Response::new(body);
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, grpc);
    response
}

/// An answer without a message: the status stands in the head.
fn bad(status: &'static str, problem: &str) -> Response<Messages> {
    let mut response = good(Messages::End);
    let headers = response.headers_mut();
    headers.insert("grpc-status", HeaderValue::from_static(status));
    let text: String = problem.chars().filter(|c| matches!(c, ' '..='~')).collect();
    if let Ok(text) = HeaderValue::from_str(&text.replace('%', "%25")) {
        headers.insert("grpc-message", text);
    }
    response
}

/// The stream of a client.
struct Stream {
    incoming: Incoming,
    frames: Frames,
    outgoing: mpsc::Sender<Bytes>,
}

/// What came on it.
enum Read {
    Messages(Vec<Payload>),
    End,
}

/// Runs a client's machine until it says that the connection is to be closed.
async fn drive(
    registry: &EmbeddedRegistry,
    client: &Client,
    mut streams: mpsc::Receiver<NewStream>,
) {
    let mut stream: Option<Stream> = None;
    loop {
        while let Some(step) = client.step(registry.0.clock.now()) {
            let message = match step {
                Step::Push(id, topic) => calls::notification(registry, id, &topic),
                Step::Detect(id) => calls::detection(id),
                Step::Close => return,
            };
            if !send(stream.as_ref(), &message).await {
                return;
            }
        }
        let wake = registry.0.clock.instant(client.next_deadline());
        tokio::select! {
            () = client.wake.notified() => {}
            () = tokio::time::sleep_until(wake) => {}
            new = streams.recv() => match new {
                Some((incoming, outgoing)) => {
                    let frames = Frames::new(MAX_MESSAGE);
                    stream = Some(Stream { incoming, frames, outgoing });
                }
                None => return,
            },
            read = read(&mut stream) => match read {
                Read::Messages(messages) => {
                    for message in messages {
                        if !take(registry, client, stream.as_ref(), &message).await {
                            return;
                        }
                    }
                }
                Read::End => {
                    stream = None;
                    let published = registry.0.clients.forget(client);
                    registry.withdraw_all(client, &published);
                }
            },
        }
    }
}

/// What comes next on the stream; never without one. Can be dropped at any time.
async fn read(stream: &mut Option<Stream>) -> Read {
    let Some(stream) = stream else {
        return std::future::pending().await;
    };
    loop {
        let piece = match stream.incoming.frame().await {
            Some(Ok(frame)) => frame.into_data().ok(),
            Some(Err(_)) | None => return Read::End,
        };
        let Some(piece) = piece else { continue };
        stream.frames.push(&piece);
        let mut messages = Vec::new();
        loop {
            match stream.frames.next() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => {
                    debug!(%error, "registry client sends rubbish");
                    return Read::End;
                }
            }
        }
        if !messages.is_empty() {
            return Read::Messages(messages);
        }
    }
}

/// Takes a message of the stream; false when the connection is to be closed.
async fn take(
    registry: &EmbeddedRegistry,
    client: &Client,
    stream: Option<&Stream>,
    message: &Payload,
) -> bool {
    client.heard(registry.0.clock.now());
    if message.kind == kind::SETUP {
        client.set_up();
        return match calls::set_up_ack(message) {
            Some(ack) => send(stream, &ack).await,
            None => true,
        };
    }
    // An answer to what we sent: the number is a text, as we sent it.
    let id = request_id(&message.body);
    if let Some(id) = id.as_ref().and_then(|id| id.as_str()?.parse().ok()) {
        client.answered(id);
    }
    true
}

async fn send(stream: Option<&Stream>, message: &Payload) -> bool {
    let Some(stream) = stream else {
        return true;
    };
    let sent = stream.outgoing.send_timeout(frame(message), STREAM_TIMEOUT);
    sent.await.is_ok()
}
