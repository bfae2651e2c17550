//! A connection that has made its set-up: calls with the token that is needed now, and its end. What
//! the server sends by itself is read by `nacos_client/link.rs`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use tracing::debug;

use super::channel::{Channel, ChannelError, StreamReader, StreamSender};
use crate::clock::{Clock, Timestamp};
use crate::http_client::HttpClient;
use crate::http_client::auth::{Auth, Credential};
use crate::http_client::servers::{CallError, Server, USER_AGENT};
use crate::protocol::nacos::Payload;
use crate::protocol::nacos::message::{self, Denied, code, kind};

/// Of a health check and of the steps of a set-up.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(3);
/// The server's acknowledgement of a set-up.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);
/// Before a call is repeated that came before the server had taken the set-up.
const UNREGISTERED_PAUSE: Duration = Duration::from_millis(100);
/// Such repetitions.
const UNREGISTERED_TRIES: u32 = 10;

/// What all connections of a link share.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) namespace: Arc<str>,
    pub(super) http: HttpClient,
    pub(super) auth: Option<Arc<dyn Auth>>,
    pub(super) in_flight: Semaphore,
    pub(super) clock: Clock,
}

/// A connection in use.
#[derive(Debug)]
pub struct Live {
    channel: Channel,
    server: Server,
    common: Arc<Common>,
    heard: Mutex<Timestamp>,
    lost: watch::Sender<Option<Arc<str>>>,
}

/// The stream of a connection.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) sender: StreamSender,
    pub(super) reader: StreamReader,
}

impl Live {
    /// Makes the set-up on a new connection: is the server ready, who are we, are we let in.
    pub(super) async fn set_up(
        channel: Channel,
        server: Server,
        common: Arc<Common>,
    ) -> Result<(Self, Stream), CallError> {
        let name = server.target.to_string();
        let fail = |what: String| CallError::Unanswered(format!("{name}: {what}"));
        let check = message::request(kind::SERVER_CHECK, "internal", &json!({}));
        let answer = channel.call(&check, STEP_TIMEOUT).await;
        let answer = answer.map_err(|error| fail(error.to_string()))?;
        let checked = message::outcome(kind::SERVER_CHECK, &answer);
        let checked = checked.map_err(|denied| fail(denied.to_string()))?;
        let negotiates = checked.get("supportAbilityNegotiation");
        let negotiates = negotiates.and_then(Value::as_bool).unwrap_or(false);
        let set_up = message::request(
            kind::SETUP,
            "internal",
            &json!({
                "clientVersion": USER_AGENT,
                "tenant": &*common.namespace,
                "labels": {"source": "sdk", "module": "naming", "AppName": "outrigger"},
                "abilityTable": {},
            }),
        );
        let stream = channel.stream(&set_up);
        let (sender, reader) = stream.map_err(|error| fail(error.to_string()))?;
        let mut stream = Stream { sender, reader };
        if negotiates {
            acknowledged(&mut stream.reader).await.map_err(fail)?;
        } else {
            tokio::time::sleep(UNREGISTERED_PAUSE).await;
        }
        let live = Self {
            channel,
            server,
            heard: Mutex::new(common.clock.now()),
            common,
            lost: watch::Sender::default(),
        };
        live.check()
            .await
            .map_err(|error| fail(error.to_string()))?;
        Ok((live, stream))
    }

    /// One call about services; the token is renewed once when it is refused.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(
        &self,
        kind: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<Value, CallError> {
        let place = self.common.in_flight.acquire().await;
        let mut renewed = false;
        let mut unregistered = 0;
        loop {
            let credential = self.credential().await?;
            let mut call = message::request(kind, "naming", body);
            if let Some(token) = token(&credential) {
                call.headers.push(("accessToken".to_owned(), token));
            }
            let denied = match self.ask(&call, self.common.http.timeout).await? {
                Ok(value) => {
                    drop(place);
                    return Ok(value);
                }
                Err(denied) => denied,
            };
            let what = format!("{}: {kind}: {denied}", self.server.target);
            match denied.code {
                code::UNREGISTERED if unregistered < UNREGISTERED_TRIES => {
                    unregistered += 1;
                    tokio::time::sleep(UNREGISTERED_PAUSE).await;
                }
                code::UNREGISTERED => {
                    self.lose(&what);
                    return Err(CallError::Unanswered(what));
                }
                code::NO_RIGHT if !renewed && self.renew(&credential) => renewed = true,
                code::INVALID_PARAM | code::NO_HANDLER => return Err(CallError::Refused(what)),
                _ => return Err(CallError::Unanswered(what)),
            }
        }
    }

    /// Until the connection is of no use any more; why.
    pub async fn lost(&self) -> Arc<str> {
        let mut lost = self.lost.subscribe();
        let why = lost.wait_for(Option::is_some).await;
        why.ok().and_then(|why| why.clone()).unwrap_or_default()
    }

    /// When the server last said something.
    pub(super) fn heard_at(&self) -> Timestamp {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server said something.
    pub(super) fn heard(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = self.common.clock.now();
    }

    /// The connection is of no use any more.
    pub(super) fn lose(&self, why: &str) {
        self.lost.send_if_modified(|lost| {
            let first = lost.is_none();
            if first {
                debug!(server = %self.server.target, why, "nacos connection lost");
                *lost = Some(why.into());
            }
            first
        });
    }

    /// Whether the server knows us on this connection.
    pub(super) async fn check(&self) -> Result<(), CallError> {
        let check = message::request(kind::HEALTH_CHECK, "internal", &json!({}));
        for _ in 0..UNREGISTERED_TRIES {
            match self.ask(&check, STEP_TIMEOUT).await? {
                Ok(_) => return Ok(()),
                Err(Denied { code, .. }) if code == code::UNREGISTERED => {
                    tokio::time::sleep(UNREGISTERED_PAUSE).await;
                }
                Err(denied) => return Err(CallError::Unanswered(denied.to_string())),
            }
        }
        let what = "the server does not take the connection's set-up";
        Err(CallError::Unanswered(what.to_owned()))
    }

    async fn ask(
        &self,
        call: &Payload,
        within: Duration,
    ) -> Result<Result<Value, Denied>, CallError> {
        let answer = match self.channel.call(call, within).await {
            Ok(answer) => answer,
            Err(error) => {
                let what = format!("{}: {}: {error}", self.server.target, call.kind);
                // A late answer is judged by the health check.
                if matches!(error, ChannelError::Http(_)) || self.channel.is_closed() {
                    self.lose(&what);
                }
                return Err(CallError::Unanswered(what));
            }
        };
        self.heard();
        Ok(message::outcome(&call.kind, &answer))
    }

    async fn credential(&self) -> Result<Credential, CallError> {
        match &self.common.auth {
            Some(auth) => auth.credential(&self.common.http, &self.server).await,
            None => Ok(None),
        }
    }

    fn renew(&self, used: &Credential) -> bool {
        self.common
            .auth
            .as_ref()
            .is_some_and(|auth| auth.denied(used))
    }
}

/// The token of a credential, which is a bearer's for HTTP.
fn token(credential: &Credential) -> Option<String> {
    let (_, value) = credential.as_ref()?;
    let token = value.to_str().ok()?;
    Some(token.strip_prefix("Bearer ").unwrap_or(token).to_owned())
}

/// Waits for the acknowledgement of a set-up. A server that sends none is judged by the health check
/// that follows.
async fn acknowledged(reader: &mut StreamReader) -> Result<(), String> {
    let wait = async {
        loop {
            match reader.next().await {
                Ok(Some(message)) if message.kind == kind::SETUP_ACK => return Ok(()),
                Ok(Some(_)) => {}
                Ok(None) => return Err("the stream ended at its set-up".to_owned()),
                Err(error) => return Err(error.to_string()),
            }
        }
    };
    tokio::time::timeout(ACK_TIMEOUT, wait)
        .await
        .unwrap_or(Ok(()))
}
