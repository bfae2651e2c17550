//! One HTTP/2 connection to an instance: how it is opened, how much it carries, and when it is taken for
//! dead. A connection can be dead while it is open: its program hangs, or something between forgot it.
//! Pings do not find that fast, since servers of gRPC end connections that ping more often than each 5
//! minutes (`too_many_pings`). The calls find it: where they end without an answer and nothing at all
//! came meanwhile, the next ones go elsewhere, until something comes after all. Hosts that are gone are
//! found by the kernel (`upstream/connect.rs`), a quiet stream of a program that hangs by a ping.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task;

use super::request_body::AttemptBody;
use super::stream_limit::{self, StreamLimit};
use crate::clock::Timestamp;

/// Streams one connection carries before another one is opened.
pub(super) const STREAMS_PER_CONNECTION: u32 = 100;
/// Silence on a connection with open streams before a ping, and how long its answer may take. More than
/// the 5 minutes that servers of gRPC allow.
const PING_EVERY: Duration = Duration::from_secs(330);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Flow control windows towards instances: large enough for small frames and fast downloads.
/// (h2 takes half of the connection's window as its budget for small frames that nobody has read;
/// a full stream of 40-byte messages must fit into it).
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 10 << 20;
/// So many streams that the app gave up, and that heard nothing, say as much as one whose time was over.
const GIVEN_UP: u32 = 3;

pub(super) type H2Sender = http2::SendRequest<AttemptBody>;
type H2Connection<S> = http2::Connection<TokioIo<S>, AttemptBody, LocalExecutor>;

/// Speaks HTTP/2 over a new socket. The connection must be polled.
pub(super) async fn handshake<S>(
    socket: S,
    max_header_bytes: usize,
) -> hyper::Result<(H2Sender, H2Connection<S>)>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    http2::Builder::new(LocalExecutor)
        .timer(TokioTimer::new())
        .initial_max_send_streams(stream_limit::UNTOLD)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(u32::try_from(max_header_bytes).unwrap_or(u32::MAX))
        .handshake(TokioIo::new(socket))
        .await
}

/// An open connection of a pool.
#[derive(Debug)]
pub(super) struct Multiplexed {
    pub(super) id: u64,
    pub(super) sender: H2Sender,
    pub(super) born: Timestamp,
    pub(super) streams: Cell<u32>,
    /// How many it carries; `None` until the instance's SETTINGS told. Before that only the request
    /// that opened it uses it.
    pub(super) most: Rc<StreamLimit>,
    pub(super) last_used: Cell<Timestamp>,
    /// Streams that ended without having heard anything, since this was heard last.
    unheard: Cell<(u32, u64)>,
}

impl Multiplexed {
    /// With its first stream.
    pub(super) const fn new(
        id: u64,
        sender: H2Sender,
        most: Rc<StreamLimit>,
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            sender,
            born: now,
            streams: Cell::new(1),
            most,
            last_used: Cell::new(now),
            unheard: Cell::new((0, 0)),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.most
            .get()
            .is_some_and(|most| self.streams.get() < most)
    }

    /// How often something came from the instance.
    pub(super) fn heard(&self) -> u64 {
        self.most.heard()
    }

    /// A stream ended, and nothing came from the instance since it began.
    pub(super) fn ended_unheard(&self, timed_out: bool) {
        let heard = self.heard();
        let before = match self.unheard.get() {
            (streams, at) if at == heard => streams,
            _ => 0,
        };
        let weight = if timed_out { GIVEN_UP } else { 1 };
        self.unheard.set((before.saturating_add(weight), heard));
    }

    /// It may be dead: streams ended unheard, and nothing came since.
    pub(super) fn is_silent(&self) -> bool {
        let (streams, at) = self.unheard.get();
        streams >= GIVEN_UP && at == self.heard()
    }
}

/// Spawns hyper's tasks on the worker's own thread.
#[derive(Clone, Copy, Debug)]
pub struct LocalExecutor;

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        task::spawn_local(future);
    }
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::BodyExt;
    use hyper::body::Incoming;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::task::LocalSet;
    use tokio::time::timeout;

    use super::*;
    use crate::clock::Clock;

    const HOUR: Duration = Duration::from_secs(3_600);
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const ACK: u8 = 1;

    async fn send(stream: &mut DuplexStream, kind: u8, flags: u8, of: u8, payload: &[u8]) {
        let length = u8::try_from(payload.len()).unwrap();
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, of];
        frame.extend_from_slice(payload);
        let _closed = stream.write_all(&frame).await;
    }

    /// A server of gRPC with the usual rules for pings (`MinTime` 5 minutes, 2 strikes), as grpc-go keeps
    /// them: it answers a stream's head and says nothing more; pings it answers only while it is there.
    /// Returns how many came when it or the client ends the connection.
    async fn server(mut stream: DuplexStream, there: bool) -> u32 {
        let clock = Clock::new();
        let (mut pings, mut strikes, mut last) = (0, 0, None);
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).await.unwrap();
        send(&mut stream, SETTINGS, 0, 0, &[]).await;
        let mut head = [0; 9];
        loop {
            if stream.read_exact(&mut head).await.is_err() {
                return pings;
            }
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            stream.read_exact(&mut payload).await.unwrap();
            match (head[3], head[4] & ACK) {
                (SETTINGS, 0) => send(&mut stream, SETTINGS, ACK, 0, &[]).await,
                // `:status: 200`.
                (HEADERS, _) => send(&mut stream, HEADERS, 4, head[8], &[0x88]).await,
                (PING, 0) => {
                    pings += 1;
                    let now = clock.now();
                    let early = |last| now.since(last) < Duration::from_secs(300);
                    strikes += u32::from(last.is_some_and(early));
                    last = Some(now);
                    if strikes > 2 {
                        return pings;
                    }
                    if there {
                        send(&mut stream, PING, ACK, 0, &payload).await;
                    }
                }
                _ => {}
            }
        }
    }

    /// A call whose head has come.
    async fn call(near: DuplexStream) -> Incoming {
        let (mut sender, connection) = handshake(near, 64 * 1024).await.unwrap();
        task::spawn_local(connection);
        let request = Request::post("http://svc/a.B/Watch").body(AttemptBody::empty());
        let response = sender.send_request(request.unwrap()).await.unwrap();
        // Kept as a pool would.
        task::spawn_local(async move {
            tokio::time::sleep(HOUR * 24).await;
            drop(sender);
        });
        response.into_body()
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_stream_does_not_ping_more_often_than_servers_of_grpc_allow() {
        let quiet = async {
            let (near, far) = tokio::io::duplex(64 * 1024);
            let server = task::spawn_local(server(far, true));
            let mut body = call(near).await;
            assert!(timeout(HOUR, body.frame()).await.is_err());
            assert!(!server.is_finished());
        };
        LocalSet::new().run_until(quiet).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_stream_of_a_program_that_hangs_ends() {
        let hanging = async {
            let (near, far) = tokio::io::duplex(64 * 1024);
            let server = task::spawn_local(server(far, false));
            let mut body = call(near).await;
            let limit = PING_EVERY + PING_TIMEOUT + Duration::from_secs(1);
            let ended = timeout(limit, body.frame()).await;
            assert!(ended.unwrap().unwrap().is_err());
            drop(body);
            assert_eq!(server.await.unwrap(), 1);
        };
        LocalSet::new().run_until(hanging).await;
    }
}
