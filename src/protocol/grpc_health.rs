//! The messages of `grpc.health.v1`: what a check asks and what a server says. Pure.

use bytes::{Buf, Bytes, BytesMut};

/// Asks once.
pub const CHECK: &str = "/grpc.health.v1.Health/Check";
/// Asks to be told of every change.
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Longest message that is read; theirs have two bytes.
const MOST: usize = 4096;

/// `ServingStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// The service takes requests.
    Serving,
    /// It does not.
    NotServing,
    /// A watcher's service is not known (yet).
    ServiceUnknown,
    /// UNKNOWN, or a number that this version does not know.
    Unknown,
}

impl Serving {
    /// As the protocol writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "SERVING",
            Self::NotServing => "NOT_SERVING",
            Self::ServiceUnknown => "SERVICE_UNKNOWN",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// A `HealthCheckRequest` with this service (field 1), framed.
pub fn request(service: &str) -> Bytes {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        varint(&mut message, service.len() as u64);
        message.extend(service.bytes());
    }
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut frame = vec![0];
    frame.extend(length.to_be_bytes());
    frame.extend(message);
    Bytes::from(frame)
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or(0));
}

/// `HealthCheckResponse`s out of a stream of bytes.
#[derive(Debug, Default)]
pub struct Answers {
    buffer: BytesMut,
}

impl Answers {
    /// More bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message.
    ///
    /// # Errors
    /// It is none of this service.
    pub fn take(&mut self) -> Result<Option<Serving>, String> {
        let Some((head, rest)) = self.buffer.split_at_checked(5) else {
            return Ok(None);
        };
        let [compressed, length @ ..] = head else {
            return Ok(None);
        };
        if *compressed != 0 {
            return Err("the answer is compressed, which was not asked for".to_owned());
        }
        let length = length
            .iter()
            .fold(0_usize, |n, b| (n << 8) | usize::from(*b));
        if length > MOST {
            return Err(format!("an answer of {length} bytes"));
        }
        let Some(message) = rest.get(..length) else {
            return Ok(None);
        };
        let serving = status(message).ok_or_else(|| "the answer is no protobuf".to_owned())?;
        self.buffer.advance(5 + length);
        Ok(Some(serving))
    }
}

/// `status` (field 1), the last one; others are passed over.
fn status(mut message: &[u8]) -> Option<Serving> {
    let mut found = 0;
    while !message.is_empty() {
        let tag = take_varint(&mut message)?;
        match tag & 7 {
            0 => {
                let value = take_varint(&mut message)?;
                if tag >> 3 == 1 {
                    found = value;
                }
            }
            1 => message = message.get(8..)?,
            2 => {
                let length = usize::try_from(take_varint(&mut message)?).ok()?;
                message = message.get(length..)?;
            }
            5 => message = message.get(4..)?,
            _ => return None,
        }
    }
    Some(match found {
        1 => Serving::Serving,
        2 => Serving::NotServing,
        3 => Serving::ServiceUnknown,
        _ => Serving::Unknown,
    })
}

fn take_varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<Serving>, String> {
        let mut answers = Answers::default();
        answers.push(bytes);
        let mut found = Vec::new();
        while let Some(serving) = answers.take()? {
            found.push(serving);
        }
        Ok(found)
    }

    #[test]
    fn requests_name_their_service() {
        assert_eq!(&*request(""), [0, 0, 0, 0, 0]);
        assert_eq!(&*request("a.B"), b"\0\0\0\0\x05\x0a\x03a.B");
        let long = "x".repeat(300);
        let framed = request(&long);
        assert_eq!(framed.get(..8).unwrap(), [0, 0, 0, 1, 47, 0x0a, 0xac, 0x02]);
    }

    #[test]
    fn answers_of_servers() {
        let stream = b"\0\0\0\0\x02\x08\x01\0\0\0\0\x02\x08\x02\0\0\0\0\0\0\0\0\0\x02\x08\x03";
        let all = [
            Serving::Serving,
            Serving::NotServing,
            Serving::Unknown,
            Serving::ServiceUnknown,
        ];
        assert_eq!(read(stream).unwrap(), all);
        // An unknown field before it.
        assert_eq!(
            read(b"\0\0\0\0\x05\x12\x01x\x08\x01").unwrap(),
            [Serving::Serving]
        );
        assert!(read(b"\x01\0\0\0\x02\x08\x01").is_err());
        assert!(read(b"\0\xff\0\0\0").is_err());
        assert!(read(b"\0\0\0\0\x02\x08\x80").is_err());
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference_and_nothing_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
            cut in 0_usize..60,
        ) {
            let mut answers = Answers::default();
            let (a, b) = bytes.split_at(cut.min(bytes.len()));
            let mut found = Vec::new();
            let mut broken = false;
            for part in [a, b] {
                answers.push(part);
                while !broken {
                    match answers.take() {
                        Ok(Some(serving)) => found.push(serving),
                        Ok(None) => break,
                        Err(_) => broken = true,
                    }
                }
            }
            match read(&bytes) {
                Ok(whole) => prop_assert_eq!(found, whole),
                Err(_) => prop_assert!(broken),
            }
        }
    }
}
