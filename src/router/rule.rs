//! Which of a service's `routes` a request belongs to: the first that matches. Pure.

use http::{HeaderMap, Method};

use crate::config::types::{HeaderMatch, PathMatch, RouteMatch};

/// One of a service's routes, or none of them. Zero is the service itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteIndex(u8);

impl RouteIndex {
    /// The service itself: no route matched.
    pub const NONE: Self = Self(0);

    /// Item `n` of `routes`.
    pub fn of_item(n: usize) -> Self {
        Self(u8::try_from(n.saturating_add(1)).unwrap_or(0))
    }

    /// Its place in `routes`.
    pub fn item(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }

    /// Zero for the service itself, else place + 1.
    pub fn slot(self) -> usize {
        usize::from(self.0)
    }
}

impl PathMatch {
    /// A prefix; a slash at its end says nothing.
    pub fn prefix(text: std::sync::Arc<str>) -> Self {
        match text.strip_suffix('/') {
            Some(short) => Self::Prefix(short.into()),
            None => Self::Prefix(text),
        }
    }

    /// Whether `path` is `prefix` or has it as its first segments.
    pub fn is_under(path: &str, prefix: &str) -> bool {
        path.strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => path == &**exact,
            Self::Prefix(prefix) => Self::is_under(path, prefix),
        }
    }
}

impl HeaderMatch {
    fn matches(&self, headers: &HeaderMap) -> bool {
        let mut lines = headers.get_all(&self.name).iter();
        match &self.value {
            None => lines.next().is_some(),
            Some(value) => lines.any(|line| line == value),
        }
    }
}

impl RouteMatch {
    /// Whether all that is written holds. `path`: as the instance sees it, without the query.
    pub fn matches(&self, method: &Method, path: &str, headers: &HeaderMap) -> bool {
        self.path.as_ref().is_none_or(|p| p.matches(path))
            && (self.methods.is_empty() || self.methods.contains(method))
            && self.headers.iter().all(|h| h.matches(headers))
    }
}

/// For people, in the form of the file.
impl std::fmt::Display for RouteMatch {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        match &self.path {
            Some(PathMatch::Exact(path)) => parts.push(format!("path {path}")),
            Some(PathMatch::Prefix(path)) if path.is_empty() => parts.push("path_prefix /".into()),
            Some(PathMatch::Prefix(path)) => parts.push(format!("path_prefix {path}")),
            None => {}
        }
        if !self.methods.is_empty() {
            let methods: Vec<&str> = self.methods.iter().map(Method::as_str).collect();
            parts.push(methods.join("|"));
        }
        for header in &self.headers {
            let value = header.value.as_ref().and_then(|v| v.to_str().ok());
            parts.push(format!("{}: {}", header.name, value.unwrap_or("*")));
        }
        if parts.is_empty() {
            return out.write_str("every request");
        }
        out.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    fn prefix(path: &str) -> RouteMatch {
        RouteMatch {
            path: Some(PathMatch::prefix(path.into())),
            ..RouteMatch::default()
        }
    }

    #[test]
    fn a_prefix_ends_at_a_segment() {
        let none = HeaderMap::new();
        let rule = prefix("/articles/");
        for (path, want) in [
            ("/articles", true),
            ("/articles/", true),
            ("/articles/7", true),
            ("/articles7", false),
            ("/", false),
        ] {
            assert_eq!(rule.matches(&Method::GET, path, &none), want, "{path}");
        }
        assert!(prefix("/").matches(&Method::GET, "/anything", &none));
    }

    #[test]
    fn all_that_is_written_must_hold() {
        let mut rule = prefix("/a");
        rule.methods = vec![Method::GET, Method::HEAD];
        rule.headers = vec![HeaderMatch {
            name: HeaderName::from_static("x-tier"),
            value: Some(HeaderValue::from_static("gold")),
        }];
        let mut headers = HeaderMap::new();
        assert!(!rule.matches(&Method::GET, "/a", &headers));
        headers.append("x-tier", HeaderValue::from_static("iron"));
        headers.append("x-tier", HeaderValue::from_static("gold"));
        assert!(rule.matches(&Method::GET, "/a", &headers));
        assert!(!rule.matches(&Method::POST, "/a", &headers));
        assert_eq!(rule.to_string(), "path_prefix /a, GET|HEAD, x-tier: gold");
    }
}
