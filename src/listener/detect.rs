//! HTTP/1 or HTTP/2 with prior knowledge, told by the first bytes. Bounded: at most 24 bytes are
//! looked at, the caller bounds the time. The bytes read are given back through [`Rewound`].

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::write_through::write_through;

/// The client connection preface of HTTP/2 (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detected {
    /// HTTP/1.x, or something that HTTP/1 parsing will refuse.
    Http1,
    /// HTTP/2.
    Http2,
    /// It ended without a byte.
    Nothing,
}

/// Reads until the bytes are the preface or cannot become it.
///
/// # Errors
/// The connection's.
pub async fn detect<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<(Detected, Rewound<S>)> {
    let mut buffer = [0_u8; 24];
    let mut filled = 0;
    let detected = loop {
        let Some(free) = buffer.get_mut(filled..).filter(|free| !free.is_empty()) else {
            break Detected::Http2;
        };
        let read = stream.read(free).await?;
        if read == 0 {
            break if filled == 0 {
                Detected::Nothing
            } else {
                Detected::Http1
            };
        }
        filled += read;
        if buffer.get(..filled) != PREFACE.get(..filled) {
            break Detected::Http1;
        }
    };
    Ok((
        detected,
        Rewound {
            stream,
            head: buffer,
            filled,
            given: 0,
        },
    ))
}

/// A stream whose first bytes were looked at and come again.
#[derive(Debug)]
pub struct Rewound<S> {
    stream: S,
    head: [u8; 24],
    filled: usize,
    given: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.given < this.filled {
            let left = this.head.get(this.given..this.filled).unwrap_or_default();
            let now = left.len().min(buf.remaining());
            buf.put_slice(left.get(..now).unwrap_or_default());
            this.given += now;
            if this.given < this.filled || buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            // More may be there already: one read for both. What it says is not lost when it has
            // nothing: the stream will say it again.
            return match Pin::new(&mut this.stream).poll_read(cx, buf) {
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            };
        }
        Pin::new(&mut this.stream).poll_read(cx, buf)
    }
}

write_through!(Rewound);

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    async fn detected(chunks: &[&[u8]]) -> (Detected, Vec<u8>) {
        let (mut near, far) = tokio::io::duplex(1024);
        let all: Vec<Vec<u8>> = chunks.iter().map(|c| c.to_vec()).collect();
        let write = async move {
            for chunk in all {
                near.write_all(&chunk).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let (_, found) = tokio::join!(write, detect(far));
        let (detected, mut rest) = found.unwrap();
        let mut bytes = Vec::new();
        rest.read_to_end(&mut bytes).await.unwrap();
        (detected, bytes)
    }

    #[tokio::test]
    async fn the_preface_in_any_pieces_is_http2_and_no_byte_is_lost() {
        let whole = [PREFACE.as_slice(), b"frames"].concat();
        assert_eq!(detected(&[&whole]).await, (Detected::Http2, whole.clone()));
        let (first, second) = whole.split_at(7);
        assert_eq!(
            detected(&[first, second]).await,
            (Detected::Http2, whole.clone())
        );
        assert_eq!(detected(&[b"PUT / HTTP/1.1\r\n"]).await.0, Detected::Http1);
        assert_eq!(
            detected(&[b"PRI", b" / HTTP/1.1\r\n"]).await.0,
            Detected::Http1
        );
        assert_eq!(detected(&[]).await, (Detected::Nothing, Vec::new()));
    }
}
