//! From live state to the text of `/metrics`. Nothing is kept per instance: one that is gone is gone
//! from the next scrape. What is kept is which upstreams have a name of their own
//! (`collect/admission.rs`) and how much was left out. Next: `collect/upstream.rs`.

mod admission;
mod process;
mod registration;
mod resilience;
mod upstream;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use self::admission::Admission;
use super::cells::{Limit, WorkerCells};
use super::exposition::Format;
use super::names;
use super::sheet::{Sample, Sheet};
use crate::clock::wall_now;
use crate::config::types::{PerInstance, Telemetry};
use crate::error::Reason;
use crate::status::{ProcessStatus, RegistryStatus, UpstreamStatus};
use crate::version::COMMIT;

/// Bounds of the number of series: `telemetry.metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Which instances have series.
    pub per_instance: PerInstance,
    /// Above this many `auto` keeps only ejected ones.
    pub max_instances: usize,
    /// Upstreams beyond it share one name.
    pub max_upstreams: usize,
}

impl From<&Telemetry> for Caps {
    fn from(telemetry: &Telemetry) -> Self {
        let wide = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        Self {
            per_instance: telemetry.per_instance,
            max_instances: wide(telemetry.max_instances),
            max_upstreams: wide(telemetry.max_upstreams),
        }
    }
}

/// Reloads since the start; control counts them.
#[derive(Debug)]
pub struct ReloadCounters {
    results: [AtomicU64; 4],
    last_success_ms: AtomicU64,
}

/// What a reload came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadResult {
    /// All of it holds.
    Applied,
    /// All but the rejected policy files.
    Partial,
    /// Nothing of it.
    Rejected,
    /// The files hold what runs already.
    Unchanged,
}

impl ReloadResult {
    const ALL: [Self; 4] = [
        Self::Applied,
        Self::Partial,
        Self::Rejected,
        Self::Unchanged,
    ];

    /// As in metrics, events and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Partial => "partial",
            Self::Rejected => "rejected",
            Self::Unchanged => "unchanged",
        }
    }
}

impl ReloadCounters {
    /// The first load was applied just now.
    #[expect(clippy::new_without_default, reason = "it reads the wall clock")]
    pub fn new() -> Self {
        Self {
            results: Default::default(),
            last_success_ms: AtomicU64::new(unix_ms()),
        }
    }

    /// A reload ended just now.
    pub fn count(&self, result: ReloadResult) {
        let place = ReloadResult::ALL.iter().position(|r| *r == result);
        if let Some(cell) = place.and_then(|place| self.results.get(place)) {
            cell.fetch_add(1, Relaxed);
        }
        match result {
            ReloadResult::Applied | ReloadResult::Unchanged => {
                self.last_success_ms.store(unix_ms(), Relaxed);
            }
            ReloadResult::Partial | ReloadResult::Rejected => {}
        }
    }
}

fn unix_ms() -> u64 {
    let since = wall_now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// What a scrape shows.
#[derive(Clone, Copy, Debug)]
pub struct Live<'a> {
    /// The process.
    pub process: &'a ProcessStatus,
    /// Every upstream.
    pub upstreams: &'a [UpstreamStatus],
    /// Counters of the workers.
    pub workers: &'a [WorkerCells],
    /// Reloads.
    pub reloads: &'a ReloadCounters,
    /// Events and access-log lines that were lost.
    pub dropped_lines: u64,
}

/// Renders scrapes. Scrapes take turns.
#[derive(Debug, Default)]
pub struct Collector {
    // Held while one scrape is put together; only the admin thread scrapes.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    admission: Admission,
    dropped: BTreeMap<&'static str, u64>,
}

impl Collector {
    /// One that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The text of a scrape; with `only` just the families of these names.
    pub fn render(
        &self,
        live: &Live<'_>,
        caps: Caps,
        only: Option<&BTreeSet<String>>,
        format: Format,
    ) -> String {
        let mut sheet = Sheet::default();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { admission, dropped } = &mut *state;
        let mut drops = upstream::put_all(&mut sheet, live.upstreams, caps, admission);
        for (family, series) in std::mem::take(&mut drops) {
            *dropped.entry(family).or_default() += series;
        }
        for (family, series) in dropped.iter() {
            sheet.set(&names::SERIES_DROPPED, &[family], Sample::count(*series));
        }
        drop(state);
        workers(&mut sheet, live.workers);
        for registry in &live.process.registries {
            put_registry(&mut sheet, registry);
        }
        registration::put(&mut sheet, live.process);
        for kind in names::OVERRIDE_KINDS {
            let all = live.upstreams.iter().flat_map(|u| &u.overrides);
            let count = all.filter(|o| o.kind == kind).count();
            sheet.set(&names::OVERRIDES, &[kind], Sample::count(count as u64));
        }
        configuration(&mut sheet, live);
        let version = &*live.process.version;
        sheet.set(&names::BUILD_INFO, &[version, COMMIT], Sample::flag(true));
        let lost = Sample::count(live.dropped_lines);
        sheet.set(&names::LOG_LINES_DROPPED, &[], lost);
        process::put(&mut sheet);
        sheet.encode(only, format)
    }
}

fn workers(sheet: &mut Sheet, workers: &[WorkerCells]) {
    let sum = |pick: &dyn Fn(&WorkerCells) -> u64| workers.iter().map(pick).sum::<u64>();
    for reason in Reason::ALL {
        let at = |cells: &WorkerCells| cells.rejected.get(reason.index()).map_or(0, load);
        match sum(&at) {
            0 => {}
            n => sheet.set(
                &names::REJECTED,
                &[names::NO_UPSTREAM, reason.as_str()],
                Sample::count(n),
            ),
        }
    }
    for limit in Limit::ALL {
        let at = |cells: &WorkerCells| cells.limit_hits.get(limit as usize).map_or(0, load);
        let hits = Sample::count(sum(&at));
        sheet.set(&names::LIMIT_HITS, &[limit.as_str()], hits);
    }
    for (index, cells) in workers.iter().enumerate() {
        let lag = Sample::Value(load(&cells.lag_us) as f64 / 1e6);
        sheet.set(&names::WORKER_LAG, &[&index.to_string()], lag);
    }
    let app = Sample::count(sum(&|cells| load(&cells.app_connections)));
    sheet.set(&names::OPEN_CONNECTIONS, &["app"], app);
    let upstream = Sample::count(sum(&|cells| load(&cells.upstream_connections)));
    sheet.set(&names::OPEN_CONNECTIONS, &["upstream"], upstream);
}

fn load(cell: &AtomicU64) -> u64 {
    cell.load(Relaxed)
}

fn put_registry(sheet: &mut Sheet, registry: &RegistryStatus) {
    let name = [&*registry.name];
    sheet.set(&names::REGISTRY_UP, &name, Sample::flag(registry.up));
    sheet.set(&names::REGISTRY_STALE, &name, Sample::flag(registry.stale));
    let protected = Sample::flag(registry.protected);
    sheet.set(&names::REGISTRY_PROTECTED, &name, protected);
    if let Some(at) = registry.last_success_unix_s {
        sheet.set(&names::REGISTRY_LAST_SUCCESS, &name, Sample::Value(at));
    }
    for (result, count) in &registry.updates {
        let labels = [&*registry.name, result];
        sheet.set(&names::REGISTRY_UPDATES, &labels, Sample::count(*count));
    }
}

fn configuration(sheet: &mut Sheet, live: &Live<'_>) {
    let config = &live.process.config;
    let ok = Sample::flag(config.last_reload_ok);
    sheet.set(&names::CONFIG_RELOAD_OK, &[], ok);
    let at = load(&live.reloads.last_success_ms) as f64 / 1e3;
    sheet.set(&names::CONFIG_RELOAD_TIME, &[], Sample::Value(at));
    for (result, cell) in ReloadResult::ALL.iter().zip(&live.reloads.results) {
        let count = Sample::count(load(cell));
        sheet.set(&names::CONFIG_RELOADS, &[result.as_str()], count);
    }
    for (state, files) in [
        ("active", config.policy_files.len()),
        ("rejected", config.rejected_files.len()),
    ] {
        sheet.set(&names::POLICY_FILES, &[state], Sample::Value(files as f64));
    }
}

#[cfg(test)]
mod tests;
