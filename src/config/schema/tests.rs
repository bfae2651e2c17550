use std::collections::BTreeSet;

use super::*;
use crate::config::describe::keys;

#[test]
fn every_key_that_is_read_is_declared_and_described() {
    let mut used: BTreeSet<String> = BTreeSet::new();
    for kind in Kind::ALL {
        for record in records(kind) {
            assert!(
                record.declared.is_some(),
                "`{}` is read, and no reader says what it takes",
                record.path
            );
            let key = described(kind, &generic(&record.path));
            assert!(describe(&key).is_some(), "`{key}` is not described");
            used.insert(key);
        }
    }
    for (key, _) in keys() {
        assert!(
            used.contains(key),
            "`{key}` is described, and nobody reads it"
        );
    }
}

#[test]
fn schemas_say_types_defaults_and_bounds() {
    let main = schema(Kind::Outrigger);
    let at = |pointer: &str| main.pointer(pointer).cloned().unwrap_or_default();
    assert_eq!(at("/properties/workers/default"), "auto");
    assert_eq!(
        at("/properties/limits/properties/max_headers/maximum"),
        Value::Null
    );
    assert_eq!(
        at("/properties/limits/properties/max_headers/anyOf/0/maximum"),
        10_000
    );
    assert_eq!(
        at(
            "/properties/services/additionalProperties/properties/timeout/properties/connect/default"
        ),
        "3s"
    );
    assert_eq!(
        at("/properties/registries/additionalProperties/required/0"),
        "kind"
    );
    assert_eq!(at("/additionalProperties"), false);
    let policy = schema(Kind::Policy);
    let name = policy
        .pointer("/properties/policies/items/required/0")
        .cloned();
    assert_eq!(name, Some("name".into()));
}
