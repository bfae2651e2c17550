//! Keys that are written and can have no effect, because of another key or for want of one. A key of
//! `defaults` or of a service is told of only when it has none for whatever takes it over, and none is
//! that only says what holds anyway.

use std::time::Duration;

use super::{Places, items};
use crate::config::diagnostic::{Code, Place};
use crate::config::document::{Node, Value};
use crate::config::parse::value::show;
use crate::config::types::{
    AttemptTimeout, BreakerMode, CircuitBreaker, Config, Fallback, FallbackKind, HedgeAfter,
    Protocol, Retry, Service, WhenAllUnhealthy,
};

/// A key, as a path below the service, and why it has no effect if it has none.
struct Finding {
    key: &'static str,
    idle: Option<Why>,
}

/// The rule of items of `fallback`; those of keys are numbered from 0.
const FALLBACK: usize = usize::MAX;

/// What is told: why, and what would be right.
type Why = (String, &'static str);

/// A key that is written.
struct Written {
    place: Place,
    rule: usize,
    path: String,
    /// `None` once somebody makes use of it.
    idle: Option<Why>,
}

/// A map that may hold a key: its path and the node; the nearest comes first.
type Level<'n> = (String, Option<&'n Node>);

/// Reports them.
pub(super) fn check(config: &Config, places: &Places<'_, '_>) {
    let mut all: Vec<Written> = Vec::new();
    let defaults: Level<'_> = ("defaults".to_owned(), places.root.get("defaults"));
    look(&config.defaults, &[&defaults], &mut all);
    for (name, field) in places.services {
        let Some(service) = config.services.get(name) else {
            continue;
        };
        let own: Level<'_> = (format!("services.{name}"), Some(field.node));
        look(service, &[&own, &defaults], &mut all);
        for (n, node) in items(field.node, "routes").iter().enumerate() {
            let name = node.get("name").and_then(text);
            let mut rules = service.rules.iter();
            let rule = rules.find(|rule| Some(&*rule.name) == name);
            if let Some(rule) = rule {
                let route: Level<'_> =
                    (format!("services.{}.routes[{n}]", service.name), Some(node));
                look(&rule.service, &[&route, &own, &defaults], &mut all);
            }
        }
    }
    for written in all {
        if let Some((why, help)) = written.idle {
            let message = format!("`{}` has no effect: {why}", written.path);
            let context = places.context;
            context.report(Code::NO_EFFECT, &written.place, message, help);
        }
    }
}

fn look(service: &Service, levels: &[&Level<'_>], all: &mut Vec<Written>) {
    let is_written = |key: &str| levels.iter().any(|(_, node)| node_at(*node, key).is_some());
    for (rule, Finding { key, idle }) in findings(service, is_written).into_iter().enumerate() {
        let holders = levels.iter();
        for (path, node) in holders.filter_map(|(path, node)| Some((path, node_at(*node, key)?))) {
            note(all, node, rule, format!("{path}.{key}"), idle.clone());
            // A map may be in use on every level; what is idle is told of where it is written last.
            if idle.is_some() || !matches!(node.value, Value::Mapping(_)) {
                break;
            }
        }
    }
    let mut lists = levels.iter();
    let list = lists.find_map(|(path, node)| Some((path, node_at(*node, "fallback")?)));
    let Some((path, Value::Sequence(nodes))) = list.map(|(path, node)| (path, &node.value)) else {
        return;
    };
    // Else some could not be read, which is told already.
    if nodes.len() == service.fallback.len() {
        for (n, node) in nodes.iter().enumerate() {
            let path = format!("{path}.fallback[{n}]");
            let idle = behind_an_answer(&service.fallback, n);
            note(all, node, FALLBACK, path, idle);
        }
    }
}

fn note(all: &mut Vec<Written>, node: &Node, rule: usize, path: String, idle: Option<Why>) {
    let is_same = |known: &&mut Written| known.place == node.place && known.rule == rule;
    match all.iter_mut().find(is_same) {
        Some(known) if idle.is_none() => known.idle = None,
        Some(_) => {}
        None => all.push(Written {
            place: node.place.clone(),
            rule,
            path,
            idle,
        }),
    }
}

/// `key`: dotted.
fn node_at<'n>(node: Option<&'n Node>, key: &str) -> Option<&'n Node> {
    key.split('.').try_fold(node?, |node, key| node.get(key))
}

fn text(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Scalar(scalar) => Some(&scalar.text),
        Value::Null | Value::Sequence(_) | Value::Mapping(_) => None,
    }
}

fn findings(service: &Service, is_written: impl Fn(&str) -> bool) -> Vec<Finding> {
    let (retry, usual) = (&service.retry, Retry::builtin());
    let once = retry.max_attempts < 2;
    let nothing_again = |other: bool| {
        let why = "`retry.max_attempts` is 1, so nothing is tried again".to_owned();
        (once && other).then_some((why, "write `retry.max_attempts: 2` or more"))
    };
    let budget = |retry: &Retry| (retry.budget_percent, retry.budget_min_per_second);
    let no_backoff = |other: bool| no_backoff(retry).filter(|_| other);
    let finding = |key, idle| Finding { key, idle };
    vec![
        finding("bulkhead.max_wait_duration", wait_without_queue(service)),
        finding("bulkhead.max_queue", queue_without_wait(service)),
        finding("circuit_breaker", breaker_without_mode(service, is_written)),
        finding(
            "circuit_breaker.slow_call_rate_threshold",
            never_slow(service),
        ),
        finding("hedge", once.then(hedge_without_attempt)),
        finding("hedge.after", hedge_after_the_end(service)),
        finding(
            "retry.retry_on",
            nothing_again(retry.retry_on != usual.retry_on),
        ),
        finding("retry.retry_on", grpc_words_alone(retry, &usual)),
        finding(
            "retry.budget",
            nothing_again(budget(retry) != budget(&usual)),
        ),
        finding(
            "retry.backoff.base",
            no_backoff(retry.backoff_base != usual.backoff_base),
        ),
        finding("retry.backoff.base", base_above_max(retry, &usual)),
        finding(
            "retry.backoff.max",
            no_backoff(retry.backoff_max != usual.backoff_max),
        ),
        finding("when_all_unhealthy", refuse_without_check(service)),
    ]
}

fn wait_without_queue(service: &Service) -> Option<Why> {
    let bulkhead = &service.bulkhead;
    let idle = bulkhead.max_queue == 0 && !bulkhead.max_wait_duration.is_zero();
    idle.then(|| {
        let why = "no request may wait (`bulkhead.max_queue` is 0)".to_owned();
        (why, "write `max_queue` beside it, say `max_queue: 100`")
    })
}

fn queue_without_wait(service: &Service) -> Option<Why> {
    let bulkhead = &service.bulkhead;
    let idle = bulkhead.max_queue > 0 && bulkhead.max_wait_duration.is_zero();
    idle.then(|| {
        let why = "who waits is refused at once (`bulkhead.max_wait_duration` is 0)".to_owned();
        let help = "write `max_wait_duration` beside it, say `max_wait_duration: 500ms`";
        (why, help)
    })
}

fn breaker_without_mode(service: &Service, is_written: impl Fn(&str) -> bool) -> Option<Why> {
    let breaker = &service.circuit_breaker;
    let off = breaker.mode == BreakerMode::Disabled && *breaker != CircuitBreaker::builtin();
    // One that is written says so on purpose.
    (off && !is_written("circuit_breaker.mode")).then(|| {
        let why = "its `mode` is `disabled` unless it is written".to_owned();
        let help = "write `mode: enforce`, or `mode: observe` to see first what it would do";
        (why, help)
    })
}

fn never_slow(service: &Service) -> Option<Why> {
    let breaker = &service.circuit_breaker;
    let (limit, key) = longest_call(service, service.protocol == Protocol::Grpc)?;
    let asked = breaker.slow_call_rate_bp != CircuitBreaker::builtin().slow_call_rate_bp;
    let on = breaker.mode != BreakerMode::Disabled;
    let idle = on && asked && breaker.slow_call_duration >= limit;
    idle.then(|| {
        let why = format!(
            "a call is slow after {} (`slow_call_duration`) and ended after {} (`{key}`)",
            show(breaker.slow_call_duration),
            show(limit)
        );
        (why, "write a shorter `slow_call_duration`")
    })
}

fn hedge_without_attempt() -> Why {
    let why = "`retry.max_attempts` is 1, and the second attempt counts for it".to_owned();
    let help = "write `retry.max_attempts: 2` or more, or `hedge: none`";
    (why, help)
}

fn hedge_after_the_end(service: &Service) -> Option<Why> {
    let hedge = service.hedge.as_deref()?;
    let HedgeAfter::Time(after) = hedge.after else {
        return None;
    };
    let grpc = hedge.methods.grpc || hedge.methods.all;
    let (limit, key) = longest_call(service, grpc)?;
    (after >= limit).then(|| {
        let why = format!("an attempt is ended after {} (`{key}`)", show(limit));
        (why, "make it shorter")
    })
}

/// The longest that an attempt may take, as far as a written limit or that of the request says.
/// `grpc`: it may be a gRPC call, which a limit that is not written does not end.
fn longest_call(service: &Service, grpc: bool) -> Option<(Duration, &'static str)> {
    let timeout = &service.timeout;
    let attempt = match timeout.attempt {
        AttemptTimeout::After(limit) => Some((limit, "timeout.attempt")),
        AttemptTimeout::Auto | AttemptTimeout::Unlimited => None,
    };
    let request = timeout
        .request
        .filter(|_| timeout.request_explicit || !grpc);
    let request = request.map(|limit| (limit, "timeout.request"));
    attempt.into_iter().chain(request).min()
}

fn grpc_words_alone(retry: &Retry, usual: &Retry) -> Option<Why> {
    let (on, methods) = (&retry.retry_on, &retry.methods);
    let listed = on.grpc_unavailable || on.grpc_deadline_exceeded || on.grpc_resource_exhausted;
    let idle = listed && !methods.grpc && !methods.all && *on != usual.retry_on;
    (idle && retry.max_attempts > 1).then(|| {
        let why = "its `grpc_*` words need `grpc` or `all` in `retry.methods`".to_owned();
        (
            why,
            "write `methods: [idempotent, grpc]`, or leave the words out",
        )
    })
}

fn no_backoff(retry: &Retry) -> Option<Why> {
    (retry.max_attempts <= 2).then(|| {
        let why = format!(
            "the first retry waits for nothing, and `retry.max_attempts` is {}",
            retry.max_attempts
        );
        (why, "write `retry.max_attempts: 3` or more")
    })
}

fn base_above_max(retry: &Retry, usual: &Retry) -> Option<Why> {
    let (base, max) = (retry.backoff_base, retry.backoff_max);
    let asked = base != usual.backoff_base || max != usual.backoff_max;
    (asked && retry.max_attempts > 2 && base > max).then(|| {
        let why = format!(
            "no wait is longer than `retry.backoff.max`, which is {}",
            show(max)
        );
        (why, "write a longer `max`, or a shorter `base`")
    })
}

fn refuse_without_check(service: &Service) -> Option<Why> {
    let refuse = service.when_all_unhealthy == WhenAllUnhealthy::Refuse;
    (refuse && service.health_check.is_none()).then(|| {
        let why = "without `health_check` nobody is unhealthy".to_owned();
        (why, "write a `health_check`")
    })
}

/// Whether an item before number `n` answers always where this one would be asked.
fn behind_an_answer(list: &[Fallback], n: usize) -> Option<Why> {
    let item = list.get(n)?;
    let plain = matches!(item.kind, FallbackKind::Cache(_));
    let first = list.iter().take(n).position(|before| {
        let FallbackKind::Static(answer) = &before.kind else {
            return false;
        };
        // A cache has nothing for gRPC.
        let always = answer.http.is_some() && (plain || answer.grpc.is_some());
        always && before.conditions.covers(item.conditions)
    })?;
    let why = format!("item {first} of the list is a static answer, which there always is");
    Some((
        why,
        "put the static answer last, or give it fewer `conditions`",
    ))
}
