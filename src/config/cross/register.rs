//! `app.register` against the registries: whether one exists and can be registered with, and the
//! limits of its kind, so that they are told at load and not by an answer of the server.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::diagnostic::Code;
use crate::config::parse::reader::{Field, list};
use crate::config::suggest;
use crate::config::types::{Register, Registry, RegistryKind};

/// Nacos's own limit on all keys and values of an instance.
const NACOS_METADATA: usize = 1024;
/// Consul's limits.
const CONSUL_PAIRS: usize = 64;
const CONSUL_KEY: usize = 128;
const CONSUL_VALUE: usize = 512;

/// Reports what does not fit.
pub(crate) fn check(
    items: &[(Register, Field<'_>)],
    registries: &BTreeMap<Arc<str>, Registry>,
    written: &BTreeMap<Arc<str>, Field<'_>>,
) {
    for (register, field) in items {
        let Some(registry) = registries.get(&register.registry) else {
            // One that is written and could not be read has its own problem.
            if !written.contains_key(&register.registry) {
                unknown(register, field, written);
            }
            continue;
        };
        let item = Item { register, field };
        match &registry.kind {
            RegistryKind::Embedded(embedded) => {
                item.nacos_names();
                item.metadata_limit(embedded.max_metadata_bytes, "limits.max_metadata_bytes");
            }
            RegistryKind::Nacos(nacos) => {
                item.nacos_names();
                item.metadata_limit(NACOS_METADATA, "the limit of Nacos");
                if !is_word(&nacos.namespace, "_-", 64) {
                    let what = format!("namespace `{}` is none of Nacos", nacos.namespace);
                    item.wrong("registry", &what, "at most 64 of A-Z a-z 0-9 _ -");
                }
            }
            RegistryKind::Eureka(_) => item.eureka(),
            RegistryKind::Consul(_) => item.consul(),
            RegistryKind::File { .. }
            | RegistryKind::Kubernetes(_)
            | RegistryKind::Dns(_)
            | RegistryKind::Zookeeper(_) => {
                let what = format!(
                    "nothing can be registered with a registry of kind `{}`",
                    registry.kind.word()
                );
                let help = "embedded, nacos, eureka and consul take registrations";
                item.report(Code::NO_REGISTRATION, "registry", &what, help);
            }
        }
    }
    twice(items);
}

fn unknown(register: &Register, field: &Field<'_>, written: &BTreeMap<Arc<str>, Field<'_>>) {
    let known: Vec<&str> = written.keys().map(|name| &**name).collect();
    let help = match suggest::nearest(&register.registry, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => "no registry is defined under `registries`".to_owned(),
        None => format!("defined are {}", list(&known)),
    };
    let what = format!("registry `{}` is not defined", register.registry);
    Item { register, field }.report(Code::UNKNOWN_REGISTRY, "registry", &what, &help);
}

/// The same instance in the same registry.
fn twice(items: &[(Register, Field<'_>)]) {
    let key = |r: &Register| {
        let names = (
            r.registry.clone(),
            r.service.clone(),
            r.group.clone(),
            r.cluster.clone(),
        );
        (names, r.advertise.clone())
    };
    for (n, (register, field)) in items.iter().enumerate() {
        let before = items.iter().take(n);
        if before
            .into_iter()
            .any(|(other, _)| key(other) == key(register))
        {
            let what = format!(
                "`{}` is registered twice with `{}`",
                register.service, register.registry
            );
            Item { register, field }.report(
                Code::NO_REGISTRATION,
                "service",
                &what,
                "keep one of them",
            );
        }
    }
}

struct Item<'i, 'a> {
    register: &'i Register,
    field: &'i Field<'a>,
}

impl Item<'_, '_> {
    /// At the value of `key`, or where the item stands.
    fn report(&self, code: Code, key: &str, what: &str, help: &str) {
        let node = self.field.node.get(key);
        let place = node.map_or(&self.field.key, |node| &node.place);
        let message = format!("`{}.{key}`: {what}", self.field.path);
        self.field.context.report(code, place, message, help);
    }

    fn wrong(&self, key: &str, what: &str, help: &str) {
        self.report(Code::NAME, key, what, help);
    }

    fn services(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let management = self.register.management.as_ref();
        let management = management.map(|m| ("management", &*m.service));
        std::iter::once(("service", &*self.register.service)).chain(management)
    }

    fn nacos_names(&self) {
        for (key, name) in self.services() {
            let good = !name.is_empty() && name.chars().count() <= 512 && !name.starts_with('@');
            if !good || name.chars().any(|c| c.is_whitespace() || is_cjk(c)) {
                let help = "at most 512 characters without blanks, not beginning with `@`";
                self.wrong(key, &format!("`{name}` is no service name for Nacos"), help);
            } else if name.contains("@@") {
                self.wrong(
                    key,
                    &format!("`{name}` has its group in it"),
                    "write `group:` beside it",
                );
            }
        }
        let words = [
            (
                "group",
                &self.register.group,
                "-_:.",
                128,
                "at most 128 of A-Z a-z 0-9 - _ : .",
            ),
            (
                "cluster",
                &self.register.cluster,
                "-_",
                64,
                "at most 64 of A-Z a-z 0-9 - _",
            ),
        ];
        for (key, name, extra, most, help) in words {
            if let Some(name) = name.as_deref().filter(|name| !is_word(name, extra, most)) {
                self.wrong(key, &format!("`{name}` is no {key} for Nacos"), help);
            }
        }
    }

    fn metadata_limit(&self, most: usize, whose: &str) {
        let pairs = self.register.metadata.iter();
        let length: usize = pairs
            .map(|(k, v)| k.chars().count() + v.chars().count())
            .sum();
        if length > most {
            let what = format!("keys and values are {length} characters together");
            self.report(
                Code::SIZE,
                "metadata",
                &what,
                &format!("at most {most} ({whose})"),
            );
        }
    }

    fn eureka(&self) {
        for (key, name) in self.services() {
            if name.is_empty()
                || name
                    .chars()
                    .any(|c| "/\\%;".contains(c) || c.is_whitespace())
            {
                let what = format!("`{name}` would be registered and never be removed again");
                self.wrong(
                    key,
                    &what,
                    "an id for Eureka has no blank and none of / \\ % ;",
                );
            }
        }
        self.only_nacos("Eureka");
    }

    fn consul(&self) {
        self.only_nacos("Consul");
        for (key, name) in self.services() {
            if name.is_empty() || name.contains('/') || name.chars().any(char::is_whitespace) {
                let help = "letters, digits and `-`, as in a host name";
                self.wrong(
                    key,
                    &format!("`{name}` is no service name for Consul"),
                    help,
                );
            }
        }
        if !self.register.weight.thousandths().is_multiple_of(1000)
            || self.register.weight.is_zero()
        {
            let help = "a whole number from 1 on";
            self.report(Code::NUMBER, "weight", "Consul takes no such weight", help);
        }
        let metadata = &self.register.metadata;
        if metadata.len() > CONSUL_PAIRS {
            let what = format!("{} pairs are too many for Consul", metadata.len());
            self.report(Code::SIZE, "metadata", &what, "at most 64");
        }
        for (name, value) in metadata {
            if !is_word(name, "-_", CONSUL_KEY) {
                let help = "at most 128 of A-Z a-z 0-9 - _";
                self.wrong("metadata", &format!("`{name}` is no key for Consul"), help);
            }
            if value.len() > CONSUL_VALUE {
                let what = format!("the value of `{name}` is too long for Consul");
                self.report(Code::SIZE, "metadata", &what, "at most 512 characters");
            }
        }
    }

    /// Keys that mean something to Nacos and the embedded registry only.
    fn only_nacos(&self, kind: &str) {
        let register = self.register;
        let written = [
            ("group", register.group.is_some()),
            ("cluster", register.cluster.is_some()),
            ("ephemeral", !register.ephemeral),
        ];
        for (key, _) in written.iter().filter(|(_, written)| *written) {
            let what = format!("it means nothing to {kind}");
            self.report(Code::NO_REGISTRATION, key, &what, "remove it");
        }
    }
}

fn is_word(text: &str, extra: &str, most: usize) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || extra.contains(c);
    !text.is_empty() && text.len() <= most && text.chars().all(legal)
}

fn is_cjk(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fa5}')
}
