//! One service by gRPC: subscribed on every connection, pushes as they come, asked again every minute
//! (official clients do not, and a lost push is then lost for ever), at once when the connection is
//! new. Clusters are chosen here: pushes do not tell whose subscription they are for.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::super::subscription::{Answer, Failure, Subscription};
use super::wire;
use crate::clock::Clock;
use crate::endpoint::Endpoint;
use crate::http_client::jitter::Jitter;
use crate::http_client::servers::CallError;
use crate::nacos_client::link::{Link, Pushes, State};
use crate::nacos_client::live::Live;
use crate::protocol::nacos::message::{Naming, kind};

/// Between two questions about a service that is subscribed to.
const REQUERY: Duration = Duration::from_secs(60);
/// Without a connection a set is stale after this.
const STALE_AFTER: Duration = Duration::from_secs(30);
/// Where something else may be used meanwhile, a first connection is waited for no longer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Before a question that failed is asked again on the same connection; grows by two to [`REQUERY`].
const RETRY: Duration = Duration::from_secs(1);

/// What is followed.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) namespace: Arc<str>,
    pub(super) group: String,
    pub(super) name: String,
    /// Empty: all.
    pub(super) clusters: Vec<String>,
}

/// Why a service is no longer followed by gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Nobody listens.
    Closed,
    /// The link is down, or still not up; only told where something else may be used meanwhile.
    Down,
}

/// Follows one service over a link.
#[derive(Debug)]
pub(super) struct Follower<'a> {
    pub(super) link: &'a Link,
    pub(super) wanted: &'a Wanted,
    pub(super) jitter: &'a Jitter,
    pub(super) clock: Clock,
    /// The link was up.
    pub(super) used: bool,
}

impl Follower<'_> {
    /// Until nobody listens; where something else may be used meanwhile (`optional`), until the link is
    /// down.
    pub(super) async fn follow(
        &mut self,
        subscription: &mut Subscription,
        optional: bool,
    ) -> Ended {
        let mut state = self.link.state();
        loop {
            let now = state.borrow_and_update().clone();
            let mut patience = REQUERY;
            match now {
                State::Up(live) => {
                    self.used = true;
                    subscription.set_period(REQUERY);
                    let mut pushes = self.link.pushes(&self.wanted.group, &self.wanted.name);
                    let mut one = One {
                        live: &live,
                        wanted: self.wanted,
                        jitter: self.jitter,
                        clock: self.clock,
                        pushes: &mut pushes,
                    };
                    if one.use_up(subscription).await == Ended::Closed {
                        return Ended::Closed;
                    }
                    subscription.stale_in(STALE_AFTER);
                }
                State::Down(_) if optional => return Ended::Down,
                State::Down(why) => {
                    subscription.stale_in(STALE_AFTER);
                    subscription.failed(&Failure::Unanswered(why.to_string()));
                }
                State::Starting if optional => patience = PATIENCE,
                State::Starting => {}
            }
            loop {
                tokio::select! {
                    result = state.changed() => {
                        if result.is_err() {
                            return Ended::Closed;
                        }
                        break;
                    }
                    listened = subscription.sleep(patience) => {
                        if !listened {
                            return Ended::Closed;
                        }
                        if patience == PATIENCE {
                            return Ended::Down;
                        }
                    }
                }
            }
        }
    }
}

/// One service on one connection.
struct One<'a> {
    live: &'a Live,
    wanted: &'a Wanted,
    jitter: &'a Jitter,
    clock: Clock,
    pushes: &'a mut Pushes,
}

impl One<'_> {
    /// Until the connection is lost or nobody listens.
    async fn use_up(&mut self, subscription: &mut Subscription) -> Ended {
        let mut failures = 0;
        let mut ask_at = self.clock.now();
        loop {
            let pause = ask_at.since(self.clock.now());
            let (answer, asked) = tokio::select! {
                biased;
                _ = self.live.lost() => return Ended::Down,
                push = self.pushes.next() => (Ok(push), false),
                listened = subscription.sleep(pause) => {
                    if !listened {
                        self.unsubscribe().await;
                        return Ended::Closed;
                    }
                    // Each time: somebody who followed it before may have ended the pushes meanwhile.
                    let question = self.question(true);
                    let asking = self.live.call(kind::SUBSCRIBE, &question);
                    let answer = tokio::select! {
                        () = subscription.closed() => {
                            self.unsubscribe().await;
                            return Ended::Closed;
                        }
                        answer = asking => answer,
                    };
                    (answer.map(service_info), true)
                }
            };
            let list = answer.map_err(Failure::from);
            let list = list.and_then(|info| wire::info(info).map_err(Failure::Unanswered));
            match list {
                Ok(mut list) => {
                    failures = 0;
                    list.endpoints.retain(|endpoint| self.is_wanted(endpoint));
                    let held = subscription.answer(Answer {
                        endpoints: list.endpoints,
                        health_unknown: list.protected,
                        skipped: list.skipped,
                    });
                    match held {
                        // A push would not come again by itself.
                        Some(recheck) => ask_at = self.clock.now() + recheck,
                        None if asked => {
                            ask_at = self.clock.now() + self.jitter.around(REQUERY);
                        }
                        None => {}
                    }
                }
                Err(failure) => {
                    failures += 1;
                    subscription.failed(&failure);
                    let pause = match failure {
                        Failure::Refused(_) => self.jitter.around(REQUERY),
                        Failure::Unanswered(_) => self.jitter.back_off(RETRY, failures, REQUERY),
                    };
                    ask_at = self.clock.now() + pause;
                }
            }
        }
    }

    /// Tells the server that its pushes are no longer wanted; who does not hear that goes on pushing
    /// until the connection ends, which harms nobody.
    async fn unsubscribe(&self) {
        if !self.pushes.is_shared() {
            let question = self.question(false);
            drop(self.live.call(kind::SUBSCRIBE, &question).await);
        }
    }

    fn question(&self, subscribe: bool) -> Naming {
        Naming {
            namespace: Some(self.wanted.namespace.to_string()),
            service_name: Some(self.wanted.name.clone()),
            group_name: Some(self.wanted.group.clone()),
            clusters: Some(String::new()),
            subscribe: Some(subscribe),
            ..Naming::default()
        }
    }

    fn is_wanted(&self, endpoint: &Endpoint) -> bool {
        let clusters = &self.wanted.clusters;
        let cluster = endpoint.cluster.as_deref().unwrap_or("DEFAULT");
        clusters.is_empty() || clusters.iter().any(|one| one == cluster)
    }
}

/// The part of an answer that is about the service; a missing one is no empty one.
fn service_info(mut answer: Value) -> Value {
    answer
        .get_mut("serviceInfo")
        .map(Value::take)
        .unwrap_or_default()
}

/// The names of a namespace's group.
pub(super) async fn names(
    link: &Link,
    namespace: &str,
    group: &str,
) -> Result<Vec<Arc<str>>, CallError> {
    const PAGE: u64 = 500;
    let mut names: Vec<Arc<str>> = Vec::new();
    for page in 1..=200 {
        let question = Naming {
            namespace: Some(namespace.to_owned()),
            group_name: Some(group.to_owned()),
            page_no: Some(page),
            page_size: Some(PAGE),
            ..Naming::default()
        };
        let answer = link.call(kind::LIST, &question).await?;
        let listed = answer.get("serviceNames").and_then(Value::as_array);
        let listed = listed.map(Vec::as_slice).unwrap_or_default();
        names.extend(listed.iter().filter_map(Value::as_str).map(Arc::from));
        let count = answer.get("count").and_then(Value::as_u64).unwrap_or(0);
        if listed.is_empty() || u64::try_from(names.len()).is_ok_and(|n| n >= count) {
            break;
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests;
