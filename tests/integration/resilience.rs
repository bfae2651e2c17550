//! Circuit breakers and bulkheads of the built binary: what they refuse, what they let through, how
//! they come back, who is told, what operators order.

mod breaker;
mod bulkhead;
mod orders;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};

use crate::harness::{Client, Proxy, Stub};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// An instance whose status can be changed while it runs.
fn switchable(status: u16) -> (Stub, Arc<AtomicU16>) {
    let says = Arc::new(AtomicU16::new(status));
    let now = Arc::clone(&says);
    let stub = Stub::script(move |peer| {
        while peer.request().is_some() {
            let status = now.load(SeqCst);
            peer.send(format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"));
        }
    });
    (stub, says)
}

/// Answers at once but for `/hold...`, which waits for its client's end.
fn holding() -> Stub {
    Stub::script(|peer| {
        while let Some(request) = peer.request() {
            if request.target().starts_with("/hold") {
                peer.closed();
                return;
            }
            peer.send(OK);
        }
    })
}

/// `n` clients whose requests of `path` are at the instance.
fn held(proxy: &Proxy, stub: &Stub, n: usize, path: &str) -> Vec<Client> {
    let before = stub.requests().len();
    let clients: Vec<Client> = (0..n)
        .map(|_| {
            let mut client = Client::connect(proxy.address);
            client.send(format!("GET {path} HTTP/1.1\r\nHost: svc\r\n\r\n"));
            client
        })
        .collect();
    stub.wait_for_requests(before + n);
    clients
}

fn state(proxy: &Proxy, state: &str) -> u64 {
    let label = format!("state=\"{state}\"");
    proxy.metric("outrigger_circuit_breaker_state", &[&label])
}
