//! HTTP/1.1 as a client speaks it to an instance: the request's head and body are written, the
//! response's head and body are read. A message is refused where two readers could disagree about
//! its end (RFC 9112, 6.3 and 11.2).
//! Next: `head.rs`, `chunked.rs`, `request.rs`; the sockets are in `upstream/http1.rs`.

pub mod chunked;
pub mod head;
pub mod request;

/// Why a message of an instance cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireFault {
    /// It breaks the rules of the protocol.
    #[error("{0}")]
    Malformed(&'static str),
    /// It has more or longer fields than is allowed.
    #[error(
        "the header section is larger than limits.max_response_header_bytes or limits.max_response_headers"
    )]
    TooLarge,
}
