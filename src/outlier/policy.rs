//! The validated settings of one ejection policy. Made by `config`, read by the detector.
//! Integers only: rates in hundredths of a percent, rates of calls in thousandths per second.

use std::sync::Arc;
use std::time::Duration;

/// One ejection policy as it holds for one upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Unique over all files; `builtin` for the built-in one.
    pub name: Arc<str>,
    /// `file:line` of the entry, for explaining; `built in` for the built-in one.
    pub origin: Arc<str>,
    /// Enforced, watched or off.
    pub mode: Mode,
    /// What is judged: an instance, or an instance for each route.
    pub scope: Scope,
    /// Which outcomes count as failures.
    pub exception_type: ExceptionType,
    /// Abnormal when the failure rate is strictly above; 1..=10_000 hundredths of a percent.
    pub error_rate_threshold_bp: u32,
    /// Thousandths of a call per second, per instance.
    pub lower_qps_limit_milli: u64,
    /// Whose calls must reach the limit.
    pub qps_scope: QpsScope,
    /// Length of the sliding window, always ten buckets.
    pub statistics_window: Duration,
    /// Share of the routable instances that may be out; 0..=10_000.
    pub instance_removal_rate_threshold_bp: u32,
    /// Raises the cap for small pools, never above n - 1.
    pub min_ejectable: u32,
    /// Sudden death: how many failures in a row.
    pub consecutive_errors: ConsecutiveErrors,
    /// Unit of the probe schedule.
    pub recovery_detection_unit_time: Duration,
    /// k stops growing here; at least 1.
    pub max_recovery_checks: u32,
    /// How an ejected instance is tried.
    pub probe: ProbeKind,
    /// Good trials in a row needed; at least 1.
    pub trials_to_restore: u32,
    /// k is remembered until that many real successes after a restore.
    pub flap_memory: u32,
    /// Traffic grows from 1/8 to full over this time after a restore; zero: at once.
    pub ramp: Duration,
    /// Which codes are business errors, and which are successes.
    pub business_errors: BusinessErrors,
    /// Metadata key that tells one incarnation of an address from the next.
    pub incarnation_key: Arc<str>,
    /// The slow trigger; `None`: off.
    pub slow: Option<Slow>,
}

/// When an instance is slow: the median time of its answers against the median of its peers'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// Slow above so many times the peers' median; hundredths.
    pub factor_centi: u32,
    /// Never slow up to this, whatever the peers do.
    pub floor: Duration,
    /// Answers in the window that a median needs; at least 1.
    pub min_calls: u32,
    /// Whether it ejects.
    pub mode: SlowMode,
}

impl Slow {
    /// What holds for the fields that are not written.
    pub const DEFAULT: Self = Self {
        factor_centi: 300,
        floor: Duration::from_millis(200),
        min_calls: 20,
        mode: SlowMode::Observe,
    };
}

/// What a slow instance leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowMode {
    /// It is ejected, within the cap.
    Enforce,
    /// It is counted and logged.
    Observe,
}

impl Policy {
    /// The policy that holds where no other matches: every default. The window is 15 s for Dubbo;
    /// pass `dubbo` for such an upstream.
    pub fn builtin(dubbo: bool) -> Self {
        Self {
            name: "builtin".into(),
            origin: "built in".into(),
            mode: Mode::Enforce,
            scope: Scope::Upstream,
            exception_type: ExceptionType::Network,
            error_rate_threshold_bp: 5_000,
            lower_qps_limit_milli: 1_000,
            qps_scope: QpsScope::Instance,
            statistics_window: Duration::from_secs(if dubbo { 15 } else { 10 }),
            instance_removal_rate_threshold_bp: 5_000,
            min_ejectable: 0,
            consecutive_errors: ConsecutiveErrors::Auto,
            recovery_detection_unit_time: Duration::from_secs(30),
            max_recovery_checks: 20,
            probe: ProbeKind::Auto,
            trials_to_restore: 1,
            flap_memory: 5,
            ramp: Duration::from_secs(10),
            business_errors: BusinessErrors::default(),
            incarnation_key: "outrigger.start".into(),
            slow: None,
        }
    }
}

/// What an abnormal instance leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It is ejected.
    Enforce,
    /// It is counted and logged; traffic is untouched.
    Observe,
    /// Nothing is judged.
    Disabled,
}

/// What is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// An instance for each route of its service, and whole where half of its routes are bad.
    Route,
    /// An instance.
    Upstream,
}

/// Which outcomes count as failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceptionType {
    /// Network errors only; a business error counts as a call that is no failure.
    Network,
    /// Both.
    NetworkAndBusiness,
}

/// Whose calls must reach the lower QPS limit before an instance is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpsScope {
    /// The instance's own.
    Instance,
    /// The upstream's; the instance needs five.
    Service,
}

/// The sudden-death rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsecutiveErrors {
    /// From the QPS limit and the window.
    Auto,
    /// Off: pure EDAS semantics.
    Off,
    /// A fixed number.
    Count(u32),
}

/// How an ejected instance is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// One live request.
    Request,
    /// A synthetic check.
    Active,
    /// The health check where there is one, then one request; else one request.
    Auto,
}

/// Which codes of an answer are business errors. `None`: the default set of that kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BusinessErrors {
    /// HTTP statuses that replace the default set (all 5xx but 501, 502, 503, 504).
    pub http: Option<CodeSet>,
    /// HTTP statuses that are successes.
    pub http_ignore: CodeSet,
    /// gRPC codes that replace the default set (2, 8, 13, 15 and above 16).
    pub grpc: Option<CodeSet>,
    /// gRPC codes that are successes.
    pub grpc_ignore: CodeSet,
    /// Dubbo2 statuses that replace the default set.
    pub dubbo: Option<CodeSet>,
}

/// A set of numeric codes as sorted, disjoint, inclusive ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeSet(Arc<[(u16, u16)]>);

impl CodeSet {
    /// From inclusive ranges in any order; overlapping and touching ones are joined, reversed
    /// ones are turned round.
    pub fn from_ranges(ranges: impl IntoIterator<Item = (u16, u16)>) -> Self {
        let mut sorted: Vec<(u16, u16)> = ranges
            .into_iter()
            .map(|(a, b)| (a.min(b), a.max(b)))
            .collect();
        sorted.sort_unstable();
        let mut joined: Vec<(u16, u16)> = Vec::with_capacity(sorted.len());
        for (from, to) in sorted {
            match joined.last_mut() {
                Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
                _ => joined.push((from, to)),
            }
        }
        Self(joined.into())
    }

    /// Whether `code` is in the set.
    pub fn contains(&self, code: u16) -> bool {
        self.0
            .iter()
            .any(|(from, to)| (*from..=*to).contains(&code))
    }

    /// The ranges, sorted.
    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_sets_join_ranges() {
        let set = CodeSet::from_ranges([(504, 502), (500, 500), (501, 501), (599, 599)]);
        assert_eq!(set.ranges(), [(500, 504), (599, 599)]);
        assert!(set.contains(503) && !set.contains(505));
    }
}
