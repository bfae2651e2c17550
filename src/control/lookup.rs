//! Names that no service lists: looked for in the default registry, made upstreams at their first
//! request, dropped after a long time without one.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::watch;

use super::plane::Plane;
use crate::discovery::{NamesView, RegistryHandle};
use crate::router::alias;
use crate::worker::{Lookup, LookupAnswer};

/// A discovered upstream without a request for this long is dropped.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// Discovered upstreams at most.
const MAX_DISCOVERED: usize = 1000;

/// How a registry knows a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// By this name of its own.
    As(Arc<str>),
    /// Not at all.
    Unknown,
}

/// Finds `asked` among the names of a registry: as it is, whatever its case, by alias, by the bare
/// name of a Nacos default group; each only where that is unambiguous.
pub(super) fn find(names: &[Arc<str>], asked: &str) -> Known {
    let exact = |n: &&Arc<str>| &***n == asked;
    let folded = |n: &&Arc<str>| n.eq_ignore_ascii_case(asked);
    let aliased = |n: &&Arc<str>| {
        let bare = n.strip_prefix("DEFAULT_GROUP@@").unwrap_or(n);
        bare.eq_ignore_ascii_case(asked)
            || alias(n).eq_ignore_ascii_case(asked)
            || alias(bare).eq_ignore_ascii_case(asked)
    };
    if let Some(name) = names.iter().find(exact) {
        return Known::As(Arc::clone(name));
    }
    let mut of_case = names.iter().filter(folded);
    if let Some(name) = of_case.next() {
        return if of_case.next().is_none() {
            Known::As(Arc::clone(name))
        } else {
            Known::Unknown
        };
    }
    let mut by_alias = names.iter().filter(aliased);
    match (by_alias.next(), by_alias.next()) {
        (Some(name), None) => Known::As(Arc::clone(name)),
        (Some(_), Some(_)) | (None, _) => Known::Unknown,
    }
}

impl Plane {
    /// Answers a worker's question for a name. The lists of the registries are read again for an
    /// unknown one, beside the loop.
    pub(super) fn look_up(&mut self, lookup: Lookup) {
        if lookup.passthrough {
            return self.pass_through(lookup);
        }
        let lists = self.default_names();
        if lists.is_empty() {
            return answer(lookup, LookupAnswer::Unknown);
        }
        match find_in(lists.iter().map(|(_, names)| names), &lookup.name) {
            Some(Known::As(name)) => self.discovered(&name, lookup),
            Some(Known::Unknown) | None => {
                let again = self.again.clone();
                tokio::spawn(async move {
                    let mut reads = tokio::task::JoinSet::new();
                    for (registry, _) in lists {
                        reads.spawn(async move { registry.refresh_names().await });
                    }
                    let answered = reads.join_all().await.into_iter().all(|answered| answered);
                    // Control ends with the process; then nobody waits for the answer.
                    let _ended = again.send((lookup, answered)).await;
                });
            }
        }
    }

    /// The lists were read again, or could not be.
    pub(super) fn look_up_again(&mut self, lookup: Lookup, answered: bool) {
        let lists = self.default_names();
        match find_in(lists.iter().map(|(_, names)| names), &lookup.name) {
            Some(Known::As(name)) => self.discovered(&name, lookup),
            Some(Known::Unknown) if answered => answer(lookup, LookupAnswer::Unknown),
            Some(Known::Unknown) | None => {
                let failed = |list: &&(RegistryHandle, watch::Receiver<NamesView>)| {
                    list.1.borrow().error.is_some()
                };
                let silent = lists.iter().find(failed).or_else(|| lists.first());
                let silent = silent.map(|(registry, _)| Arc::clone(registry.name()));
                let unknown = LookupAnswer::Unknown;
                let found =
                    silent.map_or(unknown, |registry| LookupAnswer::NotAnswered { registry });
                answer(lookup, found);
            }
        }
    }

    /// A host of `passthrough.hosts`, by `host:port`.
    fn pass_through(&mut self, lookup: Lookup) {
        match self.config.passthrough.target(&lookup.name) {
            Some(name) => self.discovered(&name, lookup),
            // A reload took it out meanwhile.
            None => answer(lookup, LookupAnswer::Unknown),
        }
    }

    fn discovered(&mut self, name: &Arc<str>, lookup: Lookup) {
        if !self.upstreams.contains_key(name) {
            let discovered = self.upstreams.values().filter(|u| u.discovered).count();
            if discovered >= MAX_DISCOVERED {
                tracing::warn!(%name, limit = MAX_DISCOVERED, "too many discovered upstreams");
                return answer(lookup, LookupAnswer::Unknown);
            }
            self.discover(name, lookup.passthrough);
        }
        let found = self.route_of(name);
        answer(
            lookup,
            found.map_or(LookupAnswer::Unknown, LookupAnswer::Route),
        );
    }

    /// Drops discovered upstreams that nobody asks for.
    pub(super) fn forget_idle(&mut self) {
        let now = self.clock.now();
        let before = self.upstreams.len();
        self.upstreams.retain(|_, live| {
            let last = live.upstream.last_request().max(live.since);
            let ordered = live.overrides.load(Relaxed) > 0;
            !live.discovered || ordered || now.since(last) < FORGET_AFTER
        });
        if self.upstreams.len() != before {
            self.publish();
        }
    }

    fn default_names(&mut self) -> Vec<(RegistryHandle, watch::Receiver<NamesView>)> {
        let mut lists = Vec::new();
        for name in &self.config.default_registries {
            let Some(live) = self.registries.get(name) else {
                continue;
            };
            if live.handle.can_list() {
                let names = self.names.entry(Arc::clone(name));
                let names = names.or_insert_with(|| live.handle.names());
                lists.push((live.handle.clone(), names.clone()));
            }
        }
        lists
    }
}

/// Looks in the lists in their order; nothing when the name is in none and one has not answered.
pub(super) fn find_in<'a>(
    lists: impl IntoIterator<Item = &'a watch::Receiver<NamesView>>,
    asked: &str,
) -> Option<Known> {
    let mut all_answered = true;
    for names in lists {
        match names.borrow().names.as_deref() {
            Some(names) => {
                if let Known::As(name) = find(names, asked) {
                    return Some(Known::As(name));
                }
            }
            None => all_answered = false,
        }
    }
    all_answered.then_some(Known::Unknown)
}

fn answer(lookup: Lookup, answer: LookupAnswer) {
    // Whoever asked may have left.
    let _gone = lookup.reply.send(answer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_where_they_are_unambiguous() {
        let names: Vec<Arc<str>> = [
            "orders",
            "Billing",
            "a_b",
            "a-b",
            "DEFAULT_GROUP@@x",
            "Dup",
            "dup",
        ]
        .into_iter()
        .map(Arc::from)
        .collect();
        let found = |asked: &str| match find(&names, asked) {
            Known::As(name) => Some(name.to_string()),
            Known::Unknown => None,
        };
        assert_eq!(found("orders").as_deref(), Some("orders"));
        assert_eq!(found("ORDERS").as_deref(), Some("orders"));
        assert_eq!(found("billing").as_deref(), Some("Billing"));
        assert_eq!(found("x").as_deref(), Some("DEFAULT_GROUP@@x"));
        assert_eq!(
            found("default-group-x").as_deref(),
            Some("DEFAULT_GROUP@@x")
        );
        assert_eq!(found("a-b").as_deref(), Some("a-b"));
        assert_eq!(found("dup").as_deref(), Some("dup"));
        assert_eq!(found("DUP"), None);
        assert_eq!(found("nothing"), None);
    }
}
