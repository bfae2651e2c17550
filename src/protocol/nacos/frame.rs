//! gRPC frames: a flag byte, four bytes of length, a message. Compressed frames are refused: neither
//! side of Nacos asks for them. Pure; bytes of HTTP/2 DATA come in any pieces.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Payload, PayloadError};

/// Flag and length.
const HEAD: usize = 5;

/// Why bytes are no frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Nobody offered a compression.
    #[error("compressed gRPC frame")]
    Compressed,
    /// The stream ended inside a frame.
    #[error("gRPC frame is cut off")]
    Cut,
    /// The message inside.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// Beyond the limit.
    #[error("gRPC message of {length} bytes, at most {limit} are taken")]
    TooLarge {
        /// Announced.
        length: usize,
        /// Of this reader.
        limit: usize,
    },
}

/// A message in its frame.
pub fn frame(payload: &Payload) -> Bytes {
    let message = payload.encode();
    let mut out = BytesMut::with_capacity(HEAD + message.len());
    out.put_u8(0);
    out.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    out.put_slice(&message);
    out.freeze()
}

/// Puts messages together from pieces of a stream.
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    limit: usize,
}

impl Frames {
    /// A reader of messages of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            limit,
        }
    }

    /// More of the stream. Never holds more than one piece beyond a frame when each is followed by
    /// [`Self::next`] until that is `None`.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next message that is complete.
    ///
    /// # Errors
    /// [`FrameError`]; the stream is of no use after it.
    #[expect(clippy::should_implement_trait, reason = "it can fail and go on later")]
    pub fn next(&mut self) -> Result<Option<Payload>, FrameError> {
        let mut head = self.buffer.as_ref();
        if head.len() < HEAD {
            return Ok(None);
        }
        if head.get_u8() != 0 {
            return Err(FrameError::Compressed);
        }
        let length = usize::try_from(head.get_u32()).unwrap_or(usize::MAX);
        let limit = self.limit;
        if length > limit {
            return Err(FrameError::TooLarge { length, limit });
        }
        if head.len() < length {
            return Ok(None);
        }
        self.buffer.advance(HEAD);
        let message = self.buffer.split_to(length).freeze();
        Ok(Some(Payload::decode(message)?))
    }

    /// At the end of the stream.
    ///
    /// # Errors
    /// [`FrameError::Cut`] when a frame is begun.
    pub fn finish(&self) -> Result<(), FrameError> {
        if self.buffer.is_empty() {
            Ok(())
        } else {
            Err(FrameError::Cut)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_has_its_prefix() {
        let mut payload = Payload::new("ServerCheckRequest", "{}");
        payload.headers.push(("a".to_owned(), "b".to_owned()));
        assert_eq!(frame(&payload).get(..5), Some(&[0, 0, 0, 0, 0x24][..]));
    }

    #[test]
    fn bad_frames_are_errors_before_they_are_kept() {
        let mut frames = Frames::new(10);
        frames.push(&[0, 0, 0, 0, 11]);
        let (length, limit) = (11, 10);
        assert_eq!(frames.next(), Err(FrameError::TooLarge { length, limit }));
        let mut frames = Frames::new(10);
        frames.push(&[1, 0, 0, 0, 0]);
        assert_eq!(frames.next(), Err(FrameError::Compressed));
        let mut frames = Frames::new(10);
        frames.push(&[0, 0, 0]);
        assert_eq!(
            (frames.next(), frames.finish()),
            (Ok(None), Err(FrameError::Cut))
        );
        frames.push(&[0, 2, 0x12, 9]);
        assert_eq!(frames.next(), Err(FrameError::Payload(PayloadError::Cut)));
    }

    proptest! {
        #[test]
        fn messages_come_out_of_any_pieces(
            kinds in prop::collection::vec("[a-zA-Z]{0,20}", 0..6),
            size in 1_usize..40,
        ) {
            let sent: Vec<Payload> = kinds.iter().map(|kind| Payload::new(kind, "{}")).collect();
            let stream: Vec<u8> = sent.iter().flat_map(frame).collect();
            let (mut frames, mut read) = (Frames::new(1000), Vec::new());
            for piece in stream.chunks(size) {
                frames.push(piece);
                while let Some(payload) = frames.next().unwrap() {
                    read.push(payload);
                }
            }
            prop_assert_eq!(read, sent);
            prop_assert_eq!(frames.finish(), Ok(()));
        }
    }
}
