//! Runs a program to its end: checks and hooks. It says good by ending with 0; the first line that it
//! prints is kept for people. What takes too long is killed with all that it started.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::upstream::connect::is_our_own;

/// Bytes of what it prints that are kept; the rest is read and dropped.
const KEPT: usize = 1024;
/// Characters of its first line that are shown.
const SHOWN: usize = 200;
/// Between two reads of what is dropped: some 4 MB a second.
const BREATH: Duration = Duration::from_millis(1);
/// How long the end of its output is waited for when it has ended itself.
const REST: Duration = Duration::from_millis(100);

/// Why a program gave no good answer, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It was not started, for want of something on our side.
    Ours(String),
    /// It could not be started, took too long, or did not end with 0.
    Bad(String),
}

impl From<Trouble> for String {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Ours(text) | Trouble::Bad(text) => text,
        }
    }
}

/// Runs it; what it said.
///
/// # Errors
/// [`Trouble`].
pub async fn program(
    command: &[String],
    environment: &[(&str, String)],
    timeout: Duration,
) -> Result<String, Trouble> {
    let Some((name, arguments)) = command.split_first() else {
        return Err(Trouble::Bad("no program".to_owned()));
    };
    let child = tokio::process::Command::new(name)
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (*name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut child = child.map_err(|error| not_started(name, &error))?;
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)));
    let mut output = child.stdout.take();
    let mut said = Vec::new();
    let ended = tokio::time::timeout(timeout, async {
        let ended = tokio::select! {
            ended = child.wait() => ended,
            () = read(output.as_mut(), &mut said) => child.wait().await,
        };
        let _left_open = tokio::time::timeout(REST, read(output.as_mut(), &mut said)).await;
        ended
    });
    let ended = ended.await;
    if ended.is_ok() {
        // What it left in the background on purpose stays.
        group.0 = None;
    }
    let said = first_line(&said);
    let words = match said.as_str() {
        "" => String::new(),
        said => format!(": {said}"),
    };
    match ended {
        Ok(Ok(status)) if status.success() => Ok(said),
        Err(_) => Err(Trouble::Bad(format!(
            "`{name}` took longer than {timeout:?}"
        ))),
        Ok(Err(error)) => Err(Trouble::Bad(format!("`{name}`: {error}"))),
        Ok(Ok(status)) => Err(Trouble::Bad(format!("`{name}` ended with {status}{words}"))),
    }
}

fn not_started(name: &str, error: &io::Error) -> Trouble {
    let text = format!("cannot start `{name}`: {error}");
    // Too many processes: EAGAIN.
    if is_our_own(error) || error.kind() == io::ErrorKind::WouldBlock {
        Trouble::Ours(text)
    } else {
        Trouble::Bad(text)
    }
}

/// Reads to the end; keeps the beginning. Who writes more than that is not read as fast as it can write.
async fn read(from: Option<&mut (impl AsyncRead + Unpin)>, said: &mut Vec<u8>) {
    let Some(from) = from else { return };
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut chunk).await {
        if said.len() >= KEPT {
            tokio::time::sleep(BREATH).await;
        }
        let room = KEPT.saturating_sub(said.len());
        said.extend(chunk.iter().take(length.min(room)));
    }
}

fn first_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    let shown = line.unwrap_or_default().chars().take(SHOWN);
    shown
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    async fn shell(script: &str, seconds: u64) -> Result<String, String> {
        let command = ["sh", "-c", script].map(str::to_owned);
        let environment = [("CHECK_ADDRESS", "10.0.0.1:80".to_owned())];
        let said = program(&command, &environment, Duration::from_secs(seconds)).await;
        said.map_err(String::from)
    }

    #[tokio::test]
    async fn it_is_told_of_its_instance_and_says_how_it_is() {
        let said = shell("echo; echo all is well at $CHECK_ADDRESS; echo more", 20).await;
        assert_eq!(said.unwrap(), "all is well at 10.0.0.1:80");
        let said = shell("printf 'disk\\033[31m full'; exit 3", 20)
            .await
            .unwrap_err();
        assert!(said.contains("exit status: 3: disk [31m full"), "{said}");
        let missing = ["/no/such/program".to_owned()];
        let said = program(&missing, &[], Duration::from_secs(1)).await;
        let said = String::from(said.unwrap_err());
        assert!(
            said.starts_with("cannot start `/no/such/program`"),
            "{said}"
        );
    }

    #[tokio::test]
    async fn a_flood_of_words_is_bounded_and_does_not_stop_it() {
        let said = shell("head -c 3000000 /dev/zero | tr '\\0' x; exit 0", 20)
            .await
            .unwrap();
        assert_eq!(said.len(), SHOWN);
        // Something in the background holds its output open.
        assert_eq!(shell("sleep 3 & echo ok", 20).await.unwrap(), "ok");
    }

    #[tokio::test(start_paused = true)]
    async fn who_writes_without_end_is_read_at_leisure() {
        /// Always has more; how often it was asked.
        struct Endless(u32);

        impl AsyncRead for Endless {
            fn poll_read(
                mut self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
                into: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<io::Result<()>> {
                self.0 += 1;
                assert!(self.0 < 1_000_000, "read as fast as it can write");
                into.put_slice(&[b'x'; 64]);
                std::task::Poll::Ready(Ok(()))
            }
        }

        let (mut endless, mut said) = (Endless(0), Vec::new());
        let reading = read(Some(&mut endless), &mut said);
        let second = Duration::from_secs(1);
        assert!(tokio::time::timeout(second, reading).await.is_err());
        assert_eq!(said.len(), KEPT);
        assert!(endless.0 < 1_100, "{} reads", endless.0);
    }

    #[test]
    fn what_we_lack_ourselves_is_told_apart() {
        let trouble = |code| not_started("x", &io::Error::from_raw_os_error(code));
        for ours in [rustix::io::Errno::MFILE, rustix::io::Errno::AGAIN] {
            assert!(matches!(trouble(ours.raw_os_error()), Trouble::Ours(_)));
        }
        let missing = trouble(rustix::io::Errno::NOENT.raw_os_error());
        assert!(matches!(missing, Trouble::Bad(_)));
    }

    #[tokio::test]
    async fn what_a_program_started_is_killed_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", file.display());
        assert!(shell(&script, 1).await.unwrap_err().contains("took longer"));
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
