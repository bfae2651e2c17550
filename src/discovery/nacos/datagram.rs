//! Datagrams of Nacos's UDP push: which service changed, and what is sent back. The data itself is not
//! used: it comes from whoever can send from that address, so it is a hint to poll now. Pure.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Value, json};

/// A datagram that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Datagram {
    /// What is sent back to its source.
    pub(super) ack: String,
    /// The service that changed.
    pub(super) hint: Option<Hint>,
}

/// Group and bare name of a service that changed, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hint {
    pub(super) group: String,
    pub(super) name: String,
    last_ref_time: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outer {
    #[serde(rename = "type")]
    kind: String,
    data: Option<String>,
    /// Only pairs the acknowledgement; a number or a text, given back as it is.
    #[serde(default)]
    last_ref_time: Value,
}

/// Reads a datagram, inflated; `None`: it is none of Nacos's.
pub(super) fn read(bytes: &[u8]) -> Option<Datagram> {
    let outer: Outer = serde_json::from_slice(bytes).ok()?;
    let kind = match outer.kind.as_str() {
        "dom" | "service" => "push-ack",
        "dump" => "dump-ack",
        _ => "unknown-ack",
    };
    let time = outer.last_ref_time.as_str().map(str::to_owned);
    let time = time.unwrap_or_else(|| outer.last_ref_time.to_string());
    let ack = json!({"type": kind, "lastRefTime": time, "data": ""}).to_string();
    let data = outer.data.filter(|_| kind == "push-ack");
    let hint = data.and_then(|data| hint(&data));
    Some(Datagram { ack, hint })
}

fn hint(data: &str) -> Option<Hint> {
    let data: Value = serde_json::from_str(data).ok()?;
    let text = |name: &str| data.get(name).and_then(Value::as_str);
    let name = text("name").or_else(|| text("dom"))?;
    let (group, name) = match name.split_once("@@") {
        Some(parts) => parts,
        None => (text("groupName").unwrap_or("DEFAULT_GROUP"), name),
    };
    Some(Hint {
        group: group.to_owned(),
        name: name.to_owned(),
        last_ref_time: data.get("lastRefTime").and_then(Value::as_u64).unwrap_or(0),
    })
}

/// Which hints are new: datagrams may come in another order than they were sent.
#[derive(Debug, Default)]
pub(super) struct Order(HashMap<(String, String), u64>);

/// Services whose last push is remembered.
const MAX_REMEMBERED: usize = 20_000;

impl Order {
    /// Whether nothing newer was seen of that service.
    pub(super) fn is_new(&mut self, hint: &Hint) -> bool {
        let key = (hint.group.clone(), hint.name.clone());
        let known = self.0.get(&key);
        if known.is_some_and(|last| *last > hint.last_ref_time) {
            return false;
        }
        if known.is_none() && self.0.len() >= MAX_REMEMBERED {
            self.0.clear();
        }
        self.0.insert(key, hint.last_ref_time);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_15_acknowledgements_have_their_bytes_and_hints_their_service() {
        let push = br#"{"type":"dom","data":"{\"name\":\"g@@orders\",\"lastRefTime\":7,\"hosts\":[]}","lastRefTime":81234567890123}"#;
        let read_push = read(push).unwrap();
        assert_eq!(
            read_push.ack,
            r#"{"type":"push-ack","lastRefTime":"81234567890123","data":""}"#
        );
        let hint = read_push.hint.unwrap();
        assert_eq!((hint.group.as_str(), hint.name.as_str()), ("g", "orders"));
        let bare = br#"{"type":"service","data":"{\"dom\":\"s\"}","lastRefTime":"5"}"#;
        let hint = read(bare).unwrap().hint.unwrap();
        assert_eq!(
            (hint.group.as_str(), hint.name.as_str()),
            ("DEFAULT_GROUP", "s")
        );
        for (kind, ack) in [("dump", "dump-ack"), ("x", "unknown-ack")] {
            let text = format!(r#"{{"type":"{kind}","data":"{{}}","lastRefTime":1}}"#);
            let datagram = read(text.as_bytes()).unwrap();
            assert_eq!(
                (datagram.ack, datagram.hint),
                (
                    format!(r#"{{"type":"{ack}","lastRefTime":"1","data":""}}"#),
                    None
                )
            );
        }
        for odd in [&b""[..], b"x", b"{}", b"[]", &[0xff; 9]] {
            assert_eq!(read(odd), None);
        }
        assert_eq!(
            read(br#"{"type":"dom","data":"x","lastRefTime":1}"#)
                .unwrap()
                .hint,
            None
        );
    }

    #[test]
    fn row_15_an_older_push_is_no_hint() {
        let at = |time| Hint {
            group: "g".to_owned(),
            name: "s".to_owned(),
            last_ref_time: time,
        };
        let mut order = Order::default();
        assert!(order.is_new(&at(5)) && order.is_new(&at(5)) && !order.is_new(&at(4)));
        assert!(order.is_new(&at(6)));
    }
}
