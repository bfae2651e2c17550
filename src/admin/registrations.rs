//! `GET /api/v1/registrations`, and `/readyz/app` of the telemetry listener.

use http::StatusCode;

use super::answer::{Answer, Fault, ok, text};
use super::call::Call;
use super::routes::Route;
use super::views::Registrations;
use super::{PATIENCE, within};
use crate::status::AppStatus;

pub(super) const ROUTES: &[Route] = &[Route::get(
    "/api/v1/registrations",
    "where the app is registered, and how it stands",
    |call| Box::pin(list(call)),
)];

async fn list(call: Call) -> Result<Answer, Fault> {
    let process = within(PATIENCE, call.deps.control.process()).await?;
    ok(&Registrations {
        app: process.app,
        registrations: process.registrations,
    })
}

/// Whether the app takes traffic.
pub(super) fn readiness(app: &AppStatus) -> Answer {
    let status = match app.is_up() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut body = format!("{}\n", app.state);
    for check in &app.checks {
        body.push_str(&format!("{check}\n"));
    }
    text(status, body)
}
