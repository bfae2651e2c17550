//! Exactly one outcome per attempt, whatever happens: a guard reports it, and reports a
//! cancellation when it is dropped without a word.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::admission::BreakerCall;
use crate::clock::Timestamp;
use crate::config::types::LoadBalancer;
use crate::endpoint::failures::FailureRecord;
use crate::endpoint::instance::Instance;
use crate::metrics::cells::IgnoredCause;
use crate::outlier::LeaseId;
use crate::outlier::classify::{ErrorKind, OutcomeClass};
use crate::router::Route;
use crate::upstream::TrialReport;
use crate::worker::Worker;

/// The least latency that a failure stands for where `peak_ewma` balances.
const FAILED_AFTER: Duration = Duration::from_secs(1);

/// Watches one attempt at one instance.
#[derive(Debug)]
pub struct AttemptGuard {
    worker: Rc<Worker>,
    route: Arc<Route>,
    /// The instance.
    pub instance: Arc<Instance>,
    /// When the attempt began: a later ejection or restore makes it stale.
    pub sent_at: Timestamp,
    /// The lane of its route, where routes are judged; else 0.
    lane: u8,
    /// The offered trial this attempt is.
    trial: Option<LeaseId>,
    /// The multiplexed connection it uses.
    death: Cell<Option<u64>>,
    cancelled: Cell<Cancelled>,
    /// To be told the outcome too.
    call: Option<BreakerCall>,
    /// Until the response head.
    took: Option<Duration>,
    /// Set when another attempt of the same request was faster.
    lost: Option<Rc<Cell<bool>>>,
    reported: bool,
}

/// What it means when the app goes away now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// Nothing was awaited from the instance yet.
    Ignored,
    /// The request was written completely at this time; patience says when giving up counts.
    Waiting {
        /// When it was written.
        since: Timestamp,
        /// max(1 s, attempt limit / 5): giving up earlier says nothing.
        patience: Duration,
        /// A gRPC deadline of the app: giving up after 90 % of it counts too.
        client: Option<(Timestamp, Timestamp)>,
    },
    /// The head was there: what was seen counts.
    Class(OutcomeClass, Option<ErrorKind>),
}

impl AttemptGuard {
    /// An attempt at `instance` begins.
    pub fn new(
        worker: &Rc<Worker>,
        route: &Arc<Route>,
        instance: Arc<Instance>,
        sent_at: Timestamp,
        trial: Option<LeaseId>,
        lane: u8,
        call: Option<BreakerCall>,
    ) -> Self {
        instance.enter(worker.index);
        Self {
            worker: Rc::clone(worker),
            route: Arc::clone(route),
            instance,
            sent_at,
            lane,
            trial,
            death: Cell::new(None),
            cancelled: Cell::new(Cancelled::Ignored),
            call,
            took: None,
            lost: None,
            reported: false,
        }
    }

    /// Another attempt runs beside it; `lost` is set when that one is the answer.
    pub fn may_lose(&mut self, lost: &Rc<Cell<bool>>) {
        self.lost = Some(Rc::clone(lost));
    }

    /// The multiplexed connection it uses, when it dies with it.
    pub fn dies_with(&self, connection: u64) {
        self.death.set(Some(connection));
    }

    /// The trial's head is good: should its body still be open at the lease's end, that is enough.
    pub fn good_head(&self, at: Timestamp) {
        if let Some(lease) = self.trial {
            self.route
                .upstream
                .report_trial(TrialReport::Head { lease, at });
        }
    }

    /// The response head came.
    pub fn head(&mut self, at: Timestamp) {
        if let Some(call) = &self.call {
            let took = at.since(self.sent_at);
            call.head(took, at);
            self.took = Some(took);
        }
    }

    /// The head is a failure: the breaker is told before it is decided whether to try again.
    pub fn failed_head(&mut self, class: OutcomeClass) {
        self.end_call(class, None);
    }

    /// Whether the attempt is an offered trial.
    pub const fn is_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// What a departure of the app means from now on.
    pub fn on_cancel(&self, meaning: Cancelled) {
        self.cancelled.set(meaning);
    }

    /// The outcome at this time, once and for all.
    pub fn finish_at(mut self, class: OutcomeClass, kind: Option<ErrorKind>, at: Timestamp) {
        self.end_call(class, Some(at));
        self.report(class, kind, false, IgnoredCause::ClientCancel);
    }

    /// The outcome, while the answer is kept.
    pub fn tell(&mut self, class: OutcomeClass, kind: Option<ErrorKind>) {
        self.report(class, kind, false, IgnoredCause::ClientCancel);
    }

    /// Whether the outcome is told.
    pub const fn is_told(&self) -> bool {
        self.reported
    }

    /// The outcome, once and for all.
    pub fn finish(mut self, class: OutcomeClass, kind: Option<ErrorKind>) {
        self.report(class, kind, false, IgnoredCause::ClientCancel);
    }

    /// A failure by one of our own time limits. `lateness`: how late the timer fired.
    pub fn timed_out(mut self, kind: ErrorKind, since: Timestamp, lateness: Duration) {
        if self.worker.starved_since(since, lateness) {
            self.report(OutcomeClass::Ignored, None, false, IgnoredCause::SelfLag);
        } else {
            self.report(
                OutcomeClass::NetworkError,
                Some(kind),
                true,
                IgnoredCause::ClientCancel,
            );
        }
    }

    /// No evidence about the instance.
    pub fn ignore(mut self, cause: IgnoredCause) {
        self.report(OutcomeClass::Ignored, None, false, cause);
    }

    /// An attempt that never was one (a transparent repeat follows): counted nowhere. The breaker's
    /// pass stays with the caller.
    pub fn forget(mut self) {
        self.reported = true;
        self.call = None;
        if let Some(lease) = self.trial {
            self.report_trial(lease, OutcomeClass::Ignored, None);
        }
    }

    /// Tells the breaker, which counts an attempt once.
    fn end_call(&mut self, class: OutcomeClass, at: Option<Timestamp>) {
        if let Some(call) = self.call.take() {
            let at = at.unwrap_or_else(|| self.worker.clock.now());
            let took = self.took.unwrap_or_else(|| at.since(self.sent_at));
            call.end(self.worker.index, class, took, at);
        }
    }

    fn report_trial(&self, lease: LeaseId, class: OutcomeClass, kind: Option<ErrorKind>) {
        let at = self.worker.clock.now();
        self.route.upstream.report_trial(TrialReport::Finished {
            address: self.instance.address.clone(),
            lease,
            class,
            kind,
            at,
        });
    }

    /// Who fails at once must not look fast: a failure counts as an answer after [`FAILED_AFTER`], or
    /// as long as it took.
    fn failed_slowly(&self) {
        if self.route.settings.service.balancing.load_balancer != LoadBalancer::PeakEwma {
            return;
        }
        let now = self.worker.clock.now();
        let took = now.since(self.sent_at).max(FAILED_AFTER);
        self.instance.latency.observe(took, now);
    }

    fn report(
        &mut self,
        class: OutcomeClass,
        kind: Option<ErrorKind>,
        own_timeout: bool,
        cause: IgnoredCause,
    ) {
        if self.reported {
            return;
        }
        self.reported = true;
        self.end_call(class, None);
        let index = self.worker.index;
        let upstream = &self.route.upstream;
        if let Some(kind) = kind {
            upstream.cells.error(index, kind);
        }
        let fresh = self.instance.count(index, class, self.sent_at);
        if let Some(lease) = self.trial {
            return self.report_trial(lease, class, kind);
        }
        if self.lane > 0 {
            self.report_to_lane(class, kind, own_timeout);
        }
        match class {
            OutcomeClass::Ignored => upstream.cells.ignored(index, cause),
            OutcomeClass::Success | OutcomeClass::NetworkError | OutcomeClass::BusinessError
                if !fresh =>
            {
                upstream.cells.ignored(index, IgnoredCause::Stale);
            }
            OutcomeClass::Success => {}
            OutcomeClass::NetworkError | OutcomeClass::BusinessError => {
                if class == OutcomeClass::NetworkError {
                    self.failed_slowly();
                }
                let record = FailureRecord {
                    class,
                    kind: kind.unwrap_or(ErrorKind::Protocol),
                    sent_at: self.sent_at,
                    seen_at: self.worker.clock.now(),
                    own_timeout,
                    death: self.death.get(),
                    successes_before: self.instance.successes(),
                    count: 1,
                };
                upstream.fail(&self.instance, record);
            }
        }
    }
}

impl AttemptGuard {
    /// The same outcome for the route alone.
    fn report_to_lane(&self, class: OutcomeClass, kind: Option<ErrorKind>, own_timeout: bool) {
        let Some(ledger) = self.instance.ledger(self.lane) else {
            return;
        };
        let fresh = ledger.count(self.worker.index, class, self.sent_at);
        match class {
            OutcomeClass::Ignored | OutcomeClass::Success => {}
            OutcomeClass::NetworkError | OutcomeClass::BusinessError if !fresh => {}
            OutcomeClass::NetworkError | OutcomeClass::BusinessError => {
                let record = FailureRecord {
                    class,
                    kind: kind.unwrap_or(ErrorKind::Protocol),
                    sent_at: self.sent_at,
                    seen_at: self.worker.clock.now(),
                    own_timeout,
                    death: self.death.get(),
                    successes_before: ledger.successes(),
                    count: 1,
                };
                self.route.upstream.fail_for_route(ledger, record);
            }
        }
    }
}

impl Drop for AttemptGuard {
    fn drop(&mut self) {
        self.instance.leave(self.worker.index);
        if self.reported {
            return;
        }
        if self.lost.as_ref().is_some_and(|lost| lost.get()) {
            let cause = IgnoredCause::HedgeLoser;
            return self.report(OutcomeClass::Ignored, None, false, cause);
        }
        match self.cancelled.get() {
            Cancelled::Ignored => {
                self.report(
                    OutcomeClass::Ignored,
                    None,
                    false,
                    IgnoredCause::ClientCancel,
                );
            }
            Cancelled::Class(class, kind) => {
                self.report(class, kind, false, IgnoredCause::ClientCancel);
            }
            Cancelled::Waiting {
                since,
                patience,
                client,
            } => {
                let now = self.worker.clock.now();
                let waited = now.since(since);
                let deadline_near = client.is_some_and(|(start, end)| {
                    now.since(start).saturating_mul(10) >= end.since(start).saturating_mul(9)
                });
                if waited <= patience && !deadline_near {
                    self.report(
                        OutcomeClass::Ignored,
                        None,
                        false,
                        IgnoredCause::ClientCancel,
                    );
                } else if self.worker.starved_since(since, Duration::ZERO) {
                    self.report(OutcomeClass::Ignored, None, false, IgnoredCause::SelfLag);
                } else {
                    let kind = Some(ErrorKind::RequestTimeout);
                    self.report(
                        OutcomeClass::NetworkError,
                        kind,
                        true,
                        IgnoredCause::ClientCancel,
                    );
                }
            }
        }
    }
}
