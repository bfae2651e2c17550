//! What orders of operators have in common, be they for instances (`admin/overrides.rs`) or for circuit
//! breakers (`admin/breakers.rs`): their time, who and why, and how they are answered.

use std::time::Duration;

use http::StatusCode;

use super::answer::{Answer, Fault, ok};
use super::routes::Param;
use crate::status::{OverrideDone, OverrideRefused};

pub(super) const TTL: Param = Param::new("ttl", "how long, at most 24h");
pub(super) const NOTE: Param = Param::new("note", "why");
pub(super) const ACTOR: Param = Param::new("actor", "who does it");

/// The time of an order that lasts.
pub(super) fn lasting(ttl: Option<&str>) -> Result<Duration, Fault> {
    let Some(text) = ttl else {
        let hint = "write `ttl: 10m` (--for 10m), at most 24h: an override that nobody ends must \
                    end by itself";
        return Err(bad_ttl("`ttl` (--for) is missing", hint));
    };
    crate::config::duration(text)
        .map_err(|(what, hint)| bad_ttl(&format!("`ttl` (--for): {what}"), &hint))
}

/// An order that is done at once has no time; `what` it is called.
pub(super) fn momentary(what: &str, ttl: Option<&str>) -> Result<(), Fault> {
    match ttl {
        None => Ok(()),
        Some(_) => Err(bad_ttl(
            &format!("{what} takes no `ttl` (--for)"),
            "what it does lasts; leave `ttl` (--for) out",
        )),
    }
}

fn bad_ttl(message: &str, hint: &str) -> Fault {
    Fault::new(StatusCode::BAD_REQUEST, "bad_ttl", message.to_owned(), hint)
}

/// How control carried out an order for `upstream`; `None`: that has gone meanwhile.
pub(super) fn carried_out(
    done: Option<Result<OverrideDone, OverrideRefused>>,
    upstream: &str,
) -> Result<Answer, Fault> {
    match done {
        Some(done) => done_or_refused(done),
        None => Err(Fault::new(
            StatusCode::NOT_FOUND,
            "unknown_upstream",
            format!("`{upstream}` has just gone"),
            "`outrigger upstreams` lists what is there",
        )),
    }
}

/// The same of one that reached somebody.
pub(super) fn done_or_refused(
    done: Result<OverrideDone, OverrideRefused>,
) -> Result<Answer, Fault> {
    let refused = match done {
        Ok(done) => return ok(&done),
        Err(refused) => refused,
    };
    let status = match &*refused.cause {
        "unknown" | "unknown_route" => StatusCode::NOT_FOUND,
        _ => StatusCode::CONFLICT,
    };
    Err(Fault::new(
        status,
        &refused.cause,
        refused.message,
        refused.hint,
    ))
}
