//! `GET /api/v1/bundle`: one file for support. It holds what other pages show and nothing else:
//! secrets of the configuration are ***, no environment, no request data.

use std::collections::BTreeMap;

use super::answer::{Answer, Fault, ok};
use super::call::Call;
use super::routes::Route;
use super::views::{Bundle, History, UpstreamDetail};
use super::{PATIENCE, config, telemetry, within};
use crate::clock;
use crate::metrics::exposition::Format;
use crate::status::UpstreamStatus;

pub(super) const ROUTES: &[Route] = &[Route::get(
    "/api/v1/bundle",
    "everything support asks for in one answer, without secrets",
    |call| Box::pin(make(call)),
)];

/// Keys of metadata whose values are left out.
const SECRET: [&str; 6] = ["secret", "token", "password", "passwd", "key", "credential"];

async fn make(call: Call) -> Result<Answer, Fault> {
    let deps = &call.deps;
    let questions = async {
        let status = deps.control.process().await?;
        Ok((status, deps.control.upstreams().await?))
    };
    let (status, mut upstreams) = within(PATIENCE, questions).await?;
    let metrics = telemetry::scrape(deps, &status, &upstreams, None, Format::Text);
    for upstream in &mut upstreams {
        redact(upstream);
    }
    let of = |u: &UpstreamStatus| deps.history.whole(&u.summary.name);
    let histories: Vec<History> = upstreams.iter().map(of).collect();
    let overrides = upstreams.iter().flat_map(|u| u.overrides.clone()).collect();
    let events = deps.journal.after(0);
    ok(&Bundle {
        made_at: humantime::format_rfc3339_millis(clock::wall_now()).to_string(),
        version: format!("{} ({})", crate::version::VERSION, crate::version::COMMIT),
        status,
        histories,
        overrides,
        upstreams: upstreams.into_iter().map(UpstreamDetail::from).collect(),
        events: events.iter().map(|entry| entry.object.clone()).collect(),
        metrics,
        settings: config::running(&call).inputs.settings(),
    })
}

/// Metadata is the registry's; what may be a secret there stays here.
fn redact(upstream: &mut UpstreamStatus) {
    for instance in &mut upstream.instances {
        redact_metadata(&mut instance.metadata);
    }
}

fn redact_metadata(metadata: &mut BTreeMap<String, String>) {
    for (key, value) in metadata {
        let key = key.to_ascii_lowercase();
        if SECRET.iter().any(|word| key.contains(word)) {
            "***".clone_into(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_secret_is_left_out() {
        let pairs = [("version", "1"), ("apiKey", "x"), ("db.PASSWORD", "y")];
        let own = |(k, v): (&str, &str)| (k.to_owned(), v.to_owned());
        let mut metadata: BTreeMap<_, _> = pairs.map(own).into();
        redact_metadata(&mut metadata);
        let values: Vec<&str> = metadata.values().map(String::as_str).collect();
        assert_eq!(values, ["***", "***", "1"]);
    }
}
