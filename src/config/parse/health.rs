//! `health_check`: one kind, and how often.

use std::sync::Arc;
use std::time::Duration;

use super::code_set::{self, HTTP};
use super::reader::{Field, Map};
use super::record::Shape;
use super::value::Span;
use crate::config::diagnostic::Code;
use crate::config::types::{HealthCheck, HealthCheckKind};
use crate::outlier::policy::CodeSet;

/// The check of a service; what is not written comes from `base`, that of the defaults. `none`
/// switches the check of the defaults off.
pub(crate) fn health_check(parent: &Map<'_>, base: Option<&HealthCheck>) -> Option<HealthCheck> {
    parent.declare("health_check", || {
        let default = if base.is_none() { Some("none") } else { None };
        Shape::word("none").or(Shape::Map).default(default)
    });
    let field = parent.field("health_check");
    match &field {
        None => {
            base?;
        }
        Some(field) if field.scalar() == Some("none") => return None,
        Some(field) if field.scalar().is_some() => {
            field.map();
            return base.cloned();
        }
        Some(_) => {}
    }
    let map = parent.child("health_check");
    map.declare("port", || {
        Shape::Integer(1, 65_535).default(base.and_then(|b| b.port))
    });
    map.declare("host", || {
        Shape::Text.default(base.and_then(|b| b.host.as_deref()))
    });
    let later = map.later(&["grpc", "exec", "body", "json_pointer"]);
    let kind = if later { None } else { kind(&map, base) };
    let check = HealthCheck {
        interval: map.duration(
            "interval",
            base.map_or(TEN_SECONDS, |b| b.interval),
            Span::POSITIVE,
        ),
        timeout: map.duration(
            "timeout",
            base.map_or(ONE_SECOND, |b| b.timeout),
            Span::POSITIVE,
        ),
        rise: map.integer("rise", base.map_or(2, |b| b.rise), &(1..=100)),
        fall: map.integer("fall", base.map_or(3, |b| b.fall), &(1..=100)),
        port: map
            .field("port")
            .and_then(|f| {
                f.convert(Code::NUMBER, |text| {
                    super::value::integer(text, &(1..=65_535))
                })
            })
            .and_then(|port| u16::try_from(port).ok())
            .or_else(|| base.and_then(|b| b.port)),
        host: map
            .text("host")
            .or_else(|| base.and_then(|b| b.host.clone())),
        kind: kind.unwrap_or(HealthCheckKind::Tcp),
    };
    map.finish();
    Some(check)
}

const TEN_SECONDS: Duration = Duration::from_secs(10);
const ONE_SECOND: Duration = Duration::from_secs(1);

fn kind(map: &Map<'_>, base: Option<&HealthCheck>) -> Option<HealthCheckKind> {
    map.declare("http", || {
        let path = Shape::Pattern("^/[!-\"$-~]*$");
        path.default(match base.map(|base| &base.kind) {
            Some(HealthCheckKind::Http { path, .. }) => Some(&**path),
            Some(HealthCheckKind::Tcp) | None => None,
        })
    });
    map.declare("tcp", || {
        let tcp = base.is_some_and(|base| base.kind == HealthCheckKind::Tcp);
        Shape::Boolean.default(tcp)
    });
    map.declare("expect", || {
        HTTP.shape().default(match base.map(|base| &base.kind) {
            Some(HealthCheckKind::Http { expect, .. }) => code_set::show(expect),
            Some(HealthCheckKind::Tcp) | None => vec!["200-399".to_owned()],
        })
    });
    let http = map.field("http");
    let tcp = map.field("tcp");
    let tcp_set = tcp.is_some() && map.boolean("tcp", true);
    let expect_field = map.field("expect");
    let expect = expect_field.as_ref().and_then(|field| HTTP.read(field));
    let report = |what: &str, help: &str| {
        let message = format!("`{}` {what}", map.path);
        map.context
            .report(Code::CHOOSE_ONE, &map.place, message, help);
    };
    match (http, tcp_set) {
        (Some(_), true) => {
            report("has both `http` and `tcp`", "keep one of them");
            None
        }
        (Some(field), false) => Some(HealthCheckKind::Http {
            path: path(&field)?,
            expect: expect.unwrap_or_else(|| CodeSet::from_ranges([(200, 399)])),
        }),
        (None, true) => {
            if expect_field.is_some() {
                report(
                    "expects a status of a `tcp` check",
                    "remove `expect`, or use `http`",
                );
            }
            Some(HealthCheckKind::Tcp)
        }
        (None, false) => match base.map(|base| base.kind.clone()) {
            Some(HealthCheckKind::Http { path, expect: old }) => Some(HealthCheckKind::Http {
                path,
                expect: expect.unwrap_or(old),
            }),
            Some(HealthCheckKind::Tcp) => Some(HealthCheckKind::Tcp),
            None => {
                report(
                    "does not say how to check",
                    "write `http: /health` or `tcp: true`",
                );
                None
            }
        },
    }
}

fn path(field: &Field<'_>) -> Option<Arc<str>> {
    field.convert(Code::NAME, |text| {
        let target = text.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
        if text.starts_with('/') && target {
            return Ok(Arc::from(text));
        }
        let help = "a path of the instance, as in `/health`".to_owned();
        Err((format!("`{text}` is no path"), help))
    })
}
