//! What every kind of registry is to the rest: it follows one service in a task, and lists names.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;

use super::subscription::{Failure, Subscription};

/// A task that follows one service until nobody listens.
pub(super) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The names of a registry, in any order.
pub(super) type Listing = Pin<Box<dyn Future<Output = Result<Vec<Arc<str>>, Failure>> + Send>>;

/// One registry. A source hands every well-formed answer as a whole set to
/// [`Subscription::answer`] and every failure to [`Subscription::failed`] (G1, G2); holding back,
/// comparing, counting and telling is done there.
pub(super) trait Source: fmt::Debug + Send + Sync {
    /// Keeps a subscription current until [`Subscription::closed`].
    fn follow(self: Arc<Self>, subscription: Subscription) -> Task;

    /// Reads the names of its services. Asked only where the kind can list.
    fn names(self: Arc<Self>) -> Listing;

    /// Counts up when the names may have changed, where the registry tells.
    fn names_changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// Whether it is in this process, so that it is up without having been asked.
    fn is_here(&self) -> bool {
        false
    }
}
