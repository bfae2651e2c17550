//! How a request to a registry says who we are: one header, that may have to be fetched first.

use std::fmt::Debug;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use super::HttpClient;
use super::servers::{CallError, Server};
use crate::clock::{Clock, Timestamp};

/// A header, or none.
pub type Credential = Option<(HeaderName, HeaderValue)>;

/// What [`Auth::credential`] is about to know.
pub type Credentials<'a> = Pin<Box<dyn Future<Output = Result<Credential, CallError>> + Send + 'a>>;

/// One identity at a registry.
pub trait Auth: Debug + Send + Sync {
    /// The header for a request to `server`; a log-in may be made there first.
    fn credential<'a>(&'a self, http: &'a HttpClient, server: &'a Server) -> Credentials<'a>;

    /// Notes that a request with this header was answered 401 or 403 (G17). True: another try may
    /// do better, since there is a newer one or one can be had.
    fn denied(&self, used: &Credential) -> bool;
}

/// A token in a file that somebody else replaces now and then. While the file cannot be read the
/// last one read is used.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    header: HeaderName,
    prefix: &'static str,
    every: Duration,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    token: Option<HeaderValue>,
    read: Option<Timestamp>,
    /// When a refused token was last a reason to read it before its time.
    forced: Option<Timestamp>,
}

impl Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("read", &self.read).finish()
    }
}

/// A refused token makes us read the file and ask again at most this often.
const FORCE_LIMIT: Duration = Duration::from_secs(1);

impl TokenFile {
    /// The token of `path` behind `prefix` in `header`, read again after `every`.
    pub fn new(
        path: PathBuf,
        header: HeaderName,
        prefix: &'static str,
        every: Duration,
        clock: Clock,
    ) -> Self {
        Self {
            path,
            header,
            prefix,
            every,
            clock,
            state: Mutex::default(),
        }
    }

    async fn read(&self) -> Result<Credential, CallError> {
        let now = self.clock.now();
        let known = {
            let state = self.lock();
            let due = state.read.is_none_or(|at| now.since(at) >= self.every);
            state.token.clone().filter(|_| !due)
        };
        let token = match known {
            Some(token) => token,
            None => {
                let text = tokio::fs::read_to_string(&self.path).await;
                let text = text.map_err(|error| error.to_string());
                let fresh = text.and_then(|text| self.value(text.trim()));
                let mut state = self.lock();
                match (fresh, &state.token) {
                    (Ok(token), _) => {
                        state.read = Some(now);
                        state.token = Some(token.clone());
                        token
                    }
                    (Err(_), Some(token)) => token.clone(),
                    (Err(error), None) => {
                        let what = format!("token {}: {error}", self.path.display());
                        return Err(CallError::Unanswered(what));
                    }
                }
            }
        };
        Ok(Some((self.header.clone(), token)))
    }

    fn value(&self, token: &str) -> Result<HeaderValue, String> {
        if token.is_empty() {
            return Err("is empty".to_owned());
        }
        let mut value = HeaderValue::from_str(&format!("{}{token}", self.prefix))
            .map_err(|_| "has characters that no token has".to_owned())?;
        value.set_sensitive(true);
        Ok(value)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Auth for TokenFile {
    fn credential<'a>(&'a self, _: &'a HttpClient, _: &'a Server) -> Credentials<'a> {
        Box::pin(self.read())
    }

    fn denied(&self, used: &Credential) -> bool {
        let now = self.clock.now();
        let mut state = self.lock();
        let used = used.as_ref().map(|(_, value)| value);
        if state.token.as_ref() != used {
            return true;
        }
        state.read = None;
        let again = state.forced.is_none_or(|at| now.since(at) >= FORCE_LIMIT);
        if again {
            state.forced = Some(now);
        }
        again
    }
}
