//! Finds the admin listener and asks it: `--admin`, `OUTRIGGER_ADMIN`, the configuration file, the
//! default, in this order. What fails says which address was tried and what to do.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::admin::views::Problem;
use crate::config::environment::Environment;
use crate::config::types::{Config, Listen};
use crate::config::{LoadRequest, load};
use crate::http_client::{HttpClient, HttpError, Target};

const DEFAULT: &str = "127.0.0.1:15002";
const CLIENT: HttpClient = HttpClient {
    timeout: Duration::from_secs(10),
    max_body: 256 << 20,
};
/// What stays as it is in a segment of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':');

/// Where the process is.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ConnectArgs {
    /// The admin listener, HOST:PORT or unix:PATH; else OUTRIGGER_ADMIN, else `admin.listen` of the
    /// configuration file, else 127.0.0.1:15002.
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
    /// File with the bearer token; else `admin.token_file` of the configuration file.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The configuration file the process was started with.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The answer is not one of ours.
    #[error("{target} gave an answer that is not understood: {why}; is it an Outrigger {version}?",
        version = crate::version::VERSION)]
    Foreign {
        /// Who answered.
        target: String,
        /// What is wrong with it.
        why: String,
    },
    /// Reading a file or starting a runtime failed.
    #[error("{0}")]
    Local(String),
    /// The result could not be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] std::io::Error),
    /// The process said no.
    #[error("{}{}{}", .0.message, if .0.hint.is_empty() { "" } else { "; " }, .0.hint)]
    Refused(Problem),
    /// Nobody answers.
    #[error(
        "cannot reach {what} at {target} ({how}): {source}; is outrigger running? `{flag}` \
        names another address"
    )]
    Unreachable {
        /// What was looked for.
        what: &'static str,
        /// Where.
        target: String,
        /// Why there.
        how: String,
        /// The flag that changes it.
        flag: &'static str,
        /// What went wrong.
        source: HttpError,
    },
    /// Arguments that mean nothing.
    #[error("{0}")]
    Usage(String),
}

impl Failure {
    /// Whether another try may find what this one did not: somebody who listens, or control.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused(problem) => problem.error == "control_unavailable",
            Self::Foreign { .. } | Self::Local(_) | Self::Output(_) | Self::Usage(_) => false,
        }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Refused(problem) if problem.error.starts_with("bad_") => 2,
            Self::Foreign { .. } | Self::Local(_) | Self::Output(_) | Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable { .. } => 6,
        }
    }
}

/// A listener and how it was found.
#[derive(Debug)]
pub(super) struct Place {
    what: &'static str,
    flag: &'static str,
    target: Target,
    how: String,
}

impl Place {
    pub(super) fn admin(target: Target, how: String) -> Self {
        Self {
            what: "the admin listener",
            flag: "--admin",
            target,
            how,
        }
    }

    pub(super) fn telemetry(target: Target, how: String) -> Self {
        Self {
            what: "the telemetry listener",
            flag: "--telemetry",
            target,
            how,
        }
    }
}

/// Asks one admin listener.
#[derive(Debug)]
pub struct AdminClient {
    runtime: tokio::runtime::Runtime,
    place: Place,
    authorization: Option<HeaderValue>,
}

impl AdminClient {
    /// The client of the listener that the arguments lead to; nothing is sent yet.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn find(args: &ConnectArgs, env: &dyn Environment) -> Result<Self, Failure> {
        let named = args.admin.clone().map(|text| (text, "--admin".to_owned()));
        let named = named.or_else(|| {
            let text = env.variable("OUTRIGGER_ADMIN").filter(|t| !t.is_empty())?;
            Some((text, "OUTRIGGER_ADMIN".to_owned()))
        });
        let (config, file) = configuration(args.config.as_deref(), env);
        let (target, how) = match (named, &config) {
            (Some((text, how)), _) => (address(&text)?, how),
            (None, Some(config)) => (reachable(&config.admin.listen)?, file),
            (None, None) => (address(DEFAULT)?, file),
        };
        // A token goes only where the same file says that it belongs.
        let admin = config.as_ref().map(|config| &config.admin);
        let admin = admin.filter(|admin| {
            reachable(&admin.listen).is_ok_and(|at| at.to_string() == target.to_string())
        });
        let configured = admin.and_then(|admin| admin.token_file.clone());
        let token_file = args.token_file.clone().or(configured);
        let authorization = token_file.as_deref().map(token).transpose()?;
        Self::at(Place::admin(target, how), authorization)
    }

    pub(super) fn at(place: Place, authorization: Option<HeaderValue>) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::Local(format!("cannot start: {error}")))?;
        Ok(Self {
            runtime,
            place,
            authorization,
        })
    }

    /// The answer to a GET of a path with its query.
    ///
    /// # Errors
    /// [`Failure`]; also when the process says no.
    pub fn get(&self, path: &str) -> Result<Value, Failure> {
        self.understood(&self.send(path)?)
    }

    /// The answer to an order; `body` is the object that goes with it, if one does.
    ///
    /// # Errors
    /// [`Failure`]; also when the process says no.
    pub fn order(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("x-outrigger-admin", "1");
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(|body| Bytes::from(body.to_string()));
        self.understood(&self.exchange(request, body.unwrap_or_default())?)
    }

    /// The answer to an order whose answer is one of ours with any of the statuses `taken`.
    ///
    /// # Errors
    /// [`Failure`]; also when the process says no.
    pub(super) fn order_taking(
        &self,
        taken: &[StatusCode],
        method: Method,
        path: &str,
        body: &Value,
    ) -> Result<Value, Failure> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("x-outrigger-admin", "1")
            .header(CONTENT_TYPE, "application/json");
        let answer = self.exchange(request, Bytes::from(body.to_string()))?;
        if taken.contains(&answer.status()) {
            return serde_json::from_slice(answer.body()).map_err(|error| self.foreign(&error));
        }
        self.understood(&answer)
    }

    fn understood(&self, answer: &Response<Bytes>) -> Result<Value, Failure> {
        let parsed = serde_json::from_slice(answer.body());
        if answer.status().is_success() {
            return parsed.map_err(|error| self.foreign(&error));
        }
        match parsed.and_then(serde_json::from_value::<Problem>) {
            Ok(problem) => Err(Failure::Refused(problem)),
            Err(_) => Err(self.foreign(&format!("status {}", answer.status()))),
        }
    }

    /// The answer as a value of ours.
    ///
    /// # Errors
    /// [`Failure`]; also when it has another shape.
    pub fn read<T: DeserializeOwned>(&self, answer: &Value) -> Result<T, Failure> {
        T::deserialize(answer).map_err(|error| self.foreign(&error))
    }

    /// Any answer.
    pub(super) fn send(&self, path: &str) -> Result<Response<Bytes>, Failure> {
        self.exchange(Request::get(path), Bytes::new())
    }

    fn exchange(
        &self,
        mut request: http::request::Builder,
        body: Bytes,
    ) -> Result<Response<Bytes>, Failure> {
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request
            .body(Full::new(body))
            .map_err(|error| Failure::Usage(format!("no usable path: {error}")))?;
        let answer = self
            .runtime
            .block_on(CLIENT.send(&self.place.target, request));
        answer.map_err(|source| Failure::Unreachable {
            what: self.place.what,
            target: self.place.target.to_string(),
            how: self.place.how.clone(),
            flag: self.place.flag,
            source,
        })
    }

    /// Waits, for commands that go on until somebody interrupts; whether that happened.
    ///
    /// # Errors
    /// When interrupts cannot be had.
    pub fn interrupted_within(&self, time: Duration) -> Result<bool, Failure> {
        let waiting = async {
            tokio::select! {
                interrupt = tokio::signal::ctrl_c() => interrupt.map(|()| true),
                () = tokio::time::sleep(time) => Ok(false),
            }
        };
        let waited = self.runtime.block_on(waiting);
        waited.map_err(|error| Failure::Local(format!("cannot wait for Ctrl-C: {error}")))
    }

    /// Waits, for commands that follow.
    pub fn pause(&self, time: Duration) {
        self.runtime
            .block_on(async { tokio::time::sleep(time).await });
    }

    fn foreign(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::Foreign {
            target: self.place.target.to_string(),
            why: why.to_string(),
        }
    }
}

/// A name as one segment of a path.
pub(super) fn segment(name: &str) -> String {
    utf8_percent_encode(name, SEGMENT).to_string()
}

/// The configuration a process would use, and how that was found; of a file with errors what can be
/// read, since the process still runs with an earlier version of it.
pub(super) fn configuration(
    file: Option<&Path>,
    env: &dyn Environment,
) -> (Option<Config>, String) {
    let loaded = load(LoadRequest::new(file.map(Path::to_owned), env));
    let how = match (&loaded.config, &loaded.main_file) {
        (None, Some(path)) if loaded.rejected.is_some() => {
            format!("from {}, which has errors", path.display())
        }
        (Some(_), Some(path)) => format!("from {}", path.display()),
        (Some(_), None) => "the default".to_owned(),
        (None, Some(path)) => format!("the default, since {} has errors", path.display()),
        (None, None) => "the default, since the configuration has errors".to_owned(),
    };
    (loaded.config.or(loaded.rejected), how)
}

/// `HOST:PORT`, `unix:PATH`, also with `http://` in front.
pub(super) fn address(text: &str) -> Result<Target, Failure> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Target::Unix(path.strip_prefix("//").unwrap_or(path).into()));
    }
    let bare = text.strip_prefix("http://").unwrap_or(text);
    let bare = bare.trim_end_matches('/');
    let good = bare
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !good || bare.contains('/') {
        let message = format!("`{text}` is no address; write HOST:PORT or unix:PATH");
        return Err(Failure::Usage(message));
    }
    Ok(Target::Tcp(bare.to_owned()))
}

/// How to connect to what is listened on.
pub(super) fn reachable(listen: &Listen) -> Result<Target, Failure> {
    let (host, port) = match listen {
        Listen::Unix(path) => return Ok(Target::Unix(path.clone())),
        Listen::Localhost(port) => ("localhost".to_owned(), *port),
        Listen::Tcp(at) if at.ip().is_unspecified() && at.is_ipv4() => {
            ("127.0.0.1".to_owned(), at.port())
        }
        Listen::Tcp(at) if at.ip().is_unspecified() => ("[::1]".to_owned(), at.port()),
        Listen::Tcp(at) if at.is_ipv6() => (format!("[{}]", at.ip()), at.port()),
        Listen::Tcp(at) => (at.ip().to_string(), at.port()),
    };
    if port == 0 {
        let message = "the configuration lets the process choose a port; its `listening` event \
                       names it, give it with --admin";
        return Err(Failure::Usage(message.to_owned()));
    }
    Ok(Target::Tcp(format!("{host}:{port}")))
}

fn token(path: &Path) -> Result<HeaderValue, Failure> {
    let fail = |what: String| {
        let path = path.display();
        Failure::Local(format!("the token file {path} cannot be used: {what}"))
    };
    let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    let value = HeaderValue::from_str(&format!("Bearer {}", text.trim()));
    let mut value = value.map_err(|error| fail(error.to_string()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_every_form() {
        assert_eq!(
            address("127.0.0.1:15002").unwrap().to_string(),
            "127.0.0.1:15002"
        );
        assert_eq!(address("http://a:1/").unwrap().to_string(), "a:1");
        assert_eq!(address("unix:/x").unwrap().to_string(), "unix:/x");
        for bad in ["15002", ":15002", "a:b", "a:1/x", ""] {
            assert_eq!(address(bad).unwrap_err().code(), 2, "{bad}");
        }
        let any = Listen::Tcp("0.0.0.0:15003".parse().unwrap());
        assert_eq!(reachable(&any).unwrap().to_string(), "127.0.0.1:15003");
        let any = Listen::Tcp("[::]:15003".parse().unwrap());
        assert_eq!(reachable(&any).unwrap().to_string(), "[::1]:15003");
        assert_eq!(
            reachable(&Listen::Localhost(7)).unwrap().to_string(),
            "localhost:7"
        );
        assert!(reachable(&Listen::Localhost(0)).is_err());
    }
}
