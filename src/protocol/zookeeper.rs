//! ZooKeeper's wire protocol, as much of it as a reader needs: jute, big endian; a frame is a length
//! and a body. Bytes in, values out; sessions and watches are kept by `discovery/zookeeper/`. Pure.

use std::sync::Arc;

/// The fixed numbers of replies that answer no request of ours.
pub const EVENT_XID: i32 = -1;
/// Of a ping.
pub const PING_XID: i32 = -2;
/// Of setting watches again.
pub const SET_WATCHES_XID: i32 = -8;

/// Bytes of paths in one setWatches: a server takes a megabyte, and older ones less.
const SET_WATCHES_BYTES: usize = 128 * 1024;

/// The node does not exist.
pub const NO_NODE: i32 = -101;
/// We may not read it.
pub const NO_AUTH: i32 = -102;

/// Not the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an answer of ZooKeeper")]
pub struct Malformed;

/// A session, as it is opened and taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionId {
    /// 0: a new one.
    pub id: i64,
    /// Shown when it is taken over.
    pub password: Vec<u8>,
}

/// The answer to [`connect`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Milliseconds as the server grants them; 0: the session is over.
    pub timeout: i32,
    /// The session.
    pub session: SessionId,
}

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Read {
    /// Whether a node is there; the watch fires when it comes.
    Exists,
    /// The names below a node.
    Children,
    /// What a node holds.
    Data,
}

impl Read {
    const fn code(self) -> i32 {
        match self {
            Self::Exists => 3,
            Self::Data => 4,
            Self::Children => 8,
        }
    }
}

/// The head of every reply but the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    /// Which request.
    pub xid: i32,
    /// The state of the server.
    pub zxid: i64,
    /// 0: good.
    pub error: i32,
}

/// Bytes of a [`ReplyHead`].
pub const REPLY_HEAD: usize = 16;

/// What happened to a watched node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It is there now.
    Created,
    /// It is gone.
    Deleted,
    /// It holds something else.
    Data,
    /// Other names are below it.
    Children,
    /// Something of the session, or a kind that is not known here.
    Other,
}

/// A watch that fired; it is gone with that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// To which node.
    pub path: Arc<str>,
}

/// A watch as it is set again on a new connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watch {
    /// What was read with it.
    pub read: Read,
    /// Of which node.
    pub path: Arc<str>,
}

/// The first frame of a connection.
pub fn connect(last_zxid: i64, timeout_ms: i32, session: &SessionId) -> Vec<u8> {
    let mut out = Frame::new();
    out.int(0).long(last_zxid).int(timeout_ms).long(session.id);
    if session.password.is_empty() {
        out.buffer(&[0; 16]);
    } else {
        out.buffer(&session.password);
    }
    out.0.push(0);
    out.done()
}

/// A read with a watch.
pub fn read(xid: i32, read: Read, path: &str) -> Vec<u8> {
    let mut out = Frame::new();
    out.int(xid).int(read.code()).buffer(path.as_bytes());
    out.0.push(1);
    out.done()
}

/// A sign of life.
pub fn ping() -> Vec<u8> {
    let mut out = Frame::new();
    out.int(PING_XID).int(11);
    out.done()
}

/// Ends the session.
pub fn close(xid: i32) -> Vec<u8> {
    let mut out = Frame::new();
    out.int(xid).int(-11);
    out.done()
}

/// Sets watches again after a new connection of the same session, in as many frames as it takes. What
/// they missed comes as events before the reply.
pub fn set_watches<'w>(
    last_zxid: i64,
    watches: impl IntoIterator<Item = &'w Watch>,
) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut batch: Vec<&Watch> = Vec::new();
    let mut bytes = 0;
    for watch in watches {
        if bytes + watch.path.len() > SET_WATCHES_BYTES && !batch.is_empty() {
            frames.push(set_batch(last_zxid, &batch));
            batch.clear();
            bytes = 0;
        }
        bytes += watch.path.len() + 4;
        batch.push(watch);
    }
    if !batch.is_empty() {
        frames.push(set_batch(last_zxid, &batch));
    }
    frames
}

fn set_batch(last_zxid: i64, batch: &[&Watch]) -> Vec<u8> {
    let mut out = Frame::new();
    out.int(SET_WATCHES_XID).int(101).long(last_zxid);
    for read in [Read::Data, Read::Exists, Read::Children] {
        let of_kind = batch.iter().filter(|watch| watch.read == read);
        out.length(of_kind.clone().count());
        for watch in of_kind {
            out.buffer(watch.path.as_bytes());
        }
    }
    out.done()
}

/// Reads the answer to [`connect`].
///
/// # Errors
/// [`Malformed`].
pub fn connected(body: &[u8]) -> Result<Connected, Malformed> {
    let mut body = Body(body);
    let _version = body.int()?;
    let timeout = body.int()?;
    let id = body.long()?;
    let password = body.buffer()?.unwrap_or_default().to_vec();
    Ok(Connected {
        timeout,
        session: SessionId { id, password },
    })
}

/// Takes the head off a reply.
///
/// # Errors
/// [`Malformed`].
pub fn reply(body: &[u8]) -> Result<(ReplyHead, &[u8]), Malformed> {
    let mut body = Body(body);
    let head = ReplyHead {
        xid: body.int()?,
        zxid: body.long()?,
        error: body.int()?,
    };
    Ok((head, body.0))
}

/// Reads the body of an event.
///
/// # Errors
/// [`Malformed`].
pub fn event(body: &[u8]) -> Result<Event, Malformed> {
    let mut body = Body(body);
    let kind = match body.int()? {
        1 => EventKind::Created,
        2 => EventKind::Deleted,
        3 => EventKind::Data,
        4 => EventKind::Children,
        _ => EventKind::Other,
    };
    let _state = body.int()?;
    let path = body.text()?.into();
    Ok(Event { kind, path })
}

/// Reads the names below a node, sorted. A name that is no text is left out.
///
/// # Errors
/// [`Malformed`].
pub fn children(body: &[u8]) -> Result<Vec<Arc<str>>, Malformed> {
    let mut body = Body(body);
    let count = body.int()?;
    let mut names = Vec::new();
    for _ in 0..count.max(0) {
        let name = body.buffer()?.unwrap_or_default();
        names.extend(std::str::from_utf8(name).ok().map(Arc::from));
    }
    names.sort_unstable();
    Ok(names)
}

/// Reads what a node holds.
///
/// # Errors
/// [`Malformed`].
pub fn data(body: &[u8]) -> Result<Vec<u8>, Malformed> {
    Ok(Body(body).buffer()?.unwrap_or_default().to_vec())
}

/// A frame in the making; its first four bytes become the length.
struct Frame(Vec<u8>);

impl Frame {
    fn new() -> Self {
        Self(vec![0; 4])
    }

    fn int(&mut self, value: i32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn long(&mut self, value: i64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn length(&mut self, length: usize) -> &mut Self {
        self.int(i32::try_from(length).unwrap_or(i32::MAX))
    }

    fn buffer(&mut self, bytes: &[u8]) -> &mut Self {
        self.length(bytes.len());
        self.0.extend(bytes);
        self
    }

    fn done(mut self) -> Vec<u8> {
        let length = i32::try_from(self.0.len().saturating_sub(4)).unwrap_or(i32::MAX);
        if let Some(head) = self.0.first_chunk_mut::<4>() {
            *head = length.to_be_bytes();
        }
        self.0
    }
}

/// What is left of a body.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*head)
    }

    fn int(&mut self) -> Result<i32, Malformed> {
        self.take().map(i32::from_be_bytes)
    }

    fn long(&mut self) -> Result<i64, Malformed> {
        self.take().map(i64::from_be_bytes)
    }

    /// `None`: null.
    fn buffer(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        let Ok(length) = usize::try_from(self.int()?) else {
            return Ok(None);
        };
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(Some(bytes))
    }

    fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.buffer()?.unwrap_or_default()).map_err(|_| Malformed)
    }
}

#[cfg(test)]
mod tests;
