//! What the errors of the codecs say of a request that got no response head.

use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};

use crate::protocol::http1::WireFault;
use crate::upstream::http1::WireError;

/// A request that got no response head.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts about one failure, each read once"
)]
pub(super) struct SendFault {
    /// The instance says that it did not look at it.
    pub(super) refused: bool,
    /// No byte of it went out.
    pub(super) unsent: bool,
    /// The connection ended before it said anything.
    pub(super) closed_early: bool,
    /// The answer breaks the protocol.
    pub(super) protocol: bool,
    /// Its head is larger than is allowed.
    pub(super) too_large: bool,
    /// A multiplexed connection takes no more streams.
    pub(super) connection_over: bool,
    /// The request body was not what it said: not the instance's doing.
    pub(super) own: bool,
    /// For people.
    pub(super) text: String,
}

impl SendFault {
    pub(super) fn http1(error: &WireError, unsent: bool) -> Self {
        let early = match error {
            WireError::Closed => true,
            WireError::Io(error) => is_closed(error.kind()),
            WireError::Incomplete | WireError::Fault(_) | WireError::Upload => false,
        };
        Self {
            refused: false,
            unsent,
            closed_early: early,
            protocol: matches!(error, WireError::Fault(_)),
            too_large: matches!(error, WireError::Fault(WireFault::TooLarge)),
            connection_over: true,
            own: matches!(error, WireError::Upload),
            text: error.to_string(),
        }
    }

    pub(super) fn http2(error: &hyper::Error, unsent: bool) -> Self {
        let too_large = error.is_parse_too_large();
        Self {
            refused: h2_error(error).is_some_and(not_processed),
            unsent,
            closed_early: is_closed_early(error),
            protocol: error.is_parse() || too_large || h2_error(error).is_some_and(breaks_rules),
            too_large,
            connection_over: unsent || h2_goaway(error) || error.is_closed(),
            own: false,
            text: with_cause(error),
        }
    }
}

const fn is_closed(kind: std::io::ErrorKind) -> bool {
    matches!(
        kind,
        BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected
    )
}

/// A connection that ended before it said anything.
fn is_closed_early(error: &hyper::Error) -> bool {
    error.is_incomplete_message()
        || error.is_closed()
        || error.is_canceled()
        || io_kind(error).is_some_and(is_closed)
        || h2_goaway(error)
}

fn io_kind(error: &hyper::Error) -> Option<std::io::ErrorKind> {
    let source = std::error::Error::source(error)?;
    let io = source.downcast_ref::<std::io::Error>()?;
    Some(io.kind())
}

/// The error of HTTP/2 inside of hyper's.
fn h2_error(error: &hyper::Error) -> Option<&h2::Error> {
    std::error::Error::source(error)?.downcast_ref::<h2::Error>()
}

/// The instance says that it did not look at the stream: it refused it, or sent a GOAWAY whose last
/// stream is below it (RFC 9113, 8.7). h2 fails only those streams with a GOAWAY of the peer.
fn not_processed(error: &h2::Error) -> bool {
    error.reason() == Some(h2::Reason::REFUSED_STREAM) || (error.is_go_away() && error.is_remote())
}

/// What came breaks the rules of HTTP/2, or is something else.
fn breaks_rules(error: &h2::Error) -> bool {
    let reason = error.reason();
    error.is_library()
        && reason.is_some_and(|reason| {
            [
                h2::Reason::PROTOCOL_ERROR,
                h2::Reason::FRAME_SIZE_ERROR,
                h2::Reason::COMPRESSION_ERROR,
                h2::Reason::FLOW_CONTROL_ERROR,
                h2::Reason::STREAM_CLOSED,
            ]
            .contains(&reason)
        })
}

/// With what is behind it: "http2 error" alone says little.
pub(super) fn with_cause(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// The whole HTTP/2 connection ended.
fn h2_goaway(error: &hyper::Error) -> bool {
    h2_error(error).is_some_and(|e| e.is_go_away() || e.is_io())
}
