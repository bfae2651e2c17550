//! The text of the state file: JSON with a version. Times stand in it by the wall clock, since the
//! monotonic one ends with the process; they become durations when it is read, never negative and
//! never longer than what is clamped by the reader. Fields may be added; unknown ones are ignored.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::endpoint::Address;
use crate::outlier::detector::{Remembered, RememberedEjection, RememberedK};
use crate::outlier::lanes::RememberedLane;

/// Version of the format.
const VERSION: u32 = 1;
/// Upstreams that are written at most.
const MAX_UPSTREAMS: usize = 5_000;
/// Instances that are written at most, all upstreams together.
const MAX_INSTANCES: usize = 50_000;

/// Milliseconds of Unix time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WallMs(pub u64);

impl From<SystemTime> for WallMs {
    fn from(at: SystemTime) -> Self {
        let since = at
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self(ms(since))
    }
}

impl WallMs {
    /// This long after.
    #[must_use]
    pub const fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(ms(time)))
    }

    /// This long before.
    #[must_use]
    pub const fn before(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(ms(time)))
    }

    /// Time since `earlier`; zero when that is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// The whole file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    version: u32,
    /// When it was written.
    #[serde(default)]
    pub written_unix_ms: WallMs,
    /// By name.
    #[serde(default)]
    pub upstreams: BTreeMap<String, KeptUpstream>,
}

/// One upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptUpstream {
    /// The policy that held it: when its entry is gone, the next one starts clean.
    #[serde(default)]
    pub policy: String,
    /// By address.
    #[serde(default)]
    pub instances: BTreeMap<String, KeptInstance>,
    /// What routes have against instances, where the policy judges routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<KeptRoute>,
    /// Circuit breakers that are not closed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub breakers: Vec<KeptBreaker>,
    /// Orders of operators that hold for some time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<KeptOverride>,
}

/// One route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRoute {
    /// Its name; absent: the requests without one of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// By address.
    #[serde(default)]
    pub instances: BTreeMap<String, KeptInstance>,
}

/// One instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptInstance {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    incarnation: Option<String>,
    #[serde(default)]
    times_ejected: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ejection: Option<KeptEjection>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<KeptMemory>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptEjection {
    #[serde(default)]
    observed: bool,
    k: u32,
    next_probe_unix_ms: WallMs,
    since_unix_ms: WallMs,
    #[serde(default)]
    failures: u64,
    #[serde(default)]
    calls: u64,
    #[serde(default)]
    hopeless: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slow_limit_ms: Option<u64>,
    #[serde(default)]
    good_probes: u32,
    #[serde(default)]
    check_next: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptMemory {
    k: u32,
    #[serde(default)]
    raise: bool,
    #[serde(default)]
    successes_left: u32,
}

/// A circuit breaker that is open or half-open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptBreaker {
    /// Of this route; absent: the upstream's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// When its trials begin.
    pub trials_unix_ms: WallMs,
}

/// One order of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptOverride {
    /// `ip:port`.
    pub instance: String,
    /// `eject`, `hold` or `disable`.
    pub kind: String,
    /// When it ends.
    pub until_unix_ms: WallMs,
    /// Beyond the cap.
    #[serde(default)]
    pub forced: bool,
    /// Who gave it.
    #[serde(default)]
    pub actor: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Why a text is no state that can be taken over.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// Not ours, or cut off.
    #[error("it is not a state file: {0}")]
    Broken(#[from] serde_json::Error),
    /// Written by a later version of Outrigger.
    #[error("its version is {0}, this Outrigger reads version {VERSION}")]
    Newer(u32),
    /// Larger than anything we write.
    #[error("it has {0} bytes, more than any state we write")]
    TooLarge(u64),
}

impl Kept {
    /// At this moment, with these upstreams.
    pub const fn new(now: WallMs, upstreams: BTreeMap<String, KeptUpstream>) -> Self {
        Self {
            version: VERSION,
            written_unix_ms: now,
            upstreams,
        }
    }
}

impl KeptUpstream {
    /// Whether nothing in it is worth a line.
    pub fn is_empty(&self) -> bool {
        self.instances.is_empty()
            && self.routes.is_empty()
            && self.overrides.is_empty()
            && self.breakers.is_empty()
    }

    /// Instances as the detectors remember them, at this moment of the wall clock.
    pub fn of(
        policy: &str,
        whole: Vec<Remembered>,
        lanes: Vec<RememberedLane>,
        now: WallMs,
    ) -> Self {
        let routes = lanes.into_iter().map(|lane| KeptRoute {
            route: lane.route.map(|name| name.to_string()),
            instances: keep_all(lane.instances, now),
        });
        Self {
            policy: policy.to_owned(),
            instances: keep_all(whole, now),
            routes: routes.collect(),
            breakers: Vec::new(),
            overrides: Vec::new(),
        }
    }

    /// The same back. What is no address, or makes no sense, is left out.
    pub fn recall(&self, now: WallMs) -> Vec<Remembered> {
        recall_all(&self.instances, now)
    }

    /// What routes know, back.
    pub fn recall_lanes(&self, now: WallMs) -> Vec<RememberedLane> {
        let lanes = self.routes.iter().map(|kept| RememberedLane {
            route: kept.route.as_deref().map(Arc::from),
            instances: recall_all(&kept.instances, now),
        });
        lanes.collect()
    }

    fn of_routes(&self) -> usize {
        self.routes.iter().map(|route| route.instances.len()).sum()
    }
}

/// The state in a text.
///
/// # Errors
/// [`Unusable`].
pub fn parse(bytes: &[u8]) -> Result<Kept, Unusable> {
    /// Read first: what else a later version holds is not known.
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let head: Head = serde_json::from_slice(bytes)?;
    if head.version != VERSION {
        return Err(Unusable::Newer(head.version));
    }
    Ok(serde_json::from_slice(bytes)?)
}

/// The text of a state, at most `max` bytes: what is too much is left out, instances that are in
/// rotation first.
pub fn render(kept: &Kept, max: u64) -> Vec<u8> {
    let mut cut = kept.clone();
    cut_down(&mut cut);
    loop {
        let text = serde_json::to_vec(&cut).unwrap_or_default();
        let fits = u64::try_from(text.len()).is_ok_and(|len| len <= max);
        let Some(largest) = cut
            .upstreams
            .iter()
            .max_by_key(|(_, upstream)| {
                upstream.instances.len() + upstream.of_routes() + upstream.overrides.len()
            })
            .map(|(name, _)| name.clone())
            .filter(|_| !fits)
        else {
            return text;
        };
        cut.upstreams.remove(&largest);
    }
}

fn cut_down(kept: &mut Kept) {
    let count = |kept: &Kept| -> usize {
        let upstreams = kept.upstreams.values();
        upstreams.map(|u| u.instances.len() + u.of_routes()).sum()
    };
    if count(kept) > MAX_INSTANCES {
        for upstream in kept.upstreams.values_mut() {
            let routes = upstream.routes.iter_mut();
            let all = routes.map(|route| &mut route.instances);
            for instances in all.chain([&mut upstream.instances]) {
                instances.retain(|_, i| i.ejection.is_some());
            }
        }
    }
    while kept.upstreams.len() > MAX_UPSTREAMS || count(kept) > MAX_INSTANCES {
        if kept.upstreams.pop_last().is_none() {
            return;
        }
    }
}

fn keep_all(all: Vec<Remembered>, now: WallMs) -> BTreeMap<String, KeptInstance> {
    let all = all.into_iter();
    all.map(|one| (one.address.to_string(), keep(one, now)))
        .collect()
}

fn recall_all(all: &BTreeMap<String, KeptInstance>, now: WallMs) -> Vec<Remembered> {
    let one = |(address, kept): (&String, &KeptInstance)| {
        let address = Address::parse(address).ok()?;
        Some(recall(address, kept, now))
    };
    all.iter().filter_map(one).collect()
}

fn keep(one: Remembered, now: WallMs) -> KeptInstance {
    KeptInstance {
        incarnation: one.incarnation.map(|text| text.to_string()),
        times_ejected: one.times_ejected,
        ejection: one.ejection.map(|ejection| KeptEjection {
            observed: ejection.observed,
            k: ejection.k,
            next_probe_unix_ms: now.after(ejection.next_in),
            since_unix_ms: now.before(ejection.out_for),
            failures: ejection.rate.0,
            calls: ejection.rate.1,
            hopeless: ejection.hopeless,
            slow_limit_ms: ejection.slow_limit.map(ms),
            good_probes: ejection.good,
            check_next: ejection.check_next,
        }),
        memory: one.memory.map(|memory| KeptMemory {
            k: memory.k,
            raise: memory.raise,
            successes_left: memory.successes_left,
        }),
    }
}

fn recall(address: Address, kept: &KeptInstance, now: WallMs) -> Remembered {
    Remembered {
        address,
        incarnation: kept.incarnation.as_deref().map(Arc::from),
        times_ejected: kept.times_ejected,
        ejection: kept.ejection.as_ref().map(|ejection| RememberedEjection {
            observed: ejection.observed,
            k: ejection.k,
            next_in: ejection.next_probe_unix_ms.since(now),
            out_for: now.since(ejection.since_unix_ms),
            rate: (ejection.failures.min(ejection.calls), ejection.calls),
            hopeless: ejection.hopeless,
            slow_limit: ejection.slow_limit_ms.map(Duration::from_millis),
            good: ejection.good_probes,
            check_next: ejection.check_next,
        }),
        memory: kept.memory.map(|memory| RememberedK {
            k: memory.k,
            raise: memory.raise,
            successes_left: memory.successes_left,
        }),
    }
}

const fn ms(time: Duration) -> u64 {
    time.as_secs()
        .saturating_mul(1_000)
        .saturating_add(time.subsec_millis() as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn remembered() -> impl Strategy<Value = Remembered> {
        let ejection = (
            any::<bool>(),
            1..99_u32,
            0..9_999_999_u64,
            0..9_999_999_u64,
            0..50_u64,
        );
        let ejection = ejection.prop_map(|(flag, k, next, out, part)| RememberedEjection {
            observed: flag,
            k,
            next_in: Duration::from_millis(next),
            out_for: Duration::from_millis(out),
            rate: (part, part + 7),
            hopeless: flag,
            slow_limit: flag.then(|| Duration::from_millis(next)),
            good: k / 2,
            check_next: !flag,
        });
        let memory = (1..99_u32, any::<bool>(), 0..9_u32);
        let memory = memory.prop_map(|(k, raise, successes_left)| RememberedK {
            k,
            raise,
            successes_left,
        });
        let rest = (1..200_u8, 0..9_u32, proptest::option::of("[a-z]{1,4}"));
        let parts = (
            rest,
            proptest::option::of(ejection),
            proptest::option::of(memory),
        );
        parts.prop_map(
            |((host, times_ejected, incarnation), ejection, memory)| Remembered {
                address: Address::parse(&format!("10.0.0.{host}:80")).unwrap(),
                incarnation: incarnation.map(Arc::from),
                times_ejected,
                ejection,
                memory,
            },
        )
    }

    const NOW: WallMs = WallMs(1_700_000_000_000);

    proptest! {
        #[test]
        fn what_is_written_is_read(one in remembered(), other in remembered(), named: bool) {
            let lane = RememberedLane {
                route: named.then(|| Arc::from("pay")),
                instances: vec![other],
            };
            let upstream = KeptUpstream::of("p", vec![one.clone()], vec![lane.clone()], NOW);
            let kept = Kept::new(NOW, BTreeMap::from([("orders".to_owned(), upstream)]));
            let read = parse(&render(&kept, u64::MAX)).unwrap();
            prop_assert_eq!(&read, &kept);
            prop_assert_eq!(read.upstreams["orders"].recall(NOW), vec![one]);
            prop_assert_eq!(read.upstreams["orders"].recall_lanes(NOW), vec![lane]);
        }

        #[test]
        fn nothing_breaks_the_reader(text in "\\PC{0,200}") {
            let _refused = parse(text.as_bytes());
        }
    }

    #[test]
    fn the_wall_clock_may_have_jumped() {
        let text = br#"{"version":1,"upstreams":{"u":{"policy":"p","later":1,"instances":{
            "10.0.0.1:80":{"times_ejected":1,"ejection":
                {"k":2,"next_probe_unix_ms":1000,"since_unix_ms":18446744073709551615}},
            "no address":{}}}}}"#;
        let kept = parse(text).unwrap();
        let recalled = kept.upstreams["u"].recall(NOW);
        assert_eq!(recalled.len(), 1);
        let ejection = recalled[0].ejection.unwrap();
        assert_eq!(
            (ejection.next_in, ejection.out_for),
            (Duration::ZERO, Duration::ZERO)
        );
    }

    #[test]
    fn a_later_version_and_other_texts_are_told_apart() {
        let error = |text: &str| parse(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(
            error(r#"{"version":2,"upstreams":[]}"#),
            "its version is 2, this Outrigger reads version 1"
        );
        assert!(error("").starts_with("it is not a state file"));
        assert!(error(r#"{"version":1,"upstreams":{"u":7}}"#).starts_with("it is not a state"));
    }

    #[test]
    fn a_state_that_is_too_large_is_cut_down() {
        let upstream = |n: u8| {
            let one = |host: u8| Remembered {
                address: Address::parse(&format!("10.0.0.{host}:80")).unwrap(),
                incarnation: None,
                times_ejected: 1,
                ejection: None,
                memory: None,
            };
            let all: Vec<Remembered> = (1..=n).map(one).collect();
            let lane = RememberedLane {
                route: None,
                instances: all,
            };
            KeptUpstream::of("p", Vec::new(), vec![lane], NOW)
        };
        let upstreams = [("a", 2), ("b", 50), ("c", 1)];
        let upstreams = upstreams.map(|(name, n)| (name.to_owned(), upstream(n)));
        let kept = Kept::new(NOW, upstreams.into());
        let read = parse(&render(&kept, 500)).unwrap();
        let names: Vec<&String> = read.upstreams.keys().collect();
        assert_eq!(names, ["a", "c"]);
    }
}
