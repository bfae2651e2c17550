//! The servers of one registry: one is kept while it works, the next is tried in the same call when
//! it fails (G16), starting at a random one. At most so many requests at once (G7). Each request may
//! carry a credential, which is renewed once when it is refused (G17).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use tokio::sync::Semaphore;
use tracing::debug;

use super::auth::{Auth, Credential};
use super::body::BodyStream;
use super::tls::TlsClient;
use super::{HttpClient, HttpError, Target};

/// Of our own: no registry takes us for one of its stock clients.
pub const USER_AGENT: &str = concat!("outrigger/", env!("CARGO_PKG_VERSION"));

/// One server.
#[derive(Clone, Debug)]
pub struct Server {
    /// Where it listens.
    pub target: Target,
    /// Put before each path: empty, or `/eureka`, say.
    pub prefix: String,
}

impl Server {
    /// Reads `https://host:port/prefix`, `http://...`, or `host:port`, which is TLS where `tls` is
    /// configured. `port` is that of a server without a scheme that names none.
    pub fn parse(text: &str, port: u16, tls: &Arc<TlsClient>) -> Self {
        let (secure, port, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, 443, rest),
            Some((_, rest)) => (false, 80, rest),
            None => (tls.enabled(), port, text),
        };
        let (authority, prefix) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let address = with_port(authority, port);
        let target = match secure {
            true => Target::Tls(address, tls.clone()),
            false => Target::Tcp(address),
        };
        let prefix = prefix.trim_end_matches('/').to_owned();
        Self { target, prefix }
    }
}

fn with_port(authority: &str, port: u16) -> String {
    let has_port = authority.rsplit_once(':').is_some_and(|(host, port)| {
        port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
    });
    if has_port {
        return authority.to_owned();
    }
    let host = authority.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<std::net::Ipv6Addr>() {
        Ok(ip) => format!("[{ip}]:{port}"),
        Err(_) => format!("{authority}:{port}"),
    }
}

/// A request to whichever server works.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its method.
    pub method: Method,
    /// Path and query, behind the server's prefix.
    pub path: String,
    /// Beside those of the client.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Its body.
    pub body: Bytes,
    /// How long the server may hold the answer back. Such a request takes no place of the requests
    /// in flight: it costs the registry no work.
    pub wait: Duration,
}

impl Call {
    /// A request without a body.
    pub fn new(method: Method, path: String) -> Self {
        Self {
            method,
            path,
            headers: Vec::new(),
            body: Bytes::new(),
            wait: Duration::ZERO,
        }
    }
}

/// An answer, and whose.
#[derive(Debug)]
pub struct Answered {
    /// Of whatever status the caller takes.
    pub response: Response<Bytes>,
    /// The number of the server: an index or a hash of another one means nothing there.
    pub server: usize,
}

/// What an answer is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the answer.
    Take,
    /// This server cannot now; another one may.
    Next,
    /// This server will never answer this.
    Refuse,
}

/// Why a call has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// It answers, but refuses this very request: the configuration is wrong.
    #[error("{0}")]
    Refused(String),
    /// No server answered, or not in a usable way.
    #[error("{0}")]
    Unanswered(String),
}

/// By status alone: 200 is the answer, what says "not like this" is refused, the rest may pass.
pub fn by_status(answer: &Response<Bytes>) -> Verdict {
    match answer.status() {
        StatusCode::OK => Verdict::Take,
        StatusCode::BAD_REQUEST
        | StatusCode::NOT_FOUND
        | StatusCode::METHOD_NOT_ALLOWED
        | StatusCode::GONE
        | StatusCode::NOT_IMPLEMENTED => Verdict::Refuse,
        _ => Verdict::Next,
    }
}

/// The servers of one registry.
#[derive(Debug)]
pub struct Servers {
    list: RwLock<Arc<[Server]>>,
    /// The one that worked last.
    current: AtomicUsize,
    in_flight: Semaphore,
    http: HttpClient,
    auth: Option<Arc<dyn Auth>>,
}

impl Servers {
    /// `start` is the number of the first one to be asked; draw it by chance.
    pub fn new(list: Vec<Server>, start: usize, http: HttpClient, max_in_flight: usize) -> Self {
        Self {
            list: RwLock::new(list.into()),
            current: AtomicUsize::new(start),
            in_flight: Semaphore::new(max_in_flight.max(1)),
            http,
            auth: None,
        }
    }

    /// The same with a credential at each request.
    #[must_use]
    pub fn with_auth(mut self, auth: Option<Arc<dyn Auth>>) -> Self {
        self.auth = auth;
        self
    }

    /// Who we are there, for what is said beside HTTP.
    pub fn auth(&self) -> Option<Arc<dyn Auth>> {
        self.auth.clone()
    }

    /// Other servers from now on; what is in flight goes on.
    pub fn replace(&self, list: Vec<Server>) {
        let mut current = self.list.write().unwrap_or_else(PoisonError::into_inner);
        *current = list.into();
    }

    /// The same with other servers, beginning at the first.
    #[cfg(test)]
    pub(crate) fn with_list(self, list: Vec<Server>) -> Self {
        self.replace(list);
        self.current.store(0, Ordering::Relaxed);
        self
    }

    /// Those asked now.
    pub fn list(&self) -> Arc<[Server]> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.clone()
    }

    /// Asks the current server, then the others once each, until `judge` takes an answer. A refusal of
    /// one may be its own: it runs another release, or lacks something.
    ///
    /// # Errors
    /// The first refusal, or the last server's failure.
    pub async fn ask(
        &self,
        call: &Call,
        judge: impl Fn(&Response<Bytes>) -> Verdict + Send + Sync,
    ) -> Result<Answered, CallError> {
        let place = self.place(call.wait).await;
        let list = self.list();
        let start = self.current.load(Ordering::Relaxed);
        let mut last = CallError::Refused("no servers are configured".to_owned());
        let mut refused = None;
        for turn in 0..list.len() {
            let index = start.wrapping_add(turn) % list.len().max(1);
            let Some(server) = list.get(index) else {
                continue;
            };
            match self.ask_one(server, call, &judge).await {
                Ok(response) => {
                    self.current.store(index, Ordering::Relaxed);
                    drop(place);
                    return Ok(Answered {
                        response,
                        server: index,
                    });
                }
                Err(refusal @ CallError::Refused(_)) => refused = refused.or(Some(refusal)),
                Err(failure) => {
                    debug!(%failure, "registry server failed");
                    last = failure;
                }
            }
        }
        self.advance(start, list.len());
        Err(refused.unwrap_or(last))
    }

    /// Opens a stream at the current server. Any status is an answer but a 401 or 403 that a new
    /// credential cures. A failure makes the next server the current one.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn open(&self, call: &Call) -> Result<Response<BodyStream>, CallError> {
        let list = self.list();
        let start = self.current.load(Ordering::Relaxed);
        let Some(server) = list.get(start % list.len().max(1)) else {
            return Err(CallError::Refused("no servers are configured".to_owned()));
        };
        let opened = self.open_one(server, call).await;
        if opened.is_err() {
            self.advance(start, list.len());
        }
        opened
    }

    fn advance(&self, from: usize, length: usize) {
        let next = from.wrapping_add(1) % length.max(1);
        self.current.store(next, Ordering::Relaxed);
    }

    async fn place(&self, wait: Duration) -> Option<tokio::sync::SemaphorePermit<'_>> {
        if wait > Duration::ZERO {
            return None;
        }
        self.in_flight.acquire().await.ok()
    }

    async fn ask_one(
        &self,
        server: &Server,
        call: &Call,
        judge: &(impl Fn(&Response<Bytes>) -> Verdict + Send + Sync),
    ) -> Result<Response<Bytes>, CallError> {
        let mut tries = 0;
        loop {
            let used = self.credential(server).await?;
            let request = request(server, call, &used)?;
            let sent = self
                .http
                .send_waiting(&server.target, request, call.wait)
                .await;
            let answer = sent.map_err(|error| unanswered(server, &error))?;
            tries += 1;
            if tries == 1 && self.may_do_better(answer.status(), &used) {
                continue;
            }
            return match judge(&answer) {
                Verdict::Take => Ok(answer),
                Verdict::Next => Err(CallError::Unanswered(told(server, &answer))),
                Verdict::Refuse => Err(CallError::Refused(told(server, &answer))),
            };
        }
    }

    async fn open_one(
        &self,
        server: &Server,
        call: &Call,
    ) -> Result<Response<BodyStream>, CallError> {
        let place = self.place(call.wait).await;
        let mut tries = 0;
        loop {
            let used = self.credential(server).await?;
            let request = request(server, call, &used)?;
            let patience = self.http.timeout.saturating_add(call.wait);
            let opened = self.http.open(&server.target, request, patience).await;
            let answer = opened.map_err(|error| unanswered(server, &error))?;
            tries += 1;
            if tries > 1 || !self.may_do_better(answer.status(), &used) {
                drop(place);
                return Ok(answer);
            }
        }
    }

    async fn credential(&self, server: &Server) -> Result<Credential, CallError> {
        match &self.auth {
            Some(auth) => auth.credential(&self.http, server).await,
            None => Ok(None),
        }
    }

    fn may_do_better(&self, status: StatusCode, used: &Credential) -> bool {
        let denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        denied && self.auth.as_ref().is_some_and(|auth| auth.denied(used))
    }
}

fn request(
    server: &Server,
    call: &Call,
    credential: &Credential,
) -> Result<Request<Full<Bytes>>, CallError> {
    let mut request = Request::builder()
        .method(&call.method)
        .uri(format!("{}{}", server.prefix, call.path));
    if !call
        .headers
        .iter()
        .any(|(name, _)| name == header::USER_AGENT)
    {
        request = request.header(header::USER_AGENT, USER_AGENT);
    }
    for (name, value) in call.headers.iter().chain(credential) {
        request = request.header(name, value);
    }
    request
        .body(Full::new(call.body.clone()))
        .map_err(|error| CallError::Refused(error.to_string()))
}

fn unanswered(server: &Server, error: &HttpError) -> CallError {
    CallError::Unanswered(format!("{}: {error}", server.target))
}

/// An answer that is none, for people.
fn told(server: &Server, answer: &Response<Bytes>) -> String {
    let text = message(answer.body());
    let status = answer.status().as_u16();
    format!("{}: {status} {}", server.target, text.trim())
        .trim_end()
        .to_owned()
}

/// The text of an error answer: the message where it is JSON (it has a time stamp too, which would
/// make every error a new one), and not too much of it.
pub fn message(body: &[u8]) -> String {
    let json = serde_json::from_slice::<serde_json::Value>(body).ok();
    let message = json.as_ref().and_then(|json| json.get("message")?.as_str());
    let text = message.map_or_else(|| String::from_utf8_lossy(body), Into::into);
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests;
