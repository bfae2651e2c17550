//! What the cases are made of: the built proxy as a process, upstream stubs that say exact bytes,
//! raw clients. Everything on loopback with ports the kernel gives; nothing waits for a fixed time
//! where there is something to see.

mod client;
mod dns;
mod frames;
mod h2side;
mod message;
mod proxy;
mod stub;
mod tools;

use std::sync::mpsc;
use std::time::Duration;

use outrigger::clock::{Clock, Timestamp};

pub(crate) use client::Client;
pub(crate) use dns::{DnsStub, Says};
pub(crate) use frames::{RawH2, flag, kind, literals};
pub(crate) use h2side::{Call, H2Client, H2Stub, block_on, collect, request};
pub(crate) use message::{Framing, Message};
pub(crate) use proxy::{Config, Proxy};
pub(crate) use stub::{Peer, Stub, black_hole, closed_port};
pub(crate) use tools::{run, tool};

/// Longest wait for anything that must happen.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Lets time pass on purpose: the peer's slowness is what is tested.
pub(crate) fn pause(time: Duration) {
    let (_kept, never) = mpsc::channel::<()>();
    let _timed_out = never.recv_timeout(time);
}

/// `pause` in milliseconds.
pub(crate) fn pause_ms(ms: u64) {
    pause(Duration::from_millis(ms));
}

/// Looks again and again until `seen` is true.
#[track_caller]
pub(crate) fn eventually(what: &str, mut seen: impl FnMut() -> bool) {
    let watch = Stopwatch::start();
    while !seen() {
        assert!(watch.elapsed() < LONG, "never seen: {what}");
        pause_ms(5);
    }
}

/// Measures real time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch {
    clock: Clock,
    from: Timestamp,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        let clock = Clock::new();
        Self {
            clock,
            from: clock.now(),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.now().since(self.from)
    }

    pub(crate) fn ms(&self) -> u128 {
        self.elapsed().as_millis()
    }
}

/// Bytes as text, one char per byte, so that nothing is lost.
pub(crate) fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|b| char::from(*b)).collect()
}
