//! Instances that do what a script says: exact bytes, closes, silence. A thread per connection.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use super::message::{Message, Wire};

/// What a stub saw.
#[derive(Debug, Default)]
struct Seen {
    requests: Mutex<Vec<Message>>,
    notes: Mutex<Vec<String>>,
    connections: AtomicUsize,
    open: AtomicUsize,
    stopped: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct Stub {
    pub(crate) address: SocketAddr,
    seen: Arc<Seen>,
}

/// One connection of the proxy.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) wire: Wire,
    /// Which connection of the stub, from 0.
    pub(crate) index: usize,
    seen: Arc<Seen>,
    // Last, so that the socket is closed when it is counted out.
    _open: Open,
}

#[derive(Debug)]
struct Open(Arc<Seen>);

impl Stub {
    /// Runs `script` on every connection; the connection closes when it returns.
    pub(crate) fn script(script: impl Fn(&mut Peer) + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), script)
    }

    /// On a socket of its own.
    pub(crate) fn on(
        listener: TcpListener,
        script: impl Fn(&mut Peer) + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let kept = Arc::clone(&seen);
        let script = Arc::new(script);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if seen.stopped.load(SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let index = seen.connections.fetch_add(1, SeqCst);
                seen.open.fetch_add(1, SeqCst);
                let mut peer = Peer {
                    wire: Wire::new(stream),
                    index,
                    seen: Arc::clone(&seen),
                    _open: Open(Arc::clone(&seen)),
                };
                let script = Arc::clone(&script);
                std::thread::spawn(move || script(&mut peer));
            }
        });
        Self {
            address,
            seen: kept,
        }
    }

    /// Answers every request with these bytes and keeps the connection.
    pub(crate) fn answering(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Self::script(move |peer| {
            while peer.request().is_some() {
                peer.send(&bytes);
            }
        })
    }

    /// Answers every request with 200 and `ok`.
    pub(crate) fn ok() -> Self {
        Self::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    }

    pub(crate) fn requests(&self) -> Vec<Message> {
        self.seen.requests.lock().unwrap().clone()
    }

    /// The only request so far.
    #[track_caller]
    pub(crate) fn request(&self) -> Message {
        let mut requests = self.requests();
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests.remove(0)
    }

    /// Waits until `n` requests were read.
    #[track_caller]
    pub(crate) fn wait_for_requests(&self, n: usize) -> Vec<Message> {
        super::eventually("requests at the stub", || self.requests().len() >= n);
        self.requests()
    }

    /// Waits for what a script noted.
    #[track_caller]
    pub(crate) fn wait_for_note(&self, note: &str) {
        super::eventually(note, || self.notes().iter().any(|n| n == note));
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.seen.notes.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.seen.connections.load(SeqCst)
    }

    /// Connections that are open now, as far as their scripts know.
    pub(crate) fn open(&self) -> usize {
        self.seen.open.load(SeqCst)
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.seen.stopped.store(true, SeqCst);
        // Wakes the accept loop.
        let _woken = TcpStream::connect(self.address);
    }
}

impl Peer {
    /// The next request, whole or as far as it came; `None` at the end of the connection.
    pub(crate) fn request(&mut self) -> Option<Message> {
        let mut message = self.wire.head()?;
        self.wire.body(&mut message, false);
        self.seen.requests.lock().unwrap().push(message.clone());
        Some(message)
    }

    /// The next request's head; its body stays unread.
    pub(crate) fn head(&mut self) -> Option<Message> {
        let message = self.wire.head()?;
        self.seen.requests.lock().unwrap().push(message.clone());
        Some(message)
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _gone = self.wire.write(bytes.as_ref());
    }

    pub(crate) fn note(&self, note: impl Into<String>) {
        self.seen.notes.lock().unwrap().push(note.into());
    }

    /// Waits for the proxy's close.
    pub(crate) fn closed(&mut self) -> bool {
        self.wire.closed_within(Duration::from_secs(15))
    }

    /// The socket, for another protocol.
    pub(crate) fn take_wire(&mut self) -> Wire {
        let stream = self.wire.stream.try_clone().unwrap();
        let mut wire = Wire::new(stream);
        wire.buffer = std::mem::take(&mut self.wire.buffer);
        wire
    }

    /// Closes with a reset instead of an end.
    pub(crate) fn reset(&self) {
        let socket = SockRef::from(&self.wire.stream);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }

    pub(crate) fn finish_writing(&self) {
        let _gone = self.wire.stream.shutdown(Shutdown::Write);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, SeqCst);
    }
}

/// A port where connecting is refused for as long as the socket lives.
pub(crate) fn closed_port() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// An address that drops what wants to connect: its queue is full and nobody accepts.
pub(crate) fn black_hole() -> (Vec<Socket>, SocketAddr) {
    let (socket, address) = closed_port();
    socket.listen(0).unwrap();
    let mut kept = vec![socket];
    for _ in 0..4 {
        let filler = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        filler.set_nonblocking(true).unwrap();
        let _pending = filler.connect(&address.into());
        kept.push(filler);
    }
    (kept, address)
}
