//! What an answer means for the cache of last good answers: kept, or a sign that the kept one is no
//! longer true, or nothing. RFC 9111, 3 and 4.4, and stricter where several users share one app.
//! Pure. Next: `policy/fallback/cache.rs`.

use std::time::Duration;

use http::header::{
    AGE, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, COOKIE, DATE,
    EXPIRES, HeaderName, HeaderValue, RANGE, SET_COOKIE, VARY,
};
use http::{HeaderMap, Method, StatusCode};

use super::directives::{RequestDirectives, ResponseDirectives};

/// Fields of `Vary` at most.
const MAX_VARY: usize = 16;

/// What to do with an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Keep it once its body is whole.
    Keep(Terms),
    /// What is kept under this key is not true any more.
    Forget,
    /// Nothing.
    Leave,
}

/// On what terms an answer may be given again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The request's fields that it depends on, as they were.
    pub vary: Vec<(HeaderName, Vec<HeaderValue>)>,
    /// Its age when it came.
    pub age: Duration,
    /// Fresh up to this age.
    pub fresh_for: Duration,
    /// And stale for this long after; `None` = without end.
    pub stale_for: Option<Duration>,
}

/// Decides on a head. `plain`: the request has no body and wants no upgrade.
pub fn judge(
    method: &Method,
    request: &HeaderMap,
    plain: bool,
    status: StatusCode,
    response: &HeaderMap,
) -> Verdict {
    if *method != Method::GET {
        let safe = matches!(*method, Method::HEAD | Method::OPTIONS | Method::TRACE);
        let done = status.is_success() || status.is_redirection();
        return if done && !safe {
            Verdict::Forget
        } else {
            Verdict::Leave
        };
    }
    let said = ResponseDirectives::of(response);
    let personal = request.contains_key(AUTHORIZATION) || request.contains_key(COOKIE);
    let partial = request.contains_key(RANGE) || !plain;
    if partial || (personal && !said.is_shared()) || RequestDirectives::of(request).no_store {
        return Verdict::Leave;
    }
    match status.as_u16() {
        404 | 410 => return Verdict::Forget,
        200 | 203 | 204 | 300 | 301 | 308 => {}
        _ => return Verdict::Leave,
    }
    let fresh_for = said.fresh_for().or_else(|| lifetime(response));
    let fresh_for = fresh_for.unwrap_or_default();
    let never_again = fresh_for.is_zero() && said.stale_for() == Some(Duration::ZERO);
    let stream = response
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if said.no_store
        || said.no_cache
        || said.private
        || never_again
        || stream
        || response.contains_key(SET_COOKIE)
        || response.contains_key(CONTENT_RANGE)
    {
        return Verdict::Leave;
    }
    match vary(request, response) {
        Some(vary) => Verdict::Keep(Terms {
            vary,
            age: age(response),
            fresh_for,
            stale_for: said.stale_for(),
        }),
        None => Verdict::Leave,
    }
}

/// Nothing when the answer depends on what cannot be compared.
fn vary(request: &HeaderMap, response: &HeaderMap) -> Option<Vec<(HeaderName, Vec<HeaderValue>)>> {
    let mut fields: Vec<(HeaderName, Vec<HeaderValue>)> = Vec::new();
    for line in response.get_all(VARY) {
        for name in line.to_str().ok()?.split(',').map(str::trim) {
            if name.is_empty() {
                continue;
            }
            // `*` is no field name.
            let name = HeaderName::from_bytes(name.as_bytes())
                .ok()
                .filter(|n| n != "*")?;
            if fields.iter().any(|(known, _)| *known == name) {
                continue;
            }
            if fields.len() == MAX_VARY {
                return None;
            }
            let values = request.get_all(&name).iter().map(copy).collect();
            fields.push((name, values));
        }
    }
    Some(fields)
}

/// From `date` to `expires`, where it has both (RFC 9111, 4.2.1).
fn lifetime(response: &HeaderMap) -> Option<Duration> {
    let time = |name| {
        let text = response.get(name)?.to_str().ok()?;
        httpdate::parse_http_date(text).ok()
    };
    time(EXPIRES)?.duration_since(time(DATE)?).ok()
}

fn age(response: &HeaderMap) -> Duration {
    let text = response.get(AGE).and_then(|value| value.to_str().ok());
    let seconds = text.and_then(|text| text.trim().parse::<u32>().ok());
    Duration::from_secs(u64::from(seconds.unwrap_or(0)))
}

/// The fields that are kept, in memory of their own: what was read is a piece of a larger buffer.
/// Without what belongs to one exchange only.
pub fn kept_fields(response: &HeaderMap, own: &[HeaderName]) -> HeaderMap {
    let mut kept = HeaderMap::new();
    for (name, value) in response {
        if [AGE, CONNECTION, CONTENT_LENGTH].contains(name) || own.contains(name) {
            continue;
        }
        let name = HeaderName::from_bytes(name.as_str().as_bytes());
        if let Ok(name) = name {
            kept.append(name, copy(value));
        }
    }
    kept
}

fn copy(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = fields.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        pairs.collect()
    }

    type Fields = &'static [(&'static str, &'static str)];

    fn get(request: Fields, status: u16, response: Fields) -> Verdict {
        let status = StatusCode::from_u16(status).unwrap();
        judge(&Method::GET, &map(request), true, status, &map(response))
    }

    fn is_kept(request: Fields, status: u16, response: Fields) -> bool {
        matches!(get(request, status, response), Verdict::Keep(_))
    }

    #[test]
    fn good_whole_answers_for_everybody_are_kept() {
        for status in [200, 203, 204, 300, 301, 308] {
            assert!(is_kept(&[], status, &[]), "{status}");
        }
        for status in [206, 302, 304, 400, 500, 503] {
            assert_eq!(get(&[], status, &[]), Verdict::Leave, "{status}");
        }
        assert_eq!(get(&[], 404, &[]), Verdict::Forget);
        let refused: [Fields; 9] = [
            &[("cache-control", "no-store")],
            &[("cache-control", "no-cache")],
            &[("cache-control", "private, max-age=60")],
            &[("cache-control", "must-revalidate")],
            &[("set-cookie", "a=b")],
            &[("vary", "*")],
            &[("vary", "accept, *")],
            &[("content-range", "bytes 0-1/2")],
            &[("content-type", "text/event-stream; charset=utf-8")],
        ];
        for response in refused {
            assert_eq!(get(&[], 200, response), Verdict::Leave, "{response:?}");
        }
        let refused: [Fields; 2] = [&[("range", "bytes=0-1")], &[("cache-control", "no-store")]];
        for request in refused {
            assert_eq!(get(request, 200, &[]), Verdict::Leave, "{request:?}");
        }
        let wants_upgrade = judge(&Method::GET, &map(&[]), false, StatusCode::OK, &map(&[]));
        assert_eq!(wants_upgrade, Verdict::Leave);
    }

    #[test]
    fn what_credentials_brought_is_kept_only_where_it_is_for_all() {
        let credentials: [Fields; 2] = [&[("authorization", "Basic x")], &[("cookie", "s=1")]];
        for request in credentials {
            assert!(!is_kept(request, 200, &[("cache-control", "max-age=60")]));
            assert_eq!(get(request, 404, &[]), Verdict::Leave);
            for word in ["public", "s-maxage=60", "must-revalidate, max-age=60"] {
                let response = HeaderValue::from_static(word);
                let response = HeaderMap::from_iter([(http::header::CACHE_CONTROL, response)]);
                let found = judge(&Method::GET, &map(request), true, StatusCode::OK, &response);
                assert!(matches!(found, Verdict::Keep(_)), "{word}");
            }
        }
    }

    #[test]
    fn a_change_makes_the_kept_one_untrue() {
        let judge = |method: Method, status: u16| {
            let status = StatusCode::from_u16(status).unwrap();
            judge(&method, &map(&[]), true, status, &map(&[]))
        };
        assert_eq!(judge(Method::PUT, 204), Verdict::Forget);
        assert_eq!(judge(Method::POST, 303), Verdict::Forget);
        assert_eq!(judge(Method::DELETE, 500), Verdict::Leave);
        assert_eq!(judge(Method::HEAD, 200), Verdict::Leave);
    }

    #[test]
    fn terms_are_read_from_the_head() {
        let request: Fields = &[("accept", "a"), ("x", "1")];
        let response: Fields = &[
            ("vary", "Accept, X-Missing, accept"),
            ("age", "7"),
            ("cache-control", "max-age=60, stale-if-error=30"),
        ];
        let Verdict::Keep(terms) = get(request, 200, response) else {
            panic!("not kept")
        };
        let vary: Vec<_> = terms
            .vary
            .iter()
            .map(|(n, v)| (n.as_str(), v.len()))
            .collect();
        assert_eq!(vary, [("accept", 1), ("x-missing", 0)]);
        assert_eq!(terms.age, Duration::from_secs(7));
        assert_eq!(terms.fresh_for, Duration::from_secs(60));
        assert_eq!(terms.stale_for, Some(Duration::from_secs(30)));
    }

    #[test]
    fn expires_says_how_long_it_is_fresh_where_nothing_else_does() {
        const DATE: (&str, &str) = ("date", "Mon, 30 Nov 2026 08:00:00 GMT");
        const LATER: (&str, &str) = ("expires", "Mon, 30 Nov 2026 08:01:30 GMT");
        let again: (&str, &str) = ("cache-control", "must-revalidate");
        let fresh_for = |response: &[(&'static str, &'static str)]| {
            let found = judge(
                &Method::GET,
                &map(&[]),
                true,
                StatusCode::OK,
                &map(response),
            );
            match found {
                Verdict::Keep(terms) => Some(terms.fresh_for.as_secs()),
                Verdict::Forget | Verdict::Leave => None,
            }
        };
        assert_eq!(fresh_for(&[DATE, LATER]), Some(90));
        assert_eq!(fresh_for(&[DATE, LATER, again]), Some(90));
        assert_eq!(
            fresh_for(&[DATE, LATER, ("cache-control", "max-age=5")]),
            Some(5)
        );
        // Without a date, in the past, no date at all.
        assert_eq!(fresh_for(&[LATER]), Some(0));
        assert_eq!(fresh_for(&[LATER, again]), None);
        assert_eq!(
            fresh_for(&[("date", LATER.1), ("expires", DATE.1)]),
            Some(0)
        );
        assert_eq!(fresh_for(&[DATE, ("expires", "0")]), Some(0));
    }
}
