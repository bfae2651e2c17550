//! Writes a request's head in the form an instance's protocol wants: origin form and Host for
//! HTTP/1.1, scheme and authority for HTTP/2.

use std::cell::RefCell;

use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::uri::{PathAndQuery, Scheme, Uri};
use http::{Method, Request, Version};
use http_body::Body;

use super::headers::GRPC_TIMEOUT;
use super::request_body::AttemptBody;
use crate::clock::Timestamp;
use crate::config::types::{HostHeader, Service};
use crate::endpoint::instance::Instance;
use crate::policy::limits;
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
    /// The instance speaks HTTP/2.
    pub http2: bool,
    /// The app's own deadline.
    pub client: Option<Timestamp>,
    /// The request has a body.
    pub has_body: bool,
}

impl RequestHead<'_> {
    /// The request for `instance` at `now`, with this body.
    pub fn build(
        &self,
        instance: &Instance,
        body: AttemptBody,
        now: Timestamp,
    ) -> Option<Request<AttemptBody>> {
        let known = body.size_hint().exact();
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        // The first map goes, its copy stays: only the first has room to grow, which hyper uses again
        // for the response's fields.
        let copy = self.headers.borrow().clone();
        *request.headers_mut() = self.headers.replace(copy);
        let headers = request.headers_mut();
        if let Some(client) = self.client {
            let left = limits::format_grpc_timeout(client.since(now));
            headers.insert(GRPC_TIMEOUT, HeaderValue::try_from(left).ok()?);
        }
        if self.http2 {
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
            return Some(request);
        }
        if self.own_host {
            headers.insert(HOST, instance.host_value.clone());
        }
        if self.has_body && known.is_none() && !headers.contains_key(CONTENT_LENGTH) {
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let expects_length = matches!(*self.method, Method::POST | Method::PUT | Method::PATCH);
        if !self.has_body && expects_length && !headers.contains_key(CONTENT_LENGTH) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        let mut parts = http::uri::Parts::default();
        parts.path_and_query = Some(self.target.clone());
        *request.uri_mut() = Uri::from_parts(parts).ok()?;
        *request.version_mut() = Version::HTTP_11;
        Some(request)
    }
}
