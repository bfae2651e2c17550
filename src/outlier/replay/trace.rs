//! The lines of a trace: header, events, expectations.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::ReplayError;
use crate::clock::Timestamp;
use crate::endpoint::Address;
use crate::outlier::classify::OutcomeClass;
use crate::outlier::detector::{Input, Outcome, OverrideKind, RoutableEndpoint, UpstreamFacts};
use crate::outlier::policy::{ConsecutiveErrors, ExceptionType, Mode, Policy, ProbeKind, QpsScope};

/// The one version there is.
const VERSION: u64 = 2;

#[derive(Debug)]
pub(super) struct Trace {
    pub(super) policy: Arc<Policy>,
    pub(super) facts: UpstreamFacts,
    pub(super) lines: Vec<Line>,
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) text: String,
    pub(super) at: Timestamp,
    pub(super) body: Body,
}

#[derive(Debug)]
pub(super) enum Body {
    Event(Event),
    Expectation(Map<String, Value>),
}

#[derive(Debug)]
pub(super) enum Event {
    Answers {
        address: Address,
        class: Option<OutcomeClass>,
        after: Duration,
    },
    Input(Input),
    Policy {
        policy: Option<Arc<Policy>>,
        facts: Option<UpstreamFacts>,
    },
    Request {
        retryable: bool,
    },
}

impl Trace {
    pub(super) fn parse(text: &str) -> Result<Self, ReplayError> {
        let numbered = text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line.trim()));
        let mut lines = numbered.filter(|(_, line)| !line.is_empty());
        let (number, header) = lines
            .next()
            .ok_or_else(|| malformed(1, "the header is missing"))?;
        let at_header = |problem: String| malformed(number, &problem);
        let header = object(header).map_err(at_header)?;
        match header.get("version").and_then(Value::as_u64) {
            Some(VERSION) => {}
            _ => return Err(malformed(number, "the header needs \"version\": 2")),
        }
        let policy = header.get("policy").and_then(Value::as_object);
        let policy = policy.ok_or_else(|| malformed(number, "the header needs a policy"))?;
        let facts = facts_of(policy, UpstreamFacts::default()).map_err(at_header)?;
        let policy = Arc::new(policy_of(policy).map_err(at_header)?);
        let mut reader = Reader {
            facts,
            deaths: HashMap::new(),
        };
        let lines = lines
            .map(|(number, text)| reader.line(number, text).map_err(|p| malformed(number, &p)))
            .collect::<Result<Vec<Line>, ReplayError>>()?;
        Ok(Self {
            policy,
            facts,
            lines,
        })
    }
}

fn malformed(line: usize, problem: &str) -> ReplayError {
    ReplayError::Malformed {
        line,
        problem: problem.to_owned(),
    }
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("no JSON object: {error}"))
}

struct Reader {
    facts: UpstreamFacts,
    /// Connections are named in traces and numbered in the detector.
    deaths: HashMap<String, u64>,
}

impl Reader {
    fn line(&mut self, number: usize, text: &str) -> Result<Line, String> {
        let fields = object(text)?;
        let at = time(&fields, "t")?;
        let body = match (
            fields.get("event").and_then(Value::as_str),
            fields.get("expect"),
        ) {
            (Some(name), None) => Body::Event(self.event(name, &fields)?),
            (None, Some(_)) => Body::Expectation(fields),
            (Some(_), Some(_)) | (None, None) => {
                return Err("a line is either an event or an expectation".to_owned());
            }
        };
        Ok(Line {
            number,
            text: text.to_owned(),
            at,
            body,
        })
    }

    fn event(&mut self, name: &str, fields: &Map<String, Value>) -> Result<Event, String> {
        let input = match name {
            "answers" => {
                let class = match text(fields, "class")? {
                    "silent" => None,
                    class => Some(class_of(class)?),
                };
                let after = fields.get("after").and_then(Value::as_u64).unwrap_or(1);
                let after = Duration::from_millis(after);
                return Ok(Event::Answers {
                    address: address(fields)?,
                    class,
                    after,
                });
            }
            "policy" => return self.policy(fields),
            "request" => {
                return Ok(Event::Request {
                    retryable: flag(fields, "retryable", true)?,
                });
            }
            "check" => Input::Check {
                address: address(fields)?,
                passing: flag(fields, "passing", true)?,
            },
            "endpoints" => {
                let list = fields.get("list").and_then(Value::as_array);
                let list = list.ok_or("`list` is missing")?;
                Input::Endpoints(list.iter().map(endpoint).collect::<Result<_, _>>()?)
            }
            "hint" => Input::Hint {
                address: address(fields)?,
            },
            "outcome" => Input::Outcome(self.outcome(fields)?),
            "override" => Input::Override {
                address: address(fields)?,
                kind: override_of(text(fields, "kind")?)?,
                ttl: fields
                    .get("ttl")
                    .and_then(Value::as_u64)
                    .map(Duration::from_millis),
                force: flag(fields, "force", false)?,
            },
            "tick" => Input::Tick,
            other => return Err(format!("unknown event `{other}`")),
        };
        Ok(Event::Input(input))
    }

    fn outcome(&mut self, fields: &Map<String, Value>) -> Result<Outcome, String> {
        let sent_at = match fields.get("sent_at") {
            None | Some(Value::Null) => time(fields, "t")?,
            Some(_) => time(fields, "sent_at")?,
        };
        let class = class_of(text(fields, "class")?)?;
        let mut outcome = Outcome::new(address(fields)?, class, sent_at);
        outcome.own_timeout = flag(fields, "own_timeout", false)?;
        outcome.death = match fields.get("death") {
            None | Some(Value::Null) => None,
            Some(name) => {
                let next = u64::try_from(self.deaths.len()).unwrap_or(u64::MAX);
                Some(*self.deaths.entry(name.to_string()).or_insert(next))
            }
        };
        Ok(outcome)
    }

    fn policy(&mut self, fields: &Map<String, Value>) -> Result<Event, String> {
        match fields.get("policy") {
            None | Some(Value::Null) => Ok(Event::Policy {
                policy: None,
                facts: None,
            }),
            Some(policy) => {
                let policy = policy.as_object().ok_or("`policy` is no object")?;
                self.facts = facts_of(policy, self.facts)?;
                let policy = Arc::new(policy_of(policy)?);
                Ok(Event::Policy {
                    policy: Some(policy),
                    facts: Some(self.facts),
                })
            }
        }
    }
}

fn endpoint(value: &Value) -> Result<RoutableEndpoint, String> {
    let fields = value.as_object().ok_or("an endpoint is no object")?;
    let address = Address::parse(text(fields, "address")?).map_err(|error| error.to_string())?;
    let weight = match fields.get("weight") {
        None | Some(Value::Null) => 1.0,
        Some(weight) => weight.as_f64().ok_or("`weight` is no number")?,
    };
    let routable = weight > 0.0
        && flag(fields, "healthy", true)?
        && flag(fields, "enabled", true)?
        && !flag(fields, "draining", false)?;
    let incarnation = match fields.get("incarnation") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(Arc::from(text.as_str())),
        Some(other) => Some(Arc::from(other.to_string())),
    };
    Ok(RoutableEndpoint {
        address,
        routable,
        incarnation,
    })
}

/// The policy of a header or of a reload; a field that is left out has its default.
fn policy_of(fields: &Map<String, Value>) -> Result<Policy, String> {
    let mut policy = Policy::builtin(false);
    if let Some(name) = fields.get("name").and_then(Value::as_str) {
        policy.name = name.into();
        policy.origin = "trace".into();
    }
    if let Some(key) = fields.get("incarnation_key").and_then(Value::as_str) {
        policy.incarnation_key = key.into();
    }
    policy.mode = choice(fields, "mode", policy.mode, |text| match text {
        "enforce" => Some(Mode::Enforce),
        "observe" => Some(Mode::Observe),
        "disabled" => Some(Mode::Disabled),
        _ => None,
    })?;
    policy.exception_type =
        choice(
            fields,
            "exception_type",
            policy.exception_type,
            |text| match text {
                "network" => Some(ExceptionType::Network),
                "network_and_business" => Some(ExceptionType::NetworkAndBusiness),
                _ => None,
            },
        )?;
    policy.qps_scope = choice(fields, "qps_scope", policy.qps_scope, |text| match text {
        "instance" => Some(QpsScope::Instance),
        "service" => Some(QpsScope::Service),
        _ => None,
    })?;
    policy.probe = choice(fields, "probe", policy.probe, |text| match text {
        "request" => Some(ProbeKind::Request),
        "active" => Some(ProbeKind::Active),
        "auto" => Some(ProbeKind::Auto),
        _ => None,
    })?;
    small(
        fields,
        "error_rate_threshold_bp",
        &mut policy.error_rate_threshold_bp,
    )?;
    let rate = &mut policy.instance_removal_rate_threshold_bp;
    small(fields, "instance_removal_rate_threshold_bp", rate)?;
    small(fields, "min_ejectable", &mut policy.min_ejectable)?;
    small(
        fields,
        "max_recovery_checks",
        &mut policy.max_recovery_checks,
    )?;
    small(fields, "trials_to_restore", &mut policy.trials_to_restore)?;
    small(fields, "flap_memory", &mut policy.flap_memory)?;
    if let Some(limit) = number(fields, "lower_qps_limit_milli")? {
        policy.lower_qps_limit_milli = limit;
    }
    span(
        fields,
        "statistics_window_ms",
        &mut policy.statistics_window,
    )?;
    let unit = &mut policy.recovery_detection_unit_time;
    span(fields, "recovery_detection_unit_time_ms", unit)?;
    span(fields, "ramp_ms", &mut policy.ramp)?;
    policy.consecutive_errors = match fields.get("consecutive_errors") {
        None | Some(Value::Null) => policy.consecutive_errors,
        Some(Value::String(text)) if text == "auto" => ConsecutiveErrors::Auto,
        Some(value) => match value.as_u64().map(u32::try_from) {
            Some(Ok(0)) => ConsecutiveErrors::Off,
            Some(Ok(count)) => ConsecutiveErrors::Count(count),
            Some(Err(_)) | None => return Err("`consecutive_errors` is no count".to_owned()),
        },
    };
    Ok(policy)
}

/// What belongs to the upstream and stands among the fields of the policy.
fn facts_of(fields: &Map<String, Value>, before: UpstreamFacts) -> Result<UpstreamFacts, String> {
    let mut facts = before;
    facts.health_check = flag(fields, "health_check", facts.health_check)?;
    facts.tcp_check = flag(fields, "tcp_check", facts.tcp_check)?;
    span(fields, "timeout_connect_ms", &mut facts.timeout_connect)?;
    span(fields, "check_timeout_ms", &mut facts.check_timeout)?;
    facts.timeout_attempt = match fields.get("timeout_attempt_ms") {
        None => facts.timeout_attempt,
        Some(Value::Null | Value::String(_)) => None,
        Some(_) => number(fields, "timeout_attempt_ms")?.map(Duration::from_millis),
    };
    Ok(facts)
}

fn class_of(text: &str) -> Result<OutcomeClass, String> {
    match text {
        "success" => Ok(OutcomeClass::Success),
        "network_error" => Ok(OutcomeClass::NetworkError),
        "business_error" => Ok(OutcomeClass::BusinessError),
        "ignored" => Ok(OutcomeClass::Ignored),
        other => Err(format!("unknown class `{other}`")),
    }
}

fn override_of(text: &str) -> Result<OverrideKind, String> {
    match text {
        "eject" => Ok(OverrideKind::Eject),
        "restore" => Ok(OverrideKind::Restore),
        "hold" => Ok(OverrideKind::Hold),
        "disable" => Ok(OverrideKind::Disable),
        "enable" => Ok(OverrideKind::Enable),
        "clear" => Ok(OverrideKind::Clear),
        other => Err(format!("unknown override `{other}`")),
    }
}

fn address(fields: &Map<String, Value>) -> Result<Address, String> {
    Address::parse(text(fields, "instance")?).map_err(|error| error.to_string())
}

fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<&'a str, String> {
    fields
        .get(name)
        .and_then(Value::as_str)
        .ok_or_else(|| format!("`{name}` is missing"))
}

fn time(fields: &Map<String, Value>, name: &str) -> Result<Timestamp, String> {
    let value = fields
        .get(name)
        .ok_or_else(|| format!("`{name}` is missing"))?;
    match (value.as_u64(), value.as_i64()) {
        (Some(millis), _) => Ok(Timestamp::from_millis(millis)),
        // Sent before the trace began.
        (None, Some(_)) => Ok(Timestamp::ZERO),
        (None, None) => Err(format!("`{name}` is no integer")),
    }
}

fn flag(fields: &Map<String, Value>, name: &str, default: bool) -> Result<bool, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => value
            .as_bool()
            .ok_or_else(|| format!("`{name}` is no boolean")),
    }
}

fn number(fields: &Map<String, Value>, name: &str) -> Result<Option<u64>, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value
            .as_u64()
            .map(Some)
            .ok_or_else(|| format!("`{name}` is no whole number")),
    }
}

fn small(fields: &Map<String, Value>, name: &str, into: &mut u32) -> Result<(), String> {
    if let Some(value) = number(fields, name)? {
        *into = u32::try_from(value).map_err(|_| format!("`{name}` is too large"))?;
    }
    Ok(())
}

fn span(fields: &Map<String, Value>, name: &str, into: &mut Duration) -> Result<(), String> {
    if let Some(millis) = number(fields, name)? {
        *into = Duration::from_millis(millis);
    }
    Ok(())
}

fn choice<T>(
    fields: &Map<String, Value>,
    name: &str,
    default: T,
    known: impl Fn(&str) -> Option<T>,
) -> Result<T, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => value
            .as_str()
            .and_then(known)
            .ok_or_else(|| format!("`{name}` is not known: {value}")),
    }
}
