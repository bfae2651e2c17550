//! Which changed keys a running process cannot take over. A reload keeps their old values and names
//! them in `restart_required`.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::types::{Config, Listen};

/// The keys that need a restart; `*` stands for a name.
const KEYS: [&str; 7] = [
    "listen",
    "workers",
    "admin.listen",
    "telemetry.listen",
    "registries.*.listen",
    "services.*.port",
    "state_file",
];

/// Whether a change of the key `path` needs one.
pub fn needs_restart(path: &str) -> bool {
    KEYS.iter().any(|key| match key.split_once('*') {
        Some((head, tail)) => path.strip_prefix(head).is_some_and(|p| p.ends_with(tail)),
        None => *key == path,
    })
}

/// The paths of changed keys that need a restart, in the order of the file.
pub fn restart_required(old: &Config, new: &Config) -> Vec<String> {
    let fixed = [
        ("listen", old.listen != new.listen),
        ("workers", old.workers != new.workers),
        ("admin.listen", old.admin.listen != new.admin.listen),
        (
            "telemetry.listen",
            old.telemetry.listen != new.telemetry.listen,
        ),
    ];
    let fixed = fixed
        .into_iter()
        .filter(|(_, changed)| *changed)
        .map(|(key, _)| key.to_owned());
    let state = (old.state_file != new.state_file).then(|| "state_file".to_owned());
    let registries = names(old.registries.keys().chain(new.registries.keys()))
        .filter(|name| registry_listen(old, name) != registry_listen(new, name))
        .map(|name| format!("registries.{name}.listen"));
    let services = names(old.services.keys().chain(new.services.keys()))
        .filter(|name| service_port(old, name) != service_port(new, name))
        .map(|name| format!("services.{name}.port"));
    fixed
        .chain(registries)
        .chain(services)
        .chain(state)
        .collect()
}

fn names<'a>(names: impl Iterator<Item = &'a Arc<str>>) -> impl Iterator<Item = &'a Arc<str>> {
    names.collect::<BTreeSet<_>>().into_iter()
}

fn registry_listen<'a>(config: &'a Config, name: &str) -> Option<&'a Listen> {
    let embedded = config.registries.get(name)?.kind.embedded()?;
    embedded.listen.as_ref()
}

fn service_port(config: &Config, name: &str) -> Option<u16> {
    config.services.get(name)?.port
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::parse_str;

    #[test]
    fn names_what_changed_and_nothing_else() {
        let config = |text: &str| parse_str(text, "t", &BTreeMap::new(), None).config.unwrap();
        let old = config("registries: {e: {kind: embedded}}\n");
        let new = config(
            "workers: 3\nlog: {level: debug}\nregistries: {e: {kind: embedded, listen: none}}\n\
             services: {a: {port: 7000}, b: {}}\nstate_file: x\n",
        );
        let want = [
            "workers",
            "registries.e.listen",
            "services.a.port",
            "state_file",
        ];
        assert_eq!(restart_required(&old, &new), want);
        assert!(want.iter().all(|key| needs_restart(key)));
        assert!(restart_required(&old, &old).is_empty());
    }
}
