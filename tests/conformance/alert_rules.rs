//! The shipped alerts ask for families that there are, each is tested, and each is documented. That
//! they fire when they should is tested with promtool: `tests/integration/prometheus.rs`.

#![expect(clippy::expect_used, reason = "helpers of tests")]

use std::collections::BTreeSet;

use outrigger::metrics::names::ALL;

fn read(path: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    std::fs::read_to_string(format!("{root}/{path}")).expect(path)
}

/// Words of the shape of a family's name.
fn families(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("outrigger_"))
        .collect()
}

#[test]
fn alerts_ask_for_families_that_there_are() {
    let rules = read("config/prometheus/outrigger.rules.yaml");
    let known: BTreeSet<&str> = ALL.iter().map(|family| family.name).collect();
    let asked = families(&rules);
    assert!(asked.len() > 8, "{asked:?}");
    let missing: Vec<&str> = asked.difference(&known).copied().collect();
    assert!(missing.is_empty(), "no such families: {missing:?}");
}

#[test]
fn each_alert_is_tested_both_ways_and_documented() {
    let rules = read("config/prometheus/outrigger.rules.yaml");
    let tests = read("tests/conformance/prometheus/outrigger.test.yaml");
    let operations = read("docs/operations.md");
    let alerts = rules
        .lines()
        .filter_map(|l| l.trim().strip_prefix("- alert: "));
    let alerts: Vec<&str> = alerts.collect();
    assert!(alerts.len() >= 11, "{alerts:?}");
    for alert in alerts {
        let quiet = format!("- {{alertname: {alert}, eval_time: ");
        assert!(tests.contains(&quiet), "{alert}: when does it not fire?");
        let fires = format!("- alertname: {alert}\n");
        assert!(tests.contains(&fires), "{alert}: when does it fire?");
        assert!(operations.contains(&format!("| `{alert}` |")), "{alert}");
    }
}
