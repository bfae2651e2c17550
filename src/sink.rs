//! Where lines go: standard output, standard error, files. One thread writes, so no request and no
//! decision ever waits for a disk or a terminal. The queue is bounded; a full one drops the line
//! and counts it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use crate::config::types::Sink;

/// Longest wait for the last lines.
const FLUSH_WAIT: Duration = Duration::from_secs(1);
/// Lines that may wait.
const QUEUE: usize = 16 * 1024;

enum Job {
    Open(Sink),
    Line(Sink, Vec<u8>),
    Flush(SyncSender<()>),
}

/// Handle to the writing thread; clones share it.
#[derive(Clone, Debug)]
pub struct Lines {
    queue: SyncSender<Job>,
    dropped: Arc<AtomicU64>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Job")
    }
}

impl Lines {
    /// Starts the thread; it ends when every handle is gone.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let (queue, jobs) = sync_channel::<Job>(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost_lines = Arc::clone(&dropped);
        thread::Builder::new().name("lines".into()).spawn(move || {
            let mut files: Vec<(Sink, File)> = Vec::new();
            let mut failed = false;
            while let Ok(job) = jobs.recv() {
                let mut next = Some(job);
                while let Some(job) = next.take() {
                    let lost = run(job, &mut files).is_err();
                    if lost {
                        lost_lines.fetch_add(1, Relaxed);
                    }
                    if lost && !std::mem::replace(&mut failed, true) {
                        tracing::error!("log lines are lost: a sink cannot be written");
                    }
                    next = jobs.try_recv().ok();
                }
                // Everything that waited is written: let readers see it. A closed pipe is no
                // reason to stop the proxy.
                let _closed = io::stdout().flush();
            }
        })?;
        Ok(Self { queue, dropped })
    }

    /// Opens a sink ahead of its first line, so that a file that cannot be opened is known early.
    ///
    /// # Errors
    /// The file cannot be opened for appending.
    pub fn open(&self, sink: &Sink) -> io::Result<()> {
        if let Sink::File(path) = sink {
            append(path)?;
        }
        let _full = self.queue.try_send(Job::Open(sink.clone()));
        Ok(())
    }

    /// Queues a line (with its newline). Never waits.
    pub fn write(&self, sink: &Sink, line: Vec<u8>) {
        match self.queue.try_send(Job::Line(sink.clone(), line)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                if self.dropped.fetch_add(1, Relaxed) == 0 {
                    tracing::error!(?sink, "log lines are dropped: the sink takes none");
                }
            }
        }
    }

    /// Lines that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Waits until everything queued so far is written, for a bounded time: a reader of our output
    /// that has stopped must not keep the process from ending.
    pub fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if self.queue.try_send(Job::Flush(done)).is_ok() {
            let _written = wait.recv_timeout(FLUSH_WAIT);
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// A write that fails (disk full, pipe closed) loses the line; the caller counts it.
fn run(job: Job, files: &mut Vec<(Sink, File)>) -> io::Result<()> {
    match job {
        Job::Open(Sink::Stdout | Sink::Stderr) => Ok(()),
        Job::Open(sink @ Sink::File(_)) => {
            // Opened anew: a rotated file is left behind.
            files.retain(|(known, _)| *known != sink);
            if let Sink::File(path) = &sink {
                let file = append(path)?;
                files.push((sink, file));
            }
            Ok(())
        }
        Job::Line(Sink::Stdout, line) => io::stdout().lock().write_all(&line),
        Job::Line(Sink::Stderr, line) => io::stderr().lock().write_all(&line),
        Job::Line(sink @ Sink::File(_), line) => {
            if !files.iter().any(|(known, _)| *known == sink) {
                run(Job::Open(sink.clone()), files)?;
            }
            match files.iter_mut().find(|(known, _)| *known == sink) {
                Some((_, file)) => file.write_all(&line),
                None => Ok(()),
            }
        }
        Job::Flush(done) => {
            let flushed = io::stdout().flush();
            let _gone = done.send(());
            flushed
        }
    }
}
