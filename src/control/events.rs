//! What registries live through, written into the journal.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::discovery::{HoldCause, Ignored, RegistryEvents};
use crate::journal::Journal;

/// Tells the journal.
#[derive(Debug)]
pub(super) struct JournalEvents(pub(super) Journal);

impl RegistryEvents for JournalEvents {
    fn lost(&self, registry: &Arc<str>, error: &str) {
        self.0.emit(
            "registry_lost",
            vec![("registry", json!(&**registry)), ("error", json!(error))],
            format!("registry {registry} does not answer ({error}); sets it gave before stay"),
        );
    }

    fn restored(&self, registry: &Arc<str>, lost_for: Duration) {
        let seconds = (lost_for.as_secs_f64() * 1000.0).round() / 1000.0;
        self.0.emit(
            "registry_restored",
            vec![
                ("registry", json!(&**registry)),
                ("lost_for_s", json!(seconds)),
            ],
            format!("registry {registry} answers again after {seconds:.1}s"),
        );
    }

    fn empty_ignored(&self, registry: &Arc<str>, ignored: &Ignored) {
        let Ignored {
            service,
            cause,
            kept,
            offered,
        } = ignored;
        let what = match cause {
            HoldCause::Empty => "an empty set",
            HoldCause::Shrink => "a much smaller set",
        };
        self.0.emit(
            "registry_empty_ignored",
            vec![
                ("registry", json!(&**registry)),
                ("upstream", json!(&**service)),
                ("kept", json!(kept)),
                ("offered", json!(offered)),
            ],
            format!(
                "registry {registry} gave {what} for {service} ({offered} instead of {kept}); the \
                 last one stays until it is confirmed"
            ),
        );
    }
}
