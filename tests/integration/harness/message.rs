//! Reads HTTP/1 messages off a socket, strictly enough to see what a proxy did to them.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::latin1;

/// How the end of a body was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    None,
    Length(u64),
    Chunked,
    Close,
}

/// Field lines in order, names as they came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers(pub(crate) Vec<(String, String)>);

impl Headers {
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_str())
            .collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }
}

/// One message; `complete` when its end was seen as its framing wants it.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) first: String,
    pub(crate) headers: Headers,
    pub(crate) framing: Framing,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Headers,
    pub(crate) complete: bool,
}

impl Message {
    pub(crate) fn status(&self) -> u16 {
        self.first.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn target(&self) -> &str {
        self.first.split(' ').nth(1).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)
    }

    pub(crate) fn text(&self) -> String {
        latin1(&self.body)
    }

    /// The token of an answer of the proxy's own.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.header("x-outrigger-reason")
    }

    /// Whether the sender will close.
    pub(crate) fn says_close(&self) -> bool {
        self.header("connection")
            .is_some_and(|v| v.contains("close"))
    }
}

/// A socket with what was read of it.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    pub(crate) buffer: Vec<u8>,
    /// The end or a reset was seen.
    pub(crate) ended: bool,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(super::LONG)).unwrap();
        stream.set_write_timeout(Some(super::LONG)).unwrap();
        Self {
            stream,
            buffer: Vec::new(),
            ended: false,
        }
    }

    /// Reads some more; false at the end. A time-out counts as the end of waiting, not of the
    /// stream.
    pub(crate) fn fill(&mut self) -> bool {
        let mut chunk = [0_u8; 64 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => self.ended = true,
            Ok(n) => {
                self.buffer.extend_from_slice(&chunk[..n]);
                return true;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => return true,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => self.ended = true,
        }
        false
    }

    /// Whether the peer closes within `time`; what it still says is kept.
    pub(crate) fn closed_within(&mut self, time: Duration) -> bool {
        self.stream.set_read_timeout(Some(time)).unwrap();
        while self.fill() {}
        self.stream.set_read_timeout(Some(super::LONG)).unwrap();
        self.ended
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    pub(crate) fn take(&mut self, n: usize) -> Vec<u8> {
        self.buffer.drain(..n).collect()
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let line = self.take(at + 2);
                return Some(latin1(&line[..at]));
            }
            if !self.fill() {
                return None;
            }
        }
    }

    fn fields(&mut self) -> Option<Headers> {
        let mut headers = Headers::default();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Some(headers);
            }
            let (name, value) = line.split_once(':').unwrap();
            headers.0.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    /// The next head; `None` when none came.
    pub(crate) fn head(&mut self) -> Option<Message> {
        let first = self.line()?;
        Some(Message {
            first,
            headers: self.fields()?,
            framing: Framing::None,
            body: Vec::new(),
            trailers: Headers::default(),
            complete: true,
        })
    }

    /// Its body, in place.
    pub(crate) fn body(&mut self, message: &mut Message, close_delimited: bool) {
        let chunked = message.header("transfer-encoding").is_some();
        let length = message.header("content-length").map(|v| v.parse().unwrap());
        message.framing = match (chunked, length) {
            (true, _) => Framing::Chunked,
            (false, Some(n)) => Framing::Length(n),
            (false, None) if close_delimited => Framing::Close,
            (false, None) => Framing::None,
        };
        message.complete = match message.framing {
            Framing::None => true,
            Framing::Length(n) => self.bytes(&mut message.body, usize::try_from(n).unwrap()),
            Framing::Close => {
                while self.fill() {}
                message.body.append(&mut self.buffer);
                self.ended
            }
            Framing::Chunked => self.chunks(message).is_some(),
        };
    }

    fn bytes(&mut self, into: &mut Vec<u8>, n: usize) -> bool {
        while self.buffer.len() < n {
            if !self.fill() {
                into.append(&mut self.buffer);
                return false;
            }
        }
        let taken = self.take(n);
        into.extend_from_slice(&taken);
        true
    }

    fn chunks(&mut self, message: &mut Message) -> Option<()> {
        loop {
            let size = self.line()?;
            let size = usize::from_str_radix(&size, 16).unwrap();
            if size == 0 {
                message.trailers = self.fields()?;
                return Some(());
            }
            if !self.bytes(&mut message.body, size) {
                return None;
            }
            let end = self.line()?;
            assert_eq!(end, "", "a chunk ends by its line end");
        }
    }
}
