//! Endpoints from a watched file: its content is read every second, so a rename over it, a symlink
//! switch and a slow writer are all seen. A file that cannot be read or parsed keeps the last good
//! sets and says why. What a good file says is obeyed at once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;

use super::EndpointsParser;
use super::handle::Shared;
use super::source::{Listing, Source, Task};
use super::subscription::{Answer, Failure, Subscription};
use crate::endpoint::EndpointSet;

/// How often the content is compared.
const PERIOD: Duration = Duration::from_secs(1);

/// Between two readings of a content that is new.
const SETTLE: Duration = Duration::from_millis(200);
/// As many readings at most until two agree.
const SETTLE_READS: u32 = 10;

/// Bytes of an endpoints file.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The file of one registry.
#[derive(Clone, Debug)]
pub(super) struct FileSource(Arc<Watched>);

#[derive(Debug)]
struct Watched {
    path: PathBuf,
    parser: EndpointsParser,
    /// Counts readings that differ from the one before.
    changes: watch::Sender<u64>,
    last: Mutex<Reading>,
}

#[derive(Clone, Debug, Default)]
struct Reading {
    text: Option<String>,
    sets: Option<Arc<BTreeMap<Arc<str>, EndpointSet>>>,
    error: Option<String>,
}

impl FileSource {
    /// Starts to watch; the task ends with the registry's handle and its last subscription.
    pub(super) fn start(path: PathBuf, parser: EndpointsParser, shared: &Arc<Shared>) -> Self {
        let watched = Arc::new(Watched {
            path,
            parser,
            changes: watch::Sender::new(0),
            last: Mutex::default(),
        });
        drop(tokio::spawn(watch_file(
            Arc::downgrade(&watched),
            Arc::downgrade(shared),
        )));
        Self(watched)
    }

    async fn run(self, mut subscription: Subscription) {
        let mut changes = self.0.changes.subscribe();
        if *changes.borrow_and_update() == 0 {
            self.0.read().await;
            changes.mark_unchanged();
        }
        loop {
            let last = self.0.lock().clone();
            let recheck = match (last.error, last.sets) {
                (Some(error), _) => {
                    subscription.failed(&Failure::Unanswered(error));
                    None
                }
                (None, sets) => {
                    let name = &subscription.query.registry_name;
                    let set = sets.as_ref().and_then(|sets| sets.get(name)).cloned();
                    let set = set.unwrap_or_default();
                    let endpoints = set.endpoints.to_vec();
                    subscription.answer(Answer {
                        endpoints,
                        ..Answer::default()
                    })
                }
            };
            if !subscription.changed(&mut changes, recheck).await {
                return;
            }
        }
    }
}

impl Source for FileSource {
    fn follow(self: Arc<Self>, subscription: Subscription) -> Task {
        Box::pin(Self::clone(&self).run(subscription))
    }

    fn names(self: Arc<Self>) -> Listing {
        Box::pin(async move {
            self.0.read().await;
            let last = self.0.lock().clone();
            match (last.error, last.sets) {
                (Some(error), _) => Err(Failure::Unanswered(error)),
                (None, sets) => Ok(sets.iter().flat_map(|sets| sets.keys().cloned()).collect()),
            }
        })
    }

    fn names_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.0.changes.subscribe())
    }
}

impl Watched {
    /// Reads the file and, when its content differs, parses it.
    async fn read(&self) {
        let text = self.settled().await;
        let mut last = self.lock();
        match text {
            Ok(text) if last.text.as_ref() == Some(&text) => return,
            Ok(text) => {
                match (self.parser)(&text, &self.path) {
                    Ok(sets) => {
                        last.sets = Some(Arc::new(sets));
                        last.error = None;
                    }
                    Err(problems) => last.error = Some(problems),
                }
                last.text = Some(text);
            }
            Err(error) => {
                last.text = None;
                if last.error.as_ref() == Some(&error) {
                    return;
                }
                last.error = Some(error);
            }
        }
        drop(last);
        self.changes
            .send_modify(|count| *count = count.saturating_add(1));
    }

    /// The content; one that differs from the last reading only when two readings of it agree, so
    /// that half of a file is not taken for the whole.
    async fn settled(&self) -> Result<String, String> {
        let mut text = self.content().await;
        for _ in 0..SETTLE_READS {
            let known = match (&text, &self.lock().text) {
                (Ok(text), Some(last)) => text == last,
                // The first reading, and a file that cannot be read: nothing to protect.
                (Ok(_), None) | (Err(_), _) => true,
            };
            if known {
                return text;
            }
            tokio::time::sleep(SETTLE).await;
            let again = self.content().await;
            if again == text {
                return text;
            }
            text = again;
        }
        // It never stands still: what it holds now is as good as anything.
        text
    }

    async fn content(&self) -> Result<String, String> {
        let path = self.path.display();
        let found = tokio::fs::metadata(&self.path)
            .await
            .map_err(|e| format!("{path}: {e}"))?;
        if !found.is_file() {
            // A pipe would be read for ever, a device too.
            return Err(format!("{path}: not a regular file"));
        }
        let size = found.len();
        if size > MAX_BYTES {
            return Err(format!("{path}: {size} bytes are more than {MAX_BYTES}"));
        }
        let bytes = tokio::fs::read(&self.path)
            .await
            .map_err(|e| format!("{path}: {e}"))?;
        String::from_utf8(bytes).map_err(|_| format!("{path}: not UTF-8"))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Reading> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn watch_file(watched: Weak<Watched>, shared: Weak<Shared>) {
    while let (Some(file), Some(registry)) = (watched.upgrade(), shared.upgrade()) {
        file.read().await;
        if file.lock().error.is_none() {
            registry.answered(registry.clock.now());
        }
        drop((file, registry));
        tokio::time::sleep(PERIOD).await;
    }
}
