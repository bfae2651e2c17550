//! `app` and `admin`.

use std::sync::Arc;
use std::time::Duration;

use super::address::is_local;
use super::reader::{Field, Map};
use super::record::{LISTEN, Shape};
use super::register::register;
use super::value::{Span, duration};
use crate::config::diagnostic::Code;
use crate::config::types::{Admin, App, Listen, Register};

/// `app` and where the items of `app.register` stand; `host_name` is the default of `app.name`.
pub(crate) fn app<'a>(map: Map<'a>, host_name: &str) -> (App, Vec<(Register, Field<'a>)>) {
    let shutdown = map.child("shutdown");
    shutdown.declare("propagation_delay", || {
        let time = Shape::Duration(Span::ZERO_OR_MORE);
        Shape::word("auto").or(time).default("auto")
    });
    let propagation_delay = shutdown.field("propagation_delay").and_then(|field| {
        if field.text()? == "auto" {
            return None;
        }
        field.convert(Code::DURATION, |text| duration(text, Span::ZERO_OR_MORE))
    });
    let drain_timeout =
        shutdown.duration("drain_timeout", Duration::from_secs(25), Span::ZERO_OR_MORE);
    shutdown.finish();
    map.declare("name", || Shape::Text.default(host_name));
    let name = map.text("name");
    let items = register(&map, name.as_deref());
    let app = App {
        name: name.unwrap_or_else(|| Arc::from(host_name)),
        register: items.iter().map(|(one, _)| one.clone()).collect(),
        namespace: map.text("namespace"),
        zone: map.text("zone"),
        propagation_delay,
        drain_timeout,
    };
    map.finish();
    (app, items)
}

/// `admin`.
pub(crate) fn admin(map: Map<'_>) -> Admin {
    map.later(&["dashboard"]);
    map.declare("listen", || LISTEN.default("127.0.0.1:15002"));
    let field = map.field("listen");
    let listen = field.as_ref().and_then(|field| field.listen());
    let admin = Admin {
        listen: listen.unwrap_or_else(|| Listen::Tcp(([127, 0, 0, 1], 15002).into())),
        token_file: map.path("token_file"),
    };
    if let Some(field) = field.filter(|_| !is_local(&admin.listen) && admin.token_file.is_none()) {
        let what = "the admin API would be reachable from other machines without a token";
        field.wrong(
            Code::NEEDS_TOKEN,
            what,
            "set `admin.token_file`, or listen on 127.0.0.1",
        );
    }
    map.finish();
    admin
}
