//! Parameters of a request of the open API: query and form body together, as Nacos takes them; the
//! query wins. Also a flat JSON object as body, which some clients send.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::model::{InstanceKey, Refusal, ServiceKey, Target};
use crate::endpoint::Weight;

/// Bytes of a list of clusters.
pub(super) const MAX_CLUSTERS: usize = 1024;

/// Decoded parameters.
#[derive(Debug, Default)]
pub(super) struct Params(Vec<(String, String)>);

/// Why a parameter cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParamError {
    #[error("Param '{0}' is required.")]
    Missing(&'static str),
    #[error("Param '{name}' is illegal, {rule}")]
    Illegal {
        name: &'static str,
        rule: &'static str,
    },
    #[error("{0}")]
    Refused(#[from] Refusal),
}

impl Params {
    pub(super) fn parse(query: Option<&str>, body: &[u8]) -> Self {
        let mut all: Vec<(String, String)> = Vec::new();
        let query = query.unwrap_or_default().as_bytes();
        all.extend(form_urlencoded::parse(query).into_owned());
        if body.trim_ascii_start().starts_with(b"{") {
            let object: Object = serde_json::from_slice(body).unwrap_or_default();
            all.extend(texts(object));
        } else {
            all.extend(form_urlencoded::parse(body).into_owned());
        }
        Self(all)
    }

    /// A parameter; an empty one counts as absent.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let mut values = self
            .0
            .iter()
            .filter(|(key, value)| key == name && !value.is_empty());
        values.next().map(|(_, value)| value.as_str())
    }

    /// A list of clusters with commas; empty: all.
    pub(super) fn clusters(&self) -> Result<&str, ParamError> {
        let clusters = self.get("clusters").unwrap_or_default();
        match clusters.len() <= MAX_CLUSTERS {
            true => Ok(clusters),
            false => Err(ParamError::Illegal {
                name: "clusters",
                rule: "it must not be longer than 1024 bytes",
            }),
        }
    }

    pub(super) fn required(&self, name: &'static str) -> Result<&str, ParamError> {
        self.get(name).ok_or(ParamError::Missing(name))
    }

    /// A boolean in any case.
    pub(super) fn flag(&self, name: &'static str) -> Result<Option<bool>, ParamError> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(Some(true)),
            "false" | "0" | "no" | "off" => Ok(Some(false)),
            _ => Err(ParamError::Illegal {
                name,
                rule: "it must be true or false",
            }),
        }
    }

    pub(super) fn number(&self, name: &'static str) -> Result<usize, ParamError> {
        let rule = "it must be a whole number";
        self.required(name)?
            .trim()
            .parse()
            .map_err(|_| ParamError::Illegal { name, rule })
    }

    pub(super) fn port(&self) -> Result<u16, ParamError> {
        port(self.required("port")?)
    }

    pub(super) fn service(&self) -> Result<ServiceKey, ParamError> {
        let name = self.required("serviceName")?;
        Ok(ServiceKey::new(
            self.get("namespaceId"),
            self.get("groupName"),
            name,
        )?)
    }

    pub(super) fn cluster(&self) -> Option<&str> {
        self.get("clusterName").or_else(|| self.get("cluster"))
    }

    pub(super) fn instance(&self) -> Result<InstanceKey, ParamError> {
        Ok(InstanceKey::new(
            self.required("ip")?,
            self.port()?,
            self.cluster(),
        )?)
    }

    /// Which instance is meant; without a cluster, of any.
    pub(super) fn target(&self) -> Result<Target<'_>, ParamError> {
        Ok(Target {
            ip: self.required("ip")?,
            port: self.port()?,
            cluster: self.cluster(),
        })
    }

    pub(super) fn weight(&self) -> Result<Option<Weight>, ParamError> {
        self.get("weight")
            .map(|text| weight(text.trim().parse().ok()))
            .transpose()
    }

    pub(super) fn enabled(&self) -> Result<Option<bool>, ParamError> {
        Ok(self.flag("enabled")?.or(self.flag("enable")?))
    }

    /// A JSON object of strings, or `k=v,k=v`.
    pub(super) fn metadata(&self) -> Result<Option<Metadata>, ParamError> {
        self.get("metadata").map(metadata).transpose()
    }
}

type Metadata = Arc<BTreeMap<String, String>>;

pub(super) fn port(text: &str) -> Result<u16, ParamError> {
    let rule = "it must be a whole number from 0 to 65535";
    text.trim()
        .parse()
        .map_err(|_| ParamError::Illegal { name: "port", rule })
}

/// A legal weight: Nacos refuses the others.
pub(super) fn weight(number: Option<f64>) -> Result<Weight, ParamError> {
    let (weight, changed) = Weight::from_number(number.unwrap_or(f64::NAN));
    if changed {
        Err(Refusal::Weight.into())
    } else {
        Ok(weight)
    }
}

/// Strings by name; other values are taken as their text, null as absent.
pub(super) fn metadata_of(object: Object) -> Metadata {
    Arc::new(texts(object).collect())
}

type Object = serde_json::Map<String, serde_json::Value>;

fn texts(object: Object) -> impl Iterator<Item = (String, String)> {
    let present = object.into_iter().filter(|(_, value)| !value.is_null());
    present.map(|(name, value)| {
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        (name, text)
    })
}

fn metadata(text: &str) -> Result<Metadata, ParamError> {
    let illegal = || ParamError::Illegal {
        name: "metadata",
        rule: "it must be a JSON object of strings or key=value,key=value",
    };
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text)
            .map(metadata_of)
            .map_err(|_| illegal());
    }
    if text.trim() == "null" {
        return Ok(Metadata::default());
    }
    let pairs = text.split(',').filter(|pair| !pair.trim().is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').ok_or_else(illegal));
    let pairs = pairs.map(|pair| pair.map(|(k, v)| (k.trim().to_owned(), v.to_owned())));
    Ok(Arc::new(pairs.collect::<Result<_, _>>()?))
}
