//! The journal as server-sent events. A task of each stream reads the journal's memory and waits for
//! its reader, never the other way round: who reads too slowly loses events (an event `gap` says how
//! many), and who does not read at all is cut.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use super::answer::{Answer, Fault, streamed};
use super::call::Call;
use super::events::{BEAT, Filter, filter, id};
use super::server::Progress;
use crate::journal::{Entry, Journal};

/// Pieces that wait for a reader; the rest waits in the journal.
const QUEUE: usize = 4;
/// Events of one piece.
const PIECE: usize = 64;

/// Answers with a stream.
pub(super) async fn answer(call: Call) -> Result<Answer, Fault> {
    let resume = call.header("last-event-id").filter(|id| !id.is_empty());
    let resume = resume.map(|text| id("Last-Event-ID", text)).transpose()?;
    let after = call
        .value("after")
        .map(|text| id("after", text))
        .transpose()?;
    let filter = filter(&call).await?;
    let Ok(place) = Arc::clone(&call.deps.streams).try_acquire_owned() else {
        return Err(Fault::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many_streams",
            format!("{} streams are open already", super::STREAMS),
            "close one, or ask /api/v1/events?after= again and again",
        ));
    };
    let journal = call.deps.journal.clone();
    let latest = *journal.follow().borrow();
    // Without a word only what is to come; with `since` what is kept too.
    let from = resume.or(after).or_else(|| filter.has_since().then_some(0));
    let (sender, pieces) = mpsc::channel(QUEUE);
    let follower = Follower {
        journal,
        filter,
        last: from.unwrap_or(latest),
        sender,
        _place: place,
    };
    tokio::spawn(follower.run(call.stop.clone()));
    let progress = Progress::default();
    let body = Pieces {
        pieces,
        asked: Arc::clone(&progress.0),
    };
    Ok(streamed("text/event-stream", body.boxed_unsync(), progress))
}

#[derive(Debug)]
struct Pieces {
    pieces: mpsc::Receiver<Bytes>,
    /// Grows while the connection takes what there is.
    asked: Arc<AtomicU64>,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.asked.fetch_add(1, Relaxed);
        let piece = self.pieces.poll_recv(context);
        piece.map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}

struct Follower {
    journal: Journal,
    filter: Filter,
    /// The latest event that was told, or passed over.
    last: u64,
    sender: mpsc::Sender<Bytes>,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let sender = self.sender.clone();
        tokio::select! {
            () = self.follow() => {}
            () = sender.closed() => {}
            // An error means that the sender is gone, which ends us just as well.
            _stop = stop.wait_for(|stop| *stop) => self.last_words(),
        }
    }

    /// What was written until the end, if the reader has kept up.
    fn last_words(&self) {
        let entries = self.journal.after(self.last);
        let wanted = entries.iter().filter(|entry| self.filter.wants(entry));
        let text: String = wanted.map(|entry| event(entry)).collect();
        if text.is_empty() {
            return;
        }
        if let Err(error) = self.sender.try_send(text.into()) {
            tracing::debug!(%error, "a stream's reader missed the last events");
        }
    }

    /// Ends when nobody reads any more.
    async fn follow(&mut self) {
        let mut latest = self.journal.follow();
        if self.send("retry: 1000\n\n".to_owned()).await.is_err() {
            return;
        }
        loop {
            let newest = *latest.borrow_and_update();
            if newest < self.last {
                self.last = 0;
                if self.send(gap("\"restarted\":true")).await.is_err() {
                    return;
                }
            }
            let entries = self.journal.after(self.last);
            if self.tell(&entries).await.is_err() {
                return;
            }
            let changed = tokio::time::timeout(BEAT, latest.changed()).await;
            let beat = ": beat\n\n".to_owned();
            if changed.is_err() && self.send(beat).await.is_err() {
                return;
            }
        }
    }

    async fn tell(&mut self, entries: &[Arc<Entry>]) -> Result<(), Gone> {
        let first = entries.first().map_or(self.last + 1, |entry| entry.id);
        let lost = first.saturating_sub(self.last + 1);
        // At the very beginning nothing was missed that could have been had.
        if lost > 0 && self.last > 0 {
            self.send(gap(&format!("\"lost\":{lost}"))).await?;
        }
        for some in entries.chunks(PIECE) {
            let wanted = some.iter().filter(|entry| self.filter.wants(entry));
            let text: String = wanted.map(|entry| event(entry)).collect();
            if !text.is_empty() {
                self.send(text).await?;
            }
            self.last = some.last().map_or(self.last, |entry| entry.id);
        }
        Ok(())
    }

    async fn send(&self, text: String) -> Result<(), Gone> {
        self.sender.send(text.into()).await.map_err(|_| Gone)
    }
}

/// Nobody reads any more.
struct Gone;

fn gap(what: &str) -> String {
    format!("event: gap\ndata: {{{what}}}\n\n")
}

fn event(entry: &Entry) -> String {
    // A map of strings and values can always be written, on one line.
    let data = serde_json::to_string(&entry.object).unwrap_or_default();
    format!(
        "id: {:06x}\nevent: {}\ndata: {data}\n\n",
        entry.id, entry.event
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::types::Events;
    use crate::sink::Lines;

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_loses_events_and_is_told() {
        let settings = Events {
            sinks: Vec::new(),
            ring_size: 3,
        };
        let journal = Journal::new(Lines::start().unwrap(), &settings);
        let emit = |n: u64| journal.emit("stopped", vec![("n", n.into())], String::new());
        emit(1);
        let (sender, mut pieces) = mpsc::channel(1);
        let places = Arc::new(tokio::sync::Semaphore::new(1));
        let follower = Follower {
            journal: journal.clone(),
            filter: Filter::default(),
            last: 1,
            sender,
            _place: places.clone().try_acquire_owned().unwrap(),
        };
        let (_stop, stopped) = watch::channel(false);
        let task = tokio::spawn(follower.run(stopped));
        let mut next = async || String::from_utf8(pieces.recv().await.unwrap().to_vec()).unwrap();
        assert_eq!(next().await, "retry: 1000\n\n");
        emit(2);
        let second = next().await;
        assert!(
            second.starts_with("id: 000002\nevent: stopped\ndata: {"),
            "{second}"
        );
        assert!(
            second.ends_with("}\n\n") && second.lines().count() == 4,
            "{second}"
        );
        // Nobody reads: writers go on, the task holds one piece and the queue another.
        for n in 3..=20 {
            emit(n);
            tokio::task::yield_now().await;
        }
        let mut seen = String::new();
        while !seen.contains("id: 000014") {
            seen.push_str(&next().await);
        }
        let lost = seen
            .lines()
            .filter_map(|l| l.strip_prefix("data: {\"lost\":"));
        let lost: Vec<usize> = lost
            .map(|l| l.trim_end_matches('}').parse().unwrap())
            .collect();
        assert_eq!(lost.len(), 1, "{seen}");
        let lost = lost[0];
        let told = seen.matches("event: stopped").count();
        assert_eq!(told + lost, 18, "{seen}");
        // Silence is filled, and the place is free once nobody reads.
        assert_eq!(next().await, ": beat\n\n");
        drop(pieces);
        task.await.unwrap();
        assert_eq!(places.available_permits(), 1);
    }
}
