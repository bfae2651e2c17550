//! What the registrations with one registry share: its servers, its token, the limit of requests in
//! flight. Made anew when its configuration changes.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::consul::{self, ConsulRegistrar};
use super::embedded::EmbeddedRegistrar;
use super::eureka::EurekaRegistrar;
use super::nacos::NacosRegistrar;
use super::nacos::grpc::GrpcRegistrar;
use super::record::Record;
use super::registrar::Registrar;
use crate::clock::Clock;
use crate::config::types::{Nacos, NacosProtocol, Registry, RegistryKind};
use crate::discovery::{ServerList, follow_endpoint, nacos_servers};
use crate::http_client::auth::{Auth, TokenFile};
use crate::http_client::servers::{Server, Servers};
use crate::http_client::tls::TlsClient;
use crate::http_client::{HttpClient, MAX_BODY};
use crate::nacos_client::link::LinkSettings;
use crate::registry::EmbeddedRegistry;

/// A beat that one server does not answer within this time is brought to the next one in the same
/// period.
const PATIENCE: Duration = Duration::from_secs(3);
/// A token file is read again this often.
const TOKEN_PERIOD: Duration = Duration::from_secs(60);

/// One registry, for registrations.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) config: Registry,
    kind: Kind,
    /// Keeps the servers current where a URL lists them.
    _list: Option<ServerList>,
}

#[derive(Debug)]
enum Kind {
    Embedded(EmbeddedRegistry, Duration),
    Nacos(Arc<Servers>, Nacos),
    NacosGrpc(Box<ByGrpc>),
    Eureka(Arc<Servers>),
    Consul(Arc<Servers>),
}

/// What connections of their own are made with.
#[derive(Debug)]
struct ByGrpc {
    servers: Arc<Servers>,
    config: Nacos,
    http: HttpClient,
    clock: Clock,
    random: Mutex<fastrand::Rng>,
}

impl Client {
    /// `None` where nothing can be registered.
    pub(super) fn new(
        config: &Registry,
        embedded: Option<&EmbeddedRegistry>,
        clock: Clock,
        rng: &mut fastrand::Rng,
    ) -> Option<Self> {
        let http = HttpClient {
            timeout: config.timeout.min(PATIENCE),
            max_body: MAX_BODY,
        };
        let tls = Arc::new(TlsClient::new(config.tls.clone()));
        let mut list_of_servers = None;
        let kind = match &config.kind {
            RegistryKind::Embedded(settings) => {
                Kind::Embedded(embedded?.clone(), settings.beat_interval)
            }
            RegistryKind::Nacos(nacos) => {
                let servers = nacos_servers(nacos, config, http, clock, rng.u64(..));
                let servers = Arc::new(servers);
                list_of_servers = follow_endpoint(nacos, config, http, &servers, rng.u64(..));
                match nacos.protocol {
                    NacosProtocol::Grpc => Kind::NacosGrpc(Box::new(ByGrpc {
                        servers,
                        config: nacos.clone(),
                        http,
                        clock,
                        random: Mutex::new(rng.fork()),
                    })),
                    NacosProtocol::Auto | NacosProtocol::Http => {
                        Kind::Nacos(servers, nacos.clone())
                    }
                }
            }
            RegistryKind::Eureka(eureka) => {
                let list = eureka.servers.iter();
                let list: Vec<Server> = list.map(|text| Server::parse(text, 8761, &tls)).collect();
                let start = rng.usize(0..list.len().max(1));
                let servers = Servers::new(list, start, http, config.max_in_flight);
                Kind::Eureka(Arc::new(servers.with_auth(super::eureka::auth(eureka))))
            }
            RegistryKind::Consul(consul) => {
                let http = HttpClient {
                    timeout: consul::TIMEOUT,
                    ..http
                };
                let list = vec![Server::parse(&consul.address, 8500, &tls)];
                let header = http::HeaderName::from_static("x-consul-token");
                let token = consul.token_file.clone().map(|path| {
                    let token = TokenFile::new(path, header, "", TOKEN_PERIOD, clock);
                    Arc::new(token) as Arc<dyn Auth>
                });
                let servers = Servers::new(list, 0, http, config.max_in_flight);
                Kind::Consul(Arc::new(servers.with_auth(token)))
            }
            RegistryKind::File { .. }
            | RegistryKind::Kubernetes(_)
            | RegistryKind::Dns(_)
            | RegistryKind::Zookeeper(_) => return None,
        };
        Some(Self {
            config: config.clone(),
            kind,
            _list: list_of_servers,
        })
    }

    /// The registrar of an instance. `stamp` is the version of its record, where the registry wants
    /// one; `owner` says whose it is.
    ///
    /// # Errors
    /// The registry does not take such an instance.
    pub(super) fn registrar(
        &self,
        record: Record,
        stamp: &Arc<AtomicU64>,
        owner: &Arc<str>,
    ) -> Result<Arc<dyn Registrar>, String> {
        Ok(match &self.kind {
            Kind::Embedded(registry, interval) => {
                let registrar = EmbeddedRegistrar::new(registry.clone(), *interval, &record);
                Arc::new(registrar.map_err(|refusal| refusal.to_string())?)
            }
            Kind::Nacos(servers, config) => {
                Arc::new(NacosRegistrar::new(Arc::clone(servers), config, record))
            }
            Kind::NacosGrpc(grpc) => {
                let mut random = grpc.random.lock().unwrap_or_else(PoisonError::into_inner);
                let settings = LinkSettings {
                    namespace: Arc::clone(&grpc.config.namespace),
                    servers: Arc::clone(&grpc.servers),
                    http: grpc.http,
                    auth: grpc.servers.auth(),
                    max_in_flight: self.config.max_in_flight,
                    clock: grpc.clock,
                    random: random.fork(),
                    optional: false,
                };
                Arc::new(GrpcRegistrar::new(settings, &grpc.config, record))
            }
            Kind::Eureka(servers) => Arc::new(EurekaRegistrar::new(
                Arc::clone(servers),
                record,
                Arc::clone(stamp),
            )),
            Kind::Consul(servers) => Arc::new(ConsulRegistrar::new(
                Arc::clone(servers),
                record,
                Arc::clone(owner),
            )),
        })
    }
}
