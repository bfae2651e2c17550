//! Provider URLs and configurators, as names of nodes: form-encoded as a whole, their parameters once
//! more.

use std::collections::BTreeMap;

/// `dubbo://10.0.0.5:20880/com.acme.OrderService?version=1.0.0&weight=100`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provider {
    /// `dubbo`, `tri`, `rest`, ...
    pub protocol: String,
    /// An address or a name, without brackets.
    pub host: String,
    /// 0: none.
    pub port: u16,
    /// Without the slash before it.
    pub path: String,
    /// Decoded.
    pub params: BTreeMap<String, String>,
}

impl Provider {
    /// From the name of a node; `None`: no URL, or one without a port.
    pub fn from_node(name: &str) -> Option<Self> {
        Self::from_url(&decoded(name)).filter(|provider| provider.port > 0)
    }

    fn from_url(url: &str) -> Option<Self> {
        let (protocol, rest) = url.split_once("://")?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let authority = authority.rsplit_once('@').map_or(authority, |(_, a)| a);
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
            Some(_) | None => (authority, 0),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if protocol.is_empty() || host.is_empty() {
            return None;
        }
        let params = form_urlencoded::parse(query.as_bytes());
        Some(Self {
            protocol: protocol.to_owned(),
            host: host.to_owned(),
            port,
            path: path.to_owned(),
            params: params
                .map(|(key, value)| (key.into_owned(), value.into_owned()))
                .collect(),
        })
    }

    /// A parameter, empty where it is absent.
    pub fn param(&self, key: &str) -> &str {
        self.params.get(key).map(String::as_str).unwrap_or_default()
    }

    /// All that its port speaks.
    pub fn protocols(&self) -> impl Iterator<Item = &str> {
        let more = self.param("ext.protocol").split(',').map(str::trim);
        std::iter::once(self.protocol.as_str()).chain(more.filter(|word| !word.is_empty()))
    }

    /// `group/version protocol`, for people.
    pub(super) fn key(&self) -> String {
        let or_none = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
        let (group, version) = (or_none(self.param("group")), or_none(self.param("version")));
        format!("group {group} version {version} protocol {}", self.protocol)
    }
}

/// `override://0.0.0.0/com.acme.OrderService?category=configurators&disabled=true`: what an operator
/// wants to be different at all providers or at one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override(Provider);

impl Override {
    /// From the name of a node; `None`: not an override that concerns addresses.
    pub fn from_node(name: &str) -> Option<Self> {
        let url = Provider::from_url(&decoded(name))?;
        let known = matches!(url.protocol.as_str(), "override" | "absent");
        // Those for one consumer are not ours to judge.
        let any_application = matches!(url.param("application"), "" | "*");
        let on = url.param("enabled") != "false";
        (known && any_application && on && url.param("side") != "consumer").then_some(Self(url))
    }

    fn concerns(&self, provider: &Provider) -> bool {
        let Self(url) = self;
        let address = url.host == "0.0.0.0"
            || (url.host == provider.host && (url.port == 0 || url.port == provider.port));
        let same = |key: &str| {
            let wanted = url.param(key);
            matches!(wanted, "" | "*") || wanted == provider.param(key)
        };
        address && same("version") && same("group")
    }
}

/// The parameters of a provider that are overridden; what is said for one address holds over what is
/// said for all.
pub(super) fn overridden(provider: &Provider, overrides: &[Override]) -> BTreeMap<String, String> {
    let mut changed = BTreeMap::new();
    let for_all = |o: &&Override| o.0.host == "0.0.0.0";
    let concerned = overrides.iter().filter(|o| o.concerns(provider));
    let (all, one): (Vec<_>, Vec<_>) = concerned.partition(for_all);
    for Override(url) in all.into_iter().chain(one) {
        for key in ["disabled", "weight"] {
            if let Some(value) = url.params.get(key) {
                changed.insert(key.to_owned(), value.clone());
            }
        }
    }
    changed
}

/// The name of a node as it was meant: `+` is a space.
fn decoded(name: &str) -> String {
    let spaced = name.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced)
        .decode_utf8_lossy()
        .into_owned()
}
