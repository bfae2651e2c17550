//! The driver of one upstream: the only writer of its detector, its instances and its snapshot, and
//! the only file of `outlier` with tokio. It feeds the detector with endpoints, outcomes and checks,
//! carries out what it decides, and tells why.
//! Read on: `driver/feed.rs` (what goes in), `driver/carry_out.rs` (what comes out),
//! `driver/publish.rs` (the snapshot), `driver/orders.rs` (operators), `driver/report.rs` (events),
//! `driver/verdicts.rs` (what checks turned), `driver/view.rs` (status).

mod breakers;
mod carry_out;
mod checks;
mod feed;
mod lanes;
mod memory;
mod orders;
mod publish;
mod report;
mod verdicts;
mod view;

pub use self::breakers::{BreakerOrder, order_label};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::balancer::hashing::Table;
use crate::balancer::levels::Rank;
use crate::clock::{Clock, Timestamp};
use crate::config::types::{AttemptTimeout, HealthCheckKind, Protocol, Service};
use crate::discovery::ServiceView;
use crate::endpoint::instance::Instance;
use crate::endpoint::{Address, Endpoint};
use crate::health::checker::Verdict;
use crate::journal::Journal;
use crate::outlier::book::{Book, Order, Signed};
use crate::outlier::detector::{Refusal, Remembered};
use crate::outlier::lanes::{Lanes, RememberedLane};
use crate::outlier::policy::Policy;
use crate::outlier::times::Times;
use crate::outlier::{Detector, Input, Jitter, LeaseId, UpstreamFacts};
use crate::state_file::format::KeptUpstream;
use crate::status::{Decisions, OverrideDone, OverrideRefused, UpstreamStatus};
use crate::upstream::Upstream;
use checks::{Checks, Health, Heard};

/// Jitter of probe intervals: up to this many per cent are added.
const JITTER_PERCENT: u32 = 10;
/// Limit of a synthetic check where none is configured.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// What a driver is told by control.
#[derive(Debug)]
pub enum Command {
    /// New settings after a reload, and where endpoints come from now if that changed.
    Settings(Box<DriverSettings>),
    /// What outlives the process.
    Remember(oneshot::Sender<KeptUpstream>),
    /// How things stand.
    View(oneshot::Sender<UpstreamStatus>),
    /// An operator's order.
    Override(
        Box<Order>,
        oneshot::Sender<Result<OverrideDone, OverrideRefused>>,
    ),
    /// An operator's order for a circuit breaker.
    Breaker(
        Box<BreakerOrder>,
        oneshot::Sender<Result<OverrideDone, OverrideRefused>>,
    ),
    /// The end of an order, by its number; `None` when it is not one of this upstream.
    ClearOverride(
        u64,
        Signed,
        oneshot::Sender<Option<Result<OverrideDone, OverrideRefused>>>,
    ),
}

/// The settings of one upstream.
#[derive(Clone, Debug)]
pub struct DriverSettings {
    /// Its service.
    pub service: Arc<Service>,
    /// Its ejection policy.
    pub policy: Arc<Policy>,
    /// The entry that held it before is gone or disabled.
    pub old_policy_gone: bool,
    /// A new source of endpoints.
    pub source: Option<EndpointSource>,
}

/// Where endpoints come from.
#[derive(Clone, Debug)]
pub struct EndpointSource {
    /// A registry's name, or `static`.
    pub name: Arc<str>,
    /// Kept current by the source.
    pub view: watch::Receiver<ServiceView>,
    /// Its health flags come from heart-beats: "all unhealthy" means "use all" (G6).
    pub heartbeat: bool,
    /// Inside this process, or fixed: it has no age.
    pub in_process: bool,
}

/// What an earlier process left.
#[derive(Clone, Debug, Default)]
pub struct Recalled {
    /// Ejections and memories.
    pub instances: Vec<Remembered>,
    /// The same by route.
    pub lanes: Vec<RememberedLane>,
    /// Circuit breakers that were not closed, by route: time until their trials.
    pub breakers: Vec<(Option<String>, Duration)>,
}

/// What a driver starts with.
#[derive(Debug)]
pub struct DriverStart {
    /// The shared part.
    pub upstream: Arc<Upstream>,
    /// The settings; `source` is set.
    pub service: Arc<Service>,
    /// Its ejection policy.
    pub policy: Arc<Policy>,
    /// Where endpoints come from.
    pub source: EndpointSource,
    /// Discovered at a request, not configured.
    pub discovered: bool,
    /// Data plane threads.
    pub workers: usize,
    /// The process's clock.
    pub clock: Clock,
    /// Events go there.
    pub journal: Journal,
    /// Of all jitter.
    pub seed: u64,
    /// Kept at the number of overrides in force.
    pub overrides: Arc<AtomicUsize>,
    /// What an earlier process left.
    pub recalled: Recalled,
    /// Told when what outlives the process has changed.
    pub touched: Arc<Notify>,
}

/// An endpoint with our live object and what checks say.
#[derive(Debug)]
struct Member {
    endpoint: Endpoint,
    instance: Arc<Instance>,
    /// Offered by the registry: enabled, weight above zero, not draining, healthy (or panic).
    routable: bool,
    /// Not of the subset, and nobody outside of it may stand in.
    outside: bool,
    /// When it came, unless it was there from the start.
    born: Option<Timestamp>,
    /// Successes already fed to the detector.
    fed: u64,
    /// Times of answers already fed; where the policy asks.
    timed: Option<Times>,
    /// Successes by route already fed, by the slot of the lane; where routes are judged.
    lanes: BTreeMap<u8, u64>,
    health: Option<Health>,
    story: Story,
}

/// What is told of an instance that is out.
#[derive(Debug, Default)]
struct Story {
    ejected_because: Option<String>,
    /// How the probe in hand ended, until it is known that it failed.
    probe: Option<String>,
    failed_probe: Option<String>,
}

/// What checks report.
#[derive(Debug)]
enum Checked {
    /// The watch of an instance.
    Watched {
        address: Address,
        instance: u64,
        heard: Heard,
    },
    /// A synthetic trial.
    Trial {
        address: Address,
        lease: LeaseId,
        verdict: Verdict,
    },
}

/// The driver.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, none excludes another"
)]
pub struct Driver {
    upstream: Arc<Upstream>,
    service: Arc<Service>,
    policy: Arc<Policy>,
    source: EndpointSource,
    discovered: bool,
    workers: usize,
    clock: Clock,
    journal: Journal,
    detector: Detector,
    members: BTreeMap<Address, Member>,
    /// Addresses in the source's order.
    order: Vec<Address>,
    decisions: Decisions,
    version: u64,
    seen_version: Option<u64>,
    source_closed: bool,
    /// There was a set of endpoints: who comes from now on is new.
    settled: bool,
    last_resort: bool,
    last_eligible: Timestamp,
    last_request: Timestamp,
    active_until: Timestamp,
    suppressed: report::SuppressedLog,
    book: Book,
    breakers: breakers::Breakers,
    overrides: Arc<AtomicUsize>,
    /// Who gave the order that is carried out now.
    signing: Option<Signed>,
    /// What the detector says of it.
    order_answer: Option<Result<(), Refusal>>,
    /// Whose overrides ended at the latest look into the book.
    ended_now: Vec<Address>,
    publish_due: bool,
    /// Checks have turned; many of them share one snapshot.
    publish_at: Option<Timestamp>,
    turns: verdicts::TurnLog,
    /// Of the snapshot in force.
    tables: Vec<Arc<Table>>,
    /// The level that is asked first.
    preferred: Option<Rank>,
    /// When the youngest ramp ends and the snapshot can forget it.
    ramp_ends: Option<Timestamp>,
    checked: (mpsc::Sender<Checked>, mpsc::Receiver<Checked>),
    /// Where routes are judged.
    lanes: Option<Lanes>,
    /// The route whose decision is told of now.
    telling_of: Option<Arc<str>>,
    checks: Option<Checks>,
    /// Of all jitter.
    seed: u64,
    /// Until the first set of endpoints.
    recalled: Option<Recalled>,
    touched: Arc<Notify>,
}

impl Driver {
    /// A driver; nothing happens before [`Driver::run`].
    pub fn new(start: DriverStart) -> Self {
        let now = start.clock.now();
        let facts = facts_of(&start.service);
        let jitter = Jitter::new(start.seed, JITTER_PERCENT);
        Self {
            detector: Detector::new(Arc::clone(&start.policy), facts, jitter, now),
            upstream: start.upstream,
            service: start.service,
            policy: start.policy,
            source: start.source,
            discovered: start.discovered,
            workers: start.workers,
            clock: start.clock,
            journal: start.journal,
            members: BTreeMap::new(),
            order: Vec::new(),
            decisions: Decisions::default(),
            version: 0,
            seen_version: None,
            source_closed: false,
            settled: false,
            last_resort: false,
            last_eligible: Timestamp::ZERO,
            last_request: Timestamp::ZERO,
            active_until: Timestamp::ZERO,
            suppressed: report::SuppressedLog::default(),
            book: Book::default(),
            breakers: breakers::Breakers::default(),
            overrides: start.overrides,
            signing: None,
            order_answer: None,
            ended_now: Vec::new(),
            publish_due: true,
            publish_at: None,
            turns: verdicts::TurnLog::default(),
            tables: Vec::new(),
            preferred: None,
            ramp_ends: None,
            checked: mpsc::channel(256),
            lanes: None,
            telling_of: None,
            checks: None,
            seed: start.seed,
            recalled: Some(start.recalled),
            touched: start.touched,
        }
    }

    /// Runs until control drops the other end of `commands`.
    pub async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        self.judge_routes_or_not();
        if let Some(recalled) = &self.recalled {
            self.recall_breakers(&recalled.breakers);
        }
        self.endpoints_changed();
        self.carry_out();
        loop {
            let upstream = Arc::clone(&self.upstream);
            let timer = until(self.clock, self.next_wake());
            let check_due = until(self.clock, self.start_due_checks());
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(Command::Settings(settings)) => self.reconfigure(*settings),
                    Some(Command::Remember(reply)) => {
                        self.feed();
                        let _gone = reply.send(self.remember());
                    }
                    Some(Command::View(reply)) => {
                        self.feed();
                        // Whoever asked may have left.
                        let _gone = reply.send(self.view());
                    }
                    Some(Command::Override(order, reply)) => {
                        self.feed();
                        let _gone = reply.send(self.order(&order));
                    }
                    Some(Command::Breaker(order, reply)) => {
                        self.feed();
                        let _gone = reply.send(self.order_breaker(&order));
                    }
                    Some(Command::ClearOverride(id, signed, reply)) => {
                        self.feed();
                        let _gone = reply.send(self.clear_override(id, signed));
                    }
                    None => return self.retire(),
                },
                changed = self.source.view.changed(), if !self.source_closed => {
                    // A source that is gone, or never changes, is not asked again: its last set
                    // stays.
                    self.source_closed = changed.is_err();
                    self.feed();
                    self.endpoints_changed();
                }
                checked = self.checked.1.recv() => {
                    if let Some(checked) = checked {
                        self.feed();
                        self.checked(checked);
                    }
                }
                // The many that change nothing cost no look at the counters.
                ended = checks::ended(&mut self.checks) => self.checks_ended(ended),
                () = upstream.woken() => self.feed(),
                () = timer => self.feed(),
                () = check_due => {}
            }
            self.carry_out();
        }
    }

    /// When to look again without being woken: the detector's deadline; while there is traffic each
    /// bucket's end, so that successes fall into their bucket; the end of the youngest ramp.
    fn next_wake(&mut self) -> Option<Timestamp> {
        let now = self.clock.now();
        let bucket = (self.policy.statistics_window / 10).max(Duration::from_millis(1));
        let last_request = self.upstream.last_request();
        if last_request != self.last_request {
            self.last_request = last_request;
            self.active_until = now + self.policy.statistics_window + bucket;
        }
        let feeding = (now < self.active_until).then(|| next_boundary(now, bucket));
        if feeding.is_none() {
            // From here on the next request wakes us.
            self.upstream.sleep();
            if self.upstream.last_request() != self.last_request {
                return Some(now);
            }
        }
        let detector = self.detector.next_deadline();
        let lanes = self.lane_deadline();
        let (book, breakers) = (self.book.next_end(), self.breakers.wake());
        [
            detector,
            lanes,
            feeding,
            self.ramp_ends,
            book,
            breakers,
            self.publish_at,
            self.turns.due(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn reconfigure(&mut self, settings: DriverSettings) {
        self.feed();
        let now = self.clock.now();
        let checks_changed = settings.service.health_check != self.service.health_check
            || settings.service.protocol != self.service.protocol;
        if settings.service.balancing.subset != self.service.balancing.subset {
            // Read the set anew: others may be routable now.
            self.seen_version = None;
        }
        self.service = settings.service;
        self.detector
            .handle(Input::Facts(facts_of(&self.service)), now);
        if settings.old_policy_gone {
            self.tell_lanes(&Input::Policy(None), now);
            self.detector.handle(Input::Policy(None), now);
        }
        if settings.old_policy_gone || settings.policy != self.policy {
            self.detector
                .handle(Input::Policy(Some(Arc::clone(&settings.policy))), now);
        }
        self.policy = settings.policy;
        self.judge_routes_or_not();
        if let Some(source) = settings.source {
            self.source = source;
            self.seen_version = None;
            self.source_closed = false;
        }
        self.endpoints_changed();
        if checks_changed {
            self.restart_checks();
        }
        self.publish_due = true;
    }

    /// The upstream is no more: requests in flight end as they may.
    fn retire(mut self) {
        self.close_book();
        self.close_breakers();
        for member in self.members.values() {
            member
                .instance
                .set_standing(crate::endpoint::instance::Standing::Gone, None);
        }
        self.members.clear();
        self.order.clear();
        self.publish();
    }
}

/// At that time, if there is one.
async fn until(clock: Clock, at: Option<Timestamp>) {
    match at {
        Some(at) => tokio::time::sleep_until(clock.instant(at)).await,
        None => std::future::pending().await,
    }
}

/// Settings that trials depend on.
fn facts_of(service: &Service) -> UpstreamFacts {
    let check = service.health_check.as_ref();
    let tcp = check.is_some_and(|c| c.kind == HealthCheckKind::Tcp);
    UpstreamFacts {
        health_check: check.is_some(),
        tcp_check: tcp,
        dubbo: match service.protocol {
            Protocol::Auto | Protocol::Http1 | Protocol::Http2 | Protocol::Grpc => false,
        },
        by_route: false,
        timeout_connect: service.timeout.connect,
        timeout_attempt: match service.timeout.attempt {
            AttemptTimeout::After(limit) => Some(limit),
            AttemptTimeout::Auto | AttemptTimeout::Unlimited => None,
        },
        check_timeout: check.map_or(CHECK_TIMEOUT, |c| c.timeout),
    }
}

/// The next multiple of `bucket` after `now`.
fn next_boundary(now: Timestamp, bucket: Duration) -> Timestamp {
    let width = u64::try_from(bucket.as_nanos()).unwrap_or(u64::MAX).max(1);
    Timestamp::from_nanos((now.as_nanos() / width + 1).saturating_mul(width))
}
