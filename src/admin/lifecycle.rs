//! Orders to the process itself: reload.

use http::StatusCode;
use serde::Deserialize;

use super::answer::{Answer, Fault, json};
use super::call::Call;
use super::routes::{Route, Verb};
use super::{RELOAD_PATIENCE, within};
use crate::control::reload::Asker;

pub(super) const ROUTES: &[Route] = &[Route::write(
    Verb::Post,
    "/api/v1/config:reload",
    "load the files again; 422 when a file is rejected. {actor, note}",
    |call| Box::pin(reload(call)),
)];

/// Who orders and why.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    actor: Option<String>,
    note: Option<String>,
}

async fn reload(call: Call) -> Result<Answer, Fault> {
    let order: Order = call.json()?;
    let signed = call.signed(order.actor, order.note)?;
    let asker = Asker::Api {
        actor: signed.actor,
        note: signed.note,
    };
    let report = within(RELOAD_PATIENCE, call.deps.control.reload(asker)).await?;
    let status = if report.is_good() {
        StatusCode::OK
    } else {
        StatusCode::UNPROCESSABLE_ENTITY
    };
    Ok(json(status, &report))
}
