//! A sample instance: a real HTTP server on a free loopback port that registers itself with the
//! registry over HTTP and beats, as any Nacos client does. Nothing of the proxy is in here.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::SERVICE;
use crate::http_client::{HttpClient, Target};

const CLIENT: HttpClient = HttpClient {
    timeout: Duration::from_secs(2),
    max_body: 16 * 1024,
};
/// Between attempts to register.
const AGAIN: Duration = Duration::from_millis(200);
/// What an answer takes at most.
const WORK_MS: std::ops::Range<u64> = 2..8;

/// How it behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Well,
    Failing,
    Silent,
}

/// A running instance; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Sample {
    /// One letter.
    pub(super) name: &'static str,
    /// Where it serves.
    pub(super) address: SocketAddr,
    mode: watch::Sender<Mode>,
    task: JoinHandle<()>,
}

impl Sample {
    /// Serves, registers and beats every `beat`.
    ///
    /// # Errors
    /// When no port can be had.
    pub(super) async fn start(
        name: &'static str,
        registry: String,
        beat: Duration,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (mode, seen) = watch::channel(Mode::Well);
        let mut fate = seen.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = serve(listener, name, seen) => {}
                () = keep_registered(name, address, Target::Tcp(registry), beat) => {}
                // Like a process that is killed: everything it holds is gone, nobody is told.
                _silent = fate.wait_for(|mode| *mode == Mode::Silent) => {}
            }
        });
        Ok(Self {
            name,
            address,
            mode,
            task,
        })
    }

    /// It answers 500 to everything.
    pub(super) fn turn_bad(&self) {
        self.mode.send_replace(Mode::Failing);
    }

    /// It answers again.
    pub(super) fn repair(&self) {
        self.mode.send_replace(Mode::Well);
    }

    /// It stops beating, accepting and answering, without a word.
    pub(super) fn fall_silent(&self) {
        self.mode.send_replace(Mode::Silent);
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, name: &'static str, mode: watch::Receiver<Mode>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    // No files left, say: it must not spin.
                    tokio::time::sleep(AGAIN).await;
                    continue;
                };
                let mode = mode.clone();
                connections.spawn(async move {
                    let service = service_fn(move |request| {
                        let mode = *mode.borrow();
                        async move { Ok::<_, Infallible>(answer(name, mode, &request).await) }
                    });
                    let io = TokioIo::new(stream);
                    // The proxy closes connections it does not need; no news.
                    let _closed = http1::Builder::new().serve_connection(io, service).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn answer(
    name: &'static str,
    mode: Mode,
    request: &Request<Incoming>,
) -> Response<Full<Bytes>> {
    let (status, text) = match mode {
        Mode::Well => {
            let work = fastrand::u64(WORK_MS);
            tokio::time::sleep(Duration::from_millis(work)).await;
            let path = request.uri().path();
            (StatusCode::OK, format!("{name} answers {path}\n"))
        }
        Mode::Failing | Mode::Silent => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("{name} has lost its database\n"),
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
        .headers_mut()
        .insert("demo-instance", HeaderValue::from_static(name));
    response
}

/// Registers until it is taken, then beats; registers again when the registry forgot it.
async fn keep_registered(name: &str, address: SocketAddr, registry: Target, beat: Duration) {
    let (ip, port) = (address.ip(), address.port());
    let base = format!("serviceName={SERVICE}&ip={ip}&port={port}");
    let register = format!("/nacos/v1/ns/instance?{base}&metadata=demo.name%3D{name}");
    let beat_path = format!("/nacos/v1/ns/instance/beat?{base}");
    loop {
        while call(&registry, Method::POST, &register).await.is_none() {
            tokio::time::sleep(AGAIN).await;
        }
        loop {
            tokio::time::sleep(beat).await;
            let answer = call(&registry, Method::PUT, &beat_path).await;
            let code = answer
                .and_then(|body| serde_json::from_slice::<serde_json::Value>(&body).ok())
                .and_then(|body| body.get("code")?.as_u64());
            if code == Some(20404) {
                break;
            }
        }
    }
}

/// The body of a 200.
async fn call(registry: &Target, method: Method, path: &str) -> Option<Bytes> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .body(Full::default())
        .ok()?;
    let response = CLIENT.send(registry, request).await.ok()?;
    (response.status() == StatusCode::OK).then(|| response.into_body())
}
