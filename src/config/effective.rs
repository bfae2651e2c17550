//! Which ejection policy holds for an upstream, why the others do not, and how many instances it may
//! take out: the shapes that the admin API answers and `outrigger policies` prints.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::policy_select::{Query, WhyNot, explain, policy_protocol};
use super::settings::{Origin, Setting};
use super::types::{Config, PolicyEntry, PolicyProtocol};
use crate::outlier::cap::cap;
use crate::outlier::policy::Policy;

/// All policies.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Policies {
    /// In the order in which they are read.
    pub policies: Vec<PolicyView>,
    /// Files that did not load, with every problem; what held before still holds.
    pub rejected: Vec<RejectedView>,
}

/// A file that did not load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RejectedView {
    /// The file.
    pub file: String,
    /// `file:line:column: what`.
    pub problems: Vec<String>,
}

/// One policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyView {
    /// Its name.
    pub name: String,
    /// `file:line`, or `built in`.
    pub origin: String,
    /// Every field with its value and where that comes from.
    pub settings: Vec<Setting>,
}

/// The policy of one upstream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Effective {
    /// The upstream.
    pub upstream: String,
    /// Whether it is listed under `services`; else the defaults hold for it.
    pub configured: bool,
    /// What patterns are compared with.
    pub consumer: String,
    /// See `consumer`.
    pub namespace: Option<String>,
    /// See `consumer`.
    pub protocol: String,
    /// What holds.
    pub winner: PolicyView,
    /// All others, and why they do not hold; those that match first, the best of them first.
    pub losers: Vec<Loser>,
    /// How many instances may be out at a time.
    pub budget: Vec<Budget>,
}

/// A policy that does not hold.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Loser {
    /// Its name.
    pub name: String,
    /// `file:line`.
    pub origin: String,
    /// Whether it matches the upstream at all.
    pub matches: bool,
    /// Why it does not hold.
    pub why: String,
}

/// One line of the table of budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Routable instances.
    pub instances: usize,
    /// How many of them may be out.
    pub limit: usize,
}

/// Sizes of pools that tables of budgets show.
pub const SIZES: [usize; 8] = [1, 2, 3, 4, 5, 6, 10, 20];

/// How many of `n` instances may be out at a time.
pub fn budget(policy: &Policy, n: usize) -> usize {
    cap(
        n,
        policy.instance_removal_rate_threshold_bp,
        policy.min_ejectable,
    )
}

impl From<&PolicyEntry> for PolicyView {
    fn from(entry: &PolicyEntry) -> Self {
        Self {
            name: entry.policy.name.to_string(),
            origin: entry.policy.origin.to_string(),
            settings: entry.settings.to_vec(),
        }
    }
}

/// All policies of a configuration.
pub fn policies(config: &Config) -> Policies {
    let set = &config.policies;
    Policies {
        policies: set.entries.iter().map(PolicyView::from).collect(),
        rejected: set
            .rejected
            .iter()
            .map(|rejected| RejectedView {
                file: rejected.path.display().to_string(),
                problems: rejected.problems.clone(),
            })
            .collect(),
    }
}

/// What holds for `upstream`, and why.
pub fn effective(config: &Config, upstream: &str) -> Effective {
    let service = config.services.get(upstream);
    let protocol = policy_protocol(service.unwrap_or(&config.defaults).protocol);
    let query = Query {
        consumer: &config.app.name,
        upstream,
        namespace: config.app.namespace.as_deref(),
        protocol,
    };
    let (selection, others) = explain(&config.policies, &query);
    let winner = &selection.winner;
    let mut entries = config.policies.entries.iter();
    let entry = entries.find(|entry| entry.policy.name == winner.name);
    let mut view = match entry {
        Some(entry) => PolicyView::from(entry),
        None => builtin(winner),
    };
    // Dubbo has a window of its own where none is written.
    for setting in &mut view.settings {
        if setting.key == "statistics_window" && setting.origin == Origin::Default {
            let window = humantime::format_duration(winner.statistics_window);
            setting.value = window.to_string().replace(' ', "").into();
        }
    }
    Effective {
        upstream: upstream.to_owned(),
        configured: service.is_some(),
        consumer: query.consumer.to_owned(),
        namespace: query.namespace.map(str::to_owned),
        protocol: word(protocol).to_owned(),
        losers: others.into_iter().map(loser).collect(),
        budget: SIZES
            .map(|instances| Budget {
                instances,
                limit: budget(winner, instances),
            })
            .to_vec(),
        winner: view,
    }
}

fn loser((policy, why): (Arc<Policy>, WhyNot)) -> Loser {
    Loser {
        name: policy.name.to_string(),
        origin: policy.origin.to_string(),
        matches: why.matches(),
        why: why.to_string(),
    }
}

fn builtin(policy: &Policy) -> PolicyView {
    PolicyView {
        name: policy.name.to_string(),
        origin: policy.origin.to_string(),
        settings: super::parse::policy::builtin_settings(),
    }
}

fn word(protocol: PolicyProtocol) -> &'static str {
    match protocol {
        PolicyProtocol::Any => "any",
        PolicyProtocol::Dubbo => "dubbo",
        PolicyProtocol::Grpc => "grpc",
        PolicyProtocol::Http => "http",
    }
}
