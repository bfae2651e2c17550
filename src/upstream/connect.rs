//! Opens one TCP connection to an instance. The caller bounds the time.

use std::io;

use tokio::net::{TcpStream, lookup_host};

use crate::endpoint::instance::Instance;

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
