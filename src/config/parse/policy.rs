//! Policy files: EDAS's outlier ejection policies. The table of fields, defaults and ranges is
//! section 1 of the ejection specification; defaults come from [`Policy::builtin`].

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::code_set::{DUBBO, GRPC, HTTP};
use super::main_file::version;
use super::reader::{Context, Field, Map};
use super::record::Shape;
use super::value::{DAY, Span, Wrong, fixed, integer, show, words};
use crate::config::diagnostic::{Code, Place};
use crate::config::document::{self, Node};
use crate::config::environment::Overrides;
use crate::config::settings::{Setting, policy_settings};
use crate::config::types::{PolicyEntry, PolicyProtocol};
use crate::outlier::policy::{
    BusinessErrors, ConsecutiveErrors, ExceptionType, Mode, Policy, ProbeKind, QpsScope, Scope,
    Slow, SlowMode,
};

/// The policies of one file with the places of their names. `shown` is the file as `origin` tells it.
pub(crate) fn policy_file(
    context: &Context<'_>,
    root: &Node,
    file: &Path,
    shown: &str,
) -> Vec<(PolicyEntry, Place)> {
    let map = Map::root(context, root, false);
    version(&map);
    map.declare("policies", || Shape::Map.list().required());
    let items = map
        .field("policies")
        .map(|field| field.items().unwrap_or_default());
    if items.is_none() {
        let message = "the file has no `policies`";
        context.report(
            Code::MISSING,
            &map.place,
            message,
            "write `policies:` and a list of them",
        );
    }
    let entries = items.unwrap_or_default();
    let entries: Vec<_> = entries
        .iter()
        .filter_map(|item| {
            let (entry, place) = entry(item, file, shown)?;
            Some((entry, place, item.path.clone()))
        })
        .collect();
    map.finish();
    let mut settings = policy_settings(context.records());
    let entries = entries.into_iter().map(|(mut entry, place, item)| {
        entry.settings = settings.remove(&item).unwrap_or_default().into();
        (entry, place)
    });
    entries.collect()
}

fn entry(item: &Field<'_>, file: &Path, shown: &str) -> Option<(PolicyEntry, Place)> {
    let map = item.map();
    map.declare("name", || {
        Shape::Pattern("^[A-Za-z0-9_-]{1,64}$").required()
    });
    let name_field = map.field("name");
    if name_field.is_none() && item.scalar().is_none() {
        let message = format!("`{}` has no `name`", item.path);
        item.report(
            Code::MISSING,
            message,
            "write `name:`, unique over all policy files",
        );
    }
    let name = name_field
        .as_ref()
        .and_then(|field| field.convert(Code::NAME, name));
    let place = name_field.map_or_else(|| item.key.clone(), |field| field.node.place.clone());
    let line = item.node.place.start.0;
    let apply_to = map.child("apply_to");
    let globs = |key| globs(&apply_to, key);
    let (consumers, upstreams, namespaces) =
        (globs("consumers"), globs("upstreams"), globs("namespaces"));
    let protocols = protocols(&apply_to);
    apply_to.finish();
    map.declare("statistics_window", || {
        let default = show(Policy::builtin(false).statistics_window);
        Shape::Duration(WINDOW).default(default)
    });
    let window_explicit = map.field("statistics_window").is_some();
    let policy = policy(&map, name, Arc::from(format!("{shown}:{line}")));
    map.finish();
    let entry = PolicyEntry {
        policy: Arc::new(policy?),
        file: file.to_owned(),
        window_explicit,
        consumers,
        upstreams,
        namespaces,
        protocols,
        settings: Arc::default(),
    };
    Some((entry, place))
}

/// The fields of the built-in policy.
pub(crate) fn builtin_settings() -> Vec<Setting> {
    let (root, _) = document::parse(b"policies: [{name: builtin}]", "");
    let overrides = Overrides::default();
    let context = Context::recording(&overrides, Path::new(""));
    policy_file(&context, &root, Path::new(""), "");
    let mut all = policy_settings(context.records());
    let mut settings = all.remove("policies[0]").unwrap_or_default();
    settings.retain(|setting| setting.key != "name");
    settings
}

const WINDOW: Span = Span::between(Duration::from_secs(1), Duration::from_secs(300));

fn policy(map: &Map<'_>, name: Option<Arc<str>>, origin: Arc<str>) -> Option<Policy> {
    let base = Policy::builtin(false);
    let unit = Span::between(Duration::from_millis(1), DAY);
    let at_least_one = &(1..=1_000_000);
    let any = &(0..=1_000_000);
    let modes = [
        ("enforce", Mode::Enforce),
        ("observe", Mode::Observe),
        ("disabled", Mode::Disabled),
    ];
    let types = [
        ("network", ExceptionType::Network),
        ("network_and_business", ExceptionType::NetworkAndBusiness),
    ];
    let judged = [("upstream", Scope::Upstream), ("route", Scope::Route)];
    let scopes = [
        ("instance", QpsScope::Instance),
        ("service", QpsScope::Service),
    ];
    let probes = [
        ("request", ProbeKind::Request),
        ("active", ProbeKind::Active),
        ("auto", ProbeKind::Auto),
    ];
    map.declare("lower_qps_limit", || {
        let most = 1_000_000;
        Shape::Decimal { most }.default(base.lower_qps_limit_milli / 1000)
    });
    map.declare("consecutive_errors", || {
        Shape::word("auto").or(Shape::integer(any)).default("auto")
    });
    map.declare("incarnation_key", || {
        Shape::Text.default(&*base.incarnation_key)
    });
    let qps = map
        .field("lower_qps_limit")
        .and_then(|f| f.convert(Code::NUMBER, qps));
    let consecutive = map
        .field("consecutive_errors")
        .and_then(|f| f.convert(Code::NUMBER, consecutive));
    let key = map
        .field("incarnation_key")
        .and_then(|f| f.text())
        .filter(|key| !key.is_empty());
    let policy = Policy {
        name: Arc::clone(&base.name),
        origin,
        mode: map.choice("mode", base.mode, &modes, &[]),
        scope: map.choice("scope", base.scope, &judged, &[]),
        exception_type: map.choice("exception_type", base.exception_type, &types, &[]),
        error_rate_threshold_bp: map.percent(
            "error_rate_threshold",
            base.error_rate_threshold_bp,
            1,
        ),
        lower_qps_limit_milli: qps.unwrap_or(base.lower_qps_limit_milli),
        qps_scope: map.choice("qps_scope", base.qps_scope, &scopes, &[]),
        statistics_window: map.duration("statistics_window", base.statistics_window, WINDOW),
        instance_removal_rate_threshold_bp: map.percent(
            "instance_removal_rate_threshold",
            base.instance_removal_rate_threshold_bp,
            0,
        ),
        min_ejectable: map.integer("min_ejectable", base.min_ejectable, any),
        consecutive_errors: consecutive.unwrap_or(base.consecutive_errors),
        recovery_detection_unit_time: map.duration(
            "recovery_detection_unit_time",
            base.recovery_detection_unit_time,
            unit,
        ),
        max_recovery_checks: map.integer(
            "max_recovery_checks",
            base.max_recovery_checks,
            at_least_one,
        ),
        probe: map.choice("probe", base.probe, &probes, &[]),
        trials_to_restore: map.integer("trials_to_restore", base.trials_to_restore, at_least_one),
        flap_memory: map.integer("flap_memory", base.flap_memory, any),
        ramp: map.duration("ramp", base.ramp, Span::ZERO_OR_MORE),
        business_errors: business_errors(map.child("business_errors")),
        slow: slow(map),
        incarnation_key: key.map_or(base.incarnation_key, Arc::from),
    };
    Some(Policy {
        name: name?,
        ..policy
    })
}

fn business_errors(map: Map<'_>) -> BusinessErrors {
    let read = |key, codes: &super::code_set::Codes| {
        map.declare(key, || codes.shape().optional());
        map.field(key).and_then(|f| codes.read(&f))
    };
    let errors = BusinessErrors {
        http: read("http", &HTTP),
        http_ignore: read("http_ignore", &HTTP).unwrap_or_default(),
        grpc: read("grpc", &GRPC),
        grpc_ignore: read("grpc_ignore", &GRPC).unwrap_or_default(),
        dubbo: read("dubbo", &DUBBO),
    };
    map.finish();
    errors
}

/// The slow trigger: off where it is not written, observed unless it says `enforce`.
fn slow(parent: &Map<'_>) -> Option<Slow> {
    parent.declare("slow", || {
        Shape::word("none").or(Shape::Map).default("none")
    });
    let field = parent.field("slow")?;
    if field.scalar() == Some("none") {
        return None;
    }
    let map = parent.child("slow");
    let base = Slow::DEFAULT;
    map.declare("factor", || {
        Shape::Decimal { most: 100 }.default(base.factor_centi / 100)
    });
    let factor = map.field("factor");
    let factor = factor.and_then(|field| field.convert(Code::NUMBER, factor_centi));
    let modes = [
        ("observe", SlowMode::Observe),
        ("enforce", SlowMode::Enforce),
    ];
    let floors = Span::between(Duration::from_millis(1), Duration::from_secs(60));
    let slow = Slow {
        factor_centi: factor.unwrap_or(base.factor_centi),
        floor: map.duration("floor", base.floor, floors),
        min_calls: map.integer("min_calls", base.min_calls, &(1..=1_000_000)),
        mode: map.choice("mode", base.mode, &modes, &[]),
    };
    map.finish();
    Some(slow)
}

fn factor_centi(text: &str) -> Result<u32, Wrong> {
    match fixed(text, 2).and_then(|n| u32::try_from(n).ok()) {
        Some(centi) if (110..=10_000).contains(&centi) => Ok(centi),
        _ => {
            let help = "a number from 1.1 to 100, with at most two decimals";
            Err((format!("`{text}` is no factor"), help.to_owned()))
        }
    }
}

fn name(text: &str) -> Result<Arc<str>, Wrong> {
    let good = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    if text.is_empty() || text.len() > 64 || !good {
        let help = "1 to 64 of `A-Z a-z 0-9 _ -`".to_owned();
        return Err((format!("`{text}` is no name of a policy"), help));
    }
    if text == "builtin" {
        let help = "choose another; `builtin` is the policy that holds where no other matches";
        return Err(("`builtin` is taken".to_owned(), help.to_owned()));
    }
    Ok(Arc::from(text))
}

fn qps(text: &str) -> Result<u64, Wrong> {
    match fixed(text, 3) {
        Some(milli) if milli <= 1_000_000_000 => Ok(milli),
        _ => {
            let help =
                "calls per second of one instance: from 0 to 1000000, at most three decimals";
            Err((format!("`{text}` is no rate"), help.to_owned()))
        }
    }
}

fn consecutive(text: &str) -> Result<ConsecutiveErrors, Wrong> {
    if text == "auto" {
        return Ok(ConsecutiveErrors::Auto);
    }
    let number = integer(text, &(0..=1_000_000)).map_err(|(what, _)| {
        (
            what,
            "`auto`, a whole number, or 0 to switch the rule off".to_owned(),
        )
    })?;
    Ok(match u32::try_from(number) {
        Ok(0) => ConsecutiveErrors::Off,
        Ok(count) => ConsecutiveErrors::Count(count),
        Err(_) => ConsecutiveErrors::Auto,
    })
}

/// Sorted and without repetition, so that equal sets compare equal. Not written: `*`.
fn globs(map: &Map<'_>, key: &'static str) -> Vec<Arc<str>> {
    map.declare(key, || {
        let glob = Shape::Pattern(r"^\S+$");
        glob.one_or_more().default(vec!["*"])
    });
    let items = map.field(key).and_then(|field| {
        let items = field.one_or_more();
        if items.as_ref().is_some_and(Vec::is_empty) {
            field.wrong(
                Code::EMPTY,
                "an empty list matches nothing",
                "remove the key for `*`",
            );
        }
        items
    });
    let Some(items) = items else {
        return vec![Arc::from("*")];
    };
    let read = |text: &str| {
        if text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            let help = "a name, or a glob such as `web-*`".to_owned();
            return Err((format!("`{text}` is no pattern"), help));
        }
        Ok(Arc::from(text))
    };
    let mut globs: Vec<Arc<str>> = items
        .iter()
        .filter_map(|item| item.convert(Code::NAME, read))
        .collect();
    globs.sort_unstable();
    globs.dedup();
    globs
}

fn protocols(map: &Map<'_>) -> Vec<PolicyProtocol> {
    let table = [
        ("any", PolicyProtocol::Any),
        ("http", PolicyProtocol::Http),
        ("grpc", PolicyProtocol::Grpc),
        ("dubbo", PolicyProtocol::Dubbo),
    ];
    map.declare("protocols", || {
        words(&table).one_or_more().default(vec!["any"])
    });
    let items = map.field("protocols").and_then(|field| field.one_or_more());
    let Some(items) = items else {
        return vec![PolicyProtocol::Any];
    };
    let words = items.iter().filter_map(|item| item.word(&table, &[]));
    let mut protocols: Vec<PolicyProtocol> = words.collect();
    protocols.sort_unstable();
    protocols.dedup();
    protocols
}
