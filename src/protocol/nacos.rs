//! Nacos's messages over gRPC, for both sides: one protobuf message, [`Payload`], carries the name of
//! a type, headers and a JSON body. Three fields are worth no protobuf compiler: they are written
//! and read by hand, unknown ones are skipped.
//!
//! ```text
//! Payload  { Metadata metadata = 2; Any body = 3; }
//! Metadata { string type = 3; map<string, string> headers = 7; string clientIp = 8; }
//! Any      { string type_url = 1; bytes value = 2; }      type_url stays empty, value is the JSON
//! ```
//!
//! Next: `nacos/frame.rs` (gRPC frames around it), `nacos/message.rs` (the JSON bodies).

pub mod frame;
pub mod message;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The unary method.
pub const UNARY_PATH: &str = "/Request/request";
/// The bidirectional method.
pub const STREAM_PATH: &str = "/BiRequestStream/requestBiStream";

/// Headers of one message at most.
const MAX_HEADERS: usize = 64;

/// One message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// The bare name of its class, as `HealthCheckRequest`.
    pub kind: String,
    /// `accessToken`, `app`; not repeated in the body.
    pub headers: Vec<(String, String)>,
    /// Where the sender thinks it is; empty: it does not say.
    pub client_ip: String,
    /// JSON.
    pub body: Bytes,
}

/// Why bytes are no [`Payload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Cut off, or a length beyond the end.
    #[error("message is cut off")]
    Cut,
    /// A number of more than ten bytes, or a type of field that does not exist.
    #[error("message is no protobuf")]
    Malformed,
    /// Text that is not UTF-8.
    #[error("text in the message is not UTF-8")]
    Text,
    /// More than the limit.
    #[error("message has more than {MAX_HEADERS} headers")]
    TooManyHeaders,
}

impl Payload {
    /// A message without headers.
    pub fn new(kind: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self {
            kind: kind.into(),
            body: body.into(),
            ..Self::default()
        }
    }

    /// The value of a header, by its exact name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(key, _)| key == name);
        values.next().map(|(_, value)| value.as_str())
    }

    /// As protobuf.
    pub fn encode(&self) -> Bytes {
        let mut metadata = BytesMut::new();
        put_field(&mut metadata, 3, self.kind.as_bytes());
        for (name, value) in &self.headers {
            let mut entry = BytesMut::new();
            put_field(&mut entry, 1, name.as_bytes());
            put_field(&mut entry, 2, value.as_bytes());
            put_field(&mut metadata, 7, &entry);
        }
        if !self.client_ip.is_empty() {
            put_field(&mut metadata, 8, self.client_ip.as_bytes());
        }
        let mut any = BytesMut::new();
        put_field(&mut any, 2, &self.body);
        let mut payload = BytesMut::with_capacity(metadata.len() + any.len() + 12);
        put_field(&mut payload, 2, &metadata);
        put_field(&mut payload, 3, &any);
        payload.freeze()
    }

    /// From protobuf; a field that is not known is skipped, one that comes twice is merged.
    ///
    /// # Errors
    /// [`PayloadError`].
    pub fn decode(mut bytes: Bytes) -> Result<Self, PayloadError> {
        let mut payload = Self::default();
        while let Some((field, value)) = take_field(&mut bytes)? {
            match field {
                2 => payload.read_metadata(value)?,
                3 => payload.read_any(value)?,
                _ => {}
            }
        }
        Ok(payload)
    }

    fn read_metadata(&mut self, mut bytes: Bytes) -> Result<(), PayloadError> {
        while let Some((field, mut value)) = take_field(&mut bytes)? {
            match field {
                3 => self.kind = text(&value)?,
                7 => {
                    let mut entry = (String::new(), String::new());
                    while let Some((part, inner)) = take_field(&mut value)? {
                        match part {
                            1 => entry.0 = text(&inner)?,
                            2 => entry.1 = text(&inner)?,
                            _ => {}
                        }
                    }
                    if self.headers.len() >= MAX_HEADERS {
                        return Err(PayloadError::TooManyHeaders);
                    }
                    self.headers.push(entry);
                }
                8 => self.client_ip = text(&value)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn read_any(&mut self, mut bytes: Bytes) -> Result<(), PayloadError> {
        while let Some((field, value)) = take_field(&mut bytes)? {
            if field == 2 {
                self.body = value;
            }
        }
        Ok(())
    }
}

/// A field of bytes; our numbers of fields are below 16, so a tag is one byte.
fn put_field(out: &mut BytesMut, field: u8, value: &[u8]) {
    out.put_u8(field << 3 | 2);
    let mut rest = value.len();
    loop {
        let low = u8::try_from(rest & 0x7f).unwrap_or_default();
        rest >>= 7;
        if rest == 0 {
            out.put_u8(low);
            break;
        }
        out.put_u8(low | 0x80);
    }
    out.put_slice(value);
}

/// The next field; numbers are given as no bytes, no field of ours is one.
fn take_field(bytes: &mut Bytes) -> Result<Option<(u64, Bytes)>, PayloadError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let tag = take_number(bytes)?;
    let length = match tag & 7 {
        0 => {
            take_number(bytes)?;
            0
        }
        1 => 8,
        2 => take_number(bytes)?,
        5 => 4,
        _ => return Err(PayloadError::Malformed),
    };
    let length = usize::try_from(length).map_err(|_| PayloadError::Cut)?;
    if length > bytes.len() {
        return Err(PayloadError::Cut);
    }
    Ok(Some((tag >> 3, bytes.split_to(length))))
}

fn take_number(bytes: &mut Bytes) -> Result<u64, PayloadError> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        if bytes.is_empty() {
            return Err(PayloadError::Cut);
        }
        let byte = bytes.get_u8();
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(PayloadError::Malformed)
}

fn text(bytes: &Bytes) -> Result<String, PayloadError> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| PayloadError::Text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits = text.split_whitespace();
        digits.map(|d| u8::from_str_radix(d, 16).unwrap()).collect()
    }

    /// Bytes that servers have accepted.
    #[test]
    fn known_messages_have_their_bytes() {
        let plain = hex(
            "12 14 1a 12 48 65 61 6c 74 68 43 68 65 63 6b 52 65 71 75 65 73 74 1a 04 12 02 7b 7d",
        );
        let payload = Payload::new("HealthCheckRequest", "{}");
        assert_eq!(payload.encode(), plain);
        assert_eq!(Payload::decode(plain.into()), Ok(payload));
        let with_header = hex(
            "12 1c 1a 12 53 65 72 76 65 72 43 68 65 63 6b 52 65 71 75 65 73 74 3a 06 0a 01 61 12 \
             01 62 1a 04 12 02 7b 7d",
        );
        let mut payload = Payload::new("ServerCheckRequest", "{}");
        payload.headers.push(("a".to_owned(), "b".to_owned()));
        assert_eq!(payload.encode(), with_header);
        assert_eq!(Payload::decode(with_header.into()), Ok(payload));
    }

    #[test]
    fn unknown_fields_and_the_type_url_are_skipped() {
        // field 1 number, field 4 eight bytes, field 5 four bytes, then Any with type_url "t".
        let bytes = hex(
            "08 96 01 21 01 02 03 04 05 06 07 08 2d 01 02 03 04 1a 07 0a 01 74 12 02 7b 7d 12 03 1a \
             01 58",
        );
        let payload = Payload::decode(bytes.into()).unwrap();
        assert_eq!(
            (payload.kind.as_str(), &payload.body[..]),
            ("X", &b"{}"[..])
        );
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for (bytes, want) in [
            ("12", PayloadError::Cut),
            ("12 05 1a", PayloadError::Cut),
            ("12 ff ff ff ff ff ff ff ff ff 01", PayloadError::Cut),
            ("ff ff ff ff ff ff ff ff ff ff 01", PayloadError::Malformed),
            ("0b", PayloadError::Malformed),
            ("12 03 1a 01 ff", PayloadError::Text),
        ] {
            assert_eq!(Payload::decode(hex(bytes).into()), Err(want), "{bytes}");
        }
        let mut many = Payload::new("X", "{}");
        many.headers = vec![(String::new(), String::new()); MAX_HEADERS + 1];
        let refused = Payload::decode(many.encode());
        assert_eq!(refused, Err(PayloadError::TooManyHeaders));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            kind in ".{0,40}",
            headers in prop::collection::vec((".{0,9}", ".{0,300}"), 0..5),
            client_ip in "[0-9.]{0,15}",
            body in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let payload = Payload { kind, headers, client_ip, body: body.into() };
            prop_assert_eq!(Payload::decode(payload.encode()), Ok(payload));
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            drop(Payload::decode(bytes.into()));
        }
    }
}
