//! The proxy cases, one test each, with their number in the name: the built binary on loopback,
//! raw sockets or frames on both sides. Further tests of a section's kind have no number. What a case
//! counts as in an instance's window is in `windows`.
//!
//! Left out: the part of PX-092 that has a port field of a registry is of a feature that is not built
//! yet. `.ci/run` installs what PX-074 and PX-084 need.
//!
//! Scaled down: PX-058, PX-080 to PX-082 (tenths of the table's seconds), PX-061 (20 streams instead
//! of 50), PX-065, PX-073 (300 requests), PX-089 (as fast as the machine goes). PX-036: a 103 is
//! dropped, since hyper's server cannot send one. PX-012's and PX-095's log lines are parsed as they
//! are read: a line that is no JSON fails every case.

mod a_framing;
mod b_syntax;
mod c_authority;
mod codec;
mod d_headers;
mod e_interim;
mod f_bodiless;
mod g_truncated;
mod h_grpc;
mod i_upgrade;
mod j_streaming;
mod k_reuse;
mod l_http2;
mod m_timeouts;
mod n_lifecycle;
mod o_dns;
mod p_errors;
mod settings;
mod windows;

use crate::harness::{Client, Config, Proxy, Stub};

const CHUNKED: &str = "Transfer-Encoding: chunked";

/// An instance that answers 200 `ok`, and the proxy before it.
fn with_ok() -> (Stub, Proxy) {
    let stub = Stub::ok();
    let proxy = Config::svc(&[stub.address]).start();
    (stub, proxy)
}

/// Sends `request` on a connection of its own: answered with `status`, closed, nothing upstream.
#[track_caller]
fn refused(proxy: &Proxy, stub: &Stub, request: impl AsRef<[u8]>, status: u16) {
    let before = stub.requests().len();
    let what = crate::harness::latin1(request.as_ref());
    let mut client = Client::connect(proxy.address);
    client.send(request);
    let answer = client.response();
    assert_eq!(answer.status(), status, "{what:?}: {answer:?}");
    assert!(client.closed(), "{what:?}: stays open");
    assert_eq!(stub.requests().len(), before, "{what:?} went upstream");
}
