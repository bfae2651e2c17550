//! Endpoints of Dubbo services from ZooKeeper: interface-level (`/ROOT/INTERFACE/providers`) and
//! application-level (`/services/APPLICATION`). Watches tell what to read again; everything is read
//! once a minute besides, since a watch can be lost. All subscriptions share one session.
//!
//! Next: `zookeeper/session.rs`, `zookeeper/tree.rs` (what is read), `protocol/dubbo_registry.rs`
//! (what it means), `protocol/zookeeper.rs` (bytes).

mod connection;
mod interest;
mod live;
mod session;
mod tree;

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use self::connection::Target;
use self::session::Session;
use self::tree::Tree;
use super::source::{Listing, Source, Task};
use super::subscription::{Answer, Failure, Subscription};
use crate::clock::{self, Clock};
use crate::config::types::{Registry, Zookeeper, ZookeeperLayout};
use crate::http_client::jitter::Jitter;
use crate::protocol::dubbo_registry::{Mapped, Wanted};

/// A service is read at least this often.
const REREAD: Duration = Duration::from_secs(60);
/// Weights of instances that warm up follow their time at this pace.
const WARMING: Duration = Duration::from_secs(10);
/// The first back-off is below twice this.
const RETRY: Duration = Duration::from_secs(1);
/// And none is longer.
const MOST_RETRY: Duration = Duration::from_secs(60);

/// One ensemble.
#[derive(Debug)]
pub(super) struct ZookeeperSource {
    layout: ZookeeperLayout,
    root: String,
    session: Arc<Session>,
    jitter: Jitter,
}

impl ZookeeperSource {
    pub(super) fn new(config: &Zookeeper, registry: &Registry, clock: Clock, seed: u64) -> Self {
        let servers = config.servers.iter();
        let targets = servers.map(|server| Target::Tcp(server.clone())).collect();
        Self::with_targets(config, registry, clock, seed, targets)
    }

    fn with_targets(
        config: &Zookeeper,
        registry: &Registry,
        clock: Clock,
        seed: u64,
        targets: Vec<Target>,
    ) -> Self {
        Self {
            layout: config.layout,
            root: config.root.clone(),
            session: Arc::new(Session::new(config, registry, targets, clock, seed)),
            jitter: Jitter::new(fastrand::Rng::with_seed(seed)),
        }
    }

    async fn watch(self: Arc<Self>, mut subscription: Subscription) {
        self.session.start();
        let query = &subscription.query;
        let wanted = Wanted::parse(&query.registry_name, query.group.as_deref());
        let mut tree = Tree::new(wanted, self.layout, &self.root);
        let interest = self.session.interests.join();
        let (mut failures, mut answered) = (0u32, false);
        subscription.set_period(REREAD);
        loop {
            let news = interest.take();
            let result = tokio::select! {
                () = subscription.closed() => return,
                result = tree.refresh(&self.session, &interest, &news) => result,
            };
            let pause = match result.and_then(|()| usable(tree.map(now_ms()), answered)) {
                Ok(mapped) => {
                    failures = 0;
                    answered |= !mapped.endpoints.is_empty();
                    let usual = if mapped.warming { WARMING } else { REREAD };
                    let held = subscription.answer(Answer {
                        endpoints: mapped.endpoints,
                        skipped: mapped.skipped,
                        ..Answer::default()
                    });
                    let pause = self.jitter.around(usual);
                    held.map_or(pause, |recheck| recheck.min(pause))
                }
                Err(failure) => {
                    failures = failures.saturating_add(1);
                    subscription.failed(&failure);
                    match failure {
                        Failure::Refused(_) => self.jitter.around(REREAD),
                        Failure::Unanswered(_) => self.jitter.back_off(RETRY, failures, MOST_RETRY),
                    }
                }
            };
            tokio::select! {
                () = interest.notified() => {}
                listened = subscription.sleep(pause) => if !listened {
                    return;
                },
            }
        }
    }
}

/// Providers of other versions or groups only: that is a slip of the configuration, to be told as
/// long as there never was one that fits.
fn usable(mapped: Mapped, answered: bool) -> Result<Mapped, Failure> {
    if mapped.endpoints.is_empty() && !mapped.others.is_empty() && !answered {
        let others = mapped.others.join("; ");
        return Err(Failure::Refused(format!(
            "providers are there, but none fits `registry_name` (GROUP/INTERFACE:VERSION): {others}"
        )));
    }
    Ok(mapped)
}

fn now_ms() -> u64 {
    let since = clock::wall_now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

impl Source for ZookeeperSource {
    fn follow(self: Arc<Self>, subscription: Subscription) -> Task {
        Box::pin(self.watch(subscription))
    }

    fn names(self: Arc<Self>) -> Listing {
        Box::pin(async {
            let what = "ZooKeeper's services are not listed: name them under `services`".to_owned();
            Err(Failure::Refused(what))
        })
    }
}

#[cfg(test)]
mod tests;
