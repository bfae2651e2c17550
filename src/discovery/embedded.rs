//! Endpoints of the embedded registry in the same process: a change is seen at once.

use std::sync::Arc;

use tokio::sync::watch;

use super::source::{Listing, Source, Task};
use super::subscription::{Answer, Failure, Subscription};
use crate::registry::model::{DEFAULT_GROUP, DEFAULT_NAMESPACE};
use crate::registry::{EmbeddedRegistry, ServiceKey};

/// Ours, if it runs here.
#[derive(Clone, Debug)]
pub(super) struct EmbeddedSource(Option<EmbeddedRegistry>);

impl EmbeddedSource {
    pub(super) fn new(registry: Option<EmbeddedRegistry>) -> Self {
        Self(registry)
    }

    async fn run(self, mut subscription: Subscription) {
        let Some(registry) = self.0 else {
            subscription.failed(&absent());
            return subscription.closed().await;
        };
        let query = &subscription.query;
        let service = match ServiceKey::new(
            query.namespace.as_deref(),
            query.group.as_deref(),
            &query.registry_name,
        ) {
            Ok(service) => service,
            Err(refusal) => {
                subscription.failed(&Failure::Refused(refusal.to_string()));
                return subscription.closed().await;
            }
        };
        let clusters = query.clusters.clone().unwrap_or_default();
        let mut changes = registry.watch(&service);
        loop {
            changes.mark_unchanged();
            let endpoints = registry.endpoints(&service, &clusters);
            let recheck = subscription.answer(Answer {
                endpoints,
                ..Answer::default()
            });
            if !subscription.changed(&mut changes, recheck).await {
                return;
            }
        }
    }
}

impl Source for EmbeddedSource {
    fn follow(self: Arc<Self>, subscription: Subscription) -> Task {
        Box::pin(Self::clone(&self).run(subscription))
    }

    fn names(self: Arc<Self>) -> Listing {
        Box::pin(async move {
            let registry = self.0.as_ref().ok_or_else(absent)?;
            Ok(registry.names(DEFAULT_NAMESPACE, DEFAULT_GROUP))
        })
    }

    fn names_changes(&self) -> Option<watch::Receiver<u64>> {
        self.0.as_ref().map(EmbeddedRegistry::watch_names)
    }

    fn is_here(&self) -> bool {
        self.0.is_some()
    }
}

fn absent() -> Failure {
    Failure::Refused("the embedded registry does not run in this process".to_owned())
}
