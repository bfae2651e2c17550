//! Serves the requests of one connection: check the head, find the route, clean the headers, run
//! the policy stack, write the answer's head. Answers back through `listener/reply.rs`.
//! Next: `listener/head.rs`, `router.rs`, `policy/stack.rs`.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Version};
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
use crate::policy::stack::{self, Delivery, Exchange, Outcome};
use crate::router::{self, Authority, Found, Missed, Route, Rule};
use crate::timer::Timer;
use crate::upstream::headers::{
    self, FORWARDED_FOR, FORWARDED_HOST, FORWARDED_PREFIX, FORWARDED_PROTO, Framing, GRPC_TIMEOUT,
    HOP, REQUEST_ID, Seen, VIA_ENTRY,
};
use crate::upstream::request_body::RequestBody;
use crate::upstream::response_body::{Carrier, ProxyBody, UpstreamBody, UpstreamBodyParts};
use crate::upstream::tunnel;
use crate::worker::{DrainPhase, Lookup, LookupAnswer, Snapshot, Worker};

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

/// Serves one request. Every way out is a response or, when the app must not get one, an error.
pub async fn serve(
    worker: Rc<Worker>,
    connection: Rc<Connection>,
    mut request: Request<Incoming>,
) -> Result<Response<ProxyBody>, Unanswered> {
    let started = worker.clock.now();
    let snapshot = worker.snapshot();
    let on_upgrade = wants_upgrade(&request).then(|| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    let grpc = is_grpc(&parts.headers);
    let seen = Seen::scan(&parts.headers);
    let mut asked = Asked {
        version: parts.version,
        grpc,
        head: parts.method == Method::HEAD,
        trailers: parts.version == Version::HTTP_2,
        request_id: request_id(&worker, &parts.headers, seen),
        via: Via::None,
    };
    let note = note(&snapshot, &parts, asked.request_id.as_ref());
    let mut guard = RequestGuard::new(
        &worker,
        &snapshot,
        note,
        app_protocol(parts.version, grpc),
        version_text(parts.version),
        started,
        Arc::clone(&connection.state),
    );
    let limits = &snapshot.config.limits;
    let head_limits = HeadLimits {
        max_target_bytes: limits.max_target_bytes,
        browser_guard: snapshot.config.browser_guard,
        hop: worker.shared.hop.as_bytes(),
    };
    let authority = match head::check(&parts, seen, &head_limits) {
        Ok(authority) => authority,
        Err(refusal) => {
            if refusal.reason == Reason::TargetTooLong {
                worker.limit_hit(Limit::MaxTargetBytes);
            }
            return refuse(guard, &refusal, &asked, None);
        }
    };
    if *worker.shared.drain.borrow() == DrainPhase::Cut {
        let mut refusal = Refusal::new(Reason::Draining, "Outrigger is shutting down");
        refusal.retry_after = Some(1);
        return refuse(guard, &refusal, &asked, None);
    }
    let found = match &connection.service {
        Some(name) => own_port(&snapshot, name),
        None => router::route(&snapshot.table, &parts, authority.as_ref()),
    };
    let found = match found {
        Ok(found) => found,
        Err(missed) => match look_up(&worker, &snapshot, &missed).await {
            Ok(found) => found,
            Err(refusal) => return refuse(guard, &refusal, &asked, None),
        },
    };
    let route = found.route;
    let service = &route.settings.service;
    guard.routed(&route);
    asked.via = service.via;
    let too_long = limits.max_body_bytes > 0
        && content_length(&parts.headers).is_some_and(|length| length > limits.max_body_bytes);
    if too_long {
        worker.limit_hit(Limit::MaxBodyBytes);
        let refusal = Refusal::new(
            Reason::BodyTooLarge,
            format!(
                "the request body is larger than {} bytes",
                limits.max_body_bytes
            ),
        );
        return refuse(guard, &refusal, &asked, Some(&route));
    }
    let client = grpc
        .then(|| client_deadline(&parts.headers, started))
        .flatten();
    if client.is_some_and(|end| end <= started) {
        let refusal = Refusal::new(Reason::RequestTimeout, "the deadline had passed on arrival");
        return refuse(guard, &refusal, &asked, Some(&route));
    }
    let host = passed_host(service, authority.as_ref(), &parts.headers);
    let upgrade = on_upgrade.is_some();
    asked.trailers |= headers::clean_request(&mut parts.headers, seen, upgrade);
    let (target, prefix) = match stripped_target(&parts.uri, found.strip) {
        Some(target) => target,
        None => {
            let refusal =
                Refusal::new(Reason::BadRequest, "the request target cannot be forwarded");
            return refuse(guard, &refusal, &asked, Some(&route));
        }
    };
    dress(
        &worker,
        &connection,
        service,
        &mut parts.headers,
        &asked,
        prefix.as_ref(),
        host.as_ref(),
    );
    parts.headers.remove(HOST);
    parts.headers.remove(TRANSFER_ENCODING);
    if parts.version == Version::HTTP_2 {
        headers::join_cookies(&mut parts.headers, seen);
    }
    let body = (!http_body::Body::is_end_stream(&body)).then(|| {
        RequestBody::new(
            body,
            worker.clock,
            service.retry.max_body,
            limits.max_body_bytes,
        )
    });
    let time = RequestLimits::new(
        &service.timeout,
        service.retry.max_attempts,
        grpc,
        client,
        started,
    );
    let exchange = Exchange {
        timer: Timer::new(worker.clock),
        worker: Rc::clone(&worker),
        snapshot: Arc::clone(&snapshot),
        route: Arc::clone(&route),
        method: parts.method,
        target,
        headers: parts.headers,
        host,
        body,
        grpc,
        time,
        upgrade,
        guard,
    };
    match exchange.run().await {
        Outcome::Answer(delivery) => Ok(answer(&worker, *delivery, &asked, on_upgrade, &route)),
        Outcome::Refused(refusal, guard) => refuse(guard, &refusal, &asked, Some(&route)),
    }
}

/// The app must not get an answer: it broke its own request off.
#[derive(Debug, thiserror::Error)]
#[error("the app broke its request off")]
pub struct Unanswered;

/// The answer's head and body.
fn answer(
    worker: &Rc<Worker>,
    delivery: Delivery,
    asked: &Asked,
    on_upgrade: Option<hyper::upgrade::OnUpgrade>,
    route: &Arc<Route>,
) -> Response<ProxyBody> {
    let Delivery {
        mut response,
        mut carrier,
        attempt,
        class,
        kind,
        guard,
        timer,
        body,
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
        tokio::task::spawn_local(tunnel::run(Rc::clone(worker), app, instance, idle, guard));
        let (parts, _incoming) = response.into_parts();
        return finish_head(Response::from_parts(parts, ProxyBody::Empty), asked);
    }
    if status == StatusCode::NO_CONTENT {
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    let unsent = body.filter(|b| b.written_at().is_none());
    let (parts, incoming) = response.into_parts();
    let body = UpstreamBody::new(UpstreamBodyParts {
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
    *response.version_mut() = asked.version;
    let headers = response.headers_mut();
    match asked.via {
        Via::Response | Via::Both => {
            headers::append_to_list(headers, http::header::VIA, &VIA_ENTRY);
        }
        Via::None => {}
    }
    if let Some(id) = &asked.request_id
        && !headers.contains_key(REQUEST_ID)
    {
        headers.insert(REQUEST_ID, id.clone());
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
    headers.insert(HOP, worker.shared.hop.clone());
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

/// Host as it is passed on; `None` when it is to be the service's name.
fn passed_host(
    service: &Service,
    authority: Option<&Authority<'_>>,
    headers: &HeaderMap,
) -> Option<HeaderValue> {
    let authority = authority?;
    if service.host_header == HostHeader::Auto && authority.is_loopback() {
        return None;
    }
    // The header's own value where it says the same, without a copy.
    match headers.get(HOST) {
        Some(value) if value.as_bytes() == authority.text().as_bytes() => Some(value.clone()),
        Some(_) | None => HeaderValue::from_str(authority.text()).ok(),
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

fn wants_upgrade(request: &Request<Incoming>) -> bool {
    request.version() == Version::HTTP_11
        && request.headers().contains_key(http::header::UPGRADE)
        && headers::list_has(request.headers(), &http::header::CONNECTION, "upgrade")
        // A change of HTTP version is our own business, not the instance's.
        && !headers::list_has(request.headers(), &http::header::UPGRADE, "h2c")
}

fn request_id(worker: &Worker, headers: &HeaderMap, seen: Seen) -> Option<HeaderValue> {
    if seen.request_id() {
        return headers.get(REQUEST_ID).cloned();
    }
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0_u8; 32];
    let random: u128 = worker.rng.borrow_mut().u128(..);
    for (i, byte) in text.iter_mut().enumerate() {
        let nibble = usize::try_from((random >> (i * 4)) & 0xf).unwrap_or(0);
        *byte = HEX.get(nibble).copied().unwrap_or(b'0');
    }
    HeaderValue::from_bytes(&text).ok()
}

fn note(
    snapshot: &Snapshot,
    parts: &http::request::Parts,
    request_id: Option<&HeaderValue>,
) -> Option<RequestNote> {
    let settings = &snapshot.config.telemetry.access_log;
    if settings.mode == AccessLogMode::None {
        return None;
    }
    Some(RequestNote {
        method: parts.method.clone(),
        path: settings.log_paths.then(|| parts.uri.path().to_owned()),
        host: parts.headers.get(HOST).cloned(),
        request_id: request_id.cloned(),
        traceparent: parts.headers.get("traceparent").cloned(),
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
