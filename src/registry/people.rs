//! `GET /` of the registry's own port: its services as plain text, for people with a browser or curl.

use std::fmt::Write as _;

use http::StatusCode;

use super::answer::{self, Answer};
use super::overview::Overview;

/// The page.
pub(super) fn page(overview: &Overview) -> Answer {
    answer::text(StatusCode::OK, text(overview))
}

fn text(overview: &Overview) -> String {
    let Overview {
        services,
        instances,
        unlisted,
        clients,
    } = overview;
    let mut out = format!(
        "Outrigger {} registry: {} services, {instances} instances, {clients} gRPC clients\n",
        env!("CARGO_PKG_VERSION"),
        services.len(),
    );
    for service in services {
        let key = &service.key;
        let healthy = service.instances.iter().filter(|i| i.state == "healthy");
        // Writing to a string cannot fail.
        let _infallible = write!(
            out,
            "\n{}  (namespace {}, group {}): {} of {} healthy\n",
            key.name,
            key.namespace,
            key.group,
            healthy.count(),
            service.instances.len(),
        );
        for line in &service.instances {
            let metadata: Vec<String> = line
                .metadata
                .iter()
                .map(|(name, value)| format!("{}={}", clean(name), clean(value)))
                .collect();
            let text = format!(
                "  {:<24} {:<9}  weight {:<6} cluster {}  by {}  {}",
                line.address,
                line.state,
                f64::from(line.weight.thousandths()) / 1000.0,
                line.cluster,
                line.lives_by,
                metadata.join(" "),
            );
            let _infallible = writeln!(out, "{}", text.trim_end());
        }
    }
    if *unlisted > 0 {
        let _infallible = writeln!(out, "\n{unlisted} more instances are not listed");
    }
    out
}

/// Metadata is free text: no line breaks, no control sequences for a terminal.
fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Standard base64, as in basic authentication.
pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let (mut bits, mut count) = (0u32, 0u32);
    for c in text.trim_end_matches('=').bytes() {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0xff_ffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_basic_authentication() {
        let decoded = |text| from_base64(text).map(|b| String::from_utf8(b).unwrap());
        assert_eq!(
            decoded("QWxhZGRpbjpvcGVuIHNlc2FtZQ==").as_deref(),
            Some("Aladdin:open sesame")
        );
        assert_eq!(decoded("YTpi").as_deref(), Some("a:b"));
        assert_eq!((decoded(""), decoded("a b")), (Some(String::new()), None));
    }
}
