//! What is answered when an upstream cannot: the last good answer, another upstream, a static one.

mod cached;
mod elsewhere;
mod fixed;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::harness::{Config, Message, Proxy, Stub};

/// One attempt only, so that the instance is asked once.
const ONCE: &str = "retry: {max_attempts: 1}";

/// An instance that can be broken: then it resets what it is asked.
struct Breakable {
    stub: Stub,
    broken: Arc<AtomicBool>,
}

impl Breakable {
    /// Answers with `head` fields and what `body` makes of the request.
    fn new(head: &'static str, body: impl Fn(&Message) -> String + Send + Sync + 'static) -> Self {
        let broken = Arc::new(AtomicBool::new(false));
        let kept = Arc::clone(&broken);
        let stub = Stub::script(move |peer| {
            while let Some(request) = peer.request() {
                if kept.load(SeqCst) {
                    peer.reset();
                    return;
                }
                let body = body(&request);
                let length = body.len();
                peer.send(format!(
                    "HTTP/1.1 200 OK\r\n{head}Content-Length: {length}\r\n\r\n{body}"
                ));
            }
        });
        Self { stub, broken }
    }

    fn set_broken(&self, broken: bool) {
        self.broken.store(broken, SeqCst);
    }
}

/// `svc` at this instance, with this `fallback`.
fn proxy(stub: &Stub, fallback: &str) -> Proxy {
    let keys = format!("{ONCE}\nfallback: {fallback}");
    Config::svc_with(&[stub.address], &keys).start()
}

fn fallbacks(proxy: &Proxy, kind: &str) -> u64 {
    let label = format!("kind=\"{kind}\"");
    proxy.metric("outrigger_fallbacks_total", &[&label])
}
