//! A ZooKeeper server of the test: nodes, sessions, one-shot watches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

/// Clones are the same server.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeZookeeper(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "switches of a scripted server that do not depend on each other"
)]
struct Inner {
    nodes: BTreeMap<String, (String, i64)>,
    /// When something below a node or the node itself last came or went.
    touched: BTreeMap<String, i64>,
    zxid: i64,
    session: i64,
    sessions: usize,
    expired: bool,
    refusing: bool,
    dropping: bool,
    bloated: BTreeSet<String>,
    /// Of the connection: where its frames go; dropped when it is cut.
    out: Option<mpsc::UnboundedSender<Vec<u8>>>,
    connections: usize,
    reads: usize,
    pending: usize,
    most_pending: usize,
    closed: bool,
    watches: BTreeSet<(Kind, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Data,
    Exists,
    Children,
}

impl FakeZookeeper {
    /// Makes a node and those above it.
    pub(super) fn create(&self, path: &str, data: &str) {
        let mut inner = self.lock();
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1);
        for end in ends.chain([path.len()]) {
            let node = path.get(..end).unwrap();
            if inner.nodes.contains_key(node) {
                continue;
            }
            inner.zxid += 1;
            let zxid = inner.zxid;
            let data = if end == path.len() { data } else { "" };
            inner.nodes.insert(node.to_owned(), (data.to_owned(), zxid));
            inner.fire(1, node, &[Kind::Exists, Kind::Data]);
            let parent = node.rsplit_once('/').unwrap().0.to_owned();
            inner.touched.insert(parent.clone(), zxid);
            inner.fire(4, &parent, &[Kind::Children]);
        }
    }

    pub(super) fn set(&self, path: &str, data: &str) {
        let mut inner = self.lock();
        inner.zxid += 1;
        let zxid = inner.zxid;
        inner.nodes.insert(path.to_owned(), (data.to_owned(), zxid));
        inner.fire(3, path, &[Kind::Data]);
    }

    pub(super) fn delete(&self, path: &str) {
        let mut inner = self.lock();
        inner.zxid += 1;
        let zxid = inner.zxid;
        inner.nodes.remove(path);
        inner.fire(2, path, &[Kind::Data, Kind::Children]);
        let parent = path.rsplit_once('/').unwrap().0.to_owned();
        inner.touched.insert(parent.clone(), zxid);
        inner.fire(4, &parent, &[Kind::Children]);
    }

    /// Ends the session and the connection.
    pub(super) fn expire(&self) {
        self.lock().expired = true;
        self.cut();
    }

    pub(super) fn cut(&self) {
        let mut inner = self.lock();
        inner.out = None;
        inner.watches.clear();
        inner.pending = 0;
    }

    /// New connections are closed at once.
    pub(super) fn refuse(&self, refusing: bool) {
        self.lock().refusing = refusing;
    }

    /// Connections end as soon as they have their session.
    pub(super) fn drop_sessions(&self, dropping: bool) {
        self.lock().dropping = dropping;
    }

    /// The next answers about its children are too long.
    pub(super) fn bloat(&self, path: &str) {
        self.lock().bloated.insert(path.to_owned());
    }

    pub(super) fn sessions(&self) -> usize {
        self.lock().sessions
    }
    pub(super) fn connections(&self) -> usize {
        self.lock().connections
    }
    pub(super) fn reads(&self) -> usize {
        self.lock().reads
    }
    pub(super) fn most_pending(&self) -> usize {
        self.lock().most_pending
    }
    pub(super) fn closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Serves a connection.
    pub(super) fn serve(&self, stream: DuplexStream) {
        if self.lock().refusing {
            return;
        }
        let server = self.clone();
        tokio::spawn(async move {
            let (mut read, mut write) = tokio::io::split(stream);
            let (out, mut frames) = mpsc::unbounded_channel::<Vec<u8>>();
            let writer = tokio::spawn(async move {
                while let Some(frame) = frames.recv().await {
                    let length = i32::try_from(frame.len()).unwrap();
                    write.write_i32(length).await.unwrap();
                    // The reader may have left.
                    let _gone = write.write_all(&frame).await;
                }
                write.shutdown().await.unwrap();
            });
            server.lock().out = Some(out.clone());
            server.lock().connections += 1;
            assert!(server.connections() < 1_000, "a loop without a pause");
            let mine = out.downgrade();
            drop(out);
            while let Ok(length) = read.read_i32().await {
                let mut body = vec![0; usize::try_from(length).unwrap()];
                read.read_exact(&mut body).await.unwrap();
                let Some(out) = mine.upgrade() else { break };
                let last = server.request(&body, &out);
                if last {
                    server.lock().out = None;
                    break;
                }
            }
            let _done = writer.await;
        });
    }

    /// True: the connection ends.
    fn request(&self, body: &[u8], out: &mpsc::UnboundedSender<Vec<u8>>) -> bool {
        let int = |at: usize| i32::from_be_bytes(body[at..at + 4].try_into().unwrap());
        let long = |at: usize| i64::from_be_bytes(body[at..at + 8].try_into().unwrap());
        let mut inner = self.lock();
        let first = body.len() == 45 && int(0) == 0;
        if first {
            return inner.greet(long(16), int(12), out);
        }
        let (xid, kind) = (int(0), int(4));
        match kind {
            -11 => {
                inner.closed = true;
                out.send(head(xid, inner.zxid, 0)).unwrap();
                return true;
            }
            11 => out.send(head(-2, inner.zxid, 0)).unwrap(),
            101 => inner.set_watches(body, out),
            3 | 4 | 8 => {
                let length = usize::try_from(int(8)).unwrap();
                let path = String::from_utf8(body[12..12 + length].to_vec()).unwrap();
                assert_eq!(body[12 + length], 1, "a read without a watch");
                inner.reads += 1;
                inner.pending += 1;
                inner.most_pending = inner.most_pending.max(inner.pending);
                let (server, out) = (self.clone(), out.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                    let mut inner = server.lock();
                    inner.pending = inner.pending.saturating_sub(1);
                    let reply = inner.read(xid, kind, &path);
                    let _gone = out.send(reply);
                });
            }
            other => panic!("request {other}"),
        }
        false
    }
}

impl Inner {
    fn greet(&mut self, id: i64, timeout: i32, out: &mpsc::UnboundedSender<Vec<u8>>) -> bool {
        let over = id != 0 && (self.expired || id != self.session);
        let mut reply = vec![0; 4];
        let (timeout, id) = if over {
            (0_i32, 0)
        } else if id == 0 {
            self.sessions += 1;
            self.session = 100 + i64::try_from(self.sessions).unwrap();
            (timeout, self.session)
        } else {
            (timeout, id)
        };
        self.expired = false;
        reply.extend(timeout.to_be_bytes());
        reply.extend(id.to_be_bytes());
        reply.extend([0, 0, 0, 16]);
        reply.extend([1; 16]);
        reply.push(0);
        out.send(reply).unwrap();
        over || self.dropping
    }

    fn read(&mut self, xid: i32, kind: i32, path: &str) -> Vec<u8> {
        let found = self.nodes.get(path).cloned();
        let watch = match (kind, &found) {
            (3, None) => Some(Kind::Exists),
            (3 | 4, Some(_)) => Some(Kind::Data),
            (8, Some(_)) => Some(Kind::Children),
            _ => None,
        };
        self.watches
            .extend(watch.map(|kind| (kind, path.to_owned())));
        let Some((data, _)) = found else {
            return head(xid, self.zxid, -101);
        };
        let mut reply = head(xid, self.zxid, 0);
        match kind {
            8 if self.bloated.contains(path) => reply.resize(16 * 1024 * 1024 + 100, 0),
            8 => {
                let below = format!("{path}/");
                let names = self.nodes.keys().filter_map(|n| n.strip_prefix(&below));
                let names: Vec<&str> = names.filter(|n| !n.contains('/')).collect();
                reply.extend(u32::try_from(names.len()).unwrap().to_be_bytes());
                // In no order, as the real one does.
                for name in names.iter().rev() {
                    reply.extend(u32::try_from(name.len()).unwrap().to_be_bytes());
                    reply.extend(name.as_bytes());
                }
            }
            4 => {
                reply.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
                reply.extend(data.as_bytes());
                reply.extend([0; 68]);
            }
            _ => reply.extend([0; 68]),
        }
        reply
    }

    fn set_watches(&mut self, body: &[u8], out: &mpsc::UnboundedSender<Vec<u8>>) {
        let since = i64::from_be_bytes(body[8..16].try_into().unwrap());
        let mut rest = &body[16..];
        let mut take = |n: usize| {
            let (head, tail) = rest.split_at(n);
            rest = tail;
            head
        };
        let number =
            |bytes: &[u8]| usize::try_from(i32::from_be_bytes(bytes.try_into().unwrap())).unwrap();
        let mut missed = Vec::new();
        for kind in [Kind::Data, Kind::Exists, Kind::Children] {
            for _ in 0..number(take(4)) {
                let length = number(take(4));
                let path = String::from_utf8(take(length).to_vec()).unwrap();
                let node = self.nodes.get(&path);
                let event = match (kind, node) {
                    (Kind::Data | Kind::Children, None) => Some(2),
                    (Kind::Exists, Some(_)) => Some(1),
                    (Kind::Data, Some((_, zxid))) if *zxid > since => Some(3),
                    (Kind::Children, Some(_)) => {
                        let touched = self.touched.get(&path).copied().unwrap_or(0);
                        (touched > since).then_some(4)
                    }
                    _ => None,
                };
                match event {
                    Some(event) => missed.push((event, path)),
                    None => {
                        self.watches.insert((kind, path));
                    }
                }
            }
        }
        for (event, path) in missed {
            out.send(told(event, &path)).unwrap();
        }
        out.send(head(-8, self.zxid, 0)).unwrap();
    }

    fn fire(&mut self, event: i32, path: &str, kinds: &[Kind]) {
        let mut watched = false;
        for kind in kinds {
            watched |= self.watches.remove(&(*kind, path.to_owned()));
        }
        if let Some(out) = self.out.as_ref().filter(|_| watched) {
            let _gone = out.send(told(event, path));
        }
    }
}

fn head(xid: i32, zxid: i64, error: i32) -> Vec<u8> {
    let mut head = xid.to_be_bytes().to_vec();
    head.extend(zxid.to_be_bytes());
    head.extend(error.to_be_bytes());
    head
}

fn told(event: i32, path: &str) -> Vec<u8> {
    let mut frame = head(-1, -1, 0);
    frame.extend(event.to_be_bytes());
    frame.extend(3_i32.to_be_bytes());
    frame.extend(u32::try_from(path.len()).unwrap().to_be_bytes());
    frame.extend(path.as_bytes());
    frame
}
