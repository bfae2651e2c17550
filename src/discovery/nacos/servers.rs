//! The servers of one Nacos registry: one is kept while it works, the next is tried in the same call
//! when it fails (G16), starting at a random one. At most `max_in_flight` requests (G7).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use tokio::sync::Semaphore;
use tracing::debug;

use super::super::subscription::Failure;
use super::login::Login;
use super::{LEAST_RETRY, MOST_DELAY};
use crate::clock::Clock;
use crate::config::types::Nacos;
use crate::http_client::{HttpClient, Target};

/// The port of a server that names none.
const DEFAULT_PORT: u16 = 8848;
/// Where Nacos lives on every server.
const CONTEXT: &str = "/nacos";

#[derive(Debug)]
pub(super) struct Servers {
    targets: Vec<Target>,
    /// The one that worked last.
    current: AtomicUsize,
    in_flight: Semaphore,
    http: HttpClient,
    login: Option<Login>,
    /// Of all jitter; one short lock per poll.
    random: Mutex<fastrand::Rng>,
}

impl Servers {
    pub(super) fn new(
        config: &Nacos,
        http: HttpClient,
        max_in_flight: usize,
        clock: Clock,
        seed: u64,
    ) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let targets: Vec<Target> = config.servers.iter().map(|server| target(server)).collect();
        let start = random.usize(0..targets.len().max(1));
        Self {
            targets,
            current: AtomicUsize::new(start),
            in_flight: Semaphore::new(max_in_flight.max(1)),
            http,
            login: Login::new(config, clock, random.fork()),
            random: Mutex::new(random),
        }
    }

    /// The same with other servers.
    #[cfg(test)]
    pub(super) fn with_targets(mut self, targets: Vec<Target>) -> Self {
        self.targets = targets;
        self.current = AtomicUsize::new(0);
        self
    }

    /// Asks the current server, then the others once each. The body of a 200 answer.
    pub(super) async fn ask(
        &self,
        method: &Method,
        path: &str,
        query: &str,
    ) -> Result<Bytes, Failure> {
        let place = self.in_flight.acquire().await;
        let start = self.current.load(Ordering::Relaxed);
        let mut last = Failure::Refused("no servers are configured".to_owned());
        for turn in 0..self.targets.len() {
            let index = start.wrapping_add(turn) % self.targets.len().max(1);
            let Some(target) = self.targets.get(index) else {
                continue;
            };
            match self.ask_one(target, method, path, query).await {
                Ok(body) => {
                    self.current.store(index, Ordering::Relaxed);
                    drop(place);
                    return Ok(body);
                }
                Err(failure @ Failure::Refused(_)) => return Err(failure),
                Err(failure) => {
                    debug!(%failure, "nacos server failed");
                    last = failure;
                }
            }
        }
        self.current.store(
            start.wrapping_add(1) % self.targets.len().max(1),
            Ordering::Relaxed,
        );
        Err(last)
    }

    /// A delay of 0.9 to 1.1 times `delay`.
    pub(super) fn around(&self, delay: Duration) -> Duration {
        self.between(delay.mul_f64(0.9), delay.mul_f64(1.1))
    }

    /// Full jitter below min(delay x 2^failures, one minute).
    pub(super) fn back_off(&self, delay: Duration, failures: u32) -> Duration {
        let most = delay
            .saturating_mul(1u32 << failures.min(10))
            .min(MOST_DELAY);
        self.between(LEAST_RETRY, most)
    }

    fn between(&self, least: Duration, most: Duration) -> Duration {
        let share = self
            .random
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .f64();
        least + most.saturating_sub(least).mul_f64(share)
    }

    async fn ask_one(
        &self,
        target: &Target,
        method: &Method,
        path: &str,
        query: &str,
    ) -> Result<Bytes, Failure> {
        let (answer, used) = self.send(target, method, path, query).await?;
        let denied = matches!(
            answer.status(),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
        );
        let again = match (&self.login, denied) {
            (Some(login), true) => login.forget(used.as_deref()),
            _ => false,
        };
        let answer = if again {
            self.send(target, method, path, query).await?.0
        } else {
            answer
        };
        read(target, answer)
    }

    async fn send(
        &self,
        target: &Target,
        method: &Method,
        path: &str,
        query: &str,
    ) -> Result<(Response<Bytes>, Option<String>), Failure> {
        let token = match &self.login {
            Some(login) => login.token(&self.http, target).await?,
            None => None,
        };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{CONTEXT}{path}?{query}"))
            .header(header::USER_AGENT, USER_AGENT);
        if let Some(token) = &token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .body(Full::default())
            .map_err(|e| Failure::Refused(e.to_string()))?;
        let answer = self.http.send(target, request).await;
        Ok((answer.map_err(|error| unanswered(target, &error))?, token))
    }
}

/// Of our own: it is no sign of a client that takes UDP pushes.
pub(super) const USER_AGENT: &str = concat!("outrigger/", env!("CARGO_PKG_VERSION"));

/// The body of a good answer; by status, never by content type (2.7 of the protocol notes).
fn read(target: &Target, answer: Response<Bytes>) -> Result<Bytes, Failure> {
    let status = answer.status();
    if status == StatusCode::OK {
        return Ok(answer.into_body());
    }
    let text = message(answer.body());
    let what = format!("{}: {} {}", shown(target), status.as_u16(), text.trim());
    match status {
        StatusCode::BAD_REQUEST
        | StatusCode::NOT_FOUND
        | StatusCode::GONE
        | StatusCode::NOT_IMPLEMENTED => Err(Failure::Refused(what)),
        _ => Err(Failure::Unanswered(what)),
    }
}

/// The text of an error answer: the message where it is JSON (it has a time stamp too, which would
/// make every error a new one), and not too much of it.
fn message(body: &[u8]) -> String {
    let json = serde_json::from_slice::<serde_json::Value>(body).ok();
    let message = json.as_ref().and_then(|json| json.get("message")?.as_str());
    let text = message.map_or_else(|| String::from_utf8_lossy(body), Into::into);
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

pub(super) fn unanswered(target: &Target, error: &crate::http_client::HttpError) -> Failure {
    Failure::Unanswered(format!("{}: {error}", shown(target)))
}

pub(super) fn shown(target: &Target) -> String {
    match target {
        Target::Tcp(address) => address.clone(),
        Target::Unix(path) => path.display().to_string(),
        #[cfg(test)]
        Target::Memory(_) => "memory".to_owned(),
    }
}

fn target(server: &str) -> Target {
    let bare = server
        .strip_prefix("http://")
        .unwrap_or(server)
        .trim_end_matches('/');
    let has_port = bare.rsplit_once(':').is_some_and(|(host, port)| {
        port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
    });
    if has_port {
        return Target::Tcp(bare.to_owned());
    }
    let host = bare.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<std::net::Ipv6Addr>() {
        Ok(ip) => Target::Tcp(format!("[{ip}]:{DEFAULT_PORT}")),
        Err(_) => Target::Tcp(format!("{bare}:{DEFAULT_PORT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_are_short_and_the_same_each_time() {
        let body = br#"{"timestamp":"2026-01-02","status":403,"message":"user not found!"}"#;
        assert_eq!(message(body), "user not found!");
        assert_eq!(
            message(b"caused: Param 'ip' is required.;\n"),
            "caused: Param 'ip' is required.;"
        );
        assert_eq!(message(&[b'x'; 1000]).len(), 200);
        assert_eq!(message(&[0xff, 0xfe]).chars().count(), 2);
    }

    #[test]
    fn servers_take_the_usual_port() {
        for (given, want) in [
            ("nacos-1:8849", "nacos-1:8849"),
            ("nacos-1", "nacos-1:8848"),
            ("http://nacos-1:8849/", "nacos-1:8849"),
            ("[::1]:9", "[::1]:9"),
            ("::1", "[::1]:8848"),
            ("[::1]", "[::1]:8848"),
        ] {
            assert_eq!(shown(&target(given)), want, "{given}");
        }
    }
}
