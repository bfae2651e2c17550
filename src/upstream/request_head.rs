//! Writes a request's head in the form an instance's protocol wants: origin form and Host for
//! HTTP/1.1, scheme and authority for HTTP/2.

use std::cell::RefCell;

use http::header::{HOST, HeaderMap, HeaderValue};
use http::uri::{PathAndQuery, Scheme, Uri};
use http::{Method, Request, Version};
use http_body::Body;

use super::headers::GRPC_TIMEOUT;
use super::http1::{Call, Connection};
use super::request_body::AttemptBody;
use crate::clock::Timestamp;
use crate::config::types::{HostHeader, Service};
use crate::endpoint::instance::Instance;
use crate::policy::limits;
use crate::protocol::http1::request::{BodyLength, RequestLine};
use crate::router::Route;

/// Host towards the instances of a service; `asked` is the one the app gave, `None` when it is to be
/// the service's. Where it is to be each instance's own, the service's holds the place.
pub fn host_value(service: &Service, route: &Route, asked: Option<HeaderValue>) -> HeaderValue {
    let own = || route.settings.host.clone();
    match &service.host_header {
        HostHeader::Auto | HostHeader::Keep => asked.unwrap_or_else(own),
        HostHeader::Service | HostHeader::Instance => own(),
        HostHeader::Text(text) => HeaderValue::from_str(text).unwrap_or_else(|_| own()),
    }
}

/// Writes the request's head in the form of the instance's protocol.
#[derive(Debug)]
pub struct RequestHead<'a> {
    /// The method.
    pub method: &'a Method,
    /// Path and query.
    pub target: &'a PathAndQuery,
    /// Cleaned, with Host.
    pub headers: &'a RefCell<HeaderMap>,
    /// Host is each instance's own address.
    pub own_host: bool,
    /// The app's own deadline.
    pub client: Option<Timestamp>,
}

impl RequestHead<'_> {
    /// A call of HTTP/1.1 on `connection`. `spare`: an empty map for the response's fields.
    pub fn call(
        &self,
        connection: &mut Connection,
        instance: &Instance,
        body: Option<AttemptBody>,
        now: Timestamp,
        spare: HeaderMap,
    ) -> Call {
        let timeout = self.client.and_then(|client| grpc_timeout(client, now));
        let line = RequestLine {
            method: self.method,
            target: self.target,
            headers: &self.headers.borrow(),
            host: self.own_host.then_some(&instance.host_value),
            instead: timeout.as_ref().map(|value| (GRPC_TIMEOUT, value)),
        };
        let body = body.map(|body| {
            let length = match body.size_hint().exact() {
                Some(length) => BodyLength::Known(length),
                None => BodyLength::Unknown,
            };
            (body, length)
        });
        Call::new(connection, &line, body, spare)
    }

    /// The request of HTTP/2 for `instance` at `now`, with this body.
    pub fn build(
        &self,
        instance: &Instance,
        body: AttemptBody,
        now: Timestamp,
    ) -> Option<Request<AttemptBody>> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = self.headers.borrow().clone();
        let headers = request.headers_mut();
        if let Some(client) = self.client {
            headers.insert(GRPC_TIMEOUT, grpc_timeout(client, now)?);
        }
        let authority = headers
            .remove(HOST)
            .filter(|_| !self.own_host)
            .and_then(|host| http::uri::Authority::try_from(host.as_bytes()).ok())
            .unwrap_or_else(|| instance.authority.clone());
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(authority);
        parts.path_and_query = Some(self.target.clone());
        *request.uri_mut() = Uri::from_parts(parts).ok()?;
        *request.version_mut() = Version::HTTP_2;
        Some(request)
    }
}

/// What is left of the app's deadline.
fn grpc_timeout(client: Timestamp, now: Timestamp) -> Option<HeaderValue> {
    HeaderValue::try_from(limits::format_grpc_timeout(client.since(now))).ok()
}
