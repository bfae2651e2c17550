//! What differs between two configurations, as paths of keys, for the report of a reload.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::types::{Config, PolicySet};

/// The keys that differ, in the order of the file; `policies.NAME` for an entry of a policy file.
pub fn changes(old: &Config, new: &Config) -> Vec<String> {
    // Taken apart by name, so that a new key cannot be forgotten here.
    let Config {
        listen,
        workers,
        self_lag,
        admin,
        telemetry,
        log,
        browser_guard,
        registry_wait,
        discovery_wait,
        auto_discover,
        passthrough,
        limits,
        app,
        registries,
        default_registries,
        defaults,
        services,
        policies,
        state_file,
        cache_dir,
        // Texts, not values.
        inputs: _,
    } = old;
    let keys = [
        ("listen", *listen != new.listen),
        ("workers", *workers != new.workers),
        ("self_lag", *self_lag != new.self_lag),
        ("admin", *admin != new.admin),
        ("telemetry", *telemetry != new.telemetry),
        ("log", *log != new.log),
        ("limits", *limits != new.limits),
        ("app", *app != new.app),
        ("browser_guard", *browser_guard != new.browser_guard),
        ("startup.registry_wait", *registry_wait != new.registry_wait),
        ("discovery_wait", *discovery_wait != new.discovery_wait),
        ("auto_discover", *auto_discover != new.auto_discover),
        ("passthrough", *passthrough != new.passthrough),
        ("state_file", *state_file != new.state_file),
        ("cache_dir", *cache_dir != new.cache_dir),
        ("defaults", *defaults != new.defaults),
        (
            "defaults.registry",
            *default_registries != new.default_registries && *defaults == new.defaults,
        ),
    ];
    let keys = keys.into_iter().filter(|(_, differs)| *differs);
    let mut found: Vec<String> = keys.map(|(key, _)| key.to_owned()).collect();
    found.extend(entries("registries", registries, &new.registries));
    found.extend(entries("services", services, &new.services));
    found.extend(entries(
        "policies",
        &by_name(policies),
        &by_name(&new.policies),
    ));
    found
}

fn by_name(set: &PolicySet) -> BTreeMap<Arc<str>, impl PartialEq> {
    let entry = |e: &super::types::PolicyEntry| (Arc::clone(&e.policy.name), e.clone());
    set.entries.iter().map(entry).collect()
}

fn entries<T: PartialEq>(
    section: &str,
    old: &BTreeMap<Arc<str>, T>,
    new: &BTreeMap<Arc<str>, T>,
) -> Vec<String> {
    let names: BTreeSet<&Arc<str>> = old.keys().chain(new.keys()).collect();
    names
        .into_iter()
        .filter(|name| old.get(*name) != new.get(*name))
        .map(|name| {
            let what = match (old.contains_key(name), new.contains_key(name)) {
                (false, _) => " (new)",
                (_, false) => " (gone)",
                (true, true) => "",
            };
            format!("{section}.{name}{what}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_str;

    #[test]
    fn names_what_differs() {
        let config = |text: &str| parse_str(text, "t", &BTreeMap::new(), None).config.unwrap();
        let old = config("registries: {r: {kind: embedded}}\nservices: {a: {}, b: {}}\n");
        let new = config(
            "registries: {r: {kind: embedded}}\nlimits: {max_headers: 7}\n\
             services: {b: {via: none}, c: {}}\n",
        );
        let want = [
            "limits",
            "services.a (gone)",
            "services.b",
            "services.c (new)",
        ];
        assert_eq!(changes(&old, &new), want);
        assert!(changes(&new, &new).is_empty());
    }
}
