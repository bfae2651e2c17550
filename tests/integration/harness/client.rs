//! An app that speaks raw HTTP/1.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use super::message::{Message, Wire};

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) wire: Wire,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self {
            wire: Wire::new(TcpStream::connect(address).unwrap()),
        }
    }

    /// Sends all of it; a proxy that closed in between is seen at the next read.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        let _closed = self.wire.write(bytes.as_ref());
        self
    }

    /// A GET of `path` at `svc`.
    pub(crate) fn get(&mut self, path: &str) -> Message {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: svc\r\n\r\n"));
        self.response()
    }

    /// The next response, interim ones too.
    #[track_caller]
    pub(crate) fn response(&mut self) -> Message {
        let Some(mut message) = self.wire.head() else {
            panic!(
                "no response; read so far: {:?}, ended: {}",
                super::latin1(&self.wire.buffer),
                self.wire.ended
            );
        };
        let status = message.status();
        if status >= 200 && status != 204 && status != 304 {
            self.wire.body(&mut message, true);
        }
        message
    }

    /// The next head alone: for HEAD, 101 and bodies read by hand.
    #[track_caller]
    pub(crate) fn head(&mut self) -> Message {
        let head = self.wire.head();
        head.unwrap_or_else(|| panic!("no response head; ended: {}", self.wire.ended))
    }

    /// Whether the proxy closes soon, and says nothing before.
    pub(crate) fn closed(&mut self) -> bool {
        self.closed_within(Duration::from_secs(5)) && self.wire.buffer.is_empty()
    }

    pub(crate) fn closed_within(&mut self, time: Duration) -> bool {
        self.wire.closed_within(time)
    }

    /// Nothing comes for a moment and the connection stays.
    pub(crate) fn is_quiet(&mut self) -> bool {
        !self.closed_within(Duration::from_millis(100)) && self.wire.buffer.is_empty()
    }

    pub(crate) fn finish_writing(&self) {
        self.wire.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Exactly `n` bytes that follow.
    pub(crate) fn exactly(&mut self, n: usize) -> Vec<u8> {
        while self.wire.buffer.len() < n {
            assert!(
                self.wire.fill(),
                "{} of {n} bytes came",
                self.wire.buffer.len()
            );
        }
        self.wire.take(n)
    }
}
