//! How one upstream stands, for admin and metrics: numbers, and one sentence per instance.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::breakers::bulkhead_status;
use super::publish::{passes, state_label};
use super::{Driver, Member, report};
use crate::clock::{self, Timestamp};
use crate::config::types::RouteRule;
use crate::discovery::{Held, HoldCause};
use crate::endpoint::Address;
use crate::endpoint::selectable::Availability;
use crate::outlier::OutcomeClass;
use crate::outlier::book::Lasting;
use crate::outlier::detector::{InstanceView, StateView};
use crate::status::{
    Decisions, InstanceStatus, OverrideStatus, RouteStatus, UpstreamStatus, UpstreamSummary,
};

/// What instances can be called, for counts that show zeros too.
const STATES: [&str; 6] = [
    "healthy",
    "ejected",
    "probing",
    "unhealthy",
    "draining",
    "disabled",
];

impl Driver {
    fn routes(&self) -> Vec<RouteStatus> {
        let of = |rule: &RouteRule| {
            let state = self.upstream.route_state(&rule.name)?;
            let (service, whose) = (&rule.service, Some(Arc::clone(&rule.name)));
            let breaker = (!service.shares.breaker).then(|| self.breaker_status(&whose, &state));
            Some(RouteStatus {
                breaker: breaker.flatten(),
                bulkhead: (!service.shares.bulkhead).then(|| bulkhead_status(&state)),
                name: rule.name.to_string(),
                matches: rule.matching.to_string(),
                counters: state.cells.as_ref()?.read(),
            })
        };
        self.service.rules.iter().filter_map(of).collect()
    }

    /// Of the last good answers, where they are kept.
    fn kept_bytes(&self) -> Option<u64> {
        let rules = self.service.rules.iter().map(|rule| &*rule.service);
        let mut all = rules.chain([&*self.service]);
        all.any(|service| service.kept_answers().is_some())
            .then(|| u64::try_from(self.upstream.kept_bytes()).unwrap_or(u64::MAX))
    }

    pub(super) fn view(&self) -> UpstreamStatus {
        let instances: Vec<InstanceStatus> = self
            .order
            .iter()
            .filter_map(|address| {
                let member = self.members.get(address)?;
                let view = self.detector.instance(address)?;
                Some(self.instance_status(member, &view))
            })
            .collect();
        let mut states: BTreeMap<String, usize> = STATES
            .iter()
            .map(|state| ((*state).to_owned(), 0))
            .collect();
        for instance in &instances {
            *states.entry(instance.state.clone()).or_default() += 1;
        }
        UpstreamStatus {
            summary: self.summary(states),
            instances,
            decisions: Decisions {
                transitions: self.breakers.transitions(),
                ..self.decisions.clone()
            },
            counters: self.upstream.cells.read(),
            routes: self.routes(),
            kept_bytes: self.kept_bytes(),
            overrides: self.override_statuses(),
        }
    }

    fn summary(&self, states: BTreeMap<String, usize>) -> UpstreamSummary {
        let view = self.source.view.borrow();
        let selectable = self.upstream.selectable_full();
        let numbers = self.detector.summary().numbers;
        let now = self.clock.now();
        UpstreamSummary {
            name: self.upstream.name.to_string(),
            aliases: Vec::new(),
            hosts: self.service.hosts.iter().map(ToString::to_string).collect(),
            discovered: self.discovered,
            source: self.source.name.to_string(),
            age_s: view
                .last_success
                .filter(|_| !self.source.in_process)
                .map(|at| now.since(at).as_secs_f64()),
            stale: view.stale,
            cached_unix_s: view.cached.map(|at| {
                let since = at.duration_since(SystemTime::UNIX_EPOCH);
                since.map_or(0.0, |since| since.as_secs_f64())
            }),
            held: view.held.as_ref().map(|held| self.held(held)),
            error: view.error.as_ref().map(ToString::to_string),
            policy: self.policy.name.to_string(),
            policy_at: self.policy.origin.to_string(),
            mode: report::mode_label(self.policy.mode).to_owned(),
            listed: self.members.len(),
            routable: numbers.n,
            selectable: selectable.entries.len(),
            ejection_limit: numbers.cap,
            ejected: numbers.out,
            states,
            last_resort: self.last_resort,
            unavailable: unavailable(&selectable.state),
            breaker: self.breaker_status(&None, self.upstream.own_state()),
            bulkhead: bulkhead_status(self.upstream.own_state()),
        }
    }

    fn instance_status(&self, member: &Member, view: &InstanceView) -> InstanceStatus {
        let evidence = &view.evidence;
        let state = state_label(member, view.state, view.disabled);
        let (k, next) = match view.state {
            StateView::Ejected { k, next_trial, .. } => (Some(k), Some(next_trial)),
            StateView::In | StateView::EjectedByOperator { .. } => (None, None),
        };
        let out = k.is_some();
        let attempts = [
            OutcomeClass::Success,
            OutcomeClass::NetworkError,
            OutcomeClass::BusinessError,
            OutcomeClass::Ignored,
        ]
        .into_iter()
        .map(|class| (class.as_str().to_owned(), member.instance.attempts(class)))
        .collect();
        let routes = self.route_standings(&view.address);
        let mut why = self.why_and_hold(member, view, state);
        for route in routes.iter().filter(|route| route.state != "healthy") {
            why.push_str("; ejected for route ");
            why.push_str(&route.route);
        }
        InstanceStatus {
            instance: view.address.to_string(),
            state: state.to_owned(),
            why,
            overrides: self.overrides_of(&view.address),
            weight: f64::from(member.endpoint.weight.thousandths()) / 1000.0,
            share: f64::from(self.share_bp(member, view)) / 10_000.0,
            registry_healthy: member.endpoint.healthy,
            enabled: member.endpoint.enabled,
            draining: member.endpoint.draining,
            check_passes: member.health.as_ref().map(|h| h.counter.passing()),
            check_message: member.health.as_ref().map(|h| h.message.clone()),
            zone: member.endpoint.zone.as_ref().map(ToString::to_string),
            priority: member.endpoint.priority,
            preferred: self.is_preferred(member),
            cluster: member.endpoint.cluster.as_ref().map(ToString::to_string),
            metadata: (*member.endpoint.metadata).clone(),
            window_s: evidence.window.as_secs_f64(),
            requests: evidence.calls,
            errors: evidence.failures,
            network_errors: evidence.network,
            business_errors: evidence.business,
            error_rate_pct: report::percent(evidence.rate_bp),
            threshold_pct: report::percent(evidence.threshold_bp),
            qps: report::thousandths(evidence.qps_milli),
            lower_qps_limit: report::thousandths(evidence.limit_milli),
            streak: evidence.streak,
            streak_limit: evidence.streak_limit,
            errors_by_kind: report::by_kind(evidence),
            routes,
            median_ms: view.median.map(report::ms),
            suppressed_by: view.suppressed.map(|cause| cause.as_str().to_owned()),
            ejected_because: out.then(|| member.story.ejected_because.clone()).flatten(),
            last_probe_error: out.then(|| member.story.failed_probe.clone()).flatten(),
            k,
            next_probe_at: next
                .map(|at| humantime::format_rfc3339_millis(self.wall(at)).to_string()),
            next_probe_unix_s: next.map(|at| unix(self.wall(at))),
            ejected_for_s: ejected_at(view)
                .map(|(at, before)| (self.clock.now().since(at) + before).as_secs_f64()),
            times_ejected: view.times_ejected,
            remembered_k: view.memory.map(|memory| memory.k),
            in_flight: member.instance.in_flight(),
            connections: member.instance.connections(),
            attempts,
        }
    }

    /// By the ramp of a restored or a new instance.
    fn share_bp(&self, member: &Member, view: &InstanceView) -> u32 {
        let now = self.clock.now();
        let young = self.slow_start(member, now);
        view.share_bp
            .min(young.map_or(10_000, |ramp| ramp.share_bp(now)))
    }

    /// A held answer in words.
    fn held(&self, held: &Held) -> String {
        let what = match held.cause {
            HoldCause::Empty => "nothing",
            HoldCause::Shrink => "far fewer",
        };
        format!(
            "{} offers {what} ({} instead of {}) for {}, {} answers so far; the last good set stays",
            self.source.name,
            held.count,
            self.members.len(),
            report::seconds(self.clock.now().since(held.since)),
            held.answers
        )
    }

    /// The whole story, and who keeps it from being ejected.
    fn why_and_hold(&self, member: &Member, view: &InstanceView, state: &str) -> String {
        let why = self.why(member, view, state);
        if !view.held {
            return why;
        }
        let hold = self.override_words(&view.address, Lasting::Hold);
        format!("{why}; held in{hold}")
    }

    fn overrides_of(&self, address: &Address) -> Vec<OverrideStatus> {
        let mut all = self.override_statuses();
        all.retain(|o| o.instance.as_deref() == Some(address.as_str()));
        all
    }

    /// The whole story in one sentence.
    fn why(&self, member: &Member, view: &InstanceView, state: &str) -> String {
        let evidence = &view.evidence;
        let rate = format!(
            "{:.1}% errors in {} ({} of {}, {:.1} qps; threshold {}%, judged from {} calls)",
            report::percent(evidence.rate_bp),
            report::seconds(evidence.window),
            evidence.failures,
            evidence.calls,
            report::thousandths(evidence.qps_milli),
            report::percent(evidence.threshold_bp),
            evidence.sample
        );
        match (state, view.state) {
            ("disabled", _) if view.disabled => format!(
                "disabled{}",
                self.override_words(&view.address, Lasting::Disable)
            ),
            ("disabled", _) if !member.endpoint.enabled => "disabled in the registry".to_owned(),
            ("disabled", _) if member.outside => {
                "not in the subset, and subset.fallback is none".to_owned()
            }
            ("disabled", _) => "weight 0 in the registry".to_owned(),
            ("draining", _) => "draining in the registry".to_owned(),
            ("unhealthy", _) if !passes(member) => {
                let message = member.health.as_ref().map_or("", |h| h.message.as_str());
                format!("its active check fails: {message}")
            }
            ("unhealthy", _) if member.routable => {
                format!("unhealthy in the registry as all others are, so it is used: {rate}")
            }
            ("unhealthy", _) => "unhealthy in the registry".to_owned(),
            (
                _,
                StateView::Ejected {
                    at,
                    observed,
                    k,
                    next_trial,
                    trial,
                    out_before,
                    ..
                },
            ) => {
                let now = self.clock.now();
                let verb = if observed {
                    "would be ejected"
                } else {
                    "ejected"
                };
                let next = match trial {
                    Some((_, kind, _)) => format!("a probe ({}) is under way", kind.as_str()),
                    None => format!("next probe in {}", report::seconds(next_trial.since(now))),
                };
                let since = report::span(now.since(at) + out_before);
                let because = member
                    .story
                    .ejected_because
                    .as_deref()
                    .unwrap_or("not known");
                let probe = match &member.story.failed_probe {
                    Some(failed) => format!("last probe: {failed}; "),
                    None => String::new(),
                };
                format!("{verb} {since} ago: {because}; {probe}step k={k}, {next}")
            }
            (_, StateView::EjectedByOperator { at, forced, .. }) => {
                let since = report::span(self.clock.now().since(at));
                let beside = if forced { " beside the cap" } else { "" };
                let order = self.override_words(&view.address, Lasting::Eject);
                format!("ejected{beside} {since} ago{order}")
            }
            (_, StateView::In) if view.suppressed.is_some() => {
                let cause = view.suppressed.map_or("", |cause| cause.as_str());
                format!("abnormal but stays ({cause}): {rate}")
            }
            (_, StateView::In) if self.share_bp(member, view) < 10_000 => {
                let share = self.share_bp(member, view);
                let how = if view.share_bp > share {
                    "new"
                } else {
                    "returning"
                };
                let share = report::percent(share);
                format!("{how}, {share:.0}% of its traffic: {rate}")
            }
            (_, StateView::In) if evidence.slow.is_some() => {
                let slow = evidence.slow.as_ref().map(report::slow_words);
                format!("slow: {}; {rate}", slow.unwrap_or_default())
            }
            (_, StateView::In) if evidence.streak > 1 => format!(
                "{}; {} failures in a row of {} that eject",
                rate, evidence.streak, evidence.streak_limit
            ),
            (_, StateView::In) => rate,
        }
    }

    pub(super) fn wall(&self, at: Timestamp) -> SystemTime {
        let now = self.clock.now();
        let wall = clock::wall_now();
        if at >= now {
            wall + at.since(now)
        } else {
            wall - now.since(at)
        }
    }
}

fn ejected_at(view: &InstanceView) -> Option<(Timestamp, Duration)> {
    match view.state {
        StateView::Ejected { at, out_before, .. } => Some((at, out_before)),
        StateView::EjectedByOperator { at, .. } => Some((at, Duration::ZERO)),
        StateView::In => None,
    }
}

fn unix(wall: SystemTime) -> f64 {
    wall.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0.0, |d| d.as_secs_f64())
}

fn unavailable(state: &Availability) -> Option<String> {
    match state {
        Availability::Ready => None,
        Availability::Waiting => Some("the registry has not answered yet".to_owned()),
        Availability::Empty { listed: 0 } => Some("no instance is registered".to_owned()),
        Availability::Empty { listed } => Some(format!("none of {listed} instances is routable")),
        Availability::AllUnhealthy { routable } => {
            Some(format!("active checks refuse all {routable} instances"))
        }
    }
}
