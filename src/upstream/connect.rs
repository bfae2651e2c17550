//! Opens one TCP connection to an instance. The caller bounds the time.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, lookup_host};

use crate::endpoint::instance::Instance;

/// A quiet connection is looked after by TCP: first probe, and how often it is repeated without an
/// answer before the connection is given up.
const PROBE_AFTER: Duration = Duration::from_secs(15);
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
/// What is written and not taken by the other side for so long ends the connection.
const UNTAKEN: Duration = Duration::from_secs(30);

/// Connects to the instance's address; a name is resolved now, its addresses are tried in order.
///
/// # Errors
/// The last address's error, or the resolver's.
pub async fn tcp(instance: &Instance) -> io::Result<TcpStream> {
    let stream = match instance.socket {
        Some(socket) => TcpStream::connect(socket).await?,
        None => by_name(instance.address.as_str()).await?,
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Has the kernel end a connection whose other side is no longer there (a host that went away, a NAT
/// entry that expired), also while it is quiet. Unlike pings of HTTP/2 the instance's program sees nothing
/// of it. A kernel that cannot do it leaves the connection as it is.
pub fn watch_peer(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(PROBE_AFTER)
        .with_interval(PROBE_EVERY)
        .with_retries(PROBES);
    let _unsupported = socket.set_tcp_keepalive(&keepalive);
    #[cfg(target_os = "linux")]
    let _unsupported = socket.set_tcp_user_timeout(Some(UNTAKEN));
}

async fn by_name(host_port: &str) -> io::Result<TcpStream> {
    let mut last = None;
    for socket in lookup_host(host_port).await? {
        match TcpStream::connect(socket).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")))
}

/// Out of files, memory or local ports: that says nothing about the instance.
pub fn is_our_own(error: &io::Error) -> bool {
    // ENFILE, EMFILE, ENOMEM, ENOBUFS, EADDRNOTAVAIL.
    matches!(error.raw_os_error(), Some(23 | 24 | 12 | 105 | 99))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_watches_a_quiet_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await;
        let stream = stream.unwrap();
        watch_peer(&stream);
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), PROBE_AFTER);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), PROBE_EVERY);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), PROBES);
        #[cfg(target_os = "linux")]
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(UNTAKEN));
    }
}
