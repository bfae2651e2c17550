//! `timeout`, `retry` and `pool` of a service. What is not written comes from `base`.

use std::time::Duration;

use super::reader::{Field, Map};
use super::record::{Declared, Shape};
use super::value::{Span, duration, show, words};
use crate::config::diagnostic::Code;
use crate::config::types::{AttemptTimeout, Pool, Retry, RetryMethods, RetryOn, Timeouts};

/// `timeout`.
pub(crate) fn timeouts(map: Map<'_>, base: &Timeouts) -> Timeouts {
    map.declare("attempt", || {
        let time = Shape::Duration(Span::ZERO_OR_MORE);
        Shape::word("auto").or(time).default(match base.attempt {
            AttemptTimeout::Auto => "auto".to_owned(),
            AttemptTimeout::After(time) => show(time),
            AttemptTimeout::Unlimited => show(Duration::ZERO),
        })
    });
    map.declare("request", || limit_shape(base.request));
    let attempt_field = map.field("attempt");
    let request_field = map.field("request");
    let attempt = attempt_field.as_ref().and_then(|field| {
        if field.text()? == "auto" {
            return Some(AttemptTimeout::Auto);
        }
        let value = field.convert(Code::DURATION, |text| duration(text, Span::ZERO_OR_MORE))?;
        Some(if value.is_zero() {
            AttemptTimeout::Unlimited
        } else {
            AttemptTimeout::After(value)
        })
    });
    let (request, request_written) = limit(&map, "request", base.request);
    let (idle, idle_written) = limit(&map, "idle", base.idle);
    let timeouts = Timeouts {
        connect: map.duration("connect", base.connect, Span::POSITIVE),
        attempt: attempt.unwrap_or(base.attempt),
        request,
        request_explicit: base.request_explicit || request_written,
        idle,
        idle_explicit: base.idle_explicit || idle_written,
    };
    if let (AttemptTimeout::After(attempt), Some(request)) = (timeouts.attempt, timeouts.request)
        && attempt > request
        && let Some(field) = attempt_field.or(request_field)
    {
        let message = format!(
            "`{}`: an attempt may take {}, longer than the request ({})",
            map.path,
            show(attempt),
            show(request)
        );
        let help = "the attempt limit never acts; make it shorter, or write `attempt: auto`";
        field.report(Code::ATTEMPT_EXCEEDS_REQUEST, message, help);
    }
    map.finish();
    timeouts
}

/// A limit where zero means none, and whether it is written.
fn limit(map: &Map<'_>, key: &'static str, base: Option<Duration>) -> (Option<Duration>, bool) {
    map.declare(key, || limit_shape(base));
    let written = map.field(key).is_some();
    let value = map.duration(key, base.unwrap_or_default(), Span::ZERO_OR_MORE);
    (Some(value).filter(|value| !value.is_zero()), written)
}

fn limit_shape(base: Option<Duration>) -> Declared {
    Shape::Duration(Span::ZERO_OR_MORE).default(show(base.unwrap_or_default()))
}

/// `retry`.
pub(crate) fn retry(map: Map<'_>, base: &Retry) -> Retry {
    let backoff = map.child("backoff");
    let (base_delay, max, jitter) = (
        backoff.duration("base", base.backoff_base, Span::ZERO_OR_MORE),
        backoff.duration("max", base.backoff_max, Span::ZERO_OR_MORE),
        backoff.duration("jitter", base.backoff_jitter, Span::ZERO_OR_MORE),
    );
    backoff.finish();
    let budget = map.child("budget");
    let percent = budget.whole_percent("percent", base.budget_percent);
    let min = budget.integer(
        "min_per_second",
        base.budget_min_per_second,
        &(0..=1_000_000),
    );
    budget.finish();
    map.declare("retry_on", || {
        let all = RETRY_ON.iter().filter(|word| word.is_in(&base.retry_on));
        let all: Vec<&str> = all.map(|word| word.name).collect();
        let names = RETRY_ON.iter().map(|word| (word.name, ()));
        words(&names.collect::<Vec<_>>()).list().default(all)
    });
    map.declare("methods", || {
        METHOD.list().default(method_words(&base.methods))
    });
    let retry = Retry {
        max_attempts: map.integer("max_attempts", base.max_attempts, &(1..=100)),
        retry_on: map
            .field("retry_on")
            .and_then(|f| retry_on(&f))
            .unwrap_or(base.retry_on),
        methods: map
            .field("methods")
            .and_then(|f| methods(&f))
            .unwrap_or_else(|| base.methods.clone()),
        max_body: map.size("max_body", base.max_body, &(0..=64 * 1024 * 1024)),
        backoff_base: base_delay,
        backoff_max: max,
        backoff_jitter: jitter,
        budget_percent: percent,
        budget_min_per_second: min,
    };
    map.finish();
    retry
}

/// One bit per status from 500 to 599.
const ALL_5XX: u128 = (1 << 100) - 1;

/// One word of `retry_on`.
struct Word {
    name: &'static str,
    add: fn(&mut RetryOn),
}

impl Word {
    const fn new(name: &'static str, add: fn(&mut RetryOn)) -> Self {
        Self { name, add }
    }

    /// Whether adding it would change nothing.
    fn is_in(&self, set: &RetryOn) -> bool {
        let mut with = *set;
        (self.add)(&mut with);
        with == *set
    }
}

const RETRY_ON: &[Word] = &[
    Word::new("connect_failure", |s| s.connect_failure = true),
    Word::new("refused_stream", |s| s.refused_stream = true),
    Word::new("reset", |s| s.reset = true),
    Word::new("attempt_timeout", |s| s.attempt_timeout = true),
    Word::new("http_500", |s| s.http_5xx |= 1),
    Word::new("http_502", |s| s.http_5xx |= 1 << 2),
    Word::new("http_503", |s| s.http_5xx |= 1 << 3),
    Word::new("http_504", |s| s.http_5xx |= 1 << 4),
    Word::new("http_5xx", |s| s.http_5xx = ALL_5XX),
    Word::new("grpc_unavailable", |s| s.grpc_unavailable = true),
    Word::new("grpc_deadline_exceeded", |s| {
        s.grpc_deadline_exceeded = true;
    }),
    Word::new("grpc_resource_exhausted", |s| {
        s.grpc_resource_exhausted = true;
    }),
];

fn retry_on(field: &Field<'_>) -> Option<RetryOn> {
    let words: Vec<_> = RETRY_ON.iter().map(|word| (word.name, word.add)).collect();
    let mut set = RetryOn::default();
    for item in field.items()? {
        if let Some(add) = item.word(&words, &[]) {
            add(&mut set);
        }
    }
    Some(set)
}

/// `idempotent`, `grpc`, `all` or a method in capitals.
pub(super) const METHOD: Shape = Shape::Pattern("^(idempotent|grpc|all|[A-Z!#$%&'*+.^_`|~0-9-]+)$");

pub(super) fn method_words(methods: &RetryMethods) -> Vec<String> {
    let sets = [
        ("idempotent", methods.idempotent),
        ("grpc", methods.grpc),
        ("all", methods.all),
    ];
    let sets = sets.into_iter().filter(|(_, there)| *there);
    let named = methods.named.iter().map(ToString::to_string);
    sets.map(|(word, _)| word.to_owned()).chain(named).collect()
}

pub(super) fn methods(field: &Field<'_>) -> Option<RetryMethods> {
    let mut methods = RetryMethods::default();
    for item in field.items()? {
        match item.text() {
            Some("idempotent") => methods.idempotent = true,
            Some("grpc") => methods.grpc = true,
            Some("all") => methods.all = true,
            Some(text) => methods.named.extend(method(&item, text)),
            None => {}
        }
    }
    Some(methods)
}

fn method(item: &Field<'_>, text: &str) -> Option<http::Method> {
    let upper = text.to_ascii_uppercase();
    if upper == text
        && let Ok(method) = http::Method::from_bytes(text.as_bytes())
    {
        return Some(method);
    }
    let known = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH",
    ];
    let help = if known.contains(&upper.as_str()) {
        format!("write `{upper}`")
    } else {
        "one of `idempotent`, `grpc`, `all`, or a method in capitals such as `POST`".to_owned()
    };
    item.wrong(
        Code::UNKNOWN_VALUE,
        &format!("unknown method `{text}`"),
        help,
    );
    None
}

/// `pool`.
pub(crate) fn pool(map: Map<'_>, base: &Pool) -> Pool {
    let connections = &(1..=1_000_000);
    let pool = Pool {
        max_connections_per_instance: map.integer(
            "max_connections_per_instance",
            base.max_connections_per_instance,
            connections,
        ),
        max_idle_per_instance: map.integer(
            "max_idle_per_instance",
            base.max_idle_per_instance,
            &(0..=1_000_000),
        ),
        idle_timeout: map.duration("idle_timeout", base.idle_timeout, Span::POSITIVE),
        max_age: map.duration("max_age", base.max_age, Span::ZERO_OR_MORE),
        max_wait: map.duration("max_wait", base.max_wait, Span::ZERO_OR_MORE),
    };
    map.finish();
    pool
}

impl Timeouts {
    /// What holds where nothing is written.
    pub(crate) fn builtin() -> Self {
        Self {
            connect: Duration::from_secs(3),
            attempt: AttemptTimeout::Auto,
            request: Some(Duration::from_secs(60)),
            request_explicit: false,
            idle: Some(Duration::from_secs(60)),
            idle_explicit: false,
        }
    }
}

impl Retry {
    /// What holds where nothing is written.
    pub(crate) fn builtin() -> Self {
        Self {
            max_attempts: 2,
            retry_on: RetryOn {
                connect_failure: true,
                refused_stream: true,
                reset: true,
                attempt_timeout: true,
                http_5xx: 1 << 2 | 1 << 3,
                grpc_unavailable: true,
                ..RetryOn::default()
            },
            methods: RetryMethods {
                idempotent: true,
                ..RetryMethods::default()
            },
            max_body: 64 * 1024,
            backoff_base: Duration::from_millis(25),
            backoff_max: Duration::from_millis(250),
            backoff_jitter: Duration::from_millis(25),
            budget_percent: 20,
            budget_min_per_second: 10,
        }
    }
}

impl Pool {
    /// What holds where nothing is written.
    pub(crate) fn builtin() -> Self {
        Self {
            max_connections_per_instance: 1024,
            max_idle_per_instance: 32,
            idle_timeout: Duration::from_secs(60),
            max_age: Duration::from_secs(600),
            max_wait: Duration::from_secs(1),
        }
    }
}
