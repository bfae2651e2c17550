//! The access token of one Nacos registry. All servers of a cluster share the key that signs it, so
//! one token serves all. The password stands in the body, never in a query (access logs), and its
//! file is read again for each login (G17).

use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;
use form_urlencoded::Serializer;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::Full;
use serde::Deserialize;

use crate::clock::{Clock, Timestamp};
use crate::config::types::{Nacos, Secret};
use crate::http_client::HttpClient;
use crate::http_client::auth::{Auth, Credential, Credentials};
use crate::http_client::servers::{CallError, Server, USER_AGENT};

/// A token that was refused is replaced, and a denied login repeated, at most this often.
const RENEW_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Login {
    username: String,
    password_file: Option<PathBuf>,
    password: Option<Secret>,
    clock: Clock,
    /// Held during a login, so that all who need a token share one.
    token: tokio::sync::Mutex<()>,
    state: std::sync::Mutex<State>,
}

struct State {
    token: Option<(String, Timestamp)>,
    forgotten: Option<Timestamp>,
    /// A login that was denied, and when: a wrong password is not sent at every poll.
    denied: Option<(CallError, Timestamp)>,
    /// The last login that failed: where, why, and when that was known.
    failed: Option<(String, CallError, Timestamp)>,
    random: fastrand::Rng,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("logged_in", &self.token.is_some())
            .finish()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LoggedIn {
    access_token: String,
    #[serde(default)]
    token_ttl: Option<u64>,
}

impl Login {
    /// `None` when no user is configured.
    pub(super) fn new(config: &Nacos, clock: Clock, random: fastrand::Rng) -> Option<Self> {
        Some(Self {
            username: config.username.clone().filter(|name| !name.is_empty())?,
            password_file: config.password_file.clone(),
            password: config.password.clone(),
            clock,
            token: tokio::sync::Mutex::default(),
            state: std::sync::Mutex::new(State {
                token: None,
                forgotten: None,
                denied: None,
                failed: None,
                random,
            }),
        })
    }

    /// The token, after a login if it is due.
    async fn token(&self, http: &HttpClient, server: &Server) -> Result<String, CallError> {
        let began = self.clock.now();
        let login = self.token.lock().await;
        if let Some(token) = self.valid() {
            return Ok(token);
        }
        if let Some(failure) = self.denied() {
            return Err(failure);
        }
        let target = server.target.to_string();
        if let Some(failure) = self.failed(&target, began) {
            return Err(failure);
        }
        let logged_in = self.log_in(http, server).await.inspect_err(|failure| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.failed = Some((target, failure.clone(), self.clock.now()));
        })?;
        let ttl = Duration::from_secs(logged_in.token_ttl.unwrap_or(18_000));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Renewed a fifteenth to a tenth of its life before its end.
        let early = 1.0 / 15.0 + state.random.f64() * (0.1 - 1.0 / 15.0);
        let until = self.clock.now() + ttl.saturating_sub(ttl.mul_f64(early));
        state.token = Some((logged_in.access_token.clone(), until));
        drop(state);
        drop(login);
        Ok(logged_in.access_token)
    }

    /// Notes that a token was refused; true when another try with a new one makes sense.
    fn forget(&self, used: Option<&str>) -> bool {
        let now = self.clock.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let current = state.token.as_ref().map(|(token, _)| token.as_str());
        if current != used {
            return true;
        }
        if state
            .forgotten
            .is_some_and(|at| now.since(at) < RENEW_LIMIT)
        {
            return false;
        }
        state.token = None;
        state.forgotten = Some(now);
        true
    }

    fn valid(&self) -> Option<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (token, until) = state.token.as_ref()?;
        (self.clock.now() < *until).then(|| token.clone())
    }

    fn denied(&self) -> Option<CallError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (failure, at) = state.denied.as_ref()?;
        (self.clock.now().since(*at) < RENEW_LIMIT).then(|| failure.clone())
    }

    /// What came of a login at the same server that others made while this one waited for its turn:
    /// one silent server must not cost each of them the whole deadline.
    fn failed(&self, target: &str, began: Timestamp) -> Option<CallError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, failure, known) = state.failed.as_ref()?;
        (at == target && began < *known).then(|| failure.clone())
    }

    async fn log_in(&self, http: &HttpClient, server: &Server) -> Result<LoggedIn, CallError> {
        let password = match (&self.password_file, &self.password) {
            (Some(path), _) => {
                let text = tokio::fs::read_to_string(path).await;
                let text = text.map_err(|e| {
                    CallError::Unanswered(format!("password {}: {e}", path.display()))
                })?;
                text.trim_end_matches(['\r', '\n']).to_owned()
            }
            (None, Some(secret)) => secret.0.clone(),
            (None, None) => String::new(),
        };
        let form = Serializer::new(String::new())
            .append_pair("username", &self.username)
            .append_pair("password", &password)
            .finish();
        let request = Request::post(format!("{}/v1/auth/login", server.prefix))
            .header(header::USER_AGENT, USER_AGENT)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(form)))
            .map_err(|e| CallError::Refused(e.to_string()))?;
        let answer = http
            .send(&server.target, request)
            .await
            .map_err(|e| CallError::Unanswered(format!("{}: {e}", server.target)))?;
        let status = answer.status();
        if status != StatusCode::OK {
            let what = format!("{}: login answered {}", server.target, status.as_u16());
            let failure = CallError::Unanswered(what);
            if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.denied = Some((failure.clone(), self.clock.now()));
            }
            return Err(failure);
        }
        serde_json::from_slice(answer.body()).map_err(|e| {
            CallError::Unanswered(format!("{}: unreadable login answer: {e}", server.target))
        })
    }
}

impl Auth for Login {
    fn credential<'a>(&'a self, http: &'a HttpClient, server: &'a Server) -> Credentials<'a> {
        Box::pin(async {
            let token = self.token(http, server).await?;
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut value = value.map_err(|_| {
                CallError::Unanswered(format!("{}: the token is no header value", server.target))
            })?;
            value.set_sensitive(true);
            Ok(Some((header::AUTHORIZATION, value)))
        })
    }

    fn denied(&self, used: &Credential) -> bool {
        let used = used.as_ref().and_then(|(_, value)| value.to_str().ok());
        self.forget(used.and_then(|value| value.strip_prefix("Bearer ")))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::DuplexStream;
    use tokio::sync::mpsc;

    use super::*;
    use crate::config::types::NacosProtocol;
    use crate::http_client::Target;

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_costs_those_who_wait_for_a_login_one_deadline() {
        let http = HttpClient {
            timeout: Duration::from_secs(5),
            max_body: 1000,
        };
        let clock = Clock::new();
        let config = Nacos {
            endpoint: None,
            protocol: NacosProtocol::Http,
            udp_push: false,
            servers: Vec::new(),
            namespace: "public".into(),
            group: "g".into(),
            clusters: Vec::new(),
            username: Some("u".to_owned()),
            password_file: None,
            password: Some(Secret("p".to_owned())),
        };
        let random = fastrand::Rng::with_seed(7);
        let login = Arc::new(Login::new(&config, clock, random).unwrap());
        let (sender, mut connections) = mpsc::unbounded_channel::<DuplexStream>();
        let server = Arc::new(Server {
            target: Target::Memory(sender),
            prefix: "/nacos".to_owned(),
        });
        let start = clock.now();
        let ask = || {
            let (login, server) = (login.clone(), server.clone());
            tokio::spawn(async move { login.credential(&http, &server).await })
        };
        let all: Vec<_> = (0..8).map(|_| ask()).collect();
        for one in all {
            let error = one.await.unwrap().unwrap_err();
            assert!(error.to_string().contains("no response"), "{error}");
        }
        assert_eq!(clock.now().since(start).as_secs(), 5);
        // Who comes later tries it again.
        ask().await.unwrap().unwrap_err();
        let mut tries = 0;
        while connections.try_recv().is_ok() {
            tries += 1;
        }
        assert_eq!((clock.now().since(start).as_secs(), tries), (10, 2));
    }
}
