//! `check` of an item of `app.register`: one kind, and how often. An address that is not written is
//! the app's port on this machine.

use std::sync::Arc;
use std::time::Duration;

use super::program;
use crate::config::diagnostic::Code;
use crate::config::parse::code_set::HTTP;
use crate::config::parse::reader::{Field, Map};
use crate::config::parse::record::Shape;
use crate::config::parse::value::{Span, Wrong};
use crate::config::types::{AppCheck, AppCheckKind, JsonRule};
use crate::endpoint::Address;
use crate::outlier::policy::CodeSet;

/// What `json_pointer` wants where it does not say: the word of Spring Boot's Actuator.
const WANTED: &str = "UP";

pub(super) fn check(parent: &Map<'_>, port: Option<u16>) -> Option<AppCheck> {
    parent.declare("check", || Shape::Map.optional());
    let written = parent.field("check").is_some();
    let map = parent.child("check");
    let kind = kind(&map, port, written);
    let check = AppCheck {
        kind: kind.clone().unwrap_or(AppCheckKind::Exec(Vec::new())),
        interval: map.duration("interval", Duration::from_secs(5), Span::POSITIVE),
        timeout: map.duration("timeout", Duration::from_secs(1), Span::POSITIVE),
        rise: map.integer("rise", 2, &(1..=100)),
        fall: map.integer("fall", 3, &(1..=100)),
    };
    map.finish();
    kind.map(|_| check)
}

fn kind(map: &Map<'_>, port: Option<u16>, written: bool) -> Option<AppCheckKind> {
    map.declare("http", || {
        Shape::Pattern("^(/|http://)[!-\"$-~]*$").optional()
    });
    map.declare("tcp", || {
        Shape::Boolean
            .or(Shape::Pattern("^\\[?[^/\\s]+:[0-9]{1,5}$"))
            .default(false)
    });
    map.declare("grpc", || Shape::Text.optional());
    map.declare("exec", || Shape::Text.list().optional());
    map.declare("expect", || {
        HTTP.shape().default(vec!["200-399".to_owned()])
    });
    map.declare("json_pointer", || {
        Shape::Pattern("^/[^=]*(=.*)?$").optional()
    });
    let own: Arc<str> = format!("127.0.0.1:{}", port.unwrap_or(1)).into();
    let http = map.field("http");
    let tcp = map
        .field("tcp")
        .filter(|field| field.scalar() != Some("false"));
    let grpc = map.field("grpc");
    let exec = map.field("exec");
    let expect = map.field("expect");
    let pointer = map.field("json_pointer");
    let chosen = [&http, &tcp, &grpc, &exec]
        .iter()
        .filter(|kind| kind.is_some())
        .count();
    if chosen != 1 {
        if written {
            let message = format!("`{}` needs one of `http`, `tcp`, `grpc`, `exec`", map.path);
            let help = "write `http: /health`, say";
            map.context
                .report(Code::CHOOSE_ONE, &map.place, message, help);
        }
        return None;
    }
    if http.is_none() {
        for field in expect.iter().chain(&pointer) {
            let what = "only an `http` check has an answer to look at";
            field.wrong(Code::CHOOSE_ONE, what, "remove it, or check by `http`");
        }
    }
    if let Some(field) = http {
        let (address, path) = field.convert(Code::ADDRESS, |text| url(text, &own))?;
        let expect = expect.and_then(|field| HTTP.read(&field));
        return Some(AppCheckKind::Http {
            address,
            path,
            expect: expect.unwrap_or_else(|| CodeSet::from_ranges([(200, 399)])),
            json: pointer.and_then(|field| field.convert(Code::NAME, json_rule)),
        });
    }
    if let Some(field) = tcp {
        return Some(AppCheckKind::Tcp(tcp_address(&field, own)?));
    }
    if let Some(field) = grpc {
        let (address, service) = field.convert(Code::ADDRESS, |text| grpc_service(text, own))?;
        return Some(AppCheckKind::Grpc { address, service });
    }
    exec.and_then(|field| program(&field))
        .map(AppCheckKind::Exec)
}

/// A path of the app, or a URL.
fn url(text: &str, own: &Arc<str>) -> Result<(Arc<str>, Arc<str>), Wrong> {
    let wrong = |what: &str, help: &str| Err((format!("`{text}` {what}"), help.to_owned()));
    if !text.bytes().all(|b| b.is_ascii_graphic() && b != b'#') {
        return wrong("has a character that a URL has not", "percent-encode it");
    }
    if text.starts_with('/') {
        return Ok((Arc::clone(own), Arc::from(text)));
    }
    let example = "write `/health`, or `http://127.0.0.1:8080/health`";
    if text.starts_with("https://") {
        return wrong("is TLS", "check a plain port, or by `tcp`");
    }
    let Ok(uri) = text.parse::<http::Uri>() else {
        return wrong("is no URL", example);
    };
    match (uri.scheme_str(), uri.host()) {
        (Some("http"), Some(host)) => {
            let port = uri.port_u16().unwrap_or(80);
            let Ok(address) = Address::from_parts(host, port) else {
                return wrong("is no URL", example);
            };
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            Ok((Arc::from(address.as_str()), Arc::from(path)))
        }
        (_, _) => wrong("is neither a path nor an http URL", example),
    }
}

fn tcp_address(field: &Field<'_>, own: Arc<str>) -> Option<Arc<str>> {
    if field.scalar() == Some("true") {
        return Some(own);
    }
    field.convert(Code::ADDRESS, |text| match Address::parse(text) {
        Ok(address) => Ok(Arc::from(address.as_str())),
        Err(error) => Err((
            error.to_string(),
            "write `tcp: true`, or `host:port`".to_owned(),
        )),
    })
}

/// A service of the app's health service (empty: all of it), or a URL whose path is the service.
fn grpc_service(text: &str, own: Arc<str>) -> Result<(Arc<str>, Arc<str>), Wrong> {
    if !text.contains("://") {
        if text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        {
            return Ok((own, Arc::from(text)));
        }
        let help = "write `grpc: my.package.Service`, or `http://127.0.0.1:9090/my.Service`";
        return Err((format!("`{text}` is no gRPC service"), help.to_owned()));
    }
    let (address, path) = url(text, &own)?;
    Ok((address, Arc::from(path.trim_start_matches('/'))))
}

/// `/status`, or `/status=UP`.
pub(in crate::config::parse) fn json_rule(text: &str) -> Result<JsonRule, Wrong> {
    let (pointer, value) = text.split_once('=').unwrap_or((text, WANTED));
    if !pointer.starts_with('/') || value.is_empty() {
        let help = "write `/status`, or with the value that is good: `/status=UP`".to_owned();
        return Err((format!("`{text}` is no JSON pointer"), help));
    }
    Ok(JsonRule {
        pointer: Arc::from(pointer),
        value: Arc::from(value),
    })
}
