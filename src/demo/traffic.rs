//! Steady requests through the data port, as an app sends them, and what came back.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::SERVICE;
use crate::clock::{Clock, Timestamp};

/// Requests a second.
pub(super) const RATE: u32 = 60;
/// Connections of the app, each with one request at a time.
const CLIENTS: u32 = 6;
/// Then the app gives up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Failures whose instant is kept; a story has a dozen.
const KEPT: usize = 10_000;

/// Running traffic; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Traffic {
    tally: Arc<Tally>,
    _clients: JoinSet<()>,
}

/// What the app saw.
#[derive(Debug, Default)]
struct Tally(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    requests: u64,
    failed: u64,
    failures: Vec<Timestamp>,
}

impl Traffic {
    /// Sends to `data` from now on.
    pub(super) fn start(data: SocketAddr, clock: Clock) -> Self {
        let tally = Arc::<Tally>::default();
        let mut clients = JoinSet::new();
        let interval = Duration::from_secs(1) * CLIENTS / RATE;
        for number in 0..CLIENTS {
            let tally = Arc::clone(&tally);
            let first = interval * number / CLIENTS;
            clients.spawn(async move {
                tokio::time::sleep(first).await;
                client(data, interval, clock, &tally).await;
            });
        }
        Self {
            tally,
            _clients: clients,
        }
    }

    /// Answered requests and how many of them failed.
    pub(super) fn totals(&self) -> (u64, u64) {
        let counts = self.tally.lock();
        (counts.requests, counts.failed)
    }

    /// Failures in `[from, to)`.
    pub(super) fn failures(&self, from: Timestamp, to: Timestamp) -> usize {
        let counts = self.tally.lock();
        let inside = |at: &&Timestamp| from <= **at && **at < to;
        counts.failures.iter().filter(inside).count()
    }
}

impl Tally {
    fn add(&self, good: bool, now: Timestamp) {
        let mut counts = self.lock();
        counts.requests += 1;
        if !good {
            counts.failed += 1;
            if counts.failures.len() < KEPT {
                counts.failures.push(now);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn client(data: SocketAddr, interval: Duration, clock: Clock, tally: &Tally) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connections = JoinSet::new();
    let mut sender = None;
    let mut number = 0_u64;
    loop {
        ticks.tick().await;
        number += 1;
        let exchange = Box::pin(exchange(data, number, &mut sender, &mut connections));
        let status = tokio::time::timeout(PATIENCE, exchange).await;
        let good = status
            .ok()
            .flatten()
            .is_some_and(|status| !status.is_server_error());
        tally.add(good, clock.now());
    }
}

/// One request over the open connection, or over a new one.
async fn exchange(
    data: SocketAddr,
    number: u64,
    sender: &mut Option<SendRequest<Empty<Bytes>>>,
    connections: &mut JoinSet<()>,
) -> Option<StatusCode> {
    let mut open = match sender.take().filter(|s| !s.is_closed()) {
        Some(open) => open,
        None => {
            let stream = TcpStream::connect(data).await.ok()?;
            stream.set_nodelay(true).ok()?;
            let (open, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
            *connections = JoinSet::new();
            connections.spawn(async move {
                // How it broke shows in the request that was on it.
                let _broken = connection.await;
            });
            open
        }
    };
    open.ready().await.ok()?;
    let request = Request::get(format!("/{SERVICE}/items/{number}"))
        .header(HOST, format!("localhost:{}", data.port()))
        .body(Empty::new())
        .ok()?;
    let response = open.send_request(request).await.ok()?;
    let status = response.status();
    response.into_body().collect().await.ok()?;
    *sender = Some(open);
    Some(status)
}
