//! `Cache-Control`, as far as it says something about keeping and giving the last good answer
//! (RFC 9111, 5.2; RFC 5861). Pure.

use std::time::Duration;

use http::HeaderMap;
use http::header::CACHE_CONTROL;

/// What a request says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestDirectives {
    /// Nothing of this exchange may be kept.
    pub no_store: bool,
    /// Nothing kept may be given.
    pub no_cache: bool,
    /// Nothing older may be given.
    pub max_age: Option<Duration>,
}

/// What a response says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "words that are there or are not"
)]
pub struct ResponseDirectives {
    /// It may not be kept.
    pub no_store: bool,
    /// It may not be given without asking again.
    pub no_cache: bool,
    /// It is for one user.
    pub private: bool,
    /// It is for everybody.
    pub public: bool,
    /// It may not be given once it is stale.
    pub must_revalidate: bool,
    /// Fresh for so long.
    pub max_age: Option<Duration>,
    /// The same for what many share.
    pub s_maxage: Option<Duration>,
    /// Stale for at most so long, when an error would be the answer.
    pub stale_if_error: Option<Duration>,
}

impl RequestDirectives {
    /// Of a request's head.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut found = Self::default();
        each(headers, |name, value| match name {
            "no-store" => found.no_store = true,
            "no-cache" => found.no_cache = true,
            "max-age" => found.max_age = Some(seconds(value)),
            _ => {}
        });
        found
    }
}

impl ResponseDirectives {
    /// Of a response's head.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut found = Self::default();
        each(headers, |name, value| match name {
            "no-store" => found.no_store = true,
            // With field names they are about these fields only; taken whole here, as RFC 9111
            // allows.
            "no-cache" => found.no_cache = true,
            "private" => found.private = true,
            "public" => found.public = true,
            "must-revalidate" | "proxy-revalidate" => found.must_revalidate = true,
            "max-age" => found.max_age = Some(seconds(value)),
            "s-maxage" => found.s_maxage = Some(seconds(value)),
            "stale-if-error" => found.stale_if_error = Some(seconds(value)),
            _ => {}
        });
        found
    }

    /// Whether one kept answer may be given to others than who asked with credentials
    /// (RFC 9111, 3.5).
    pub const fn is_shared(&self) -> bool {
        self.public || self.must_revalidate || self.s_maxage.is_some()
    }

    /// For how long it is fresh, as far as it says.
    pub fn fresh_for(&self) -> Option<Duration> {
        self.s_maxage.or(self.max_age)
    }

    /// For how long after that it may be given instead of an error; `None` = as long as one likes.
    pub fn stale_for(&self) -> Option<Duration> {
        if self.must_revalidate || self.s_maxage.is_some() {
            return Some(Duration::ZERO);
        }
        self.stale_if_error
    }
}

/// Directives in lower case with their values.
fn each(headers: &HeaderMap, mut tell: impl FnMut(&str, &str)) {
    for line in headers.get_all(CACHE_CONTROL) {
        let Ok(line) = line.to_str() else { continue };
        for part in parts(line) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let name = name.trim().to_ascii_lowercase();
            tell(&name, value.trim().trim_matches('"'));
        }
    }
}

/// Split at commas that stand in no quotes.
fn parts(line: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    line.split(move |c: char| {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ',' if !quoted => return true,
            _ => {}
        }
        false
    })
}

/// What is no number says that it is stale (RFC 9111, 4.2.1); what is too large is very long.
fn seconds(text: &str) -> Duration {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Duration::ZERO;
    }
    Duration::from_secs(text.parse().unwrap_or(MANY).min(MANY))
}

/// The largest time (RFC 9111, 1.2.2).
const MANY: u64 = 1 << 31;

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn response(lines: &[&str]) -> ResponseDirectives {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(CACHE_CONTROL, HeaderValue::from_str(line).unwrap());
        }
        ResponseDirectives::of(&headers)
    }

    #[test]
    fn words_are_found_in_any_case_and_on_any_line() {
        let found = response(&["Public, MAX-AGE = 60", "stale-if-error=\"30\""]);
        assert!(found.public && found.is_shared() && !found.private);
        assert_eq!(found.fresh_for(), Some(Duration::from_secs(60)));
        assert_eq!(found.stale_for(), Some(Duration::from_secs(30)));
        assert!(response(&["private=\"a, no-store\", x=y"]).private);
        assert!(!response(&["private=\"a, no-store\", x=y"]).no_store);
        assert!(response(&["x=\"a\\\", b\", no-store"]).no_store);
        assert_eq!(response(&["max-age=x"]).max_age, Some(Duration::ZERO));
        assert_eq!(
            response(&["max-age=99999999999999999999"]).max_age,
            Some(Duration::from_secs(MANY))
        );
    }

    #[test]
    fn what_must_be_asked_again_is_never_stale() {
        for text in ["must-revalidate", "proxy-revalidate", "s-maxage=5"] {
            assert_eq!(
                response(&[text]).stale_for(),
                Some(Duration::ZERO),
                "{text}"
            );
        }
        assert_eq!(response(&["max-age=5"]).stale_for(), None);
    }
}
