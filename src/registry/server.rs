//! Connections of the embedded registry: HTTP/1.1, bounded in number, header, body and time. An
//! accept error backs off and never ends the loop.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::answer::{Answer, Fault};
use super::push::{self, Caller};
use super::{EmbeddedRegistry, api, stopped};

/// Of a head; also the longest a kept connection is silent between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Of a whole body.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a head. Node and Python put the whole beat into the query.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Bytes of a body.
const MAX_BODY_BYTES: usize = 256 * 1024;
/// How long requests in flight may take at the end.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// Of a connection: one that never reads its answers does not keep its place for ever.
const LIFE: Duration = Duration::from_secs(600);
/// After an accept error.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl EmbeddedRegistry {
    /// Serves the open API on a listener; ends when `shutdown` becomes true (or its sender is
    /// dropped) and what is in flight is answered.
    pub async fn serve(
        self,
        listener: impl Into<Listener> + Send,
        mut shutdown: watch::Receiver<bool>,
    ) {
        let listener = listener.into();
        let push = match &listener {
            Listener::Tcp(listener) => push::socket(listener).await,
            Listener::Unix(_) => None,
        };
        let places = Arc::new(Semaphore::new(self.0.max_connections));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let accepted = tokio::select! {
                () = stopped(&mut shutdown) => break,
                accepted = accept(&listener, &places) => accepted,
            };
            match accepted {
                Ok((Stream::Tcp(stream), place)) => {
                    let caller = Caller::new(&stream, push.clone());
                    let (registry, shutdown) = (self.clone(), shutdown.clone());
                    connections.spawn(connection(registry, stream, caller, place, shutdown));
                }
                Ok((Stream::Unix(stream), place)) => {
                    let caller = Caller::default();
                    let (registry, shutdown) = (self.clone(), shutdown.clone());
                    connections.spawn(connection(registry, stream, caller, place, shutdown));
                }
                Err(error) => {
                    warn!(%error, "registry cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        let all = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, all).await.is_err() {
            connections.shutdown().await;
        }
    }
}

/// What the registry can be served on.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix socket; without UDP push.
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

async fn accept(
    listener: &Listener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(Stream, OwnedSemaphorePermit)> {
    let place = places
        .clone()
        .acquire_owned()
        .await
        .map_err(std::io::Error::other)?;
    let stream = match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            if let Err(error) = stream.set_nodelay(true) {
                debug!(%error, "registry connection without nodelay");
            }
            Stream::Tcp(stream)
        }
        Listener::Unix(listener) => Stream::Unix(listener.accept().await?.0),
    };
    Ok((stream, place))
}

/// One connection; it holds its place until it ends.
async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    registry: EmbeddedRegistry,
    stream: S,
    caller: Caller,
    place: OwnedSemaphorePermit,
    mut shutdown: watch::Receiver<bool>,
) {
    let caller = Arc::new(caller);
    let service = service_fn(move |request| {
        let (registry, caller) = (registry.clone(), caller.clone());
        async move { Ok::<_, Infallible>(answer(&registry, request, &caller).await) }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stopped(&mut shutdown) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = tokio::time::sleep(LIFE) => {
            connection.as_mut().graceful_shutdown();
            let rest = tokio::time::timeout(GRACE, connection).await;
            rest.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = result {
        debug!(%error, "registry connection ended");
    }
    drop(place);
}

async fn answer(
    registry: &EmbeddedRegistry,
    request: Request<Incoming>,
    caller: &Caller,
) -> Answer {
    let (head, body) = request.into_parts();
    match read(body).await {
        Ok(body) => api::handle(registry, &head, &body, caller),
        Err(fault) => fault.answer(),
    }
}

async fn read(body: Incoming) -> Result<Bytes, Fault> {
    let whole = Limited::new(body, MAX_BODY_BYTES).collect();
    match tokio::time::timeout(BODY_TIMEOUT, whole).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Fault::BodyTooLarge),
        Ok(Err(_)) | Err(_) => Err(Fault::BodyTooSlow),
    }
}
