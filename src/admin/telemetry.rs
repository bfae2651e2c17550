//! `/metrics`, `/healthz`, `/readyz`: GET and HEAD only, no configuration values, any Host.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use http::header::ACCEPT;
use http::{Method, Request, StatusCode};

use super::answer::{Answer, Fault, answer as any, text};
use super::{Deps, HEARTBEAT, PATIENCE, registrations, within};
use crate::metrics::collect::Live;
use crate::metrics::exposition::Format;
use crate::status::{Condition, ProcessStatus, UpstreamStatus};

pub(super) async fn answer<B>(deps: &Deps, request: &Request<B>) -> Answer {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let message = "the telemetry listener is read only";
        let status = StatusCode::METHOD_NOT_ALLOWED;
        let fault = Fault::new(status, "method_not_allowed", message, "use GET");
        return fault.allowing("GET, HEAD".to_owned()).answer();
    }
    let query = request.uri().query().unwrap_or_default();
    match request.uri().path() {
        "/metrics" => {
            let accept = request.headers().get_all(ACCEPT).iter();
            let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
            metrics(deps, query, Format::negotiate(&accept.join(","))).await
        }
        "/healthz" => health(deps).await,
        "/readyz" => ready(deps, query).await,
        "/readyz/app" => match within(HEARTBEAT, deps.control.process()).await {
            Ok(process) => registrations::readiness(&process.app),
            Err(_) => unavailable(),
        },
        _ => {
            let hint = "there are /metrics, /healthz, /readyz and /readyz/app";
            let message = "no such page";
            Fault::new(StatusCode::NOT_FOUND, "not_found", message, hint).answer()
        }
    }
}

async fn metrics(deps: &Deps, query: &str, format: Format) -> Answer {
    let questions = async {
        let process = deps.control.process().await?;
        Ok((process, deps.control.upstreams().await?))
    };
    let Ok((process, upstreams)) = within(PATIENCE, questions).await else {
        return unavailable();
    };
    let only = form_urlencoded::parse(query.as_bytes())
        .filter(|(key, _)| key == "family")
        .flat_map(|(_, names)| names.split(',').map(str::to_owned).collect::<Vec<_>>())
        .filter(|name| !name.is_empty())
        .collect::<BTreeSet<_>>();
    let only = Some(&only).filter(|only| !only.is_empty());
    let body = scrape(deps, &process, &upstreams, only, format);
    any(StatusCode::OK, format.content_type(), body)
}

/// The text of `/metrics`.
pub(super) fn scrape(
    deps: &Deps,
    process: &ProcessStatus,
    upstreams: &[UpstreamStatus],
    only: Option<&BTreeSet<String>>,
    format: Format,
) -> String {
    let live = Live {
        process,
        upstreams,
        workers: &deps.facts.workers,
        reloads: &deps.reloads,
        dropped_lines: deps.journal.dropped_lines(),
    };
    let caps = deps.settings.borrow().caps;
    deps.collector.render(&live, caps, only, format)
}

async fn health(deps: &Deps) -> Answer {
    match within(HEARTBEAT, deps.control.process()).await {
        Ok(_) => text(StatusCode::OK, "ok\n"),
        Err(_) => unavailable(),
    }
}

async fn ready(deps: &Deps, query: &str) -> Answer {
    let Ok(process) = within(HEARTBEAT, deps.control.process()).await else {
        return unavailable();
    };
    let (status, word) = if process.ready {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready")
    };
    let verbose = form_urlencoded::parse(query.as_bytes()).any(|(key, _)| key == "verbose");
    let mut body = format!("{word}\n");
    for condition in &process.conditions {
        if condition.failing || verbose {
            line(&mut body, condition);
        }
    }
    if verbose {
        for condition in satisfied(&process) {
            line(&mut body, &condition);
        }
    }
    text(status, body)
}

/// What readiness depends on and holds.
fn satisfied(process: &ProcessStatus) -> Vec<Condition> {
    let holds = |name: String, message: String| Condition {
        name,
        failing: false,
        message,
    };
    let count = process.listeners.values().map(Vec::len).sum::<usize>();
    let file = process.config.file.as_deref().unwrap_or("built in");
    let mut all = vec![
        holds("listeners".to_owned(), format!("{count} addresses bound")),
        holds(
            "config".to_owned(),
            format!("{file}, hash {}", process.config.hash),
        ),
    ];
    for registry in &process.registries {
        let name = format!("registry:{}", registry.name);
        let message = match registry.age_s {
            Some(age) if registry.up => format!("answered {age:.1}s ago"),
            Some(age) => format!("down, answered {age:.1}s ago; the last good sets stay"),
            None => "in this process".to_owned(),
        };
        all.push(holds(name, message));
    }
    all.retain(|holds| process.conditions.iter().all(|c| c.name != holds.name));
    all
}

fn line(body: &mut String, condition: &Condition) {
    let sign = if condition.failing { '-' } else { '+' };
    let (name, message) = (&condition.name, &condition.message);
    let written = writeln!(body, "[{sign}] {name}: {message}");
    debug_assert!(written.is_ok(), "writing to a string cannot fail");
}

fn unavailable() -> Answer {
    text(
        StatusCode::SERVICE_UNAVAILABLE,
        "[-] control: does not answer\n",
    )
}
