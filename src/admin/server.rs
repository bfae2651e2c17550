//! Connections of both listeners: HTTP/1.1, bounded in number, head and time. An accept error backs
//! off and never ends the loop.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::answer::Answer;
use crate::listener::bind::Bound;

/// Of a head; also the longest a kept connection is silent between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a head.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Fields of a head.
const MAX_HEADERS: usize = 64;
/// A connection takes no further request after this time ...
const LIFE: Duration = Duration::from_secs(60);
/// ... and a reader that stalls is cut after this one, or when all ends.
const GRACE: Duration = Duration::from_secs(2);
/// After an accept error.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A stream whose reader takes nothing for so long is cut, once its connection is that old.
const STALL: Duration = Duration::from_secs(15);

/// How often the body of a streamed answer was asked for more; an extension of that answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(pub(super) Arc<AtomicU64>);

/// Bound sockets inside a runtime.
#[derive(Debug, Default)]
pub struct Doors {
    tcp: Vec<TcpListener>,
    unix: Vec<(PathBuf, UnixListener)>,
}

impl Doors {
    /// Takes over what was bound; inside a runtime.
    ///
    /// # Errors
    /// When the runtime cannot watch a socket.
    pub fn new(bound: Bound) -> io::Result<Self> {
        let mut doors = Self::default();
        for socket in bound.tcp.into_iter().flat_map(|address| address.sockets) {
            doors.tcp.push(TcpListener::from_std(socket)?);
        }
        for (path, socket) in bound.unix {
            doors.unix.push((path, UnixListener::from_std(socket)?));
        }
        Ok(doors)
    }
}

/// Bounds of a listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) connections: usize,
}

/// Where a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Local {
    /// On this address.
    Tcp(Option<IpAddr>),
    /// Over a Unix socket.
    Unix,
}

/// Serves until told to stop, then ends what is in flight.
pub(super) async fn serve<H, F>(
    doors: Doors,
    bounds: Bounds,
    shutdown: watch::Receiver<bool>,
    handler: H,
) where
    H: Fn(Request<Incoming>, Local) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(bounds.connections));
    let mut doors_open = JoinSet::new();
    for listener in doors.tcp {
        let (places, shutdown, handler) = (places.clone(), shutdown.clone(), handler.clone());
        doors_open.spawn(accept_all(Door::Tcp(listener), places, shutdown, handler));
    }
    let mut paths = Vec::new();
    for (path, listener) in doors.unix {
        let (places, shutdown, handler) = (places.clone(), shutdown.clone(), handler.clone());
        doors_open.spawn(accept_all(Door::Unix(listener), places, shutdown, handler));
        paths.push(path);
    }
    while doors_open.join_next().await.is_some() {}
    for path in paths {
        if let Err(error) = std::fs::remove_file(&path) {
            debug!(%error, path = %path.display(), "socket file is left behind");
        }
    }
}

enum Door {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Door {
    async fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Tcp(listener) => Stream::Tcp(listener.accept().await?.0),
            Self::Unix(listener) => Stream::Unix(listener.accept().await?.0),
        })
    }
}

async fn accept_all<H, F>(
    door: Door,
    places: Arc<Semaphore>,
    mut shutdown: watch::Receiver<bool>,
    handler: H,
) where
    H: Fn(Request<Incoming>, Local) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut failures = 0_u32;
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            () = stopped(&mut shutdown) => break,
            accepted = accept(&door, &places) => accepted,
        };
        match accepted {
            Ok((stream, place)) => {
                let (handler, shutdown) = (handler.clone(), shutdown.clone());
                connections.spawn(async move {
                    match stream {
                        Stream::Tcp(stream) => {
                            let local = Local::Tcp(stream.local_addr().ok().map(|a| a.ip()));
                            connection(stream, local, shutdown, handler).await;
                        }
                        Stream::Unix(stream) => {
                            connection(stream, Local::Unix, shutdown, handler).await;
                        }
                    }
                    drop(place);
                });
            }
            Err(error) => {
                // The first of a row and then one in a hundred: no flood.
                if failures.is_multiple_of(100) {
                    warn!(%error, failures, "admin or telemetry cannot accept a connection");
                }
                failures = failures.wrapping_add(1);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(door);
    // Each ends itself within the grace.
    while connections.join_next().await.is_some() {}
}

async fn accept(
    door: &Door,
    places: &Arc<Semaphore>,
) -> io::Result<(Stream, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await;
    let place = place.map_err(io::Error::other)?;
    Ok((door.accept().await?, place))
}

async fn connection<S, H, F>(
    stream: S,
    local: Local,
    mut shutdown: watch::Receiver<bool>,
    handler: H,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Fn(Request<Incoming>, Local) -> F + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let stream_now: Arc<Mutex<Option<Progress>>> = Arc::default();
    let current = Arc::clone(&stream_now);
    let service = service_fn(move |request| {
        let answer = handler(request, local);
        let current = Arc::clone(&current);
        async move {
            let answer = answer.await;
            let progress = answer.extensions().get::<Progress>().cloned();
            *current.lock().unwrap_or_else(PoisonError::into_inner) = progress;
            Ok::<_, Infallible>(answer)
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stopped(&mut shutdown) => finish(connection).await,
        () = tokio::time::sleep(LIFE) => {
            let progress = stream_now.lock().unwrap_or_else(PoisonError::into_inner).take();
            match progress {
                None => finish(connection).await,
                Some(progress) => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        result = connection.as_mut() => result,
                        () = stopped(&mut shutdown) => finish(connection).await,
                        () = stalled(&progress) => Ok(()),
                    }
                }
            }
        }
    };
    if let Err(error) = result {
        debug!(%error, "admin or telemetry connection ended");
    }
}

/// Answers the request in flight; what takes too long is cut.
async fn finish<S, B, V>(
    mut connection: std::pin::Pin<&mut http1::Connection<S, V>>,
) -> hyper::Result<()>
where
    http1::Connection<S, V>: Future<Output = hyper::Result<()>>,
    V: hyper::service::HttpService<Incoming, ResBody = B>,
    V::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S: hyper::rt::Read + hyper::rt::Write + Unpin,
    B: hyper::body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    connection.as_mut().graceful_shutdown();
    tokio::time::timeout(GRACE, connection)
        .await
        .unwrap_or(Ok(()))
}

/// Ends when nothing was asked for during [`STALL`].
async fn stalled(progress: &Progress) {
    loop {
        let before = progress.0.load(Relaxed);
        tokio::time::sleep(STALL).await;
        if progress.0.load(Relaxed) == before {
            return;
        }
    }
}

/// Ends when `shutdown` is true or its sender is gone.
async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which ends us just as well.
    let _gone = shutdown.wait_for(|stop| *stop).await;
}
