//! Who wants to hear of which node. A subscription has one [`Interest`]; the session touches the
//! paths whose watches fired.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

/// All interests of a registry.
#[derive(Debug, Default)]
pub(super) struct Interests(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    all: Vec<Weak<Interest>>,
    paths: BTreeMap<Arc<str>, Vec<Weak<Interest>>>,
}

/// One subscription's.
#[derive(Debug, Default)]
pub(super) struct Interest {
    notify: Notify,
    news: Mutex<News>,
}

/// What happened since it was last looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct News {
    /// Nodes whose watches fired.
    pub(super) paths: BTreeSet<Arc<str>>,
    /// A new session: nothing that was read is watched any more.
    pub(super) reset: bool,
}

impl Interests {
    pub(super) fn join(&self) -> Arc<Interest> {
        let interest = Arc::new(Interest::default());
        let mut book = self.lock();
        book.all.retain(|other| other.strong_count() > 0);
        book.all.push(Arc::downgrade(&interest));
        interest
    }

    pub(super) fn add(&self, path: &Arc<str>, interest: &Arc<Interest>) {
        let mut book = self.lock();
        let of_path = book.paths.entry(path.clone()).or_default();
        of_path.retain(|other| other.strong_count() > 0);
        let ours = Arc::downgrade(interest);
        if !of_path.iter().any(|other| other.ptr_eq(&ours)) {
            of_path.push(ours);
        }
    }

    pub(super) fn remove(&self, path: &Arc<str>, interest: &Arc<Interest>) {
        let mut book = self.lock();
        let ours = Arc::downgrade(interest);
        if let Some(of_path) = book.paths.get_mut(path) {
            of_path.retain(|other| other.strong_count() > 0 && !other.ptr_eq(&ours));
            if of_path.is_empty() {
                book.paths.remove(path);
            }
        }
    }

    /// Whether anybody still wants to hear of a node; forgets it when not.
    pub(super) fn wants(&self, path: &Arc<str>) -> bool {
        let mut book = self.lock();
        let wanted = book
            .paths
            .get(path)
            .is_some_and(|of_path| of_path.iter().any(|other| other.strong_count() > 0));
        if !wanted {
            book.paths.remove(path);
        }
        wanted
    }

    /// How many nodes are of interest to anybody.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().paths.len()
    }

    /// A watch fired.
    pub(super) fn touch(&self, path: &Arc<str>) {
        let of_path = self.lock().paths.get(path).cloned().unwrap_or_default();
        for interest in of_path.iter().filter_map(Weak::upgrade) {
            interest.lock().paths.insert(path.clone());
            interest.notify.notify_one();
        }
    }

    /// The connection was lost or is back: everybody reads again. `reset`: the session is a new one.
    pub(super) fn wake_all(&self, reset: bool) {
        let all = self.lock().all.clone();
        for interest in all.iter().filter_map(Weak::upgrade) {
            interest.lock().reset |= reset;
            interest.notify.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Interest {
    /// Until something happens that was not yet taken.
    pub(super) async fn notified(&self) {
        self.notify.notified().await;
    }

    pub(super) fn take(&self) -> News {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
