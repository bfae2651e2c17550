//! Signals: SIGTERM and SIGINT drain, a second one ends at once, SIGHUP reloads.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::app::{Reloads, Stop};
use crate::control::reload::{Asker, ReloadWish};

/// Time for the usual end after a second signal.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How the process is to end, and reloads that are asked for.
pub type Signals = (watch::Receiver<Stop>, Reloads);

/// Starts a thread that turns signals into wishes; it lives as long as the process.
///
/// # Errors
/// When the thread or the handlers cannot be had.
pub fn listen() -> io::Result<Signals> {
    let (stop, stops) = watch::channel(Stop::No);
    let (reload, reloads) = mpsc::channel(4);
    let wishes = reload.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut term, mut int, mut hup) = {
        let _context = runtime.enter();
        (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        )
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            runtime.block_on(async move {
                loop {
                    tokio::select! {
                        _ = term.recv() => ask(&stop).await,
                        _ = int.recv() => ask(&stop).await,
                        _ = hup.recv() => {
                            // One that waits already stands for this one too.
                            let _waiting = reload.try_send(ReloadWish {
                                asker: Asker::Signal,
                                reply: None,
                            });
                        }
                    }
                }
            });
        })?;
    Ok((stops, (wishes, reloads)))
}

/// Passes the wish on. A second signal ends the process whatever the other threads do, also when
/// one of them is stuck.
#[expect(clippy::exit, reason = "the last resort of a second signal")]
async fn ask(stop: &watch::Sender<Stop>) {
    stop.send_modify(|wish| {
        *wish = match *wish {
            Stop::No => Stop::Drain,
            Stop::Drain | Stop::Now => Stop::Now,
        };
    });
    if *stop.borrow() == Stop::Now {
        tokio::time::sleep(LAST_WORDS).await;
        std::process::exit(1);
    }
}
