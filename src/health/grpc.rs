//! Checks by the standard health service of gRPC: one `Check`, or a `Watch` that tells of each change.
//! The messages are `protocol/grpc_health.rs`.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::http::{drive, http2_request};
use crate::protocol::grpc_health::{self, Answers, Serving};

/// `grpc-status`: the server has no such method.
pub(super) const UNIMPLEMENTED: u32 = 12;

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

/// Watches over a connection until it ends; `tell` hears every status.
pub(super) async fn watch(
    stream: TcpStream,
    host: &str,
    service: &str,
    tell: impl FnMut(Serving),
) -> WatchEnd {
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = match handshake {
        Ok(both) => both,
        Err(error) => return WatchEnd::Over(error.to_string()),
    };
    let exchange = async {
        let request = call(grpc_health::WATCH, host, service)?;
        let response = sender.send_request(request).await;
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
