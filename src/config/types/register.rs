//! The runtime form of `app.register`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::Weight;
use crate::outlier::policy::CodeSet;

/// One item of `app.register`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Which registry.
    pub registry: Arc<str>,
    /// Name of the service there.
    pub service: Arc<str>,
    /// `None`: the registry's.
    pub group: Option<Arc<str>>,
    /// `None`: the registry's usual one.
    pub cluster: Option<Arc<str>>,
    /// Where callers reach the app.
    pub advertise: Advertise,
    /// Share of the traffic.
    pub weight: Weight,
    /// For callers.
    pub metadata: BTreeMap<String, String>,
    /// It lives by its beats.
    pub ephemeral: bool,
    /// `None`: what the registry asks for.
    pub heartbeat_interval: Option<Duration>,
    /// `None`: the app counts as up.
    pub check: Option<AppCheck>,
    /// A second instance, of the management port.
    pub management: Option<Management>,
    /// The process ends when the first registration fails.
    pub fail_fast: bool,
    /// Before the first registration.
    pub pre_register: Option<Hook>,
    /// After the first registration.
    pub post_register: Option<Hook>,
}

/// `advertise`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertise {
    /// Which address.
    pub address: AdvertiseAddress,
    /// Port of the app.
    pub port: u16,
}

/// `advertise.address`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdvertiseAddress {
    /// `POD_IP`, else the address of the default route's interface.
    Auto,
    /// This one.
    Fixed(Arc<str>),
    /// The first address of this interface.
    Interface(Arc<str>),
}

/// `management`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Management {
    /// Its port.
    pub port: u16,
    /// Its service: `SERVICE-management`, unless said.
    pub service: Arc<str>,
}

/// `check`: how the app is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppCheck {
    /// How.
    pub kind: AppCheckKind,
    /// Between two checks.
    pub interval: Duration,
    /// Of one check.
    pub timeout: Duration,
    /// Good ones in a row until it is up.
    pub rise: u32,
    /// Bad ones in a row until it is down.
    pub fall: u32,
}

/// How the app is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppCheckKind {
    /// A GET is answered with one of these statuses, and its body says what it must.
    Http {
        /// `host:port`.
        address: Arc<str>,
        /// Path with query.
        path: Arc<str>,
        /// Good statuses.
        expect: CodeSet,
        /// What the body must say.
        json: Option<JsonRule>,
    },
    /// A TCP connection is accepted at this `host:port`.
    Tcp(Arc<str>),
    /// `grpc.health.v1.Health/Check` answers SERVING.
    Grpc {
        /// `host:port`.
        address: Arc<str>,
        /// Asked for; empty: the server as a whole.
        service: Arc<str>,
    },
    /// A program ends with 0. Its name and its arguments.
    Exec(Vec<String>),
}

/// `json_pointer`: the value there must be this text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonRule {
    /// RFC 6901.
    pub pointer: Arc<str>,
    /// Compared without regard to case.
    pub value: Arc<str>,
}

/// One of `hooks`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hook {
    /// A program and its arguments; it must end with 0.
    Exec(Vec<String>),
    /// A URL that is sent a POST; it must answer 2xx.
    Http(Arc<str>),
}
