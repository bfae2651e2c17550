//! What hyper's errors say of a request that got no response head.

/// A connection that ended before it said anything.
pub(super) fn is_closed_early(error: &hyper::Error) -> bool {
    error.is_incomplete_message()
        || error.is_closed()
        || error.is_canceled()
        || io_kind(error).is_some_and(|kind| {
            use std::io::ErrorKind::{
                BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected,
            };
            matches!(
                kind,
                BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected
            )
        })
        || h2_goaway(error)
}

fn io_kind(error: &hyper::Error) -> Option<std::io::ErrorKind> {
    let source = std::error::Error::source(error)?;
    let io = source.downcast_ref::<std::io::Error>()?;
    Some(io.kind())
}

/// The error of HTTP/2 inside of hyper's.
pub(super) fn h2_error(error: &hyper::Error) -> Option<&h2::Error> {
    std::error::Error::source(error)?.downcast_ref::<h2::Error>()
}

/// The instance says that it did not look at the stream: it refused it, or sent a GOAWAY whose last
/// stream is below it (RFC 9113, 8.7). h2 fails only those streams with a GOAWAY of the peer.
pub(super) fn not_processed(error: &h2::Error) -> bool {
    error.reason() == Some(h2::Reason::REFUSED_STREAM) || (error.is_go_away() && error.is_remote())
}

/// The whole HTTP/2 connection ended.
pub(super) fn h2_goaway(error: &hyper::Error) -> bool {
    h2_error(error).is_some_and(|e| e.is_go_away() || e.is_io())
}

/// Out of files, memory or local ports: that says nothing about the instance.
pub(super) fn is_our_own(error: &std::io::Error) -> bool {
    // ENFILE, EMFILE, ENOMEM, ENOBUFS, EADDRNOTAVAIL.
    matches!(error.raw_os_error(), Some(23 | 24 | 12 | 105 | 99))
}
