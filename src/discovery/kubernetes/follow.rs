//! The task behind one namespace: it lists and watches as its machine says and publishes what is
//! known, at most every 100 ms. It ends when nobody listens.

use std::sync::Arc;
use std::time::Duration;

use form_urlencoded::Serializer;
use http::response::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::watch;
use tracing::debug;

use super::super::subscription::Failure;
use super::machine::{
    Effect, FIRST_RETRY, LAST_RETRY, Machine, Request, Services, Trouble, trouble,
};
use super::wire::{self, SERVICE_LABEL, Status};
use crate::clock::{Clock, Timestamp};
use crate::http_client::HttpError;
use crate::http_client::body::BodyStream;
use crate::http_client::jitter::Jitter;
use crate::http_client::servers::{Call, Servers, Verdict};

/// Slices of a page: 16 MiB hold two hundred of the usual size many times over.
const PAGE: usize = 200;
/// Bytes of a line: a slice has a thousand endpoints at most.
const MAX_LINE: usize = 8 * 1024 * 1024;
const MAX_ERROR: usize = 1024 * 1024;
/// The server ends a watch after so many seconds.
const WATCH_SECONDS: (u64, u64) = (240, 290);
/// A watch from which nothing came for that and this much longer is dead.
const GRACE: Duration = Duration::from_secs(5);
/// How long the head of a watch may take beside the time-out.
const HEAD_WAIT: Duration = Duration::from_secs(10);
/// Bookmarks come once a minute: two stayed away.
const NO_BOOKMARK: Duration = Duration::from_secs(150);
/// A watch can be blind without an error: a list now and then.
const RELIST: Duration = Duration::from_secs(600);
/// Sets are published at most this often.
const COALESCE: Duration = Duration::from_millis(100);
/// After a refusal.
const REFUSED_DELAY: Duration = Duration::from_secs(30);
/// What a server may ask us to wait.
const LONGEST_RETRY_AFTER: u64 = 60;

/// The API server.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) servers: Servers,
    pub(super) jitter: Jitter,
    pub(super) clock: Clock,
}

/// What is known of a namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// `None` until the first list.
    pub(super) services: Option<Arc<Services>>,
    /// Grows with every answer.
    pub(super) answers: u64,
    /// Grows with every failure.
    pub(super) failures: u64,
    /// Of the last request; `None` when it was answered.
    pub(super) failure: Option<Failure>,
    /// Whether the server says now and then that it lives.
    pub(super) bookmarks: bool,
    /// Elements of the last list that could not be read.
    pub(super) skipped: usize,
}

pub(super) struct Follower {
    api: Arc<Api>,
    namespace: Arc<str>,
    known: Arc<watch::Sender<Known>>,
    machine: Machine,
    relist_at: Timestamp,
    published: Timestamp,
    skipped: usize,
    collected_skipped: usize,
}

/// How a request ended that has no answer.
struct Ended {
    trouble: Trouble,
    /// What subscriptions are told: not of a version that is too old, nor of a stream that broke.
    told: Option<Failure>,
    retry_after: Duration,
}

impl Follower {
    pub(super) fn new(
        api: Arc<Api>,
        namespace: Arc<str>,
        known: Arc<watch::Sender<Known>>,
    ) -> Self {
        Self {
            api,
            namespace,
            known,
            machine: Machine::default(),
            relist_at: Timestamp::MAX,
            published: Timestamp::ZERO,
            skipped: 0,
            collected_skipped: 0,
        }
    }

    /// Follows the namespace until nobody listens; whoever owns the task decides whether that is
    /// the end.
    pub(super) async fn run(&mut self) {
        let known = self.known.clone();
        loop {
            let next = async {
                let pause = self.step().await;
                tokio::time::sleep(pause).await;
            };
            tokio::select! {
                () = known.closed() => return,
                () = next => {}
            }
        }
    }

    /// One request and all that comes of it; how long to wait after it.
    async fn step(&mut self) -> Duration {
        let ended = match self.machine.next() {
            Request::List(more) => match self.list(more).await {
                Ok(()) => return Duration::ZERO,
                Err(ended) => (ended, Duration::ZERO),
            },
            Request::Watch(version) => match self.watch(&version).await {
                Ok(pause) => return pause,
                Err(ended) => ended,
            },
        };
        let (ended, lived) = ended;
        let failures = self.machine.failed(&ended.trouble, lived);
        debug!(namespace = %self.namespace, trouble = ?ended.trouble, failures, "watch of slices");
        let refused = matches!(ended.told, Some(Failure::Refused(_)));
        if let Some(failure) = ended.told {
            self.known.send_modify(|known| {
                known.failures = known.failures.saturating_add(1);
                known.failure = Some(failure);
            });
        }
        match refused {
            true => self.api.jitter.around(REFUSED_DELAY),
            false => self.back_off(failures).max(ended.retry_after),
        }
    }

    fn back_off(&self, failures: u32) -> Duration {
        let doubled = failures.saturating_sub(1);
        self.api.jitter.back_off(FIRST_RETRY, doubled, LAST_RETRY)
    }

    async fn list(&mut self, more: Option<String>) -> Result<(), Ended> {
        let mut call = Call::new(Method::GET, self.list_path(more.as_deref()));
        call.headers.push(JSON);
        let gzip = HeaderValue::from_static("gzip");
        call.headers.push((header::ACCEPT_ENCODING, gzip));
        // What any status means is decided here.
        let answered = self.api.servers.ask(&call, |_| Verdict::Take).await;
        let response = answered.map_err(|error| unanswered(error.into()))?.response;
        if response.status() != StatusCode::OK {
            let status = wire::status(response.status().as_u16(), response.body());
            return Err(self.denied(&response, &status));
        }
        let page = wire::page(response.body());
        let page = page.map_err(|why| unanswered(Failure::Unanswered(why)))?;
        if more.is_none() {
            self.collected_skipped = 0;
        }
        self.collected_skipped += page.skipped;
        if self.machine.page(page) {
            self.skipped = self.collected_skipped;
            let after = self
                .api
                .jitter
                .between(RELIST.mul_f64(0.8), RELIST.mul_f64(1.2));
            self.relist_at = self.api.clock.now() + after;
            self.publish();
        }
        Ok(())
    }

    async fn watch(&mut self, version: &str) -> Result<Duration, (Ended, Duration)> {
        let (least, most) = WATCH_SECONDS;
        let (least, most) = (Duration::from_secs(least), Duration::from_secs(most));
        let seconds = self.api.jitter.between(least, most).as_secs();
        let mut call = Call::new(Method::GET, self.watch_path(version, seconds));
        call.headers.push(JSON);
        call.wait = HEAD_WAIT;
        let opened = self.api.servers.open(&call).await;
        let opened = opened.map_err(|error| (unanswered(error.into()), Duration::ZERO))?;
        if opened.status() != StatusCode::OK {
            let (head, body) = opened.into_parts();
            let status = read_status(head, body);
            let (response, status) = status.await;
            return Err((self.denied(&response, &status), Duration::ZERO));
        }
        let failed = self.known.borrow().failure.is_some();
        if failed {
            self.publish();
        }
        let started = self.api.clock.now();
        let silence = Duration::from_secs(seconds) + GRACE;
        let end = self.lines(opened.into_body(), silence).await;
        let lived = self.api.clock.now().since(started);
        match end {
            Ok(End::Proper) => match self.machine.ended(lived) {
                true => Ok(Duration::ZERO),
                false => Ok(self.back_off(1)),
            },
            Ok(End::List) => {
                self.machine.list();
                Ok(Duration::ZERO)
            }
            Err(trouble) => {
                let ended = Ended {
                    trouble,
                    told: None,
                    retry_after: Duration::ZERO,
                };
                Err((ended, lived))
            }
        }
    }

    /// Reads a watch to its end. What was read is published in any case.
    async fn lines(&mut self, mut body: BodyStream, silence: Duration) -> Result<End, Trouble> {
        let mut dirty = false;
        let mut last_line = self.api.clock.now();
        let end = loop {
            let clock = self.api.clock;
            let quiet_at = match self.machine.has_bookmarks() {
                true => last_line + NO_BOOKMARK,
                false => Timestamp::MAX,
            };
            let list_at = clock.instant(quiet_at.min(self.relist_at));
            let flush_at = clock.instant(self.published + COALESCE);
            let line = tokio::select! {
                biased;
                () = tokio::time::sleep_until(flush_at), if dirty => {
                    self.publish();
                    dirty = false;
                    continue;
                }
                () = tokio::time::sleep_until(list_at) => break Ok(End::List),
                line = body.line(silence, MAX_LINE) => line,
            };
            last_line = self.api.clock.now();
            let line = match line {
                Ok(Some(line)) => line,
                Ok(None) => break Ok(End::Proper),
                // Dead: on with the last version on a new connection.
                Err(HttpError::Silent(_)) => break Ok(End::Proper),
                Err(error) => break Err(Trouble::Other(error.to_string())),
            };
            if line.is_empty() {
                continue;
            }
            match wire::event(&line) {
                Ok(event) => match self.machine.event(event) {
                    Effect::Changed | Effect::Alive => dirty = true,
                    Effect::Over(trouble) => break Err(trouble),
                },
                Err(why) => {
                    self.skipped += 1;
                    self.machine.list();
                    break Err(Trouble::Other(why));
                }
            }
        };
        if dirty {
            self.publish();
        }
        end
    }

    fn publish(&mut self) {
        self.published = self.api.clock.now();
        let services = Arc::new(self.machine.services().clone());
        let (bookmarks, skipped) = (self.machine.has_bookmarks(), self.skipped);
        self.known.send_modify(|known| {
            known.services = Some(services);
            known.answers = known.answers.saturating_add(1);
            known.failure = None;
            known.bookmarks = bookmarks;
            known.skipped = skipped;
        });
    }

    fn denied<T>(&self, response: &Response<T>, status: &Status) -> Ended {
        let after = response.headers().get(header::RETRY_AFTER);
        let after = after.and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
        let after = after.unwrap_or_default().min(LONGEST_RETRY_AFTER);
        let namespace = &self.namespace;
        let text = format!(
            "namespace `{namespace}`: {} {}",
            status.code, status.message
        );
        let trouble = trouble(status);
        let told = match (&trouble, status.code) {
            (Trouble::Gone(_), _) => None,
            (Trouble::Other(_), 403) => Some(Failure::Refused(format!(
                "{text}; a Role must allow get, list and watch of endpointslices (discovery.k8s.io)"
            ))),
            (Trouble::Other(_), 400 | 404 | 406) => Some(Failure::Refused(text)),
            (Trouble::Other(_), _) => Some(Failure::Unanswered(text)),
        };
        Ended {
            trouble,
            told,
            retry_after: Duration::from_secs(after),
        }
    }

    fn base(&self) -> String {
        let namespace = utf8_percent_encode(&self.namespace, NON_ALPHANUMERIC).to_string();
        let namespace = namespace.replace("%2D", "-");
        format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
    }

    fn list_path(&self, more: Option<&str>) -> String {
        let mut query = Serializer::new(String::new());
        query.append_pair("labelSelector", SERVICE_LABEL);
        query.append_pair("limit", &PAGE.to_string());
        if let Some(more) = more {
            query.append_pair("continue", more);
        }
        format!("{}?{}", self.base(), query.finish())
    }

    fn watch_path(&self, version: &str, seconds: u64) -> String {
        let query = Serializer::new(String::new())
            .append_pair("labelSelector", SERVICE_LABEL)
            .append_pair("watch", "1")
            .append_pair("resourceVersion", version)
            .append_pair("allowWatchBookmarks", "true")
            .append_pair("timeoutSeconds", &seconds.to_string())
            .finish();
        format!("{}?{query}", self.base())
    }
}

/// How a watch ended without a failure.
enum End {
    /// The next one goes on from the last version.
    Proper,
    /// A list is due.
    List,
}

const JSON: (http::HeaderName, HeaderValue) =
    (header::ACCEPT, HeaderValue::from_static("application/json"));

fn unanswered(failure: Failure) -> Ended {
    Ended {
        trouble: Trouble::Other(failure.to_string()),
        told: Some(failure),
        retry_after: Duration::ZERO,
    }
}

/// What an answer that is no watch says.
async fn read_status(head: Parts, body: BodyStream) -> (Response<()>, Status) {
    let read = tokio::time::timeout(HEAD_WAIT, body.whole(MAX_ERROR)).await;
    let text = read.ok().and_then(Result::ok).unwrap_or_default();
    let status = wire::status(head.status.as_u16(), &text);
    (Response::from_parts(head, ()), status)
}
