//! The words of the embedded registry: names that cannot be wrong, instances, and why something is
//! refused. Limits on names are those of Nacos 2.3. Pure.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::{Address, Weight};

/// The namespace of a request that names none.
pub const DEFAULT_NAMESPACE: &str = "public";
/// The group of a request that names none.
pub const DEFAULT_GROUP: &str = "DEFAULT_GROUP";
/// The cluster of a request that names none.
pub const DEFAULT_CLUSTER: &str = "DEFAULT";

/// Why a name, an instance or a change is refused. The texts reach the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A beat would come later than the silence that is allowed.
    #[error(
        "instance format invalid: 'preserved.heart.beat.interval' must be less than \
         'preserved.heart.beat.timeout' and 'preserved.ip.delete.timeout'"
    )]
    Intervals,
    /// Metadata beyond the limit.
    #[error("instance format invalid: {bytes} bytes of metadata, at most {limit} are allowed")]
    Metadata {
        /// Of keys and values.
        bytes: usize,
        /// `limits.max_metadata_bytes`.
        limit: usize,
    },
    /// A name breaks its rule.
    #[error("Param '{param}' is illegal, {rule}")]
    Name {
        /// The parameter's name.
        param: &'static str,
        /// What is allowed.
        rule: &'static str,
    },
    /// No such instance.
    #[error("no matched ip found!")]
    NoInstance,
    /// No such service.
    #[error("service not found, namespace: {namespace}, serviceName: {name}")]
    NoService {
        /// Namespace id.
        namespace: Arc<str>,
        /// `group@@name`.
        name: String,
    },
    /// The registry is full.
    #[error("too many instances, at most {0} are allowed (limits.max_instances)")]
    TooManyInstances(usize),
    /// The registry is full.
    #[error("too many services, at most {0} are allowed (limits.max_services)")]
    TooManyServices(usize),
    /// Not a weight.
    #[error("instance format invalid: the weight must be a number from 0 to 10000")]
    Weight,
}

/// One service: namespace, group and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// Namespace id.
    pub namespace: Arc<str>,
    /// Group.
    pub group: Arc<str>,
    /// Bare name.
    pub name: Arc<str>,
}

impl ServiceKey {
    /// From a name that may be grouped (`group@@name`, which wins over `group`). Absent or empty
    /// namespace and group are the default ones.
    ///
    /// # Errors
    /// [`Refusal::Name`] tells which part is illegal.
    pub fn new(namespace: Option<&str>, group: Option<&str>, name: &str) -> Result<Self, Refusal> {
        let (group, name) = match name.split_once("@@") {
            Some((group, name)) => (Some(group), name),
            None => (group.filter(|group| !group.is_empty()), name),
        };
        let namespace = namespace
            .filter(|id| !id.is_empty())
            .unwrap_or(DEFAULT_NAMESPACE);
        let group = group.unwrap_or(DEFAULT_GROUP);
        let word =
            |extra: &'static str| move |c: char| c.is_ascii_alphanumeric() || extra.contains(c);
        check(
            "namespaceId",
            namespace,
            64,
            "at most 64 of A-Z a-z 0-9 _ -",
            word("_-"),
        )?;
        check(
            "groupName",
            group,
            128,
            "1 to 128 of A-Z a-z 0-9 - _ . :",
            word("-_.:"),
        )?;
        let rule =
            "1 to 512 characters without blanks, control or CJK characters, not starting with @";
        let legal = |c: char| !c.is_whitespace() && !c.is_control() && !is_cjk(c);
        check("serviceName", name, 512, rule, legal)?;
        if name.starts_with('@') || name.contains("@@") {
            return Err(Refusal::Name {
                param: "serviceName",
                rule,
            });
        }
        Ok(Self {
            namespace: namespace.into(),
            group: group.into(),
            name: name.into(),
        })
    }

    /// `group@@name`.
    pub fn grouped(&self) -> String {
        format!("{}@@{}", self.group, self.name)
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@@{}", self.namespace, self.group, self.name)
    }
}

/// One instance inside a service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceKey {
    /// IP address or host name, as sent.
    pub ip: Arc<str>,
    /// Port.
    pub port: u16,
    /// Cluster, as sent; `DEFAULT` when absent.
    pub cluster: Arc<str>,
}

impl InstanceKey {
    /// A legal one.
    ///
    /// # Errors
    /// [`Refusal::Name`] tells which part is illegal.
    pub fn new(ip: &str, port: u16, cluster: Option<&str>) -> Result<Self, Refusal> {
        let rule = "it must be an IP address or a host name of at most 128 characters";
        if ip.len() > 128 || Address::from_parts(ip, 1).is_err() {
            return Err(Refusal::Name { param: "ip", rule });
        }
        let cluster = cluster
            .filter(|name| !name.is_empty())
            .unwrap_or(DEFAULT_CLUSTER);
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        check(
            "clusterName",
            cluster,
            64,
            "at most 64 of A-Z a-z 0-9 - _",
            legal,
        )?;
        Ok(Self {
            ip: ip.into(),
            port,
            cluster: cluster.into(),
        })
    }
}

impl InstanceKey {
    /// Exactly this instance.
    pub fn target(&self) -> Target<'_> {
        Target {
            ip: &self.ip,
            port: self.port,
            cluster: Some(&self.cluster),
        }
    }
}

/// Which instances of a service a call means. Clients register in a cluster and deregister or beat
/// without naming it (Python 0.1, Java 1.4): then it is any.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// As registered.
    pub ip: &'a str,
    /// As registered.
    pub port: u16,
    /// `None`: any.
    pub cluster: Option<&'a str>,
}

/// What a client registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Which instance.
    pub key: InstanceKey,
    /// Share of traffic.
    pub weight: Weight,
    /// False: takes no traffic and is not listed.
    pub enabled: bool,
    /// The health it claims.
    pub healthy: bool,
    /// True: it lives by heart-beats. False: until it is deregistered.
    pub ephemeral: bool,
    /// Free metadata; `preserved.*` keys set its intervals.
    pub metadata: Arc<BTreeMap<String, String>>,
}

impl Registration {
    /// A healthy, enabled, ephemeral instance of weight 1.
    pub fn new(key: InstanceKey) -> Self {
        Self {
            key,
            weight: Weight::ONE,
            enabled: true,
            healthy: true,
            ephemeral: true,
            metadata: Arc::default(),
        }
    }
}

/// An operator's change; what is `None` stays. All but `healthy` outlive a re-registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// Share of traffic.
    pub weight: Option<Weight>,
    /// Whether it takes traffic.
    pub enabled: Option<bool>,
    /// Until the next beat.
    pub healthy: Option<bool>,
    /// Instead of what was registered.
    pub metadata: Option<Arc<BTreeMap<String, String>>>,
}

/// The intervals of one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Between beats.
    pub beat_interval: Duration,
    /// Silence until it is unhealthy.
    pub unhealthy_after: Duration,
    /// Silence until it is removed.
    pub remove_after: Duration,
}

impl Timing {
    /// These, unless the metadata of an instance says otherwise (in milliseconds).
    ///
    /// # Errors
    /// [`Refusal::Intervals`] when the metadata contradicts itself.
    pub fn of(self, metadata: &BTreeMap<String, String>) -> Result<Self, Refusal> {
        let preserved = |key: &str| {
            let millis = metadata.get(key)?.trim().parse::<u64>().ok()?;
            Some(Duration::from_millis(millis))
        };
        let interval = preserved("preserved.heart.beat.interval");
        let timeout = preserved("preserved.heart.beat.timeout");
        let delete = preserved("preserved.ip.delete.timeout");
        let timing = Self {
            beat_interval: interval.unwrap_or(self.beat_interval),
            unhealthy_after: timeout.unwrap_or(self.unhealthy_after),
            remove_after: delete.unwrap_or(self.remove_after),
        };
        let own = interval.is_some() || timeout.is_some() || delete.is_some();
        let least = timing.unhealthy_after.min(timing.remove_after);
        if own && timing.beat_interval > least {
            return Err(Refusal::Intervals);
        }
        Ok(timing)
    }
}

fn check(
    param: &'static str,
    value: &str,
    most: usize,
    rule: &'static str,
    legal: impl Fn(char) -> bool,
) -> Result<(), Refusal> {
    let good = !value.is_empty() && value.chars().count() <= most && value.chars().all(legal);
    if good {
        Ok(())
    } else {
        Err(Refusal::Name { param, rule })
    }
}

fn is_cjk(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fa5}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_service_name_are_one_service() {
        let bare = ServiceKey::new(None, Some("g"), "svc").unwrap();
        assert_eq!(
            bare,
            ServiceKey::new(Some(""), Some("other"), "g@@svc").unwrap()
        );
        assert_eq!(bare.grouped(), "g@@svc");
        assert_eq!(
            &*ServiceKey::new(None, Some(""), "svc").unwrap().group,
            "DEFAULT_GROUP"
        );
    }

    #[test]
    fn names_have_the_limits_of_nacos() {
        for bad in [
            "", "@svc", "@@svc", "a b", "a@@b@@c", "\u{4e2d}", "a@@", "a\nb",
        ] {
            assert!(ServiceKey::new(None, None, bad).is_err(), "{bad:?}");
        }
        for good in [
            "providers:com.acme.UserService::",
            "a/b",
            "x.y-z_1",
            "h\u{e9}llo",
        ] {
            assert!(ServiceKey::new(None, None, good).is_ok(), "{good:?}");
        }
        assert!(ServiceKey::new(None, None, &"x".repeat(513)).is_err());
        assert!(ServiceKey::new(Some(&"x".repeat(65)), None, "s").is_err());
        assert!(ServiceKey::new(None, Some(&"x".repeat(129)), "s").is_err());
        assert!(InstanceKey::new("10.0.0.1", 1, Some(&"x".repeat(65))).is_err());
        assert!(InstanceKey::new("a b", 1, None).is_err());
        assert!(InstanceKey::new("::1", 0, Some("None")).is_ok());
        assert_eq!(
            &*InstanceKey::new("h.internal", 1, Some("")).unwrap().cluster,
            "DEFAULT"
        );
    }

    #[test]
    fn metadata_sets_the_intervals_and_must_be_consistent() {
        let default = Timing {
            beat_interval: Duration::from_secs(5),
            unhealthy_after: Duration::from_secs(15),
            remove_after: Duration::from_secs(30),
        };
        let metadata = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(k, v)| (format!("preserved.{k}"), (*v).to_owned()))
                .collect()
        };
        assert_eq!(
            default.of(&metadata(&[("heart.beat.timeout", "x")])),
            Ok(default)
        );
        let quick = metadata(&[
            ("heart.beat.interval", "1000"),
            ("heart.beat.timeout", "3000"),
            ("ip.delete.timeout", "6000"),
        ]);
        let timing = default.of(&quick).unwrap();
        assert_eq!(timing.unhealthy_after, Duration::from_secs(3));
        assert_eq!(timing.remove_after, Duration::from_secs(6));
        let wrong = metadata(&[("heart.beat.timeout", "3000")]);
        assert_eq!(default.of(&wrong), Err(Refusal::Intervals));
    }
}
