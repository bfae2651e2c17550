//! Orders to the process itself: reload, drain, quit, what it logs.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::answer::{Answer, Fault, json as answer_json, ok};
use super::call::{Call, Signed};
use super::routes::{Route, Verb};
use super::views::{DrainView, LogLevelView};
use super::{Deps, RELOAD_PATIENCE, within};
use crate::control::reload::Asker;
use crate::drain::{Asked, Stop};

pub(super) const ROUTES: &[Route] = &[
    Route::write(
        Verb::Post,
        "/api/v1/config:reload",
        "load the files again; 422 when a file is rejected. {actor, note}",
        |call| Box::pin(reload(call)),
    ),
    Route::get("/api/v1/drain", "how far a drain has come", |call| {
        Box::pin(async move { ok(&drain_view(&call.deps)) })
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
        let message = "nothing is registered on behalf of the app, so there is nothing to \
                       deregister; traffic goes on";
        call.deps.journal.emit(
            "deregistered",
            vec![
                ("registrations", json!(0)),
                ("actor", json!(signed.actor)),
                ("note", json!(signed.note)),
            ],
            message.to_owned(),
        );
        let view = DrainView {
            message: message.to_owned(),
            ..drain_view(&call.deps)
        };
        return ok(&view);
    }
    call.deps.lifecycle.ask(Stop::Drain, asked(signed));
    ok(&drain_view(&call.deps))
}

async fn quit(call: Call) -> Result<Answer, Fault> {
    let order: Order = call.json()?;
    let signed = call.signed(order.actor, order.note)?;
    call.deps.lifecycle.ask(Stop::Quit, asked(signed));
    let view = DrainView {
        message: "the process drains, then ends".to_owned(),
        ..drain_view(&call.deps)
    };
    ok(&view)
}

fn asked(signed: Signed) -> Asked {
    Asked {
        actor: signed.actor,
        note: signed.note,
    }
}

fn drain_view(deps: &Deps) -> DrainView {
    let stage = deps.lifecycle.stage();
    let cells = deps.facts.workers.iter();
    let open = cells.map(|cells| cells.app_connections.load(Relaxed)).sum();
    DrainView {
        stage: stage.as_str().to_owned(),
        open_connections: open,
        registrations: 0,
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
