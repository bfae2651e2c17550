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
}
