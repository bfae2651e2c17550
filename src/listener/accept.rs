//! The accept loops of one worker. Errors pause, they never spin and never end the loop. A
//! connection is handed to the worker with the fewest when ours has several more: with few long
//! connections the kernel's hash can put them all on one.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task;

use super::connection;
use crate::metrics::cells::Limit;
use crate::worker::{DrainPhase, Worker};

/// Pause after an accept error, doubled up to the longest.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// One log line per this time, however many errors.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// How many more connections than another worker's are kept.
const UNEVEN: u64 = 4;

/// A connection handed from worker to worker.
#[derive(Debug)]
pub struct Handed {
    stream: TcpStream,
    peer: SocketAddr,
    service: Option<Arc<str>>,
}

/// The other workers' queues, our own at our index.
pub type Handovers = Arc<[mpsc::Sender<Handed>]>;

/// Accepts on one TCP socket until the drain begins.
pub async fn tcp(
    worker: Rc<Worker>,
    socket: TcpListener,
    service: Option<Arc<str>>,
    handovers: Handovers,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(socket)?;
    let mut drain = worker.shared.drain.clone();
    let mut trouble = Trouble::default();
    loop {
        let accepted = tokio::select! {
            // What the kernel has taken already is still served.
            biased;
            accepted = listener.accept() => accepted,
            _draining = drain.wait_for(|phase| *phase >= DrainPhase::Draining) => return Ok(()),
        };
        match accepted {
            Ok((stream, peer)) => {
                trouble.over();
                full(&worker).await;
                let service = service.clone();
                take(&worker, stream, peer, service, &handovers);
            }
            Err(_) if *drain.borrow() >= DrainPhase::Draining => return Ok(()),
            Err(error) => trouble.wait(&worker, &error).await,
        }
    }
}

/// Serves a connection, here or at a worker that has several fewer.
fn take(
    worker: &Rc<Worker>,
    stream: tokio::net::TcpStream,
    peer: SocketAddr,
    service: Option<Arc<str>>,
    handovers: &Handovers,
) {
    let other = less_busy(worker);
    let place = other
        .and_then(|other| handovers.get(other))
        .and_then(|queue| queue.try_reserve().ok());
    let cells = other.and_then(|other| worker.shared.cells.get(other));
    let (Some(place), Some(cells)) = (place, cells) else {
        worker.connection_opened();
        return begin(worker, stream, peer, service);
    };
    match stream.into_std() {
        Ok(stream) => {
            // Counted from now on, and for its new worker: until that takes it, it is a file and a
            // reason to hand over no more.
            cells.app_connections.fetch_add(1, Relaxed);
            place.send(Handed {
                stream,
                peer,
                service,
            });
        }
        Err(error) => tracing::warn!(%error, "connection lost on its way to another worker"),
    }
}

/// Serves what other workers hand over.
pub async fn handed(worker: Rc<Worker>, mut queue: mpsc::Receiver<Handed>) {
    while let Some(Handed {
        stream,
        peer,
        service,
    }) = queue.recv().await
    {
        match tokio::net::TcpStream::from_std(stream) {
            Ok(stream) => begin(&worker, stream, peer, service),
            Err(error) => {
                worker.connection_closed();
                tracing::warn!(%error, "connection lost on its way to another worker");
            }
        }
    }
}

/// Accepts on one Unix socket until the drain begins; removes its file then.
pub async fn unix(
    worker: Rc<Worker>,
    socket: std::os::unix::net::UnixListener,
    path: Arc<Path>,
) -> io::Result<()> {
    struct Remove(Arc<Path>);
    impl Drop for Remove {
        fn drop(&mut self) {
            // A file that is gone already is as good.
            let _gone = std::fs::remove_file(&self.0);
        }
    }
    // The worker may end, and this task with it, before the loop below sees the drain.
    let _remove = Remove(path);
    let listener = tokio::net::UnixListener::from_std(socket)?;
    let mut drain = worker.shared.drain.clone();
    let mut trouble = Trouble::default();
    loop {
        let accepted = tokio::select! {
            // What the kernel has taken already is still served.
            biased;
            accepted = listener.accept() => accepted,
            _draining = drain.wait_for(|phase| *phase >= DrainPhase::Draining) => return Ok(()),
        };
        match accepted {
            Ok((stream, _)) => {
                trouble.over();
                full(&worker).await;
                worker.connection_opened();
                task::spawn_local(connection::run(Rc::clone(&worker), stream, None, None));
            }
            Err(_) if *drain.borrow() >= DrainPhase::Draining => return Ok(()),
            Err(error) => trouble.wait(&worker, &error).await,
        }
    }
}

/// Serves a connection that is counted already.
fn begin(
    worker: &Rc<Worker>,
    stream: tokio::net::TcpStream,
    peer: SocketAddr,
    service: Option<Arc<str>>,
) {
    // Without it small answers wait for acknowledgements; a socket that refuses it is closed soon.
    let _closing = stream.set_nodelay(true);
    task::spawn_local(connection::run(
        Rc::clone(worker),
        stream,
        Some(peer),
        service,
    ));
}

/// The worker with the fewest connections, when it has several fewer than ours.
fn less_busy(worker: &Worker) -> Option<usize> {
    let counts = worker
        .shared
        .cells
        .iter()
        .map(|c| c.app_connections.load(Relaxed));
    let (least, count) = counts.enumerate().min_by_key(|(_, count)| *count)?;
    let own = worker.cells()?.app_connections.load(Relaxed);
    (least != worker.index && own >= count + UNEVEN).then_some(least)
}

/// At the limit of connections nothing is served until one ends: what was just accepted waits here, the
/// rest in the kernel's queue. Looked at after accepting, since the other workers accept meanwhile.
async fn full(worker: &Worker) {
    let mut counted = false;
    loop {
        let most = worker.snapshot().config.limits.max_connections;
        let room = worker.shared.room;
        let open = worker.connections_open();
        let fits = fits(open, worker.upstream_open(), room);
        if open < most && fits {
            return;
        }
        if !counted {
            counted = true;
            let files = !fits;
            worker.limit_hit(if files {
                Limit::OpenFiles
            } else {
                Limit::MaxConnections
            });
            if files {
                worker.log_full(room);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether one more connection of the app fits into `room` open files. A quarter is left for
/// connections to instances, all that they have where they have more.
const fn fits(app: usize, upstream: usize, room: usize) -> bool {
    let reserved = if upstream > app / 3 {
        upstream
    } else {
        app / 3
    };
    app.saturating_add(reserved) < room
}

#[derive(Debug, Default)]
struct Trouble {
    pause: Duration,
    logged: Option<crate::clock::Timestamp>,
    unlogged: u32,
}

impl Trouble {
    fn over(&mut self) {
        self.pause = Duration::ZERO;
    }

    async fn wait(&mut self, worker: &Worker, error: &io::Error) {
        // EMFILE, ENFILE, ENOBUFS, ENOMEM: out of something; the others are the peer's.
        let exhausted = matches!(error.raw_os_error(), Some(24 | 23 | 105 | 12));
        if !exhausted {
            return;
        }
        worker.limit_hit(Limit::OpenFiles);
        let now = worker.clock.now();
        if self.logged.is_none_or(|at| now.since(at) >= LOG_EVERY) {
            tracing::error!(%error, suppressed = self.unlogged, "accept pauses: raise the open-file limit or lower limits.max_connections");
            self.logged = Some(now);
            self.unlogged = 0;
        } else {
            self.unlogged += 1;
        }
        self.pause = (self.pause * 2).clamp(PAUSE, LONGEST_PAUSE);
        tokio::time::sleep(self.pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn the_app_gets_three_quarters_of_the_files_at_most() {
        assert!(fits(0, 0, 1));
        assert!(fits(74, 0, 100) && !fits(76, 0, 100));
        assert!(fits(40, 59, 100) && !fits(41, 59, 100));
        assert!(fits(10_000, 64, 19_936));
    }
}
