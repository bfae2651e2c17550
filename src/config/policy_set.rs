//! The ejection policies of all files, as values.

use std::path::PathBuf;
use std::sync::Arc;

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
