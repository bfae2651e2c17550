//! `GET /api/v1/events?after=&upstream=&type=&limit=`.

use super::answer::{Answer, Fault, ok};
use super::call::Call;
use super::routes::{Param, Route};
use super::views::Events;
use crate::journal::{Entry, Journal};

pub(super) const ROUTES: &[Route] = &[Route::get(
    "/api/v1/events",
    "the journal: what was decided and why",
    |call| Box::pin(list(call)),
)
.query(&[
    Param::new("after", "events after this id, the oldest first"),
    Param::new("upstream", "only of this upstream"),
    Param::new("type", "only this event"),
    Param::new("limit", "so many at most"),
])];

async fn list(call: Call) -> Result<Answer, Fault> {
    ok(&find(&call.deps.journal, &call.query)?)
}

/// Events in one answer, where nothing is said; also the most.
const MOST: usize = 1000;

/// The events a query asks for: after an id the oldest first, without one the newest.
pub(super) fn find(journal: &Journal, query: &[(String, String)]) -> Result<Events, Fault> {
    let of = |key: &str| query.iter().find(|(k, _)| k == key).map(|(_, v)| &**v);
    let after = of("after").filter(|text| !text.is_empty());
    let after = after.map(|text| u64::from_str_radix(text, 16)).transpose();
    let after = after.map_err(|_| bad("after", "the `id` of an event, or `next` of an answer"))?;
    let limit = of("limit").map(str::parse::<usize>).transpose();
    let limit = limit.map_err(|_| bad("limit", "a number"))?.unwrap_or(MOST);
    let limit = limit.clamp(1, MOST);
    let (upstream, kind) = (of("upstream"), of("type"));
    let matches = |entry: &Entry| {
        upstream.is_none_or(|name| entry.upstream() == Some(name))
            && kind.is_none_or(|name| entry.event == name)
    };
    let latest = *journal.follow().borrow();
    let restarted = after.is_some_and(|id| id > latest);
    let entries = journal.after(after.filter(|_| !restarted).unwrap_or(0));
    let mut next = entries.last().map_or(latest, |entry| entry.id);
    let mut found: Vec<_> = entries.iter().filter(|entry| matches(entry)).collect();
    if found.len() > limit {
        if after.is_none() {
            found.drain(..found.len() - limit);
        } else {
            found.truncate(limit);
            next = found.last().map_or(next, |entry| entry.id);
        }
    }
    Ok(Events {
        events: found.iter().map(|entry| entry.object.clone()).collect(),
        next: format!("{next:06x}"),
        restarted,
    })
}

fn bad(key: &str, hint: &str) -> Fault {
    Fault::bad_query(format!("the value of `{key}` cannot be read"), hint)
}
