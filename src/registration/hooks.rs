//! `hooks` of a registration: a program that ends with 0, or a URL that answers a POST with 2xx, within
//! ten seconds.

use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use rustix::process::{Pid, Signal, kill_process_group};

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
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut child = child.map_err(|error| format!("cannot start `{name}`: {error}"))?;
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)));
    let ended = tokio::time::timeout(timeout, child.wait()).await;
    if ended.is_ok() {
        // What it left in the background on purpose stays.
        group.0 = None;
    }
    match ended {
        Err(_) => Err(format!("`{name}` took longer than {timeout:?}")),
        Ok(Err(error)) => Err(format!("`{name}`: {error}")),
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("`{name}` ended with {status}")),
    }
}

/// The processes of a program; they are killed with it when this is dropped before its end.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _gone = kill_process_group(group, Signal::KILL);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_program_started_is_killed_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", file.display());
        let command = ["sh", "-c", &script].map(str::to_owned);
        let ended = program(&command, Duration::from_secs(1)).await;
        assert!(ended.unwrap_err().contains("took longer"));
        let pid = std::fs::read_to_string(&file).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        // Gone, or a zombie that nobody has waited for.
        let lives = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        let dead = async {
            while lives() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), dead)
            .await
            .expect("killed");
    }
}
