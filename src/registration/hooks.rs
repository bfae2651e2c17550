//! `hooks` of a registration: a program that ends with 0, or a URL that answers a POST with 2xx, within
//! ten seconds.

use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;

use crate::config::types::Hook;
use crate::http_client::{HttpClient, Target};

/// Of one hook.
const TIMEOUT: Duration = Duration::from_secs(10);
const CLIENT: HttpClient = HttpClient {
    timeout: TIMEOUT,
    max_body: 64 * 1024,
};

/// Runs one.
///
/// # Errors
/// What went wrong, for people.
pub(super) async fn run(hook: &Hook) -> Result<(), String> {
    match hook {
        Hook::Exec(command) => program(command, TIMEOUT).await,
        Hook::Http(url) => post(url).await,
    }
}

/// Runs a program to its end; one that takes longer is killed.
///
/// # Errors
/// It could not be started, took too long, or did not end with 0.
pub(super) async fn program(command: &[String], timeout: Duration) -> Result<(), String> {
    let Some((name, arguments)) = command.split_first() else {
        return Err("no program".to_owned());
    };
    let child = tokio::process::Command::new(name)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let mut child = child.map_err(|error| format!("cannot start `{name}`: {error}"))?;
    match tokio::time::timeout(timeout, child.wait()).await {
        Err(_) => Err(format!("`{name}` took longer than {timeout:?}")),
        Ok(Err(error)) => Err(format!("`{name}`: {error}")),
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("`{name}` ended with {status}")),
    }
}

async fn post(url: &str) -> Result<(), String> {
    let uri: http::Uri = url.parse().map_err(|error| format!("{url}: {error}"))?;
    let host = uri.host().unwrap_or_default();
    let port = uri.port_u16().unwrap_or(80);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::post(path)
        .body(Full::<Bytes>::default())
        .map_err(|error| format!("{url}: {error}"))?;
    let answer = CLIENT
        .send(&Target::Tcp(format!("{host}:{port}")), request)
        .await;
    match answer {
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(answer) => Err(format!("{url} answered {}", answer.status().as_u16())),
        Err(error) => Err(format!("{url}: {error}")),
    }
}
