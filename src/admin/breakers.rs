//! Orders for circuit breakers. They are listed and undone with those for instances
//! (`admin/overrides.rs`).

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

use super::answer::{Answer, Fault};
use super::api::upstream;
use super::call::Call;
use super::orders::{ACTOR, NOTE, carried_out, lasting, momentary};
use super::routes::{Param, Route, Verb};
use super::{PATIENCE, within};
use crate::control::BreakerWish;
use crate::policy::breaker::words::Order;

pub(super) const ROUTES: &[Route] = &[Route::write(
    Verb::Post,
    "/api/v1/upstreams/{u}/breaker",
    "force a circuit breaker open or closed for a time, switch it off, or leave it to the rules",
    |call| Box::pin(order(call)),
)
.body(&[
    Param::new("order", "force_open, force_closed, disable or auto"),
    Param::new(
        "route",
        "the route whose breaker it is; without it that of the upstream",
    ),
    Param::new("ttl", "how long, at most 24h; not with auto"),
    NOTE,
    ACTOR,
])];

/// The body of an order.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    order: Option<String>,
    route: Option<String>,
    ttl: Option<String>,
    note: Option<String>,
    actor: Option<String>,
}

async fn order(call: Call) -> Result<Answer, Fault> {
    let body: Body = call.json()?;
    let signed = call.signed(body.actor, body.note)?;
    let order = wanted(body.order.as_deref(), body.ttl.as_deref())?;
    let status = upstream(&call.deps, call.name("u")).await?;
    let wish = BreakerWish {
        upstream: status.summary.name.clone(),
        route: body.route,
        order,
        signed,
    };
    let done = within(PATIENCE, call.deps.control.order_breaker(wish)).await?;
    carried_out(done, &status.summary.name)
}

/// The order and its time; `None`: auto.
fn wanted(order: Option<&str>, ttl: Option<&str>) -> Result<Option<(Order, Duration)>, Fault> {
    let order = match order {
        Some("force_open") => Order::ForceOpen,
        Some("force_closed") => Order::ForceClosed,
        Some("disable") => Order::Disable,
        Some("auto") => return momentary("auto", ttl).map(|()| None),
        other => {
            let message = match other {
                Some(other) => format!("there is no order `{other}`"),
                None => "`order` is missing".to_owned(),
            };
            let words = "`order` is one of force_open, force_closed, disable, auto";
            return Err(Fault::new(
                StatusCode::BAD_REQUEST,
                "bad_body",
                message,
                words,
            ));
        }
    };
    Ok(Some((order, lasting(ttl)?)))
}
