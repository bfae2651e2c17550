//! Signals: SIGTERM and SIGINT drain, a second one ends at once, SIGHUP reloads.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::app::Reloads;
use crate::control::reload::{Asker, ReloadWish};
use crate::drain::{Lifecycle, Stop};

/// Time for the usual end after a second signal.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How the process is to end, and reloads that are asked for.
pub type Signals = (Lifecycle, Reloads);

/// Starts a thread that turns signals into wishes; it lives as long as the process.
///
/// # Errors
/// When the thread or the handlers cannot be had.
pub fn listen() -> io::Result<Signals> {
    let lifecycle = Lifecycle::new();
    let stop = lifecycle.clone();
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
    Ok((lifecycle, (wishes, reloads)))
}

/// Passes the wish on. A second signal ends the process whatever the other threads do, also when
/// one of them is stuck.
#[expect(clippy::exit, reason = "the last resort of a second signal")]
async fn ask(lifecycle: &Lifecycle) {
    if lifecycle.signalled() == Stop::Now {
        tokio::time::sleep(LAST_WORDS).await;
        std::process::exit(1);
    }
}
