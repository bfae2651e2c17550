//! Orders of operators on their way to the driver of the upstream.

use std::time::Duration;

use tokio::sync::oneshot;

use super::plane::Plane;
use crate::endpoint::Address;
use crate::outlier::book::{Order, Signed};
use crate::outlier::detector::OverrideKind;
use crate::outlier::driver::{BreakerOrder, Command};
use crate::policy::breaker::words as breaker;
use crate::status::{OverrideDone, OverrideRefused};

/// What an operator orders for one instance.
#[derive(Clone, Debug)]
pub struct OverrideOrder {
    /// The upstream's own name.
    pub upstream: String,
    /// Which instance.
    pub address: Address,
    /// What.
    pub kind: OverrideKind,
    /// How long.
    pub ttl: Option<Duration>,
    /// Beyond the cap.
    pub force: bool,
    /// By whom and why.
    pub signed: Signed,
}

/// What an operator orders for a circuit breaker.
#[derive(Clone, Debug)]
pub struct BreakerWish {
    /// The upstream's own name.
    pub upstream: String,
    /// Which route's; `None`: the upstream's own.
    pub route: Option<String>,
    /// What, and how long; `None`: the rules decide again.
    pub order: Option<(breaker::Order, Duration)>,
    /// By whom and why.
    pub signed: Signed,
}

/// An order's answer; `None`: there is no such upstream, or no such order.
pub type OrderReply = oneshot::Sender<Option<Result<OverrideDone, OverrideRefused>>>;

impl Plane {
    pub(super) fn order(&mut self, order: OverrideOrder, reply: OrderReply) {
        self.last_override += 1;
        let id = self.last_override;
        let live = self.upstreams.get(&*order.upstream);
        let Some(commands) = live.map(|live| live.commands.clone()) else {
            let _gone = reply.send(None);
            return;
        };
        let order = Box::new(Order {
            id,
            address: order.address,
            kind: order.kind,
            ttl: order.ttl,
            force: order.force,
            signed: order.signed,
        });
        let (answer, answered) = oneshot::channel();
        // A driver that ended meanwhile is no upstream any more.
        let _gone = commands.send(Command::Override(order, answer));
        tokio::spawn(async move {
            let _gone = reply.send(answered.await.ok());
        });
    }

    pub(super) fn order_breaker(&mut self, wish: BreakerWish, reply: OrderReply) {
        self.last_override += 1;
        let id = self.last_override;
        let live = self.upstreams.get(&*wish.upstream);
        let Some(commands) = live.map(|live| live.commands.clone()) else {
            let _gone = reply.send(None);
            return;
        };
        let order = Box::new(BreakerOrder {
            id,
            route: wish.route,
            order: wish.order,
            signed: wish.signed,
        });
        let (answer, answered) = oneshot::channel();
        // A driver that ended meanwhile is no upstream any more.
        let _gone = commands.send(Command::Breaker(order, answer));
        tokio::spawn(async move {
            let _gone = reply.send(answered.await.ok());
        });
    }

    pub(super) fn clear_override(&mut self, id: u64, signed: Signed, reply: OrderReply) {
        let drivers: Vec<_> = self
            .upstreams
            .values()
            .map(|l| l.commands.clone())
            .collect();
        tokio::spawn(async move {
            let mut done = None;
            for commands in drivers {
                let (answer, answered) = oneshot::channel();
                let command = Command::ClearOverride(id, signed.clone(), answer);
                let _gone = commands.send(command);
                done = answered.await.ok().flatten();
                if done.is_some() {
                    break;
                }
            }
            let _gone = reply.send(done);
        });
    }
}
