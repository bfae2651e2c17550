//! What the proxy adds to a request, and the parts of its head that it changes.

use http::header::{HOST, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;

use super::http::{Asked, Connection};
use crate::config::types::{ForwardedHeaders, HostHeader, Service, Via};
use crate::upstream::headers::{
    self, FORWARDED_FOR, FORWARDED_HOST, FORWARDED_PREFIX, FORWARDED_PROTO, HOP, REQUEST_ID,
    VIA_ENTRY,
};
use crate::worker::Worker;

/// Adds what the proxy adds, after everything hop-by-hop is gone.
pub(super) fn dress(
    worker: &Worker,
    connection: &Connection,
    service: &Service,
    headers: &mut HeaderMap,
    asked: &Asked,
    prefix: Option<&HeaderValue>,
    host: Option<&HeaderValue>,
) {
    let seen = asked.seen;
    headers::append_to_list(headers, seen.own(), HOP, &worker.shared.hop);
    if let Some(id) = &asked.request_id {
        if seen.request_id() {
            headers.insert(REQUEST_ID, id.clone());
        } else {
            headers.append(REQUEST_ID, id.clone());
        }
    }
    if let Some(prefix) = prefix {
        headers::append_to_list(headers, true, FORWARDED_PREFIX, prefix);
    }
    if service.via == Via::Both {
        headers::append_to_list(headers, seen.via(), http::header::VIA, &VIA_ENTRY);
    }
    if service.forwarded_headers == ForwardedHeaders::Append {
        let peer = connection.peer.map(|p| p.ip().to_canonical().to_string());
        if let Some(peer) = peer.and_then(|p| HeaderValue::try_from(p).ok()) {
            headers::append_to_list(headers, true, FORWARDED_FOR, &peer);
        }
        if let Some(host) = host {
            headers::append_to_list(headers, true, FORWARDED_HOST, host);
        }
        headers::append_to_list(
            headers,
            true,
            FORWARDED_PROTO,
            &HeaderValue::from_static("http"),
        );
    }
}

/// Routes and consistent hashing may go by Host, which HTTP/2 calls `:authority`.
pub(super) fn host_for_rules(service: &Service, parts: &mut http::request::Parts) {
    let reads = !service.rules.is_empty() || service.balancing.hash.is_some();
    if reads
        && let Some(authority) = parts.uri.authority()
        && !parts.headers.contains_key(HOST)
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        parts.headers.insert(HOST, host);
    }
}

/// Host as it is passed on; `None` when it is to be the service's name. The head was checked: an
/// absolute target or `:authority` comes before Host.
pub(super) fn passed_host(
    service: &Service,
    uri: &http::Uri,
    host: Option<&HeaderValue>,
    loopback: bool,
) -> Option<HeaderValue> {
    if loopback && service.host_header == HostHeader::Auto {
        return None;
    }
    let text = match uri.authority() {
        Some(authority) => authority.as_str(),
        None => host?.to_str().ok()?,
    };

    // The header's own value where it says the same, without a copy.
    match host {
        Some(value) if value.as_bytes() == text.as_bytes() => Some(value.clone()),
        Some(_) | None => HeaderValue::from_str(text).ok(),
    }
}

/// The target in origin form, without the service's prefix, and the prefix. An absolute target may
/// have a query and no path (RFC 9112, 3.2.1). One that has neither is read as `/` by the http crate,
/// with OPTIONS too, where it would mean `*`: it looks like the target `/`, which is far more usual.
pub(super) fn stripped_target(
    uri: &http::Uri,
    strip: usize,
) -> Option<(PathAndQuery, Option<HeaderValue>)> {
    let Some(whole) = uri.path_and_query() else {
        return Some((PathAndQuery::from_static("/"), None));
    };
    let text = whole.as_str();
    if text.starts_with('?') {
        return Some((PathAndQuery::try_from(format!("/{text}")).ok()?, None));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn target(uri: &str, strip: usize) -> (String, Option<String>) {
        let (target, prefix) = stripped_target(&uri.parse().unwrap(), strip).unwrap();
        let prefix = prefix.map(|p| p.to_str().unwrap().to_owned());
        (target.as_str().to_owned(), prefix)
    }

    #[test]
    fn a_target_takes_origin_form() {
        for (uri, want) in [
            ("/a?b", "/a?b"),
            ("*", "*"),
            ("http://svc", "/"),
            ("http://svc?b", "/?b"),
            ("http://svc/a?b", "/a?b"),
        ] {
            assert_eq!(target(uri, 0), (want.to_owned(), None), "{uri}");
        }
        let prefix = Some("/svc".to_owned());
        for (uri, want) in [("/svc", "/"), ("/svc?q", "/?q"), ("/svc/a", "/a")] {
            assert_eq!(target(uri, 4), (want.to_owned(), prefix.clone()), "{uri}");
        }
    }
}
