//! The check of the local app: HTTP with its status and, if asked, a value of its JSON; a TCP
//! connection; the standard health service of gRPC; a program. Rise and fall are those of the checks
//! of instances; before the first check the app counts as starting.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, header};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::hooks::program;
use super::machine::Standing;
use crate::config::types::{AppCheck, AppCheckKind, JsonRule};
use crate::endpoint::Address;
use crate::health::checker::{self, Check};
use crate::health::counter::HealthCounter;
use crate::http_client::{HttpClient, Target};
use crate::journal::Journal;
use crate::outlier::policy::Policy;

/// Bytes of an answer that are looked at.
const MAX_BODY: usize = 1024 * 1024;

/// How the app stands and what its last check said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AppHealth {
    pub(super) standing: Standing,
    pub(super) message: Arc<str>,
}

/// Before the first check.
pub(super) fn unknown() -> AppHealth {
    AppHealth {
        standing: Standing::Starting,
        message: Arc::from("not checked yet"),
    }
}

/// Checks until nobody listens.
pub(super) async fn run(check: AppCheck, health: watch::Sender<AppHealth>, journal: Journal) {
    let mut counter = HealthCounter::new(check.rise, check.fall);
    let mut ticks = tokio::time::interval(check.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = health.closed() => return,
            _ = ticks.tick() => {}
        }
        let result = tokio::select! {
            () = health.closed() => return,
            result = once(&check) => result,
        };
        let good = result.is_ok();
        let message = result.unwrap_or_else(|error| error);
        counter.record(good);
        let standing = match counter.passing() {
            true => Standing::Up,
            false => Standing::Down,
        };
        let before = health.borrow().standing;
        if standing != before {
            tell(&journal, standing, &message);
        }
        let message = Arc::from(message);
        health.send_replace(AppHealth { standing, message });
    }
}

fn tell(journal: &Journal, standing: Standing, message: &str) {
    let fields = vec![("check", json!(message))];
    match standing {
        Standing::Up => journal.emit("app_up", fields, format!("the app is up: {message}")),
        Standing::Starting | Standing::Down => {
            journal.emit("app_down", fields, format!("the app is down: {message}"));
        }
    }
}

/// One check: what was seen, or what was wrong.
async fn once(check: &AppCheck) -> Result<String, String> {
    let policy = Policy::builtin(false);
    let run = async |what: Check, address: &str| {
        let address = Address::parse(address).map_err(|error| error.to_string())?;
        let verdict = checker::run(&what, &address, check.timeout, &policy).await;
        match verdict.is_good() {
            true => Ok(verdict.message),
            false => Err(verdict.message),
        }
    };
    match &check.kind {
        AppCheckKind::Tcp(address) => run(Check::Tcp, address).await,
        AppCheckKind::Grpc { address, service } => {
            let what = Check::GrpcServing {
                host: address.to_string(),
                service: service.to_string(),
            };
            run(what, address).await
        }
        AppCheckKind::Exec(command) => program(command, check.timeout)
            .await
            .map(|()| "the program ended with 0".to_owned()),
        AppCheckKind::Http {
            address,
            path,
            expect,
            json,
        } => {
            let client = HttpClient {
                timeout: check.timeout,
                max_body: MAX_BODY,
            };
            let request = Request::get(&**path)
                .header(header::USER_AGENT, "outrigger-check")
                .body(Full::<Bytes>::default())
                .map_err(|error| error.to_string())?;
            let answer = client
                .send(&Target::Tcp(address.to_string()), request)
                .await;
            let answer = answer.map_err(|error| error.to_string())?;
            let status = answer.status().as_u16();
            if !expect.contains(status) {
                return Err(format!("answered {status}, which is not expected"));
            }
            match json {
                None => Ok(format!("answered {status}")),
                Some(rule) => says(answer.body(), rule),
            }
        }
    }
}

/// Whether the value at the pointer is the text that is wanted.
fn says(body: &[u8], rule: &JsonRule) -> Result<String, String> {
    let value: Value =
        serde_json::from_slice(body).map_err(|error| format!("the answer is no JSON: {error}"))?;
    let Some(found) = value.pointer(&rule.pointer) else {
        return Err(format!("the answer has nothing at {}", rule.pointer));
    };
    let text = match found {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            found.to_string()
        }
    };
    let message = format!("{} is {text}", rule.pointer);
    if text.eq_ignore_ascii_case(&rule.value) {
        Ok(message)
    } else {
        Err(format!("{message}, not {}", rule.value))
    }
}

#[cfg(test)]
mod tests;
