//! The proxy cases, one test each, with their number in the name: the built binary on loopback,
//! raw sockets or frames on both sides.

mod a_framing;
