//! What the tests of all registrars share: a registry that answers by a script, and one registration
//! with its driver, over in-memory connections in paused time.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, watch};

use super::app_check::AppHealth;
use super::driver::{self, Label, Renewal};
use super::machine::Standing;
use super::record::Record;
use super::registrar::Registrar;
use super::view::View;
use crate::clock::{Clock, Timestamp};
use crate::config::types::Events;
use crate::endpoint::Weight;
use crate::http_client::servers::{Server, Servers};
use crate::http_client::{HttpClient, MAX_BODY, Target};
use crate::journal::Journal;
use crate::sink::Lines;

/// A call that a registry saw.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) at: Timestamp,
    /// Method and path without the query.
    pub(super) call: String,
    pub(super) query: BTreeMap<String, String>,
    pub(super) headers: http::HeaderMap,
    pub(super) body: String,
}

/// What it does with one.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Status(u16, &'static str),
    /// The connection is closed without a word.
    Close,
    Hang,
}

type Script = Box<dyn FnMut(&Seen) -> Reply + Send>;

/// A registry that answers by a script; clones are the same one.
#[derive(Clone)]
pub(super) struct Fake {
    clock: Clock,
    seen: Arc<Mutex<Vec<Seen>>>,
    script: Arc<Mutex<Script>>,
}

impl Fake {
    pub(super) fn new(
        clock: Clock,
        prefix: &str,
        script: impl FnMut(&Seen) -> Reply + Send + 'static,
    ) -> (Self, Server) {
        let (sender, mut connections) = mpsc::unbounded_channel::<DuplexStream>();
        let fake = Self {
            clock,
            seen: Arc::default(),
            script: Arc::new(Mutex::new(Box::new(script))),
        };
        let server = fake.clone();
        tokio::spawn(async move {
            while let Some(stream) = connections.recv().await {
                tokio::spawn(server.clone().serve(stream));
            }
        });
        let server = Server {
            target: Target::Memory(sender),
            prefix: prefix.to_owned(),
        };
        (fake, server)
    }

    async fn serve(self, stream: DuplexStream) {
        let service = service_fn(move |request| self.clone().answer(request));
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service);
        drop(connection.await);
    }

    async fn answer(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, std::io::Error> {
        let (head, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .map(|b| b.to_bytes())
            .unwrap_or_default();
        let query = head.uri.query().unwrap_or_default();
        let seen = Seen {
            at: self.clock.now(),
            call: format!("{} {}", head.method, head.uri.path()),
            query: form_urlencoded::parse(query.as_bytes())
                .into_owned()
                .collect(),
            headers: head.headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        };
        let reply = (self.script.lock().unwrap())(&seen);
        self.seen.lock().unwrap().push(seen);
        match reply {
            Reply::Status(status, text) => {
                let mut response = Response::new(Full::from(text));
                *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
                Ok(response)
            }
            Reply::Close => Err(std::io::ErrorKind::ConnectionReset.into()),
            Reply::Hang => std::future::pending::<Result<_, Infallible>>()
                .await
                .map_err(|never| match never {}),
        }
    }

    pub(super) fn script(&self, script: impl FnMut(&Seen) -> Reply + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// Only the calls.
    pub(super) fn calls(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.call).collect()
    }

    pub(super) fn forget(&self) {
        self.seen.lock().unwrap().clear();
    }
}

/// The servers of a registry, each with this much patience.
pub(super) fn servers(list: Vec<Server>, patience: Duration) -> Arc<Servers> {
    let http = HttpClient {
        timeout: patience,
        max_body: MAX_BODY,
    };
    Arc::new(Servers::new(list, 0, http, 8))
}

pub(super) fn record() -> Record {
    Record {
        service: "orders".into(),
        group: None,
        cluster: None,
        address: "10.0.0.1".into(),
        port: 8080,
        weight: Weight::ONE,
        metadata: [("zone".to_owned(), "a".to_owned())].into(),
        ephemeral: true,
        heartbeat_interval: None,
    }
}

/// A registration under way.
pub(super) struct Setup {
    pub(super) view: watch::Receiver<View>,
    pub(super) journal: Journal,
    health: watch::Sender<AppHealth>,
    leave: watch::Sender<bool>,
    pub(super) changes: mpsc::UnboundedSender<Renewal>,
}

pub(super) fn health(standing: Standing) -> AppHealth {
    AppHealth {
        standing,
        message: "".into(),
    }
}

impl Setup {
    /// The app stands so.
    pub(super) fn start(clock: Clock, registrar: Arc<dyn Registrar>, standing: Standing) -> Self {
        let settings = Events {
            sinks: Vec::new(),
            ring_size: 1000,
        };
        let journal = Journal::new(Lines::start().unwrap(), &settings);
        let (view, seen) = watch::channel(View::default());
        let (health, standings) = watch::channel(health(standing));
        let (leave, leaves) = watch::channel(false);
        let (changes, changed) = mpsc::unbounded_channel();
        tokio::spawn(driver::run(driver::Start {
            label: Label {
                registry: "r".into(),
                service: "orders".into(),
                address: "10.0.0.1:8080".into(),
            },
            registrar,
            health: standings,
            leave: leaves,
            changes: changed,
            pre_register: None,
            post_register: None,
            view,
            clock,
            journal: journal.clone(),
            seed: 11,
        }));
        Self {
            view: seen,
            journal,
            health,
            leave,
            changes,
        }
    }

    /// A reload gives it another registrar, another check, or both.
    pub(super) fn renew(
        &self,
        registrar: Option<Arc<dyn Registrar>>,
        check: Option<&watch::Sender<AppHealth>>,
    ) {
        let renewal = Renewal {
            registrar,
            health: check.unwrap_or(&self.health).subscribe(),
            pre_register: None,
            post_register: None,
        };
        self.changes.send(renewal).unwrap();
    }

    pub(super) fn app(&self, standing: Standing) {
        self.health.send_replace(health(standing));
    }

    pub(super) async fn until(&mut self, holds: impl FnMut(&View) -> bool) {
        let found = tokio::time::timeout(Duration::from_secs(600), self.view.wait_for(holds));
        found.await.expect("in time").expect("the driver runs");
    }

    pub(super) async fn up(&mut self) {
        self.until(|view| view.up).await;
    }

    /// Takes it off, to the end.
    pub(super) async fn leave(&mut self) {
        self.leave.send_replace(true);
        self.until(|view| view.over).await;
    }

    pub(super) fn events(&self) -> Vec<&'static str> {
        self.journal
            .after(0)
            .iter()
            .map(|entry| entry.event)
            .collect()
    }
}

/// Lets this time pass.
pub(super) async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}
