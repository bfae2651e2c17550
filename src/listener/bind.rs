//! Binds addresses, before the process reports ready. Each address is bound once without sharing
//! first: a port that is taken is refused, since with shared ports a second process of the same
//! user would take half of the connections without a word.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use socket2::{Domain, Protocol, Socket, Type};

use crate::config::types::{Listen, grpc_port};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// A bound address with one socket per worker.
#[derive(Debug)]
pub struct BoundAddress {
    /// The address with its real port.
    pub address: SocketAddr,
    /// One listening socket per worker, all on the same port.
    pub sockets: Vec<TcpListener>,
}

/// An address that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Taken by somebody else.
    #[error("{address} is in use{owner}; stop that process or choose another port with `{key}`")]
    InUse {
        /// Which.
        address: String,
        /// ` by NAME (pid N)`, where it can be told.
        owner: String,
        /// The configuration key.
        key: &'static str,
    },
    /// Any other reason.
    #[error("cannot listen on {address} (`{key}`): {reason}")]
    Other {
        /// Which.
        address: String,
        /// The configuration key.
        key: &'static str,
        /// Why. Not named `source`: the text says it already, and a chain of errors would say it twice.
        reason: io::Error,
    },
}

/// What binding a `Listen` gave.
#[derive(Debug, Default)]
pub struct Bound {
    /// TCP addresses.
    pub tcp: Vec<BoundAddress>,
    /// Unix sockets, bound by the accepting side.
    pub unix: Vec<(PathBuf, std::os::unix::net::UnixListener)>,
    /// Families of `localhost` that could not be had.
    pub warnings: Vec<String>,
}

/// Binds `listen` with `sockets` sockets per TCP address.
///
/// # Errors
/// [`BindError`]; for `localhost` only when neither family can be had.
pub fn bind(listen: &Listen, sockets: usize, key: &'static str) -> Result<Bound, BindError> {
    let mut bound = Bound::default();
    match listen {
        Listen::Tcp(address) => bound.tcp.push(tcp(*address, sockets, key)?),
        Listen::Localhost(port) => localhost(*port, sockets, key, &mut bound)?,
        Listen::Unix(path) => {
            let other = |reason| BindError::Other {
                address: format!("unix:{}", path.display()),
                key,
                reason,
            };
            remove_stale_socket(path).map_err(other)?;
            let listener = std::os::unix::net::UnixListener::bind(path).map_err(other)?;
            listener.set_nonblocking(true).map_err(other)?;
            bound.unix.push((path.clone(), listener));
        }
    }
    Ok(bound)
}

/// Binds the two ports of an embedded registry: HTTP, and gRPC at the HTTP port + 1000 where Nacos
/// clients look for it. With port 0 both are chosen by the kernel. A Unix socket has no gRPC.
///
/// # Errors
/// [`BindError`] of either.
pub fn bind_registry(listen: &Listen, key: &'static str) -> Result<(Bound, Bound), BindError> {
    let http = bind(listen, 1, key)?;
    let asked = match listen {
        Listen::Tcp(address) => address.port(),
        Listen::Localhost(port) => *port,
        Listen::Unix(_) => return Ok((http, Bound::default())),
    };
    let mut grpc = Bound::default();
    let mut port = match asked {
        0 => 0,
        asked => grpc_port(asked).ok_or_else(|| BindError::Other {
            address: format!("port {asked} + 1000"),
            key,
            reason: io::Error::new(
                io::ErrorKind::InvalidInput,
                "that is where gRPC is served; choose a port up to 64535",
            ),
        })?,
    };
    for address in &http.tcp {
        let bound = tcp(SocketAddr::new(address.address.ip(), port), 1, key)?;
        // The second family takes the port that the first one was given.
        port = bound.address.port();
        grpc.tcp.push(bound);
    }
    Ok((http, grpc))
}

/// Both families; with port 0 the second one takes the first one's port.
fn localhost(
    port: u16,
    sockets: usize,
    key: &'static str,
    bound: &mut Bound,
) -> Result<(), BindError> {
    let v4 = tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), sockets, key);
    let second = v4.as_ref().map_or(port, |b| b.address.port());
    let v6 = tcp(
        SocketAddr::from((Ipv6Addr::LOCALHOST, second)),
        sockets,
        key,
    );
    match (v4, v6) {
        (Err(error @ BindError::InUse { .. }), _) | (_, Err(error @ BindError::InUse { .. })) => {
            // One family taken by another process means that half of the apps would reach it.
            Err(error)
        }
        (Err(error), Err(_)) => Err(error),
        (Ok(one), Ok(two)) => {
            bound.tcp.extend([one, two]);
            Ok(())
        }
        (Ok(one), Err(error)) | (Err(error), Ok(one)) => {
            bound.tcp.push(one);
            bound.warnings.push(error.to_string());
            Ok(())
        }
    }
}

fn tcp(address: SocketAddr, sockets: usize, key: &'static str) -> Result<BoundAddress, BindError> {
    let fail = |reason: io::Error| {
        if reason.kind() == io::ErrorKind::AddrInUse {
            let owner = owner_of(address).unwrap_or_default();
            return BindError::InUse {
                address: address.to_string(),
                owner,
                key,
            };
        }
        BindError::Other {
            address: address.to_string(),
            key,
            reason,
        }
    };
    // Alone first, so that a taken port is noticed; SO_REUSEADDR only passes over TIME_WAIT. A port
    // that the kernel is to choose is free: it is kept at once, since between two binds an outgoing
    // connection could take it.
    let chosen = address.port() == 0;
    let first = socket(address, chosen && sockets > 1).map_err(fail)?;
    first.bind(&address.into()).map_err(fail)?;
    first
        .listen(if chosen { BACKLOG } else { 1 })
        .map_err(fail)?;
    let real = first
        .local_addr()
        .map_err(fail)?
        .as_socket()
        .unwrap_or(address);
    let mut listeners = Vec::with_capacity(sockets);
    if chosen {
        listeners.push(first.into());
    } else {
        drop(first);
    }
    while listeners.len() < sockets.max(1) {
        let socket = socket(real, sockets > 1).map_err(fail)?;
        socket.bind(&real.into()).map_err(fail)?;
        socket.listen(BACKLOG).map_err(fail)?;
        listeners.push(socket.into());
    }
    Ok(BoundAddress {
        address: real,
        sockets: listeners,
    })
}

fn socket(address: SocketAddr, share: bool) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        // `[::]` takes both families where it is written; `[::1]` is itself.
        let both = address.ip() == std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        socket.set_only_v6(!both)?;
    }
    if share {
        socket.set_reuse_port(true)?;
    }
    Ok(socket)
}

/// A socket file that nobody listens on is left over from a crash.
fn remove_stale_socket(path: &std::path::Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => {
            match std::os::unix::net::UnixStream::connect(path) {
                Ok(_) => Err(io::Error::from(io::ErrorKind::AddrInUse)),
                Err(_) => std::fs::remove_file(path),
            }
        }
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file of that name exists",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// ` by NAME (pid N)`, from /proc where it is there and readable.
fn owner_of(address: SocketAddr) -> Option<String> {
    let port = format!(":{:04X}", address.port());
    let mut inodes = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        for line in text.lines().skip(1) {
            let mut fields = line.split_whitespace();
            let local = fields.nth(1).unwrap_or_default();
            let state = fields.nth(1).unwrap_or_default();
            let inode = fields.nth(5).unwrap_or_default();
            if local.ends_with(&port) && state == "0A" {
                inodes.push(format!("socket:[{inode}]"));
            }
        }
    }
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let pid = process.file_name().into_string().unwrap_or_default();
        if !pid.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        for file in files.flatten() {
            let Ok(target) = std::fs::read_link(file.path()) else {
                continue;
            };
            if inodes.iter().any(|i| target.as_os_str() == i.as_str()) {
                let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                return Some(format!(" by {} (pid {pid})", name.trim()));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_zero_gives_both_families_one_port_and_a_taken_one_is_named() {
        let bound = bind(&Listen::Localhost(0), 2, "listen").unwrap();
        let port = bound.tcp[0].address.port();
        assert!(
            bound
                .tcp
                .iter()
                .all(|b| b.address.port() == port && b.sockets.len() == 2)
        );
        let again = bind(&Listen::Tcp(bound.tcp[0].address), 2, "listen").unwrap_err();
        let text = again.to_string();
        assert!(
            text.contains(&port.to_string()) && text.contains("in use"),
            "{text}"
        );
        assert!(text.contains(&std::process::id().to_string()), "{text}");
    }

    #[test]
    fn a_reason_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("file");
        std::fs::write(&taken, "").unwrap();
        for (path, reason) in [
            (taken, "a file of that name exists"),
            (folder.path().join("none/socket"), "No such file"),
        ] {
            let error = bind(&Listen::Unix(path), 1, "listen").unwrap_err();
            let text = format!("{:#}", anyhow::Error::from(error));
            assert_eq!(text.matches(reason).count(), 1, "{text}");
        }
    }
}
