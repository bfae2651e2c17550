//! A reload, whoever asked for it: the whole new configuration first; on any error the old one
//! stays. One event, one count, one answer. Files are read on a thread of their own: a file system
//! that hangs holds up no decision. Next: `control/watch.rs`, who asks when files change.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::plane::{Plane, PolicyChange, rejected_lines};
use super::watch::WatchList;
use crate::clock;
use crate::config::digest::Digests;
use crate::config::environment::ProcessEnvironment;
use crate::config::types::{Config, FileVersion, Registry, RegistryKind, Service};
use crate::config::{LoadRequest, Loaded, changes, load, read_digests, restart_required};
use crate::metrics::collect::ReloadResult;
use crate::status::{RejectedFile, ReloadReport};

/// Who asked for a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Somebody by the admin API.
    Api {
        /// As the request names it.
        actor: String,
        /// Why.
        note: Option<String>,
    },
    /// SIGHUP.
    Signal,
    /// A file changed.
    Watch,
}

impl Asker {
    fn name(&self) -> &str {
        match self {
            Self::Api { actor, .. } => actor,
            Self::Signal => "signal",
            Self::Watch => "watch",
        }
    }

    fn note(&self) -> Option<&str> {
        match self {
            Self::Api { note, .. } => note.as_deref(),
            Self::Signal | Self::Watch => None,
        }
    }
}

/// A wish for a reload.
#[derive(Debug)]
pub struct ReloadWish {
    /// Whose.
    pub asker: Asker,
    /// Told how it went.
    pub reply: Option<oneshot::Sender<ReloadReport>>,
}

/// What was read.
#[derive(Debug)]
pub(super) struct Load {
    loaded: Loaded,
    /// What the globs in force led to just before.
    seen: Digests,
}

impl Plane {
    /// Begins to load; while a load runs, wishes wait for the next one, since files may have changed
    /// after they were read.
    pub(super) fn wish(&mut self, wish: ReloadWish) {
        self.reload.waiting.push(wish);
        if self.reload.running.is_empty() {
            self.begin_load();
        }
    }

    fn begin_load(&mut self) {
        if self.reload.waiting.is_empty() {
            return;
        }
        self.reload.running = std::mem::take(&mut self.reload.waiting);
        let inputs = self.inputs.clone();
        let previous = Arc::clone(&self.config.policies);
        let done = self.loads.clone();
        let list = self.watched.borrow().clone();
        // Ends by itself; a plane that is gone wants no result.
        drop(tokio::task::spawn_blocking(move || {
            let seen = list
                .main
                .as_deref()
                .map(|main| read_digests(main, &list.globs, &list.contents));
            let loaded = load(LoadRequest {
                path: inputs.path,
                env: &ProcessEnvironment,
                flags: inputs.flags,
                folder: PathBuf::new(),
                previous: Some(previous),
            });
            let seen = seen.unwrap_or_default();
            let _gone = done.blocking_send(Box::new(Load { loaded, seen }));
        }));
    }

    /// A load is done: applies what can be applied and answers those who asked for it.
    pub(super) fn loaded(&mut self, load: Load) {
        let wishes = std::mem::take(&mut self.reload.running);
        let asker = wishes
            .first()
            .map_or(Asker::Signal, |wish| wish.asker.clone());
        let report = self.take_over(load, &asker);
        for wish in wishes {
            if let Some(reply) = wish.reply {
                // Whoever asked may have left.
                let _gone = reply.send(report.clone());
            }
        }
        self.begin_load();
    }

    fn take_over(&mut self, load: Load, asker: &Asker) -> ReloadReport {
        let Load { loaded, seen } = load;
        let problems: Vec<String> = loaded.diagnostics.iter().map(|p| p.line()).collect();
        let mut report = ReloadReport {
            diagnostics: problems.clone(),
            text: loaded.diagnostics.to_string(),
            ..ReloadReport::default()
        };
        if let Some(main) = &loaded.main_file {
            // Also after a refusal: the same bad content is not tried again by itself.
            let (globs, contents, digests) = match &loaded.config {
                Some(_) => (
                    loaded.policy_globs.clone(),
                    loaded.contents.clone(),
                    loaded.digests.clone(),
                ),
                None => {
                    let old = self.watched.borrow();
                    (old.globs.clone(), old.contents.clone(), seen)
                }
            };
            self.watched.send_replace(WatchList {
                main: Some(main.clone()),
                globs,
                contents,
                loaded: digests,
            });
        }
        let result = match loaded.config {
            None => {
                self.refuse(&problems, &mut report);
                ReloadResult::Rejected
            }
            Some(_) if self.reload.digests == loaded.digests => {
                let was_ok = self.reload.last_ok;
                self.nothing_changed(&mut report);
                if was_ok && *asker == Asker::Watch {
                    // Somebody else's reload took the change over while it was being watched.
                    return report;
                }
                ReloadResult::Unchanged
            }
            Some(new) => {
                self.reload.digests = loaded.digests;
                self.reload.main_file = loaded.main_file;
                self.apply(new, &mut report);
                if self.config.policies.rejected.is_empty() {
                    ReloadResult::Applied
                } else {
                    ReloadResult::Partial
                }
            }
        };
        self.reload.counters.count(result);
        result.as_str().clone_into(&mut report.result);
        report.hash.clone_from(&self.reload.hash);
        report
            .restart_required
            .clone_from(&self.reload.restart_required);
        self.tell(result, &report, asker);
        report
    }

    fn refuse(&mut self, problems: &[String], report: &mut ReloadReport) {
        self.reload.last_ok = false;
        self.reload.problems = problems.to_vec();
        for problem in problems {
            tracing::error!(%problem, "reload refused; the old configuration stays");
        }
        let what = problems.first().cloned().unwrap_or_default();
        report.message = format!("reload refused, the old configuration stays: {what}");
    }

    fn nothing_changed(&mut self, report: &mut ReloadReport) {
        // After a refusal: the files hold again what runs.
        self.reload.last_ok = self.config.policies.rejected.is_empty();
        self.reload.problems = rejected_lines(&self.config);
        report.rejected_files = rejected_files(&self.config);
        report.message = "nothing changed".to_owned();
        for line in &report.rejected_files {
            report.message = format!("{}; {}", report.message, line.fate);
        }
    }

    fn apply(&mut self, new: Config, report: &mut ReloadReport) {
        let restart = restart_required(&self.first_config, &new);
        let new = Arc::new(keep_restart_only(&self.first_config, new));
        report.changed = changes(&self.config, &new);
        let change = PolicyChange::between(&self.config, &new);
        self.config = Arc::clone(&new);
        self.registries.apply(&self.config, &self.embedded);
        self.apply_services(&change);
        self.follow_default_names();
        self.publish();
        let embedded = self.registries.embedded();
        self.registrations.apply(&self.config, &embedded);
        self.journal.configure(&self.config.telemetry.events);
        self.config_changes.send_replace(Arc::clone(&self.config));
        self.reload.last_ok = self.config.policies.rejected.is_empty();
        self.reload.loaded_at = clock::wall_now();
        self.reload.problems = rejected_lines(&self.config);
        self.reload.hash = self.reload.digests.name();
        report.rejected_files = rejected_files(&self.config);
        report.message = match (&*restart, &*report.changed) {
            ([], []) => "configuration reloaded; no value differs".to_owned(),
            ([], changed) => format!("configuration reloaded: {}", changed.join(", ")),
            (restart, _) => format!(
                "configuration reloaded; a restart is needed for {}",
                restart.join(", ")
            ),
        };
        self.reload.restart_required = restart;
        let kept = report.rejected_files.iter().map(|file| file.fate.as_str());
        let fates: Vec<&str> = kept.collect();
        if !fates.is_empty() {
            let others = match self.config.policies.active_files.len() {
                1 => "1 other file".to_owned(),
                n => format!("{n} other files"),
            };
            report.message = format!("{}. {others} loaded.", fates.join(". "));
        }
    }

    /// The one event and log line of a reload.
    fn tell(&self, result: ReloadResult, report: &ReloadReport, asker: &Asker) {
        let event = match result {
            ReloadResult::Applied | ReloadResult::Unchanged => "config_reloaded",
            ReloadResult::Partial | ReloadResult::Rejected => "config_rejected",
        };
        for file in &report.rejected_files {
            if result != ReloadResult::Partial {
                break;
            }
            for problem in &file.problems {
                tracing::error!(file = %file.file, %problem, "policy file rejected");
            }
        }
        // A refusal has its lines already.
        if result != ReloadResult::Rejected {
            tracing::info!(
                result = result.as_str(),
                actor = asker.name(),
                restart_required = ?report.restart_required,
                rejected_files = report.rejected_files.len(),
                "{}",
                report.message
            );
        }
        let files: Vec<Value> = report
            .rejected_files
            .iter()
            .map(|file| json!(file.file))
            .collect();
        let what = match result {
            ReloadResult::Applied | ReloadResult::Unchanged => "warnings",
            ReloadResult::Partial | ReloadResult::Rejected => "diagnostics",
        };
        self.journal.emit(
            event,
            vec![
                ("result", json!(result.as_str())),
                ("actor", json!(asker.name())),
                ("note", json!(asker.note())),
                ("hash", json!(report.hash)),
                ("changed", json!(report.changed)),
                ("restart_required", json!(report.restart_required)),
                ("rejected_files", json!(files)),
                (what, json!(report.diagnostics)),
            ],
            report.message.clone(),
        );
    }
}

/// Policy files that are left out, each with what holds in its place.
pub(super) fn rejected_files(config: &Config) -> Vec<RejectedFile> {
    let set = &config.policies;
    let view = |file: &crate::config::types::RejectedFile| {
        let kept = set.versions.get(&file.path);
        let shown = file.path.display();
        let fate = match kept {
            Some(version) => format!(
                "{shown} rejected; its previous version (sha {}, loaded {}) stays active",
                version.digest.short(),
                loaded_at(version)
            ),
            None => format!("{shown} rejected; it never loaded, so its policies do not hold"),
        };
        RejectedFile {
            file: shown.to_string(),
            problems: file.problems.clone(),
            fate,
            last_good_holds: kept.is_some(),
        }
    };
    set.rejected.iter().map(view).collect()
}

/// The time of day (UTC); with the date when that is another day.
fn loaded_at(version: &FileVersion) -> String {
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(version.loaded_unix_s);
    let text = |at| humantime::format_rfc3339_seconds(at).to_string();
    let (then, now) = (text(at), text(clock::wall_now()));
    let then = then.trim_end_matches('Z');
    match (then.split_once('T'), now.split_once('T')) {
        (Some((day, time)), Some((today, _))) if day == today => time.to_owned(),
        (Some((day, time)), _) => format!("{day} {time}"),
        (None, _) => then.to_owned(),
    }
}

/// The new configuration with the old values of what needs a restart.
fn keep_restart_only(old: &Config, mut new: Config) -> Config {
    new.inputs = Arc::new(new.inputs.in_process_of(&old.inputs));
    new.listen.clone_from(&old.listen);
    new.workers = old.workers;
    new.state_file.clone_from(&old.state_file);
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
    // A registry that is new has no listener before the next start.
    let before = old.and_then(|old| old.kind.embedded());
    settings.listen = before.and_then(|before| before.listen.clone());
}
