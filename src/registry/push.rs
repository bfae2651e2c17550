//! UDP push of Nacos 1.x: a client that lists a service with `udpPort` is sent the new list soon after
//! a change, and polls less. Sent once: a lost datagram costs one poll. Acknowledgements are not
//! read. Only the address a list call came from is ever sent to, so that nobody can aim us at others.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use http::header::USER_AGENT;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tracing::debug;

use super::model::ServiceKey;
use super::params::Params;
use super::{EmbeddedRegistry, naming, stopped};
use crate::clock::Timestamp;

/// A subscription lives this long after the last list call.
const LIFE: Duration = Duration::from_secs(60);
/// Changes of this time are pushed together.
const GATHER: Duration = Duration::from_millis(500);
/// Subscriptions of all services.
const MAX_SUBSCRIBERS: usize = 10_000;
/// A larger list is left to polling.
const MAX_DATAGRAM: usize = 60_000;
/// Clients that take a push, by how their user agent starts.
const CLIENTS: [&str; 6] = [
    "Nacos-Java-Client:",
    "Nacos-Go-Client:",
    "Nacos-CSharp-Client:",
    "Nacos-C-Client:",
    "Nacos-DNS:",
    "vip-client4cpp:",
];

/// Where a request came from; all unknown on a Unix socket.
#[derive(Clone, Debug, Default)]
pub(super) struct Caller {
    /// Our own address on that connection.
    pub(super) local: Option<IpAddr>,
    /// The other end.
    pub(super) remote: Option<IpAddr>,
    socket: Option<Arc<UdpSocket>>,
}

/// Whom to push to, and from which socket.
#[derive(Debug)]
pub(super) struct PushAddress {
    to: SocketAddr,
    socket: Arc<UdpSocket>,
}

impl Caller {
    pub(super) fn new(stream: &TcpStream, socket: Option<Arc<UdpSocket>>) -> Self {
        Self {
            local: stream.local_addr().ok().map(|address| address.ip()),
            remote: stream.peer_addr().ok().map(|address| address.ip()),
            socket,
        }
    }

    /// The same, without a push if the client would not take one.
    pub(super) fn with_headers(&self, headers: &HeaderMap) -> Self {
        let names = [headers.get(USER_AGENT), headers.get("client-version")];
        let mut names = names
            .into_iter()
            .flatten()
            .filter_map(|name| name.to_str().ok());
        let takes = names.any(|name| CLIENTS.iter().any(|client| name.starts_with(client)));
        Self {
            socket: self.socket.clone().filter(|_| takes),
            ..self.clone()
        }
    }

    /// Where this list call wants pushes.
    pub(super) fn push_address(&self, params: &Params) -> Option<PushAddress> {
        let port: u16 = params
            .get("udpPort")?
            .parse()
            .ok()
            .filter(|port| *port > 0)?;
        let to = SocketAddr::new(self.remote?, port);
        Some(PushAddress {
            to,
            socket: self.socket.clone()?,
        })
    }
}

/// Subscriptions and what is to be told.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    subscribers: Mutex<HashMap<Topic, HashMap<SocketAddr, Subscriber>>>,
    pending: watch::Sender<BTreeSet<ServiceKey>>,
}

/// A service and the clusters asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Topic {
    service: ServiceKey,
    clusters: String,
}

#[derive(Clone, Debug)]
struct Subscriber {
    until: Timestamp,
    socket: Arc<UdpSocket>,
}

impl Pushes {
    /// Subscribes a client or renews that.
    pub(super) fn subscribe(
        &self,
        service: &ServiceKey,
        clusters: &str,
        address: PushAddress,
        now: Timestamp,
    ) {
        let topic = Topic {
            service: service.clone(),
            clusters: clusters.to_owned(),
        };
        let subscriber = Subscriber {
            until: now + LIFE,
            socket: address.socket,
        };
        let mut subscribers = self.lock();
        let known = subscribers
            .get(&topic)
            .is_some_and(|all| all.contains_key(&address.to));
        if !known {
            retain(&mut subscribers, now);
            if subscribers.values().map(HashMap::len).sum::<usize>() >= MAX_SUBSCRIBERS {
                return;
            }
        }
        subscribers
            .entry(topic)
            .or_default()
            .insert(address.to, subscriber);
    }

    /// Notes that services changed.
    pub(super) fn changed(&self, services: BTreeSet<ServiceKey>) {
        if !services.is_empty() && !self.lock().is_empty() {
            self.pending.send_modify(|pending| pending.extend(services));
        }
    }

    fn due(&self, now: Timestamp) -> Vec<(Topic, Vec<(SocketAddr, Subscriber)>)> {
        let services = self.pending.send_replace(BTreeSet::new());
        let mut subscribers = self.lock();
        retain(&mut subscribers, now);
        let due = subscribers
            .iter()
            .filter(|(topic, _)| services.contains(&topic.service));
        due.map(|(topic, all)| (topic.clone(), all.clone().into_iter().collect()))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Topic, HashMap<SocketAddr, Subscriber>>> {
        self.subscribers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn retain(subscribers: &mut HashMap<Topic, HashMap<SocketAddr, Subscriber>>, now: Timestamp) {
    subscribers.retain(|_, all| {
        all.retain(|_, subscriber| subscriber.until > now);
        !all.is_empty()
    });
}

/// A socket on the address of a listener; without one there are no pushes.
pub(super) async fn socket(listener: &TcpListener) -> Option<Arc<UdpSocket>> {
    let ip = listener.local_addr().ok()?.ip();
    match UdpSocket::bind(SocketAddr::new(ip, 0)).await {
        Ok(socket) => Some(Arc::new(socket)),
        Err(error) => {
            debug!(%error, "registry pushes are off");
            None
        }
    }
}

/// Pushes until `shutdown`.
pub(super) async fn run(registry: &EmbeddedRegistry, mut shutdown: watch::Receiver<bool>) {
    let mut pending = registry.0.pushes.pending.subscribe();
    loop {
        tokio::select! {
            () = stopped(&mut shutdown) => return,
            result = pending.wait_for(|services| !services.is_empty()) => drop(result),
        }
        tokio::select! {
            () = stopped(&mut shutdown) => return,
            () = tokio::time::sleep(GATHER) => {}
        }
        let now = registry.0.clock.now();
        for (topic, subscribers) in registry.0.pushes.due(now) {
            push(registry, &topic, subscribers, now).await;
        }
    }
}

async fn push(
    registry: &EmbeddedRegistry,
    topic: &Topic,
    subscribers: Vec<(SocketAddr, Subscriber)>,
    now: Timestamp,
) {
    let mut list = naming::listed(registry, &topic.service, &topic.clusters, false);
    list.cache_millis = naming::PUSHED_CACHE_MILLIS;
    let Ok(data) = serde_json::to_string(&list) else {
        return;
    };
    // The outer time only pairs the acknowledgement; clients order by the one inside `data`.
    let datagram = json!({"type": "dom", "data": data, "lastRefTime": now.as_nanos()}).to_string();
    if datagram.len() > MAX_DATAGRAM {
        debug!(service = %topic.service, bytes = datagram.len(), "list is too large for a push");
        return;
    }
    for (address, subscriber) in subscribers {
        if let Err(error) = subscriber
            .socket
            .send_to(datagram.as_bytes(), address)
            .await
        {
            debug!(%error, %address, "registry push failed");
        }
    }
}
