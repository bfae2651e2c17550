//! One connection of a session: requests out, replies and events in, pings when it is quiet.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::WriteHalf;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::connection::{self, Incoming, MAX_FRAME, Stream};
use super::session::{Command, State};
use crate::discovery::subscription::Failure;
use crate::protocol::zookeeper::{
    self, EVENT_XID, Event, EventKind, NO_AUTH, NO_NODE, PING_XID, Read, ReplyHead,
    SET_WATCHES_XID, Watch,
};

/// A server that is silent is pinged at least this often.
const MOST_QUIET: Duration = Duration::from_secs(10);
/// Frames between the reader and us.
const FRAMES: usize = 64;

/// How a connection ended.
pub(super) enum End {
    /// Nobody needs the session any more.
    Closed,
    /// It broke.
    Lost(String),
}

pub(super) struct Live {
    _reader: Reader,
    label: String,
    write: WriteHalf<Box<dyn Stream>>,
    frames: mpsc::Receiver<io::Result<Incoming>>,
    pending: BTreeMap<i32, Command>,
    xid: i32,
}

/// Ends with the connection: a half that is read would keep it open.
struct Reader(JoinHandle<()>);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Live {
    pub(super) fn new(stream: Box<dyn Stream>, label: String) -> Self {
        let (read, write) = tokio::io::split(stream);
        let (sender, frames) = mpsc::channel(FRAMES);
        let reader = Reader(tokio::spawn(connection::pump(read, sender)));
        Self {
            _reader: reader,
            label,
            write,
            frames,
            pending: BTreeMap::new(),
            xid: 0,
        }
    }

    /// Until the connection breaks or the queue is closed. `granted` is the session's time.
    pub(super) async fn serve(
        mut self,
        state: &mut State,
        queue: &mut mpsc::Receiver<Command>,
        granted: Duration,
    ) -> End {
        let silence = granted * 2 / 3;
        let quiet = (silence / 2).min(MOST_QUIET);
        let mut heard = state.clock.now();
        let mut spoke = heard;
        let why = loop {
            let result = tokio::select! {
                command = queue.recv() => match command {
                    Some(command) => {
                        spoke = state.clock.now();
                        self.ask(command).await
                    }
                    None => {
                        // The server forgets the session at once.
                        let _lost = connection::send(&mut self.write, &zookeeper::close(i32::MAX)).await;
                        return End::Closed;
                    }
                },
                incoming = self.frames.recv() => {
                    heard = state.clock.now();
                    match incoming {
                        Some(Ok(incoming)) => self.take(incoming, state),
                        Some(Err(error)) => Err(error),
                        None => Err(io::ErrorKind::UnexpectedEof.into()),
                    }
                }
                () = tokio::time::sleep_until(state.clock.instant(spoke + quiet)) => {
                    spoke = state.clock.now();
                    connection::send(&mut self.write, &zookeeper::ping()).await
                }
                () = tokio::time::sleep_until(state.clock.instant(heard + silence)) => {
                    break format!("silent for {silence:?}");
                }
            };
            if let Err(error) = result {
                break error.to_string();
            }
        };
        let why = format!("{}: {why}", self.label);
        for command in std::mem::take(&mut self.pending).into_values() {
            // Whoever asked may have given up.
            let _gone = command.reply.send(Err(Failure::Unanswered(why.clone())));
        }
        End::Lost(why)
    }

    async fn ask(&mut self, command: Command) -> io::Result<()> {
        self.xid = self
            .xid
            .checked_add(1)
            .filter(|x| *x < i32::MAX)
            .unwrap_or(1);
        let frame = zookeeper::read(self.xid, command.read, &command.path);
        self.pending.insert(self.xid, command);
        connection::send(&mut self.write, &frame).await
    }

    fn take(&mut self, incoming: Incoming, state: &mut State) -> io::Result<()> {
        let malformed = |e| io::Error::new(io::ErrorKind::InvalidData, e);
        match incoming {
            Incoming::TooLong(head, length) => {
                let (head, _) = zookeeper::reply(&head).map_err(malformed)?;
                if let Some(command) = self.pending.remove(&head.xid) {
                    let path = &command.path;
                    let what = format!("{path}: an answer of {length} bytes is above {MAX_FRAME}");
                    let _gone = command.reply.send(Err(Failure::Unanswered(what)));
                }
                Ok(())
            }
            Incoming::Frame(frame) => {
                let (head, body) = zookeeper::reply(&frame).map_err(malformed)?;
                state.last_zxid = state.last_zxid.max(head.zxid);
                match head.xid {
                    EVENT_XID => fired(state, &zookeeper::event(body).map_err(malformed)?),
                    PING_XID | SET_WATCHES_XID => {}
                    _ => self.answer(head, body, state),
                }
                Ok(())
            }
        }
    }

    fn answer(&mut self, head: ReplyHead, body: &[u8], state: &mut State) {
        let Some(command) = self.pending.remove(&head.xid) else {
            return;
        };
        let (read, path) = (command.read, &command.path);
        let found = match head.error {
            0 => {
                // A watch for the coming of a node that is there is one for what it holds.
                let read = if read == Read::Exists {
                    Read::Data
                } else {
                    read
                };
                watch(state, read, path);
                Ok(Some(body.to_vec()))
            }
            NO_NODE => {
                if read == Read::Exists {
                    watch(state, read, path);
                }
                Ok(None)
            }
            NO_AUTH => Err(Failure::Refused(format!(
                "{path}: not authorised to read it"
            ))),
            code => Err(Failure::Unanswered(format!("{path}: error {code}"))),
        };
        let _gone = command.reply.send(found);
    }
}

fn watch(state: &mut State, read: Read, path: &Arc<str>) {
    let watch = Watch {
        read,
        path: path.clone(),
    };
    state.watches.insert(watch);
}

/// A watch is good for one event.
fn fired(state: &mut State, event: &Event) {
    let Event { kind, path } = event;
    let gone: &[Read] = match kind {
        EventKind::Created => &[Read::Exists],
        EventKind::Deleted => &[Read::Exists, Read::Data, Read::Children],
        EventKind::Data => &[Read::Exists, Read::Data],
        EventKind::Children => &[Read::Children],
        EventKind::Other => return,
    };
    for read in gone {
        let watch = Watch {
            read: *read,
            path: path.clone(),
        };
        state.watches.remove(&watch);
    }
    state.interests.touch(path);
}
