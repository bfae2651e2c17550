//! `check --preflight`: what of this machine a start would meet. Nothing is changed: a TCP port is
//! bound for a moment, a registry is connected to and left, files are only looked at.

use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::config::diagnostic::Code;
use crate::config::types::{Config, Listen, RegistryKind, Sink};

/// A remark: code, what it is about, what is wrong, what would be right.
pub(super) type Remark = (Code, String, String, String);

/// Of one connection to a registry.
const PATIENCE: Duration = Duration::from_secs(2);
/// Below it a proxy runs out of open files soon.
const FEW_FILES: u64 = 4096;

/// What was found: notes for people, and remarks.
pub(super) fn look(config: &Config) -> (String, Vec<Remark>) {
    let mut remarks = Vec::new();
    for (key, listen) in listeners(config) {
        if let Err(why) = free(&listen) {
            let shown = listen.to_string();
            remarks.push((
                Code::PORT_TAKEN,
                key.clone(),
                format!("`{key}`: {shown} cannot be listened on: {why}"),
                "stop what has it, or choose another; a running outrigger has its own".to_owned(),
            ));
        }
    }
    remarks.extend(open_files(config));
    for registry in config.registries.values() {
        let key = format!("registries.{}", registry.name);
        let servers = servers(&registry.kind);
        let failed: Vec<String> = servers
            .iter()
            .filter_map(|server| Some(format!("{server}: {}", connect(server).err()?)))
            .collect();
        if !failed.is_empty() {
            let all = failed.len() == servers.len();
            let which = if all { "no server" } else { "a server" };
            let verb = if all { "answers" } else { "does not answer" };
            remarks.push((
                Code::REGISTRY_UNREACHABLE,
                key.clone(),
                format!("`{key}`: {which} {verb}: {}", failed.join("; ")),
                "check addresses and network; a start works without, from the cache or when it \
                 comes"
                    .to_owned(),
            ));
        }
        let data = registry.kind.embedded().and_then(|e| e.data.as_deref());
        remarks.extend(data.and_then(|path| folder(&format!("{key}.data"), path)));
    }
    let log = &config.telemetry.access_log.sink;
    let sinks = std::iter::once(("telemetry.access_log.sink", log));
    let events = config.telemetry.events.sinks.iter();
    for (key, sink) in sinks.chain(events.map(|sink| ("telemetry.events.sinks", sink))) {
        if let Sink::File(path) = sink {
            remarks.extend(path.parent().and_then(|parent| folder(key, parent)));
        }
    }
    let state = config.state_file.as_deref().and_then(Path::parent);
    remarks.extend(state.and_then(|parent| folder("state_file", parent)));
    (notes(config), remarks)
}

/// Where a registry listens by TCP, `host:port` each.
fn servers(kind: &RegistryKind) -> Vec<String> {
    let of_url = |url: &String| {
        let uri: http::Uri = url.parse().ok()?;
        let port = match uri.scheme_str() {
            Some("https") => 443,
            _ => 80,
        };
        Some(format!(
            "{}:{}",
            uri.host()?,
            uri.port_u16().unwrap_or(port)
        ))
    };
    match kind {
        RegistryKind::Nacos(nacos) => nacos.servers.clone(),
        RegistryKind::Eureka(eureka) => eureka.servers.iter().filter_map(of_url).collect(),
        RegistryKind::Consul(consul) => of_url(&consul.address).into_iter().collect(),
        RegistryKind::Kubernetes(settings) => {
            settings.api.as_ref().and_then(of_url).into_iter().collect()
        }
        RegistryKind::Zookeeper(zookeeper) => zookeeper.servers.clone(),
        // DNS servers need not answer by TCP.
        RegistryKind::Embedded(_) | RegistryKind::File { .. } | RegistryKind::Dns(_) => Vec::new(),
    }
}

fn listeners(config: &Config) -> Vec<(String, Listen)> {
    let mut all: Vec<(String, Listen)> = Vec::new();
    for listen in &config.listen {
        all.push(("listen".to_owned(), listen.clone()));
    }
    all.push(("admin.listen".to_owned(), config.admin.listen.clone()));
    let loopback = |port: u16| Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], port)));
    let telemetry = config.telemetry.listen.clone();
    let telemetry = telemetry.unwrap_or_else(|| loopback(15003));
    all.push(("telemetry.listen".to_owned(), telemetry));
    for (name, registry) in &config.registries {
        if let RegistryKind::Embedded(embedded) = &registry.kind
            && let Some(listen) = &embedded.listen
        {
            all.push((format!("registries.{name}.listen"), listen.clone()));
        }
    }
    for (name, service) in &config.services {
        if let Some(port) = service.port {
            all.push((format!("services.{name}.port"), loopback(port)));
        }
    }
    all
}

/// Whether it can be bound; of `localhost` one family is enough.
fn free(listen: &Listen) -> Result<(), String> {
    let bind = |address: SocketAddr| match address.port() {
        0 => Ok(()),
        _ => TcpListener::bind(address)
            .map(drop)
            .map_err(|error| error.to_string()),
    };
    match listen {
        Listen::Tcp(address) => bind(*address),
        Listen::Localhost(port) => {
            let v4 = bind(SocketAddr::from(([127, 0, 0, 1], *port)));
            let v6 = bind(SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, *port)));
            // A family that this machine does not have is no matter; a port in use is.
            match (v4, v6) {
                (Err(why), Err(_)) => Err(why),
                (Err(why), Ok(())) | (Ok(()), Err(why)) if why.contains("in use") => Err(why),
                (Ok(()) | Err(_), Ok(()) | Err(_)) => Ok(()),
            }
        }
        Listen::Unix(path) => {
            if path.exists() && UnixStream::connect(path).is_ok() {
                return Err("somebody answers there".to_owned());
            }
            match path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty())
            {
                Some(parent) if !parent.is_dir() => {
                    Err(format!("the folder {} does not exist", parent.display()))
                }
                Some(_) | None => Ok(()),
            }
        }
    }
}

fn open_files(config: &Config) -> Option<Remark> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    // None is no limit at all. The soft one is raised to the hard one at the start.
    let hard = limit.maximum?;
    // One for the app's side and one for the instance's.
    let wanted = u64::try_from(config.limits.max_connections).unwrap_or(u64::MAX);
    let wanted = wanted.saturating_mul(2);
    if hard >= FEW_FILES && hard >= wanted {
        return None;
    }
    let message = format!(
        "at most {hard} files may be open; `limits.max_connections` alone may take {wanted}"
    );
    let help = "raise the hard limit (ulimit -Hn, LimitNOFILE=), or lower `limits.max_connections`";
    Some((
        Code::FEW_OPEN_FILES,
        "limits.max_connections".to_owned(),
        message,
        help.to_owned(),
    ))
}

fn connect(server: &str) -> Result<(), String> {
    let addresses = server
        .to_socket_addrs()
        .map_err(|error| error.to_string())?;
    let mut last = "the name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(_) => return Ok(()),
            Err(error) => last = error.to_string(),
        }
    }
    Err(last)
}

fn folder(key: &str, path: &Path) -> Option<Remark> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return None;
    }
    let message = format!("`{key}`: the folder {} does not exist", path.display());
    let help = "create it, writable for the user outrigger runs as";
    Some((
        Code::FOLDER_ABSENT,
        key.to_owned(),
        message,
        help.to_owned(),
    ))
}

/// What to give the orchestrator.
fn notes(config: &Config) -> String {
    let delay = config.app.propagation_delay.unwrap_or_default();
    let drain = config.app.drain_timeout;
    let show = |time: Duration| {
        humantime::format_duration(time)
            .to_string()
            .replace(' ', "")
    };
    format!(
        "\nterminationGracePeriodSeconds: at least {} s ({} propagation_delay + {} drain_timeout) and \
         the time the app itself takes to stop\n",
        (delay + drain).as_secs_f64().ceil(),
        show(delay),
        show(drain)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_str;

    #[test]
    fn what_is_in_the_way_is_named_by_its_key() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let text = format!(
            "listen: 127.0.0.1:{port}\nadmin: {{listen: \"127.0.0.1:0\"}}\ntelemetry: {{listen: \
             \"127.0.0.1:0\", access_log: {{sink: /none/such/x.log}}}}\nregistries: {{n: {{kind: \
             nacos, servers: [\"127.0.0.1:1\"]}}}}\nlimits: {{max_connections: 1}}\nstate_file: /none/such/state.json\n"
        );
        let env = std::collections::BTreeMap::new();
        let config = parse_str(&text, "t", &env, None).config.unwrap();
        let (notes, remarks) = look(&config);
        let found: Vec<(Code, &str)> = remarks.iter().map(|r| (r.0, &*r.1)).collect();
        for want in [
            (Code::PORT_TAKEN, "listen"),
            (Code::REGISTRY_UNREACHABLE, "registries.n"),
            (Code::FOLDER_ABSENT, "telemetry.access_log.sink"),
            (Code::FOLDER_ABSENT, "state_file"),
        ] {
            assert!(found.contains(&want), "{want:?}: {remarks:?}");
        }
        assert!(!found.contains(&(Code::PORT_TAKEN, "admin.listen")));
        assert!(notes.contains("at least 25 s"), "{notes}");
    }
}
