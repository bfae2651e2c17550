//! A connection to one ZooKeeper server: opening it and cutting its bytes into frames.

use std::fmt;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::protocol::zookeeper::REPLY_HEAD;

/// Bytes of an answer that is read; a server sends more than it receives.
pub(super) const MAX_FRAME: usize = 16 * 1024 * 1024;
/// A length beyond this is no length.
const MAX_LENGTH: usize = 1024 * 1024 * 1024;

/// Where a server is.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// `host:port`.
    Tcp(String),
    /// In this process: the other end of a connection goes there.
    #[cfg(test)]
    Memory(mpsc::UnboundedSender<tokio::io::DuplexStream>),
}

/// What came.
#[derive(Debug)]
pub(super) enum Incoming {
    Frame(Vec<u8>),
    /// An answer above [`MAX_FRAME`]: its head and how long it was.
    TooLong([u8; REPLY_HEAD], usize),
}

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => out.write_str(address),
            #[cfg(test)]
            Self::Memory(_) => out.write_str("memory"),
        }
    }
}

impl Target {
    pub(super) async fn open(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address.as_str()).await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            #[cfg(test)]
            Self::Memory(sender) => {
                let (ours, theirs) = tokio::io::duplex(1024 * 1024);
                let gone = |_| io::Error::from(io::ErrorKind::ConnectionRefused);
                sender.send(theirs).map_err(gone)?;
                Ok(Box::new(ours))
            }
        }
    }
}

/// Reads one frame.
pub(super) async fn frame(stream: &mut (impl AsyncRead + Unpin + ?Sized)) -> io::Result<Incoming> {
    let length = stream.read_i32().await?;
    let length = usize::try_from(length).ok().filter(|l| *l <= MAX_LENGTH);
    let Some(length) = length else {
        let what = "not the length of a frame";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    };
    if length <= MAX_FRAME {
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        return Ok(Incoming::Frame(body));
    }
    let mut head = [0; REPLY_HEAD];
    stream.read_exact(&mut head).await?;
    let rest = u64::try_from(length - REPLY_HEAD).unwrap_or(u64::MAX);
    // Thrown away, so that the session and what others asked go on.
    let mut rest = stream.take(rest);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Ok(Incoming::TooLong(head, length))
}

/// Hands on every frame until the connection ends.
pub(super) async fn pump(
    mut stream: impl AsyncRead + Unpin,
    frames: mpsc::Sender<io::Result<Incoming>>,
) {
    loop {
        let next = frame(&mut stream).await;
        let last = next.is_err();
        if frames.send(next).await.is_err() || last {
            return;
        }
    }
}

pub(super) async fn send(
    stream: &mut (impl AsyncWrite + Unpin + ?Sized),
    bytes: &[u8],
) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}
