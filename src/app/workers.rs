//! The threads of the data plane: each has a runtime, its sockets and a queue of connections that
//! others accepted for it.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tokio::sync::mpsc;

use super::Listener;
use crate::listener::accept::{self, Handed, Handovers};
use crate::worker::{Shared, Worker};

/// Starts the threads of the data plane; each drops its `gone` when it ends.
pub(super) fn start_workers(
    data: Vec<Listener>,
    shared: &Arc<Shared>,
    seeds: &mut fastrand::Rng,
    gone: &mpsc::Sender<()>,
) -> anyhow::Result<()> {
    let workers = shared.cells.len();
    let queues: Vec<_> = (0..workers).map(|_| mpsc::channel::<Handed>(256)).collect();
    let handovers: Handovers = queues.iter().map(|(sender, _)| sender.clone()).collect();
    let mut tcp: Vec<Vec<(std::net::TcpListener, Option<Arc<str>>)>> =
        (0..workers).map(|_| Vec::new()).collect();
    let mut unix = Vec::new();
    for listener in data {
        for address in listener.bound.tcp {
            for (sockets, socket) in tcp.iter_mut().zip(address.sockets) {
                sockets.push((socket, listener.service.clone()));
            }
        }
        unix.extend(listener.bound.unix);
    }
    for (index, (sockets, (_, queue))) in tcp.into_iter().zip(queues).enumerate() {
        let start = WorkerStart {
            index,
            shared: Arc::clone(shared),
            seed: seeds.u64(..),
            tcp: sockets,
            // One thread is enough for Unix sockets.
            unix: if index == 0 {
                std::mem::take(&mut unix)
            } else {
                Vec::new()
            },
            handovers: Arc::clone(&handovers),
            queue,
        };
        let gone = gone.clone();
        std::thread::Builder::new()
            .name(format!("worker-{index}"))
            .spawn(move || {
                if let Err(error) = worker_thread(start) {
                    tracing::error!(%error, "a worker ended early");
                }
                drop(gone);
            })
            .context("cannot start a worker thread")?;
    }
    Ok(())
}

struct WorkerStart {
    index: usize,
    shared: Arc<Shared>,
    seed: u64,
    tcp: Vec<(std::net::TcpListener, Option<Arc<str>>)>,
    unix: Vec<(std::path::PathBuf, std::os::unix::net::UnixListener)>,
    handovers: Handovers,
    queue: mpsc::Receiver<Handed>,
}

fn worker_thread(start: WorkerStart) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let worker = Worker::new(start.index, start.shared, start.seed);
        for (socket, service) in start.tcp {
            let handovers = Arc::clone(&start.handovers);
            let task = accept::tcp(std::rc::Rc::clone(&worker), socket, service, handovers);
            tokio::task::spawn_local(log_end(task));
        }
        for (path, socket) in start.unix {
            let path: Arc<Path> = path.into();
            tokio::task::spawn_local(log_end(accept::unix(
                std::rc::Rc::clone(&worker),
                socket,
                path,
            )));
        }
        tokio::task::spawn_local(accept::handed(std::rc::Rc::clone(&worker), start.queue));
        tokio::task::spawn_local(std::rc::Rc::clone(&worker).housekeeping());
        worker.until_drained().await;
        Ok(())
    })
}

async fn log_end(task: impl Future<Output = std::io::Result<()>>) {
    if let Err(error) = task.await {
        tracing::error!(%error, "a listener ended");
    }
}
