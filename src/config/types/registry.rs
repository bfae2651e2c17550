//! The runtime form of `registries`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Listen;

/// One entry of `registries`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registry {
    /// Its key.
    pub name: Arc<str>,
    /// What it is.
    pub kind: RegistryKind,
    /// What a sudden empty answer means (rules G3, G4).
    pub empty: EmptyPolicy,
    /// Requests in flight to this registry at most.
    pub max_in_flight: usize,
    /// Of one request to it.
    pub timeout: Duration,
    /// Towards it; what speaks TLS is told by its address.
    pub tls: RegistryTls,
}

/// `registries.NAME.tls`. Without `ca_file` the usual public authorities are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryTls {
    /// Whether `tls` is written at all: then servers without a scheme are spoken to by TLS.
    pub enabled: bool,
    /// PEM authorities; read again when a connection is opened.
    pub ca_file: Option<PathBuf>,
    /// PEM chain of our own certificate.
    pub cert_file: Option<PathBuf>,
    /// PEM key of it.
    pub key_file: Option<PathBuf>,
    /// Name that the certificate must have, if not that of the address.
    pub server_name: Option<String>,
    /// Any certificate is taken.
    pub insecure: bool,
}

/// Rules G3 and G4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmptyPolicy {
    /// What a sudden empty answer means.
    pub on_empty: OnEmpty,
    /// It must have lasted this long ...
    pub grace: Duration,
    /// ... and be confirmed by this many answers.
    pub answers: u32,
    /// A drop of more than this percentage (and at least 3 instances) is held too.
    pub shrink_percent: u32,
}

/// `on_empty`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnEmpty {
    /// The last good set stays until the empty one is confirmed.
    Hold,
    /// It is true at once.
    Obey,
    /// It is never true.
    Never,
}

/// What a registry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryKind {
    /// Ours.
    Embedded(Embedded),
    /// An endpoints file, watched.
    File {
        /// The file.
        path: PathBuf,
    },
    /// Nacos by its v1 HTTP API or by gRPC.
    Nacos(Nacos),
    /// Eureka.
    Eureka(Eureka),
    /// Consul's agent.
    Consul(Consul),
    /// EndpointSlices.
    Kubernetes(Kubernetes),
    /// A, AAAA and SRV records.
    Dns(Dns),
    /// Dubbo's layouts in ZooKeeper.
    Zookeeper(Zookeeper),
}

impl RegistryKind {
    /// The word of `kind`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Embedded(_) => "embedded",
            Self::File { .. } => "file",
            Self::Nacos(_) => "nacos",
            Self::Eureka(_) => "eureka",
            Self::Consul(_) => "consul",
            Self::Kubernetes(_) => "kubernetes",
            Self::Dns(_) => "dns",
            Self::Zookeeper(_) => "zookeeper",
        }
    }

    /// The settings of ours.
    pub fn embedded(&self) -> Option<&Embedded> {
        if let Self::Embedded(embedded) = self {
            Some(embedded)
        } else {
            None
        }
    }

    /// Whether its instances and names are those of Nacos.
    pub fn is_nacos(&self) -> bool {
        matches!(self, Self::Nacos(_) | Self::Embedded(_))
    }

    /// Whether its health flags come from heart-beats: then "all unhealthy" is answered by using
    /// all that are enabled (G6).
    pub fn heartbeat(&self) -> bool {
        match self {
            Self::Embedded(_) | Self::Nacos(_) | Self::Eureka(_) | Self::Consul(_) => true,
            // Readiness is a probe; whoever does not trust it says so.
            Self::Kubernetes(kubernetes) => kubernetes.panic_on_unready,
            Self::File { .. } | Self::Dns(_) | Self::Zookeeper(_) => false,
        }
    }

    /// Whether it can list its services.
    pub fn lists(&self) -> bool {
        !matches!(self, Self::Dns(_) | Self::Zookeeper(_))
    }
}

/// `kind: embedded`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embedded {
    /// `None`: reachable in-process only.
    pub listen: Option<Listen>,
    /// Folder of the snapshot.
    pub data: Option<PathBuf>,
    /// Silence until an instance is unhealthy.
    pub unhealthy_after: Duration,
    /// Silence until it is removed.
    pub remove_after: Duration,
    /// What clients are told to beat at.
    pub beat_interval: Duration,
    /// Bounds.
    pub max_services: usize,
    /// Bounds.
    pub max_instances: usize,
    /// Bounds.
    pub max_metadata_bytes: usize,
    /// Connections to each of its two ports.
    pub max_connections: usize,
    /// `NAME: PASSWORD` lines; without it nobody needs to log in.
    pub users_file: Option<PathBuf>,
}

/// `kind: nacos`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nacos {
    /// `host:port` each; may be empty when `endpoint` is there.
    pub servers: Vec<String>,
    /// URL of a list of servers, one per line.
    pub endpoint: Option<String>,
    /// How it is spoken to.
    pub protocol: NacosProtocol,
    /// Ask for pushes by UDP (HTTP only): hints to poll now.
    pub udp_push: bool,
    /// Namespace id.
    pub namespace: Arc<str>,
    /// Group.
    pub group: Arc<str>,
    /// Empty: all.
    pub clusters: Vec<String>,
    /// For a login.
    pub username: Option<String>,
    /// File with the password.
    pub password_file: Option<PathBuf>,
    /// Inline password; loads with a warning.
    pub password: Option<Secret>,
}

/// Where Nacos, and the embedded registry, serve gRPC beside this HTTP port; `None`: there is no such
/// port.
pub fn grpc_port(http: u16) -> Option<u16> {
    http.checked_add(1000)
}

/// `protocol` of Nacos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NacosProtocol {
    /// gRPC, and HTTP where that is not answered.
    Auto,
    /// v1 HTTP API.
    Http,
    /// gRPC on the port + 1000.
    Grpc,
}

/// `kind: eureka`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eureka {
    /// Full prefixes, `http://host:8761/eureka`, without a `/` at the end and without user info.
    pub servers: Vec<String>,
    /// How the applications are read.
    pub mode: EurekaMode,
    /// Connect to `ipAddr`, not to `hostName`.
    pub prefer_ip: bool,
    /// Use the secure port.
    pub secure: bool,
    /// Basic authentication.
    pub username: Option<String>,
    /// File with the password.
    pub password_file: Option<PathBuf>,
    /// Inline password; loads with a warning.
    pub password: Option<Secret>,
}

/// `mode` of Eureka.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EurekaMode {
    /// `Delta` when auto-discovering or above 20 services, else `PerApp`.
    Auto,
    /// One request per application and period.
    PerApp,
    /// All of it once, then changes, reconciled by hash code.
    Delta,
}

/// `kind: consul`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consul {
    /// URL of the local agent, without a `/` at the end.
    pub address: String,
    /// File with the ACL token; read again when it is refused.
    pub token_file: Option<PathBuf>,
    /// `None`: that of the agent.
    pub datacenter: Option<String>,
    /// An instance must have all of them.
    pub tags: Vec<String>,
    /// An expression of Consul's filter language.
    pub filter: Option<String>,
    /// Of reads.
    pub consistency: Consistency,
    /// Name of a tagged address to connect to.
    pub tagged_address: Option<String>,
    /// How long a blocking query waits.
    pub wait: Duration,
}

/// `consistency` of Consul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Any server answers.
    Stale,
    /// The leader answers.
    Default,
    /// The leader answers after asking its followers.
    Consistent,
}

/// `kind: kubernetes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    /// URL of the API server, without a `/` at the end; `None`: in-cluster.
    pub api: Option<String>,
    /// `None`: that of the pod.
    pub token_file: Option<PathBuf>,
    /// `None`: that of the pod.
    pub ca_file: Option<PathBuf>,
    /// Watched ones; the first is where bare names live. Empty: the pod's own.
    pub namespaces: Vec<String>,
    /// Name of the port.
    pub port_name: Option<String>,
    /// Of the addresses.
    pub ip_family: IpFamily,
    /// Use all when none is ready.
    pub panic_on_unready: bool,
}

/// Which addresses are instances; never both families of one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    /// As our own address (`POD_IP`), else as `PreferV4`.
    Auto,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// IPv4 where there is any, else IPv6.
    PreferV4,
}

/// `kind: dns`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// `ip:port` each; empty: those of the system.
    pub servers: Vec<String>,
    /// Of the addresses.
    pub ip_family: IpFamily,
    /// Use the search list; else names are absolute.
    pub search: bool,
    /// Ask by TCP only.
    pub tcp: bool,
    /// Least time between two questions of a name.
    pub min_ttl: Duration,
    /// Longest time between two questions of a name.
    pub max_ttl: Duration,
}

/// `kind: zookeeper`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zookeeper {
    /// `host:port` each.
    pub servers: Vec<String>,
    /// Root of the interface-level layout.
    pub root: String,
    /// Which of Dubbo's layouts are read.
    pub layout: ZookeeperLayout,
    /// Of our session.
    pub session_timeout: Duration,
}

/// `layout` of ZooKeeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZookeeperLayout {
    /// `/ROOT/INTERFACE/providers`.
    Interface,
    /// `/services/APPLICATION`.
    Application,
    /// A name is looked for as an interface and as an application.
    Both,
}

/// A secret: never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}
