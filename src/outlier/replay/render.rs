//! Effects in the form of expectations, and when the two agree.

use serde_json::{Map, Value, json};

use crate::clock::Timestamp;
use crate::outlier::detector::{Effect, Ejected, Evidence, Numbers, Restored, Suppressed};

/// The fields that are compared; whatever else a line holds is for the reader.
const COMPARED: [&str; 22] = [
    "t",
    "expect",
    "instance",
    "reason",
    "cause",
    "restored_by",
    "kind",
    "k",
    "next_trial",
    "n",
    "cap",
    "out",
    "calls",
    "network",
    "business",
    "failures",
    "streak",
    "ejected_for",
    "deadline",
    "expired",
    "hinted",
    "trigger",
];

/// Whether everything that `expected` names is so.
pub(super) fn agrees(expected: &Map<String, Value>, actual: &Map<String, Value>) -> bool {
    let same = |field: &str| {
        expected
            .get(field)
            .is_none_or(|want| *want == *actual.get(field).unwrap_or(&Value::Null))
    };
    COMPARED.iter().all(|field| same(field))
}

/// The line of an effect; `None` for those that no expectation can name.
pub(super) fn line(effect: &Effect, at: Timestamp) -> Option<Map<String, Value>> {
    let fields = match effect {
        Effect::Eject(ejected) => ejected_line("eject", ejected),
        Effect::WouldEject(ejected) => ejected_line("would_eject", ejected),
        Effect::Restore(restored) => restored_line("restore", restored),
        Effect::WouldRestore(restored) => restored_line("would_restore", restored),
        Effect::Suppress(suppressed) => suppressed_line("suppress", suppressed),
        Effect::WouldSuppress(suppressed) => suppressed_line("would_suppress", suppressed),
        Effect::StartTrial(started) => json!({
            "expect": "start_trial",
            "instance": started.address.as_str(),
            "kind": started.kind.as_str(),
            "k": started.k,
            "deadline": millis(started.deadline),
            "hinted": started.hinted,
        }),
        Effect::TrialFailed(failed) => with_numbers(
            json!({
                "expect": "trial_failed",
                "instance": failed.address.as_str(),
                "kind": failed.kind.as_str(),
                "k": failed.k,
                "next_trial": millis(failed.next_trial),
                "expired": failed.expired,
                "hinted": failed.hinted,
            }),
            &failed.numbers,
        ),
        Effect::CapZero(_)
        | Effect::CorrelatedFailure { .. }
        | Effect::InstanceLeft { .. }
        | Effect::LastResort { .. }
        | Effect::OfferTrial { .. }
        | Effect::OverrideSet { .. }
        | Effect::OverrideExpired { .. }
        | Effect::OverrideRefused { .. }
        | Effect::Recalled { .. }
        | Effect::Stale { .. }
        | Effect::TrialIgnored { .. }
        | Effect::TrialPassed { .. }
        | Effect::WithdrawOffer { .. } => return None,
    };
    let mut line = Map::new();
    line.insert("t".to_owned(), json!(millis(at)));
    if let Value::Object(fields) = fields {
        line.extend(fields);
    }
    Some(line)
}

fn ejected_line(name: &str, ejected: &Ejected) -> Value {
    let fields = json!({
        "expect": name,
        "instance": ejected.address.as_str(),
        "reason": ejected.trigger.as_str(),
        "k": (ejected.k > 0).then_some(ejected.k),
        "next_trial": ejected.next_trial.map(millis),
    });
    with_numbers(with_evidence(fields, &ejected.evidence), &ejected.numbers)
}

fn restored_line(name: &str, restored: &Restored) -> Value {
    let fields = json!({
        "expect": name,
        "instance": restored.address.as_str(),
        "restored_by": restored.restored_by.as_str(),
        "ejected_for": u64::try_from(restored.ejected_for.as_millis()).unwrap_or(u64::MAX),
        "k": restored.k,
    });
    with_numbers(fields, &restored.numbers)
}

fn suppressed_line(name: &str, suppressed: &Suppressed) -> Value {
    let fields = json!({
        "expect": name,
        "instance": suppressed.address.as_str(),
        "cause": suppressed.cause.as_str(),
        "reason": suppressed.trigger.as_str(),
    });
    with_numbers(
        with_evidence(fields, &suppressed.evidence),
        &suppressed.numbers,
    )
}

fn with_evidence(fields: Value, evidence: &Evidence) -> Value {
    let more = json!({
        "calls": evidence.calls,
        "network": evidence.network,
        "business": evidence.business,
        "failures": evidence.failures,
        "streak": evidence.streak,
    });
    joined(fields, more)
}

fn with_numbers(fields: Value, numbers: &Numbers) -> Value {
    joined(
        fields,
        json!({ "n": numbers.n, "cap": numbers.cap, "out": numbers.out }),
    )
}

fn joined(left: Value, right: Value) -> Value {
    match (left, right) {
        (Value::Object(mut left), Value::Object(right)) => {
            left.extend(right);
            Value::Object(left)
        }
        (left, _) => left,
    }
}

const fn millis(at: Timestamp) -> u64 {
    at.as_millis()
}
