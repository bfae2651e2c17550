//! `fallback` of a service: a list, each item of one kind.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::code_set::GRPC;
use super::reader::{Context, Field, Map};
use super::record::Shape;
use super::value::{Span, integer, words};
use crate::config::diagnostic::Code;
use crate::config::types::{
    Condition, Conditions, Fallback, FallbackKind, LastGood, StaticAnswer, StaticGrpc, StaticHttp,
};

/// The list; one that is written replaces that of the defaults.
pub(crate) fn fallback(map: &Map<'_>, base: &Arc<[Fallback]>) -> Arc<[Fallback]> {
    map.declare("fallback", || {
        Shape::Map.list().default(Vec::<String>::new())
    });
    let Some(field) = map.field("fallback") else {
        return Arc::clone(base);
    };
    let Some(items) = field.items() else {
        return Arc::clone(base);
    };
    let mut found: Vec<Fallback> = Vec::new();
    for item in &items {
        let Some(one) = fallback_item(item) else {
            continue;
        };
        let is_cache = |one: &Fallback| matches!(one.kind, FallbackKind::Cache(_));
        if is_cache(&one) && found.iter().any(is_cache) {
            let message = format!("`{}` is a second `cache`", item.path);
            item.report(Code::CHOOSE_ONE, message, "keep one of them");
            continue;
        }
        found.push(one);
    }
    found.into()
}

const MAX_AGE: Duration = Duration::from_secs(600);
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// Below it no answer of a usual size has room.
const SIZES: std::ops::RangeInclusive<u64> = 64 * 1024..=4 * 1024 * 1024 * 1024;
/// Keys of a static answer.
const STATIC: [&str; 6] = [
    "status",
    "body",
    "file",
    "content_type",
    "grpc_status",
    "grpc_message",
];
/// Statuses of a static answer.
const STATUSES: std::ops::RangeInclusive<u64> = 200..=599;

fn fallback_item(item: &Field<'_>) -> Option<Fallback> {
    let map = item.map();
    let conditions = conditions(&map);
    let cache = cache(&map);
    map.declare("upstream", || Shape::Text.optional());
    let upstream = map.text("upstream");
    let answer = answer(&map, item);
    map.finish();
    let kinds = [
        cache.map(FallbackKind::Cache),
        upstream.map(FallbackKind::Upstream),
        answer.map(|answer| FallbackKind::Static(Arc::new(answer))),
    ];
    let mut kinds = kinds.into_iter().flatten();
    let (first, more) = (kinds.next(), kinds.next().is_some());
    let wrong = match (&first, more) {
        (Some(_), false) => None,
        // Its problem is told already.
        (None, _) if STATIC.iter().any(|key| item.node.get(key).is_some()) => return None,
        (None, _) => Some("does not say what to answer"),
        (Some(_), true) => Some("is of several kinds"),
    };
    if let Some(what) = wrong {
        let message = format!("`{}` {what}", item.path);
        let help = "write one of `cache: {}`, `upstream: NAME`, or `status` with `body` or `file`";
        item.report(Code::CHOOSE_ONE, message, help);
        return None;
    }
    Some(Fallback {
        conditions: conditions?,
        kind: first?,
    })
}

fn conditions(map: &Map<'_>) -> Option<Conditions> {
    let table = Condition::ALL.map(|condition| (condition.as_str(), condition));
    map.declare("conditions", || {
        let builtin = Conditions::builtin();
        let all = Condition::ALL.into_iter().filter(|c| builtin.has(*c));
        let all: Vec<&str> = all.map(Condition::as_str).collect();
        words(&table).list().default(all)
    });
    let Some(field) = map.field("conditions") else {
        return Some(Conditions::builtin());
    };
    let items = field.items()?;
    let mut set = Conditions::default();
    for item in &items {
        if let Some(condition) = item.word(&table, &[]) {
            set = set.with(condition);
        }
    }
    if items.is_empty() {
        let what = "no condition: it is never asked";
        field.wrong(Code::EMPTY, what, "remove the key to have the default");
    }
    (!set.is_empty()).then_some(set)
}

fn cache(parent: &Map<'_>) -> Option<LastGood> {
    let map = parent.child("cache");
    let settings = LastGood {
        max_age: map.duration("max_age", MAX_AGE, Span::POSITIVE),
        max_bytes: map.size("max_bytes", MAX_BYTES, &SIZES),
    };
    map.finish();
    parent.field("cache").map(|_| settings)
}

/// A static answer, where one of its keys is written.
fn answer(map: &Map<'_>, item: &Field<'_>) -> Option<StaticAnswer> {
    map.declare("status", || Shape::integer(&STATUSES).default(503));
    map.declare("body", || Shape::Text.optional());
    map.declare("content_type", || Shape::Text.optional());
    map.declare("grpc_status", || {
        Shape::Integer(1, 16)
            .or(Shape::Pattern("^[a-z_]+$"))
            .optional()
    });
    map.declare("grpc_message", || Shape::Text.optional());
    let status_field = map.field("status");
    let status = status_field.as_ref().and_then(|field| {
        let status = field.convert(Code::NUMBER, |text| integer(text, &STATUSES))?;
        StatusCode::from_u16(u16::try_from(status).ok()?).ok()
    });
    let body_field = map.field("body");
    let body = body_field.as_ref().and_then(|field| field.text());
    let path = map.path("file");
    let file_field = map.field("file");
    let kind_field = map.field("content_type");
    let grpc_field = map.field("grpc_status");
    let message_field = map.field("grpc_message");
    let written = [&status_field, &body_field, &file_field];
    let has_http = written.iter().any(|field| field.is_some());
    if !has_http && grpc_field.is_none() {
        for field in [&kind_field, &message_field].into_iter().flatten() {
            let help = "it belongs to a static answer: write `status`, `body`, `file` or \
                        `grpc_status`";
            field.wrong(Code::CHOOSE_ONE, "there is no answer for it", help);
        }
        return None;
    }
    if let (Some(_), Some(field)) = (&body_field, &file_field) {
        let help = "keep one of them";
        field.wrong(Code::CHOOSE_ONE, "there is a `body` already", help);
        return None;
    }
    let content = match (body, path, &file_field) {
        (Some(text), ..) => Bytes::copy_from_slice(text.as_bytes()),
        (None, Some(path), Some(field)) => content(field.context, &path, field)?,
        (None, ..) if body_field.is_some() || file_field.is_some() => return None,
        (None, ..) => Bytes::new(),
    };
    let status = match (status, &status_field) {
        (None, Some(_)) => return None,
        (status, _) => status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
    };
    if matches!(status.as_u16(), 204 | 205 | 304) && !content.is_empty() {
        let message = format!("`{}`: an answer {status} has no body", item.path);
        item.report(
            Code::CHOOSE_ONE,
            message,
            "remove the body, or choose another status",
        );
        return None;
    }
    let content_type = match &kind_field {
        Some(field) => Some(field.convert(Code::NAME, |text| {
            HeaderValue::from_str(text).map_err(|_| {
                let help = "as in `application/json`".to_owned();
                ("it cannot be a header".to_owned(), help)
            })
        })?),
        None if content.is_empty() => None,
        None => Some(guess(&content)),
    };
    let code = match &grpc_field {
        Some(field) => Some(grpc_code(field)?),
        None => grpc_of(status),
    };
    if let (Some(field), None) = (&message_field, code) {
        let message = format!(
            "`{}` has no effect: there is no answer to gRPC calls",
            field.path
        );
        let help = "write `grpc_status` beside it: a status that is no error has none for gRPC";
        field.report(Code::NO_EFFECT, message, help);
    }
    let message = message_field.and_then(|field| field.text());
    Some(StaticAnswer {
        http: has_http.then_some(StaticHttp {
            status,
            body: content,
            content_type,
        }),
        grpc: code.map(|code| StaticGrpc {
            code,
            message: message.map(Arc::from),
        }),
    })
}

fn content(context: &Context<'_>, path: &std::path::Path, field: &Field<'_>) -> Option<Bytes> {
    match context.read(path) {
        Ok(bytes) => Some(Bytes::from(bytes)),
        Err(error) => {
            let what = format!("cannot read {}: {error}", path.display());
            let help = "a file of at most 1 MiB; it is read at the start and at each reload";
            field.wrong(Code::UNREADABLE, &what, help);
            None
        }
    }
}

/// Where no type is written.
fn guess(content: &[u8]) -> HeaderValue {
    let json = serde_json::from_slice::<serde::de::IgnoredAny>(content).is_ok();
    HeaderValue::from_static(if json {
        "application/json"
    } else {
        "text/plain; charset=utf-8"
    })
}

fn grpc_code(field: &Field<'_>) -> Option<u16> {
    field.convert(Code::CODE_SET, |text| match GRPC.one(text) {
        Ok(code @ 1..=16) => Ok(code),
        Err(wrong) if text != "ok" && text != "0" => Err(wrong),
        Ok(_) | Err(_) => {
            let what = format!("`{text}` is no gRPC code of an error");
            let help = "a name such as `unavailable`, or a number from 1 to 16; OK needs a message";
            Err((what, help.to_owned()))
        }
    })
}

/// What gRPC makes of an HTTP status; nothing of one that is no error: a call without a message
/// cannot be OK.
fn grpc_of(status: StatusCode) -> Option<u16> {
    match status.as_u16() {
        200..=399 => None,
        400 => Some(13),
        401 => Some(16),
        403 => Some(7),
        404 => Some(12),
        429 | 502..=504 => Some(14),
        _ => Some(2),
    }
}
