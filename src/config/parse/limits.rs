//! `limits`: what the app may send and what an instance may answer.

use std::time::Duration;

use super::reader::Map;
use super::value::Span;
use crate::config::types::{HalfClose, Limits};

/// `limits`.
pub(crate) fn limits(map: Map<'_>) -> Limits {
    const HEADERS: std::ops::RangeInclusive<u64> = 1024..=16 * 1024 * 1024;
    let half_close = [
        ("disconnect", HalfClose::Disconnect),
        ("allow", HalfClose::Allow),
    ];
    let seconds = Duration::from_secs;
    let limits = Limits {
        max_header_bytes: map.size("max_header_bytes", 64 * 1024, &HEADERS),
        max_headers: map.integer("max_headers", 128, &(1..=10_000)),
        max_target_bytes: map.size("max_target_bytes", 16 * 1024, &(64..=16 * 1024 * 1024)),
        max_body_bytes: map.size("max_body_bytes", 0, &(0..=1 << 50)),
        header_timeout: map.duration("header_timeout", seconds(10), Span::POSITIVE),
        body_idle_timeout: map.duration("body_idle_timeout", seconds(30), Span::POSITIVE),
        keep_alive_timeout: map.duration("keep_alive_timeout", seconds(75), Span::POSITIVE),
        max_connections: map.integer("max_connections", 16_384, &(1..=1_000_000)),
        max_streams_per_connection: map.integer("max_streams_per_connection", 256, &(1..=65_535)),
        half_close: map.choice("half_close", HalfClose::Disconnect, &half_close, &[]),
        max_response_header_bytes: map.size("max_response_header_bytes", 256 * 1024, &HEADERS),
        max_response_headers: map.integer("max_response_headers", 256, &(1..=10_000)),
    };
    map.finish();
    limits
}
