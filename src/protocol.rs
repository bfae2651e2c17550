//! Wire formats, as pure codecs: bytes in, messages out. No socket, no task, no clock.

pub mod http1;

pub mod nacos;
