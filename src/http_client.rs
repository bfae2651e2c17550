//! The HTTP/1.1 client of the control plane: registries, the admin socket. One connection per
//! request, time-outs, a bounded body, nothing spawned. Traffic of the app never comes here.
//!
//! Next: `http_client/servers.rs` (several servers of one registry), `http_client/tls.rs`.

pub mod auth;
pub mod body;
pub mod jitter;
pub mod servers;
pub mod tls;

use std::fmt;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_ENCODING, HOST, HeaderValue};
use http::{Request, Response};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use body::{BodyStream, inflate};
use tls::TlsClient;

/// Where a request goes.
#[derive(Clone, Debug)]
pub enum Target {
    /// `host:port`; a name is resolved at each request.
    Tcp(String),
    /// `host:port`, spoken to by TLS.
    Tls(String, Arc<TlsClient>),
    /// A Unix socket.
    Unix(PathBuf),
    /// Inside the process: whoever reads the channel is the server. For tests in paused time, where
    /// a wait for a socket would look like a time-out.
    #[cfg(test)]
    Memory(tokio::sync::mpsc::UnboundedSender<tokio::io::DuplexStream>),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) | Self::Tls(address, _) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            #[cfg(test)]
            Self::Memory(_) => f.write_str("memory"),
        }
    }
}

/// Bounds of a request.
#[derive(Clone, Copy, Debug)]
pub struct HttpClient {
    /// From the connection to the end of the body.
    pub timeout: Duration,
    /// Bytes of a response body, compressed or not.
    pub max_body: usize,
}

/// What a body may have where nothing else is said (rule G15).
pub const MAX_BODY: usize = 16 * 1024 * 1024;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Broken off inside the body.
    #[error("response body broken off: {}", with_causes(&**.0))]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The body is larger than allowed.
    #[error("response body is larger than {0} bytes")]
    BodyTooLarge(usize),
    /// No connection.
    #[error("cannot connect: {0}")]
    Connect(#[source] std::io::Error),
    /// Broken off, or not HTTP.
    #[error("no usable response: {}", with_causes(.0))]
    Http(#[source] hyper::Error),
    /// A stream from which nothing comes.
    #[error("silent for {0:?}")]
    Silent(Duration),
    /// Not in time.
    #[error("no response within {0:?}")]
    Timeout(Duration),
    /// No TLS: a file, a certificate, or the other side speaks something else.
    #[error("no TLS: {0}")]
    Tls(String),
}

/// An error with what is under it: alone it says "connection error" of a refused certificate.
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// A connection of any kind.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

impl HttpClient {
    /// Sends a request whose URI is the path and query; `host` and `connection` are set here. An
    /// answer in gzip (only where the request accepts it) is inflated.
    ///
    /// # Errors
    /// [`HttpError`]; any status is a response.
    pub async fn send(
        &self,
        target: &Target,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Bytes>, HttpError> {
        self.send_waiting(target, request, Duration::ZERO).await
    }

    /// The same for a question that the server may answer only after `wait`: the connection still
    /// is made within the time-out, and all is over after the time-out and `wait`.
    ///
    /// # Errors
    /// [`HttpError`]; any status is a response.
    pub async fn send_waiting(
        &self,
        target: &Target,
        request: Request<Full<Bytes>>,
        wait: Duration,
    ) -> Result<Response<Bytes>, HttpError> {
        let total = self.timeout.saturating_add(wait);
        let exchange = async {
            let (head, body) = self.open(target, request, total).await?.into_parts();
            let body = body.whole(self.max_body).await?;
            let gzip = head.headers.get(CONTENT_ENCODING);
            let body = match gzip.is_some_and(|value| value.as_bytes() == b"gzip") {
                true => inflate(&body, self.max_body)?,
                false => body,
            };
            Ok(Response::from_parts(head, body))
        };
        let timed = tokio::time::timeout(total, Box::pin(exchange));
        timed.await.unwrap_or(Err(HttpError::Timeout(total)))
    }

    /// Sends a request and reads the head of the answer, within `head`; the body is read by the
    /// caller. The connection is made within the time-out.
    ///
    /// # Errors
    /// [`HttpError`]; any status is a response.
    pub async fn open(
        &self,
        target: &Target,
        request: Request<Full<Bytes>>,
        head: Duration,
    ) -> Result<Response<BodyStream>, HttpError> {
        let patience = self.timeout.min(head);
        let connecting = tokio::time::timeout(patience, Box::pin(connect(target)));
        let stream = connecting
            .await
            .unwrap_or(Err(HttpError::Timeout(patience)))?;
        let asking = tokio::time::timeout(head, Box::pin(ask(stream, target, request)));
        asking.await.unwrap_or(Err(HttpError::Timeout(head)))
    }
}

/// Opens a connection, with TLS where the target has it. Without a time-out of its own.
///
/// # Errors
/// [`HttpError`].
pub async fn connect(target: &Target) -> Result<Box<dyn Transport>, HttpError> {
    let tcp = async |address: &str| {
        let stream = TcpStream::connect(address)
            .await
            .map_err(HttpError::Connect)?;
        stream.set_nodelay(true).map_err(HttpError::Connect)?;
        Ok(stream)
    };
    Ok(match target {
        Target::Tcp(address) => Box::new(tcp(address).await?),
        Target::Tls(address, tls) => {
            let stream = tcp(address).await?;
            Box::new(tls.connect(address, stream).await?)
        }
        Target::Unix(path) => {
            let stream = UnixStream::connect(path).await;
            Box::new(stream.map_err(HttpError::Connect)?)
        }
        #[cfg(test)]
        Target::Memory(server) => {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let refused = |_| HttpError::Connect(std::io::ErrorKind::ConnectionRefused.into());
            server.send(theirs).map_err(refused)?;
            Box::new(ours)
        }
    })
}

async fn ask(
    stream: Box<dyn Transport>,
    target: &Target,
    mut request: Request<Full<Bytes>>,
) -> Result<Response<BodyStream>, HttpError> {
    let host = match target {
        Target::Tcp(address) | Target::Tls(address, _) => address,
        Target::Unix(_) => "localhost",
        #[cfg(test)]
        Target::Memory(_) => "memory",
    };
    let headers = request.headers_mut();
    if let Ok(host) = HeaderValue::from_str(host) {
        headers.entry(HOST).or_insert(host);
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(HttpError::Http)?;
    let mut connection = Box::pin(connection);
    let mut ended = false;
    let response = {
        let mut sending = pin!(sender.send_request(request));
        std::future::poll_fn(|context| {
            // Its own error reaches the answer too, with what was read before.
            if !ended {
                ended = connection.as_mut().poll(context).is_ready();
            }
            sending.as_mut().poll(context)
        })
        .await
        .map_err(HttpError::Http)?
    };
    let open = (!ended).then_some(connection);
    Ok(response.map(|body| BodyStream::new(body, open, sender)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const CLIENT: HttpClient = HttpClient {
        timeout: Duration::from_millis(300),
        max_body: 8,
    };

    /// What a server that reads a request and then writes `answer` (and closes, unless it is to hang)
    /// makes of it.
    async fn against(answer: &'static str, hang: bool) -> Result<Response<Bytes>, HttpError> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 1024];
            let length = stream.read(&mut request).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            if hang {
                tokio::time::sleep(Duration::from_secs(9)).await;
            }
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        let request = Request::get("/a?b=c").body(Full::default()).unwrap();
        let response = CLIENT.send(&Target::Tcp(address.clone()), request).await;
        if !hang {
            let seen = server.await.unwrap().to_ascii_lowercase();
            assert!(seen.starts_with("get /a?b=c http/1.1\r\n"), "{seen}");
            assert!(seen.contains(&format!("host: {address}")), "{seen}");
        }
        response
    }

    #[tokio::test]
    async fn every_status_is_a_response_with_or_without_a_length() {
        let response = against("HTTP/1.1 500 x\r\ncontent-length: 3\r\n\r\nabc", false)
            .await
            .unwrap();
        assert_eq!(
            (response.status().as_u16(), response.body().as_ref()),
            (500, b"abc".as_slice())
        );
        let response = against("HTTP/1.0 200 OK\r\n\r\nto end", false)
            .await
            .unwrap();
        assert_eq!(response.body().as_ref(), b"to end");
    }

    #[tokio::test]
    async fn too_much_too_late_broken_and_refused_are_errors() {
        let large = against(
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n123456789",
            false,
        )
        .await;
        assert!(
            matches!(large, Err(HttpError::BodyTooLarge(8))),
            "{large:?}"
        );
        let broken = against("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc", false).await;
        assert!(matches!(broken, Err(HttpError::Body(_))), "{broken:?}");
        let rubbish = against("SSH-2.0-OpenSSH\r\n", false).await;
        assert!(matches!(rubbish, Err(HttpError::Http(_))), "{rubbish:?}");
        let late = against("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc", true).await;
        assert!(matches!(late, Err(HttpError::Timeout(_))), "{late:?}");
        let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target::Tcp(unused.local_addr().unwrap().to_string());
        drop(unused);
        let refused = CLIENT
            .send(&target, Request::get("/").body(Full::default()).unwrap())
            .await;
        assert!(matches!(refused, Err(HttpError::Connect(_))), "{refused:?}");
    }

    #[tokio::test]
    async fn an_answer_in_gzip_is_inflated_within_the_same_bound() {
        use std::io::Write;
        let client = HttpClient {
            max_body: 200,
            ..CLIENT
        };
        for (length, good) in [(200, true), (201, false)] {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            gzip.write_all(&vec![b'x'; length]).unwrap();
            let body = gzip.finish().unwrap();
            let (sender, mut connections) = tokio::sync::mpsc::unbounded_channel();
            tokio::spawn(async move {
                let mut stream: tokio::io::DuplexStream = connections.recv().await.unwrap();
                drop(stream.read(&mut [0; 1024]).await);
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(&body).await.unwrap();
            });
            let request = Request::get("/").body(Full::default()).unwrap();
            let answer = client.send(&Target::Memory(sender), request).await;
            match answer {
                Ok(answer) => assert!(good && answer.body().len() == length),
                Err(error) => assert!(!good && matches!(error, HttpError::BodyTooLarge(200))),
            }
        }
    }
}
