//! Hedging: when the first attempt has no head after a while, a second one starts at another
//! instance, and the first good head of the two is the answer. The other attempt is dropped and says
//! nothing of its instance. A hedge is an attempt like any other: it counts for `max_attempts` and
//! costs a token of the retry budget. Trials of ejected instances are not hedged.
//! Boxed by the caller: requests without `hedge` do not carry it. Next: `policy/attempt.rs`.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use super::attempt::{Answer, Failure};
use super::breaker::words::Pass;
use super::pick::Picked;
use super::quantile;
use super::retry::{self, Trigger};
use super::stack::{Exchange, Try};
use super::verdict::classify;
use crate::balancer::PickContext;
use crate::clock::Timestamp;
use crate::config::types::HedgeAfter;
use crate::outlier::classify::OutcomeClass;
use crate::timer::{Timer, within};

/// How an attempt ended.
type Ended = Result<Answer, Failure>;

/// Which of the two ended.
enum Side {
    First(Ended),
    Second(Ended),
}

/// How long the heads of first attempts take that may be hedged; an estimate of its own for each worker.
#[derive(Debug)]
pub struct HeadTimes {
    workers: Box<[HeadTime]>,
}

/// One writer, so a load and a store do.
#[derive(Debug, Default)]
#[repr(align(128))]
struct HeadTime {
    p95_us: AtomicU64,
    heads: AtomicU64,
}

impl HeadTimes {
    /// For this many workers.
    pub fn new(workers: usize) -> Self {
        Self {
            workers: (0..workers.max(1)).map(|_| HeadTime::default()).collect(),
        }
    }

    /// A head came after this time.
    fn took(&self, worker: usize, time: Duration) {
        let Some(own) = self.workers.get(worker) else {
            return;
        };
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let estimate = quantile::next(own.p95_us.load(Relaxed), us);
        own.p95_us.store(estimate, Relaxed);
        let heads = own.heads.load(Relaxed).saturating_add(1);
        own.heads.store(heads, Relaxed);
    }

    /// A head takes longer than the estimate.
    fn slow(&self, worker: usize) {
        if let Some(own) = self.workers.get(worker) {
            let estimate = quantile::slower(own.p95_us.load(Relaxed));
            own.p95_us.store(estimate, Relaxed);
        }
    }

    /// The estimate, once there were enough heads.
    fn p95(&self, worker: usize) -> Option<Duration> {
        let own = self.workers.get(worker)?;
        if own.heads.load(Relaxed) < quantile::SAMPLES {
            return None;
        }
        let estimate = Duration::from_micros(own.p95_us.load(Relaxed));
        Some(estimate.max(quantile::FLOOR))
    }
}

impl Exchange {
    /// After which time a second attempt starts, if this first one may have one at all.
    pub(super) fn hedge_after(&self, picked: &Picked) -> Option<Duration> {
        let service = self.service();
        let hedge = service.hedge.as_deref()?;
        let may = self.guard.attempts() == 0
            && picked.trial.is_none()
            && service.retry.max_attempts >= 2
            && !self.upgrade
            && retry::method_allowed(&hedge.methods, &self.method, self.grpc)
            && self.body.as_ref().is_none_or(|body| body.fits());
        if !may {
            return None;
        }
        let heads = &self.route.upstream.heads;
        Some(match hedge.after {
            HedgeAfter::Time(after) => after,
            // Not known yet: the first heads are only looked at.
            HedgeAfter::P95 => heads.p95(self.worker.index).unwrap_or(Duration::MAX),
        })
    }

    /// The first attempt and, when it is slow, a second one. `picked` is in the end who answered.
    pub(super) async fn hedged(
        &mut self,
        picked: &mut Picked,
        pass: Option<Pass>,
        after: Duration,
    ) -> Ended {
        self.begin_attempt(picked);
        let started = self.moment.take().unwrap_or_else(|| self.now());
        // Shared by the attempts, so that the request itself stays free for the second pick.
        let headers = RefCell::new(std::mem::take(self.headers.get_mut()));
        let (worker, route) = (Rc::clone(&self.worker), Arc::clone(&self.route));
        let (snapshot, body) = (Arc::clone(&self.snapshot), self.body.clone());
        let (method, target) = (self.method.clone(), self.target.clone());
        let first_lost = Rc::default();
        let first_try = Try {
            worker: &worker,
            limits: &snapshot.config.limits,
            route: &route,
            rule: self.rule,
            pass,
            service: route.service(self.rule),
            method: &method,
            target: &target,
            headers: &headers,
            body: body.as_ref(),
            grpc: self.grpc,
            http2: self.speaks_http2(picked.http2),
            tried: &[],
            attempts: 1,
            lost: Some(&first_lost),
        };
        let timer = || Timer::new(worker.clock);
        let (mut first_time, mut first_timer) = (self.time, timer());
        let (mut second_time, mut second_timer) = (self.time, timer());
        let mut other = None;
        let mut is_second = false;
        let ended = 'race: {
            let mut first = pin!(first_try.run::<true>(
                picked,
                &mut first_time,
                &mut first_timer,
                Some(started)
            ));
            let mut wait = Timer::short(worker.clock);
            let mut due = started + after;
            loop {
                if let Some(ended) = within(&mut wait, due, first.as_mut()).await {
                    self.note_head(&ended, started);
                    break 'race ended;
                }
                if body.as_ref().is_none_or(|body| body.written_at().is_some()) {
                    break;
                }
                // Only what is written completely can be sent again beside it.
                due = self.now() + after;
            }
            other = self.second(picked);
            let Some((other, other_pass)) = &other else {
                break 'race first.await;
            };
            let second_lost = Rc::default();
            let second_try = Try {
                http2: self.speaks_http2(other.http2),
                pass: *other_pass,
                attempts: 2,
                lost: Some(&second_lost),
                ..first_try
            };
            let second = second_try.run::<true>(other, &mut second_time, &mut second_timer, None);
            // Rare: boxed, so that a first attempt that is fast does not carry it.
            let mut second = Box::pin(second);
            let side = std::future::poll_fn(|cx| {
                if let Poll::Ready(ended) = first.as_mut().poll(cx) {
                    return Poll::Ready(Side::First(ended));
                }
                second.as_mut().poll(cx).map(Side::Second)
            });
            let side = side.await;
            if matches!(side, Side::Second(Err(Failure::Full))) {
                // It was no attempt, so it costs nothing.
                self.give_budget_back();
            }
            match side {
                Side::First(ended) if self.is_good(&ended, picked) => {
                    Cell::set(&second_lost, true);
                    ended
                }
                Side::First(ended) => {
                    self.put_aside(ended, picked);
                    is_second = true;
                    second.await
                }
                Side::Second(ended) if self.is_good(&ended, other) => {
                    Cell::set(&first_lost, true);
                    is_second = true;
                    ended
                }
                Side::Second(ended) => {
                    self.put_aside(ended, other);
                    first.await
                }
            }
        };
        self.headers.replace(headers.into_inner());
        self.time = if is_second { second_time } else { first_time };
        if let Some((mut other, other_pass)) = other {
            // Of the one that is not the answer: it may have been no attempt at all.
            if is_second {
                self.give_pass_back(pass);
                std::mem::swap(picked, &mut other);
            }
            if !is_second || ended.is_err() {
                self.give_pass_back(other_pass);
            }
            self.course.tried.push(other.instance.id);
            self.guard.answered_by(&picked.instance, &picked.policy);
        }
        ended
    }

    /// Another instance for the second attempt, if the budget has it.
    fn second(&mut self, first: &Picked) -> Option<(Picked, Option<Pass>)> {
        let upstream = Arc::clone(&self.route.upstream);
        // How long it takes is not known; longer than the estimate it is.
        upstream.heads.slow(self.worker.index);
        let snapshot = upstream.selectable_full();
        let selectable = self.list(&snapshot);
        let algorithm = self.service().balancing.load_balancer;
        let mut tried = vec![first.instance.id];
        tried.extend(&self.course.full);
        let context = PickContext {
            now: self.now(),
            tried: &tried,
            key: self.hash_key,
        };
        let entry = self
            .worker
            .pick(&upstream, algorithm, selectable, &context)?;
        let picked = Picked {
            instance: Arc::clone(&entry.instance),
            http2: entry.http2,
            policy: Arc::clone(&selectable.policy),
            trial: None,
            lane: selectable.lane,
        };
        let pass = self.pass_breaker().ok()?;
        if !self.take_budget(Trigger::Other) {
            self.give_pass_back(pass);
            return None;
        }
        self.begin_attempt(&picked);
        upstream.cells.hedge(self.worker.index);
        Some((picked, pass))
    }

    fn note_head(&self, ended: &Ended, started: Timestamp) {
        let hedge = self.service().hedge.as_deref();
        if ended.is_ok() && hedge.is_some_and(|hedge| hedge.after == HedgeAfter::P95) {
            let took = self.now().since(started);
            self.route.upstream.heads.took(self.worker.index, took);
        }
    }

    fn is_good(&self, ended: &Ended, picked: &Picked) -> bool {
        ended.as_ref().is_ok_and(|answer| {
            let (class, _) = classify(answer, self.grpc, &picked.policy);
            class == OutcomeClass::Success
        })
    }

    /// A bad end of one of the two: charged as ever, and the other one is waited for.
    fn put_aside(&mut self, ended: Ended, picked: &Picked) {
        match ended {
            Ok(answer) => {
                let (class, kind) = classify(&answer, self.grpc, &picked.policy);
                self.count_head(self.now().since(answer.guard.sent_at));
                answer.guard.finish(class, kind);
            }
            Err(Failure::Failed { refusal, .. }) => {
                self.course.first_failure.get_or_insert(refusal);
            }
            Err(Failure::Full) => self.guard.unattempt(),
            Err(Failure::Stale) => {}
        }
    }
}
