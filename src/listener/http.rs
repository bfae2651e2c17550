//! Serves the requests of one connection: check the head, find the route, clean the headers, run
//! the policy stack, write the answer's head. Answers back through `listener/reply.rs`.
//! Next: `listener/head.rs`, `router.rs`, `policy/stack.rs`.

use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::connection::ConnectionState;
use super::head::{self, HeadLimits};
use super::reply::{self, ReplyContext};
use super::request::RequestGuard;
use crate::access_log::RequestNote;
use crate::clock::Timestamp;
use crate::config::types::{AccessLogMode, ForwardedHeaders, HostHeader, Service, Via};
use crate::error::{Reason, Refusal};
use crate::metrics::cells::{AppProtocol, Limit};
use crate::outlier::classify::OutcomeClass;
use crate::policy::limits::{RequestLimits, parse_grpc_timeout};
use crate::policy::stack::{self, Course, Delivery, Exchange, Outcome};
use crate::router::{self, Authority, Found, Missed, Route, Rule};
use crate::timer::Timer;
use crate::upstream::headers::{
    self, FORWARDED_FOR, FORWARDED_HOST, FORWARDED_PREFIX, FORWARDED_PROTO, Framing, GRPC_TIMEOUT,
    HOP, REQUEST_ID, Seen, TRACEPARENT, VIA_ENTRY,
};
use crate::upstream::request_body::{RequestBody, RequestBodyParts};
use crate::upstream::request_head::host_value;
use crate::upstream::response_body::{Carrier, ProxyBody, UpstreamBody, UpstreamBodyParts};
use crate::upstream::tunnel;
use crate::worker::{DrainPhase, Lookup, LookupAnswer, Snapshot, Worker};

/// How long the first frame of a body is awaited that is probably empty.
const FIRST_FRAME: Duration = Duration::from_millis(500);

/// The connection a request came over.
#[derive(Debug)]
pub struct Connection {
    /// The app's address, for `x-forwarded-for`.
    pub peer: Option<SocketAddr>,
    /// Set on a service's own port: the addressing rules do not run.
    pub service: Option<Arc<str>>,
    /// Told when requests begin and end.
    pub state: Arc<ConnectionState>,
}

/// What of the request's head is needed until the answer's head.
struct Asked {
    version: Version,
    grpc: bool,
    head: bool,
    trailers: bool,
    request_id: Option<HeaderValue>,
    via: Via,
}

/// A request being served. What can be said at once is said without a task or an allocation; the
/// rest runs boxed, so that an idle connection does not carry the size of a busy one.
pub enum Serving {
    /// Answered on the spot.
    Ready(Option<Result<Response<ProxyBody>, Unanswered>>),
    /// Sent to an instance, or its name looked for.
    Running(Pin<Box<dyn Future<Output = Result<Response<ProxyBody>, Unanswered>>>>),
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Serving")
    }
}

impl Future for Serving {
    type Output = Result<Response<ProxyBody>, Unanswered>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            // Polled again after its end it would have nothing to say; hyper does not.
            Self::Ready(answer) => Poll::Ready(answer.take().unwrap_or(Err(Unanswered))),
            Self::Running(running) => running.as_mut().poll(cx),
        }
    }
}

/// Serves one request. Every way out is a response or, when the app must not get one, an error.
pub fn serve(
    worker: &Rc<Worker>,
    connection: &Rc<Connection>,
    request: Request<Incoming>,
) -> Serving {
    match admit(worker, connection, request) {
        Ok((admitted, Ok(found))) => match dispatch(admitted, connection, found) {
            Ok(flow) => Serving::Running(Box::pin(flow.run())),
            Err(refused) => Serving::Ready(Some(refused.answer())),
        },
        Ok((admitted, Err(missed))) => Serving::Running(Box::pin(look_up_first(
            admitted,
            Rc::clone(connection),
            missed,
        ))),
        Err(refused) => Serving::Ready(Some(refused.answer())),
    }
}

/// A request whose head was checked.
struct Admitted {
    worker: Rc<Worker>,
    snapshot: Arc<Snapshot>,
    parts: http::request::Parts,
    body: Incoming,
    seen: Seen,
    on_upgrade: Option<hyper::upgrade::OnUpgrade>,
    /// Its Host is a loopback name, or missing.
    loopback: bool,
    asked: Asked,
    guard: RequestGuard,
    started: Timestamp,
}

/// A request that is answered by us.
struct Refused {
    refusal: Refusal,
    guard: RequestGuard,
    asked: Asked,
    route: Option<Arc<Route>>,
}

impl Refused {
    fn answer(self) -> Result<Response<ProxyBody>, Unanswered> {
        refuse(self.guard, &self.refusal, &self.asked, self.route.as_ref())
    }
}

/// Checks the head and looks for the route in the table.
#[expect(
    clippy::result_large_err,
    reason = "both ways are of one size; neither is kept"
)]
fn admit(
    worker: &Rc<Worker>,
    connection: &Connection,
    mut request: Request<Incoming>,
) -> Result<(Admitted, Result<Found, Missed>), Refused> {
    let started = worker.clock.now();
    let snapshot = worker.snapshot();
    let seen = Seen::scan(request.headers());
    let on_upgrade = wants_upgrade(&request, seen).then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let grpc = parts.method == Method::POST && is_grpc(&parts.headers);
    let asked = Asked {
        version: parts.version,
        grpc,
        head: parts.method == Method::HEAD,
        trailers: parts.version == Version::HTTP_2,
        request_id: request_id(worker, &parts.headers, seen),
        via: Via::None,
    };
    let note = note(&snapshot, &parts, seen, asked.request_id.as_ref());
    let guard = RequestGuard::new(
        worker,
        &snapshot,
        note,
        app_protocol(parts.version, grpc),
        version_text(parts.version),
        started,
        Arc::clone(&connection.state),
    );
    let head_limits = HeadLimits {
        max_target_bytes: snapshot.config.limits.max_target_bytes,
        browser_guard: snapshot.config.browser_guard,
        hop: worker.shared.hop.as_bytes(),
    };
    let refused = |refusal, guard, asked| Refused {
        refusal,
        guard,
        asked,
        route: None,
    };
    let (found, loopback) = match head::check(&parts, seen, &head_limits) {
        Ok(authority) => {
            let loopback = authority.as_ref().is_none_or(Authority::is_loopback);
            let found = match &connection.service {
                Some(name) => own_port(&snapshot, name),
                None => router::route(&snapshot.table, &parts, authority.as_ref()),
            };
            (found, loopback)
        }
        Err(refusal) => {
            if refusal.reason == Reason::TargetTooLong {
                worker.limit_hit(Limit::MaxTargetBytes);
            }
            return Err(refused(refusal, guard, asked));
        }
    };
    if worker.phase() == DrainPhase::Cut {
        let mut refusal = Refusal::new(Reason::Draining, "Outrigger is shutting down");
        refusal.retry_after = Some(1);
        return Err(refused(refusal, guard, asked));
    }
    let admitted = Admitted {
        worker: Rc::clone(worker),
        snapshot,
        parts,
        body,
        seen,
        on_upgrade,
        loopback,
        asked,
        guard,
        started,
    };
    Ok((admitted, found))
}

async fn look_up_first(
    admitted: Admitted,
    connection: Rc<Connection>,
    missed: Missed,
) -> Result<Response<ProxyBody>, Unanswered> {
    match look_up(&admitted.worker, &admitted.snapshot, &missed).await {
        Ok(found) => match dispatch(admitted, &connection, found) {
            Ok(flow) => flow.run().await,
            Err(refused) => refused.answer(),
        },
        Err(refusal) => {
            let Admitted { guard, asked, .. } = admitted;
            Refused {
                refusal,
                guard,
                asked,
                route: None,
            }
            .answer()
        }
    }
}

/// A request on its way to an instance.
struct Flow {
    exchange: Exchange,
    asked: Asked,
    on_upgrade: Option<hyper::upgrade::OnUpgrade>,
    /// A body that may turn out to be empty.
    incoming: Option<Incoming>,
}

impl Flow {
    async fn run(mut self: Box<Self>) -> Result<Response<ProxyBody>, Unanswered> {
        if let Some(incoming) = self.incoming.take() {
            self.exchange.body = Box::pin(after_first_frame(&self.exchange, incoming)).await;
        }
        let outcome = self.exchange.run().await;
        self.conclude(outcome)
    }

    /// The answer's head. Not part of `run`, so that nothing of it is carried across its waits.
    fn conclude(self: Box<Self>, outcome: Outcome) -> Result<Response<ProxyBody>, Unanswered> {
        let Self {
            exchange,
            asked,
            on_upgrade,
            ..
        } = *self;
        match outcome {
            Outcome::Answer(answer) => Ok(deliver(exchange, *answer, &asked, on_upgrade)),
            Outcome::Refused(refusal) => {
                let Exchange { guard, route, .. } = exchange;
                Refused {
                    refusal,
                    guard,
                    asked,
                    route: Some(route),
                }
                .answer()
            }
        }
    }
}

/// Makes the request ready for its upstream.
#[expect(
    clippy::result_large_err,
    reason = "both ways are of one size; neither is kept"
)]
fn dispatch(
    admitted: Admitted,
    connection: &Connection,
    found: Found,
) -> Result<Box<Flow>, Refused> {
    let Admitted {
        worker,
        snapshot,
        mut parts,
        body,
        seen,
        on_upgrade,
        loopback,
        mut asked,
        mut guard,
        started,
    } = admitted;
    let route = found.route;
    let service = &route.settings.service;
    let limits = &snapshot.config.limits;
    guard.routed(&route);
    asked.via = service.via;
    let refuse = |refusal, guard, asked| {
        let route = Some(Arc::clone(&route));
        Err(Refused {
            refusal,
            guard,
            asked,
            route,
        })
    };
    let too_long = limits.max_body_bytes > 0
        && content_length(&parts.headers).is_some_and(|length| length > limits.max_body_bytes);
    if too_long {
        worker.limit_hit(Limit::MaxBodyBytes);
        let most = limits.max_body_bytes;
        let message = format!("the request body is larger than {most} bytes");
        return refuse(Refusal::new(Reason::BodyTooLarge, message), guard, asked);
    }
    let client = if asked.grpc {
        client_deadline(&parts.headers, started)
    } else {
        None
    };
    if client.is_some_and(|end| end <= started) {
        let refusal = Refusal::new(Reason::RequestTimeout, "the deadline had passed on arrival");
        return refuse(refusal, guard, asked);
    }
    let Some((target, prefix)) = stripped_target(&parts.uri, found.strip) else {
        let refusal = Refusal::new(Reason::BadRequest, "the request target cannot be forwarded");
        return refuse(refusal, guard, asked);
    };
    let host = passed_host(service, &parts, loopback);
    let upgrade = on_upgrade.is_some();
    asked.trailers |= headers::clean_request(&mut parts.headers, seen, upgrade);
    dress(
        &worker,
        connection,
        service,
        &mut parts.headers,
        &asked,
        prefix.as_ref(),
        host.as_ref(),
    );
    let host = host_value(service, &route, host);
    if parts.headers.get(HOST) != Some(&host) {
        parts.headers.insert(HOST, host);
    }
    if parts.version == Version::HTTP_2 {
        headers::join_cookies(&mut parts.headers, seen);
    }
    let incoming = (!body.is_end_stream()).then_some(body);
    let awaits_first = incoming.is_some() && may_be_empty(&parts);
    let mut incoming = incoming;
    let body = if awaits_first {
        None
    } else {
        let multiplexed = parts.version == Version::HTTP_2;
        incoming.take().map(|incoming| {
            RequestBody::new(RequestBodyParts {
                incoming,
                first: None,
                multiplexed,
                clock: worker.clock,
                keep_limit: service.retry.max_body,
                max_bytes: limits.max_body_bytes,
            })
        })
    };
    let time = RequestLimits::new(
        &service.timeout,
        service.retry.max_attempts,
        asked.grpc,
        client,
        started,
    );
    Ok(Box::new(Flow {
        exchange: Exchange {
            timer: Timer::new(worker.clock),
            worker,
            snapshot,
            grpc: asked.grpc,
            method: parts.method,
            target,
            headers: parts.headers,
            body,
            time,
            upgrade,
            guard,
            course: Course::default(),
            route: Arc::clone(&route),
        },
        asked,
        on_upgrade,
        incoming,
    }))
}

/// Over HTTP/2 a request without a body may end by an empty DATA frame; with a method that usually
/// has none the first frame is awaited, since an HTTP/1.1 instance would get a coding for nothing
/// otherwise.
fn may_be_empty(parts: &http::request::Parts) -> bool {
    parts.version == Version::HTTP_2
        && matches!(
            parts.method,
            Method::GET | Method::HEAD | Method::OPTIONS | Method::DELETE | Method::TRACE
        )
        && !parts.headers.contains_key(CONTENT_LENGTH)
}

/// The body after its first frame; `None` when it turned out to be empty.
async fn after_first_frame(exchange: &Exchange, mut body: Incoming) -> Option<Rc<RequestBody>> {
    let mut first = None;
    // One that waits for our answer first is served after this time.
    match tokio::time::timeout(FIRST_FRAME, body.frame()).await {
        Ok(Some(Ok(frame))) => {
            let empty = frame.data_ref().is_some_and(bytes::Bytes::is_empty);
            if empty && body.is_end_stream() {
                return None;
            }
            first = Some(frame);
        }
        // How it ended is said again to the one who reads it.
        Ok(Some(Err(_)) | None) => {
            if body.is_end_stream() {
                return None;
            }
        }
        Err(_) => {}
    }
    Some(RequestBody::new(RequestBodyParts {
        incoming: body,
        first,
        multiplexed: true,
        clock: exchange.worker.clock,
        keep_limit: exchange.route.settings.service.retry.max_body,
        max_bytes: exchange.snapshot.config.limits.max_body_bytes,
    }))
}

/// The app must not get an answer: it broke its own request off.
#[derive(Debug, thiserror::Error)]
#[error("the app broke its request off")]
pub struct Unanswered;

/// The answer's head and body.
fn deliver(
    exchange: Exchange,
    delivery: Delivery,
    asked: &Asked,
    on_upgrade: Option<hyper::upgrade::OnUpgrade>,
) -> Response<ProxyBody> {
    let Exchange {
        worker,
        route,
        guard,
        timer,
        body,
        ..
    } = exchange;
    let Delivery {
        mut response,
        mut carrier,
        attempt,
        class,
        kind,
        idle,
    } = delivery;
    let status = response.status();
    let switched = status == StatusCode::SWITCHING_PROTOCOLS;
    let framing = headers::clean_response(response.headers_mut(), asked.trailers, switched);
    if framing == Framing::Doubtful
        && let Carrier::Http1(lent) = &mut carrier
    {
        lent.spend();
    }
    if switched && let Some(app) = on_upgrade {
        let instance = hyper::upgrade::on(&mut response);
        attempt.finish(OutcomeClass::Success, None);
        drop(carrier);
        let idle = stack::tunnel_idle(&route.settings.service);
        tokio::task::spawn_local(tunnel::run(worker, app, instance, idle, guard));
        let (parts, _incoming) = response.into_parts();
        return finish_head(Response::from_parts(parts, ProxyBody::Empty), asked);
    }
    if status == StatusCode::NO_CONTENT {
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    let unsent = body.filter(|b| b.written_at().is_none());
    let (parts, incoming) = response.into_parts();
    let body = UpstreamBody::wrap(UpstreamBodyParts {
        inner: incoming,
        carrier,
        request_body: unsent,
        attempt,
        request: guard,
        class,
        kind,
        grpc: asked.grpc && !asked.head,
        idle,
        timer,
    });
    finish_head(Response::from_parts(parts, body), asked)
}

fn finish_head(mut response: Response<ProxyBody>, asked: &Asked) -> Response<ProxyBody> {
    // hyper speaks HTTP/1.0 to an app that does; an answer of that version would also end the
    // connection of one that asked to keep it.
    *response.version_mut() = asked.version.max(Version::HTTP_11);
    let headers = response.headers_mut();
    match asked.via {
        Via::Response | Via::Both => {
            headers::append_to_list(headers, http::header::VIA, &VIA_ENTRY);
        }
        Via::None => {}
    }
    if let Some(id) = &asked.request_id {
        headers.entry(REQUEST_ID).or_insert_with(|| id.clone());
    }
    response
}

fn refuse(
    mut guard: RequestGuard,
    refusal: &Refusal,
    asked: &Asked,
    route: Option<&Arc<Route>>,
) -> Result<Response<ProxyBody>, Unanswered> {
    guard.refused(refusal.reason);
    if refusal.reason == Reason::ClientClosed {
        return Err(Unanswered);
    }
    let context = ReplyContext {
        grpc: asked.grpc,
        upstream: route.map(|r| &*r.upstream.name),
        request_id: asked.request_id.as_ref(),
        version: asked.version,
    };
    Ok(reply::refusal(refusal, &context))
}

fn own_port(snapshot: &Snapshot, name: &str) -> Result<Found, Missed> {
    snapshot
        .table
        .by_name(name)
        .map(|route| Found {
            route,
            rule: Rule::Port,
            strip: 0,
        })
        .ok_or_else(|| Missed {
            name: name.to_owned(),
            rule: Rule::Port,
            strip: 0,
        })
}

/// A name that is not in the table may be known to the default registry.
async fn look_up(worker: &Worker, snapshot: &Snapshot, missed: &Missed) -> Result<Found, Refusal> {
    let Missed { name, rule, strip } = missed;
    let config = &snapshot.config;
    if !name.is_empty() && config.auto_discover && config.default_registry.is_some() {
        let (reply, answered) = tokio::sync::oneshot::channel();
        let lookup = Lookup {
            name: name.clone(),
            reply,
        };
        let asked = worker.shared.lookups.send(lookup).await.is_ok();
        let answer = tokio::time::timeout(config.discovery_wait, answered).await;
        match answer {
            Ok(Ok(LookupAnswer::Route(route))) => {
                return Ok(Found {
                    route,
                    rule: *rule,
                    strip: *strip,
                });
            }
            Ok(Ok(LookupAnswer::Unknown)) => {}
            Ok(Ok(LookupAnswer::NotAnswered { registry })) => {
                return Err(not_answered(name, &registry));
            }
            Ok(Err(_)) | Err(_) if asked => {
                let registry = config.default_registry.as_deref().unwrap_or_default();
                return Err(not_answered(name, registry));
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }
    let nearest = snapshot.table.nearest(name);
    let message = if name.is_empty() {
        "the request names no service: put its name into Host, the first path segment or \
         x-outrigger-upstream"
            .to_owned()
    } else if nearest.is_empty() {
        format!("no service is called {name}; see `outrigger upstreams`")
    } else {
        let names: Vec<&str> = nearest.iter().map(|n| &**n).collect();
        format!("no service is called {name}; near: {}", names.join(", "))
    };
    Err(Refusal::new(Reason::NoRoute, message))
}

fn not_answered(name: &str, registry: &str) -> Refusal {
    let message = format!(
        "whether {name} exists is not known: the registry {registry} has not answered; see \
         `outrigger registries`"
    );
    let mut refusal = Refusal::new(Reason::NoInstances, message);
    refusal.retry_after = Some(2);
    refusal
}

/// Adds what the proxy adds, after everything hop-by-hop is gone.
fn dress(
    worker: &Worker,
    connection: &Connection,
    service: &Service,
    headers: &mut HeaderMap,
    asked: &Asked,
    prefix: Option<&HeaderValue>,
    host: Option<&HeaderValue>,
) {
    headers::append_to_list(headers, HOP, &worker.shared.hop);
    if let Some(id) = &asked.request_id {
        headers.insert(REQUEST_ID, id.clone());
    }
    if let Some(prefix) = prefix {
        headers::append_to_list(headers, FORWARDED_PREFIX, prefix);
    }
    if service.via == Via::Both {
        headers::append_to_list(headers, http::header::VIA, &VIA_ENTRY);
    }
    if service.forwarded_headers == ForwardedHeaders::Append {
        let peer = connection.peer.map(|p| p.ip().to_canonical().to_string());
        if let Some(peer) = peer.and_then(|p| HeaderValue::try_from(p).ok()) {
            headers::append_to_list(headers, FORWARDED_FOR, &peer);
        }
        if let Some(host) = host {
            headers::append_to_list(headers, FORWARDED_HOST, host);
        }
        headers::append_to_list(headers, FORWARDED_PROTO, &HeaderValue::from_static("http"));
    }
}

/// Host as it is passed on; `None` when it is to be the service's name. The head was checked: an
/// absolute target or `:authority` comes before Host.
fn passed_host(
    service: &Service,
    parts: &http::request::Parts,
    loopback: bool,
) -> Option<HeaderValue> {
    if loopback && service.host_header == HostHeader::Auto {
        return None;
    }
    let host = parts.headers.get(HOST);
    let text = match parts.uri.authority() {
        Some(authority) => authority.as_str(),
        None => host?.to_str().ok()?,
    };

    // The header's own value where it says the same, without a copy.
    match host {
        Some(value) if value.as_bytes() == text.as_bytes() => Some(value.clone()),
        Some(_) | None => HeaderValue::from_str(text).ok(),
    }
}

/// The target without the service's prefix, and the prefix.
fn stripped_target(uri: &http::Uri, strip: usize) -> Option<(PathAndQuery, Option<HeaderValue>)> {
    let Some(whole) = uri.path_and_query() else {
        return Some((PathAndQuery::from_static("/"), None));
    };
    if strip == 0 {
        return Some((whole.clone(), None));
    }
    let (prefix, rest) = whole.as_str().split_at_checked(strip)?;
    let target = match rest.as_bytes().first() {
        Some(b'/') => PathAndQuery::try_from(rest).ok()?,
        Some(_) => PathAndQuery::try_from(format!("/{rest}")).ok()?,
        None => PathAndQuery::from_static("/"),
    };
    Some((target, Some(HeaderValue::from_str(prefix).ok()?)))
}

fn client_deadline(headers: &HeaderMap, started: Timestamp) -> Option<Timestamp> {
    let value = headers.get(GRPC_TIMEOUT)?;
    parse_grpc_timeout(value.as_bytes()).map(|left| started + left)
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| {
        value
            .as_bytes()
            .strip_prefix(b"application/grpc")
            .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
    })
}

fn wants_upgrade(request: &Request<Incoming>, seen: Seen) -> bool {
    seen.upgrade()
        && request.version() == Version::HTTP_11
        && headers::list_has(request.headers(), &http::header::CONNECTION, "upgrade")
        // A change of HTTP version is our own business, not the instance's.
        && !headers::list_has(request.headers(), &http::header::UPGRADE, "h2c")
}

fn request_id(worker: &Worker, headers: &HeaderMap, seen: Seen) -> Option<HeaderValue> {
    if seen.request_id() {
        return headers.get(REQUEST_ID).cloned();
    }
    const fn hex(nibble: u8) -> u8 {
        if nibble < 10 {
            b'0' + nibble
        } else {
            b'a' + nibble - 10
        }
    }
    let mut text = [b'0'; 32];
    let random = worker.rng.borrow_mut().u128(..).to_le_bytes();
    for (pair, byte) in text.chunks_exact_mut(2).zip(random) {
        let [high, low] = pair else { continue };
        *high = hex(byte >> 4);
        *low = hex(byte & 0xf);
    }
    let mut value = HeaderValue::from_bytes(&text).ok()?;
    // Different each time: the header tables of HTTP/2 must not keep it.
    value.set_sensitive(true);
    Some(value)
}

fn note(
    snapshot: &Snapshot,
    parts: &http::request::Parts,
    seen: Seen,
    request_id: Option<&HeaderValue>,
) -> Option<RequestNote> {
    let settings = &snapshot.config.telemetry.access_log;
    if settings.mode == AccessLogMode::None {
        return None;
    }
    Some(RequestNote {
        method: parts.method.clone(),
        path: settings.log_paths.then(|| parts.uri.path().to_owned()),
        host: parts
            .headers
            .get(HOST)
            .cloned()
            .or_else(|| HeaderValue::from_str(parts.uri.authority()?.as_str()).ok()),
        request_id: request_id.cloned(),
        traceparent: if seen.traceparent() {
            parts.headers.get(TRACEPARENT).cloned()
        } else {
            None
        },
    })
}

fn app_protocol(version: Version, grpc: bool) -> AppProtocol {
    if grpc {
        AppProtocol::Grpc
    } else if version == Version::HTTP_2 {
        AppProtocol::Http2
    } else {
        AppProtocol::Http1
    }
}

fn version_text(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}
