//! Overrides of instances: set; those of breakers too (`admin/breakers.rs`): list, undo.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

use super::answer::{Answer, Fault, ok};
use super::api::upstream;
use super::call::Call;
use super::orders::{ACTOR, NOTE, TTL, carried_out, done_or_refused, lasting, momentary};
use super::routes::{Field, Param, Route, Verb};
use super::views::Overrides;
use super::{PATIENCE, resolve, within};
use crate::control::OverrideOrder;
use crate::endpoint::Address;
use crate::outlier::detector::OverrideKind;

const FORCE: Param = Param::of(
    Field::Switch,
    "force",
    "beyond the cap, or although it is the last",
);
const SIGNED: &[Param] = &[NOTE, ACTOR];
const TIMED: &[Param] = &[TTL, NOTE, ACTOR];
const FORCED: &[Param] = &[TTL, NOTE, ACTOR, FORCE];

pub(super) const ROUTES: &[Route] = &[
    Route::write(
        Verb::Post,
        "/api/v1/upstreams/{u}/instances/{i}:eject",
        "take an instance out for a time; it is not probed",
        |call| Box::pin(order(call, OverrideKind::Eject)),
    )
    .body(FORCED),
    Route::write(
        Verb::Post,
        "/api/v1/upstreams/{u}/instances/{i}:restore",
        "put an ejected instance back now",
        |call| Box::pin(order(call, OverrideKind::Restore)),
    )
    .body(SIGNED),
    Route::write(
        Verb::Post,
        "/api/v1/upstreams/{u}/instances/{i}:hold",
        "do not eject an instance by the rules for a time",
        |call| Box::pin(order(call, OverrideKind::Hold)),
    )
    .body(TIMED),
    Route::write(
        Verb::Post,
        "/api/v1/upstreams/{u}/instances/{i}:disable",
        "neither use nor count an instance for a time",
        |call| Box::pin(order(call, OverrideKind::Disable)),
    )
    .body(FORCED),
    Route::write(
        Verb::Post,
        "/api/v1/upstreams/{u}/instances/{i}:enable",
        "end a disable",
        |call| Box::pin(order(call, OverrideKind::Enable)),
    )
    .body(SIGNED),
    Route::get("/api/v1/overrides", "overrides in force", |call| {
        Box::pin(list(call))
    }),
    Route::write(
        Verb::Delete,
        "/api/v1/overrides/{id}",
        "undo an override",
        |call| Box::pin(clear(call)),
    )
    .query(SIGNED),
];

/// The body of an order.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    ttl: Option<String>,
    note: Option<String>,
    actor: Option<String>,
    #[serde(default)]
    force: bool,
}

async fn order(call: Call, kind: OverrideKind) -> Result<Answer, Fault> {
    let body: Body = call.json()?;
    let signed = call.signed(body.actor, body.note)?;
    let ttl = ttl(kind, body.ttl.as_deref())?;
    if body.force && !matches!(kind, OverrideKind::Eject | OverrideKind::Disable) {
        return Err(Fault::new(
            StatusCode::BAD_REQUEST,
            "bad_body",
            "this order takes no `force`",
            "only eject (beyond the cap) and disable (the last one) do; leave --force out",
        ));
    }
    let status = upstream(&call.deps, call.name("u")).await?;
    let known = status.instances.iter().map(|i| &*i.instance);
    let found = resolve::instance(call.name("i"), known).map_err(|problem| {
        let name = &status.summary.name;
        let message = format!("{name}: {}", problem.message);
        Fault::new(StatusCode::NOT_FOUND, problem.word, message, problem.hint)
    })?;
    let Ok(address) = Address::parse(found) else {
        let message = format!("`{found}` is no address");
        return Err(Fault::new(
            StatusCode::NOT_FOUND,
            "unknown_instance",
            message,
            "",
        ));
    };
    let order = OverrideOrder {
        upstream: status.summary.name.clone(),
        address,
        kind,
        ttl,
        force: body.force,
        signed,
    };
    let done = within(PATIENCE, call.deps.control.order(order)).await?;
    carried_out(done, &status.summary.name)
}

fn ttl(kind: OverrideKind, text: Option<&str>) -> Result<Option<Duration>, Fault> {
    match kind {
        OverrideKind::Eject | OverrideKind::Hold | OverrideKind::Disable => lasting(text).map(Some),
        OverrideKind::Clear
        | OverrideKind::Enable
        | OverrideKind::Release
        | OverrideKind::Restore => momentary("this order", text).map(|()| None),
    }
}

async fn list(call: Call) -> Result<Answer, Fault> {
    let upstreams = within(PATIENCE, call.deps.control.upstreams()).await?;
    let overrides = upstreams.into_iter().flat_map(|u| u.overrides).collect();
    ok(&Overrides { overrides })
}

async fn clear(call: Call) -> Result<Answer, Fault> {
    let signed = call.signed(None, None)?;
    let id = call.name("id");
    let number = id.strip_prefix("ov-").and_then(|n| n.parse().ok());
    let done = match number {
        Some(number) => within(PATIENCE, call.deps.control.clear_override(number, signed)).await?,
        None => None,
    };
    match done {
        Some(done) => done_or_refused(done),
        None => Err(Fault::new(
            StatusCode::NOT_FOUND,
            "unknown_override",
            format!("no override `{id}` is in force"),
            "`outrigger overrides` lists them; perhaps its time is over",
        )),
    }
}
