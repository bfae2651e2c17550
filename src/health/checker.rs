//! The checks: a TCP connect, an HTTP GET, the standard health service of gRPC, a program. Each is one
//! connection of its own, beside the pools.
//! Next: `health/http.rs`, `health/grpc.rs`, `health/exec.rs`; what an answer must be is
//! `health/expect.rs`.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use super::exec::{self, Trouble};
use super::expect::Expectation;
use super::grpc::{self, Checked, UNIMPLEMENTED, WatchEnd};
use super::http::{Answer, get_http1, get_http2};
use crate::endpoint::Address;
use crate::outlier::classify::{OutcomeClass, classify_grpc, classify_http};
use crate::outlier::policy::Policy;
use crate::protocol::grpc_health::Serving;

/// What a check does; one for all instances of an upstream.
#[derive(Clone, Debug)]
pub enum Check {
    /// A TCP connection is accepted.
    Tcp,
    /// A GET.
    Http(Arc<HttpCheck>),
    /// The standard health service of gRPC.
    Grpc(Arc<GrpcCheck>),
    /// A program.
    Exec(Arc<ExecCheck>),
}

/// A GET, and what its answer must be.
#[derive(Clone, Debug)]
pub struct HttpCheck {
    /// Path and query.
    pub path: Arc<str>,
    /// Host; `None`: the address.
    pub host: Option<Arc<str>>,
    /// Over HTTP/2 with prior knowledge.
    pub http2: bool,
    /// Without a status everything is good that is no failure under the policy.
    pub expect: Expectation,
}

/// `grpc.health.v1.Health/Check`.
#[derive(Clone, Debug)]
pub struct GrpcCheck {
    /// Authority; `None`: the address.
    pub host: Option<Arc<str>>,
    /// It must answer SERVING for this service (empty: the server as a whole). `None`: whatever shows
    /// that the server is there is good, UNIMPLEMENTED too.
    pub service: Option<Arc<str>>,
}

/// A program that ends with 0.
#[derive(Clone, Debug)]
pub struct ExecCheck {
    /// It and its arguments.
    pub command: Vec<String>,
    /// Told to it as `CHECK_SERVICE`.
    pub service: Arc<str>,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// As an outcome of the instance; ignored: something was wrong on our side.
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

    fn of(result: Result<String, String>) -> Self {
        result.map_or_else(Self::failed, Self::good)
    }

    /// Whether it is good.
    pub fn is_good(&self) -> bool {
        self.class == OutcomeClass::Success
    }
}

/// Runs a check against `address` within `timeout`.
pub async fn run(check: &Check, address: &Address, timeout: Duration, policy: &Policy) -> Verdict {
    if let Check::Exec(check) = check {
        return run_program(check, address, timeout).await;
    }
    let work = async {
        let stream = match TcpStream::connect(address.as_str()).await {
            Ok(stream) => stream,
            Err(error) if crate::upstream::connect::is_our_own(&error) => {
                return Verdict {
                    class: OutcomeClass::Ignored,
                    message: format!("not checked, no connection on our side: {error}"),
                };
            }
            Err(error) => return Verdict::failed(format!("no connection: {error}")),
        };
        match check {
            Check::Tcp | Check::Exec(_) => Verdict::good("the connection was accepted"),
            Check::Http(check) => {
                let host = check.host.as_deref().unwrap_or(address.as_str());
                let body = check.expect.reads_body();
                let answer = if check.http2 {
                    get_http2(stream, &check.path, host, body).await
                } else {
                    get_http1(stream, &check.path, host, body).await
                };
                judge_http(answer, &check.expect, policy)
            }
            Check::Grpc(check) => {
                let host = check.host.as_deref().unwrap_or(address.as_str());
                let service = check.service.as_deref();
                let answer = grpc::check(stream, host, service.unwrap_or_default()).await;
                match (answer, service) {
                    (Err(error), _) => Verdict::failed(error),
                    (Ok(answer), Some(_)) => judge_serving(answer),
                    (Ok(answer), None) => judge_grpc(answer, policy),
                }
            }
        }
    };
    tokio::time::timeout(timeout, Box::pin(work))
        .await
        .unwrap_or_else(|_| Verdict::failed(format!("no answer within {timeout:?}")))
}

/// Watches an instance by the health service of gRPC; `tell` hears every status. Connecting and the
/// first answer must come within `timeout`.
pub async fn watch(
    check: &GrpcCheck,
    address: &Address,
    timeout: Duration,
    tell: impl FnMut(Serving),
) -> WatchEnd {
    let connected = tokio::time::timeout(timeout, TcpStream::connect(address.as_str())).await;
    match connected {
        Ok(Ok(stream)) => {
            let host = check.host.as_deref().unwrap_or(address.as_str());
            let service = check.service.as_deref().unwrap_or_default();
            Box::pin(grpc::watch(stream, host, service, timeout, tell)).await
        }
        Ok(Err(error)) => WatchEnd::Over(format!("no connection: {error}")),
        Err(_) => WatchEnd::Over(format!("no connection within {timeout:?}")),
    }
}

async fn run_program(check: &ExecCheck, address: &Address, timeout: Duration) -> Verdict {
    let (host, port) = address.as_str().rsplit_once(':').unwrap_or_default();
    let environment = [
        ("CHECK_ADDRESS", address.to_string()),
        ("CHECK_HOST", host.to_owned()),
        ("CHECK_PORT", port.to_owned()),
        ("CHECK_SERVICE", check.service.to_string()),
    ];
    match exec::program(&check.command, &environment, timeout).await {
        Ok(said) if said.is_empty() => Verdict::good("the program ended with 0"),
        Ok(said) => Verdict::good(said),
        Err(Trouble::Ours(error)) => Verdict {
            class: OutcomeClass::Ignored,
            message: format!("not checked: {error}"),
        },
        Err(Trouble::Bad(error)) => Verdict::failed(error),
    }
}

fn judge_http(answer: Result<Answer, String>, expect: &Expectation, policy: &Policy) -> Verdict {
    let (status, body) = match answer {
        Ok(answer) => answer,
        Err(error) => return Verdict::failed(error),
    };
    match expect.judge(status, &body) {
        Ok(message) if expect.status.is_none() => Verdict {
            class: classify_http(status, policy),
            message,
        },
        judged => Verdict::of(judged),
    }
}

fn judge_serving(answer: Checked) -> Verdict {
    Verdict::of(match (answer.code, answer.serving) {
        (Some(0), Some(Serving::Serving)) => Ok("SERVING".to_owned()),
        (Some(0), Some(other)) => Err(format!(
            "its health service says that it is not serving: {}",
            other.as_str()
        )),
        (Some(0), None) => Err("its health service says nothing".to_owned()),
        (Some(UNIMPLEMENTED), _) => Err("it has no health service (grpc-status 12)".to_owned()),
        (Some(5), _) => {
            Err("its health service does not know the service (grpc-status 5)".to_owned())
        }
        (Some(code), _) => Err(format!("grpc-status {code}")),
        (None, _) => Err("no grpc-status".to_owned()),
    })
}

fn judge_grpc(answer: Checked, policy: &Policy) -> Verdict {
    match (answer.code, answer.serving) {
        (Some(0), serving) if serving != Some(Serving::Serving) => {
            Verdict::failed("its health service says that it is not serving")
        }
        (Some(code), _) if code == 0 || code == UNIMPLEMENTED => {
            Verdict::good(format!("grpc-status {code}"))
        }
        (code, _) => {
            let text = code.map_or_else(
                || "no grpc-status".to_owned(),
                |c| format!("grpc-status {c}"),
            );
            Verdict {
                class: classify_grpc(code, policy),
                message: text,
            }
        }
    }
}
