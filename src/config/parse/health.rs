//! `health_check`: one kind, and how often.

use std::sync::Arc;
use std::time::Duration;

use super::code_set::{self, HTTP};
use super::reader::{Field, Map};
use super::record::Shape;
use super::register::{json_rule, program};
use super::value::Span;
use crate::config::diagnostic::Code;
use crate::config::types::{HealthCheck, HealthCheckKind, JsonRule};
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
    let kind = kind(&map, base.map(|base| &base.kind));
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

/// What an `http` check looks at.
struct Looks {
    expect: CodeSet,
    body: Option<Arc<str>>,
    json: Option<JsonRule>,
}

impl Looks {
    fn of(base: Option<&HealthCheckKind>) -> Self {
        match base {
            Some(HealthCheckKind::Http {
                expect, body, json, ..
            }) => Self {
                expect: expect.clone(),
                body: body.clone(),
                json: json.clone(),
            },
            Some(
                HealthCheckKind::Tcp | HealthCheckKind::Grpc { .. } | HealthCheckKind::Exec(_),
            )
            | None => Self {
                expect: CodeSet::from_ranges([(200, 399)]),
                body: None,
                json: None,
            },
        }
    }
}

fn kind(map: &Map<'_>, base: Option<&HealthCheckKind>) -> Option<HealthCheckKind> {
    declare(map, base);
    let http = map.field("http");
    let tcp = map.field("tcp");
    let tcp = tcp.filter(|_| map.boolean("tcp", true));
    let grpc = map.field("grpc");
    let exec = map.field("exec");
    let extras = ["expect", "body", "json_pointer"].map(|key| (key, map.field(key)));
    let written = Written::read(&extras);
    let report = |what: &str, help: &str| {
        let message = format!("`{}` {what}", map.path);
        map.context
            .report(Code::CHOOSE_ONE, &map.place, message, help);
    };
    let kinds = [
        ("http", &http),
        ("tcp", &tcp),
        ("grpc", &grpc),
        ("exec", &exec),
    ];
    let chosen: Vec<&str> = kinds
        .iter()
        .filter(|(_, f)| f.is_some())
        .map(|(key, _)| *key)
        .collect();
    if let [one, other, ..] = chosen[..] {
        report(
            &format!("has both `{one}` and `{other}`"),
            "keep one of them",
        );
        return None;
    }
    let is_http = match (chosen.first(), base) {
        (Some(kind), _) => *kind == "http",
        (None, Some(base)) => matches!(base, HealthCheckKind::Http { .. }),
        (None, None) => {
            let help = "write `http: /health`, `tcp: true`, `grpc: my.package.Service` or `exec: [program]`";
            report("does not say how to check", help);
            return None;
        }
    };
    if is_http {
        let inherits = http.is_none();
        let path = match (&http, base) {
            (Some(field), _) => path(field)?,
            (None, Some(HealthCheckKind::Http { path, .. })) => Arc::clone(path),
            (None, _) => return None,
        };
        return Some(written.over(path, Looks::of(base.filter(|_| inherits))));
    }
    for (key, field) in &extras {
        if field.is_some() {
            report(
                &format!("has `{key}`, and no `http` whose answer it could be about"),
                &format!("remove `{key}`, or use `http`"),
            );
        }
    }
    match (tcp, grpc, exec) {
        (Some(_), _, _) => Some(HealthCheckKind::Tcp),
        (None, Some(field), _) => Some(HealthCheckKind::Grpc {
            service: grpc_service(&field)?,
        }),
        (None, None, Some(field)) => program(&field).map(HealthCheckKind::Exec),
        (None, None, None) => base.cloned(),
    }
}

fn declare(map: &Map<'_>, base: Option<&HealthCheckKind>) {
    let looks = Looks::of(base);
    map.declare("http", || {
        let path = Shape::Pattern("^/[!-\"$-~]*$");
        path.default(match base {
            Some(HealthCheckKind::Http { path, .. }) => Some(&**path),
            Some(
                HealthCheckKind::Tcp | HealthCheckKind::Grpc { .. } | HealthCheckKind::Exec(_),
            )
            | None => None,
        })
    });
    map.declare("tcp", || {
        Shape::Boolean.default(base == Some(&HealthCheckKind::Tcp))
    });
    map.declare("grpc", || {
        Shape::Pattern("^[A-Za-z0-9._/-]*$").default(match base {
            Some(HealthCheckKind::Grpc { service }) => Some(&**service),
            Some(
                HealthCheckKind::Tcp | HealthCheckKind::Http { .. } | HealthCheckKind::Exec(_),
            )
            | None => None,
        })
    });
    map.declare("exec", || {
        Shape::Text.list().default(match base {
            Some(HealthCheckKind::Exec(command)) => Some(command.clone()),
            Some(
                HealthCheckKind::Tcp | HealthCheckKind::Http { .. } | HealthCheckKind::Grpc { .. },
            )
            | None => None,
        })
    });
    map.declare("expect", || {
        HTTP.shape().default(code_set::show(&looks.expect))
    });
    map.declare("body", || Shape::Text.default(looks.body.as_deref()));
    map.declare("json_pointer", || {
        let shown = looks
            .json
            .as_ref()
            .map(|rule| format!("{}={}", rule.pointer, rule.value));
        Shape::Pattern("^/[^=]*(=.*)?$").default(shown)
    });
}

/// What is written of the looks; read before the kind is known, so that every problem is told.
struct Written {
    expect: Option<CodeSet>,
    body: Option<Arc<str>>,
    json: Option<JsonRule>,
}

impl Written {
    fn read(extras: &[(&str, Option<Field<'_>>); 3]) -> Self {
        let [(_, expect), (_, body), (_, json)] = extras;
        let body = body.as_ref().and_then(|field| {
            field.convert(Code::EMPTY, |text| match text {
                "" => Err((
                    "every body has nothing in it".to_owned(),
                    "write a text that a good answer has".to_owned(),
                )),
                text => Ok(Arc::from(text)),
            })
        });
        let json = json.as_ref();
        Self {
            expect: expect.as_ref().and_then(|field| HTTP.read(field)),
            body,
            json: json.and_then(|field| field.convert(Code::NAME, json_rule)),
        }
    }

    fn over(self, path: Arc<str>, old: Looks) -> HealthCheckKind {
        HealthCheckKind::Http {
            path,
            expect: self.expect.unwrap_or(old.expect),
            body: self.body.or(old.body),
            json: self.json.or(old.json),
        }
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

/// A service of the instance's health service; empty: the server as a whole.
fn grpc_service(field: &Field<'_>) -> Option<Arc<str>> {
    field.convert(Code::NAME, |text| {
        let good = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        if text.len() <= 255 && text.chars().all(good) {
            return Ok(Arc::from(text));
        }
        let help = "write `grpc: my.package.Service`, or `grpc: \"\"` for the server as a whole";
        Err((format!("`{text}` is no gRPC service"), help.to_owned()))
    })
}
