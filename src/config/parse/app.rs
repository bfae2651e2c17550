//! `app` and `admin`.

use std::sync::Arc;
use std::time::Duration;

use super::address::is_local;
use super::reader::Map;
use super::record::{LISTEN, Shape};
use super::value::{Span, duration};
use crate::config::diagnostic::Code;
use crate::config::types::{Admin, App, Listen};

/// `app`; `host_name` is the default of `app.name`.
pub(crate) fn app(map: Map<'_>, host_name: &str) -> App {
    map.later(&["register"]);
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
    let app = App {
        name: map.text("name").unwrap_or_else(|| Arc::from(host_name)),
        namespace: map.text("namespace"),
        zone: map.text("zone"),
        propagation_delay,
        drain_timeout,
    };
    map.finish();
    app
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
