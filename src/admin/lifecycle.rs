//! Orders to the process itself: reload, drain, quit, what it logs.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::answer::{Answer, Fault, json as answer_json, ok};
use super::call::Call;
use super::routes::{Route, Verb};
use super::views::{DrainView, LogLevelView};
use super::{Deps, PATIENCE, RELOAD_PATIENCE, within};
use crate::control::reload::Asker;
use crate::drain::{Asked, Stop};
use crate::outlier::book::Signed;
use crate::registration::Left;

pub(super) const ROUTES: &[Route] = &[
    Route::write(
        Verb::Post,
        "/api/v1/config:reload",
        "load the files again; 422 when a file is rejected. {actor, note}",
        |call| Box::pin(reload(call)),
    ),
    Route::get("/api/v1/drain", "how far a drain has come", |call| {
        Box::pin(async move { ok(&drain_view(&call.deps).await) })
    }),
    Route::write(
        Verb::Post,
        "/api/v1/drain",
        "take no new work, finish the old, stay. {deregister_only, actor, note}",
        |call| Box::pin(drain(call)),
    ),
    Route::write(
        Verb::Post,
        "/api/v1/quit",
        "drain, then end the process. {actor, note}",
        |call| Box::pin(quit(call)),
    ),
    Route::get("/api/v1/log-level", "what is logged", |call| {
        Box::pin(async move { ok(&log_view(&call.deps)) })
    }),
    Route::write(
        Verb::Put,
        "/api/v1/log-level",
        "log something else, for a time. {filter, for_s, actor, note}",
        |call| Box::pin(set_log_level(call)),
    ),
];

/// A little more than the registries are given.
const LEAVE_PATIENCE: Duration = Duration::from_secs(12);
/// Longest override of the log level.
const MOST_S: u64 = 24 * 3600;

/// Who orders and why.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    actor: Option<String>,
    note: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainOrder {
    #[serde(default)]
    deregister_only: bool,
    actor: Option<String>,
    note: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogOrder {
    filter: Option<String>,
    for_s: Option<u64>,
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
    Ok(answer_json(status, &report))
}

async fn drain(call: Call) -> Result<Answer, Fault> {
    let order: DrainOrder = call.json()?;
    let signed = call.signed(order.actor, order.note)?;
    if order.deregister_only {
        let left = within(LEAVE_PATIENCE, call.deps.control.deregister()).await?;
        let message = told(&left);
        call.deps.journal.emit(
            "deregistered",
            vec![
                ("registrations", json!(left.registrations)),
                ("unfinished", json!(left.unfinished)),
                ("actor", json!(signed.actor)),
                ("note", json!(signed.note)),
            ],
            message.clone(),
        );
        let view = DrainView {
            message,
            ..drain_view(&call.deps).await
        };
        return ok(&view);
    }
    call.deps.lifecycle.ask(Stop::Drain, asked(signed));
    ok(&drain_view(&call.deps).await)
}

/// What became of the registrations, for people.
fn told(left: &Left) -> String {
    let wait = left.wait.as_secs_f64().ceil();
    match (left.registrations, left.unfinished) {
        (0, _) => "nothing is registered on behalf of the app, so there is nothing to \
                   deregister; traffic goes on"
            .to_owned(),
        (_, 0) => format!(
            "the app is off the lists of its registries; callers may come for another {wait} s, \
             and traffic goes on"
        ),
        (all, late) => format!(
            "{late} of {all} registrations were not taken off in time; their leases end by \
             themselves, and traffic goes on"
        ),
    }
}

async fn quit(call: Call) -> Result<Answer, Fault> {
    let order: Order = call.json()?;
    let signed = call.signed(order.actor, order.note)?;
    call.deps.lifecycle.ask(Stop::Quit, asked(signed));
    let view = DrainView {
        message: "the process drains, then ends".to_owned(),
        ..drain_view(&call.deps).await
    };
    ok(&view)
}

fn asked(signed: Signed) -> Asked {
    Asked {
        actor: signed.actor,
        note: signed.note,
    }
}

async fn drain_view(deps: &Deps) -> DrainView {
    // At the very end control does not answer any more; then nothing is registered either.
    let process = within(PATIENCE, deps.control.process()).await.ok();
    let registrations = process.map(|process| process.registrations);
    let registrations = registrations.unwrap_or_default();
    let listed = registrations.iter().filter(|r| r.state != "absent");
    let stage = deps.lifecycle.stage();
    let cells = deps.facts.workers.iter();
    let open = cells.map(|cells| cells.app_connections.load(Relaxed)).sum();
    DrainView {
        stage: stage.as_str().to_owned(),
        open_connections: open,
        registrations: u64::try_from(listed.count()).unwrap_or(u64::MAX),
        message: String::new(),
    }
}

fn log_view(deps: &Deps) -> LogLevelView {
    let (level, over) = deps.log.current();
    let level = level.as_str().to_ascii_lowercase();
    LogLevelView {
        filter: over
            .as_ref()
            .map_or_else(|| level.clone(), |o| o.filter.clone()),
        configured: level,
        until_unix_s: over.and_then(|over| over.until_unix_s),
    }
}

async fn set_log_level(call: Call) -> Result<Answer, Fault> {
    let order: LogOrder = call.json()?;
    let signed = call.signed(order.actor, order.note)?;
    let bad = |message: String, hint: &str| {
        Fault::new(StatusCode::BAD_REQUEST, "bad_filter", message, hint)
    };
    let hint = "error, warn, info, debug, trace, or parts as in `outrigger::control=debug,warn`";
    let Some(filter) = order.filter else {
        return Err(bad("`filter` is missing".to_owned(), hint));
    };
    if order.for_s.is_some_and(|time| time == 0 || time > MOST_S) {
        return Err(bad("`for_s` is not in 1..=86400".to_owned(), ""));
    }
    let time = order.for_s.map(Duration::from_secs);
    let deps = call.deps;
    let set = deps.log.set(&filter, time);
    let number = set.map_err(|error| bad(error.to_string(), hint))?;
    deps.journal.emit(
        "log_level_changed",
        vec![
            ("filter", json!(filter)),
            ("for_s", json!(order.for_s)),
            ("actor", json!(signed.actor)),
            ("note", json!(signed.note)),
        ],
        format!("log filter is {filter} now, by {}", signed.actor),
    );
    if let Some(time) = time {
        let (log, journal) = (deps.log.clone(), deps.journal.clone());
        // It ends with its time, or with this thread.
        drop(tokio::spawn(async move {
            tokio::time::sleep(time).await;
            if log.end(number) {
                let level = log.current().0.as_str().to_ascii_lowercase();
                let fields = vec![("filter", json!(level)), ("actor", json!("auto"))];
                let msg = format!("log filter is {level} again");
                journal.emit("log_level_changed", fields, msg);
            }
        }));
    }
    ok(&log_view(&deps))
}
