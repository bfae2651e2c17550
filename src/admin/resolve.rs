//! Instances by a part of their address: the port, or the end of the IP.

use crate::config::suggest::nearest;

/// Why a text is no instance.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unclear {
    /// For programs.
    pub(super) word: &'static str,
    pub(super) message: String,
    pub(super) hint: String,
}

/// As many candidates are named.
const NAMED: usize = 8;

/// The instance that is meant: its address, its port (`8080`, `:8080`) or the end of it from a dot on
/// (`3.7:8080`, `3.7`), when only one is called so.
pub(super) fn instance<'a>(
    text: &str,
    known: impl Iterator<Item = &'a str>,
) -> Result<&'a str, Unclear> {
    let known: Vec<&str> = known.collect();
    if let Some(exact) = known.iter().find(|address| **address == text) {
        return Ok(exact);
    }
    let meant: Vec<&str> = known
        .iter()
        .copied()
        .filter(|a| is_short_for(text, a))
        .collect();
    match meant.as_slice() {
        [one] => Ok(one),
        [] => Err(Unclear {
            word: "unknown_instance",
            message: format!("no instance is called `{text}`"),
            hint: match nearest(text, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are {}", listed(&known)),
            },
        }),
        several => Err(Unclear {
            word: "ambiguous_instance",
            message: format!("`{text}` may be {}", listed(several)),
            hint: "write more of the address".to_owned(),
        }),
    }
}

fn listed(addresses: &[&str]) -> String {
    let mut shown = addresses
        .iter()
        .take(NAMED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    match addresses.len().checked_sub(NAMED) {
        Some(more @ 1..) => shown.push_str(&format!(" and {more} more")),
        Some(0) | None if addresses.is_empty() => shown.push_str("none"),
        Some(0) | None => {}
    }
    shown
}

fn is_short_for(text: &str, address: &str) -> bool {
    let Some((ip, port)) = address.rsplit_once(':') else {
        return false;
    };
    let ends = |whole: &str| {
        whole == text
            || whole
                .strip_suffix(text)
                .is_some_and(|rest| rest.ends_with('.'))
    };
    let number = text.strip_prefix(':').unwrap_or(text);
    !text.is_empty() && (number == port || ends(address) || ends(ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_enough_when_only_one_has_it() {
        let known = [
            "10.0.3.7:8080",
            "10.0.3.17:8080",
            "10.0.3.8:9090",
            "[::1]:7",
        ];
        let found = |text| instance(text, known.into_iter());
        for (text, want) in [
            ("10.0.3.7:8080", "10.0.3.7:8080"),
            ("9090", "10.0.3.8:9090"),
            (":9090", "10.0.3.8:9090"),
            ("3.7", "10.0.3.7:8080"),
            ("3.17:8080", "10.0.3.17:8080"),
            ("17", "10.0.3.17:8080"),
            ("[::1]", "[::1]:7"),
        ] {
            assert_eq!(found(text), Ok(want), "{text}");
        }
        let two = found("8080").unwrap_err();
        assert_eq!(two.message, "`8080` may be 10.0.3.7:8080, 10.0.3.17:8080");
        // The last part of an IP, or a port.
        assert_eq!(found("7").unwrap_err().word, "ambiguous_instance");
        for text in ["", "080", ".7", "10.0.3"] {
            assert_eq!(found(text).unwrap_err().word, "unknown_instance", "{text}");
        }
    }
}
