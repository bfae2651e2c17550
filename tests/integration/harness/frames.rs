//! HTTP/2 frame by frame, for peers that do what a library would not. Header blocks are written as
//! literals without indexing; those that come are not decoded.

use std::net::{SocketAddr, TcpStream};

use super::message::Wire;

pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

pub(crate) mod flag {
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const ACK: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// The error code of RST_STREAM.
    pub(crate) fn code(&self) -> u32 {
        u32::from_be_bytes(self.payload[..4].try_into().unwrap())
    }

    pub(crate) fn ends(&self) -> bool {
        self.flags & flag::END_STREAM != 0
    }
}

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct RawH2 {
    pub(crate) wire: Wire,
}

impl RawH2 {
    /// Connects to the proxy: preface and empty SETTINGS.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let mut raw = Self {
            wire: Wire::new(TcpStream::connect(address).unwrap()),
        };
        raw.wire.write(PREFACE);
        raw.send(kind::SETTINGS, 0, 0, &[]);
        raw
    }

    /// Takes a connection of the proxy: reads its preface, says our settings (id, value).
    pub(crate) fn accept(wire: Wire, settings: &[(u16, u32)]) -> Option<Self> {
        let mut raw = Self { wire };
        while raw.wire.buffer.len() < PREFACE.len() {
            if !raw.wire.fill() {
                return None;
            }
        }
        assert_eq!(raw.wire.take(PREFACE.len()), PREFACE);
        let mut payload = Vec::new();
        for (id, value) in settings {
            payload.extend_from_slice(&id.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        raw.send(kind::SETTINGS, 0, 0, &payload);
        Some(raw)
    }

    pub(crate) fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.wire.write(&encode(kind, flags, stream, payload))
    }

    pub(crate) fn headers(&mut self, stream: u32, ends: bool, fields: &[(&str, &str)]) -> bool {
        let flags = flag::END_HEADERS | if ends { flag::END_STREAM } else { 0 };
        self.send(kind::HEADERS, flags, stream, &literals(fields))
    }

    /// A request's head to `svc`.
    pub(crate) fn request(&mut self, stream: u32, ends: bool, method: &str, more: &[(&str, &str)]) {
        let mut fields = vec![
            (":method", method),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "svc"),
        ];
        fields.extend_from_slice(more);
        self.headers(stream, ends, &fields);
    }

    pub(crate) fn rst(&mut self, stream: u32, code: u32) -> bool {
        self.send(kind::RST_STREAM, 0, stream, &code.to_be_bytes())
    }

    pub(crate) fn goaway(&mut self, last: u32, code: u32) -> bool {
        let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
        self.send(kind::GOAWAY, 0, 0, &payload)
    }

    /// The next frame that is neither SETTINGS, PING nor WINDOW_UPDATE; those two are answered.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        loop {
            let frame = self.any()?;
            match frame.kind {
                kind::SETTINGS if frame.flags & flag::ACK == 0 => {
                    self.send(kind::SETTINGS, flag::ACK, 0, &[]);
                }
                kind::PING if frame.flags & flag::ACK == 0 => {
                    self.send(kind::PING, flag::ACK, 0, &frame.payload);
                }
                kind::SETTINGS | kind::PING | kind::WINDOW_UPDATE => {}
                _ => return Some(frame),
            }
        }
    }

    /// The next frame of this kind; others are dropped.
    pub(crate) fn next_of(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let frame = self.next()?;
            if frame.kind == kind {
                return Some(frame);
            }
        }
    }

    fn any(&mut self) -> Option<Frame> {
        while self.wire.buffer.len() < 9 {
            if !self.wire.fill() {
                return None;
            }
        }
        let head = self.wire.take(9);
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        while self.wire.buffer.len() < length {
            if !self.wire.fill() {
                return None;
            }
        }
        Some(Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes(head[5..9].try_into().unwrap()) & 0x7fff_ffff,
            payload: self.wire.take(length),
        })
    }
}

pub(crate) fn encode(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A header block of literals without indexing (RFC 7541, 6.2.2), no Huffman coding.
pub(crate) fn literals(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            integer(text.len(), &mut block);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

fn integer(n: usize, into: &mut Vec<u8>) {
    if n < 127 {
        into.push(u8::try_from(n).unwrap());
        return;
    }
    into.push(127);
    let mut rest = n - 127;
    while rest >= 128 {
        into.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    into.push(u8::try_from(rest).unwrap());
}
