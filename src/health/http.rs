//! Checks by a GET over a connection of their own.

use bytes::Bytes;
use http::{Method, Request, Uri, Version};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// Bytes of a body that are read so that the connection ends in good order.
const COURTESY: usize = 64 * 1024;
/// Bytes of a body that are looked at.
const MAX_BODY: usize = 1024 * 1024;

const AGENT: &str = "outrigger-check";

/// A status, and the body where it matters.
pub(super) type Answer = (u16, Bytes);

pub(super) async fn get_http1(
    stream: TcpStream,
    path: &str,
    host: &str,
    body: bool,
) -> Result<Answer, String> {
    let request = Request::get(path)
        .header("host", host)
        .header("user-agent", AGENT)
        .header("connection", "close")
        .body(Full::<Bytes>::default())
        .map_err(|e| e.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await;
        read(response.map_err(|e| e.to_string())?, body).await
    };
    drive(exchange, connection).await
}

pub(super) async fn get_http2(
    stream: TcpStream,
    path: &str,
    host: &str,
    body: bool,
) -> Result<Answer, String> {
    let request = http2_request(Method::GET, path, host, Bytes::new())?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await;
        read(response.map_err(|e| e.to_string())?, body).await
    };
    drive(exchange, connection).await
}

async fn read(response: http::Response<Incoming>, wanted: bool) -> Result<Answer, String> {
    let status = response.status().as_u16();
    let most = if wanted { MAX_BODY } else { COURTESY };
    let body = Limited::new(response.into_body(), most).collect().await;
    match body {
        Ok(body) => Ok((status, body.to_bytes())),
        // The status decides; the rest was read out of courtesy.
        Err(_) if !wanted => Ok((status, Bytes::new())),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(format!("answered {status} with more than {most} bytes"))
        }
        Err(error) => Err(format!(
            "answered {status}, and its body broke off: {error}"
        )),
    }
}

pub(super) fn http2_request(
    method: Method,
    path: &str,
    host: &str,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, String> {
    let uri = Uri::builder()
        .scheme("http")
        .authority(host)
        .path_and_query(path)
        .build()
        .map_err(|e| e.to_string())?;
    Request::builder()
        .method(method)
        .uri(uri)
        .version(Version::HTTP_2)
        .header("user-agent", AGENT)
        .body(Full::new(body))
        .map_err(|e| e.to_string())
}

/// Runs an exchange together with its connection.
pub(super) async fn drive<T>(
    exchange: impl Future<Output = Result<T, String>>,
    connection: impl Future<Output = Result<(), hyper::Error>>,
) -> Result<T, String> {
    let (mut exchange, mut connection) = (std::pin::pin!(exchange), std::pin::pin!(connection));
    tokio::select! {
        biased;
        done = exchange.as_mut() => done,
        _ended = connection.as_mut() => exchange.await,
    }
}
