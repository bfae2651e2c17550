//! A Nacos server that does what a test tells it: answers, errs, hangs, forges flags.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// How it answers calls.
#[derive(Clone, Debug, Default)]
pub enum Behaviour {
    /// As Nacos would.
    #[default]
    Good,
    /// With this status and text.
    Status(u16, &'static str),
    /// With this body and status 200.
    Body(&'static str),
    /// Never.
    Hang,
}

/// The server; clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct FakeNacos(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    behaviour: Behaviour,
    services: BTreeMap<String, Vec<Value>>,
    protected: bool,
    cache_millis: u64,
    /// The only token that is let in, and the password it is given for.
    secret: Option<(String, String)>,
    logins: usize,
    calls: Vec<String>,
    tasks: JoinSet<()>,
}

impl FakeNacos {
    /// One that knows no service.
    pub fn new() -> Self {
        let fake = Self::default();
        fake.state().cache_millis = 10_000;
        fake
    }

    /// Opens a port of its own on 127.0.0.1.
    ///
    /// # Errors
    /// Of the socket.
    pub async fn listen(&self) -> std::io::Result<SocketAddr> {
        self.listen_on(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Opens this port.
    ///
    /// # Errors
    /// Of the socket.
    pub async fn listen_on(&self, address: SocketAddr) -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let fake = self.clone();
        self.state().tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                fake.serve(stream);
            }
        });
        Ok(address)
    }

    /// Answers on a connection.
    pub fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(&self, stream: S) {
        let fake = self.clone();
        let service = service_fn(move |request| {
            let fake = fake.clone();
            async move { Ok::<_, Infallible>(fake.answer(request).await) }
        });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        self.state()
            .tasks
            .spawn(async move { drop(connection.await) });
    }

    /// Closes ports and connections; what it knows stays.
    pub fn stop(&self) {
        self.state().tasks.abort_all();
    }

    /// From now on.
    pub fn behave(&self, behaviour: Behaviour) {
        self.state().behaviour = behaviour;
    }

    /// The healthy instances of a service (`group@@name`), `ip:port` each.
    pub fn set(&self, service: &str, addresses: &[&str]) {
        let hosts = addresses.iter().filter_map(|address| {
            let (ip, port) = address.rsplit_once(':')?;
            Some(
                json!({"ip": ip, "port": port.parse::<u16>().ok()?, "healthy": true,
                "weight": 1.0, "enabled": true, "instanceId": address, "clusterName": "DEFAULT"}),
            )
        });
        self.set_hosts(service, hosts.collect());
    }

    /// The hosts of a service as they are sent.
    pub fn set_hosts(&self, service: &str, hosts: Vec<Value>) {
        self.state().services.insert(service.to_owned(), hosts);
    }

    /// Whether the answers say that the protection threshold is reached.
    pub fn protect(&self, protected: bool) {
        self.state().protected = protected;
    }

    /// Requires a login with this password; earlier tokens are void.
    pub fn require(&self, password: &str) {
        let mut state = self.state();
        let token = "nobody has it".to_owned();
        state.secret = Some((token, password.to_owned()));
    }

    /// Path and query of every call so far.
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Answered logins.
    pub fn logins(&self) -> usize {
        self.state().logins
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .map(|body| body.to_bytes())
            .unwrap_or_default();
        let behaviour = {
            let mut state = self.state();
            state.calls.push(head.uri.to_string());
            state.behaviour.clone()
        };
        match behaviour {
            Behaviour::Good => {}
            Behaviour::Status(status, text) => return reply(status, text.to_owned()),
            Behaviour::Body(text) => return reply(200, text.to_owned()),
            Behaviour::Hang => std::future::pending().await,
        }
        let query = head.uri.query().unwrap_or_default();
        let params: BTreeMap<String, String> = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        let mut state = self.state();
        if head.uri.path() == "/nacos/v1/auth/login" {
            return login(&mut state, &body);
        }
        let sent = head
            .headers
            .get(header::AUTHORIZATION)
            .and_then(|v| v.to_str().ok());
        let sent = sent.and_then(|value| value.strip_prefix("Bearer "));
        if state
            .secret
            .as_ref()
            .is_some_and(|(token, _)| sent != Some(token.as_str()))
        {
            return reply(
                403,
                json!({"status": 403, "message": "user not found!"}).to_string(),
            );
        }
        let param = |name: &str| params.get(name).map(String::as_str).unwrap_or_default();
        match head.uri.path() {
            "/nacos/v1/ns/instance/list" => {
                let name = format!("{}@@{}", param("groupName"), param("serviceName"));
                let hosts = state.services.get(&name).cloned().unwrap_or_default();
                let list = json!({"name": name, "hosts": hosts, "cacheMillis": state.cache_millis,
                    "reachProtectionThreshold": state.protected});
                reply(200, list.to_string())
            }
            "/nacos/v1/ns/service/list" => {
                let number = |name: &str| param(name).parse::<usize>().unwrap_or(1);
                let (page, size) = (number("pageNo"), number("pageSize"));
                let prefix = format!("{}@@", param("groupName"));
                let all: Vec<&str> = state
                    .services
                    .keys()
                    .filter_map(|name| name.strip_prefix(&prefix))
                    .collect();
                let doms: Vec<_> = all.iter().skip((page - 1) * size).take(size).collect();
                reply(200, json!({"count": all.len(), "doms": doms}).to_string())
            }
            path => reply(501, format!("no such api:{path}")),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn login(state: &mut State, body: &[u8]) -> Response<Full<Bytes>> {
    let form: BTreeMap<String, String> = form_urlencoded::parse(body).into_owned().collect();
    let Some((_, password)) = state.secret.clone() else {
        return reply(
            200,
            json!({"accessToken": "any", "tokenTtl": 18000}).to_string(),
        );
    };
    if form.get("password") != Some(&password) {
        return reply(403, "user not found!".to_owned());
    }
    state.logins += 1;
    let token = format!("token-{}", state.logins);
    state.secret = Some((token.clone(), password));
    reply(
        200,
        json!({"accessToken": token, "tokenTtl": 18000}).to_string(),
    )
}

fn reply(status: u16, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    response
}
