//! The chunked coding (RFC 9112, 7.1), read strictly: hexadecimal sizes, `CRLF`, bounded extensions,
//! bounded trailers.

use bytes::{Buf, Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::WireFault;

/// Bytes of chunk extensions in one body.
const MAX_EXTENSIONS: usize = 16 * 1024;

const BAD_SIZE: WireFault = WireFault::Malformed("a chunk's size is not a number");
const BAD_LINE: WireFault = WireFault::Malformed("a chunk's size line ends in the wrong way");
const BAD_END: WireFault = WireFault::Malformed("a chunk does not end where its size says");

/// Reads a chunked body.
#[derive(Debug)]
pub struct ChunkReader {
    state: State,
    extensions: usize,
    max_trailer_bytes: usize,
    max_trailers: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size,
    Data(u64),
    DataEnd,
    Trailers,
    Done,
}

/// What a step brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Bytes of the body.
    Data(Bytes),
    /// The end, with these trailers.
    Trailers(HeaderMap),
    /// The end.
    End,
    /// More bytes are needed.
    More,
}

impl ChunkReader {
    /// At the beginning of a body; its trailers may have so many bytes and fields.
    pub const fn new(max_trailer_bytes: usize, max_trailers: usize) -> Self {
        Self {
            state: State::Size,
            extensions: 0,
            max_trailer_bytes,
            max_trailers,
        }
    }

    /// Whether the end was seen.
    pub const fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// The next piece from the front of `buf`. After data it looks on, so that a body whose last
    /// byte was taken is known to be over ([`ChunkReader::is_done`]).
    ///
    /// # Errors
    /// [`WireFault`]: the body cannot be read on.
    pub fn step(&mut self, buf: &mut BytesMut) -> Result<Step, WireFault> {
        self.control(buf)?;
        match self.state {
            State::Data(left) if !buf.is_empty() => {
                let most = usize::try_from(left).unwrap_or(usize::MAX);
                let data = buf.split_to(most.min(buf.len())).freeze();
                let left = left.saturating_sub(u64::try_from(data.len()).unwrap_or(u64::MAX));
                self.state = match left {
                    0 => State::DataEnd,
                    left => State::Data(left),
                };
                // What is wrong with the next chunk is said when it is asked for.
                if self.control(buf).is_ok() && self.state == State::Trailers {
                    self.plain_end(buf);
                }
                Ok(Step::Data(data))
            }
            State::Trailers => {
                if self.plain_end(buf) {
                    return Ok(Step::End);
                }
                self.trailers(buf)
            }
            State::Done => Ok(Step::End),
            State::Size | State::Data(_) | State::DataEnd => Ok(Step::More),
        }
    }

    /// Takes what lies between the data of chunks, as far as it is there.
    fn control(&mut self, buf: &mut BytesMut) -> Result<(), WireFault> {
        loop {
            match self.state {
                State::DataEnd => match (buf.first(), buf.get(1)) {
                    (Some(b'\r'), Some(b'\n')) => {
                        buf.advance(2);
                        self.state = State::Size;
                    }
                    (None, _) | (Some(b'\r'), None) => return Ok(()),
                    (Some(_), _) => return Err(BAD_END),
                },
                State::Size => {
                    let Some(end) = buf.iter().position(|b| *b == b'\n') else {
                        return if buf.len() > MAX_EXTENSIONS {
                            Err(BAD_LINE)
                        } else {
                            Ok(())
                        };
                    };
                    if end > MAX_EXTENSIONS {
                        return Err(BAD_LINE);
                    }
                    let line = buf.get(..end).and_then(|line| line.strip_suffix(b"\r"));
                    let (size, extension) = chunk_size(line.ok_or(BAD_LINE)?)?;
                    self.extensions += extension;
                    if self.extensions > MAX_EXTENSIONS {
                        return Err(WireFault::Malformed("the chunk extensions are too long"));
                    }
                    buf.advance(end + 1);
                    self.state = match size {
                        0 => State::Trailers,
                        size => State::Data(size),
                    };
                }
                State::Data(_) | State::Trailers | State::Done => return Ok(()),
            }
        }
    }

    /// The end without trailers, if it is there.
    fn plain_end(&mut self, buf: &mut BytesMut) -> bool {
        let plain = buf.starts_with(b"\r\n");
        if plain {
            buf.advance(2);
            self.state = State::Done;
        }
        plain
    }

    fn trailers(&mut self, buf: &mut BytesMut) -> Result<Step, WireFault> {
        if buf.is_empty() || &buf[..] == b"\r" {
            return Ok(Step::More);
        }
        let mut fields = vec![httparse::EMPTY_HEADER; self.max_trailers];
        let (length, trailers) = match httparse::parse_headers(buf, &mut fields) {
            Ok(httparse::Status::Complete((length, fields))) => (length, trailer_map(fields)?),
            Ok(httparse::Status::Partial) if buf.len() <= self.max_trailer_bytes => {
                return Ok(Step::More);
            }
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Err(WireFault::TooLarge);
            }
            Err(_) => return Err(WireFault::Malformed("the trailers cannot be read")),
        };
        if length > self.max_trailer_bytes {
            return Err(WireFault::TooLarge);
        }
        buf.advance(length);
        self.state = State::Done;
        Ok(Step::Trailers(trailers))
    }
}

fn trailer_map(fields: &[httparse::Header<'_>]) -> Result<HeaderMap, WireFault> {
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        let value = HeaderValue::from_bytes(field.value);
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err(WireFault::Malformed("the trailers cannot be read"));
        };
        trailers.append(name, value);
    }
    Ok(trailers)
}

/// A chunk's size and how many bytes of extensions follow it on its line; some servers pad it.
fn chunk_size(line: &[u8]) -> Result<(u64, usize), WireFault> {
    let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    let (size, rest) = line.split_at_checked(digits).ok_or(BAD_SIZE)?;
    if size.is_empty() || !matches!(rest.first(), None | Some(b' ' | b'\t' | b';')) {
        return Err(BAD_SIZE);
    }
    let after = rest.trim_ascii_start();
    if !matches!(after.first(), None | Some(b';')) {
        return Err(BAD_SIZE);
    }
    let text = std::str::from_utf8(size).map_err(|_| BAD_SIZE)?;
    let size = u64::from_str_radix(text, 16)
        .map_err(|_| WireFault::Malformed("a chunk's size is too large"))?;
    Ok((size, after.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Everything that the pieces bring, in one.
    fn read(pieces: &[&[u8]]) -> Result<(Vec<u8>, Option<HeaderMap>, bool), WireFault> {
        let mut reader = ChunkReader::new(1024, 8);
        let mut buf = BytesMut::new();
        let mut body = Vec::new();
        for piece in pieces {
            buf.extend_from_slice(piece);
            loop {
                match reader.step(&mut buf)? {
                    Step::Data(data) => body.extend_from_slice(&data),
                    Step::Trailers(trailers) => return Ok((body, Some(trailers), true)),
                    Step::End => return Ok((body, None, true)),
                    Step::More => break,
                }
            }
        }
        Ok((body, None, reader.is_done()))
    }

    #[test]
    fn chunks_extensions_and_trailers_are_read() {
        let text = b"3\r\nabc\r\n0a;x=\"y\" \r\n0123456789\r\n000\r\nX-T: v\r\n\r\n";
        let (body, trailers, done) = read(&[text]).unwrap();
        assert_eq!(body, b"abc0123456789");
        assert_eq!(trailers.unwrap().get("x-t").unwrap(), "v");
        assert!(done);
    }

    #[test]
    fn the_end_is_known_with_the_last_data() {
        let mut reader = ChunkReader::new(1024, 8);
        let mut buf = BytesMut::from(&b"2\r\nok\r\n0\r\n\r\nnext"[..]);
        assert_eq!(reader.step(&mut buf), Ok(Step::Data(Bytes::from("ok"))));
        assert!(reader.is_done());
        assert_eq!(&buf[..], b"next");
    }

    #[test]
    fn what_two_readers_could_read_in_two_ways_is_refused() {
        for bad in [
            "g\r\n",
            "\r\nabc",
            "3\nabc\r\n",
            "3\r\nabcd\r\n",
            "3\r\nabc\n0\r\n\r\n",
            "0x3\r\nabc\r\n",
            "-3\r\nabc\r\n",
            "3 3\r\nabc\r\n",
            "10000000000000000\r\n",
            "0\r\nbad name: x\r\n\r\n",
        ] {
            assert!(read(&[bad.as_bytes()]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn padded_sizes_are_no_extensions() {
        let text = format!("{}0  \r\n\r\n", "1  \r\nx\r\n".repeat(MAX_EXTENSIONS));
        let (body, _, done) = read(&[text.as_bytes()]).unwrap();
        assert_eq!((body.len(), done), (MAX_EXTENSIONS, true));
    }

    #[test]
    fn extensions_and_trailers_are_bounded() {
        let long = format!("1;{}\r\n", "x".repeat(MAX_EXTENSIONS));
        assert!(read(&[long.as_bytes()]).is_err());
        assert!(read(&[&vec![b'1'; MAX_EXTENSIONS + 1]]).is_err());
        let many = format!("0\r\n{}\r\n", "a: b\r\n".repeat(9));
        assert_eq!(read(&[many.as_bytes()]).unwrap_err(), WireFault::TooLarge);
        let wide = format!("0\r\na: {}", "b".repeat(2000));
        assert_eq!(read(&[wide.as_bytes()]).unwrap_err(), WireFault::TooLarge);
    }

    proptest! {
        #[test]
        fn any_split_reads_the_same(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 0..5),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let mut text = Vec::new();
            for chunk in &chunks {
                text.extend_from_slice(format!("{:X}\r\n", chunk.len()).as_bytes());
                text.extend_from_slice(chunk);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\n\r\n");
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len())).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let (body, trailers, done) = read(&pieces).unwrap();
            prop_assert_eq!(body, chunks.concat());
            prop_assert!(trailers.is_none() && done);
        }
    }
}
