//! Runs periodic health checks and synthetic trials. One schedule (`health/schedule.rs`) says which
//! instance is due; each check is a task of its own for as long as it runs, [`MOST`] at a time. With
//! `grpc` each instance is watched too, where its server can: a change is told at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::verdicts::Turned;
use super::{Checked, Driver, Member};
use crate::clock::Timestamp;
use crate::config::types::{HealthCheck, HealthCheckKind, Protocol};
use crate::endpoint::Address;
use crate::health::checker::{self, Check, ExecCheck, GrpcCheck, HttpCheck, Verdict};
use crate::health::counter::HealthCounter;
use crate::health::expect::Expectation;
use crate::health::grpc::WatchEnd;
use crate::health::schedule::Schedule;
use crate::outlier::{LeaseId, OutcomeClass};
use crate::protocol::grpc_health::Serving;

/// Checks of one upstream that run at a time: with a time-out of a second this many hung instances a
/// second. Beyond it checks wait for a place, the longest due first.
const MOST: usize = 256;
/// The same of programs.
const MOST_PROGRAMS: usize = 16;
/// Instances of one upstream that are watched; the others have their periodic checks.
const MOST_WATCHED: usize = 1024;
/// Ended checks that are read in one go.
const BATCH: usize = 512;

/// The periodic checks of one upstream.
#[derive(Debug)]
pub(super) struct Checks {
    check: Check,
    most: usize,
    schedule: Schedule,
    /// Of the instances that are checked, by number.
    addresses: BTreeMap<u64, Address>,
    tasks: JoinSet<Ended>,
    watched: usize,
    /// Instances whose verdict is bad.
    failing: usize,
}

impl Checks {
    /// The verdict of an instance has turned.
    pub(super) const fn verdict_turned(&mut self, passing: bool) {
        self.failing = match passing {
            true => self.failing.saturating_sub(1),
            false => self.failing.saturating_add(1),
        };
    }

    /// How many instances pass, and how many are checked.
    pub(super) fn verdicts(&self) -> (usize, usize) {
        let checked = self.addresses.len();
        (checked.saturating_sub(self.failing), checked)
    }
}

/// A periodic check that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    instance: u64,
    verdict: Verdict,
}

/// What checks say of one instance.
#[derive(Debug)]
pub(super) struct Health {
    pub(super) counter: HealthCounter,
    pub(super) message: String,
    pub(super) failing_since: Option<Timestamp>,
    /// When the end of a watch last was a reason to check at once.
    hurried: Option<Timestamp>,
    watch: Watching,
}

#[derive(Debug)]
enum Watching {
    /// Not at the moment, or not at all with this kind of check.
    No,
    /// Ended with this.
    On(AbortHandle),
    /// The server cannot.
    Unsupported,
}

impl Health {
    /// Before the first check under these settings.
    fn begin(settings: &HealthCheck, before: Option<&Self>) -> Self {
        let counter = HealthCounter::new(settings.rise, settings.fall);
        let (counter, message) = match before {
            Some(before) => (counter.passing_as(before.counter), before.message.clone()),
            None => (counter, "not checked yet".to_owned()),
        };
        Self {
            counter,
            message,
            failing_since: before.and_then(|before| before.failing_since),
            hurried: None,
            watch: Watching::No,
        }
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        if let Watching::On(task) = &self.watch {
            task.abort();
        }
    }
}

/// What the watch of an instance tells.
#[derive(Debug)]
pub(super) enum Heard {
    Status(Serving),
    End(WatchEnd),
}

/// The checks that have ended; waits for the first.
pub(super) async fn ended(checks: &mut Option<Checks>) -> Vec<Ended> {
    let Some(checks) = checks.as_mut().filter(|checks| !checks.tasks.is_empty()) else {
        return std::future::pending().await;
    };
    let first = checks.tasks.join_next().await;
    let mut all: Vec<Ended> = first.and_then(Result::ok).into_iter().collect();
    while all.len() < BATCH
        && let Some(next) = checks.tasks.try_join_next()
    {
        all.extend(next);
    }
    all
}

impl Driver {
    /// The settings of checks have changed. What the check before said of an instance holds until the
    /// new one has said something: one that failed gets no requests meanwhile.
    pub(super) fn restart_checks(&mut self) {
        self.checks = None;
        if self.service.health_check.is_some() {
            self.start_missing_checks();
            return;
        }
        let mut cleared = Vec::new();
        for (address, member) in &mut self.members {
            let health = member.health.take();
            if let Some(health) = health.filter(|health| !health.counter.passing()) {
                let why = "it is no longer checked".to_owned();
                cleared.push(Turned {
                    cleared: health.failing_since,
                    ..Turned::new(address.clone(), true, why)
                });
            }
        }
        self.turn(cleared);
    }

    pub(super) fn start_missing_checks(&mut self) {
        let Some(settings) = self.service.health_check.clone() else {
            return;
        };
        let anew = self.checks.is_none();
        if anew {
            let programs = matches!(settings.kind, HealthCheckKind::Exec(_));
            self.checks = Some(Checks {
                check: self.configured_check(&settings),
                most: if programs { MOST_PROGRAMS } else { MOST },
                schedule: Schedule::new(settings.interval, self.seed),
                addresses: BTreeMap::new(),
                tasks: JoinSet::new(),
                watched: 0,
                failing: 0,
            });
        }
        let now = self.clock.now();
        let Some(checks) = &mut self.checks else {
            return;
        };
        for (address, member) in &mut self.members {
            if !anew && member.health.is_some() {
                continue;
            }
            let health = Health::begin(&settings, member.health.as_ref());
            checks.failing += usize::from(!health.counter.passing());
            // The watch of before ends with its settings.
            member.health = Some(health);
            checks.addresses.insert(member.instance.id, address.clone());
            checks.schedule.add(member.instance.id, now);
        }
    }

    /// An instance is gone.
    pub(super) fn stop_check(&mut self, member: &Member) {
        if let Some(checks) = &mut self.checks {
            checks.schedule.remove(member.instance.id);
            checks.addresses.remove(&member.instance.id);
            let Some(health) = &member.health else {
                return;
            };
            if matches!(health.watch, Watching::On(_)) {
                checks.watched = checks.watched.saturating_sub(1);
            }
            if !health.counter.passing() {
                checks.failing = checks.failing.saturating_sub(1);
            }
        }
    }

    /// Starts what is due, as far as there is room; when the next one is due.
    pub(super) fn start_due_checks(&mut self) -> Option<Timestamp> {
        let (checks, settings) = (self.checks.as_mut()?, self.service.health_check.as_ref()?);
        let now = self.clock.now();
        while checks.tasks.len() < checks.most {
            let Some(instance) = checks.schedule.start(now) else {
                return checks.schedule.next_due();
            };
            let Some(address) = checks.addresses.get(&instance) else {
                continue;
            };
            let target = checked_address(address, settings.port);
            let (check, policy) = (checks.check.clone(), Arc::clone(&self.policy));
            let timeout = settings.timeout;
            checks.tasks.spawn(async move {
                let verdict = checker::run(&check, &target, timeout, &policy).await;
                Ended { instance, verdict }
            });
        }
        // The end of one makes room.
        None
    }

    /// Periodic checks have ended.
    pub(super) fn checks_ended(&mut self, ended: Vec<Ended>) {
        let now = self.clock.now();
        let mut turned = Vec::new();
        for Ended { instance, verdict } in ended {
            let Some(checks) = &mut self.checks else {
                return;
            };
            checks.schedule.finished(instance, now);
            let Some(address) = checks.addresses.get(&instance).cloned() else {
                continue;
            };
            let health = self
                .members
                .get_mut(&address)
                .and_then(|m| m.health.as_mut());
            let Some(health) = health else { continue };
            let good = verdict.is_good();
            let counts = verdict.class != OutcomeClass::Ignored;
            let result = match verdict.class {
                OutcomeClass::Success => "good",
                OutcomeClass::NetworkError | OutcomeClass::BusinessError => "failed",
                OutcomeClass::Ignored => "ignored",
            };
            *self.decisions.checks.entry(result).or_default() += 1;
            if health.message != verdict.message {
                health.message = verdict.message;
            }
            if counts && let Some(passing) = health.counter.record(good) {
                turned.push(Turned::new(
                    address.clone(),
                    passing,
                    health.message.clone(),
                ));
            }
            self.watch_if_possible(&address, instance);
        }
        self.turn(turned);
    }

    /// Watches an instance that is checked by gRPC and not watched yet. After each check, so that
    /// one that cannot be watched now is tried again with the next.
    fn watch_if_possible(&mut self, address: &Address, instance: u64) {
        let (Some(checks), Some(settings)) = (&mut self.checks, &self.service.health_check) else {
            return;
        };
        let Check::Grpc(check) = &checks.check else {
            return;
        };
        let health = self
            .members
            .get_mut(address)
            .and_then(|m| m.health.as_mut());
        let Some(health) = health.filter(|h| matches!(h.watch, Watching::No)) else {
            return;
        };
        if checks.watched >= MOST_WATCHED {
            return;
        }
        checks.watched += 1;
        let (check, timeout) = (Arc::clone(check), settings.timeout);
        let target = checked_address(address, settings.port);
        let (sender, address) = (self.checked.0.clone(), address.clone());
        let task = tokio::spawn(async move {
            let report = |heard| Checked::Watched {
                address: address.clone(),
                instance,
                heard,
            };
            // The latest status alone: who comes late needs no other.
            let (latest, mut seen) = watch::channel(None);
            let watching = checker::watch(&check, &target, timeout, |serving| {
                latest.send_replace(Some(serving));
            });
            tell_of_watch(watching, &mut seen, &sender, report).await;
        });
        health.watch = Watching::On(task.abort_handle());
    }

    /// The watch of an instance told something: a status counts alone.
    pub(super) fn watched(&mut self, address: Address, instance: u64, heard: Heard) {
        let now = self.clock.now();
        let member = self.members.get_mut(&address);
        let member = member.filter(|member| member.instance.id == instance);
        let health = member.and_then(|member| member.health.as_mut());
        // One that ended with its settings may have left a word.
        let Some(health) = health.filter(|h| matches!(h.watch, Watching::On(_))) else {
            return;
        };
        match heard {
            Heard::Status(serving) => {
                health.message = format!("{} (watched)", serving.as_str());
                let passing = serving == Serving::Serving;
                if health.counter.set(passing) {
                    let why = health.message.clone();
                    self.turn(vec![Turned::new(address, passing, why)]);
                }
            }
            Heard::End(end) => {
                let Some(checks) = &mut self.checks else {
                    return;
                };
                checks.watched = checks.watched.saturating_sub(1);
                if end == WatchEnd::Unimplemented {
                    health.watch = Watching::Unsupported;
                } else {
                    health.watch = Watching::No;
                    // It may be gone; the check knows. Once in an interval: who cannot be watched, or is
                    // down, is not asked over and over.
                    let interval = self.service.health_check.as_ref().map(|s| s.interval);
                    let pause = interval.unwrap_or_default();
                    if health.hurried.is_none_or(|at| now.since(at) >= pause) {
                        health.hurried = Some(now);
                        checks.schedule.hurry(instance, now);
                    }
                }
            }
        }
    }

    /// Runs a synthetic trial; its answer comes back as a [`Checked::Trial`].
    pub(super) fn start_trial(&self, address: Address, lease: LeaseId, limit: Duration) {
        let (check, target) = match &self.service.health_check {
            Some(settings) => (
                self.configured_check(settings),
                checked_address(&address, settings.port),
            ),
            None => (self.default_check(), address.clone()),
        };
        let (sender, policy) = (self.checked.0.clone(), Arc::clone(&self.policy));
        // The lease bounds it: a task that outlives it reports to nobody.
        tokio::spawn(async move {
            let verdict = checker::run(&check, &target, limit, &policy).await;
            let _gone = sender
                .send(Checked::Trial {
                    address,
                    lease,
                    verdict,
                })
                .await;
        });
    }

    fn configured_check(&self, settings: &HealthCheck) -> Check {
        let host = settings.host.clone().or_else(|| self.host());
        match &settings.kind {
            HealthCheckKind::Tcp => Check::Tcp,
            HealthCheckKind::Http {
                path,
                expect,
                body,
                json,
            } => Check::Http(Arc::new(HttpCheck {
                path: Arc::clone(path),
                host,
                http2: self.service.protocol == Protocol::Http2,
                expect: Expectation {
                    status: Some(expect.clone()),
                    body: body.clone(),
                    json: json.clone(),
                },
            })),
            HealthCheckKind::Grpc { service } => Check::Grpc(Arc::new(GrpcCheck {
                host,
                service: Some(Arc::clone(service)),
            })),
            HealthCheckKind::Exec(command) => Check::Exec(Arc::new(ExecCheck {
                command: command.clone(),
                service: Arc::clone(&self.upstream.name),
            })),
        }
    }

    fn default_check(&self) -> Check {
        let host = self.host();
        let http2 = match self.service.protocol {
            Protocol::Grpc => {
                let service = None;
                return Check::Grpc(Arc::new(GrpcCheck { host, service }));
            }
            Protocol::Auto | Protocol::Http1 => false,
            Protocol::Http2 => true,
        };
        Check::Http(Arc::new(HttpCheck {
            path: "/".into(),
            host,
            http2,
            expect: Expectation::default(),
        }))
    }

    /// The service's name where it can be a Host; else it is the address.
    fn host(&self) -> Option<Arc<str>> {
        let name = &self.upstream.name;
        let good = crate::router::Authority::parse(name).is_ok();
        good.then(|| Arc::clone(name))
    }
}

/// Tells of every change, and then of the end.
async fn tell_of_watch(
    watching: impl Future<Output = WatchEnd>,
    seen: &mut watch::Receiver<Option<Serving>>,
    sender: &mpsc::Sender<Checked>,
    report: impl Fn(Heard) -> Checked,
) {
    let mut watching = std::pin::pin!(watching);
    loop {
        let end = tokio::select! {
            end = watching.as_mut() => Some(end),
            // Its other end is in `watching`.
            _changed = seen.changed() => None,
        };
        let over = end.is_some();
        let latest = if over && !seen.has_changed().unwrap_or(false) {
            None
        } else {
            *seen.borrow_and_update()
        };
        let status = latest.map(Heard::Status);
        for heard in status.into_iter().chain(end.map(Heard::End)) {
            if sender.send(report(heard)).await.is_err() {
                return;
            }
        }
        if over {
            return;
        }
    }
}

fn checked_address(address: &Address, port: Option<u16>) -> Address {
    let Some(port) = port else {
        return address.clone();
    };
    let host = address
        .as_str()
        .rsplit_once(':')
        .map_or("", |(host, _)| host);
    Address::from_parts(host, port).unwrap_or_else(|_| address.clone())
}
