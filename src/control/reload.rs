//! A reload: the whole new configuration first; on any error the old one stays. One event, one line.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use super::plane::{Plane, PolicyChange, rejected_lines};
use crate::clock;
use crate::config::environment::ProcessEnvironment;
use crate::config::types::{Config, Registry, RegistryKind, Service};
use crate::config::{LoadRequest, load, restart_required};

impl Plane {
    /// Loads the files again and applies what can be applied.
    pub(super) fn reload_now(&mut self) {
        let request = LoadRequest {
            path: self.inputs.path.clone(),
            env: &ProcessEnvironment,
            flags: self.inputs.flags.clone(),
            folder: PathBuf::new(),
            previous: Some(Arc::clone(&self.config.policies)),
        };
        let loaded = load(request);
        let problems: Vec<String> = loaded.diagnostics.iter().map(|p| p.line()).collect();
        let Some(new) = loaded.config else {
            self.reload.counters.rejected();
            self.reload.last_ok = false;
            for problem in &problems {
                tracing::error!(%problem, "reload refused; the old configuration stays");
            }
            let what = problems.first().cloned().unwrap_or_default();
            self.reload.problems.clone_from(&problems);
            self.journal.emit(
                "config_rejected",
                vec![("diagnostics", json!(problems))],
                format!("reload refused, the old configuration stays: {what}"),
            );
            return;
        };
        let restart = restart_required(&self.first_config, &new);
        let new = Arc::new(keep_restart_only(&self.first_config, new));
        let change = PolicyChange::between(&self.config, &new);
        let rejected = !new.policies.rejected.is_empty();
        self.config = Arc::clone(&new);
        self.registries.apply(&self.config, &self.embedded);
        self.apply_services(&change);
        self.follow_default_names();
        self.publish();
        self.journal.configure(&self.config.telemetry.events);
        self.config_changes.send_replace(Arc::clone(&self.config));
        self.reload.counters.applied();
        self.reload.last_ok = !rejected;
        self.reload.loaded_at = clock::wall_now();
        self.reload.restart_required.clone_from(&restart);
        self.reload.problems = rejected_lines(&self.config);
        self.reload.hash = hash_files(&loaded.files_read);
        self.reload.main_file = loaded.main_file;
        if rejected {
            self.reload.counters.rejected();
            self.tell_rejected_policies();
        }
        let note = if restart.is_empty() {
            String::new()
        } else {
            format!("; a restart is needed for {}", restart.join(", "))
        };
        tracing::info!(restart_required = ?restart, rejected_files = self.config.policies.rejected.len(), "configuration reloaded");
        self.journal.emit(
            "config_reloaded",
            vec![
                ("hash", json!(self.reload.hash)),
                ("restart_required", json!(restart)),
                ("rejected_files", json!(self.config.policies.rejected.len())),
                ("warnings", json!(problems)),
            ],
            format!("configuration reloaded{note}"),
        );
    }
}

/// The new configuration with the old values of what needs a restart.
fn keep_restart_only(old: &Config, mut new: Config) -> Config {
    new.inputs = Arc::new(new.inputs.in_process_of(&old.inputs));
    new.listen.clone_from(&old.listen);
    new.workers = old.workers;
    new.admin.listen = old.admin.listen.clone();
    new.telemetry.listen.clone_from(&old.telemetry.listen);
    for (name, registry) in &mut new.registries {
        keep_registry_listen(old.registries.get(name), registry);
    }
    let ports: BTreeMap<_, _> = old
        .services
        .iter()
        .map(|(name, s)| (name, s.port))
        .collect();
    for (name, service) in &mut new.services {
        let port = ports.get(name).copied().flatten();
        if service.port != port {
            let mut changed = Service::clone(service);
            changed.port = port;
            *service = Arc::new(changed);
        }
    }
    new
}

fn keep_registry_listen(old: Option<&Registry>, new: &mut Registry) {
    let RegistryKind::Embedded(settings) = &mut new.kind else {
        return;
    };
    match old.map(|old| &old.kind) {
        Some(RegistryKind::Embedded(before)) => settings.listen.clone_from(&before.listen),
        // A registry that is new has no listener before the next start.
        Some(RegistryKind::File { .. } | RegistryKind::Nacos(_)) | None => settings.listen = None,
    }
}

/// A hash of the contents of the files, for "which configuration runs here".
pub fn hash_files(files: &[PathBuf]) -> String {
    // FNV-1a, 64 bits: it names, it does not protect.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for file in files {
        for byte in std::fs::read(file).unwrap_or_default() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        hash = (hash ^ 0xff).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("{hash:016x}")
}
