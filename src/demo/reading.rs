//! What the journal and the status say, in the words of the story.

use std::time::Duration;

use serde_json::Value;

use super::narrate::Tone;
use super::story::Happening;
use crate::journal::Entry;
use crate::status::InstanceStatus;

/// An event of the journal as the story knows it, and how it is told.
pub(super) fn happening(entry: &Entry) -> Option<(Happening, Tone, &'static str)> {
    let number = |key: &str| entry.object.get(key).and_then(Value::as_u64).unwrap_or(0);
    Some(match entry.event {
        "instance_ejected" => {
            let calls = number("errors");
            (Happening::Ejected { calls }, Tone::Bad, "ejected")
        }
        "probe_failed" => {
            let k = number("k");
            (Happening::ProbeFailed { k }, Tone::Warn, "probe")
        }
        "instance_restored" => {
            let seconds = entry.object.get("ejected_for_s").and_then(Value::as_f64);
            let out_for = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
            let restored = Happening::Restored {
                out_for: out_for.unwrap_or_default(),
                by_probe: text(entry, "restored_by") == Some("probe"),
            };
            (restored, Tone::Good, "returned")
        }
        "instance_left" => (Happening::Left, Tone::Bad, "evicted"),
        _ => return None,
    })
}

/// A field that is text.
pub(super) fn text<'a>(entry: &'a Entry, key: &str) -> Option<&'a str> {
    entry.object.get(key).and_then(Value::as_str)
}

/// How an instance stands, in a word or two.
pub(super) fn state(instance: &InstanceStatus) -> String {
    match instance.state.as_str() {
        "ejected" | "probing" => match instance.k {
            Some(k) => format!("out k={k}"),
            None => "out".to_owned(),
        },
        "healthy" if instance.share < 1.0 => format!("{:.0}%", instance.share * 100.0),
        "healthy" => "ok".to_owned(),
        other => other.to_owned(),
    }
}
