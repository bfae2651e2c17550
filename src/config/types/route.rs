//! The runtime form of `routes`: some requests of a service with settings of their own.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method};

use super::Service;

/// One item of `routes`; the first that matches holds.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteRule {
    /// Label `route`, and `UPSTREAM/NAME` for operators.
    pub name: Arc<str>,
    /// Which requests.
    pub matching: RouteMatch,
    /// The whole service with this route's settings put in place; it has no rules itself.
    pub service: Arc<Service>,
}

/// `match`: all that is written must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteMatch {
    /// Of the target as the instance sees it, without the query.
    pub path: Option<PathMatch>,
    /// Any of them; empty: every method.
    pub methods: Vec<Method>,
    /// Each of them.
    pub headers: Vec<HeaderMatch>,
}

/// `path`, `path_prefix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// Exactly this.
    Exact(Arc<str>),
    /// This, or this with further segments.
    Prefix(Arc<str>),
}

/// One entry of `headers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Its name.
    pub name: HeaderName,
    /// One of its lines is this; `None`: it is there.
    pub value: Option<HeaderValue>,
}
