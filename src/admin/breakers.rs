//! Orders for circuit breakers. They are listed and undone with those for instances
//! (`admin/overrides.rs`).

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

use super::answer::{Answer, Fault, ok};
use super::api::upstream;
use super::call::Call;
use super::overrides::refusal;
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
    Param::new("note", "why"),
    Param::new("actor", "who does it"),
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
    match within(PATIENCE, call.deps.control.order_breaker(wish)).await? {
        Some(Ok(done)) => ok(&done),
        Some(Err(refused)) => Err(refusal(refused)),
        None => Err(Fault::new(
            StatusCode::NOT_FOUND,
            "unknown_upstream",
            format!("`{}` has just gone", status.summary.name),
            "`outrigger upstreams` lists what is there",
        )),
    }
}

/// The order and its time; `None`: auto.
fn wanted(order: Option<&str>, ttl: Option<&str>) -> Result<Option<(Order, Duration)>, Fault> {
    let bad = |word, message: String, hint: &str| {
        Err(Fault::new(StatusCode::BAD_REQUEST, word, message, hint))
    };
    let words = "`order` is one of force_open, force_closed, disable, auto";
    let order = match order {
        Some("force_open") => Order::ForceOpen,
        Some("force_closed") => Order::ForceClosed,
        Some("disable") => Order::Disable,
        Some("auto") if ttl.is_some() => {
            let hint = "what it does lasts; leave `ttl` (--for) out";
            return bad("bad_ttl", "auto takes no `ttl` (--for)".to_owned(), hint);
        }
        Some("auto") => return Ok(None),
        Some(other) => return bad("bad_body", format!("there is no order `{other}`"), words),
        None => return bad("bad_body", "`order` is missing".to_owned(), words),
    };
    let Some(text) = ttl else {
        let hint = "write `ttl: 10m` (--for 10m), at most 24h: an override that nobody ends must \
                    end by itself";
        return bad("bad_ttl", "`ttl` (--for) is missing".to_owned(), hint);
    };
    match crate::config::duration(text) {
        Ok(ttl) => Ok(Some((order, ttl))),
        Err((what, hint)) => bad("bad_ttl", format!("`ttl` (--for): {what}"), &hint),
    }
}
