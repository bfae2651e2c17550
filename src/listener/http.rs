//! Serves the requests of one connection: check the head, find the route, clean the headers, run
//! the policy stack, write the answer's head. Answers back through `listener/reply.rs`.
//! Next: `listener/head.rs`, `router.rs`, `policy/stack.rs`.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CONTENT_LENGTH, HOST, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;

use super::connection::ConnectionState;
use super::dress::{dress, host_for_rules, passed_host, stripped_target};
use super::facts::{
    app_protocol, client_deadline, content_length, is_grpc, note, request_id, version_text,
    wants_upgrade,
};
use super::first_frame::{after_first_frame, may_be_empty};
use super::head::{self, HeadLimits};
use super::lookup::{look_up, own_port};
use super::reply::{self, ReplyContext};
use super::request::RequestGuard;
use super::served::{mark_elsewhere, serve_fallback};
use crate::balancer::hash::key_of;
use crate::clock::Timestamp;
use crate::config::types::Via;
use crate::error::{Reason, Refusal};
use crate::metrics::cells::Limit;
use crate::outlier::classify::OutcomeClass;
use crate::policy::limits::RequestLimits;
use crate::policy::stack::{Course, Delivery, Exchange, Outcome};
use crate::router::{self, Authority, Found, Missed, Route, RouteIndex};
use crate::timer::Timer;
use crate::upstream::headers::{self, Framing, REQUEST_ID, Seen, VIA_ENTRY};
use crate::upstream::request_body::{RequestBody, RequestBodyParts};
use crate::upstream::request_head::host_value;
use crate::upstream::response_body::{ProxyBody, Source, UpstreamBody, UpstreamBodyParts};
use crate::upstream::tunnel;
use crate::worker::{DrainPhase, Snapshot, Worker};

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
pub(super) struct Asked {
    pub(super) version: Version,
    pub(super) grpc: bool,
    pub(super) head: bool,
    pub(super) trailers: bool,
    pub(super) request_id: Option<HeaderValue>,
    pub(super) via: Via,
    /// What stood in the request's head.
    pub(super) seen: Seen,
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
    /// As it came.
    host: Option<HeaderValue>,
    asked: Asked,
    guard: RequestGuard,
    started: Timestamp,
    /// `started` is now.
    at_once: bool,
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
    let started = connection.state.head_complete(worker.clock);
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
        seen,
    };
    let host = parts.headers.get(HOST).cloned();
    let note = note(
        &snapshot,
        &parts,
        seen,
        host.as_ref(),
        asked.request_id.as_ref(),
    );
    let most = snapshot.config.limits.max_header_bytes;
    let perhaps_too_large = parts.version < Version::HTTP_2
        && connection.state.head_at_most() > u64::try_from(most).unwrap_or(u64::MAX);
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
        max_header_bytes: perhaps_too_large.then_some(most),
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
                None if seen.own() => router::route(&snapshot.table, &parts, authority.as_ref()),
                None => router::route_unnamed(&snapshot.table, &parts, authority.as_ref()),
            };
            (found, loopback)
        }
        Err(refusal) => {
            if refusal.reason == Reason::TargetTooLong {
                worker.limit_hit(Limit::MaxTargetBytes);
            } else if refusal.reason == Reason::HeaderTooLarge {
                worker.limit_hit(Limit::MaxHeaderBytes);
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
        host,
        asked,
        guard,
        started,
        at_once: true,
    };
    Ok((admitted, found))
}

async fn look_up_first(
    mut admitted: Admitted,
    connection: Rc<Connection>,
    missed: Missed,
) -> Result<Response<ProxyBody>, Unanswered> {
    admitted.at_once = false;
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
            self.exchange.moment = None;
        }
        let worker = Rc::clone(&self.exchange.worker);
        let outcome = {
            let mut running = std::pin::pin!(self.exchange.run());
            std::future::poll_fn(|cx| {
                let polled = running.as_mut().poll(cx);
                if polled.is_pending() && worker.phase() == DrainPhase::Cut {
                    return Poll::Ready(draining());
                }
                polled
            })
            .await
        };
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
            Outcome::Served(served) => Ok(serve_fallback(exchange.guard, *served, &asked)),
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

/// The grace of a drain is over before an instance answered.
fn draining() -> Outcome {
    let mut refusal = Refusal::new(Reason::Draining, "Outrigger is shutting down");
    refusal.retry_after = Some(1);
    Outcome::Refused(refusal)
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
        host: came,
        mut asked,
        mut guard,
        started,
        at_once,
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
    host_for_rules(service, &mut parts);
    let rule = if service.rules.is_empty() {
        RouteIndex::NONE
    } else {
        route.rule(&parts.method, target.path(), &parts.headers)
    };
    guard.on_route(route.state(rule));
    let service = route.service(rule);
    let host = passed_host(service, &parts.uri, came.as_ref(), loopback);
    let upgrade = on_upgrade.is_some();
    let source = connection.peer.map(|peer| peer.ip());
    let on = service.balancing.hash.as_ref();
    let hash_key = on.and_then(|on| key_of(on, &parts.headers, target.path(), source));
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
    if came.as_ref() != Some(&host) {
        parts.headers.insert(HOST, host);
    }
    if parts.version == Version::HTTP_2 {
        headers::join_cookies(&mut parts.headers, seen);
    }
    let incoming = (!body.is_end_stream()).then_some(body);
    let awaits_first = incoming.is_some() && may_be_empty(&parts, service);
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
            headers: RefCell::new(parts.headers),
            body,
            time,
            moment: at_once.then_some(started),
            upgrade,
            source,
            hash_key,
            guard,
            course: Course::default(),
            rule,
            route: Arc::clone(&route),
        },
        asked,
        on_upgrade,
        incoming,
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
    let Delivery {
        mut response,
        mut source,
        attempt,
        class,
        kind,
        idle,
        at,
        fallback,
    } = delivery;
    let status = response.status();
    let switched = status == StatusCode::SWITCHING_PROTOCOLS;
    let (framing, seen) = headers::clean_response(response.headers_mut(), asked.trailers, switched);
    if framing == Framing::Doubtful
        && let Source::Http1(lent, _) = &mut source
    {
        lent.spend();
    }
    let copy = if exchange.route.keeps_answers {
        exchange.copying(&response, at, fallback.is_none())
    } else {
        None
    };
    let Exchange {
        worker,
        mut guard,
        timer,
        body,
        headers,
        ..
    } = exchange;
    worker.keep_headers(headers.into_inner());
    if let Some(condition) = fallback {
        mark_elsewhere(&mut guard, condition, response.headers_mut());
    }
    if switched
        && let Some(app) = on_upgrade
        && let Source::Http1(lent, _) = source
    {
        attempt.finish(OutcomeClass::Success, None);
        guard.leave_place();
        if let Some(instance) = lent.into_raw() {
            tokio::task::spawn_local(tunnel::run(worker, app, instance, idle, guard));
        }
        return finish_head(response.map(|()| ProxyBody::Empty), seen, asked);
    }
    if status == StatusCode::NO_CONTENT {
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    let unsent = body.filter(|b| b.written_at().is_none());
    let body = UpstreamBody::wrap(UpstreamBodyParts {
        source,
        request_body: unsent,
        attempt,
        request: guard,
        class,
        kind,
        grpc: asked.grpc && !asked.head,
        idle,
        timer,
        at,
        copy,
    });
    finish_head(response.map(|()| body), seen, asked)
}

pub(super) fn finish_head(
    mut response: Response<ProxyBody>,
    seen: Seen,
    asked: &Asked,
) -> Response<ProxyBody> {
    // hyper speaks HTTP/1.0 to an app that does; an answer of that version would also end the
    // connection of one that asked to keep it.
    *response.version_mut() = asked.version.max(Version::HTTP_11);
    let headers = response.headers_mut();
    match asked.via {
        Via::Response | Via::Both => {
            headers::append_to_list(headers, seen.via(), http::header::VIA, &VIA_ENTRY);
        }
        Via::None => {}
    }
    if let Some(id) = &asked.request_id {
        if seen.request_id() {
            headers.entry(REQUEST_ID).or_insert_with(|| id.clone());
        } else {
            headers.append(REQUEST_ID, id.clone());
        }
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
