//! UDP pushes of Nacos, for polling (`udp_push`): a socket of ours that servers are told in each list
//! call. A push of a configured server is acknowledged and makes the poll of that service due now;
//! others are ignored.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::datagram::{self, Hint, Order};
use crate::clock::Clock;
use crate::http_client::Target;
use crate::http_client::body::inflate;
use crate::http_client::servers::{Server, Servers};

/// As Nacos's own clients call themselves: it pushes to those it knows.
pub(super) const PUSHED_AGENT: &str = "Nacos-Go-Client:v1.0.0";
/// Bytes of a datagram, and inflated.
const MAX_DATAGRAM: usize = 65_536;
const MAX_INFLATED: usize = 4 * 1024 * 1024;
/// The addresses of servers are looked up again after this.
const RESOLVED_FOR: Duration = Duration::from_secs(60);
/// Hints that wait; who missed some polls.
const HINTS: usize = 256;

/// The socket and its task, which ends with this.
#[derive(Debug)]
pub(super) struct UdpPush {
    /// What servers are to send to.
    pub(super) address: SocketAddr,
    hints: broadcast::Sender<Hint>,
    _task: JoinSet<()>,
}

impl UdpPush {
    /// Opens a socket on the address that the servers reach us at; `None`: there are no pushes yet.
    pub(super) async fn start(servers: Arc<Servers>, clock: Clock) -> Option<Self> {
        let from = addresses(&servers.list()).await;
        if from.is_empty() {
            warn!("no server of nacos has an address yet: no pushes by UDP, polls only");
            return None;
        }
        let opened = open(&from).await;
        let (socket, address) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                warn!(%error, "no UDP socket for pushes of nacos: polls only");
                return None;
            }
        };
        let (hints, _) = broadcast::channel(HINTS);
        let mut task = JoinSet::new();
        task.spawn(receive(socket, servers, clock, hints.clone()));
        Some(Self {
            address,
            hints,
            _task: task,
        })
    }

    /// Hints from now on.
    pub(super) fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }
}

/// A socket, and its address as a server sees it.
async fn open(servers: &BTreeSet<SocketAddr>) -> std::io::Result<(UdpSocket, SocketAddr)> {
    let mut ip = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    if let Some(server) = servers.iter().find(|address| address.is_ipv4()) {
        // Sends nothing; tells which address of ours leads there.
        let probe = UdpSocket::bind((ip, 0)).await?;
        probe.connect(server).await?;
        ip = probe.local_addr()?.ip();
    }
    let socket = UdpSocket::bind((ip, 0)).await?;
    let address = socket.local_addr()?;
    Ok((socket, address))
}

/// The addresses of all servers.
async fn addresses(servers: &[Server]) -> BTreeSet<SocketAddr> {
    let mut all = BTreeSet::new();
    for server in servers {
        let (Target::Tcp(address) | Target::Tls(address, _)) = &server.target else {
            continue;
        };
        if let Ok(found) = tokio::net::lookup_host(address).await {
            all.extend(found);
        }
    }
    all
}

async fn receive(
    socket: UdpSocket,
    servers: Arc<Servers>,
    clock: Clock,
    hints: broadcast::Sender<Hint>,
) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    let mut order = Order::default();
    let mut known = addresses(&servers.list()).await;
    let (mut list, mut resolved) = (servers.list(), clock.now());
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // An unreachable port of an earlier acknowledgement shows here.
                debug!(%error, "UDP push");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let now = servers.list();
        if !Arc::ptr_eq(&list, &now) || clock.now().since(resolved) >= RESOLVED_FOR {
            known = addresses(&now).await;
            (list, resolved) = (now, clock.now());
        }
        if !known.iter().any(|server| server.ip() == from.ip()) {
            debug!(%from, "UDP push of somebody who is no server");
            continue;
        }
        let bytes = buffer.get(..length).unwrap_or_default();
        let plain = match bytes.starts_with(&[0x1f, 0x8b]) {
            true => inflate(bytes, MAX_INFLATED).unwrap_or_default(),
            false => bytes.to_vec().into(),
        };
        let Some(read) = datagram::read(&plain) else {
            debug!(%from, "UDP push that is none");
            continue;
        };
        if let Err(error) = socket.send_to(read.ack.as_bytes(), from).await {
            debug!(%from, %error, "UDP push not acknowledged");
        }
        if let Some(hint) = read.hint.filter(|hint| order.is_new(hint)) {
            // Nobody may be listening just now.
            let _listeners = hints.send(hint);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::http_client::HttpClient;

    const PUSH: &str =
        r#"{"type":"dom","data":"{\"name\":\"g@@s\",\"lastRefTime\":7}","lastRefTime":12}"#;
    const ACK: &[u8] = br#"{"type":"push-ack","lastRefTime":"12","data":""}"#;

    async fn started() -> UdpPush {
        let http = HttpClient {
            timeout: Duration::from_secs(1),
            max_body: 1,
        };
        let server = Server {
            target: Target::Tcp("127.0.0.1:8848".to_owned()),
            prefix: String::new(),
        };
        let servers = Arc::new(Servers::new(Vec::new(), 0, http, 1));
        // Nobody is there yet: that is not for ever.
        let clock = Clock::new();
        assert!(UdpPush::start(servers.clone(), clock).await.is_none());
        servers.replace(vec![server]);
        UdpPush::start(servers, clock).await.unwrap()
    }

    async fn acknowledged(socket: &UdpSocket) -> Vec<u8> {
        let mut ack = vec![0; 100];
        let (length, _) = socket.recv_from(&mut ack).await.unwrap();
        ack.truncate(length);
        ack
    }

    #[tokio::test]
    async fn row_15_a_push_of_a_server_is_acknowledged_and_a_hint_a_foreign_one_is_neither() {
        let push = started().await;
        assert_eq!(push.address.ip(), Ipv4Addr::LOCALHOST);
        let mut hints = push.hints();
        let foreign = UdpSocket::bind("127.0.0.2:0").await.unwrap();
        let stale = PUSH.replace("g@@s", "g@@foreign");
        foreign
            .send_to(stale.as_bytes(), push.address)
            .await
            .unwrap();
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        server.send_to(b"rubbish", push.address).await.unwrap();
        server.send_to(PUSH.as_bytes(), push.address).await.unwrap();
        assert_eq!(acknowledged(&server).await, ACK);
        let first = hints.recv().await.unwrap();
        assert_eq!((first.group.as_str(), first.name.as_str()), ("g", "s"));
        // Older than the last one, acknowledged all the same; then a newer one in gzip.
        let older = PUSH.replace("\\\"lastRefTime\\\":7", "\\\"lastRefTime\\\":6");
        server
            .send_to(older.as_bytes(), push.address)
            .await
            .unwrap();
        assert_eq!(acknowledged(&server).await, ACK);
        let newer = PUSH.replace("\\\"lastRefTime\\\":7", "\\\"lastRefTime\\\":8");
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(newer.as_bytes()).unwrap();
        let gzip = gzip.finish().unwrap();
        server.send_to(&gzip, push.address).await.unwrap();
        assert_eq!(acknowledged(&server).await, ACK);
        let second = hints.recv().await.unwrap();
        assert_ne!(first, second, "the older one in between was no hint");
        assert!(hints.try_recv().is_err());
        assert!(
            foreign.try_recv_from(&mut [0; 10]).is_err(),
            "no answer to a stranger"
        );
    }
}
