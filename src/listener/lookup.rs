//! Names that are not in the table: a service's own port, or a name the default registry may know.

use crate::error::{Reason, Refusal};
use crate::router::{Found, Missed, Rule};
use crate::worker::{Lookup, LookupAnswer, Snapshot, Worker};

pub(super) fn own_port(snapshot: &Snapshot, name: &str) -> Result<Found, Missed> {
    snapshot
        .table
        .by_name(name)
        .map(|route| Found {
            route,
            rule: Rule::Port,
            strip: 0,
        })
        .ok_or_else(|| Missed {
            name: name.to_owned(),
            rule: Rule::Port,
            strip: 0,
            host: None,
        })
}

/// A name that is not in the table may be known to the default registry.
pub(crate) async fn look_up(
    worker: &Worker,
    snapshot: &Snapshot,
    missed: &Missed,
) -> Result<Found, Refusal> {
    let Missed {
        name,
        rule,
        strip,
        host,
    } = missed;
    let config = &snapshot.config;
    if let Some(target) = host.as_deref().and_then(|h| config.passthrough.target(h)) {
        return pass_through(worker, snapshot, &target).await;
    }
    if !name.is_empty() && config.auto_discover && !config.default_registries.is_empty() {
        let (reply, answered) = tokio::sync::oneshot::channel();
        let lookup = Lookup {
            name: name.clone(),
            passthrough: false,
            reply,
        };
        let asked = worker.shared.lookups.send(lookup).await.is_ok();
        let answer = tokio::time::timeout(config.discovery_wait, answered).await;
        match answer {
            Ok(Ok(LookupAnswer::Route(route))) => {
                return Ok(Found {
                    route,
                    rule: *rule,
                    strip: *strip,
                });
            }
            Ok(Ok(LookupAnswer::Unknown)) => {}
            Ok(Ok(LookupAnswer::NotAnswered { registry })) => {
                return Err(not_answered(name, &registry));
            }
            Ok(Err(_)) | Err(_) if asked => {
                let registry = config.default_registries.first();
                let registry = registry.map(|name| &**name).unwrap_or_default();
                return Err(not_answered(name, registry));
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }
    let nearest = snapshot.table.nearest(name);
    let message = if name.is_empty() {
        "the request names no service: put its name into Host, the first path segment or \
         x-outrigger-upstream"
            .to_owned()
    } else if nearest.is_empty() {
        format!("no service is called {name}; see `outrigger upstreams`")
    } else {
        let names: Vec<&str> = nearest.iter().map(|n| &**n).collect();
        format!("no service is called {name}; near: {}", names.join(", "))
    };
    Err(Refusal::new(Reason::NoRoute, message))
}

/// A host of `passthrough.hosts`: its upstream is there, or control makes it.
async fn pass_through(
    worker: &Worker,
    snapshot: &Snapshot,
    target: &str,
) -> Result<Found, Refusal> {
    let found = |route| Found {
        route,
        rule: Rule::Passthrough,
        strip: 0,
    };
    if let Some(route) = snapshot.table.by_name(target) {
        return Ok(found(route));
    }
    let (reply, answered) = tokio::sync::oneshot::channel();
    let lookup = Lookup {
        name: target.to_owned(),
        passthrough: true,
        reply,
    };
    // Nothing is resolved for this answer: it comes at once unless control ends.
    if worker.shared.lookups.send(lookup).await.is_ok()
        && let Ok(LookupAnswer::Route(route)) = answered.await
    {
        return Ok(found(route));
    }
    let message = format!("{target} is not to be reached now: too many names are discovered");
    Err(Refusal::new(Reason::NoRoute, message))
}

pub(super) fn not_answered(name: &str, registry: &str) -> Refusal {
    let message = format!(
        "whether {name} exists is not known: the registry {registry} has not answered; see \
         `outrigger registries`"
    );
    let mut refusal = Refusal::new(Reason::NoInstances, message);
    refusal.retry_after = Some(2);
    refusal
}
