//! The check of the local app: HTTP with its status and, if asked, a value of its JSON; a TCP
//! connection; the standard health service of gRPC; a program. Rise and fall are those of the checks
//! of instances; before the first check the app counts as starting.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::watch;

use super::machine::Standing;
use crate::config::types::{AppCheck, AppCheckKind};
use crate::endpoint::Address;
use crate::health::checker::{self, Check, GrpcCheck, HttpCheck};
use crate::health::counter::HealthCounter;
use crate::health::exec::program;
use crate::health::expect::Expectation;
use crate::journal::Journal;
use crate::outlier::policy::Policy;

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
    let (what, address) = match &check.kind {
        AppCheckKind::Tcp(address) => (Check::Tcp, &**address),
        AppCheckKind::Grpc { address, service } => {
            let service = Some(Arc::clone(service));
            let check = GrpcCheck {
                host: None,
                service,
            };
            (Check::Grpc(Arc::new(check)), &**address)
        }
        AppCheckKind::Exec(command) => {
            let said = program(command, &[], check.timeout).await?;
            return Ok(match said.as_str() {
                "" => "the program ended with 0".to_owned(),
                _ => said,
            });
        }
        AppCheckKind::Http {
            address,
            path,
            expect,
            json,
        } => {
            let check = HttpCheck {
                path: Arc::clone(path),
                host: None,
                http2: false,
                expect: Expectation {
                    status: Some(expect.clone()),
                    body: None,
                    json: json.clone(),
                },
            };
            (Check::Http(Arc::new(check)), &**address)
        }
    };
    let address = Address::parse(address).map_err(|error| error.to_string())?;
    let policy = Policy::builtin(false);
    let verdict = checker::run(&what, &address, check.timeout, &policy).await;
    match verdict.is_good() {
        true => Ok(verdict.message),
        false => Err(verdict.message),
    }
}

#[cfg(test)]
mod tests;
