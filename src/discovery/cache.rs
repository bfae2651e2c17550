//! The last good set of each service in files, for a cold start while its registry is down (G5):
//! `CACHE_DIR/REGISTRY/SERVICE.json`, written by rename, beside the names of the registry. A set from
//! the cache is stale until the registry answers. Files of services that nobody asked for in a month
//! are removed. What cannot be read is set aside; what cannot be written is told and tried again at
//! the next change.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::{info, warn};

use super::ServiceQuery;
use crate::clock::wall_now;
use crate::endpoint::{Address, Endpoint, EndpointSet, Weight};
use crate::whole_file;

/// Of the format.
const VERSION: u32 = 1;
/// Bytes of a file.
const MAX_BYTES: u64 = 16 << 20;
/// Files that were not written for so long are removed at the start.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
/// A set that does not change is written again after this time, so that its age is told right and it
/// is not removed.
pub(super) const REWRITE: Duration = Duration::from_secs(600);
/// Characters that stay as they are in a file name.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
/// Longer names are shortened and get a digest.
const LONGEST_NAME: usize = 150;

/// The cache of one process. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Cache(Arc<Mutex<Option<Folder>>>);

#[derive(Clone, Debug)]
struct Folder {
    path: PathBuf,
    jobs: Sender<Job>,
}

#[derive(Debug)]
struct Job {
    path: PathBuf,
    text: Vec<u8>,
}

/// A set as it was at `saved`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cached {
    pub(super) set: EndpointSet,
    pub(super) saved: SystemTime,
}

#[derive(Debug, Serialize, Deserialize)]
struct SetFile {
    version: u32,
    saved_unix_s: u64,
    registry: String,
    service: Service,
    health_unknown: bool,
    endpoints: Vec<Entry>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Service {
    name: String,
    namespace: Option<String>,
    group: Option<String>,
    clusters: Option<Vec<String>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct NamesFile {
    version: u32,
    saved_unix_s: u64,
    names: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    address: String,
    weight: f64,
    healthy: bool,
    enabled: bool,
    draining: bool,
    incarnation: Option<String>,
    registration: Option<String>,
    cluster: Option<String>,
    zone: Option<String>,
    #[serde(default)]
    priority: u16,
    metadata: BTreeMap<String, String>,
}

impl Cache {
    /// Uses this folder from now on, or none. It is made where it is missing; a thread of its own
    /// removes old files and writes.
    pub fn set_folder(&self, path: Option<&Path>) {
        let mut folder = self.lock();
        if folder.as_ref().map(|folder| folder.path.as_path()) == path {
            return;
        }
        *folder = path.and_then(|path| {
            let (jobs, queue) = channel();
            let owned = path.to_owned();
            let spawned = std::thread::Builder::new()
                .name("cache".to_owned())
                .spawn(move || write_all(&owned, &queue));
            if let Err(error) = spawned {
                warn!(%error, "the cache of endpoints cannot be written");
                return None;
            }
            let path = path.to_owned();
            Some(Folder { path, jobs })
        });
    }

    fn lock(&self) -> MutexGuard<'_, Option<Folder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder(&self) -> Option<PathBuf> {
        self.lock().as_ref().map(|folder| folder.path.clone())
    }

    /// The set of a service, if an earlier process left one.
    pub(super) fn set(&self, registry: &str, query: &ServiceQuery) -> Option<Cached> {
        let file: SetFile = read(&path(&self.folder()?, registry, query))?;
        if file.version != VERSION || file.service != Service::of(query) {
            return None;
        }
        let saved = UNIX_EPOCH.checked_add(Duration::from_secs(file.saved_unix_s))?;
        let endpoints: Vec<Endpoint> = file.endpoints.iter().filter_map(Entry::endpoint).collect();
        Some(Cached {
            set: EndpointSet {
                endpoints: endpoints.into(),
                health_unknown: file.health_unknown,
            },
            saved,
        })
    }

    /// Keeps the set of a service.
    pub(super) fn keep(&self, registry: &str, query: &ServiceQuery, set: &EndpointSet) {
        let Some(folder) = self.folder() else { return };
        let file = SetFile {
            version: VERSION,
            saved_unix_s: unix_now(),
            registry: registry.to_owned(),
            service: Service::of(query),
            health_unknown: set.health_unknown,
            endpoints: set.endpoints.iter().map(Entry::of).collect(),
        };
        self.write(path(&folder, registry, query), &file);
    }

    /// The names of a registry, if an earlier process left them.
    pub(super) fn names(&self, registry: &str) -> Option<Vec<Arc<str>>> {
        let file: NamesFile = read(&names_path(&self.folder()?, registry))?;
        let names = file.names.iter().map(|name| name.as_str().into());
        (file.version == VERSION).then(|| names.collect())
    }

    /// Keeps the names of a registry.
    pub(super) fn keep_names(&self, registry: &str, names: &[Arc<str>]) {
        let Some(folder) = self.folder() else { return };
        let file = NamesFile {
            version: VERSION,
            saved_unix_s: unix_now(),
            names: names.iter().map(ToString::to_string).collect(),
        };
        self.write(names_path(&folder, registry), &file);
    }

    fn write(&self, path: PathBuf, file: &impl Serialize) {
        match serde_json::to_vec(file) {
            Ok(text) => {
                if let Some(folder) = &*self.lock() {
                    // The thread ends with this sender only.
                    let _written = folder.jobs.send(Job { path, text });
                }
            }
            Err(error) => warn!(path = %path.display(), %error, "cannot be cached"),
        }
    }
}

fn path(folder: &Path, registry: &str, query: &ServiceQuery) -> PathBuf {
    let mut name = query.registry_name.to_string();
    for part in [&query.namespace, &query.group].into_iter().flatten() {
        name.push(',');
        name.push_str(part);
    }
    for cluster in query.clusters.iter().flatten() {
        name.push(',');
        name.push_str(cluster);
    }
    let folder = folder.join(file_name(registry));
    folder.join(format!("{}.json", file_name(&name)))
}

fn names_path(folder: &Path, registry: &str) -> PathBuf {
    // No service can be called so: a comma is percent-encoded in the name of one.
    folder.join(file_name(registry)).join(",names.json")
}

impl Service {
    fn of(query: &ServiceQuery) -> Self {
        Self {
            name: query.registry_name.to_string(),
            namespace: query.namespace.as_deref().map(str::to_owned),
            group: query.group.as_deref().map(str::to_owned),
            clusters: query.clusters.clone(),
        }
    }
}

impl Entry {
    fn of(endpoint: &Endpoint) -> Self {
        let text = |text: &Option<Arc<str>>| text.as_deref().map(str::to_owned);
        Self {
            address: endpoint.address.as_str().to_owned(),
            weight: f64::from(endpoint.weight.thousandths()) / 1000.0,
            healthy: endpoint.healthy,
            enabled: endpoint.enabled,
            draining: endpoint.draining,
            incarnation: text(&endpoint.incarnation),
            registration: text(&endpoint.registration),
            cluster: text(&endpoint.cluster),
            zone: text(&endpoint.zone),
            priority: endpoint.priority,
            metadata: (*endpoint.metadata).clone(),
        }
    }

    fn endpoint(&self) -> Option<Endpoint> {
        let text = |text: &Option<String>| text.as_deref().map(Arc::from);
        Some(Endpoint {
            address: Address::parse(&self.address).ok()?,
            weight: Weight::from_number(self.weight).0,
            healthy: self.healthy,
            enabled: self.enabled,
            draining: self.draining,
            incarnation: text(&self.incarnation),
            registration: text(&self.registration),
            cluster: text(&self.cluster),
            zone: text(&self.zone),
            priority: self.priority,
            metadata: Arc::new(self.metadata.clone()),
        })
    }
}

/// A name of a service as the name of a file: what is not plain is percent-encoded.
fn file_name(name: &str) -> String {
    let encoded = utf8_percent_encode(name, PLAIN).to_string();
    let dots = encoded.bytes().all(|byte| byte == b'.');
    if encoded.len() <= LONGEST_NAME && !dots {
        return encoded;
    }
    let digest = Sha256::digest(name.as_bytes());
    let digest: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
    let start = encoded.get(..LONGEST_NAME).unwrap_or_default();
    format!("{start}~{digest}")
}

fn unix_now() -> u64 {
    let since = wall_now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Reads a file; one that is there and cannot be understood is set aside.
fn read<T: for<'d> Deserialize<'d>>(path: &Path) -> Option<T> {
    let file = fs::File::open(path).ok()?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    let why = match read {
        Err(error) => error.to_string(),
        Ok(_) if bytes.len() as u64 > MAX_BYTES => format!("larger than {MAX_BYTES} bytes"),
        Ok(_) => match serde_json::from_slice(&bytes) {
            Ok(value) => return Some(value),
            Err(error) => error.to_string(),
        },
    };
    let aside = path.with_extension("corrupt");
    let kept = fs::rename(path, &aside).is_ok();
    warn!(path = %path.display(), %why, set_aside = kept, "a cached set cannot be read");
    None
}

fn write_all(folder: &Path, queue: &Receiver<Job>) {
    prune(folder);
    while let Ok(first) = queue.recv() {
        // Of several waiting versions only the last is written.
        let mut jobs = BTreeMap::from([(first.path, first.text)]);
        while let Ok(next) = queue.try_recv() {
            jobs.insert(next.path, next.text);
        }
        for (path, text) in jobs {
            let made = path.parent().map_or(Ok(()), fs::create_dir_all);
            if let Err(error) = made.and_then(|()| whole_file::replace(&path, &text)) {
                warn!(path = %path.display(), %error, "cannot be written; a start without the registry would lack it");
            }
        }
    }
}

/// Removes what nobody wrote for long.
fn prune(folder: &Path) {
    let now = wall_now();
    let mut removed = 0usize;
    let registries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = registries.flat_map(|registry| fs::read_dir(registry.path()).into_iter().flatten());
    for file in files.flatten() {
        let written = file.metadata().and_then(|found| found.modified());
        let age = written.ok().and_then(|at| now.duration_since(at).ok());
        if age.is_some_and(|age| age > KEPT_FOR) && fs::remove_file(file.path()).is_ok() {
            removed += 1;
        }
    }
    if removed > 0 {
        info!(removed, folder = %folder.display(), "old cached sets removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> EndpointSet {
        let mut endpoint = Endpoint::new(Address::parse("10.0.0.1:80").unwrap());
        endpoint.weight = Weight::from_number(2.5).0;
        endpoint.healthy = false;
        endpoint.zone = Some("a".into());
        endpoint.priority = 3;
        endpoint.metadata = Arc::new(BTreeMap::from([("k".to_owned(), "v".to_owned())]));
        EndpointSet {
            endpoints: vec![endpoint].into(),
            health_unknown: true,
        }
    }

    fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
        for _ in 0..2_000 {
            if let Some(found) = look() {
                return found;
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        panic!("nothing was written");
    }

    #[test]
    fn what_is_kept_is_found_again_by_the_same_question_only() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::default();
        cache.set_folder(Some(folder.path()));
        let query = ServiceQuery::named("a/b:1@@c..%");
        assert_eq!(cache.set("r", &query), None);
        cache.keep("r", &query, &set());
        cache.keep_names("r", &["x".into(), "y".into()]);
        let found = until(|| cache.set("r", &query));
        assert_eq!(found.set, set());
        assert_eq!(until(|| cache.names("r")), ["x".into(), "y".into()]);
        let other = ServiceQuery {
            group: Some("g".into()),
            ..query.clone()
        };
        assert_eq!(cache.set("r", &other), None);
        assert_eq!(cache.set("other", &query), None);
        // All of it lies below the folder.
        for entry in fs::read_dir(folder.path()).unwrap() {
            assert_eq!(entry.unwrap().file_name(), "r");
        }
    }

    #[test]
    fn rubbish_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::default();
        cache.set_folder(Some(folder.path()));
        let query = ServiceQuery::named("s");
        let path = path(folder.path(), "r", &query);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "{").unwrap();
        assert_eq!(cache.set("r", &query), None);
        assert!(!path.exists());
        assert!(path.with_extension("corrupt").exists());
    }

    #[test]
    fn a_time_beyond_all_calendars_is_no_set() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::default();
        cache.set_folder(Some(folder.path()));
        let query = ServiceQuery::named("s");
        let path = path(folder.path(), "r", &query);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        for (saved_unix_s, found) in [(1, true), (u64::MAX, false)] {
            let file = SetFile {
                version: VERSION,
                saved_unix_s,
                registry: "r".to_owned(),
                service: Service::of(&query),
                health_unknown: false,
                endpoints: Vec::new(),
            };
            fs::write(&path, serde_json::to_vec(&file).unwrap()).unwrap();
            assert_eq!(cache.set("r", &query).is_some(), found);
        }
    }

    #[test]
    fn file_names_cannot_leave_the_folder_and_are_short_and_distinct() {
        assert_eq!(file_name("orders"), "orders");
        assert!(file_name("..").contains('~'));
        assert_eq!(file_name("../x"), "..%2Fx");
        let (long, longer) = ("x".repeat(500), "x".repeat(501));
        assert!(file_name(&long).len() < 200);
        assert_ne!(file_name(&long), file_name(&longer));
    }
}
