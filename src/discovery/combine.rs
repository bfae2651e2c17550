//! One service that several registries know, for a migration from one to another: their sets are
//! merged by address, the registry that is listed first wins, and each endpoint tells where it came
//! from. A registry that does not answer takes nothing away from the others. The merge is pure; the
//! task around it only listens.

use std::collections::HashSet;
use std::future::{Future as _, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::watch;

use super::ServiceView;
use crate::endpoint::{Address, Endpoint, EndpointSet};

/// Key of an endpoint's metadata: the registry it came from. Only where there are several.
pub const REGISTRY_KEY: &str = "outrigger.registry";

/// A view of all; the task behind it ends when nobody listens any more.
pub fn combine(
    sources: Vec<(Arc<str>, watch::Receiver<ServiceView>)>,
) -> watch::Receiver<ServiceView> {
    let (sender, receiver) = watch::channel(merged(&borrow(&sources), 0));
    drop(tokio::spawn(follow(sources, sender)));
    receiver
}

async fn follow(
    mut sources: Vec<(Arc<str>, watch::Receiver<ServiceView>)>,
    view: watch::Sender<ServiceView>,
) {
    loop {
        let mut waits: Vec<_> = sources
            .iter_mut()
            .map(|(_, source)| Box::pin(source.changed()))
            .collect();
        let any = poll_fn(|context| {
            let mut ready = waits.iter_mut().map(|wait| wait.as_mut().poll(context));
            ready.find(Poll::is_ready).unwrap_or(Poll::Pending)
        });
        let ended = tokio::select! {
            () = view.closed() => return,
            result = any => result.is_err(),
        };
        drop(waits);
        if ended {
            // The process ends.
            return view.closed().await;
        }
        for (_, source) in &mut sources {
            source.mark_unchanged();
        }
        let version = view.borrow().version;
        let next = merged(&borrow(&sources), version);
        view.send_modify(|view| {
            let same = match (&view.set, &next.set) {
                (Some(old), Some(new)) => super::merge::same(old, new),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            let version = if same {
                version
            } else {
                version.saturating_add(1)
            };
            *view = ServiceView { version, ..next };
        });
    }
}

fn borrow(sources: &[(Arc<str>, watch::Receiver<ServiceView>)]) -> Vec<(Arc<str>, ServiceView)> {
    let views = sources.iter();
    views
        .map(|(name, source)| (Arc::clone(name), source.borrow().clone()))
        .collect()
}

/// What all of them say together. There is a set when one has endpoints, or when all have answered:
/// until then an empty one says nothing. Age and error are those of the worst.
fn merged(views: &[(Arc<str>, ServiceView)], version: u64) -> ServiceView {
    let mut seen: HashSet<Address> = HashSet::new();
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for (registry, view) in views {
        for endpoint in view.set.iter().flat_map(|set| set.endpoints.iter()) {
            if seen.insert(endpoint.address.clone()) {
                endpoints.push(labelled(endpoint, registry));
            }
        }
    }
    let answered = views.iter().all(|(_, view)| view.set.is_some());
    let known = answered || !endpoints.is_empty();
    let errors: Vec<String> = views
        .iter()
        .filter_map(|(registry, view)| Some(format!("{registry}: {}", view.error.as_ref()?)))
        .collect();
    ServiceView {
        set: known.then(|| EndpointSet {
            endpoints: endpoints.into(),
            health_unknown: views
                .iter()
                .any(|(_, view)| view.set.as_ref().is_some_and(|set| set.health_unknown)),
        }),
        version,
        last_success: views.iter().filter_map(|(_, view)| view.last_success).min(),
        stale: views.iter().any(|(_, view)| view.stale),
        cached: views.iter().find_map(|(_, view)| view.cached),
        held: views.iter().find_map(|(_, view)| view.held),
        error: (!errors.is_empty()).then(|| errors.join("; ").into()),
    }
}

fn labelled(endpoint: &Endpoint, registry: &Arc<str>) -> Endpoint {
    let mut metadata = (*endpoint.metadata).clone();
    metadata.insert(REGISTRY_KEY.to_owned(), registry.to_string());
    Endpoint {
        metadata: Arc::new(metadata),
        ..endpoint.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    fn view(addresses: &[&str]) -> ServiceView {
        let endpoints = addresses
            .iter()
            .map(|a| Endpoint::new(Address::parse(a).unwrap()));
        ServiceView {
            set: Some(EndpointSet {
                endpoints: endpoints.collect::<Vec<_>>().into(),
                health_unknown: false,
            }),
            last_success: Some(Timestamp::ZERO),
            ..ServiceView::default()
        }
    }

    fn told(view: &ServiceView) -> Vec<(String, String)> {
        let endpoints = view.set.as_ref().unwrap().endpoints.iter();
        endpoints
            .map(|e| (e.address.to_string(), e.metadata[REGISTRY_KEY].clone()))
            .collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected
            .iter()
            .map(|(a, r)| ((*a).to_owned(), (*r).to_owned()))
            .collect()
    }

    #[test]
    fn row_34_two_sources_are_merged_by_address_and_the_first_wins() {
        let both = [
            ("old".into(), view(&["10.0.0.1:80", "10.0.0.2:80"])),
            ("new".into(), view(&["10.0.0.2:80", "10.0.0.3:80"])),
        ];
        assert_eq!(
            told(&merged(&both, 0)),
            pairs(&[
                ("10.0.0.1:80", "old"),
                ("10.0.0.2:80", "old"),
                ("10.0.0.3:80", "new")
            ])
        );
    }

    #[test]
    fn a_registry_that_does_not_answer_takes_nothing_away() {
        let dead = ServiceView {
            error: Some("refused".into()),
            ..ServiceView::default()
        };
        let one = [
            ("old".into(), dead.clone()),
            ("new".into(), view(&["10.0.0.3:80"])),
        ];
        let all = merged(&one, 0);
        assert_eq!(told(&all), pairs(&[("10.0.0.3:80", "new")]));
        assert_eq!(all.error.as_deref(), Some("old: refused"));
        // An empty answer of one says nothing as long as the other has not spoken.
        let none = [("old".into(), dead), ("new".into(), view(&[]))];
        assert!(merged(&none, 0).set.is_none());
        let empty = [("old".into(), view(&[])), ("new".into(), view(&[]))];
        assert!(merged(&empty, 0).set.unwrap().endpoints.is_empty());
    }

    #[tokio::test]
    async fn a_change_of_either_is_followed() {
        let (old, old_view) = watch::channel(view(&["10.0.0.1:80"]));
        let (new, new_view) = watch::channel(ServiceView::default());
        let mut all = combine(vec![("old".into(), old_view), ("new".into(), new_view)]);
        assert_eq!(
            told(&all.borrow_and_update()),
            pairs(&[("10.0.0.1:80", "old")])
        );
        new.send_replace(view(&["10.0.0.2:80"]));
        all.changed().await.unwrap();
        assert_eq!(all.borrow_and_update().version, 1);
        old.send_replace(view(&[]));
        all.changed().await.unwrap();
        assert_eq!(
            told(&all.borrow_and_update()),
            pairs(&[("10.0.0.2:80", "new")])
        );
        drop(all);
        old.closed().await;
        new.closed().await;
    }
}
