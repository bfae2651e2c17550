//! Every page of the admin API, once: 404, 405, the list of pages and the checks of queries all
//! derive from the tables here. A page is a row in the table of its file; a new file is a row of
//! [`TABLES`].

use std::fmt::Write as _;
use std::pin::Pin;

use http::{Method, StatusCode};
use percent_encoding::percent_decode_str;

use super::answer::{Answer, Fault};
use super::call::Call;
use super::{
    api, breakers, bundle, config, events, history, lifecycle, openapi, overrides, registrations,
    registry, services,
};
use crate::config::suggest::nearest;

/// The tables of all files.
const TABLES: &[&[Route]] = &[
    api::ROUTES,
    history::ROUTES,
    services::ROUTES,
    registrations::ROUTES,
    overrides::ROUTES,
    breakers::ROUTES,
    config::ROUTES,
    events::ROUTES,
    bundle::ROUTES,
    openapi::ROUTES,
    registry::ROUTES,
    lifecycle::ROUTES,
];

/// An answer in the making.
pub(super) type Pending = Pin<Box<dyn Future<Output = Result<Answer, Fault>> + Send>>;

/// One page: a method and a path whose parts in braces are names, percent-decoded for the handler.
/// The last part may end in `:word`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) method: Verb,
    pub(super) path: &'static str,
    /// One line for people.
    pub(super) about: &'static str,
    /// What may stand in the query; anything else is refused.
    pub(super) query: &'static [Param],
    /// What may stand in the body of a write.
    pub(super) body: &'static [Param],
    /// Content type of a good answer.
    pub(super) content: &'static str,
    pub(super) handler: fn(Call) -> Pending,
}

/// Methods of the API; HEAD goes with GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Get,
    Post,
    #[allow(dead_code, reason = "the first PUT is to come")]
    Put,
    Delete,
}

/// The names in a path.
#[derive(Debug)]
pub(super) struct Names(pub(super) Vec<(&'static str, String)>);

/// A key of a query.
#[derive(Clone, Copy, Debug)]
pub(super) struct Param {
    pub(super) name: &'static str,
    /// One line for people.
    pub(super) about: &'static str,
    pub(super) field: Field,
}

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Text,
    Number,
    Switch,
}

impl Param {
    /// A key with a text.
    pub(super) const fn new(name: &'static str, about: &'static str) -> Self {
        Self::of(Field::Text, name, about)
    }

    pub(super) const fn of(field: Field, name: &'static str, about: &'static str) -> Self {
        Self { name, about, field }
    }
}

impl Verb {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }

    fn is(self, method: &Method) -> bool {
        method.as_str() == self.as_str() || (self == Self::Get && method == Method::HEAD)
    }

    const fn allows(self) -> &'static str {
        match self {
            Self::Get => "GET, HEAD",
            Self::Post | Self::Put | Self::Delete => self.as_str(),
        }
    }
}

impl Route {
    /// A page to read.
    pub(super) const fn get(
        path: &'static str,
        about: &'static str,
        handler: fn(Call) -> Pending,
    ) -> Self {
        Self::new(Verb::Get, path, about, handler)
    }

    /// An order. Who gives it and why: [`Call::signed`].
    pub(super) const fn write(
        method: Verb,
        path: &'static str,
        about: &'static str,
        handler: fn(Call) -> Pending,
    ) -> Self {
        Self::new(method, path, about, handler)
    }

    const fn new(
        method: Verb,
        path: &'static str,
        about: &'static str,
        handler: fn(Call) -> Pending,
    ) -> Self {
        Self {
            method,
            path,
            about,
            query: &[],
            body: &[],
            content: "application/json",
            handler,
        }
    }

    /// With these keys in its query.
    pub(super) const fn query(mut self, query: &'static [Param]) -> Self {
        self.query = query;
        self
    }

    /// With these keys in the object of its body.
    pub(super) const fn body(mut self, body: &'static [Param]) -> Self {
        self.body = body;
        self
    }

    /// With answers that are no JSON.
    pub(super) const fn answers(mut self, content: &'static str) -> Self {
        self.content = content;
        self
    }

    /// The type of its answers in a schema.
    pub(super) fn shape(&self) -> &'static str {
        match self.content {
            "application/json" => "object",
            _ => "string",
        }
    }

    /// The names in a path, if it is one of this page.
    fn matches(&self, path: &str) -> Option<Vec<(&'static str, Vec<u8>)>> {
        let mut names = Vec::new();
        let (mut ours, mut theirs) = (parts(self.path), parts(path));
        loop {
            let (ours, theirs) = match (ours.next(), theirs.next()) {
                (None, None) => return Some(names),
                (Some(ours), Some(theirs)) => (ours, theirs),
                (Some(_), None) | (None, Some(_)) => return None,
            };
            let Some((name, suffix)) = placeholder(ours) else {
                if ours != theirs {
                    return None;
                }
                continue;
            };
            let value = theirs
                .strip_suffix(suffix)
                .filter(|rest| !rest.is_empty())?;
            names.push((name, percent_decode_str(value).collect()));
        }
    }

    /// How much of the path is written out: of two pages that match the more exact one is meant.
    fn exactness(&self) -> usize {
        let written = |part| placeholder(part).map_or(str::len(part) + 1, |(_, end)| end.len());
        parts(self.path).map(written).sum()
    }
}

/// All pages.
pub(super) fn all() -> impl Iterator<Item = &'static Route> {
    TABLES.iter().copied().flatten()
}

/// The page and the names in its path.
pub(super) fn find(method: &Method, path: &str) -> Result<(&'static Route, Names), Fault> {
    find_in(all(), method, path)
}

fn find_in<'a>(
    routes: impl Iterator<Item = &'a Route>,
    method: &Method,
    path: &str,
) -> Result<(&'a Route, Names), Fault> {
    let matching = routes.filter_map(|route| Some((route, route.matches(path)?)));
    let matching: Vec<_> = matching.collect();
    let most = matching.iter().map(|(route, _)| route.exactness()).max();
    let mut allowed = Vec::new();
    for (route, names) in matching {
        if Some(route.exactness()) != most {
            continue;
        }
        if route.method.is(method) {
            return Ok((route, decoded(names)?));
        }
        allowed.push(route.method.allows());
    }
    if allowed.is_empty() {
        let hint = "GET / lists what there is";
        let message = format!("no such page: {path}");
        return Err(Fault::new(
            StatusCode::NOT_FOUND,
            "not_found",
            message,
            hint,
        ));
    }
    let allowed = allowed.join(", ");
    let fault = Fault::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        format!("{path} does not take {method}"),
        format!("it takes {allowed}"),
    );
    Err(fault.allowing(allowed))
}

fn decoded(names: Vec<(&'static str, Vec<u8>)>) -> Result<Names, Fault> {
    let decode = |(name, bytes)| Some((name, String::from_utf8(bytes).ok()?));
    let all: Option<Vec<_>> = names.into_iter().map(decode).collect();
    all.map(Names).ok_or_else(|| {
        let message = "the path is not UTF-8 after percent-decoding";
        Fault::new(StatusCode::BAD_REQUEST, "bad_path", message, "")
    })
}

/// The query of a page; a key it does not know would silently change nothing, so it is refused.
pub(super) fn query(route: &Route, query: &str) -> Result<Vec<(String, String)>, Fault> {
    let pairs: Vec<(String, String)> = form_urlencoded::parse(query.as_bytes())
        .into_owned()
        .collect();
    let known = || route.query.iter().map(|param| param.name);
    let foreign = |(key, _): &&(String, String)| !known().any(|name| name == key);
    let Some((key, _)) = pairs.iter().find(foreign) else {
        return Ok(pairs);
    };
    let hint = match (nearest(key, known()), route.query) {
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, []) => "it takes no query".to_owned(),
        (None, _) => format!("there are {}", known().collect::<Vec<_>>().join(", ")),
    };
    let message = format!("{} does not know `{key}` in its query", route.path);
    Err(Fault::bad_query(message, hint))
}

/// `GET /`: what there is.
pub(super) fn page() -> String {
    let mut rows = String::new();
    for route in all() {
        let (path, about) = (route.path, route.about);
        let linked = route.method == Verb::Get && !path.contains('{');
        let shown = match linked {
            true => format!("<a href=\"{path}\">{path}</a>"),
            false => path.to_owned(),
        };
        let method = route.method.as_str();
        let written = write!(rows, "<tr><td>{method}<td>{shown}<td>{about}");
        debug_assert!(written.is_ok(), "writing to a string cannot fail");
        for (sign, params) in [("?", route.query), ("{}", route.body)] {
            let names = params.iter().map(|p| format!("{}: {}", p.name, p.about));
            let names: Vec<String> = names.collect();
            if !names.is_empty() {
                rows.push_str("<br>");
                rows.push_str(sign);
                rows.push(' ');
                rows.push_str(&names.join("; "));
            }
        }
        rows.push('\n');
    }
    PAGE.replace("{rows}", &rows)
}

const PAGE: &str = include_str!("page.html");

/// The names in a template.
pub(super) fn placeholders(path: &str) -> impl Iterator<Item = &str> {
    parts(path).filter_map(|part| placeholder(part).map(|(name, _)| name))
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// `{name}` or `{name}:word`: the name and the suffix.
fn placeholder(part: &str) -> Option<(&str, &str)> {
    part.strip_prefix('{')?.split_once('}')
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: fn(Call) -> Pending = |_| Box::pin(async { Err(Fault::bad_query("", "")) });
    const SOME: &[Route] = &[
        Route::get("/v1/things", "", NONE),
        Route::get("/v1/things/{t}", "", NONE),
        Route::write(Verb::Post, "/v1/things/{t}:shake", "", NONE),
        Route::write(Verb::Delete, "/v1/things/{t}", "", NONE),
        Route::get("/v1/things/all", "", NONE),
    ];

    #[test]
    fn the_more_exact_page_is_meant_and_names_are_decoded() {
        let found = |path: &str| {
            let method = match path.ends_with('e') {
                true => Method::POST,
                false => Method::HEAD,
            };
            let (route, names) = find_in(SOME.iter(), &method, path).ok()?;
            Some((route.path, names.0.first().map(|(_, value)| value.clone())))
        };
        let is = |path, name: Option<&str>| Some((path, name.map(str::to_owned)));
        assert_eq!(found("/v1/things/"), is("/v1/things", None));
        assert_eq!(found("/v1/things/a%2Fb"), is("/v1/things/{t}", Some("a/b")));
        assert_eq!(
            found("/v1/things/1:2:shake"),
            is("/v1/things/{t}:shake", Some("1:2"))
        );
        assert_eq!(found("/v1/things/all"), is("/v1/things/all", None));
        assert_eq!(found("/v1/things/:shake"), None);
        assert_eq!(found("/v1"), None);
        assert_eq!(found("/v1/things/a/b"), None);
        assert_eq!(found("/v1/things/%ff"), None);
    }

    #[test]
    fn a_page_without_the_method_says_which_it_takes() {
        let allowed = |path: &str| {
            let fault = find_in(SOME.iter(), &Method::PUT, path).err()?;
            let answer = fault.answer();
            let allow = answer.headers().get(http::header::ALLOW)?.to_str().ok()?;
            Some((fault.status.as_u16(), allow.to_owned()))
        };
        let is = |allow: &str| Some((405, allow.to_owned()));
        assert_eq!(allowed("/v1/things"), is("GET, HEAD"));
        assert_eq!(allowed("/v1/things/a"), is("GET, HEAD, DELETE"));
        assert_eq!(allowed("/v1/things/a:shake"), is("POST"));
        assert_eq!(allowed("/v1/thing"), None);
    }

    #[test]
    fn no_page_is_there_twice() {
        for route in all() {
            let same = all().filter(|r| r.path == route.path && r.method == route.method);
            assert_eq!(same.count(), 1, "{}", route.path);
            assert!(route.path.starts_with("/api/v1/") || matches!(route.path, "/" | "/registry"));
            assert!(!route.about.is_empty(), "{}", route.path);
        }
    }
}
