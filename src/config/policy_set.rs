//! The ejection policies of all files, as values.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::digest::Digest;
use super::settings::Setting;
use crate::outlier::policy::Policy;

/// The ejection policies of all files that loaded.
#[derive(Clone, Debug, Default)]
pub struct PolicySet {
    /// In the order (file, line).
    pub entries: Vec<PolicyEntry>,
    /// Files that were left out, with the reason.
    pub rejected: Vec<RejectedFile>,
    /// Files that are active.
    pub active_files: Vec<PathBuf>,
    /// The version in force of each file: of active ones, and of rejected ones that had a good one.
    pub versions: BTreeMap<PathBuf, FileVersion>,
}

/// A version of a policy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// Its content.
    pub digest: Digest,
    /// When it was loaded first, Unix time.
    pub loaded_unix_s: u64,
}

/// One policy and whom it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyEntry {
    /// The policy; for Dubbo without a window of its own the 15 s are set when it is chosen.
    pub policy: Arc<Policy>,
    /// The file it stands in.
    pub file: PathBuf,
    /// Whether `statistics_window` was written.
    pub window_explicit: bool,
    /// `apply_to.consumers`, `upstreams`, `namespaces`: globs (`*` matches any run).
    pub consumers: Vec<Arc<str>>,
    /// See `consumers`.
    pub upstreams: Vec<Arc<str>>,
    /// See `consumers`.
    pub namespaces: Vec<Arc<str>>,
    /// `apply_to.protocols`.
    pub protocols: Vec<PolicyProtocol>,
    /// Every field with its value and where that comes from.
    pub settings: Arc<[Setting]>,
}

/// `apply_to.protocols`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyProtocol {
    /// All.
    Any,
    /// auto, http1, http2.
    Http,
    /// grpc.
    Grpc,
    /// dubbo2.
    Dubbo,
}

/// A policy file that did not load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedFile {
    /// The file.
    pub path: PathBuf,
    /// Every problem, `file:line:column: what`.
    pub problems: Vec<String>,
}
