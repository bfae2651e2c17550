//! Well-behaved HTTP/2 on both sides, by the h2 crate, on a runtime of its own thread.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use tokio::runtime::Handle;

fn handle() -> &'static Handle {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let handle = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        handle
    })
}

/// Waits for a future on the thread of the test; connections go on on theirs.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    handle().block_on(async {
        let timed = tokio::time::timeout(super::LONG, future).await;
        timed.expect("took too long")
    })
}

/// A client connection.
#[derive(Clone, Debug)]
pub(crate) struct H2Client {
    pub(crate) send: SendRequest<Bytes>,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct H2Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    /// Trailers, or how the stream broke.
    pub(crate) end: Result<Option<HeaderMap>, h2::Error>,
}

impl H2Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|v| v.to_str().unwrap())
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        self.header("x-outrigger-reason")
    }

    pub(crate) fn trailer(&self, name: &str) -> Option<String> {
        let trailers = self.end.as_ref().unwrap().as_ref()?;
        Some(trailers.get(name)?.to_str().unwrap().to_owned())
    }

    /// `grpc-status`, wherever it is.
    pub(crate) fn grpc_status(&self) -> Option<String> {
        self.header("grpc-status")
            .map(str::to_owned)
            .or_else(|| self.trailer("grpc-status"))
    }
}

/// A request to `svc`.
pub(crate) fn request(method: &str, fields: &[(&str, &str)]) -> Request<()> {
    let mut builder = Request::builder().method(method).uri("http://svc/");
    for (name, value) in fields {
        builder = builder.header(*name, *value);
    }
    builder.body(()).unwrap()
}

impl H2Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let (send, connection) = h2::client::Builder::new()
                .initial_window_size(1 << 20)
                .initial_connection_window_size(16 << 20)
                .handshake(stream)
                .await
                .unwrap();
            tokio::spawn(async move {
                let _ended = connection.await;
            });
            Self { send }
        })
    }

    /// A request with `body` (`None`: END_STREAM on the head) and its answer.
    pub(crate) fn call(
        &self,
        request: Request<()>,
        body: Option<&[u8]>,
    ) -> Result<H2Answer, h2::Error> {
        block_on(async {
            let mut send = self.send.clone().ready().await?;
            let (response, mut stream) = send.send_request(request, body.is_none())?;
            if let Some(body) = body {
                // Whoever answers early may have ended the stream before its body is sent.
                let _ended_early = stream.send_data(Bytes::copy_from_slice(body), true);
            }
            collect(response.await?).await
        })
    }

    /// `GET /` at `svc`.
    pub(crate) fn get(&self) -> H2Answer {
        self.call(request("GET", &[]), None).unwrap()
    }

    /// A gRPC call with one message.
    pub(crate) fn grpc(&self, more: &[(&str, &str)]) -> Result<H2Answer, h2::Error> {
        let mut fields = vec![("content-type", "application/grpc"), ("te", "trailers")];
        fields.extend_from_slice(more);
        self.call(request("POST", &fields), Some(b"\0\0\0\0\x01x"))
    }
}

/// Reads a whole answer.
pub(crate) async fn collect(response: Response<RecvStream>) -> Result<H2Answer, h2::Error> {
    let (parts, mut stream) = response.into_parts();
    let mut answer = H2Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: Vec::new(),
        end: Ok(None),
    };
    while let Some(data) = stream.data().await {
        match data {
            Ok(data) => {
                let _released = stream.flow_control().release_capacity(data.len());
                answer.body.extend_from_slice(&data);
            }
            Err(error) => {
                answer.end = Err(error);
                return Ok(answer);
            }
        }
    }
    answer.end = stream.trailers().await;
    Ok(answer)
}

/// One request at a stub.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) request: Request<RecvStream>,
    pub(crate) respond: SendResponse<Bytes>,
}

impl Call {
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let value = self.request.headers().get(name)?;
        Some(value.to_str().unwrap().to_owned())
    }

    /// The whole request body.
    pub(crate) async fn body(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let stream = self.request.body_mut();
        while let Some(Ok(data)) = stream.data().await {
            let _released = stream.flow_control().release_capacity(data.len());
            all.extend_from_slice(&data);
        }
        all
    }
}

/// An instance that speaks HTTP/2.
#[derive(Debug)]
pub(crate) struct H2Stub {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
    accepting: tokio::task::JoinHandle<()>,
}

impl H2Stub {
    pub(crate) fn start<F, R>(serve: F) -> Self
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let serve = Arc::new(serve);
        let connections = Arc::new(AtomicUsize::new(0));
        let calls = Arc::new(AtomicUsize::new(0));
        let (kept, kept_calls) = (Arc::clone(&connections), Arc::clone(&calls));
        let listener = block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = handle().spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, SeqCst);
                let (serve, calls) = (Arc::clone(&serve), Arc::clone(&calls));
                tokio::spawn(async move {
                    let mut serving = h2::server::Builder::new();
                    serving
                        .initial_window_size(1 << 20)
                        .initial_connection_window_size(16 << 20);
                    let Ok(mut connection) = serving.handshake(stream).await else {
                        return;
                    };
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        calls.fetch_add(1, SeqCst);
                        tokio::spawn(serve(Call { request, respond }));
                    }
                });
            }
        });
        Self {
            address,
            connections: kept,
            calls: kept_calls,
            accepting,
        }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(SeqCst)
    }
}

impl Drop for H2Stub {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
