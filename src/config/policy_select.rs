//! Which ejection policy holds for an upstream. Pure: the most specific entry wins, compared in the
//! order upstreams, consumers, namespaces, protocols; the built-in one holds where none matches.

use std::cmp::Ordering;
use std::sync::Arc;

use super::types::{PolicyEntry, PolicyProtocol, PolicySet, Protocol};
use crate::outlier::policy::Policy;

/// For whom a policy is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// `app.name`.
    pub consumer: &'a str,
    /// Name of the upstream.
    pub upstream: &'a str,
    /// `app.namespace`.
    pub namespace: Option<&'a str>,
    /// Its protocol; never [`PolicyProtocol::Any`].
    pub protocol: PolicyProtocol,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The policy that holds.
    pub winner: Arc<Policy>,
    /// Others that match, best first.
    pub losers: Vec<Arc<Policy>>,
    /// Another entry matches just as well; the first by file and line holds.
    pub tied_with: Option<Arc<Policy>>,
}

/// The policy for `query`.
pub fn select(set: &PolicySet, query: &Query<'_>) -> Selection {
    let mut matching: Vec<(Rank<'_>, &PolicyEntry)> = set
        .entries
        .iter()
        .filter_map(|entry| Some((rank(entry, query)?, entry)))
        .collect();
    // Stable: of equals the first by file and line stays first.
    matching.sort_by(|(a, _), (b, _)| b.cmp(a));
    let dubbo = query.protocol == PolicyProtocol::Dubbo;
    let Some(((best, winner), rest)) = matching.split_first() else {
        let winner = Arc::new(Policy::builtin(dubbo));
        return Selection {
            winner,
            losers: Vec::new(),
            tied_with: None,
        };
    };
    let tied = rest.first().filter(|(rank, _)| rank == best);
    Selection {
        winner: if dubbo && !winner.window_explicit {
            let statistics_window = Policy::builtin(true).statistics_window;
            Arc::new(Policy {
                statistics_window,
                ..Policy::clone(&winner.policy)
            })
        } else {
            Arc::clone(&winner.policy)
        },
        losers: rest
            .iter()
            .map(|(_, entry)| Arc::clone(&entry.policy))
            .collect(),
        tied_with: tied.map(|(_, entry)| Arc::clone(&entry.policy)),
    }
}

/// Why an entry does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// It does not match at all: the dimension, its patterns, what they were compared with.
    NoMatch(&'static str, String, String),
    /// Another one is more exact there: the dimension, its pattern, that of the winner.
    LessExact(&'static str, String, String),
    /// It is as exact, and stands later.
    Later,
}

impl WhyNot {
    /// Whether the entry matches.
    pub fn matches(&self) -> bool {
        !matches!(self, Self::NoMatch(..))
    }
}

impl std::fmt::Display for WhyNot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoMatch(what, patterns, name) => {
                write!(f, "{what} [{patterns}] does not match `{name}`")
            }
            Self::LessExact(what, ours, theirs) => {
                write!(f, "{what}: `{theirs}` is more exact than `{ours}`")
            }
            Self::Later => f.write_str("it is as exact, and stands later by file and line"),
        }
    }
}

/// The policy for `query`, and every other one with the reason why it does not hold; those that
/// match first, the best of them first.
pub fn explain(set: &PolicySet, query: &Query<'_>) -> (Selection, Vec<(Arc<Policy>, WhyNot)>) {
    let selection = select(set, query);
    let by_name = |name: &str| set.entries.iter().find(|e| *e.policy.name == *name);
    let best = by_name(&selection.winner.name).and_then(|entry| rank(entry, query));
    let mut others = Vec::new();
    for policy in &selection.losers {
        let rank = by_name(&policy.name).and_then(|entry| rank(entry, query));
        let why = match best.as_ref().zip(rank.as_ref()) {
            Some((best, rank)) => less_exact(best, rank),
            None => WhyNot::Later,
        };
        others.push((Arc::clone(policy), why));
    }
    for entry in &set.entries {
        if rank(entry, query).is_none() {
            others.push((Arc::clone(&entry.policy), no_match(entry, query)));
        }
    }
    (selection, others)
}

fn less_exact(best: &Rank<'_>, rank: &Rank<'_>) -> WhyNot {
    let pairs = [
        ("upstreams", best.0, rank.0),
        ("consumers", best.1, rank.1),
        ("namespaces", best.2, rank.2),
    ];
    let found = pairs.into_iter().find(|(_, best, rank)| best > rank);
    match found {
        Some((what, best, rank)) => WhyNot::LessExact(what, rank.0.to_owned(), best.0.to_owned()),
        None if best.3 && !rank.3 => {
            let (any, named) = ("any".to_owned(), "the protocol by name".to_owned());
            WhyNot::LessExact("protocols", any, named)
        }
        None => WhyNot::Later,
    }
}

fn no_match(entry: &PolicyEntry, query: &Query<'_>) -> WhyNot {
    let namespace = query.namespace.unwrap_or_default();
    let dimensions = [
        ("upstreams", &entry.upstreams, query.upstream),
        ("consumers", &entry.consumers, query.consumer),
        ("namespaces", &entry.namespaces, namespace),
    ];
    let found = dimensions
        .into_iter()
        .find(|(_, globs, name)| best(globs, name).is_none());
    match found {
        Some((what, globs, name)) => WhyNot::NoMatch(what, globs.join(", "), name.to_owned()),
        None => {
            let ours: Vec<String> = entry.protocols.iter().map(|p| format!("{p:?}")).collect();
            let ours = ours.join(", ").to_ascii_lowercase();
            let theirs = format!("{:?}", query.protocol).to_ascii_lowercase();
            WhyNot::NoMatch("protocols", ours, theirs)
        }
    }
}

/// What `apply_to.protocols` calls a protocol.
pub fn policy_protocol(protocol: Protocol) -> PolicyProtocol {
    match protocol {
        Protocol::Auto | Protocol::Http1 | Protocol::Http2 => PolicyProtocol::Http,
        Protocol::Grpc => PolicyProtocol::Grpc,
    }
}

/// How specific an entry is, dimension by dimension.
type Rank<'a> = (Specific<'a>, Specific<'a>, Specific<'a>, bool);

fn rank<'a>(entry: &'a PolicyEntry, query: &Query<'_>) -> Option<Rank<'a>> {
    let any = entry.protocols.contains(&PolicyProtocol::Any);
    let protocol = entry.protocols.contains(&query.protocol);
    if !any && !protocol {
        return None;
    }
    Some((
        best(&entry.upstreams, query.upstream)?,
        best(&entry.consumers, query.consumer)?,
        best(&entry.namespaces, query.namespace.unwrap_or_default())?,
        protocol,
    ))
}

/// A pattern that matches. Exact beats longer beats shorter beats `*`.
#[derive(Clone, Copy, Debug)]
struct Specific<'a>(&'a str);

impl Specific<'_> {
    fn key(&self) -> (bool, usize) {
        let exact = !self.0.contains('*');
        // Two exact patterns that match one name are equal; their length must not tell them apart.
        (
            exact,
            if exact || self.0 == "*" {
                0
            } else {
                self.0.chars().count()
            },
        )
    }
}

impl Ord for Specific<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Specific<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Specific<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Specific<'_> {}

fn best<'a>(globs: &'a [Arc<str>], name: &str) -> Option<Specific<'a>> {
    globs
        .iter()
        .filter(|glob| glob_matches(glob, name))
        .map(|glob| Specific(glob))
        .max()
}

/// Whether `glob` matches all of `name`; `*` stands for any run of characters, an empty one too.
pub fn glob_matches(glob: &str, name: &str) -> bool {
    let mut parts = glob.split('*');
    let Some(rest) = name.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut rest = rest;
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(
        name: &str,
        upstreams: &str,
        consumers: &str,
        protocols: &[PolicyProtocol],
    ) -> PolicyEntry {
        let globs = |text: &str| text.split(' ').map(Arc::from).collect();
        PolicyEntry {
            policy: Arc::new(Policy {
                name: name.into(),
                ..Policy::builtin(false)
            }),
            file: "p.yaml".into(),
            window_explicit: false,
            consumers: globs(consumers),
            upstreams: globs(upstreams),
            namespaces: globs("*"),
            protocols: protocols.to_vec(),
            settings: Arc::default(),
        }
    }

    fn winner(entries: &[PolicyEntry], upstream: &str, protocol: PolicyProtocol) -> Selection {
        let set = PolicySet {
            entries: entries.to_vec(),
            ..PolicySet::default()
        };
        select(
            &set,
            &Query {
                consumer: "web-1",
                upstream,
                namespace: None,
                protocol,
            },
        )
    }

    #[test]
    fn globs_match_whole_names() {
        for (glob, name, want) in [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "acx", false),
            ("a*b*c", "a1b2c", true),
            ("*b*b", "ab", false),
            ("abc", "abcd", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(glob_matches(glob, name), want, "{glob} {name}");
        }
    }

    #[test]
    fn exact_beats_longer_beats_shorter_beats_any() {
        let any = &[PolicyProtocol::Any];
        let entries = [
            entry("all", "*", "web-1", any),
            entry("short", "p*", "*", any),
            entry("long", "pay*", "*", any),
            entry("exact", "payments", "*", any),
        ];
        for (upstream, want) in [
            ("orders", "all"),
            ("pets", "short"),
            ("payroll", "long"),
            ("payments", "exact"),
        ] {
            assert_eq!(
                &*winner(&entries, upstream, PolicyProtocol::Http).winner.name,
                want
            );
        }
        let selection = winner(&entries, "payments", PolicyProtocol::Http);
        let losers: Vec<&str> = selection.losers.iter().map(|p| &*p.name).collect();
        assert_eq!(losers, ["long", "short", "all"]);
        assert!(selection.tied_with.is_none());
    }

    #[test]
    fn a_tie_goes_to_the_first_and_is_told() {
        let any = &[PolicyProtocol::Any];
        let entries = [
            entry("a", "x*z", "*", any),
            entry("b", "x*y", "*", any),
            entry("c", "*yz", "*", any),
        ];
        let selection = winner(&entries, "xyz", PolicyProtocol::Http);
        assert_eq!(&*selection.winner.name, "a");
        assert_eq!(
            selection.tied_with.map(|p| p.name.to_string()),
            Some("c".to_owned())
        );
    }

    #[test]
    fn dubbo_has_a_longer_window_unless_written() {
        let secs = |s: &Selection| s.winner.statistics_window.as_secs();
        assert_eq!(secs(&winner(&[], "x", PolicyProtocol::Dubbo)), 15);
        let mut one = entry("a", "*", "*", &[PolicyProtocol::Any]);
        assert_eq!(
            secs(&winner(
                std::slice::from_ref(&one),
                "x",
                PolicyProtocol::Dubbo
            )),
            15
        );
        assert_eq!(
            secs(&winner(
                std::slice::from_ref(&one),
                "x",
                PolicyProtocol::Grpc
            )),
            10
        );
        one.window_explicit = true;
        assert_eq!(secs(&winner(&[one], "x", PolicyProtocol::Dubbo)), 10);
    }
}
