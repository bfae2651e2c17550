//! The head of a response: status line, fields, and how its body ends.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use httparse::{Header, ParserConfig, Response, Status};

use super::WireFault;

/// Fields that are looked for without an allocation.
const FEW: usize = 48;

/// What of a response's head is accepted.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Fields.
    pub max_headers: usize,
    /// Bytes, all of it.
    pub max_bytes: usize,
}

/// How a response's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEnd {
    /// After so many bytes.
    Sized(u64),
    /// With the last chunk and its trailers.
    Chunked,
    /// With the connection.
    Close,
    /// It is no body: the connection speaks another protocol from here on.
    Switched,
}

/// The head of a response.
#[derive(Debug)]
pub struct ResponseHead {
    /// Its status.
    pub status: StatusCode,
    /// Its reason, where it is not the usual one of the status.
    pub reason: Option<Bytes>,
    /// Its fields.
    pub headers: HeaderMap,
    /// How its body ends.
    pub end: BodyEnd,
    /// Whether the instance keeps the connection open.
    pub keep_alive: bool,
    /// Whether it has a transfer coding.
    pub coded: bool,
}

/// Places inside of the head, as offsets.
#[derive(Clone, Copy, Default)]
struct Place {
    name: (usize, usize),
    value: (usize, usize),
}

/// What the status line says and where the fields stand.
struct Parsed {
    length: usize,
    status: u16,
    reason: Option<(usize, usize)>,
    version: u8,
    fields: usize,
}

/// Whether a head that was incomplete at `from` bytes may be complete now. Spares a parse of all of it
/// for each piece of a head that comes in many.
pub fn may_be_complete(buf: &[u8], from: usize) -> bool {
    let fresh = buf.get(from.saturating_sub(3)..).unwrap_or_default();
    fresh.windows(2).any(|w| w == b"\n\n") || fresh.windows(3).any(|w| w == b"\n\r\n")
}

/// Takes a response's head from the front of `buf`: `None` while it is not complete. Interim
/// responses (1xx but 101) are the caller's to skip. `spare` becomes the map of the fields.
///
/// # Errors
/// [`WireFault`].
pub fn take(
    buf: &mut BytesMut,
    limits: HeadLimits,
    method: &Method,
    spare: &mut HeaderMap,
) -> Result<Option<ResponseHead>, WireFault> {
    let mut few = [Place::default(); FEW];
    let mut many = Vec::new();
    let (parsed, places) = match scan(buf, &mut few, limits.max_headers) {
        Err(WireFault::TooLarge) if limits.max_headers > FEW => {
            many.resize(limits.max_headers, Place::default());
            let parsed = scan_many(buf, &mut many)?;
            (parsed, many.as_slice())
        }
        scanned => (scanned?, few.as_slice()),
    };
    let Some(parsed) = parsed else {
        return if buf.len() > limits.max_bytes {
            Err(WireFault::TooLarge)
        } else {
            Ok(None)
        };
    };
    if parsed.length > limits.max_bytes {
        return Err(WireFault::TooLarge);
    }
    let status = StatusCode::from_u16(parsed.status)
        .map_err(|_| WireFault::Malformed("the status is not a number from 100 to 999"))?;
    let head = buf.split_to(parsed.length).freeze();
    let reason = parsed.reason.and_then(|(from, to)| {
        let text = head.get(from..to)?;
        let usual = status
            .canonical_reason()
            .is_some_and(|r| r.as_bytes() == text);
        (!usual && !text.is_empty()).then(|| head.slice(from..to))
    });
    let mut headers = std::mem::take(spare);
    headers.clear();
    // Room for what the proxy adds.
    headers.reserve(parsed.fields + 3);
    let mut framing = Framing::default();
    for place in places.iter().take(parsed.fields) {
        let name = head.get(place.name.0..place.name.1).unwrap_or_default();
        let name = HeaderName::from_bytes(name)
            .map_err(|_| WireFault::Malformed("a field's name is not a token"))?;
        let value = HeaderValue::from_maybe_shared(head.slice(place.value.0..place.value.1))
            .map_err(|_| WireFault::Malformed("a field's value has bytes that are not text"))?;
        framing.note(&name, &value)?;
        headers.append(name, value);
    }
    if framing.repeated
        && let Some(length) = framing.length
    {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    let keep_alive = match parsed.version {
        0 => framing.keep_alive && !framing.close,
        _ => !framing.close,
    };
    let end = framing.end(parsed.version, status, method)?;
    Ok(Some(ResponseHead {
        status,
        reason,
        headers,
        keep_alive: keep_alive && end != BodyEnd::Close,
        end,
        coded: framing.coding.is_some(),
    }))
}

fn scan(
    buf: &[u8],
    places: &mut [Place; FEW],
    max_headers: usize,
) -> Result<Option<Parsed>, WireFault> {
    let mut fields = [const { MaybeUninit::uninit() }; FEW];
    let most = max_headers.min(FEW);
    let fields = fields.get_mut(..most).unwrap_or_default();
    parse(buf, fields, places)
}

fn scan_many(buf: &[u8], places: &mut [Place]) -> Result<Option<Parsed>, WireFault> {
    let mut fields = vec![MaybeUninit::uninit(); places.len()];
    parse(buf, &mut fields, places)
}

fn parse<'b>(
    buf: &'b [u8],
    fields: &mut [MaybeUninit<Header<'b>>],
    places: &mut [Place],
) -> Result<Option<Parsed>, WireFault> {
    let mut response = Response::new(&mut []);
    let parsed =
        ParserConfig::default().parse_response_with_uninit_headers(&mut response, buf, fields);
    let length = match parsed {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(WireFault::TooLarge),
        Err(error) => return Err(WireFault::Malformed(name_of(error))),
    };
    let at = |part: &[u8]| {
        let from = part.as_ptr().addr().saturating_sub(buf.as_ptr().addr());
        (from, from + part.len())
    };
    for (field, place) in response.headers.iter().zip(places) {
        *place = Place {
            name: at(field.name.as_bytes()),
            value: at(field.value),
        };
    }
    Ok(Some(Parsed {
        length,
        status: response.code.unwrap_or_default(),
        reason: response.reason.map(|reason| at(reason.as_bytes())),
        version: response.version.unwrap_or_default(),
        fields: response.headers.len(),
    }))
}

const fn name_of(error: httparse::Error) -> &'static str {
    match error {
        httparse::Error::HeaderName => "a field's name is not a token",
        httparse::Error::HeaderValue => "a field's value has bytes that are not text",
        httparse::Error::NewLine => "a line ends in the wrong way",
        httparse::Error::Status => "the status is not a number of three digits",
        httparse::Error::Token => "a byte stands where none may",
        httparse::Error::TooManyHeaders => "there are too many fields",
        httparse::Error::Version => "the version is not HTTP/1.0 or HTTP/1.1",
    }
}

/// What the fields say of the body's end and of the connection.
#[derive(Default)]
struct Framing {
    length: Option<u64>,
    /// The length was said more than once.
    repeated: bool,
    coding: Option<bool>,
    close: bool,
    keep_alive: bool,
}

impl Framing {
    fn note(&mut self, name: &HeaderName, value: &HeaderValue) -> Result<(), WireFault> {
        use http::header::{CONNECTION, TRANSFER_ENCODING};
        if *name == CONTENT_LENGTH {
            for item in value.as_bytes().split(|b| *b == b',') {
                let length = digits(item.trim_ascii())
                    .ok_or(WireFault::Malformed("content-length is not a number"))?;
                if self.length.is_some_and(|known| known != length) {
                    return Err(WireFault::Malformed("content-length has two values"));
                }
                self.repeated |= self.length.is_some();
                self.length = Some(length);
            }
        } else if *name == TRANSFER_ENCODING {
            let last = value.as_bytes().rsplit(|b| *b == b',').next();
            let last = last.unwrap_or_default().trim_ascii();
            self.coding = Some(last.eq_ignore_ascii_case(b"chunked"));
        } else if *name == CONNECTION {
            for item in value.as_bytes().split(|b| *b == b',') {
                let item = item.trim_ascii();
                self.close |= item.eq_ignore_ascii_case(b"close");
                self.keep_alive |= item.eq_ignore_ascii_case(b"keep-alive");
            }
        }
        Ok(())
    }

    /// RFC 9112, 6.3.
    fn end(&self, version: u8, status: StatusCode, method: &Method) -> Result<BodyEnd, WireFault> {
        let bodiless = status.is_informational()
            || status == StatusCode::NO_CONTENT
            || status == StatusCode::NOT_MODIFIED
            || *method == Method::HEAD;
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(BodyEnd::Switched);
        }
        if bodiless {
            return Ok(BodyEnd::Sized(0));
        }
        match (self.coding, self.length) {
            (Some(_), _) if version == 0 => Err(WireFault::Malformed(
                "HTTP/1.0 has no transfer-encoding, so the body's end is unknown",
            )),
            (Some(true), _) => Ok(BodyEnd::Chunked),
            (Some(false), _) | (None, None) => Ok(BodyEnd::Close),
            (None, Some(length)) => Ok(BodyEnd::Sized(length)),
        }
    }
}

fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        max_headers: 256,
        max_bytes: 64 * 1024,
    };

    fn read(text: &str, method: &Method) -> Result<Option<ResponseHead>, WireFault> {
        let mut buf = BytesMut::from(text);
        take(&mut buf, LIMITS, method, &mut HeaderMap::new())
    }

    fn end(fields: &str) -> Result<BodyEnd, WireFault> {
        let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
        Ok(read(&text, &Method::GET)?.unwrap().end)
    }

    #[test]
    fn a_head_is_taken_and_the_body_stays() {
        let mut buf = BytesMut::from("HTTP/1.1 404 Nope\r\nA: 1\r\na:  2 \r\n\r\nbody");
        let head = take(&mut buf, LIMITS, &Method::GET, &mut HeaderMap::new());
        let head = head.unwrap().unwrap();
        assert_eq!(head.status, StatusCode::NOT_FOUND);
        assert_eq!(head.reason.as_deref(), Some(&b"Nope"[..]));
        let all: Vec<_> = head.headers.get_all("a").iter().collect();
        assert_eq!(all, ["1", "2"]);
        assert_eq!(&buf[..], b"body");
        assert!(head.keep_alive || head.end == BodyEnd::Close);
    }

    #[test]
    fn every_proper_beginning_of_a_head_is_incomplete() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX: y\r\n\r\n";
        for cut in 0..text.len() {
            let mut buf = BytesMut::from(text.as_bytes().get(..cut).unwrap());
            let head = take(&mut buf, LIMITS, &Method::GET, &mut HeaderMap::new());
            assert!(head.unwrap().is_none(), "{cut}");
            assert!(!may_be_complete(&buf, cut / 2), "{cut}");
            assert!(may_be_complete(text.as_bytes(), cut), "{cut}");
            assert_eq!(buf.len(), cut);
        }
    }

    #[test]
    fn the_end_of_a_body_follows_the_rfc() {
        assert_eq!(end("Content-Length: 5\r\n"), Ok(BodyEnd::Sized(5)));
        let same = "Content-Length: 5\r\nContent-Length: 5, 5\r\n";
        assert_eq!(end(same), Ok(BodyEnd::Sized(5)));
        let text = format!("HTTP/1.1 200 OK\r\n{same}\r\n");
        let head = read(&text, &Method::GET).unwrap().unwrap();
        let all: Vec<_> = head.headers.get_all("content-length").iter().collect();
        assert_eq!(all, ["5"], "one value is passed on");
        assert_eq!(end("Transfer-Encoding: chunked\r\n"), Ok(BodyEnd::Chunked));
        let both = "Transfer-Encoding: gzip, Chunked\r\nContent-Length: 5\r\n";
        assert_eq!(end(both), Ok(BodyEnd::Chunked));
        assert_eq!(end("Transfer-Encoding: gzip\r\n"), Ok(BodyEnd::Close));
        assert_eq!(end(""), Ok(BodyEnd::Close));
        for bad in ["+5", "5 5", "0x5", "", "5, 6", "18446744073709551616", "-1"] {
            assert!(end(&format!("Content-Length: {bad}\r\n")).is_err(), "{bad}");
        }
    }

    #[test]
    fn some_responses_have_no_body_whatever_they_say() {
        for (status, method) in [(204, Method::GET), (304, Method::GET), (200, Method::HEAD)] {
            let text = format!("HTTP/1.1 {status} X\r\nContent-Length: 9\r\n\r\n");
            let head = read(&text, &method).unwrap().unwrap();
            assert_eq!((head.end, head.keep_alive), (BodyEnd::Sized(0), true));
        }
        let head = read("HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\n", &Method::GET);
        assert_eq!(head.unwrap().unwrap().end, BodyEnd::Switched);
    }

    #[test]
    fn the_connection_is_kept_as_version_and_fields_say() {
        for (text, kept) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: a, Close\r\n\r\n",
                false,
            ),
            ("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", false),
            (
                "HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n",
                true,
            ),
            ("HTTP/1.1 200 OK\r\n\r\n", false),
        ] {
            assert_eq!(
                read(text, &Method::GET).unwrap().unwrap().keep_alive,
                kept,
                "{text}"
            );
        }
        assert!(
            read(
                "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                &Method::GET
            )
            .is_err()
        );
    }

    #[test]
    fn limits_bite_and_many_fields_fit_up_to_them() {
        let many = |n: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(n));
        for (fields, fits) in [(47, true), (49, true), (256, true), (257, false)] {
            let head = read(&many(fields), &Method::GET);
            match head {
                Ok(head) => assert!(fits && head.unwrap().headers.len() == fields),
                Err(fault) => assert!(!fits && fault == WireFault::TooLarge),
            }
        }
        let long = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(64 * 1024));
        assert_eq!(read(&long, &Method::GET).unwrap_err(), WireFault::TooLarge);
    }

    #[test]
    fn what_is_no_response_is_refused() {
        for bad in [
            "HTTP/2.0 200 OK\r\n\r\n",
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 20 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA b: c\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA : c\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n",
        ] {
            assert!(read(bad, &Method::GET).is_err(), "{bad:?}");
        }
    }
}
