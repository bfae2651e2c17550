//! The checks: a TCP connect, an HTTP GET, and for trials without a configured check the standard
//! health service of gRPC. Each is one connection of its own, beside the pools.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::endpoint::Address;
use crate::outlier::classify::{OutcomeClass, classify_grpc, classify_http};
use crate::outlier::policy::{CodeSet, Policy};

/// Bytes of an answer's body that are read, so that the connection ends in good order.
const MAX_BODY: usize = 64 * 1024;

/// What a check does.
#[derive(Clone, Debug)]
pub enum Check {
    /// A TCP connection is accepted.
    Tcp,
    /// A GET, judged by its status.
    Http {
        /// Path and query.
        path: String,
        /// Host.
        host: String,
        /// Over HTTP/2 with prior knowledge.
        http2: bool,
        /// Statuses that are good; `None`: everything that is no failure under the policy.
        expect: Option<CodeSet>,
    },
    /// `grpc.health.v1.Health/Check`; UNIMPLEMENTED is a good answer.
    Grpc {
        /// Authority.
        host: String,
    },
    /// `grpc.health.v1.Health/Check` must answer SERVING.
    GrpcServing {
        /// Authority.
        host: String,
        /// Asked for; empty: the server as a whole.
        service: String,
    },
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// As an outcome of the instance.
    pub class: OutcomeClass,
    /// For people.
    pub message: String,
}

impl Verdict {
    fn failed(message: impl Into<String>) -> Self {
        Self {
            class: OutcomeClass::NetworkError,
            message: message.into(),
        }
    }

    fn good(message: impl Into<String>) -> Self {
        Self {
            class: OutcomeClass::Success,
            message: message.into(),
        }
    }

    /// Whether it is good.
    pub fn is_good(&self) -> bool {
        self.class == OutcomeClass::Success
    }
}

/// Runs a check against `address` within `timeout`.
pub async fn run(check: &Check, address: &Address, timeout: Duration, policy: &Policy) -> Verdict {
    let work = async {
        let stream = match TcpStream::connect(address.as_str()).await {
            Ok(stream) => stream,
            Err(error) => return Verdict::failed(format!("no connection: {error}")),
        };
        match check {
            Check::Tcp => Verdict::good("the connection was accepted"),
            Check::Http {
                path,
                host,
                http2,
                expect,
            } => {
                let answer = if *http2 {
                    get_http2(stream, path, host).await
                } else {
                    get_http1(stream, path, host).await
                };
                judge_http(answer, expect.as_ref(), policy)
            }
            Check::Grpc { host } => judge_grpc(grpc_health(stream, host, "").await, policy),
            Check::GrpcServing { host, service } => {
                match grpc_health(stream, host, service).await {
                    Ok(Some(0)) => Verdict::good("SERVING"),
                    Ok(Some(code)) => Verdict::failed(format!("grpc-status {code}")),
                    Ok(None) => Verdict::failed("no grpc-status"),
                    Err(error) => Verdict::failed(error),
                }
            }
        }
    };
    tokio::time::timeout(timeout, Box::pin(work))
        .await
        .unwrap_or_else(|_| Verdict::failed(format!("no answer within {timeout:?}")))
}

fn judge_http(
    answer: Result<StatusCode, String>,
    expect: Option<&CodeSet>,
    policy: &Policy,
) -> Verdict {
    let status = match answer {
        Ok(status) => status.as_u16(),
        Err(error) => return Verdict::failed(error),
    };
    let message = format!("answered {status}");
    match expect {
        Some(expect) if expect.contains(status) => Verdict::good(message),
        Some(_) => Verdict::failed(format!("{message}, which is not expected")),
        None => Verdict {
            class: classify_http(status, policy),
            message,
        },
    }
}

fn judge_grpc(answer: Result<Option<u32>, String>, policy: &Policy) -> Verdict {
    const UNIMPLEMENTED: u32 = 12;
    match answer {
        Ok(Some(code)) if code == 0 || code == UNIMPLEMENTED => {
            Verdict::good(format!("grpc-status {code}"))
        }
        Ok(code) => {
            let text = code.map_or_else(
                || "no grpc-status".to_owned(),
                |c| format!("grpc-status {c}"),
            );
            Verdict {
                class: classify_grpc(code, policy),
                message: text,
            }
        }
        Err(error) => Verdict::failed(error),
    }
}

async fn get_http1(stream: TcpStream, path: &str, host: &str) -> Result<StatusCode, String> {
    let request = Request::get(path)
        .header("host", host)
        .header("user-agent", "outrigger-check")
        .header("connection", "close")
        .body(Full::<Bytes>::default())
        .map_err(|e| e.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    let exchange = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|e| e.to_string())?;
        let status = response.status();
        // The status decides; the rest is read out of courtesy.
        let _rest = Limited::new(response.into_body(), MAX_BODY).collect().await;
        Ok(status)
    };
    drive(exchange, connection).await
}

async fn get_http2(stream: TcpStream, path: &str, host: &str) -> Result<StatusCode, String> {
    let request = http2_request(Method::GET, path, host, Bytes::new())?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    let exchange = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|e| e.to_string())?;
        Ok(response.status())
    };
    drive(exchange, connection).await
}

async fn grpc_health(stream: TcpStream, host: &str, service: &str) -> Result<Option<u32>, String> {
    let body = health_request(service)?;
    let mut request = http2_request(Method::POST, "/grpc.health.v1.Health/Check", host, body)?;
    let headers = request.headers_mut();
    headers.insert(
        "content-type",
        http::HeaderValue::from_static("application/grpc"),
    );
    headers.insert("te", http::HeaderValue::from_static("trailers"));
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    let exchange = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|e| e.to_string())?;
        let in_head = status_of(response.headers());
        let body = Limited::new(response.into_body(), MAX_BODY);
        let whole = body.collect().await.map_err(|e| e.to_string())?;
        let code = in_head.or_else(|| whole.trailers().and_then(status_of));
        let serving = in_head.is_some() || is_serving(&whole.to_bytes());
        if code == Some(0) && !serving {
            return Err("its health service says that it is not serving".to_owned());
        }
        Ok(code)
    };
    drive(exchange, connection).await
}

/// A `HealthCheckRequest` whose `service` (field 1) this is, behind a flag byte and four of length.
fn health_request(service: &str) -> Result<Bytes, String> {
    let Ok(length) = u8::try_from(service.len()) else {
        return Err("the name of the service is too long".to_owned());
    };
    if length > 125 {
        return Err("the name of the service is too long".to_owned());
    }
    let mut body = vec![0, 0, 0, 0, 0];
    if length > 0 {
        body = vec![0, 0, 0, 0, length + 2, 0x0a, length];
        body.extend(service.bytes());
    }
    Ok(Bytes::from(body))
}

/// `HealthCheckResponse.status` (field 1) is SERVING (1).
fn is_serving(bytes: &[u8]) -> bool {
    bytes.get(5..7) == Some(&[0x08, 0x01])
}

fn status_of(headers: &http::HeaderMap) -> Option<u32> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

fn http2_request(
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
        .header("user-agent", "outrigger-check")
        .body(Full::new(body))
        .map_err(|e| e.to_string())
}

/// Runs an exchange together with its connection.
async fn drive<T>(
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
