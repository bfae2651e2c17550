//! `docs/metrics.md` says of every family what `metrics::names` says.

use outrigger::metrics::names::ALL;

#[test]
fn the_document_lists_every_family_as_it_is() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, table) = text.split_once("\n## Families\n").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let documented: Vec<&str> = rows.collect();
    let wanted: Vec<String> = ALL
        .iter()
        .map(|family| {
            let labels: Vec<_> = family.labels.iter().map(|l| format!("`{l}`")).collect();
            let labels = match labels.join(", ") {
                none if none.is_empty() => "–".to_owned(),
                some => some,
            };
            let (name, kind, help) = (family.name, family.kind.as_str(), family.help);
            format!("| `{name}` | {kind} | {labels} | {help} |")
        })
        .collect();
    assert_eq!(documented, wanted);
}

#[test]
fn buckets_are_those_of_the_document() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap().replace('\n', " ");
    let show = |bounds: &[f64]| {
        let bounds: Vec<_> = bounds.iter().map(f64::to_string).collect();
        format!(": {}.", bounds.join(" "))
    };
    let requests = outrigger::metrics::cells::BUCKETS_US.map(|us| us as f64 / 1e6);
    assert!(text.contains(&show(&requests)));
    assert!(text.contains(&show(&outrigger::metrics::names::EJECTION_BOUNDS_S)));
}
