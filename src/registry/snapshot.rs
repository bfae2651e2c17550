//! The registry's state on disk: one JSON file, written beside and renamed over, so that a crash
//! leaves the old or the new one. A file that cannot be read is set aside with a message; the
//! registry then starts empty. Times are not saved: every lease gets a full period after a restart.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing::{error, warn};

use super::lease::Table;
use super::model::{InstanceKey, Patch, Registration, ServiceKey};
use crate::clock::Timestamp;
use crate::endpoint::Weight;

/// What this program writes; a file of another version is set aside.
const VERSION: u32 = 1;

/// The whole file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Saved {
    version: u32,
    /// In the order of registration inside each service.
    instances: Vec<SavedInstance>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedInstance {
    namespace: String,
    group: String,
    service: String,
    ip: String,
    port: u16,
    cluster: String,
    weight: f64,
    enabled: bool,
    healthy: bool,
    ephemeral: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    operator: Option<SavedPatch>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedPatch {
    weight: Option<f64>,
    enabled: Option<bool>,
    metadata: Option<BTreeMap<String, String>>,
}

/// The folder of the snapshot.
#[derive(Clone, Debug)]
pub(super) struct Store {
    path: PathBuf,
}

impl Store {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            path: folder.join("registry.json"),
        }
    }

    /// What was saved; nothing when there is no file or none that can be read.
    pub(super) fn load(&self) -> Option<Saved> {
        let path = self.path.display();
        let problem = match std::fs::read(&self.path) {
            Ok(text) => match serde_json::from_slice::<Saved>(&text) {
                Ok(saved) if saved.version == VERSION => return Some(saved),
                Ok(saved) => format!("version {} is not {VERSION}", saved.version),
                Err(failure) => failure.to_string(),
            },
            Err(failure) if failure.kind() == std::io::ErrorKind::NotFound => return None,
            Err(failure) => failure.to_string(),
        };
        let aside = self.path.with_extension("json.bad");
        let kept = aside.display();
        match std::fs::rename(&self.path, &aside) {
            Ok(()) => error!(%path, %kept, problem, "registry snapshot set aside, starting empty"),
            Err(failure) => {
                error!(%path, %failure, problem, "registry snapshot is bad, starting empty");
            }
        }
        None
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a snapshot, durably.
    pub(super) fn save(&self, saved: &Saved) -> std::io::Result<()> {
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let fresh = self.path.with_extension("json.new");
        let mut file = std::fs::File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(saved)?)?;
        file.sync_all()?;
        std::fs::rename(&fresh, &self.path)
    }
}

/// What the table knows, for the file.
pub(super) fn saved(table: &mut Table, now: Timestamp) -> Saved {
    let instances = table.all(now).map(|(service, instance)| {
        let (registered, overlay) = instance.parts();
        let operator = (*overlay != Patch::default()).then(|| SavedPatch {
            weight: overlay.weight.map(number),
            enabled: overlay.enabled,
            metadata: overlay.metadata.as_deref().cloned(),
        });
        SavedInstance {
            namespace: service.namespace.to_string(),
            group: service.group.to_string(),
            service: service.name.to_string(),
            ip: registered.key.ip.to_string(),
            port: registered.key.port,
            cluster: registered.key.cluster.to_string(),
            weight: number(registered.weight),
            enabled: registered.enabled,
            healthy: instance.healthy(),
            ephemeral: registered.ephemeral,
            metadata: (*registered.metadata).clone(),
            operator,
        }
    });
    Saved {
        version: VERSION,
        instances: instances.collect(),
    }
}

/// Puts what was saved into the table; how many were restored, and how many were refused.
pub(super) fn restore(saved: Option<Saved>, table: &mut Table, now: Timestamp) -> (usize, usize) {
    let (mut restored, mut refused) = (0usize, 0usize);
    for one in saved.into_iter().flat_map(|saved| saved.instances) {
        match restore_one(one, table, now) {
            Ok(()) => restored = restored.saturating_add(1),
            Err(refusal) => {
                warn!(%refusal, "instance of the registry snapshot refused");
                refused = refused.saturating_add(1);
            }
        }
    }
    (restored, refused)
}

fn restore_one(
    one: SavedInstance,
    table: &mut Table,
    now: Timestamp,
) -> Result<(), super::model::Refusal> {
    let service = ServiceKey::new(Some(&one.namespace), Some(&one.group), &one.service)?;
    let key = InstanceKey::new(&one.ip, one.port, Some(&one.cluster))?;
    let registration = Registration {
        key: key.clone(),
        weight: Weight::from_number(one.weight).0,
        enabled: one.enabled,
        healthy: one.healthy,
        ephemeral: one.ephemeral,
        metadata: Arc::new(one.metadata),
    };
    table.register(&service, registration, now)?;
    let Some(operator) = one.operator else {
        return Ok(());
    };
    let patch = Patch {
        weight: operator.weight.map(|weight| Weight::from_number(weight).0),
        enabled: operator.enabled,
        healthy: None,
        metadata: operator.metadata.map(Arc::new),
    };
    table.patch(&service, key.target(), &patch, now)
}

fn number(weight: Weight) -> f64 {
    f64::from(weight.thousandths()) / 1000.0
}
