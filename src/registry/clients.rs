//! Which gRPC connections there are, and who wants to hear of which service. Each connection's own
//! state is a [`Session`]; its task is in `registry/grpc.rs`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::answer::epoch_millis;
use super::model::ServiceKey;
use super::session::{Session, Step, Topic};
use crate::clock::Timestamp;

/// Subscriptions of all connections.
const MAX_SUBSCRIPTIONS: usize = 200_000;

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Clients {
    /// Held for one operation, never across an await; taken before that of a client.
    live: Mutex<Live>,
}

#[derive(Debug, Default)]
struct Live {
    next: u64,
    clients: HashMap<u64, Arc<Client>>,
    /// Who is told of which service.
    topics: HashMap<ServiceKey, HashSet<u64>>,
    subscriptions: usize,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Client {
    /// Its number, which its instances are held by.
    pub(super) number: u64,
    /// Its name towards the client.
    pub(super) id: String,
    /// Where it is.
    pub(super) from: IpAddr,
    /// Its machine has something new to do.
    pub(super) wake: Notify,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    session: Session,
    /// Services it has instances in.
    published: BTreeSet<ServiceKey>,
}

impl Clients {
    /// A new connection.
    pub(super) fn add(&self, from: SocketAddr, now: Timestamp) -> Arc<Client> {
        let mut live = self.live();
        live.next = live.next.saturating_add(1);
        let client = Arc::new(Client {
            number: live.next,
            id: format!("{}_{}_{}", epoch_millis(), from.ip(), from.port()),
            from: from.ip(),
            wake: Notify::new(),
            state: Mutex::new(State {
                session: Session::new(now),
                published: BTreeSet::new(),
            }),
        });
        live.clients.insert(client.number, client.clone());
        client
    }

    /// The connection ended.
    pub(super) fn remove(&self, client: &Client) {
        self.forget(client);
        self.live().clients.remove(&client.number);
    }

    /// The stream of a connection ended: its subscriptions go. The services it has instances in.
    pub(super) fn forget(&self, client: &Client) -> BTreeSet<ServiceKey> {
        let mut live = self.live();
        let mut state = client.state();
        for topic in state.session.tear_down() {
            live.subscriptions = live.subscriptions.saturating_sub(1);
            live.leave(&topic.service, client.number);
        }
        std::mem::take(&mut state.published)
    }

    /// Subscribes a connection; false when there are too many subscriptions.
    pub(super) fn subscribe(&self, client: &Client, topic: Topic) -> bool {
        let mut live = self.live();
        let service = topic.service.clone();
        let mut state = client.state();
        let known = state.session.count();
        if live.subscriptions >= MAX_SUBSCRIPTIONS || !state.session.subscribe(topic) {
            return false;
        }
        let more = state.session.count().saturating_sub(known);
        live.subscriptions = live.subscriptions.saturating_add(more);
        live.topics
            .entry(service)
            .or_default()
            .insert(client.number);
        true
    }

    /// Ends a subscription.
    pub(super) fn unsubscribe(&self, client: &Client, topic: &Topic) {
        let mut live = self.live();
        let mut state = client.state();
        let known = state.session.count();
        let last = state.session.unsubscribe(topic);
        let fewer = known.saturating_sub(state.session.count());
        live.subscriptions = live.subscriptions.saturating_sub(fewer);
        if last {
            live.leave(&topic.service, client.number);
        }
    }

    /// Services changed.
    pub(super) fn changed(&self, services: &BTreeSet<ServiceKey>, now: Timestamp) {
        let live = self.live();
        for service in services {
            for number in live.topics.get(service).into_iter().flatten() {
                if let Some(client) = live.clients.get(number)
                    && client.state().session.changed(service, now)
                {
                    client.wake.notify_one();
                }
            }
        }
    }

    /// Connections that have made their set-up.
    pub(super) fn count(&self) -> usize {
        let live = self.live();
        let set_up = live.clients.values().filter(|client| client.is_set_up());
        set_up.count()
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    fn leave(&mut self, service: &ServiceKey, number: u64) {
        if let Some(numbers) = self.topics.get_mut(service) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.topics.remove(service);
            }
        }
    }
}

impl Client {
    pub(super) fn heard(&self, now: Timestamp) {
        self.state().session.heard(now);
    }

    pub(super) fn set_up(&self) {
        self.state().session.set_up();
    }

    pub(super) fn is_set_up(&self) -> bool {
        self.state().session.is_set_up()
    }

    pub(super) fn answered(&self, id: u64) {
        self.state().session.answered(id);
    }

    pub(super) fn step(&self, now: Timestamp) -> Option<Step> {
        self.state().session.step(now)
    }

    pub(super) fn next_deadline(&self) -> Timestamp {
        self.state().session.next_deadline()
    }

    /// It has, or has no longer, instances in a service.
    pub(super) fn note_published(&self, service: &ServiceKey, some: bool) {
        let mut state = self.state();
        if some {
            state.published.insert(service.clone());
        } else {
            state.published.remove(service);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
