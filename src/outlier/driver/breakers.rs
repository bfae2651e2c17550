//! Circuit breakers of an upstream and its routes: what they did becomes events and counts, operators'
//! orders become theirs, and all of it is told. The breakers decide themselves (`policy/breaker.rs`);
//! the driver is the one that tells.

mod words;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;

use self::words::{breaker_why, opening_fields, opening_words};
use super::orders::{by, id_text, signature};
use super::{Driver, report};
use crate::clock::Timestamp;
use crate::config::types::BreakerMode;
use crate::outlier::book::Signed;
use crate::policy::breaker::Breaker;
use crate::policy::breaker::words::{Effect, EffectKind, Order, Remembered, StateView};
use crate::state_file::format::{KeptBreaker, WallMs};
use crate::status::{BreakerStatus, BulkheadStatus, OverrideDone, OverrideRefused, OverrideStatus};
use crate::upstream::route_state::RouteState;

/// What an operator orders for a breaker.
#[derive(Clone, Debug)]
pub struct BreakerOrder {
    /// Its number, should it hold for some time; never used twice in one process.
    pub id: u64,
    /// Which route's; `None`: the upstream's own.
    pub route: Option<String>,
    /// What, and how long; `None`: the rules decide again.
    pub order: Option<(Order, Duration)>,
    /// By whom and why.
    pub signed: Signed,
}

/// An order in force.
#[derive(Debug)]
struct Entry {
    id: u64,
    order: Order,
    since: Timestamp,
    until: Timestamp,
    signed: Signed,
}

/// A route's name; `None`: the upstream itself.
type Whose = Option<Arc<str>>;

/// What the driver knows of breakers.
#[derive(Debug, Default)]
pub(super) struct Breakers {
    orders: BTreeMap<Whose, Entry>,
    transitions: BTreeMap<(Whose, &'static str), u64>,
    wake: Option<Timestamp>,
}

impl Breakers {
    /// When the time alone changes something.
    pub(super) const fn wake(&self) -> Option<Timestamp> {
        self.wake
    }

    /// Orders in force.
    pub(super) fn orders(&self) -> usize {
        self.orders.len()
    }

    /// Changes of state since the start.
    pub(super) fn transitions(&self) -> BTreeMap<(Whose, &'static str), u64> {
        self.transitions.clone()
    }
}

/// How an order is called: in metrics, events, the API and on the command line.
pub const fn order_label(order: Order) -> &'static str {
    match order {
        Order::ForceOpen => "breaker_force_open",
        Order::ForceClosed => "breaker_force_closed",
        Order::Disable => "breaker_disable",
    }
}

impl Driver {
    /// All breakers: the upstream's own, then those of routes that have one.
    fn breakers_of_all(&self) -> Vec<(Whose, Arc<RouteState>)> {
        let own = (None, Arc::clone(self.upstream.own_state()));
        let rules = self.service.rules.iter();
        let rules = rules.filter(|rule| !rule.service.shares.breaker);
        let of_routes = rules.filter_map(|rule| {
            let state = self.upstream.route_state(&rule.name)?;
            Some((Some(Arc::clone(&rule.name)), state))
        });
        std::iter::once(own).chain(of_routes).collect()
    }

    /// `UPSTREAM` or `UPSTREAM/ROUTE`.
    fn breaker_name(&self, whose: &Whose) -> String {
        match whose {
            Some(route) => format!("{}/{route}", self.upstream.name),
            None => self.upstream.name.to_string(),
        }
    }

    /// Tells what breakers did, and notes when they do something next.
    pub(super) fn tell_breakers(&mut self) {
        let now = self.clock.now();
        let all = self.breakers_of_all();
        let mut wake = None;
        for (whose, state) in &all {
            let (effects, next) = state.breaker.settle(now);
            wake = [wake, next].into_iter().flatten().min();
            for effect in effects {
                self.tell_breaker(whose, &state.breaker, &effect);
            }
        }
        self.breakers.wake = wake;
        let orders = &mut self.breakers.orders;
        let homeless = |whose: &Whose, _: &mut Entry| all.iter().all(|(known, _)| known != whose);
        let homeless: Vec<_> = orders.extract_if(.., homeless).collect();
        for (whose, entry) in homeless {
            if let Some(route) = &whose
                && let Some(state) = self.upstream.route_state(route)
            {
                state.breaker.release(now);
            }
            self.tell_order_end(&whose, &entry, "route_gone", None);
        }
        self.count_overrides();
    }

    /// How many orders hold, for who asks whether the upstream may be forgotten.
    pub(super) fn count_overrides(&self) {
        let all = self.book.len() + self.breakers.orders();
        self.overrides.store(all, Ordering::Relaxed);
    }

    fn tell_breaker(&mut self, whose: &Whose, breaker: &Breaker, effect: &Effect) {
        self.touched.notify_one();
        let name = self.breaker_name(whose);
        let view = breaker.view(effect.at);
        let observed = effect.observed;
        let (event, to, mut fields, what) = match effect.kind {
            EffectKind::Opened { opening, wait } => {
                let event = if observed {
                    "would_open"
                } else {
                    "breaker_opened"
                };
                let to = if observed { "would_open" } else { "open" };
                let verb = if observed { "would open" } else { "opened" };
                let why = opening_words(&opening, &view);
                let span = report::span(wait);
                let what = format!("the circuit breaker of {name} {verb}: {why}; trials in {span}");
                (event, to, opening_fields(&opening, &view, wait), what)
            }
            EffectKind::HalfOpen { .. } if observed => return,
            EffectKind::HalfOpen { after } => {
                let trials = view.settings.permitted_number_of_calls_in_half_open_state;
                let span = report::span(after);
                let fields = vec![
                    ("open_for_s", json!(after.as_secs_f64())),
                    ("trials", json!(trials)),
                ];
                let what = format!(
                    "the circuit breaker of {name} is half-open after {span}: {trials} good trials \
                     close it, a bad one opens it"
                );
                ("breaker_half_open", "half_open", fields, what)
            }
            EffectKind::Closed { good, by } => {
                let event = if observed {
                    "would_close"
                } else {
                    "breaker_closed"
                };
                let to = if observed { "would_close" } else { "closed" };
                let verb = if observed { "would close" } else { "closed" };
                let fields = vec![
                    ("closed_by", json!(by.as_str())),
                    ("good_trials", json!(good)),
                ];
                let how = match good {
                    0 => by.as_str().to_owned(),
                    good => format!("{good} good trials"),
                };
                let what = format!("the circuit breaker of {name} {verb} ({how})");
                (event, to, fields, what)
            }
            EffectKind::OrderEnded(_) => {
                if let Some(entry) = self.breakers.orders.remove(whose) {
                    self.tell_order_end(whose, &entry, "expired", None);
                }
                return;
            }
        };
        *self
            .breakers
            .transitions
            .entry((whose.clone(), to))
            .or_default() += 1;
        let mut all = vec![("route", json!(whose.as_deref()))];
        all.append(&mut fields);
        if observed {
            tracing::info!(upstream = %self.upstream.name, "{what}");
        } else {
            tracing::warn!(upstream = %self.upstream.name, "{what}");
        }
        report::emit(self, event, None, all, what);
    }

    /// Carries an order out, or says why not. When this returns, the next call obeys it.
    pub(super) fn order_breaker(
        &mut self,
        order: &BreakerOrder,
    ) -> Result<OverrideDone, OverrideRefused> {
        let (whose, state) = self.ordered_breaker(order.route.as_deref())?;
        let now = self.clock.now();
        let name = self.breaker_name(&whose);
        self.tell_breakers();
        let old = self.breakers.orders.remove(&whose);
        let Some((what, ttl)) = order.order else {
            let Some(entry) = old else {
                return Err(OverrideRefused {
                    cause: "not_ordered".to_owned(),
                    message: format!("nothing is ordered for the circuit breaker of {name}"),
                    hint: format!(
                        "the rules decide already; `outrigger explain {}` says how it stands",
                        self.upstream.name
                    ),
                });
            };
            state.breaker.release(now);
            self.tell_order_end(&whose, &entry, "operator", Some(&order.signed));
            self.tell_breakers();
            let message = format!("the rules decide on the circuit breaker of {name} again");
            return Ok(self.breaker_done(message, None));
        };
        if let Some(entry) = old {
            self.tell_order_end(&whose, &entry, "operator", Some(&order.signed));
        }
        let until = now + ttl;
        state.breaker.order(what, until, now);
        let entry = Entry {
            id: order.id,
            order: what,
            since: now,
            until,
            signed: order.signed.clone(),
        };
        let status = self.breaker_override(&whose, &entry);
        self.breakers.orders.insert(whose.clone(), entry);
        *self
            .breakers
            .transitions
            .entry((whose.clone(), "forced"))
            .or_default() += 1;
        let does = match what {
            Order::ForceOpen => "is forced open: it refuses everything",
            Order::ForceClosed => "is forced closed: it refuses nothing",
            Order::Disable => "is off: it neither counts nor refuses",
        };
        let span = report::span(ttl);
        let message = format!("the circuit breaker of {name} {does} for {span}");
        let mut fields = vec![
            ("route", json!(whose.as_deref())),
            ("kind", json!(order_label(what))),
            ("override", json!(status.id)),
            ("until", json!(status.until)),
            ("ttl_s", json!(ttl.as_secs_f64())),
        ];
        fields.extend(signature(&order.signed));
        let msg = format!("{message}{}", by(&order.signed));
        report::emit(self, "override_set", None, fields, msg);
        self.tell_breakers();
        Ok(self.breaker_done(message, Some(status)))
    }

    /// Ends an order by its number; `None` when it is not one of a breaker of this upstream.
    pub(super) fn clear_breaker(
        &mut self,
        id: u64,
        signed: &Signed,
    ) -> Option<Result<OverrideDone, OverrideRefused>> {
        let mut orders = self.breakers.orders.iter();
        let (whose, _) = orders.find(|(_, entry)| entry.id == id)?;
        let order = BreakerOrder {
            id,
            route: whose.as_deref().map(str::to_owned),
            order: None,
            signed: signed.clone(),
        };
        Some(self.order_breaker(&order))
    }

    fn ordered_breaker(
        &self,
        route: Option<&str>,
    ) -> Result<(Whose, Arc<RouteState>), OverrideRefused> {
        let upstream = &self.upstream.name;
        let all = self.breakers_of_all();
        let found = all.into_iter().find(|(whose, _)| whose.as_deref() == route);
        found.ok_or_else(|| {
            let route = route.unwrap_or_default();
            let rules = &self.service.rules;
            if rules.iter().any(|rule| &*rule.name == route) {
                return OverrideRefused {
                    cause: "shared_breaker".to_owned(),
                    message: format!(
                        "the route {upstream}/{route} has no circuit breaker of its own: it shares \
                         that of {upstream}"
                    ),
                    hint: format!(
                        "order it for {upstream}, or write `circuit_breaker` under the route"
                    ),
                };
            }
            let names: Vec<&str> = rules.iter().map(|rule| &*rule.name).collect();
            OverrideRefused {
                cause: "unknown_route".to_owned(),
                message: format!("{upstream} has no route `{route}`"),
                hint: match names[..] {
                    [] => "it has no routes at all".to_owned(),
                    _ => format!("its routes are {}", names.join(", ")),
                },
            }
        })
    }

    fn breaker_done(&self, message: String, entry: Option<OverrideStatus>) -> OverrideDone {
        let numbers = self.detector.summary().numbers;
        OverrideDone {
            message,
            entry,
            instances: numbers.n,
            ejected_now: numbers.out,
            ejection_limit: numbers.cap,
        }
    }

    fn tell_order_end(&self, whose: &Whose, entry: &Entry, cause: &str, signed: Option<&Signed>) {
        let now = self.clock.now();
        let held = now.since(entry.since);
        let (kind, name) = (order_label(entry.order), self.breaker_name(whose));
        let length = report::span(held);
        let mut fields = vec![
            ("route", json!(whose.as_deref())),
            ("kind", json!(kind)),
            ("override", json!(id_text(entry.id))),
            ("held_for_s", json!(held.as_secs_f64())),
        ];
        if cause == "expired" {
            fields.extend(signature(&entry.signed));
            let by = by(&entry.signed);
            let msg = format!("{kind} of {name} ended after {length}, its time{by}");
            report::emit(self, "override_expired", None, fields, msg);
            return;
        }
        fields.push(("cause", json!(cause)));
        let auto = Signed {
            actor: "auto".to_owned(),
            note: None,
        };
        let signed = signed.unwrap_or(&auto);
        fields.extend(signature(signed));
        let msg = format!(
            "{kind} of {name} was ended after {length} ({cause}){}",
            by(signed)
        );
        report::emit(self, "override_cleared", None, fields, msg);
    }

    /// The upstream is no more, nor are orders for its breakers.
    pub(super) fn close_breakers(&mut self) {
        for (whose, entry) in std::mem::take(&mut self.breakers.orders) {
            self.tell_order_end(&whose, &entry, "upstream_gone", None);
        }
    }

    /// Orders for breakers in force.
    pub(super) fn breaker_overrides(&self) -> Vec<OverrideStatus> {
        let all = self.breakers.orders.iter();
        all.map(|(whose, entry)| self.breaker_override(whose, entry))
            .collect()
    }

    fn breaker_override(&self, whose: &Whose, entry: &Entry) -> OverrideStatus {
        let wall = |at| humantime::format_rfc3339_millis(self.wall(at)).to_string();
        OverrideStatus {
            id: id_text(entry.id),
            upstream: self.upstream.name.to_string(),
            instance: None,
            route: whose.as_deref().map(str::to_owned),
            kind: order_label(entry.order).to_owned(),
            since: wall(entry.since),
            until: wall(entry.until),
            left_s: entry.until.since(self.clock.now()).as_secs_f64(),
            forced: false,
            actor: entry.signed.actor.clone(),
            note: entry.signed.note.clone(),
        }
    }

    /// What outlives the process.
    pub(super) fn remember_breakers(&self, wall: WallMs) -> Vec<KeptBreaker> {
        let now = self.clock.now();
        let all = self.breakers_of_all().into_iter();
        let kept = all.filter_map(|(whose, state)| {
            let Remembered { left } = state.breaker.remembered(now)?;
            Some(KeptBreaker {
                route: whose.as_deref().map(str::to_owned),
                trials_unix_ms: wall.after(left),
            })
        });
        kept.collect()
    }

    /// Before the first call: what an earlier process knew.
    pub(super) fn recall_breakers(&self, recalled: &[(Option<String>, Duration)]) {
        let now = self.clock.now();
        let all = self.breakers_of_all();
        for (route, left) in recalled {
            let mut all = all.iter();
            let found = all.find(|(whose, _)| whose.as_deref() == route.as_deref());
            if let Some((_, state)) = found {
                state.breaker.recall(Remembered { left: *left }, now);
            }
        }
    }

    /// How the breaker of `state` stands; `None`: it is disabled and nothing is ordered.
    pub(super) fn breaker_status(
        &self,
        whose: &Whose,
        state: &RouteState,
    ) -> Option<BreakerStatus> {
        let now = self.clock.now();
        let view = state.breaker.view(now);
        if state.breaker.is_off() && view.ordered.is_none() {
            return None;
        }
        let observing = view.mode == BreakerMode::Observe;
        let below = match view.state {
            StateView::Closed => "closed",
            StateView::Open { .. } => "open",
            StateView::HalfOpen { .. } => "half_open",
        };
        let state = match view.ordered {
            Some((Order::ForceOpen, _)) => "forced_open",
            Some((Order::ForceClosed, _)) => "forced_closed",
            Some((Order::Disable, _)) => "off",
            None if observing => "closed",
            None => below,
        };
        let (good_trials, trials_in_s) = match view.state {
            StateView::Closed => (None, None),
            StateView::Open { until, .. } => (None, Some(until.since(now).as_secs_f64())),
            StateView::HalfOpen { good, .. } => (Some(good), None),
        };
        let order = self.breakers.orders.get(whose);
        let order = order.map(|entry| &entry.signed);
        Some(BreakerStatus {
            mode: view.mode.as_str().to_owned(),
            state: state.to_owned(),
            would_be: (observing && view.ordered.is_none()).then(|| below.to_owned()),
            why: breaker_why(&view, order, now),
            calls: view.counts.calls,
            failed: view.counts.failed,
            slow: view.counts.slow,
            failure_rate_threshold_pct: report::percent(view.settings.failure_rate_bp),
            slow_call_rate_threshold_pct: report::percent(view.settings.slow_call_rate_bp),
            refused: view.refused,
            good_trials,
            trials_in_s,
        })
    }
}

/// How the bulkhead of `state` stands.
pub(super) fn bulkhead_status(state: &RouteState) -> BulkheadStatus {
    let full = state.bulkhead.full();
    BulkheadStatus {
        in_use: full.in_use,
        limit: full.limit,
        waiting: full.waiting,
        max_queue: state.bulkhead.max_queue(),
    }
}
