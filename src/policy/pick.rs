//! Which instance an attempt goes to: a trial on offer if this request may be one, else the
//! balancer's pick; and what is said where there is none. Next: `balancer.rs`.

use std::sync::Arc;
use std::time::Duration;

use super::retry::{self, Trigger};
use super::stack::{Course, Exchange};
use crate::balancer::PickContext;
use crate::clock::Timestamp;
use crate::config::types::AttemptTimeout;
use crate::endpoint::instance::Instance;
use crate::endpoint::selectable::{Availability, Selectable, TrialOffer};
use crate::error::{Reason, Refusal};
use crate::metrics::cells::Limit;
use crate::outlier::LeaseId;
use crate::outlier::policy::Policy;
use crate::timer::within;
use crate::upstream::TrialReport;

/// Automatic attempt limit of a request trial.
const TRIAL_ATTEMPT: Duration = Duration::from_secs(5);

/// The picked instance and what goes with it.
#[derive(Debug)]
pub(super) struct Picked {
    pub(super) instance: Arc<Instance>,
    pub(super) http2: Option<bool>,
    pub(super) policy: Arc<Policy>,
    pub(super) trial: Option<(LeaseId, Timestamp)>,
    /// The lane of the request, where routes are judged; else 0.
    pub(super) lane: u8,
}

impl Exchange {
    /// The usual pick: the registry has answered, nothing is ejected, nothing was full.
    pub(super) fn pick_now(&self) -> Option<Picked> {
        let snapshot = self.route.upstream.selectable();
        let selectable = self.list(&snapshot);
        if selectable.watch_requests || !self.course.full.is_empty() {
            return None;
        }
        let algorithm = self.service().balancing.load_balancer;
        let upstream = &self.route.upstream;
        let context = PickContext {
            now: self.time.started(),
            tried: &self.course.tried,
            key: self.hash_key,
        };
        let entry = self
            .worker
            .pick(upstream, algorithm, selectable, &context)?;
        Some(Picked {
            instance: Arc::clone(&entry.instance),
            http2: entry.http2,
            policy: Arc::clone(&selectable.policy),
            trial: None,
            lane: selectable.lane,
        })
    }

    /// What of a snapshot the request's route sees.
    pub(super) fn list<'a>(&self, snapshot: &'a Selectable) -> &'a Selectable {
        if snapshot.lanes.is_empty() {
            return snapshot;
        }
        let state = self.state();
        match (state.lane(), &state.name) {
            (0, Some(route)) => snapshot.of_route(route),
            (lane, _) => snapshot.of_lane(lane),
        }
    }

    /// Picks an instance: a trial on offer if this request may be one, else by the balancer; waits
    /// for the registry's first answer.
    pub(super) async fn pick(&mut self) -> Result<Picked, Reason> {
        let wait_until = self.time.started() + self.snapshot.config.discovery_wait;
        let route = Arc::clone(&self.route);
        loop {
            // Made before the look, so that a swap in between is not missed.
            let published = route.upstream.published();
            {
                let selectable = route.upstream.selectable_full();
                if selectable.state != Availability::Waiting || self.now() >= wait_until {
                    let list = self.list(&selectable);
                    return self.pick_from(list).await;
                }
            }
            let until = wait_until.min(self.time.deadline());
            within(&mut self.timer, until, published).await;
        }
    }

    async fn pick_from(&mut self, selectable: &Selectable) -> Result<Picked, Reason> {
        if selectable.watch_requests
            && let Some(picked) = self.claim_trial(selectable).await
        {
            return Ok(picked);
        }
        let now = self.now();
        let algorithm = self.service().balancing.load_balancer;
        let upstream = &self.route.upstream;
        let Course { tried, full, .. } = &self.course;
        let excluded: &[u64] = if full.is_empty() {
            tried
        } else {
            &[tried.as_slice(), full.as_slice()].concat()
        };
        let context = PickContext {
            now,
            tried: excluded,
            key: self.hash_key,
        };
        if let Some(entry) = self.worker.pick(upstream, algorithm, selectable, &context) {
            return Ok(Picked {
                instance: Arc::clone(&entry.instance),
                http2: entry.http2,
                policy: Arc::clone(&selectable.policy),
                trial: None,
                lane: selectable.lane,
            });
        }
        // Nothing untried is left: an ejected one may be tried as a last resort.
        if let Some(offer) = selectable.trials.iter().find(|o| !o.is_claimed())
            && retry::method_allowed(&self.service().retry.methods, &self.method, self.grpc)
            && offer.claim()
        {
            return Ok(self.as_trial(selectable, offer, now));
        }
        if !self.course.full.is_empty() {
            return Err(Reason::Overflow);
        }
        Err(match selectable.state {
            Availability::AllUnhealthy { .. } => Reason::NoHealthyInstances,
            Availability::Waiting | Availability::Empty { .. } | Availability::Ready => {
                Reason::NoInstances
            }
        })
    }

    /// Claims a trial on offer, if this request may serve as one: it can be repeated elsewhere, so
    /// no user sees a failed trial.
    async fn claim_trial(&mut self, selectable: &Selectable) -> Option<Picked> {
        if !self.may_try(selectable) {
            return None;
        }
        let now = self.now();
        self.route.upstream.note_eligible(now);
        let offer = selectable.trials.iter().find(|o| !o.is_claimed())?;
        if !self.take_budget(Trigger::Other) {
            return None;
        }
        if let Some(body) = self.body.clone()
            && !body.prefetch().await
        {
            return None;
        }
        if !offer.claim() {
            return None;
        }
        let now = self.now();
        Some(self.as_trial(selectable, offer, now))
    }

    /// Whether this request may serve as the trial of an ejected instance.
    pub(super) fn may_try(&self, selectable: &Selectable) -> bool {
        let retry = &self.service().retry;
        self.guard.attempts() == 0
            && retry.max_attempts >= 2
            && !self.upgrade
            && retry::method_allowed(&retry.methods, &self.method, self.grpc)
            && self.body.as_ref().is_none_or(|b| b.fits())
            && self.untried(selectable)
    }

    fn as_trial(&self, selectable: &Selectable, offer: &TrialOffer, now: Timestamp) -> Picked {
        let timeouts = &self.service().timeout;
        let attempt = match timeouts.attempt {
            AttemptTimeout::After(limit) => limit,
            AttemptTimeout::Auto | AttemptTimeout::Unlimited => TRIAL_ATTEMPT,
        };
        let mut until = now + timeouts.connect.saturating_add(attempt).min(offer.unit);
        let deadline = self.time.deadline();
        if deadline != Timestamp::MAX {
            until = until.min(now + deadline.since(now) / 2);
        }
        self.route.upstream.report_trial(TrialReport::Taken {
            address: offer.instance.address.clone(),
            lease: offer.lease,
            latest: until,
        });
        Picked {
            instance: Arc::clone(&offer.instance),
            http2: offer.http2,
            policy: Arc::clone(&selectable.policy),
            trial: Some((offer.lease, until)),
            lane: selectable.lane,
        }
    }

    /// Waits for a place at one of the full instances. False when the time is over.
    pub(super) async fn wait_for_place(&mut self) -> bool {
        let started = self.time.started();
        let until = (started + self.service().pool.max_wait).min(self.time.deadline());
        if self.now() >= until {
            return false;
        }
        let instance = {
            let selectable = self.route.upstream.selectable();
            let list = self.list(&selectable);
            list.entries
                .iter()
                .chain(list.spare.iter().flatten())
                .find(|e| self.course.full.contains(&e.instance.id))
                .map(|e| Arc::clone(&e.instance))
        };
        let Some(instance) = instance else {
            return false;
        };
        if !std::mem::replace(&mut self.course.waited, true) {
            self.worker.limit_hit(Limit::PoolConnections);
        }
        let pool = self.worker.pools.of(&instance);
        within(&mut self.timer, until, pool.freed()).await.is_some()
    }

    pub(super) fn nothing_to_pick(&self, reason: Reason) -> Refusal {
        let selectable = self.route.upstream.selectable();
        let name = &self.route.upstream.name;
        let message = match &selectable.state {
            Availability::Waiting => {
                format!("the registry has not answered yet for {name}; see `outrigger registries`")
            }
            Availability::Empty { listed: 0 } => {
                format!("no instance of {name} is registered; see `outrigger instances {name}`")
            }
            Availability::Empty { listed } => format!(
                "{name} has {listed} instances, none of them can take requests (disabled, weight 0, \
                 unhealthy, draining or not of its subset); see `outrigger instances {name}`"
            ),
            Availability::AllUnhealthy { routable } => format!(
                "the active checks refuse all {routable} instances of {name}; see \
                 `outrigger instances {name}`"
            ),
            Availability::Ready => format!("every instance of {name} was tried"),
        };
        let mut refusal = Refusal::new(reason, message);
        if reason == Reason::NoHealthyInstances || selectable.state == Availability::Waiting {
            refusal.retry_after = Some(1);
        }
        refusal
    }
}
