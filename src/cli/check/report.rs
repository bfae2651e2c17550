//! The tables of `check`: the policy of every upstream, and its budget.

use crate::config::diagnostic::Code;
use crate::config::effective::{SIZES, budget};
use crate::config::policy_select::{Query, policy_protocol, select};
use crate::config::types::{Config, Service};
use crate::outlier::policy::{Mode, Policy};

/// A remark: code, where, what, and what would be right.
pub(super) type Remark = (Code, String, String, String);

/// The policy of every configured upstream and of those that are discovered, their budgets, and
/// remarks on them.
pub(super) fn upstreams(config: &Config) -> (String, Vec<Remark>) {
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    let mut policies = Vec::new();
    let mut remarks = Vec::new();
    let discovered = config
        .auto_discover
        .then_some(("(discovered)", &config.defaults));
    let named = config
        .services
        .iter()
        .map(|(name, service)| (&**name, service));
    for (name, service) in named.chain(discovered) {
        let selection = select(&config.policies, &query(config, name, service));
        let policy = selection.winner;
        rows.push(row(name, &policy));
        if let Some(other) = selection.tied_with {
            let message = format!("`{}` and `{}` both fit `{name}`", policy.name, other.name);
            let help = format!("`{}` holds, as the first by file and line", policy.name);
            remarks.push((Code::POLICY_TIE, other.origin.to_string(), message, help));
        }
        let instances = service.endpoints.as_ref().map_or(0, |list| list.len());
        if instances > 1 && policy.mode == Mode::Enforce && budget(&policy, instances) == 0 {
            let message = format!(
                "`{}` may eject none of the {instances} instances of `{name}`",
                policy.name
            );
            let help = "raise `instance_removal_rate_threshold`, or set `min_ejectable: 1`";
            remarks.push((
                Code::NO_BUDGET,
                policy.origin.to_string(),
                message,
                help.to_owned(),
            ));
        }
        policies.push(policy);
    }
    let text = format!(
        "\n{}{}",
        table(&rows),
        budgets(policies.iter().map(|policy| &**policy))
    );
    (text, remarks)
}

const HEAD: [&str; 8] = [
    "upstream", "policy", "from", "mode", "failures", "window", "removal", "unit",
];

fn query<'a>(config: &'a Config, name: &'a str, service: &Service) -> Query<'a> {
    Query {
        consumer: &config.app.name,
        upstream: name,
        namespace: config.app.namespace.as_deref(),
        protocol: policy_protocol(service.protocol),
    }
}

fn row(name: &str, policy: &Policy) -> Vec<String> {
    let mode = match policy.mode {
        Mode::Enforce => "enforce",
        Mode::Observe => "observe",
        Mode::Disabled => "disabled",
    };
    let show = |time| {
        humantime::format_duration(time)
            .to_string()
            .replace(' ', "")
    };
    vec![
        name.to_owned(),
        policy.name.to_string(),
        policy.origin.to_string(),
        mode.to_owned(),
        format!("> {} %", percent(policy.error_rate_threshold_bp)),
        show(policy.statistics_window),
        format!("{} %", percent(policy.instance_removal_rate_threshold_bp)),
        show(policy.recovery_detection_unit_time),
    ]
}

/// How many of n instances each policy may have out at a time.
pub(super) fn budgets<'a>(policies: impl Iterator<Item = &'a Policy>) -> String {
    let head = SIZES.iter().map(|n| format!("n={n}"));
    let mut rows = vec![
        std::iter::once("may be out at once".to_owned())
            .chain(head)
            .collect(),
    ];
    let mut seen = std::collections::BTreeSet::new();
    for policy in policies.filter(|policy| seen.insert(policy.name.clone())) {
        let cells = SIZES.iter().map(|n| budget(policy, *n).to_string());
        rows.push(
            std::iter::once(policy.name.to_string())
                .chain(cells)
                .collect(),
        );
    }
    format!("\n{}", table(&rows))
}

fn percent(bp: u32) -> String {
    match bp % 100 {
        0 => (bp / 100).to_string(),
        rest => format!("{}.{rest:02}", bp / 100),
    }
}

fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|c| c.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_the_floor_and_never_all() {
        let half = Policy::builtin(false);
        let cells: Vec<usize> = [1, 2, 3, 4, 5, 10].map(|n| budget(&half, n)).to_vec();
        assert_eq!(cells, [0, 1, 1, 2, 2, 5]);
        let all = Policy {
            instance_removal_rate_threshold_bp: 10_000,
            ..Policy::builtin(false)
        };
        assert_eq!(budget(&all, 4), 3);
        let small = Policy {
            instance_removal_rate_threshold_bp: 1_000,
            min_ejectable: 1,
            ..Policy::builtin(false)
        };
        assert_eq!([1, 2, 5, 20].map(|n| budget(&small, n)), [0, 1, 1, 2]);
    }
}
