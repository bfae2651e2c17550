//! One HTTP/2 connection to a Nacos server: unary calls and the stream. What is said over it is
//! decided elsewhere. A task polls the connection; it ends when the channel is dropped.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::protocol::nacos::frame::{FrameError, Frames, frame};
use crate::protocol::nacos::{Payload, STREAM_PATH, UNARY_PATH};

/// Bytes of a message: that of a service with many thousand instances.
const MAX_MESSAGE: usize = 10 * 1024 * 1024;
/// Messages of ours that wait to be sent on the stream.
const STREAM_QUEUE: usize = 64;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The server refuses the call itself.
    #[error("gRPC status {status} {message}")]
    Grpc {
        /// `grpc-status`.
        status: String,
        /// `grpc-message`.
        message: String,
    },
    /// The connection, or something that is not HTTP/2.
    #[error("no usable response: {0}")]
    Http(#[from] hyper::Error),
    /// The answer is no message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Broken off inside the answer, or too long.
    #[error("response broken off: {0}")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It is something else that answers there.
    #[error("answered by HTTP status {0}: no gRPC server")]
    Status(StatusCode),
    /// Not in time.
    #[error("no response within {0:?}")]
    Timeout(Duration),
}

/// A connection.
#[derive(Debug)]
pub struct Channel {
    sender: http2::SendRequest<Outgoing>,
    authority: String,
    /// The task of the connection; stopped with this.
    _connection: JoinSet<()>,
}

/// Our half of the stream.
#[derive(Clone, Debug)]
pub struct StreamSender(mpsc::Sender<Bytes>);

/// The server's half of the stream.
pub struct StreamReader {
    incoming: Option<Incoming>,
    /// Servers may answer the head only with their first message.
    opening: Opening,
    frames: Frames,
}

type Opening = Pin<Box<dyn Future<Output = Result<http::Response<Incoming>, hyper::Error>> + Send>>;

impl std::fmt::Debug for StreamReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let open = self.incoming.is_some();
        f.debug_struct("StreamReader").field("open", &open).finish()
    }
}

impl Channel {
    /// Speaks HTTP/2 on an open connection; `authority` is who is spoken to.
    ///
    /// # Errors
    /// [`ChannelError::Http`].
    pub async fn open<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        stream: S,
        authority: &str,
    ) -> Result<Self, ChannelError> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new());
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let mut task = JoinSet::new();
        // Its error reaches every call and the stream too.
        task.spawn(async move { drop(connection.await) });
        Ok(Self {
            sender,
            authority: authority.to_owned(),
            _connection: task,
        })
    }

    /// One unary call.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub async fn call(&self, payload: &Payload, within: Duration) -> Result<Payload, ChannelError> {
        let call = async {
            let body = Outgoing::One(frame(payload));
            let mut sender = self.sender.clone();
            let response = sender.send_request(self.request(UNARY_PATH, body)?).await?;
            check(response.status(), response.headers())?;
            let whole = Limited::new(response.into_body(), MAX_MESSAGE).collect();
            let whole = whole.await.map_err(ChannelError::Broken)?;
            if let Some(trailers) = whole.trailers() {
                check(StatusCode::OK, trailers)?;
            }
            let mut frames = Frames::new(MAX_MESSAGE);
            frames.push(&whole.to_bytes());
            Ok(frames.next()?.ok_or(FrameError::Cut)?)
        };
        let answer = tokio::time::timeout(within, Box::pin(call)).await;
        answer.unwrap_or(Err(ChannelError::Timeout(within)))
    }

    /// Opens the stream with its first message.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn stream(&self, first: &Payload) -> Result<(StreamSender, StreamReader), ChannelError> {
        let (sender, receiver) = mpsc::channel(STREAM_QUEUE);
        // An empty queue has room.
        let _room = sender.try_send(frame(first));
        let request = self.request(STREAM_PATH, Outgoing::Stream(receiver))?;
        let mut http = self.sender.clone();
        let reader = StreamReader {
            incoming: None,
            opening: Box::pin(http.send_request(request)),
            frames: Frames::new(MAX_MESSAGE),
        };
        Ok((StreamSender(sender), reader))
    }

    /// Whether it has ended.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    fn request(&self, path: &str, body: Outgoing) -> Result<Request<Outgoing>, ChannelError> {
        let uri = http::Uri::builder()
            .scheme("http")
            .authority(self.authority.as_str())
            .path_and_query(path)
            .build();
        let mut request = Request::new(body);
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = uri.map_err(|error| ChannelError::Broken(error.into()))?;
        let headers = request.headers_mut();
        let grpc = HeaderValue::from_static("application/grpc");
        headers.insert(header::CONTENT_TYPE, grpc);
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        let agent = concat!("outrigger/", env!("CARGO_PKG_VERSION"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        Ok(request)
    }
}

impl StreamSender {
    /// Sends a message; false when the stream has ended.
    pub async fn send(&self, payload: &Payload) -> bool {
        self.0.send(frame(payload)).await.is_ok()
    }
}

impl StreamReader {
    /// The next message; `None` at the end of the stream. Can be dropped at any time.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub async fn next(&mut self) -> Result<Option<Payload>, ChannelError> {
        loop {
            if let Some(payload) = self.frames.next()? {
                return Ok(Some(payload));
            }
            let Some(incoming) = &mut self.incoming else {
                let response = self.opening.as_mut().await?;
                check(response.status(), response.headers())?;
                self.incoming = Some(response.into_body());
                continue;
            };
            match incoming.frame().await {
                None => return Ok(None),
                Some(piece) => {
                    if let Ok(piece) = piece?.into_data() {
                        self.frames.push(&piece);
                    }
                }
            }
        }
    }
}

fn check(status: StatusCode, headers: &http::HeaderMap) -> Result<(), ChannelError> {
    if status != StatusCode::OK {
        return Err(ChannelError::Status(status));
    }
    let text = |name: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.map(str::to_owned)
    };
    match text("grpc-status") {
        Some(status) if status != "0" => Err(ChannelError::Grpc {
            status,
            message: text("grpc-message").unwrap_or_default(),
        }),
        Some(_) | None => Ok(()),
    }
}

/// What we send: one message, or messages as they come.
#[derive(Debug)]
enum Outgoing {
    One(Bytes),
    Stream(mpsc::Receiver<Bytes>),
    End,
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let message = match &mut *self {
            Self::One(message) => {
                let message = std::mem::take(message);
                *self = Self::End;
                message
            }
            Self::Stream(messages) => match ready!(messages.poll_recv(context)) {
                Some(message) => message,
                None => return Poll::Ready(None),
            },
            Self::End => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(Frame::data(message))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::End)
    }
}
