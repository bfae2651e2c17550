//! The HTTP/1.1 client of the control plane: registries, the admin socket. One connection per
//! request, a total time-out, a bounded body, nothing spawned. Traffic of the app never comes here.

use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderValue};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Where a request goes.
#[derive(Clone, Debug)]
pub enum Target {
    /// `host:port`; a name is resolved at each request.
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
    /// Inside the process: whoever reads the channel is the server. For tests in paused time, where
    /// a wait for a socket would look like a time-out.
    #[cfg(test)]
    Memory(tokio::sync::mpsc::UnboundedSender<tokio::io::DuplexStream>),
}

/// Bounds of a request.
#[derive(Clone, Copy, Debug)]
pub struct HttpClient {
    /// From the connection to the end of the body.
    pub timeout: Duration,
    /// Bytes of a response body.
    pub max_body: usize,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The body is larger than allowed.
    #[error("response body is larger than {0} bytes")]
    BodyTooLarge(usize),
    /// No connection.
    #[error("cannot connect: {0}")]
    Connect(#[source] std::io::Error),
    /// Broken off, or not HTTP.
    #[error("no usable response: {0}")]
    Http(#[source] hyper::Error),
    /// Broken off inside the body.
    #[error("response body broken off: {0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Not in time.
    #[error("no response within {0:?}")]
    Timeout(Duration),
}

impl HttpClient {
    /// Sends a request whose URI is the path and query; `host` and `connection` are set here.
    ///
    /// # Errors
    /// [`HttpError`]; any status is a response.
    pub async fn send(
        &self,
        target: &Target,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Bytes>, HttpError> {
        let exchange = async {
            match target {
                Target::Tcp(address) => {
                    let stream = TcpStream::connect(address)
                        .await
                        .map_err(HttpError::Connect)?;
                    stream.set_nodelay(true).map_err(HttpError::Connect)?;
                    self.exchange(stream, address, request).await
                }
                Target::Unix(path) => {
                    let stream = UnixStream::connect(path)
                        .await
                        .map_err(HttpError::Connect)?;
                    self.exchange(stream, "localhost", request).await
                }
                #[cfg(test)]
                Target::Memory(server) => {
                    let (ours, theirs) = tokio::io::duplex(64 * 1024);
                    let refused =
                        |_| HttpError::Connect(std::io::ErrorKind::ConnectionRefused.into());
                    server.send(theirs).map_err(refused)?;
                    self.exchange(ours, "memory", request).await
                }
            }
        };
        let timed = tokio::time::timeout(self.timeout, Box::pin(exchange));
        timed.await.unwrap_or(Err(HttpError::Timeout(self.timeout)))
    }

    async fn exchange<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        host: &str,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Bytes>, HttpError> {
        let headers = request.headers_mut();
        if let Ok(host) = HeaderValue::from_str(host) {
            headers.entry(HOST).or_insert(host);
        }
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(HttpError::Http)?;
        let work = async {
            let response = sender
                .send_request(request)
                .await
                .map_err(HttpError::Http)?;
            let (head, body) = response.into_parts();
            let whole = Limited::new(body, self.max_body).collect().await;
            let body = whole.map_err(|error| match error.downcast::<LengthLimitError>() {
                Ok(_) => HttpError::BodyTooLarge(self.max_body),
                Err(error) => HttpError::Body(error),
            })?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        let (mut work, mut connection) = (pin!(work), pin!(connection));
        tokio::select! {
            biased;
            response = work.as_mut() => response,
            // Its own error reaches `work` too, with what was read before.
            _ = connection.as_mut() => work.await,
        }
    }
}
