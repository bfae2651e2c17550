use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::metrics::cells::{AppProtocol, UpstreamCells};
use crate::testing::status::{ejected, instance, process, upstream};

const CAPS: Caps = Caps {
    per_instance: PerInstance::Auto,
    max_instances: 500,
    max_upstreams: 500,
};

/// Every sample of a text, after checks of its form: HELP and TYPE first, each family once, no
/// series twice, samples named after their family.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let mut families = BTreeSet::new();
    let mut samples = BTreeMap::new();
    let mut current = (String::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let name = rest.split(' ').next().unwrap();
            assert!(families.insert(name.to_owned()), "{name} twice");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(families.contains(name), "no HELP before {line}");
            current = (name.to_owned(), kind.to_owned());
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let suffix = name.strip_prefix(&*current.0).expect(line);
            match &*current.1 {
                "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
                "counter" | "gauge" => assert_eq!(suffix, "", "{line}"),
                other => panic!("type {other}"),
            }
            let before = samples.insert(series.to_owned(), value.parse().unwrap());
            assert_eq!(before, None, "{series} twice");
        }
    }
    samples
}

fn scrape(
    collector: &Collector,
    upstreams: &[UpstreamStatus],
    caps: Caps,
) -> BTreeMap<String, f64> {
    let workers = [WorkerCells::default(), WorkerCells::default()];
    workers[0].rejected(Reason::NoRoute);
    workers[1].rejected(Reason::NoRoute);
    let (process, reloads) = (process(), ReloadCounters::new());
    reloads.count(ReloadResult::Rejected);
    let live = Live {
        process: &process,
        upstreams,
        workers: &workers,
        reloads: &reloads,
        dropped_lines: 3,
    };
    let text = collector.render(&live, caps, None, Format::Text);
    assert_eq!(
        collector.render(&live, caps, None, Format::Text).len() / 100,
        text.len() / 100
    );
    parse(&text)
}

fn with_requests(name: &str, requests: usize) -> UpstreamStatus {
    let cells = UpstreamCells::new(1);
    for _ in 0..requests {
        cells.begin(0);
        cells.finish(0, AppProtocol::Http1, 200, None, Duration::from_millis(20));
    }
    cells.begin(0);
    cells.finish(
        0,
        AppProtocol::Grpc,
        200,
        Some(14),
        Duration::from_millis(3),
    );
    cells.rejected(0, Reason::NoInstances);
    let mut upstream = upstream(name, vec![instance("10.0.0.1:1"), ejected("[::1]:8080")]);
    upstream.counters = cells.read();
    upstream
}

#[test]
fn a_scrape_shows_requests_instances_and_the_process() {
    let mut orders = with_requests("orders", 3);
    orders.decisions.durations[1] = 2;
    orders.decisions.duration_sum_s = 90.0;
    let ejections = &mut orders.decisions.ejections;
    ejections.insert(("default".into(), "enforced", "error_rate"), 2);
    let samples = scrape(&Collector::new(), &[orders], CAPS);
    for (series, value) in [
        (
            "outrigger_requests_total{upstream=\"orders\",protocol=\"http1\",code=\"2xx\"}",
            3.0,
        ),
        (
            "outrigger_requests_total{upstream=\"orders\",protocol=\"grpc\",code=\"unavailable\"}",
            1.0,
        ),
        (
            "outrigger_request_duration_seconds_bucket{upstream=\"orders\",protocol=\"http1\",le=\"0.01\"}",
            0.0,
        ),
        (
            "outrigger_request_duration_seconds_bucket{upstream=\"orders\",protocol=\"http1\",le=\"0.025\"}",
            3.0,
        ),
        (
            "outrigger_request_duration_seconds_bucket{upstream=\"orders\",protocol=\"http1\",le=\"+Inf\"}",
            3.0,
        ),
        (
            "outrigger_request_duration_seconds_sum{upstream=\"orders\",protocol=\"http1\"}",
            0.06,
        ),
        (
            "outrigger_rejected_total{upstream=\"_none\",reason=\"no_route\"}",
            2.0,
        ),
        (
            "outrigger_rejected_total{upstream=\"orders\",reason=\"no_instances\"}",
            1.0,
        ),
        (
            "outrigger_attempts_total{upstream=\"orders\",instance=\"[::1]:8080\",outcome=\"network_error\"}",
            52.0,
        ),
        (
            "outrigger_instance_ejected{upstream=\"orders\",instance=\"10.0.0.1:1\"}",
            0.0,
        ),
        (
            "outrigger_instance_ejected{upstream=\"orders\",instance=\"[::1]:8080\"}",
            1.0,
        ),
        (
            "outrigger_instance_window_error_ratio{upstream=\"orders\",instance=\"[::1]:8080\"}",
            0.65,
        ),
        (
            "outrigger_instance_recovery_step{upstream=\"orders\",instance=\"[::1]:8080\"}",
            1.0,
        ),
        (
            "outrigger_instances{upstream=\"orders\",state=\"draining\"}",
            0.0,
        ),
        (
            "outrigger_ejections_total{upstream=\"orders\",policy=\"default\",mode=\"enforced\",trigger=\"error_rate\"}",
            2.0,
        ),
        (
            "outrigger_ejection_duration_seconds_bucket{upstream=\"orders\",le=\"60\"}",
            2.0,
        ),
        (
            "outrigger_registry_updates_total{registry=\"local\",result=\"unchanged\"}",
            7.0,
        ),
        ("outrigger_config_reloads_total{result=\"rejected\"}", 1.0),
        ("outrigger_log_lines_dropped_total", 3.0),
        ("outrigger_policy_files{state=\"active\"}", 1.0),
        ("outrigger_worker_lag_seconds{worker=\"1\"}", 0.0),
    ] {
        assert_eq!(samples.get(series), Some(&value), "{series}");
    }
    let healthy = "outrigger_instance_recovery_step{upstream=\"orders\",instance=\"10.0.0.1:1\"}";
    assert_eq!(samples.get(healthy), None);
    if cfg!(target_os = "linux") {
        assert!(samples["process_resident_memory_bytes"] > 1e6);
        assert!(samples["process_open_fds"] >= 1.0);
        assert!(samples["process_start_time_seconds"] > 1.6e9);
    }
}

#[test]
fn an_instance_that_left_is_gone_and_only_wanted_families_are_shown() {
    let collector = Collector::new();
    let gone = "outrigger_instance_weight{upstream=\"a\",instance=\"10.0.0.2:1\"}";
    let both = upstream("a", vec![instance("10.0.0.1:1"), instance("10.0.0.2:1")]);
    assert!(scrape(&collector, &[both], CAPS).contains_key(gone));
    let one = upstream("a", vec![instance("10.0.0.1:1")]);
    assert!(!scrape(&collector, std::slice::from_ref(&one), CAPS).contains_key(gone));
    let only = BTreeSet::from(["outrigger_instance_weight".to_owned()]);
    let live = Live {
        process: &process(),
        upstreams: &[one],
        workers: &[],
        reloads: &ReloadCounters::new(),
        dropped_lines: 0,
    };
    let text = collector.render(&live, CAPS, Some(&only), Format::Text);
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[test]
fn above_the_cap_only_ejected_instances_remain_and_drops_are_counted() {
    let caps = Caps {
        max_instances: 1,
        ..CAPS
    };
    let collector = Collector::new();
    let orders = with_requests("orders", 1);
    let samples = scrape(&collector, std::slice::from_ref(&orders), caps);
    let weight =
        |i: &str| format!("outrigger_instance_weight{{upstream=\"orders\",instance=\"{i}\"}}");
    assert!(!samples.contains_key(&weight("10.0.0.1:1")));
    assert!(samples.contains_key(&weight("[::1]:8080")));
    let dropped = "outrigger_metric_series_dropped_total{family=\"outrigger_instance_weight\"}";
    assert_eq!(samples.get(dropped), Some(&1.0));
    for (per_instance, series) in [
        (PerInstance::All, 2),
        (PerInstance::EjectedOnly, 1),
        (PerInstance::None, 0),
    ] {
        let caps = Caps {
            per_instance,
            ..caps
        };
        let samples = scrape(&Collector::new(), std::slice::from_ref(&orders), caps);
        let shown = samples
            .keys()
            .filter(|k| k.contains("_instance_weight{"))
            .count();
        assert_eq!(shown, series);
        assert!(!samples.contains_key(dropped));
    }
}

#[test]
fn the_common_counters_never_fall() {
    let collector = Collector::new();
    let requests = |upstream: &str| {
        format!(
            "outrigger_requests_total{{upstream=\"{upstream}\",protocol=\"http1\",code=\"2xx\"}}"
        )
    };
    let other = requests("_other");
    let caps = |max_upstreams| Caps {
        max_upstreams,
        ..CAPS
    };
    let scrape = |max: usize, counts: &[(&str, usize)]| {
        let upstreams: Vec<_> = counts.iter().map(|(n, c)| with_requests(n, *c)).collect();
        scrape(&collector, &upstreams, caps(max))
    };
    let is = |samples: &BTreeMap<String, f64>, series: &str, value: f64| {
        assert_eq!(samples.get(series), Some(&value), "{series}");
    };
    let samples = scrape(1, &[("a", 1), ("b", 2), ("c", 4)]);
    is(&samples, &requests("a"), 1.0);
    is(&samples, &other, 6.0);
    let gauge = "outrigger_instances{upstream=\"_other\",state=\"ejected\"}";
    is(&samples, gauge, 2.0);
    // One that sorts first comes, one leaves: who has a name keeps it.
    let samples = scrape(1, &[("0", 1), ("a", 1), ("b", 3)]);
    is(&samples, &requests("a"), 1.0);
    is(&samples, &other, 8.0);
    // One gets a name: what it counted so far stays in the sum as well.
    let samples = scrape(2, &[("a", 1), ("b", 5), ("c", 1)]);
    is(&samples, &requests("b"), 5.0);
    is(&samples, &other, 9.0);
    // And loses it again: only what follows is common.
    let samples = scrape(1, &[("a", 1), ("b", 6), ("c", 1)]);
    is(&samples, &other, 9.0);
    let samples = scrape(1, &[("a", 1), ("b", 7), ("c", 1)]);
    is(&samples, &other, 10.0);
    assert!(!samples.contains_key(&requests("b")));
}

proptest! {
    /// Whatever comes and goes: no more labels than the caps allow, and what is left out is counted.
    #[test]
    fn caps_hold(
        rounds in proptest::collection::vec(proptest::collection::btree_set(0_u8..12, 0..12), 1..6),
        max_upstreams in 1_usize..6,
        max_instances in 0_usize..20,
    ) {
        let caps = Caps { max_instances, max_upstreams, ..CAPS };
        let collector = Collector::new();
        let mut dropped = 0.0;
        for names in rounds {
            let upstreams: Vec<_> = names.iter().map(|n| with_requests(&format!("u{n}"), 1)).collect();
            let live = Live {
                process: &process(),
                upstreams: &upstreams,
                workers: &[],
                reloads: &ReloadCounters::new(),
                dropped_lines: 0,
            };
            let samples = parse(&collector.render(&live, caps, None, Format::Text));
            let of = |label: &str| -> BTreeSet<String> {
                let values = samples.keys().filter_map(|k| k.split_once(&format!("{label}=\"")));
                values.map(|(_, rest)| rest.split('"').next().unwrap().to_owned()).collect()
            };
            let mut named = of("upstream");
            named.retain(|name| !name.starts_with('_'));
            prop_assert_eq!(named.len(), names.len().min(max_upstreams));
            let weights = samples.keys().filter(|k| k.starts_with("outrigger_instance_weight{"));
            let each = if names.len() * 2 <= max_instances { 2 } else { 1 };
            prop_assert_eq!(weights.count(), named.len() * each);
            let now: f64 = samples.iter()
                .filter(|(k, _)| k.starts_with("outrigger_metric_series_dropped_total{"))
                .map(|(_, n)| n)
                .sum();
            let all_shown = each == 2 && names.len() <= max_upstreams || names.is_empty();
            prop_assert_eq!(now > dropped, !all_shown);
            dropped = now;
        }
    }
}
