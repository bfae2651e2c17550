//! Writes a request: its head, and its body in the framing that the head announces. One framing
//! field goes out, whatever came in.

use std::io::Write as _;

use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::uri::PathAndQuery;

/// Data up to this size is copied behind what waits to be written.
const COPY: usize = 8 * 1024;

/// What a request has for a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// None.
    Absent,
    /// So many bytes.
    Known(u64),
    /// One whose length nobody knows.
    Unknown,
}

/// What a head is written from.
#[derive(Clone, Debug)]
pub struct RequestLine<'a> {
    /// The method.
    pub method: &'a Method,
    /// Path and query.
    pub target: &'a PathAndQuery,
    /// The fields. Those of framing are written by us alone.
    pub headers: &'a HeaderMap,
    /// Takes the place of the fields' Host.
    pub host: Option<&'a HeaderValue>,
    /// Takes the place of a field of that name.
    pub instead: Option<(HeaderName, &'a HeaderValue)>,
}

/// The body is longer or shorter than was announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request body has another length than announced")]
pub struct LengthMismatch;

/// Writes the head; the writer returned frames the body as the head announces it.
pub fn write_head(out: &mut Vec<u8>, line: &RequestLine<'_>, body: BodyLength) -> BodyWriter {
    out.extend_from_slice(line.method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(line.target.as_str().as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let mut announced = None;
    for (name, value) in line.headers {
        if *name == CONTENT_LENGTH {
            announced = announced.or_else(|| number(value));
            continue;
        }
        if *name == TRANSFER_ENCODING
            || line
                .instead
                .as_ref()
                .is_some_and(|(other, _)| other == name)
        {
            continue;
        }
        let value = match line.host {
            Some(host) if *name == HOST => host,
            Some(_) | None => value,
        };
        field(out, name.as_str().as_bytes(), value.as_bytes());
    }
    if let Some((name, value)) = &line.instead {
        field(out, name.as_str().as_bytes(), value.as_bytes());
    }
    let expected = matches!(*line.method, Method::POST | Method::PUT | Method::PATCH);
    let framing = match (body, announced) {
        (BodyLength::Absent, None) if !expected => Framing::None,
        (BodyLength::Absent, _) => sized(out, 0),
        (BodyLength::Known(length), _) | (BodyLength::Unknown, Some(length)) => sized(out, length),
        (BodyLength::Unknown, None) => {
            field(out, b"transfer-encoding", b"chunked");
            Framing::Chunked
        }
    };
    out.extend_from_slice(b"\r\n");
    BodyWriter { framing }
}

fn sized(out: &mut Vec<u8>, length: u64) -> Framing {
    // Writing to a vector does not fail.
    let _written = write!(out, "content-length: {length}\r\n");
    Framing::Sized(length)
}

fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn number(value: &HeaderValue) -> Option<u64> {
    let text = value.to_str().ok()?;
    let first = text.split(',').next()?;
    first.trim().parse().ok()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    None,
    /// So many bytes are still to come.
    Sized(u64),
    Chunked,
}

/// Frames the body of one request.
#[derive(Debug)]
pub struct BodyWriter {
    framing: Framing,
}

impl BodyWriter {
    /// Puts data behind `out`. What is too long to be copied comes back: it is to be written after
    /// `out` is, and [`BodyWriter::after`] after that.
    ///
    /// # Errors
    /// [`LengthMismatch`]: more than was announced.
    pub fn data(
        &mut self,
        data: Bytes,
        out: &mut Vec<u8>,
    ) -> Result<Option<Bytes>, LengthMismatch> {
        if data.is_empty() {
            return Ok(None);
        }
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        match &mut self.framing {
            Framing::None => return Err(LengthMismatch),
            Framing::Sized(left) => *left = left.checked_sub(length).ok_or(LengthMismatch)?,
            Framing::Chunked => {
                let _written = write!(out, "{length:x}\r\n");
            }
        }
        if data.len() > COPY {
            return Ok(Some(data));
        }
        out.extend_from_slice(&data);
        self.after(out);
        Ok(None)
    }

    /// Whether all bytes that were announced are there.
    pub const fn is_full(&self) -> bool {
        matches!(self.framing, Framing::None | Framing::Sized(0))
    }

    /// What follows data.
    pub fn after(&self, out: &mut Vec<u8>) {
        if self.framing == Framing::Chunked {
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Ends the body. Trailers go out where the framing has a place for them.
    ///
    /// # Errors
    /// [`LengthMismatch`]: less than was announced.
    pub fn end(
        &mut self,
        trailers: Option<&HeaderMap>,
        out: &mut Vec<u8>,
    ) -> Result<(), LengthMismatch> {
        match std::mem::replace(&mut self.framing, Framing::None) {
            Framing::None | Framing::Sized(0) => Ok(()),
            Framing::Sized(_) => Err(LengthMismatch),
            Framing::Chunked => {
                out.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.into_iter().flatten() {
                    field(out, name.as_str().as_bytes(), value.as_bytes());
                }
                out.extend_from_slice(b"\r\n");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_static(name);
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    fn head(method: &Method, fields: &HeaderMap, body: BodyLength) -> (String, BodyWriter) {
        let target = PathAndQuery::from_static("/a?b");
        let line = RequestLine {
            method,
            target: &target,
            headers: fields,
            host: None,
            instead: None,
        };
        let mut out = Vec::new();
        let writer = write_head(&mut out, &line, body);
        (String::from_utf8(out).unwrap(), writer)
    }

    #[test]
    fn one_framing_field_goes_out() {
        let none = HeaderMap::new();
        let two = headers(&[("content-length", "3"), ("content-length", "3")]);
        let coded = headers(&[("transfer-encoding", "chunked")]);
        let (get, post) = (Method::GET, Method::POST);
        for (method, fields, body, framing) in [
            (&get, &none, BodyLength::Absent, ""),
            (&post, &none, BodyLength::Absent, "content-length: 0\r\n"),
            (&get, &two, BodyLength::Absent, "content-length: 0\r\n"),
            (&post, &two, BodyLength::Unknown, "content-length: 3\r\n"),
            (
                &post,
                &coded,
                BodyLength::Unknown,
                "transfer-encoding: chunked\r\n",
            ),
            (
                &post,
                &none,
                BodyLength::Unknown,
                "transfer-encoding: chunked\r\n",
            ),
            (&post, &coded, BodyLength::Known(7), "content-length: 7\r\n"),
        ] {
            let (text, _) = head(method, fields, body);
            assert_eq!(text, format!("{method} /a?b HTTP/1.1\r\n{framing}\r\n"));
        }
    }

    #[test]
    fn fields_are_written_as_they_came_but_for_those_replaced() {
        let fields = headers(&[("host", "a"), ("x", "1"), ("x", "2"), ("t", "9")]);
        let (name, value) = (HeaderName::from_static("t"), HeaderValue::from_static("5"));
        let (host, target) = (
            HeaderValue::from_static("b:1"),
            PathAndQuery::from_static("/"),
        );
        let line = RequestLine {
            method: &Method::GET,
            target: &target,
            headers: &fields,
            host: Some(&host),
            instead: Some((name, &value)),
        };
        let mut out = Vec::new();
        write_head(&mut out, &line, BodyLength::Absent);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "GET / HTTP/1.1\r\nhost: b:1\r\nx: 1\r\nx: 2\r\nt: 5\r\n\r\n"
        );
    }

    #[test]
    fn chunks_are_written_and_long_data_is_not_copied() {
        let (_, mut writer) = head(&Method::POST, &HeaderMap::new(), BodyLength::Unknown);
        let mut out = Vec::new();
        assert_eq!(
            writer.data(Bytes::from_static(b"0123456789a"), &mut out),
            Ok(None)
        );
        let long = Bytes::from(vec![b'x'; COPY + 1]);
        assert_eq!(writer.data(long.clone(), &mut out), Ok(Some(long)));
        writer.after(&mut out);
        writer
            .end(Some(&headers(&[("x-t", "v")])), &mut out)
            .unwrap();
        assert_eq!(out, b"b\r\n0123456789a\r\n2001\r\n\r\n0\r\nx-t: v\r\n\r\n");
    }

    #[test]
    fn a_body_of_another_length_than_announced_is_an_error() {
        let (_, mut writer) = head(&Method::POST, &HeaderMap::new(), BodyLength::Known(3));
        let mut out = Vec::new();
        assert_eq!(writer.data(Bytes::from_static(b"ab"), &mut out), Ok(None));
        assert_eq!(writer.end(None, &mut Vec::new()), Err(LengthMismatch));
        let (_, mut writer) = head(&Method::POST, &HeaderMap::new(), BodyLength::Known(1));
        assert!(writer.data(Bytes::from_static(b"ab"), &mut out).is_err());
    }
}
