//! `hooks` of a registration: a program that ends with 0, or a URL that answers a POST with 2xx, within
//! ten seconds.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;

use crate::config::types::Hook;
use crate::health::exec::program;
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
        Hook::Exec(command) => match program(command, &[], TIMEOUT).await {
            Ok(_said) => Ok(()),
            Err(trouble) => Err(trouble.into()),
        },
        Hook::Http(url) => post(url).await,
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
