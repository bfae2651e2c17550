//! What is answered when an upstream cannot: the items of `fallback` in their order, outermost of
//! the policy stack. The failed attempts keep their outcomes; what is answered here is charged to
//! nobody. Boxed by the caller: nothing of it lies in the way of a request that goes well.
//! Next: `policy/fallback/cache.rs`, `policy/fallback/condition.rs`.

pub mod cache;
pub mod condition;
pub mod directives;
pub mod keep;
pub mod recent;
pub mod storable;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{AGE, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, WARNING};
use http::{HeaderMap, Method, Response, StatusCode};

use self::cache::{Hit, Key};
use self::keep::{Copying, Head};
use self::storable::Verdict;
use super::limits::RequestLimits;
use super::stack::{Course, Exchange, Outcome};
use crate::balancer::hash::key_of;
use crate::clock::Timestamp;
use crate::config::types::{
    Condition, Fallback, FallbackKind, HostHeader, LastGood, Service, StaticAnswer,
};
use crate::listener::lookup::look_up;
use crate::listener::request::Answered;
use crate::metrics::cells::FallbackSource;
use crate::router::{Missed, Route, Rule};
use crate::upstream::headers::REQUEST_ID;
use crate::upstream::request_head::host_value;
use crate::upstream::response_body::{self, ProxyBody};
use crate::upstream::route_state::RouteState;

/// An answer that no instance gave.
#[derive(Debug)]
pub struct Served {
    /// Its head.
    pub response: Response<()>,
    /// Its body.
    pub body: Bytes,
    /// Its code, where the call is gRPC.
    pub grpc: Option<u16>,
    /// Where it comes from.
    pub source: FallbackSource,
    /// What asked for it.
    pub condition: Condition,
}

impl Served {
    /// The response. `head`: the app asked for no body.
    pub fn into_response(self, head: bool) -> Response<ProxyBody> {
        let Self {
            mut response, body, ..
        } = self;
        let bodiless = matches!(
            response.status(),
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
        if self.grpc.is_some() || bodiless || (body.is_empty() && !head) {
            return response.map(|()| ProxyBody::Empty);
        }
        if head {
            let length = HeaderValue::from(body.len());
            response.headers_mut().insert(CONTENT_LENGTH, length);
            return response.map(|()| ProxyBody::Empty);
        }
        response.map(|()| ProxyBody::Own(Some(body)))
    }
}

impl Exchange {
    /// What of an outcome asks for a fallback.
    pub(super) fn wants_fallback(&self, outcome: &Outcome) -> Option<Condition> {
        let condition = match outcome {
            Outcome::Answer(answer) => {
                let head = &answer.response;
                let code = self
                    .grpc
                    .then(|| response_body::grpc_code(head.headers()))
                    .flatten();
                condition::of_head(head.status(), code)
            }
            Outcome::Refused(refusal) => condition::of_refusal(refusal.reason),
            Outcome::Served(_) => None,
        }?;
        let mut items = self.service().fallback.iter();
        items
            .any(|item| item.conditions.has(condition))
            .then_some(condition)
    }

    /// The first item that has something for this request; without one the outcome stays as it is.
    pub(super) async fn fall_back(&mut self, outcome: Outcome, condition: Condition) -> Outcome {
        if let Outcome::Answer(answer) = &outcome {
            // Should the app leave meanwhile.
            answer.judge_on_cancel();
        }
        self.moment = None;
        let items = Arc::clone(&self.service().fallback);
        for item in items.iter().filter(|i| i.conditions.has(condition)) {
            let found = match &item.kind {
                FallbackKind::Cache(settings) => self.last_good(settings, condition),
                FallbackKind::Static(answer) => self.always(answer, condition),
                FallbackKind::Upstream(name) => self.elsewhere(name, item, condition).await,
            };
            if let Some(found) = found {
                if let Outcome::Answer(answer) = outcome {
                    answer.attempt.finish(answer.class, answer.kind);
                }
                return found;
            }
        }
        outcome
    }

    fn served(
        &self,
        response: Response<()>,
        body: Bytes,
        source: FallbackSource,
        condition: Condition,
    ) -> Outcome {
        self.count_fallback(source);
        let code = response_body::grpc_code(response.headers());
        Outcome::Served(Box::new(Served {
            response,
            body,
            grpc: code.filter(|_| self.grpc),
            source,
            condition,
        }))
    }

    fn count_fallback(&self, source: FallbackSource) {
        let cells = &self.route.upstream.cells;
        cells.fallback(self.worker.index, source);
    }

    /// The last good answer to the same request.
    fn last_good(&self, settings: &LastGood, condition: Condition) -> Option<Outcome> {
        let safe = matches!(self.method, Method::GET | Method::HEAD);
        let headers = self.headers.borrow();
        if !safe
            || self.grpc
            || self.upgrade
            || self.body.is_some()
            || headers.contains_key(http::header::RANGE)
        {
            return None;
        }
        let (key, now) = (self.cache_key(&headers), self.now());
        let answers = &self.route.answers(self.rule).answers;
        let hit = answers.get(&key, &headers, settings, now)?;
        let response = marked(&hit);
        let body = hit.kept.body.clone();
        Some(self.served(response, body, FallbackSource::Cache, condition))
    }

    fn cache_key(&self, headers: &HeaderMap) -> Key {
        let host = headers.get(HOST).map(HeaderValue::as_bytes);
        Key::new(host.unwrap_or_default(), self.target.as_str())
    }

    /// The configured answer, in the form of the request's protocol.
    fn always(&self, answer: &StaticAnswer, condition: Condition) -> Option<Outcome> {
        let mut response = Response::new(());
        let body = if self.grpc {
            let grpc = answer.grpc.as_ref()?;
            let message = match &grpc.message {
                Some(message) => Arc::clone(message),
                None => {
                    let name = &self.route.upstream.name;
                    let why = condition.as_str();
                    Arc::from(format!("fallback: {name} cannot answer now ({why})"))
                }
            };
            *response.headers_mut() = crate::listener::reply::grpc_status(grpc.code, &message);
            Bytes::new()
        } else {
            let http = answer.http.as_ref()?;
            *response.status_mut() = http.status;
            if let Some(kind) = &http.content_type {
                response.headers_mut().insert(CONTENT_TYPE, kind.clone());
            }
            http.body.clone()
        };
        Some(self.served(response, body, FallbackSource::Static, condition))
    }

    /// The same request to another upstream, with its own settings but for its own `fallback`: one
    /// step, so that there is no loop. Nothing when it fails in one of the item's ways too.
    async fn elsewhere(
        &mut self,
        name: &Arc<str>,
        item: &Fallback,
        condition: Condition,
    ) -> Option<Outcome> {
        let other = self.find(name).await?;
        if Arc::ptr_eq(&other.upstream, &self.route.upstream)
            || self.body.as_ref().is_some_and(|b| !b.hold_for_replay())
        {
            return None;
        }
        let (route, rule, time) = (Arc::clone(&self.route), self.rule, self.time);
        let host = self.headers.borrow().get(HOST).cloned();
        let before = self.lead_to(other, host.as_ref());
        let mut outcome = self.run_attempts().await;
        let failed = match &mut outcome {
            Outcome::Answer(answer) => {
                let code = self
                    .grpc
                    .then(|| response_body::grpc_code(answer.response.headers()))
                    .flatten();
                let head = condition::of_head(answer.response.status(), code);
                answer.fallback = Some(condition);
                head.is_some_and(|head| item.conditions.has(head))
            }
            Outcome::Refused(_) | Outcome::Served(_) => true,
        };
        (self.route, self.rule) = (route, rule);
        if let Some(host) = host {
            self.headers.borrow_mut().insert(HOST, host);
        }
        if !failed {
            self.count_fallback(FallbackSource::Upstream);
            return Some(outcome);
        }
        if let Outcome::Answer(answer) = outcome {
            answer.attempt.finish(answer.class, answer.kind);
        }
        self.time = time;
        self.guard.back(before);
        None
    }

    /// By name, in the table or in the default registry.
    async fn find(&self, name: &Arc<str>) -> Option<Arc<Route>> {
        if let Some(route) = self.snapshot.table.by_name(name) {
            return Some(route);
        }
        let missed = Missed {
            name: name.to_string(),
            rule: Rule::Header,
            strip: 0,
            host: None,
        };
        let found = look_up(&self.worker, &self.snapshot, &missed).await;
        found.ok().map(|found| found.route)
    }

    /// From now on the request is one for `other`: its time, its host, no place and no attempts yet.
    fn lead_to(&mut self, other: Arc<Route>, host: Option<&HeaderValue>) -> Answered {
        let now = self.now();
        let rule = other.rule(&self.method, self.target.path(), &self.headers.borrow());
        let service = other.service(rule);
        let host = host_value(
            service,
            &other,
            asked_host(self.service(), &self.route, host),
        );
        let retry = &service.retry;
        self.time = RequestLimits::new(
            &service.timeout,
            retry.max_attempts,
            self.grpc,
            self.time.client(),
            now,
        );
        let headers = self.headers.borrow();
        let on = service.balancing.hash.as_ref();
        self.hash_key = on.and_then(|on| key_of(on, &headers, self.target.path(), self.source));
        drop(headers);
        other.upstream.touch(now);
        self.headers.borrow_mut().insert(HOST, host);
        (self.route, self.rule) = (other, rule);
        self.course = Course::default();
        self.guard.next_course()
    }

    /// What to do with an answer that is passed on, as far as caches go. `own`: it is no fallback's. What
    /// a change makes untrue is forgotten by all routes, whichever of them it went by.
    pub fn copying(
        &self,
        response: &Response<()>,
        now: Timestamp,
        own: bool,
    ) -> Option<Box<Copying>> {
        let settings = self.service().kept_answers().filter(|_| own);
        if self.grpc || (settings.is_none() && self.method.is_safe()) {
            return None;
        }
        let headers = self.headers.borrow();
        let (status, fields) = (response.status(), response.headers());
        let state = self.route.answers(self.rule);
        let forgotten = state.answers.forgotten();
        let mark = self.cache_mark(&headers, state);
        // Then every verdict would be to leave things as they are.
        let good = self.method == Method::GET && status == StatusCode::OK;
        if good && self.worker.recent.borrow().has(mark, forgotten, now) {
            return None;
        }
        let plain = self.body.is_none() && !self.upgrade;
        match storable::judge(&self.method, &headers, plain, status, fields) {
            Verdict::Leave => None,
            Verdict::Forget => {
                let key = self.cache_key(&headers);
                if self.method.is_safe() {
                    state.answers.forget(&key);
                } else {
                    for state in self.route.all_states() {
                        state.answers.forget(&key);
                    }
                }
                None
            }
            Verdict::Keep(terms) => {
                let settings = settings?;
                let key = self.cache_key(&headers);
                if let Some(until) = state.answers.kept_until(&key, &headers, &settings, now) {
                    if terms.vary.is_empty() {
                        self.worker.recent.borrow_mut().set(mark, forgotten, until);
                    }
                    return None;
                }
                let length = fields.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok());
                let head = Head {
                    status,
                    fields: storable::kept_fields(fields, &[REQUEST_ID]),
                    length: length.and_then(|text| text.parse().ok()),
                    terms,
                };
                Copying::begin(state, settings, key, head, now)
            }
        }
    }

    fn cache_mark(&self, headers: &HeaderMap, state: &Arc<RouteState>) -> u64 {
        let host = headers.get(HOST).map(HeaderValue::as_bytes);
        let owner = Arc::as_ptr(state).addr();
        let recent = self.worker.recent.borrow();
        recent.mark(owner, host.unwrap_or_default(), self.target.as_str())
    }
}

impl Service {
    /// Of its `fallback`, the cache.
    pub fn kept_answers(&self) -> Option<LastGood> {
        self.fallback.iter().find_map(|item| match &item.kind {
            FallbackKind::Cache(settings) => Some(*settings),
            FallbackKind::Upstream(_) | FallbackKind::Static(_) => None,
        })
    }
}

/// The Host that the app gave, as far as it is one; `None` when it is to be the service's.
fn asked_host(own: &Service, route: &Route, host: Option<&HeaderValue>) -> Option<HeaderValue> {
    match own.host_header {
        HostHeader::Auto | HostHeader::Keep => {
            host.filter(|host| **host != route.settings.host).cloned()
        }
        HostHeader::Service | HostHeader::Instance | HostHeader::Text(_) => None,
    }
}

/// The head of a kept answer, with its age and a warning (RFC 7234, 5.5: the texts are fixed).
fn marked(hit: &Hit) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = hit.kept.status;
    let headers = response.headers_mut();
    headers.clone_from(&hit.kept.fields);
    headers.insert(AGE, HeaderValue::from(hit.age.as_secs()));
    headers.append(
        WARNING,
        HeaderValue::from_static(if hit.is_stale() {
            "110 - \"Response is Stale\""
        } else {
            "111 - \"Revalidation Failed\""
        }),
    );
    response
}
