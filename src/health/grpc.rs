//! Checks by the standard health service of gRPC: one `Check`, or a `Watch` that tells of each change.
//! The messages are `protocol/grpc_health.rs`.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::http::{drive, http2_request};
use crate::protocol::grpc_health::{self, Answers, Serving};

/// `grpc-status`: the server has no such method.
pub(super) const UNIMPLEMENTED: u32 = 12;

/// How often a watched server that says nothing is asked whether it is there, and how long it may take.
/// Servers of gRPC end connections that ping more often than each 5 minutes (`too_many_pings`).
const PING_EVERY: Duration = Duration::from_secs(330);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// What a `Check` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checked {
    /// `grpc-status`, where there was one.
    pub(super) code: Option<u32>,
    /// The last answer, where there was one.
    pub(super) serving: Option<Serving>,
}

/// How a `Watch` ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// The server cannot do it.
    Unimplemented,
    /// For now.
    Over(String),
}

pub(super) async fn check(stream: TcpStream, host: &str, service: &str) -> Result<Checked, String> {
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    let request = call(grpc_health::CHECK, host, service)?;
    let exchange = async {
        let response = sender.send_request(request).await;
        let response = response.map_err(|e| e.to_string())?;
        let mut checked = Checked {
            code: status_of(response.headers()),
            serving: None,
        };
        let code = read(response, |serving| checked.serving = Some(serving)).await?;
        checked.code = checked.code.or(code);
        Ok(checked)
    };
    drive(exchange, connection).await
}

/// Watches over a connection until it ends; `tell` hears every status. It must be answered within
/// `limit`; from then on pings tell whether the server is still there, since it may say nothing for days.
pub(super) async fn watch(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    host: &str,
    service: &str,
    limit: Duration,
    tell: impl FnMut(Serving),
) -> WatchEnd {
    let handshake = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .handshake(TokioIo::new(stream))
        .await;
    let (mut sender, connection) = match handshake {
        Ok(both) => both,
        Err(error) => return WatchEnd::Over(error.to_string()),
    };
    let exchange = async {
        let request = call(grpc_health::WATCH, host, service)?;
        let response = tokio::time::timeout(limit, sender.send_request(request)).await;
        let response = response.map_err(|_| format!("no answer within {limit:?}"))?;
        let response = response.map_err(|e| e.to_string())?;
        let code = status_of(response.headers());
        let trailing = read(response, tell).await?;
        Ok(code.or(trailing))
    };
    match drive(exchange, connection).await {
        Ok(Some(UNIMPLEMENTED)) => WatchEnd::Unimplemented,
        Ok(Some(code)) => WatchEnd::Over(format!("grpc-status {code}")),
        Ok(None) => WatchEnd::Over("no grpc-status".to_owned()),
        Err(error) => WatchEnd::Over(error),
    }
}

fn call(
    path: &str,
    host: &str,
    service: &str,
) -> Result<http::Request<http_body_util::Full<Bytes>>, String> {
    let body = grpc_health::request(service);
    let mut request = http2_request(Method::POST, path, host, body)?;
    let headers = request.headers_mut();
    let grpc = HeaderValue::from_static("application/grpc");
    headers.insert("content-type", grpc);
    headers.insert("te", HeaderValue::from_static("trailers"));
    Ok(request)
}

/// Reads statuses to the end; the `grpc-status` of the trailers.
async fn read(
    response: Response<Incoming>,
    mut tell: impl FnMut(Serving),
) -> Result<Option<u32>, String> {
    let status = response.status();
    if !status.is_success() {
        return Err(format!("answered {}", status.as_u16()));
    }
    let mut body = response.into_body();
    let mut answers = Answers::default();
    let mut code = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| e.to_string())?;
        if let Some(data) = frame.data_ref() {
            answers.push(data);
            while let Some(serving) = answers.take()? {
                tell(serving);
            }
        } else if let Some(trailers) = frame.trailers_ref() {
            code = status_of(trailers);
        }
    }
    Ok(code)
}

fn status_of(headers: &HeaderMap) -> Option<u32> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers a watch with SERVING, and then is there or not, for this long.
    async fn server(stream: tokio::io::DuplexStream, stays: bool, time: Duration) {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
        let mut body = respond.send_response(Response::new(()), false).unwrap();
        let message = Bytes::from_static(&[0, 0, 0, 0, 2, 8, 1]);
        body.send_data(message, false).unwrap();
        let there = async { while connection.accept().await.is_some() {} };
        let time = if stays { time } else { Duration::from_secs(1) };
        let _over = tokio::time::timeout(time, there).await;
        if !stays {
            // It neither answers nor closes, as behind a cable that is cut.
            tokio::time::sleep(Duration::from_secs(86_400)).await;
        }
        drop(connection);
    }

    async fn watched_for(stays: bool) -> (Duration, usize) {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let hour = Duration::from_secs(3_600);
        let server = tokio::spawn(server(far, stays, hour));
        let started = crate::clock::Clock::new();
        let begun = started.now();
        let mut heard = 0;
        let limit = Duration::from_secs(1);
        let end = watch(near, "a", "", limit, |_| heard += 1).await;
        assert!(matches!(end, WatchEnd::Over(_)));
        server.abort();
        (started.now().since(begun), heard)
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_ends_when_its_server_is_no_longer_there() {
        let (time, heard) = watched_for(false).await;
        assert!(time < Duration::from_secs(400), "{time:?}");
        assert_eq!(heard, 1);
        let (time, heard) = watched_for(true).await;
        assert!(time >= Duration::from_secs(3_600), "{time:?}");
        assert_eq!(heard, 1);
    }
}
