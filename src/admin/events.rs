//! `GET /api/v1/events` and what the stream of `admin/stream.rs` shares with it: which events are
//! wanted.

use std::time::Duration;

use super::answer::{Answer, Fault, ok};
use super::call::Call;
use super::routes::{Field, Param, Route};
use super::views::Events;
use super::{HEARTBEAT, stream, within};
use crate::clock;
use crate::config::suggest::nearest;
use crate::journal::{EVENTS, Entry, Journal};

/// Events in one answer, where nothing is said; also the most.
const MOST: usize = 1000;

const AFTER: Param = Param::new("after", "events after this id, the oldest first");
const UPSTREAM: Param = Param::new("upstream", "only of this upstream");
const TYPE: Param = Param::new("type", "only this event");
const SINCE: Param = Param::new("since", "only younger ones: 1h, or an RFC 3339 time");

pub(super) const ROUTES: &[Route] = &[
    Route::get(
        "/api/v1/events",
        "the journal: what was decided and why",
        |call| Box::pin(list(call)),
    )
    .query(&[
        AFTER,
        UPSTREAM,
        TYPE,
        SINCE,
        Param::of(Field::Number, "limit", "so many at most"),
    ]),
    Route::get(
        "/api/v1/events/stream",
        "the journal as it is written, as server-sent events; Last-Event-ID resumes",
        |call| Box::pin(stream::answer(call)),
    )
    .query(&[AFTER, UPSTREAM, TYPE, SINCE])
    .answers("text/event-stream"),
];

/// Which events are wanted.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    upstream: Option<String>,
    kind: Option<String>,
    /// As `ts` is written, so that it can be compared as text.
    since: Option<String>,
}

impl Filter {
    pub(super) fn wants(&self, entry: &Entry) -> bool {
        let ts = || entry.object.get("ts").and_then(serde_json::Value::as_str);
        self.upstream
            .as_deref()
            .is_none_or(|name| entry.upstream() == Some(name))
            && self.kind.as_deref().is_none_or(|kind| entry.event == kind)
            && self
                .since
                .as_deref()
                .is_none_or(|since| ts().is_some_and(|ts| ts >= since))
    }

    pub(super) const fn has_since(&self) -> bool {
        self.since.is_some()
    }
}

/// What a query asks for. A name that neither lives nor stands in the journal is a slip.
pub(super) async fn filter(call: &Call) -> Result<Filter, Fault> {
    let journal = &call.deps.journal;
    let kept = journal.after(0);
    let kind = call.value("type").map(str::to_owned);
    if let Some(kind) = &kind {
        let known = || EVENTS.into_iter().chain(kept.iter().map(|e| e.event));
        if !known().any(|name| name == kind) {
            let hint = match nearest(kind, known()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are {}", EVENTS.join(", ")),
            };
            let message = format!("no event is called `{kind}`");
            return Err(Fault::bad_query(message, hint));
        }
    }
    let upstream = match call.value("upstream") {
        Some(name) => Some(own_name(call, name, &kept).await?),
        None => None,
    };
    let since = call.value("since").map(since).transpose()?;
    Ok(Filter {
        upstream,
        kind,
        since,
    })
}

/// An upstream's own name by any of its names; what is gone is known while the journal tells of it.
async fn own_name(
    call: &Call,
    name: &str,
    kept: &[std::sync::Arc<Entry>],
) -> Result<String, Fault> {
    let told = || kept.iter().filter_map(|entry| entry.upstream());
    if told().any(|other| other == name) {
        return Ok(name.to_owned());
    }
    let control = &call.deps.control;
    let questions = async {
        let found = control.upstream(name).await?;
        Ok((found, control.process().await?.upstreams))
    };
    let Ok((found, live)) = within(HEARTBEAT, questions).await else {
        // The journal is there for such times too.
        return Ok(name.to_owned());
    };
    if let Some(found) = found {
        return Ok(found.summary.name);
    }
    let known = told().chain(live.iter().map(|u| &*u.name));
    let hint = match nearest(name, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`outrigger upstreams` lists them".to_owned(),
    };
    let message = format!("no upstream is called `{name}`, and no event tells of one");
    Err(Fault::bad_query(message, hint))
}

fn since(text: &str) -> Result<String, Fault> {
    let at = match crate::config::duration(text) {
        Ok(ago) => clock::wall_now().checked_sub(ago),
        Err(_) => humantime::parse_rfc3339(text).ok(),
    };
    let at = at.ok_or_else(|| bad("since", "1h, 90s, or a time like 2026-01-02T03:04:05Z"))?;
    Ok(humantime::format_rfc3339_millis(at).to_string())
}

pub(super) fn id(key: &str, text: &str) -> Result<u64, Fault> {
    u64::from_str_radix(text, 16)
        .map_err(|_| bad(key, "the `id` of an event, or `next` of an answer"))
}

async fn list(call: Call) -> Result<Answer, Fault> {
    let after = call
        .value("after")
        .map(|text| id("after", text))
        .transpose()?;
    let limit = call.value("limit").map(str::parse::<usize>).transpose();
    let limit = limit.map_err(|_| bad("limit", "a number"))?.unwrap_or(MOST);
    let filter = filter(&call).await?;
    ok(&find(
        &call.deps.journal,
        after,
        limit.clamp(1, MOST),
        &filter,
    ))
}

/// After an id the oldest first, without one the newest.
fn find(journal: &Journal, after: Option<u64>, limit: usize, filter: &Filter) -> Events {
    let latest = *journal.follow().borrow();
    let restarted = after.is_some_and(|id| id > latest);
    let entries = journal.after(after.filter(|_| !restarted).unwrap_or(0));
    let mut next = entries.last().map_or(latest, |entry| entry.id);
    let mut found: Vec<_> = entries.iter().filter(|e| filter.wants(e)).collect();
    if found.len() > limit {
        if after.is_none() {
            found.drain(..found.len() - limit);
        } else {
            found.truncate(limit);
            next = found.last().map_or(next, |entry| entry.id);
        }
    }
    Events {
        events: found.iter().map(|entry| entry.object.clone()).collect(),
        next: format!("{next:06x}"),
        restarted,
    }
}

fn bad(key: &str, hint: &str) -> Fault {
    Fault::bad_query(format!("the value of `{key}` cannot be read"), hint)
}

/// Silence after which a comment shows that a stream lives.
pub(super) const BEAT: Duration = Duration::from_secs(5);
