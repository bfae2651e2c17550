//! Connections of the embedded registry: HTTP/1.1, bounded in number, header, body and time. An
//! accept error backs off and never ends the loop.

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
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::answer::{Answer, Fault};
use super::push::{self, Caller};
use super::{EmbeddedRegistry, api, stopped};

/// Connections of one listener.
const MAX_CONNECTIONS: usize = 4096;
/// Of a head; also the longest a kept connection is silent between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Of a whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a head. Node and Python put the whole beat into the query.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Bytes of a body.
const MAX_BODY_BYTES: usize = 256 * 1024;
/// How long requests in flight may take at the end.
const GRACE: Duration = Duration::from_secs(5);
/// After an accept error.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl EmbeddedRegistry {
    /// Serves the open API on a listener; ends when `shutdown` becomes true (or its sender is
    /// dropped) and what is in flight is answered.
    pub async fn serve(self, listener: TcpListener, mut shutdown: watch::Receiver<bool>) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let push = push::socket(&listener).await;
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let accepted = tokio::select! {
                () = stopped(&mut shutdown) => break,
                accepted = accept(&listener, &places) => accepted,
            };
            match accepted {
                Ok((stream, place)) => {
                    let (registry, shutdown) = (self.clone(), shutdown.clone());
                    let push = push.clone();
                    connections.spawn(async move {
                        connection(registry, stream, push, shutdown).await;
                        drop(place);
                    });
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

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = places
        .clone()
        .acquire_owned()
        .await
        .map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
}

async fn connection(
    registry: EmbeddedRegistry,
    stream: TcpStream,
    push: Option<Arc<UdpSocket>>,
    mut shutdown: watch::Receiver<bool>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "registry connection without nodelay");
    }
    let caller = Arc::new(Caller::new(&stream, push));
    let service = service_fn(move |request| {
        let (registry, caller) = (registry.clone(), caller.clone());
        async move { Ok::<_, std::convert::Infallible>(answer(&registry, request, &caller).await) }
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
    };
    if let Err(error) = result {
        debug!(%error, "registry connection ended");
    }
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
