//! Who and where we are in a cluster: the API server, the files of the service account, our own
//! address. Where something is configured that wins.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::config::types::{Kubernetes, Registry, RegistryTls};

/// Where the kubelet puts the service account.
const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The namespace of those who have none.
const DEFAULT_NAMESPACE: &str = "default";

/// What a pod is told by its environment.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) mount: PathBuf,
    pub(super) host: Option<String>,
    pub(super) port: Option<String>,
    pub(super) own_ip: Option<IpAddr>,
    pub(super) own_namespace: Option<String>,
}

impl Surroundings {
    /// Those of this process.
    pub(super) fn read() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            mount: PathBuf::from(MOUNT),
            host: variable("KUBERNETES_SERVICE_HOST"),
            port: variable("KUBERNETES_SERVICE_PORT"),
            own_ip: variable("POD_IP").and_then(|ip| ip.parse().ok()),
            own_namespace: variable("POD_NAMESPACE"),
        }
    }
}

/// How the API server is spoken to.
#[derive(Debug)]
pub(super) struct Identity {
    /// `None`: nothing is configured, and this is no pod.
    pub(super) api: Option<String>,
    pub(super) tls: RegistryTls,
    pub(super) token_file: Option<PathBuf>,
    /// Watched; the first is where bare names live.
    pub(super) namespaces: Vec<String>,
}

impl Identity {
    pub(super) fn new(config: &Kubernetes, registry: &Registry, around: &Surroundings) -> Self {
        let in_cluster = config.api.is_none();
        let of_pod = |name: &str| {
            let path = around.mount.join(name);
            (in_cluster || path.exists()).then_some(path)
        };
        let api = config.api.clone().or_else(|| {
            let host = around.host.as_deref()?;
            let host = match host.contains(':') {
                true => format!("[{host}]"),
                false => host.to_owned(),
            };
            let port = around.port.as_deref().unwrap_or("443");
            Some(format!("https://{host}:{port}"))
        });
        let mut tls = registry.tls.clone();
        let configured = config.ca_file.clone().or(tls.ca_file);
        tls.ca_file = configured.or_else(|| of_pod("ca.crt"));
        let mut namespaces = config.namespaces.clone();
        if namespaces.is_empty() {
            namespaces.push(own_namespace(around));
        }
        Self {
            api,
            tls,
            token_file: config.token_file.clone().or_else(|| of_pod("token")),
            namespaces,
        }
    }
}

fn own_namespace(around: &Surroundings) -> String {
    let of_file = |path: &Path| std::fs::read_to_string(path).ok();
    let mounted = of_file(&around.mount.join("namespace"));
    let mounted = mounted.map(|text| text.trim().to_owned());
    mounted
        .filter(|name| !name.is_empty())
        .or_else(|| around.own_namespace.clone())
        .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::types::IpFamily;

    fn config() -> Kubernetes {
        Kubernetes {
            api: None,
            token_file: None,
            ca_file: None,
            namespaces: Vec::new(),
            port_name: None,
            ip_family: IpFamily::Auto,
            panic_on_unready: false,
        }
    }

    #[test]
    fn a_pod_knows_all_by_itself_and_what_is_written_wins() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("namespace"), "shop\n").unwrap();
        let mut around = Surroundings {
            mount: folder.path().to_owned(),
            host: Some("fd00::1".to_owned()),
            port: Some("6443".to_owned()),
            own_ip: None,
            own_namespace: None,
        };
        let registry = Registry::builtin();
        let pod = Identity::new(&config(), &registry, &around);
        assert_eq!(pod.api.as_deref(), Some("https://[fd00::1]:6443"));
        assert_eq!(pod.namespaces, ["shop"]);
        assert_eq!(pod.tls.ca_file, Some(folder.path().join("ca.crt")));
        assert_eq!(pod.token_file, Some(folder.path().join("token")));
        let mut written = config();
        written.api = Some("https://api.test".to_owned());
        written.namespaces = vec!["a".to_owned(), "b".to_owned()];
        let outside = Identity::new(&written, &registry, &around);
        assert_eq!(outside.api.as_deref(), Some("https://api.test"));
        assert_eq!((outside.tls.ca_file, outside.token_file), (None, None));
        assert_eq!(outside.namespaces, ["a", "b"]);
        around.host = None;
        assert_eq!(Identity::new(&config(), &registry, &around).api, None);
    }
}
